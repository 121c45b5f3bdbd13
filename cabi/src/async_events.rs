//! Asynchronous events of a context.

use crate::abi::event::{self as kinds};
use crate::abi::{ibv_async_element, ibv_async_event, ibv_context};
use crate::boundary::{self, Result, is_nonblocking, read_token};
use crate::context::Context;
use crate::cq::Cq;
use crate::errno::Errno;
use crate::object::Object;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::system;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use uiw_verbs::AsyncEvent;

/// The result of one attempt to take an event.
enum Attempt {
    Taken,
    Failed,
    Sleep(c_int),
}

/// `ibv_get_async_event`: waits unless the program made the descriptor non-blocking.
///
/// # Safety
/// `context` is NULL or one of ours and stays while this waits; `event` is NULL or writable.
pub unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let mut has_token = false;
    loop {
        // SAFETY: the caller's promise. Nothing here has a destructor, so a thread may be cancelled while it waits.
        unsafe {
            match attempt(context, has_token, event) {
                Attempt::Taken => return 0,
                Attempt::Failed => return -1,
                Attempt::Sleep(fd) => has_token = read_token(fd),
            }
        }
        if !has_token {
            return -1;
        }
    }
}

/// # Safety
/// As for [`ibv_get_async_event`].
unsafe fn attempt(context: *mut ibv_context, has_token: bool, event: *mut ibv_async_event) -> Attempt {
    let body = || -> Result<Attempt> {
        // SAFETY: the caller's promise, here and below.
        let open = unsafe { Context::get(context) }?;
        if event.is_null() {
            return Err(Errno::INVAL.null());
        }
        // SAFETY: as above.
        let fd = unsafe { (*context).async_fd };
        let events = open.engine.async_events();
        let mut next = if has_token { events.pop_with_token() } else { events.try_pop() };
        while let Some(found) = next {
            if let Some(found) = deliver(open, &found) {
                // SAFETY: as above.
                unsafe { event.write(found) };
                return Ok(Attempt::Taken);
            }
            next = events.try_pop();
        }
        if is_nonblocking(fd) {
            Err(Errno::AGAIN)
        } else {
            Ok(Attempt::Sleep(events.token_fd()?.as_raw_fd()))
        }
    };
    boundary::value(Attempt::Failed, || {
        Ok(body().unwrap_or_else(|errno| {
            errno.set();
            Attempt::Failed
        }))
    })
}

/// The event as C's, counted as delivered; `None` when its object is destroyed.
fn deliver(context: &Context, event: &AsyncEvent) -> Option<ibv_async_event> {
    let numbers = context.numbers.lock();
    let qp = |number: &u32, event_type| {
        let qp = numbers.qps.get(number)?.deliver();
        Some(ibv_async_event { element: ibv_async_element { qp: qp.cast() }, event_type })
    };
    let device =
        |event_type| Some(ibv_async_event { element: ibv_async_element { port_num: 1 }, event_type });
    match event {
        AsyncEvent::PortError => device(kinds::IBV_EVENT_PORT_ERR),
        AsyncEvent::PortActive => device(kinds::IBV_EVENT_PORT_ACTIVE),
        AsyncEvent::GidChange => device(kinds::IBV_EVENT_GID_CHANGE),
        AsyncEvent::DeviceFatal => device(kinds::IBV_EVENT_DEVICE_FATAL),
        AsyncEvent::CqError { cq } => {
            let element = ibv_async_element { cq: numbers.cqs.get(cq)?.deliver().cast() };
            Some(ibv_async_event { element, event_type: kinds::IBV_EVENT_CQ_ERR })
        }
        AsyncEvent::SrqLimitReached { srq } => {
            let element = ibv_async_element { srq: numbers.srqs.get(srq)?.deliver() };
            Some(ibv_async_event { element, event_type: kinds::IBV_EVENT_SRQ_LIMIT_REACHED })
        }
        AsyncEvent::QpFatal { qp_num, .. } => qp(qp_num, kinds::IBV_EVENT_QP_FATAL),
        AsyncEvent::QpRequestError { qp_num, .. } => qp(qp_num, kinds::IBV_EVENT_QP_REQ_ERR),
        AsyncEvent::QpAccessError { qp_num, .. } => qp(qp_num, kinds::IBV_EVENT_QP_ACCESS_ERR),
        AsyncEvent::SqDrained { qp_num } => qp(qp_num, kinds::IBV_EVENT_SQ_DRAINED),
        AsyncEvent::LastWqeReached { qp_num } => qp(qp_num, kinds::IBV_EVENT_QP_LAST_WQE_REACHED),
    }
}

/// `ibv_ack_async_event`.
///
/// # Safety
/// `event` is NULL or one that [`ibv_get_async_event`] gave, not acknowledged yet.
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller's promise, for the system's events too.
    if unsafe { system::acknowledge(event) } {
        return;
    }
    boundary::value((), || {
        // SAFETY: the caller's promise: the object that the event names lives until this acknowledgement.
        unsafe {
            let event = event.as_ref().ok_or_else(|| Errno::INVAL.null())?;
            match event.event_type {
                kinds::IBV_EVENT_CQ_ERR => Cq::get(event.element.cq)?.async_events.acknowledge(1),
                kinds::IBV_EVENT_SRQ_ERR | kinds::IBV_EVENT_SRQ_LIMIT_REACHED => {
                    Object::<Srq>::get(event.element.srq)?.async_events.acknowledge(1);
                }
                kinds::IBV_EVENT_QP_FATAL
                | kinds::IBV_EVENT_QP_REQ_ERR
                | kinds::IBV_EVENT_QP_ACCESS_ERR
                | kinds::IBV_EVENT_COMM_EST
                | kinds::IBV_EVENT_SQ_DRAINED
                | kinds::IBV_EVENT_QP_LAST_WQE_REACHED => {
                    Qp::get(event.element.qp)?.async_events.acknowledge(1);
                }
                _ => {}
            }
        }
        Ok(())
    });
}

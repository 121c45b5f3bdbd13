//! Asynchronous events of a context.

use crate::context::{Context, OpenContext};
use crate::cq::Cq;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::system;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use uiw_cabi_core::abi::event::{self as kinds};
use uiw_cabi_core::abi::{ibv_async_element, ibv_async_event, zeroed};
use uiw_cabi_core::arguments::{Handle, InOutPtr, OutPtr};
use uiw_cabi_core::boundary::{self, Attempt, Result, is_nonblocking, take_event};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::Object;
use uiw_verbs::AsyncEvent;

/// `ibv_get_async_event`: waits for an event unless the program made the descriptor non-blocking.
pub extern "C-unwind" fn ibv_get_async_event(
    context: Handle<'_, OpenContext>,
    event: OutPtr<'_, ibv_async_event>,
) -> c_int {
    // SAFETY: `Handle` and `OutPtr` have no destructors, so this frame holds nothing with one. It
    // may unwind, because it is `extern "C-unwind"`. Its caller is C, or a test that cancels no
    // thread.
    match unsafe { take_event(|has_token| attempt(context, has_token, &event)) } {
        Some(found) => boundary::minus_one(|| event.write(found)),
        None => -1,
    }
}

fn attempt(
    context: Handle<'_, OpenContext>,
    has_token: bool,
    event: &OutPtr<'_, ibv_async_event>,
) -> Result<Attempt<ibv_async_event>> {
    let open = context.get()?;
    event.check()?;
    let fd = open.abi.get(|abi| &abi.context.async_fd);
    let events = open.engine.async_events();
    let mut next = if has_token { events.pop_with_token() } else { events.try_pop() };
    while let Some(found) = next {
        if let Some(found) = deliver(open, &found) {
            return Ok(Attempt::Taken(found));
        }
        next = events.try_pop();
    }
    if is_nonblocking(fd) {
        Err(Errno::AGAIN)
    } else {
        Ok(Attempt::Sleep(events.token_fd()?.as_raw_fd()))
    }
}

/// Converts an event to C's representation, and counts it as delivered. Returns `None` if its
/// object was destroyed.
fn deliver(context: &Context, event: &AsyncEvent) -> Option<ibv_async_event> {
    let numbers = context.numbers.lock();
    let qp = |number: &u32, event_type| {
        let qp = numbers.qps.get(number)?.deliver();
        Some(ibv_async_event { element: ibv_async_element { qp }, event_type })
    };
    let device = |event_type| {
        // All bytes are initialized, because they may be read as a pointer (`system::acknowledge`).
        let mut event = ibv_async_event { event_type, ..zeroed() };
        event.element.port_num = 1;
        Some(event)
    };
    match event {
        AsyncEvent::PortError => device(kinds::IBV_EVENT_PORT_ERR),
        AsyncEvent::PortActive => device(kinds::IBV_EVENT_PORT_ACTIVE),
        AsyncEvent::GidChange => device(kinds::IBV_EVENT_GID_CHANGE),
        AsyncEvent::DeviceFatal => device(kinds::IBV_EVENT_DEVICE_FATAL),
        AsyncEvent::CqError { cq } => {
            let element = ibv_async_element { cq: numbers.cqs.get(cq)?.deliver() };
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

/// `ibv_ack_async_event`: acknowledges an event that was not acknowledged yet.
pub extern "C" fn ibv_ack_async_event(event: InOutPtr<'_, ibv_async_event>) {
    boundary::value((), || {
        let event = event.get()?;
        // SAFETY: the program passes an event that `ibv_get_async_event` of one of the two
        // libraries has filled, and that it has not acknowledged yet, because each event is
        // acknowledged once (ibv_get_async_event(3)).
        if unsafe { system::acknowledge(event) } {
            return Ok(());
        }
        let element = &event.element;
        // SAFETY: the event counts as initialized (module `arguments`), `event_type` tells the
        // variant of `element`, and `Object::get` looks it up. The program has not acknowledged the
        // event (see above), so the object lives until `acknowledge` unlocks its count, for which
        // `leave` waits before the object is freed. Nothing uses it later.
        unsafe {
            match event.event_type {
                kinds::IBV_EVENT_CQ_ERR => {
                    Object::<Cq>::get(element.cq)?.async_events.acknowledge(1);
                }
                kinds::IBV_EVENT_SRQ_ERR | kinds::IBV_EVENT_SRQ_LIMIT_REACHED => {
                    Object::<Srq>::get(element.srq)?.async_events.acknowledge(1);
                }
                kinds::IBV_EVENT_QP_FATAL
                | kinds::IBV_EVENT_QP_REQ_ERR
                | kinds::IBV_EVENT_QP_ACCESS_ERR
                | kinds::IBV_EVENT_COMM_EST
                | kinds::IBV_EVENT_SQ_DRAINED
                | kinds::IBV_EVENT_QP_LAST_WQE_REACHED => {
                    Object::<Qp>::get(element.qp)?.async_events.acknowledge(1);
                }
                _ => {}
            }
        }
        Ok(())
    });
}

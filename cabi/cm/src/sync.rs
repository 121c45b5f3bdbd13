//! Synchronous ids, which have no channel of the program. Every call that is completed by an event
//! waits for that event and stores it in the id, where the program can read it until its next call
//! on the id.

use crate::event::DeliveredEvent;
use crate::registry::RegisteredPtr as _;
use crate::{event_channel, lifecycle, qp};
use std::ffi::c_int;
use uiw_cabi_core::abi::cm::{RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_REJECTED};
use uiw_cabi_core::abi::{rdma_cm_id, rdma_event_channel};
use uiw_cabi_core::arguments::{AnyPtr, OutPtr};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;

/// Completes a call whose first part returned `result`. For a synchronous id, waits for the event.
///
/// # Safety
/// The requirements are those of [`event_channel::wait`].
#[inline]
pub(crate) unsafe fn complete(id: AnyPtr<rdma_cm_id>, result: c_int) -> c_int {
    if result != 0 {
        return result;
    }
    let Some(own) = own_channel(id) else { return 0 };
    // SAFETY: this frame holds only plain values, which have no destructors, and is one of Rust, so
    // it may unwind. The callers ensure the same for every frame between this one and C.
    match unsafe { event_channel::wait(own) } {
        Some(event) => boundary::minus_one(|| show_event(id, event)),
        None => -1,
    }
}

/// Returns the channel to wait on, if the id is synchronous. Acknowledges the event that the id has
/// shown before.
fn own_channel(id: AnyPtr<rdma_cm_id>) -> Option<AnyPtr<rdma_event_channel>> {
    boundary::value(None, || {
        let id = id.get()?;
        let (sync, channel) = {
            let state = id.lock();
            (state.sync, state.channel.abi())
        };
        if !sync {
            return Ok(None);
        }
        lifecycle::acknowledge_shown(&id);
        Ok(Some(channel.into()))
    })
}

/// Shows an event to the program. Returns the error that the event reports, if any.
fn show_event(id: AnyPtr<rdma_cm_id>, shown: DeliveredEvent) -> Result<()> {
    id.get()?.abi.set(|id| &id.event, shown.event);
    match shown.status {
        0 => Ok(()),
        _ if shown.kind == RDMA_CM_EVENT_REJECTED => Err(Errno(libc::ECONNREFUSED)),
        status => Err(Errno(status.abs())),
    }
}

/// `rdma_get_request`: returns the next request of a synchronous listener. It has a queue pair if
/// attributes for it were passed to `rdma_create_ep`.
pub extern "C-unwind" fn rdma_get_request(
    listener: AnyPtr<rdma_cm_id>,
    id: OutPtr<'_, *mut rdma_cm_id>,
) -> c_int {
    let (Some(own), false) = (own_channel(listener), id.is_null()) else {
        Errno::INVAL.null_argument().set();
        return -1;
    };
    // SAFETY: this function is `extern "C-unwind"`, so its frame may unwind, and its arguments and
    // variables have no destructors. Its caller is C, or a test, whose threads nobody cancels.
    let Some(DeliveredEvent { event, id: new, kind, .. }) = (unsafe { event_channel::wait(own) })
    else {
        return -1;
    };
    boundary::minus_one(|| {
        let made =
            match kind {
                RDMA_CM_EVENT_CONNECT_REQUEST => qp::create_for_request(listener, new),
                _ => Err(Errno::INVAL
                    .because("the listener has an event that is not a connection request")),
            };
        let shown = if made.is_ok() { new } else { listener };
        shown.get()?.abi.set(|id| &id.event, event);
        made?;
        id.write(new.as_ptr())
    })
}

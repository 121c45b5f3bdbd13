//! Connections that could not be set up.

use crate::abi::cm::*;
use crate::cm::event::Draft;
use crate::cm::id::{Id, Note};
use std::ffi::c_int;
use std::io;
use uiw_verbs::{Error, QpState};

/// The event of a connection that could not even be begun.
pub(crate) fn at_once(id: &Id, error: &Error) -> Note {
    let (event, status) = event_and_status(error);
    flush_if_rejected(id, event);
    Note { event, status, arg: 0, group: None }
}

/// The event of a peer that cannot be reached any more.
pub(crate) fn draft_unreachable() -> Draft<'static> {
    Draft { status: -libc::EHOSTUNREACH, ..Draft::new(RDMA_CM_EVENT_UNREACHABLE) }
}

/// What was posted is flushed, as librdmacm does when it hands out this event.
pub(crate) fn flush_if_rejected(id: &Id, event: c_int) {
    if event == RDMA_CM_EVENT_REJECTED
        && let Some(qp) = id.own_qp()
    {
        // ERR can be reached from every state.
        let _ = qp.engine().modify(QpState::Err);
    }
}

/// Event and status of a connection that could not be set up. As of the kernel's iWARP connection manager:
/// REJECTED for a peer that refused or reset, UNREACHABLE for one that did not answer, CONNECT_ERROR for the rest.
pub(crate) fn event_and_status(error: &Error) -> (c_int, c_int) {
    match error {
        Error::Rejected { .. } | Error::Refused { .. } => (RDMA_CM_EVENT_REJECTED, -libc::ECONNREFUSED),
        Error::ClosedInStartup { .. } => (RDMA_CM_EVENT_REJECTED, -libc::ECONNRESET),
        Error::TimedOut { .. } => (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
        Error::Lost { source, .. } => match source.kind() {
            io::ErrorKind::ConnectionReset => (RDMA_CM_EVENT_REJECTED, -libc::ECONNRESET),
            io::ErrorKind::TimedOut => (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
            io::ErrorKind::HostUnreachable => (RDMA_CM_EVENT_UNREACHABLE, -libc::EHOSTUNREACH),
            io::ErrorKind::NetworkUnreachable => (RDMA_CM_EVENT_UNREACHABLE, -libc::ENETUNREACH),
            _ => (RDMA_CM_EVENT_CONNECT_ERROR, -source.raw_os_error().unwrap_or(libc::EIO)),
        },
        Error::PeerStartup { .. } | Error::PeerRefusal { .. } => (RDMA_CM_EVENT_CONNECT_ERROR, -libc::EPROTO),
        _ => (RDMA_CM_EVENT_CONNECT_ERROR, -libc::ECONNABORTED),
    }
}

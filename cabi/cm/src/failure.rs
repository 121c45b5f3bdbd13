//! Connections that could not be set up.

use crate::event::EventDraft;
use crate::id::{Id, LocalEvent};
use std::ffi::c_int;
use std::io;
use uiw_cabi_core::abi::cm::*;
use uiw_cabi_core::persona::Persona;
use uiw_cabi_core::settings::Settings;
use uiw_verbs::{Error, QpState};

/// Returns the event for a connection that could not even be started.
pub(crate) fn immediate(id: &Id, error: &Error) -> LocalEvent {
    let (event, status) = event_and_status(id, error);
    flush_if_rejected(id, event);
    LocalEvent::new(event, status)
}

/// Returns the event for a peer that cannot be reached any more.
pub(crate) fn draft_unreachable() -> EventDraft<'static> {
    EventDraft { status: -libc::EHOSTUNREACH, ..EventDraft::new(RDMA_CM_EVENT_UNREACHABLE) }
}

/// Flushes posted requests, as librdmacm does when it delivers this event.
pub(crate) fn flush_if_rejected(id: &Id, event: c_int) {
    if event == RDMA_CM_EVENT_REJECTED {
        flush(id);
    }
}

/// Flushes posted requests.
pub(crate) fn flush(id: &Id) {
    // ERR can be reached from every state.
    id.with_own_qp(|qp| drop(qp.engine.modify(QpState::Err)));
}

/// Reasons in the REJ message of InfiniBand.
const INVALID_SERVICE_ID: c_int = 8;
const STALE_CONNECTION: c_int = 10;
const CONSUMER_REJECTED: c_int = 28;
/// Status in the SIDR reply of InfiniBand.
const SIDR_REJECTED: c_int = 2;
const SIDR_NO_QP: c_int = 3;

/// Returns the event and the status for a failed connection, or for a failed request for a UD queue
/// pair.
pub(crate) fn event_and_status(id: &Id, error: &Error) -> (c_int, c_int) {
    match Settings::get().map_or(Persona::Iwarp, |settings| settings.persona) {
        Persona::Iwarp => iwarp_status(error),
        Persona::Roce | Persona::Ib => infiniband_status(error, id.is_ud()),
    }
}

/// Returns the event and the status on InfiniBand and RoCE. InfiniBand's connection manager reports
/// the peer's reason instead of an error number, and a refused UD queue pair as UNREACHABLE.
fn infiniband_status(error: &Error, is_ud: bool) -> (c_int, c_int) {
    match (error, iwarp_status(error)) {
        (Error::Rejected { .. }, _) if is_ud => (RDMA_CM_EVENT_UNREACHABLE, SIDR_REJECTED),
        (Error::NoQueuePair { .. }, _) => (RDMA_CM_EVENT_UNREACHABLE, SIDR_NO_QP),
        (Error::Rejected { .. }, _) => (RDMA_CM_EVENT_REJECTED, CONSUMER_REJECTED),
        (Error::Refused { .. }, _) => (RDMA_CM_EVENT_REJECTED, INVALID_SERVICE_ID),
        // The peer closed or reset the connection before it answered.
        (_, (RDMA_CM_EVENT_REJECTED, _)) => (RDMA_CM_EVENT_REJECTED, STALE_CONNECTION),
        (_, other) => other,
    }
}

/// Returns the event and the status that the kernel's iWARP connection manager reports: REJECTED if
/// the peer refused or reset the connection, UNREACHABLE if it did not answer, and CONNECT_ERROR
/// otherwise.
fn iwarp_status(error: &Error) -> (c_int, c_int) {
    match error {
        Error::Rejected { .. } | Error::Refused { .. } | Error::NoQueuePair { .. } => {
            (RDMA_CM_EVENT_REJECTED, -libc::ECONNREFUSED)
        }
        Error::ClosedInStartup { .. } => (RDMA_CM_EVENT_REJECTED, -libc::ECONNRESET),
        Error::TimedOut { .. } => (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
        Error::Lost { source, .. } => match source.kind() {
            io::ErrorKind::ConnectionReset => (RDMA_CM_EVENT_REJECTED, -libc::ECONNRESET),
            io::ErrorKind::TimedOut => (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
            io::ErrorKind::HostUnreachable => (RDMA_CM_EVENT_UNREACHABLE, -libc::EHOSTUNREACH),
            io::ErrorKind::NetworkUnreachable => (RDMA_CM_EVENT_UNREACHABLE, -libc::ENETUNREACH),
            _ => (RDMA_CM_EVENT_CONNECT_ERROR, -source.raw_os_error().unwrap_or(libc::EIO)),
        },
        Error::PeerStartup { .. } | Error::PeerRefusal { .. } => {
            (RDMA_CM_EVENT_CONNECT_ERROR, -libc::EPROTO)
        }
        _ => (RDMA_CM_EVENT_CONNECT_ERROR, -libc::ECONNABORTED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr};

    const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7471);

    fn rejected() -> Error {
        Error::Rejected {
            peer: PEER,
            private_data: Vec::new(),
            peer_ird_ord: None,
            markers_asked: false,
        }
    }

    #[test]
    fn rejections_have_infiniband_reasons() {
        let reset = Error::Lost { peer: PEER, source: io::ErrorKind::ConnectionReset.into() };
        for (error, reason) in [
            (Error::Refused { peer: PEER }, 8),
            (rejected(), 28),
            (Error::ClosedInStartup { peer: PEER }, 10),
            (reset, 10),
        ] {
            assert_eq!(
                infiniband_status(&error, false),
                (RDMA_CM_EVENT_REJECTED, reason),
                "{error}"
            );
            assert!(iwarp_status(&error).1 < 0, "{error}");
        }
        assert_eq!(infiniband_status(&rejected(), true), (RDMA_CM_EVENT_UNREACHABLE, 2));
        let no_qp = Error::NoQueuePair { peer: PEER, private_data: Vec::new() };
        assert_eq!(infiniband_status(&no_qp, true), (RDMA_CM_EVENT_UNREACHABLE, 3));
    }

    #[test]
    fn other_failures_same_in_all_personas() {
        let silent = Error::TimedOut {
            peer: PEER,
            awaits_reply: false,
            after: std::time::Duration::from_secs(1),
        };
        for error in [silent, Error::NotConnected] {
            assert_eq!(infiniband_status(&error, false), iwarp_status(&error), "{error}");
        }
    }
}

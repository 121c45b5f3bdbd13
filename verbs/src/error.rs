//! Errors of calls. Requests of the raw layer fail with a completion instead, which the safe API
//! reports as an error, too.

use crate::close_reason::CloseReason;
use crate::qp::QpState;
use crate::wc::{WcStatus, WireReason};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use uiw_llp::canonical;

/// Reason for the failure of a call or an operation. There is one variant per violated rule.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// Attempted operation.
        what: &'static str,
        /// OS error.
        source: io::Error,
    },
    /// A limit of the device would be exceeded.
    #[error("{what} {asked} is over the limit of {limit}")]
    Limit {
        /// Limited quantity.
        what: &'static str,
        /// Requested value.
        asked: u64,
        /// Maximum value.
        limit: u64,
    },
    /// An argument must not be zero.
    #[error("{what} must not be zero")]
    Zero {
        /// Quantity that is zero.
        what: &'static str,
    },
    /// Registration was refused.
    #[error(transparent)]
    Register(#[from] uiw_mem::RegisterError),
    /// Deregistration was refused.
    #[error(transparent)]
    Deregister(#[from] uiw_mem::DeregisterError),
    /// Objects of different protection domains or devices were mixed.
    #[error("{what} belongs to another {of}")]
    Foreign {
        /// Kind of the object.
        what: &'static str,
        /// Kind of the parent, a protection domain or device.
        of: &'static str,
    },
    /// Other objects still use the object.
    #[error("{what} is still used by {users} other object(s)")]
    Busy {
        /// Kind of the object.
        what: &'static str,
        /// Number of users.
        users: usize,
    },
    /// The queue pair is in the wrong state for the call.
    #[error("{what} is not possible in state {state:?}")]
    State {
        /// Name of the call.
        what: &'static str,
        /// State of the queue pair.
        state: QpState,
    },
    /// The verbs state diagram has no such transition.
    #[error("no transition from {from:?} to {to:?}")]
    Transition {
        /// Current state.
        from: QpState,
        /// Requested state.
        to: QpState,
    },
    /// The number is not a valid queue pair number.
    #[error("queue pair number {num:#08x} is not between 2 and 0xffffff")]
    QpNumber {
        /// Requested number.
        num: u32,
    },
    /// Another queue pair has the number.
    #[error("queue pair number {num:#08x} is taken")]
    QpNumberTaken {
        /// Requested number.
        num: u32,
    },
    /// The queue pair already has a connection.
    #[error("queue pair {qp_num:#08x} already has a connection")]
    AlreadyConnected {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// The connection has ended.
    #[error("the connection is gone")]
    NotConnected,
    /// A start-up parameter is invalid.
    #[error(transparent)]
    Startup(#[from] uiw_mpa::startup::ConfigError),
    /// The start-up frame of the peer is invalid.
    #[error("{peer}: {source}", peer = canonical(*.peer))]
    PeerStartup {
        /// Address of the peer.
        peer: SocketAddr,
        /// Violated rule.
        source: uiw_mpa::startup::StartupError,
    },
    /// The Reply of the peer requires what this end does not support. A Terminate was sent.
    #[error("{peer} accepted, but {refusal}", peer = canonical(*.peer))]
    PeerRefusal {
        /// Address of the peer.
        peer: SocketAddr,
        /// Requirement that is not supported.
        refusal: uiw_mpa::startup::StartupRefusal,
    },
    /// The peer rejected the connection.
    #[error(
        "{peer} rejected the connection ({} bytes of private data){}",
        private_data.len(),
        if *markers_asked { "; it may be one that cannot send the Markers that were asked for" } else { "" },
        peer = canonical(*.peer)
    )]
    Rejected {
        /// Address of the peer.
        peer: SocketAddr,
        /// Private data of the Reply.
        private_data: Vec<u8>,
        /// IRD and ORD in the Reply, if it has them: those that the peer would have needed (RFC
        /// 6581 section 9.1).
        peer_ird_ord: Option<(u16, u16)>,
        /// True if this end had requested Markers, which the Linux siw driver, for example,
        /// rejects.
        markers_asked: bool,
    },
    /// The peer has no queue pair for a SIDR request.
    #[error("{peer} has no queue pair for the request", peer = canonical(*.peer))]
    NoQueuePair {
        /// Address of the peer.
        peer: SocketAddr,
        /// Private data of the reply.
        private_data: Vec<u8>,
    },
    /// No program listens on that port.
    #[error("{peer} refused the connection: no program listens on that port", peer = canonical(*.peer))]
    Refused {
        /// Address of the peer.
        peer: SocketAddr,
    },
    /// The peer did not answer in time.
    #[error(
        "{peer} {} within {after:?}",
        if *awaits_reply { "accepted TCP and did not answer the MPA Request" } else { "did not answer" },
        peer = canonical(*.peer)
    )]
    TimedOut {
        /// Address of the peer.
        peer: SocketAddr,
        /// True if TCP was connected and only the MPA Reply is missing. Then the program there may
        /// not use iWARP.
        awaits_reply: bool,
        /// Time that has passed.
        after: Duration,
    },
    /// The connection was lost during setup.
    #[error("{peer}: connection lost during set-up: {source}", peer = canonical(*.peer))]
    Lost {
        /// Address of the peer.
        peer: SocketAddr,
        /// OS error.
        source: io::Error,
    },
    /// The peer has closed the connection during setup.
    #[error(
        "{peer} closed the connection before its MPA Request or Reply; it may not speak iWARP there, or require TLS",
        peer = canonical(*.peer)
    )]
    ClosedInStartup {
        /// Address of the peer.
        peer: SocketAddr,
    },
    /// The peer lacks an extension that the request needs.
    #[error("the peer does not offer {what}")]
    Unsupported {
        /// Missing extension.
        what: &'static str,
    },
    /// The queue has no room for another request.
    #[error("{queue} queue is full at {depth} requests")]
    QueueFull {
        /// Name of the queue.
        queue: &'static str,
        /// Depth of the queue.
        depth: u32,
    },
    /// A request has too many elements.
    #[error("{given} scatter/gather elements, at most {max}")]
    TooManySges {
        /// Number of elements.
        given: usize,
        /// Maximum number of elements.
        max: u32,
    },
    /// Inline data is longer than the queue pair supports.
    #[error("{given} bytes inline, at most {max}")]
    InlineTooLong {
        /// Length in bytes.
        given: u64,
        /// Maximum length in bytes.
        max: u32,
    },
    /// A message is longer than 2^32 - 1 bytes.
    #[error("message of {given} bytes, at most 4294967295")]
    MessageTooLong {
        /// Length in bytes.
        given: u64,
    },
    /// The local element of an atomic does not have eight bytes.
    #[error("an atomic needs 8 local bytes, got {given}")]
    AtomicLength {
        /// Length in bytes.
        given: u64,
    },
    /// The address of an atomic write is not aligned to eight bytes.
    #[error("an atomic write needs an address that is a multiple of 8, got {addr:#x}")]
    Misaligned {
        /// Address in the peer's memory.
        addr: u64,
    },
    /// A flag cannot be used with the operation.
    #[error("{what}")]
    BadFlags {
        /// Violated rule.
        what: &'static str,
    },
    /// A range exceeds the memory.
    #[error("range {offset}..{end} leaves memory of {len} bytes")]
    OutOfRange {
        /// Offset of the first byte.
        offset: u64,
        /// Offset after the last byte.
        end: u64,
        /// Length of the memory in bytes.
        len: u64,
    },
    /// The bytes were not made by [`RemoteMr::to_bytes`](crate::RemoteMr::to_bytes).
    #[error("the address of remote memory has 20 bytes, got {given}")]
    RemoteAddress {
        /// Number of bytes.
        given: usize,
    },
    /// An operation of the safe API has failed after it was posted.
    #[error("{peer}: {status}{}{}", suffix(reason.as_ref()), suffix(detail.as_ref()))]
    Completed {
        /// Address of the peer.
        peer: SocketAddr,
        /// Status of the completion.
        status: WcStatus,
        /// Reason on the wire, if there is one.
        reason: Option<WireReason>,
        /// Description of a local error: the request or receive, its value, and the limit.
        detail: Option<Arc<str>>,
    },
    /// The connection was closed in order, by this end or by the peer, before the operation of the
    /// safe API had completed.
    #[error("{peer}: the connection is closed")]
    Closed {
        /// Address of the peer.
        peer: SocketAddr,
    },
    /// The connection ended in another way before the operation of the safe API had completed.
    #[error("{peer}: {reason}")]
    Ended {
        /// Address of the peer.
        peer: SocketAddr,
        /// Reason for the end of the connection.
        reason: CloseReason,
    },
    /// No message has arrived within the time that the caller of the safe API has specified.
    #[error("no message came within {after:?}")]
    NoMessage {
        /// Specified time.
        after: Duration,
    },
    /// A [`FaultPlan`](crate::FaultPlan) has injected the error.
    #[error("{call}: injected fault: {source}")]
    Injected {
        /// Name of the call.
        call: &'static str,
        /// Planned error number.
        source: io::Error,
    },
    /// The call is not supported for this kind of object.
    #[error("{0}")]
    Misuse(&'static str),
}

/// Returns an optional part of a message, after a colon.
fn suffix(part: Option<impl fmt::Display>) -> String {
    part.map(|part| format!(": {part}")).unwrap_or_default()
}

/// Converts to the error kind that std has for the same failure, with the error as its source.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.io_kind(), error)
    }
}

impl Error {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// Returns the error kind that std has for the same failure.
    #[must_use]
    pub fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Io { source, .. } | Self::Lost { source, .. } | Self::Injected { source, .. } => {
                source.kind()
            }
            Self::Refused { .. } | Self::Rejected { .. } | Self::NoQueuePair { .. } => {
                io::ErrorKind::ConnectionRefused
            }
            Self::PeerStartup { .. } | Self::PeerRefusal { .. } => io::ErrorKind::InvalidData,
            Self::TimedOut { .. } | Self::NoMessage { .. } => io::ErrorKind::TimedOut,
            Self::Completed { .. } => io::ErrorKind::Other,
            Self::Closed { .. } => io::ErrorKind::BrokenPipe,
            Self::Ended { reason, .. } => reason.io_kind(),
            Self::ClosedInStartup { .. } => io::ErrorKind::ConnectionReset,
            Self::NotConnected => io::ErrorKind::NotConnected,
            Self::AlreadyConnected { .. } | Self::Busy { .. } => io::ErrorKind::ResourceBusy,
            Self::QpNumberTaken { .. } => io::ErrorKind::AlreadyExists,
            Self::QueueFull { .. } => io::ErrorKind::WouldBlock,
            Self::Unsupported { .. } => io::ErrorKind::Unsupported,
            Self::Limit { .. }
            | Self::Zero { .. }
            | Self::Register(_)
            | Self::Deregister(_)
            | Self::Foreign { .. }
            | Self::State { .. }
            | Self::Transition { .. }
            | Self::QpNumber { .. }
            | Self::Startup(_)
            | Self::TooManySges { .. }
            | Self::InlineTooLong { .. }
            | Self::MessageTooLong { .. }
            | Self::AtomicLength { .. }
            | Self::Misaligned { .. }
            | Self::BadFlags { .. }
            | Self::OutOfRange { .. }
            | Self::RemoteAddress { .. }
            | Self::Misuse(_) => io::ErrorKind::InvalidInput,
        }
    }
}

/// Result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a chain of posts: request `index` was refused, and those before it were posted.
#[derive(Debug, thiserror::Error)]
#[error("request {index} of the chain: {error}")]
pub struct PostError {
    /// Position of the refused request in the chain.
    pub index: usize,
    /// Reason for the refusal.
    pub error: Error,
}

//! Errors of calls. Requests of the raw layer fail with a completion instead; the safe API reports
//! those completions as errors, too.

use crate::close_reason::CloseReason;
use crate::qp::QpState;
use crate::wc::{WcStatus, WireReason};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use uiw_llp::canonical;

/// Reason why a call or an operation failed. One variant per rule.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// Attempted operation.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A limit of the device would be passed.
    #[error("{what} {asked} is over the limit of {limit}")]
    Limit {
        /// The quantity.
        what: &'static str,
        /// Value asked for.
        asked: u64,
        /// Largest value.
        limit: u64,
    },
    /// An argument must not be zero.
    #[error("{what} must not be zero")]
    Zero {
        /// The quantity.
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
        /// The object.
        what: &'static str,
        /// Protection domain or device.
        of: &'static str,
    },
    /// An object is still in use by others.
    #[error("{what} is still used by {users} other object(s)")]
    Busy {
        /// The object.
        what: &'static str,
        /// Number of users.
        users: usize,
    },
    /// The queue pair is in the wrong state.
    #[error("{what} is not possible in state {state:?}")]
    State {
        /// The call.
        what: &'static str,
        /// The queue pair's state.
        state: QpState,
    },
    /// No such transition (verbs state diagram).
    #[error("no transition from {from:?} to {to:?}")]
    Transition {
        /// Present state.
        from: QpState,
        /// State asked for.
        to: QpState,
    },
    /// No such queue pair number.
    #[error("queue pair number {num:#08x} is not between 2 and 0xffffff")]
    QpNumber {
        /// The number.
        num: u32,
    },
    /// Another queue pair has the number.
    #[error("queue pair number {num:#08x} is taken")]
    QpNumberTaken {
        /// The number.
        num: u32,
    },
    /// The queue pair already has a connection.
    #[error("queue pair {qp_num:#08x} already has a connection")]
    AlreadyConnected {
        /// Number.
        qp_num: u32,
    },
    /// The connection is gone.
    #[error("the connection is gone")]
    NotConnected,
    /// A start-up parameter is illegal.
    #[error(transparent)]
    Startup(#[from] uiw_mpa::startup::ConfigError),
    /// The peer's start-up frame is illegal.
    #[error("{peer}: {source}", peer = canonical(*.peer))]
    PeerStartup {
        /// The peer.
        peer: SocketAddr,
        /// The rule.
        source: uiw_mpa::startup::StartupError,
    },
    /// The peer's Reply asks for what we cannot do; a Terminate was sent.
    #[error("{peer} accepted, but {refusal}", peer = canonical(*.peer))]
    PeerRefusal {
        /// The peer.
        peer: SocketAddr,
        /// The rule.
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
        /// The peer.
        peer: SocketAddr,
        /// Private data.
        private_data: Vec<u8>,
        /// IRD and ORD that it said, where it did: what it would have needed (RFC 6581 section
        /// 9.1).
        peer_ird_ord: Option<(u16, u16)>,
        /// True if we had asked for Markers: the Linux siw driver, for one, rejects that.
        markers_asked: bool,
    },
    /// The peer has no queue pair for a SIDR request.
    #[error("{peer} has no queue pair for the request", peer = canonical(*.peer))]
    NoQueuePair {
        /// The peer.
        peer: SocketAddr,
        /// Private data.
        private_data: Vec<u8>,
    },
    /// No program listens on that port.
    #[error("{peer} refused the connection: no program listens on that port", peer = canonical(*.peer))]
    Refused {
        /// The peer.
        peer: SocketAddr,
    },
    /// No answer in time.
    #[error(
        "{peer} {} within {after:?}",
        if *awaits_reply { "accepted TCP and did not answer the MPA Request" } else { "did not answer" },
        peer = canonical(*.peer)
    )]
    TimedOut {
        /// The peer.
        peer: SocketAddr,
        /// True if TCP was connected and only the MPA Reply is missing: the program there may not
        /// speak iWARP.
        awaits_reply: bool,
        /// The time-out.
        after: Duration,
    },
    /// The connection broke while being set up.
    #[error("{peer}: connection lost during set-up: {source}", peer = canonical(*.peer))]
    Lost {
        /// The peer.
        peer: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// The peer closed while the connection was being set up.
    #[error(
        "{peer} closed the connection before its MPA Request or Reply; it may not speak iWARP there, or require TLS",
        peer = canonical(*.peer)
    )]
    ClosedInStartup {
        /// The peer.
        peer: SocketAddr,
    },
    /// The peer cannot do what the request needs.
    #[error("the peer does not offer {what}")]
    Unsupported {
        /// The extension.
        what: &'static str,
    },
    /// Posting past the end of a queue.
    #[error("{queue} queue is full at {depth} requests")]
    QueueFull {
        /// Name of the queue.
        queue: &'static str,
        /// Depth.
        depth: u32,
    },
    /// Too many elements in one request.
    #[error("{given} scatter/gather elements, at most {max}")]
    TooManySges {
        /// Elements given.
        given: usize,
        /// Elements allowed.
        max: u32,
    },
    /// Inline data longer than agreed.
    #[error("{given} bytes inline, at most {max}")]
    InlineTooLong {
        /// Bytes given.
        given: u64,
        /// Bytes allowed.
        max: u32,
    },
    /// A message longer than 2^32 - 1 bytes.
    #[error("message of {given} bytes, at most 4294967295")]
    MessageTooLong {
        /// Bytes given.
        given: u64,
    },
    /// An atomic's local element is not eight bytes.
    #[error("an atomic needs 8 local bytes, got {given}")]
    AtomicLength {
        /// Bytes given.
        given: u64,
    },
    /// An atomic write does not go to an aligned address.
    #[error("an atomic write needs an address that is a multiple of 8, got {addr:#x}")]
    Misaligned {
        /// The address.
        addr: u64,
    },
    /// A flag does not go with the operation.
    #[error("{what}")]
    BadFlags {
        /// The rule.
        what: &'static str,
    },
    /// An offset leaves the memory.
    #[error("range {offset}..{end} leaves memory of {len} bytes")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// End.
        end: u64,
        /// Bytes there are.
        len: u64,
    },
    /// The bytes are not an address from [`RemoteMr::to_bytes`](crate::RemoteMr::to_bytes).
    #[error("the address of remote memory has 20 bytes, got {given}")]
    RemoteAddress {
        /// Bytes given.
        given: usize,
    },
    /// An operation of the safe API was posted and failed.
    #[error("{peer}: {status}{}{}", suffix(reason.as_ref()), suffix(detail.as_ref()))]
    Completed {
        /// The peer.
        peer: SocketAddr,
        /// Status of the completion.
        status: WcStatus,
        /// The wire's reason, where there is one.
        reason: Option<WireReason>,
        /// Description of a local error: the request or receive, its value, and the limit.
        detail: Option<Arc<str>>,
    },
    /// The connection was closed in order, by this end or by the peer, before the operation of the
    /// safe API was done.
    #[error("{peer}: the connection is closed")]
    Closed {
        /// The peer.
        peer: SocketAddr,
    },
    /// The connection ended otherwise before the operation of the safe API was done.
    #[error("{peer}: {reason}")]
    Ended {
        /// The peer.
        peer: SocketAddr,
        /// Reason for the end of the connection.
        reason: CloseReason,
    },
    /// No message came within the time that the caller of the safe API gave.
    #[error("no message came within {after:?}")]
    NoMessage {
        /// The time.
        after: Duration,
    },
    /// A fault that [`FaultPlan`](crate::FaultPlan) asked for.
    #[error("{call}: injected fault: {source}")]
    Injected {
        /// The call.
        call: &'static str,
        /// The planned error number.
        source: io::Error,
    },
    /// The call may not be made on this kind of object.
    #[error("{0}")]
    Misuse(&'static str),
}

/// Returns an optional part of a message, behind a colon.
fn suffix(part: Option<impl fmt::Display>) -> String {
    part.map(|part| format!(": {part}")).unwrap_or_default()
}

/// Converts to the kind that std has for the same failure; the error itself is the source.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.io_kind(), error)
    }
}

impl Error {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// Returns the kind that std has for the same failure.
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

/// A chain of posts stopped at request `index`; those before it were accepted.
#[derive(Debug, thiserror::Error)]
#[error("request {index} of the chain: {error}")]
pub struct PostError {
    /// Position of the refused request in the chain.
    pub index: usize,
    /// Reason for the refusal.
    pub error: Error,
}

//! Events that a stream reports to its host.

use crate::PeerKind;
use crate::error::{ConnError, StartupFailure};
use alloc::boxed::Box;
use alloc::vec::Vec;
use uiw_ddp::STag;
use uiw_mpa::startup::{Negotiated, Request};
use uiw_rdmap::Terminate;

/// Event of a stream (see [`crate::RdmapStream::poll_event`]).
#[derive(Debug)]
pub enum Event {
    /// A responder has received a Request. The host calls [`crate::RdmapStream::accept`] or
    /// [`crate::RdmapStream::reject`].
    Requested(Box<Request>),
    /// Full Operation has begun. A responder of the peer-to-peer model reports it when the peer's
    /// first FPDU has arrived.
    Established(Box<EstablishedStream>),
    /// The connection was not established, and the stream has ended.
    Failed(StartupFailure),
    /// The initiator needs a new TCP connection, for MPA revision 1 (see
    /// [`crate::RdmapStream::reconnected`]).
    Reconnect,
    /// The capability exchange is decided.
    Peer(PeerKind),
    /// No request is in progress any more, so [`crate::RdmapStream::pause`] has taken effect.
    Drained,
    /// The stream has left Full Operation and serves no more requests. The host completes `named`
    /// with an error, and flushes all others.
    Ended(Box<StreamEnd>),
}

/// Properties of an established connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EstablishedStream {
    /// Result of the negotiation.
    pub negotiated: Negotiated,
    /// IRD and ORD in the peer's frame (RFC 6581 section 9.1).
    pub peer_ird_ord: Option<(u16, u16)>,
    /// Private data of the peer.
    pub private_data: Vec<u8>,
}

/// End of a stream.
#[derive(Debug)]
pub struct StreamEnd {
    /// Reason for the end.
    pub error: ConnError,
    /// Terminate that is sent to the peer.
    pub terminate: Option<Terminate>,
    /// Request that the error refers to.
    pub named: AffectedRequest,
    /// True if requests completed only after the peer had placed them
    /// ([`crate::RdmapConfig::acknowledged`]).
    pub acknowledged: bool,
    /// True if the close of the peer has interrupted nothing: no request was in progress, no
    /// message had partly arrived, and the host had not begun to close.
    pub idle: bool,
    /// True if the stream has ended before any valid FPDU of the peer had arrived. Then the end may
    /// be the peer's answer to the start-up frame or to the first FPDU of this end.
    pub first: bool,
}

/// Request that an error refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AffectedRequest {
    /// No request.
    Nothing,
    /// The oldest request that has not completed.
    Oldest,
    /// The request with this id.
    Request(u32),
    /// The oldest request that writes to address `to` of the peer's `stag`, or the oldest one if
    /// there is none.
    Write {
        /// STag of the segment.
        stag: STag,
        /// Tagged offset of the segment.
        to: u64,
    },
    /// The request whose message has this MSN on queue 0, or the oldest one if there is none.
    Send {
        /// Message Sequence Number.
        msn: u32,
    },
}

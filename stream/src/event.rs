//! What a stream reports to its host.

use crate::PeerKind;
use crate::error::{ConnError, StartupFailure};
use alloc::boxed::Box;
use alloc::vec::Vec;
use uiw_ddp::STag;
use uiw_mpa::startup::{Negotiated, Request};
use uiw_rdmap::Terminate;

/// Something that happened to a stream: see [`crate::RdmapStream::poll_event`].
#[derive(Debug)]
pub enum Event {
    /// A responder has a Request. The host answers with [`crate::RdmapStream::accept`] or
    /// [`crate::RdmapStream::reject`].
    Requested(Box<Request>),
    /// Full Operation has begun. A responder of the peer-to-peer model reports it when the peer's
    /// first FPDU has come.
    Established(Box<EstablishedStream>),
    /// The connection was not established. The stream is over.
    Failed(StartupFailure),
    /// The initiator needs a new connection of TCP, for MPA revision 1: see
    /// [`crate::RdmapStream::reconnected`].
    Reconnect,
    /// The capability exchange is decided.
    Peer(PeerKind),
    /// No request is under way any more: [`crate::RdmapStream::pause`] has taken effect.
    Drained,
    /// The stream has left Full Operation. What was posted to the host will not be served: it
    /// completes `named` with an error, and flushes everything else.
    Ended(Box<StreamEnd>),
}

/// An established connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EstablishedStream {
    /// Result of the negotiation.
    pub negotiated: Negotiated,
    /// IRD and ORD as the peer's frame has them (RFC 6581 section 9.1).
    pub peer_ird_ord: Option<(u16, u16)>,
    /// The peer's private data.
    pub private_data: Vec<u8>,
}

/// End of a stream.
#[derive(Debug)]
pub struct StreamEnd {
    /// Reason for the end.
    pub error: ConnError,
    /// The Terminate that is sent to the peer.
    pub terminate: Option<Terminate>,
    /// The request that the error is about.
    pub named: AffectedRequest,
    /// Requests were completed only after the peer had placed them
    /// ([`crate::RdmapConfig::acknowledged`]).
    pub acknowledged: bool,
    /// No request was begun and not completed, no message was half received, and the host had not
    /// begun to close: the peer's close interrupted nothing.
    pub idle: bool,
    /// No valid FPDU of the peer came in front: what ended the stream may be its answer to our
    /// start-up frame or to our first FPDU.
    pub first: bool,
}

/// The request that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AffectedRequest {
    /// None.
    Nothing,
    /// The oldest that has not completed.
    Oldest,
    /// This one.
    Request(u32),
    /// The oldest that writes byte `to` of the peer's `stag`; if there is none, the oldest.
    Write {
        /// STag of the segment.
        stag: STag,
        /// Tagged offset of the segment.
        to: u64,
    },
    /// The one whose message has this MSN on queue 0; if there is none, the oldest.
    Send {
        /// Message Sequence Number.
        msn: u32,
    },
}

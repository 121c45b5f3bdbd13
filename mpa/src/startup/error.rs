//! Startup errors, grouped by the end that causes them.

use crate::wire::startup::FrameError;

/// Settings or Private Data of the caller that cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The Private Data does not fit the frame (RFC 5044 section 7.1.1). Enhanced data takes 4
    /// bytes of the room.
    #[error("{len} bytes of private data, {max} are the most")]
    PrivateDataTooLong {
        /// Length of the Private Data in bytes.
        len: usize,
        /// Maximum length in bytes.
        max: usize,
    },
    /// The peer-to-peer model has no usable RTR kind (RFC 6581 section 9.2). A Read cannot be used
    /// if ORD is 0.
    #[error("peer-to-peer needs at least one usable RTR kind")]
    NoRtrKind,
    /// IRD does not fit 14 bits.
    #[error("IRD {ird} is above 16383")]
    IrdOutOfRange {
        /// The value given.
        ird: u16,
    },
    /// ORD does not fit 14 bits.
    #[error("ORD {ord} is above 16383")]
    OrdOutOfRange {
        /// The value given.
        ord: u16,
    },
}

/// Wrong startup frame of the peer.
///
/// The TCP connection must be closed and the error reported locally. No Terminate can be sent
/// before Full Operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartupError {
    /// The bytes are not a startup frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The Request has a revision that this end does not support.
    #[error("MPA Request of revision {revision}, which this end does not support")]
    UnknownRevision {
        /// Revision of the Request.
        revision: u8,
    },
    /// The peer sent a Request instead of a Reply, so both ends are initiators (RFC 5044 section
    /// 7.1.2).
    #[error("MPA Request received instead of the Reply: both ends are initiators")]
    RequestWhereReplyDue,
    /// The peer sent a Reply instead of a Request.
    #[error("MPA Reply received instead of the Request")]
    ReplyWhereRequestDue,
    /// The Reply does not have the revision of the Request.
    #[error("MPA Reply of revision {got} to a Request of revision {sent}")]
    ReplyRevision {
        /// Revision of our Request.
        sent: u8,
        /// Revision of the Reply.
        got: u8,
    },
    /// The Reply to an enhanced Request is not enhanced, although RFC 6581 section 10 requires it.
    #[error("MPA Reply without IRD and ORD to a Request with them")]
    ReplyNotEnhanced,
}

/// Reason why the initiator cannot accept a well-formed Reply.
///
/// The connection exists only for the Terminate that reports this to the responder (RFC 6581
/// section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartupRefusal {
    /// The responder intends to have more Reads outstanding than our IRD allows (layer 2, type 0,
    /// code 6).
    #[error("the responder's ORD is {needed}, our IRD {ours}")]
    InsufficientIrd {
        /// Our IRD.
        ours: u16,
        /// The responder's ORD.
        needed: u16,
    },
    /// No RTR kind is supported by both ends (layer 2, type 0, code 7).
    #[error("no RTR kind in common")]
    NoMatchingRtr,
}

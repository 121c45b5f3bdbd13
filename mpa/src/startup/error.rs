//! What goes wrong at startup, by whose fault it is.

use crate::wire::startup::FrameError;

/// Our own caller asks for what cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// More Private Data than the frame carries (RFC 5044 section 7.1.1; 4 bytes less with enhanced data).
    #[error("{len} bytes of private data, {max} are the most")]
    PrivateDataTooLong {
        /// Bytes given.
        len: usize,
        /// Bytes possible.
        max: usize,
    },
    /// The peer-to-peer model needs an RTR kind (RFC 6581 section 9.2). A Read is none while ORD is 0.
    #[error("peer-to-peer needs at least one usable RTR kind")]
    NoRtrKind,
    /// IRD has 14 bits.
    #[error("IRD {ird} is above 16383")]
    IrdOutOfRange {
        /// The value given.
        ird: u16,
    },
    /// ORD has 14 bits.
    #[error("ORD {ord} is above 16383")]
    OrdOutOfRange {
        /// The value given.
        ord: u16,
    },
}

/// The peer's frame is wrong: the TCP connection must be closed and the error reported locally. No Terminate
/// can be sent, as there is no Full Operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartupError {
    /// The bytes are no startup frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A Request of a revision we do not speak.
    #[error("MPA Request of revision {revision}, which is not spoken here")]
    UnknownRevision {
        /// Rev of the Request.
        revision: u8,
    },
    /// A Request came instead of a Reply: both ends are initiators (RFC 5044 section 7.1.2).
    #[error("MPA Request where the Reply is due: both ends are initiators")]
    RequestWhereReplyDue,
    /// A Reply opens the connection.
    #[error("MPA Reply where the Request is due")]
    ReplyWhereRequestDue,
    /// The Reply is of another revision than the Request.
    #[error("MPA Reply of revision {got} to a Request of revision {sent}")]
    ReplyRevision {
        /// Rev of our Request.
        sent: u8,
        /// Rev of the Reply.
        got: u8,
    },
    /// An enhanced Request must be answered by an enhanced Reply (RFC 6581 section 10).
    #[error("MPA Reply without IRD and ORD to a Request with them")]
    ReplyNotEnhanced,
}

/// The Reply is well-formed, but what it says will not work: the connection stands only for the Terminate
/// that reports this to the responder (RFC 6581 section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartupRefusal {
    /// Layer 2, type 0, code 6: the responder means to have more Reads outstanding than we can take.
    #[error("the responder's ORD is {needed}, our IRD {ours}")]
    InsufficientIrd {
        /// Our IRD.
        ours: u16,
        /// The responder's ORD.
        needed: u16,
    },
    /// Layer 2, type 0, code 7: no RTR kind that both ends support.
    #[error("no RTR kind in common")]
    NoMatchingRtr,
}

//! Errors of start-up, and reasons for which a stream leaves Full Operation.

use crate::host::ATOMIC_BYTES;
use crate::reads::QuotedSegment;
use alloc::boxed::Box;
use alloc::vec::Vec;
use uiw_ddp::{STag, TaggedError};
use uiw_mpa::rx::FpduError;
use uiw_mpa::startup::{ConfigError, StartupRefusal};
use uiw_rdmap::{Fault, MpaFault, ProtectionError, RdmapError, Terminate, TerminateEncoding};

/// Reason why the peer may not access local memory, as [`crate::StreamHost`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// No memory has this STag, or no longer has it.
    #[error("no memory has this STag")]
    InvalidStag,
    /// The memory belongs to another stream or protection domain.
    #[error("the memory is not associated with this stream")]
    NotAssociated,
    /// The memory does not grant the access right.
    #[error("the memory gives no such right")]
    AccessRights,
    /// Some bytes are outside of the memory.
    #[error("some bytes lie outside of the memory")]
    BaseOrBounds,
    /// The sum of offset and length exceeds 64 bits.
    #[error("offset and length wrap")]
    ToWrap,
}

impl AccessError {
    /// Returns the fault that DDP reports for an RDMA Write.
    pub(crate) fn of_write(self, stag: STag, to: u64, len: u32) -> Fault {
        match self {
            Self::InvalidStag => TaggedError::InvalidStag { stag },
            Self::NotAssociated => TaggedError::NotAssociated { stag },
            Self::AccessRights => TaggedError::AccessRights { stag },
            Self::BaseOrBounds => TaggedError::BaseOrBounds { stag, to, len },
            Self::ToWrap => TaggedError::ToWrap { stag, to, len },
        }
        .into()
    }

    /// Returns the fault that RDMAP reports for a Read or an atomic.
    pub(crate) fn of_read(self, stag: STag, to: u64, len: u32) -> Fault {
        match self {
            Self::InvalidStag => ProtectionError::InvalidStag { stag },
            Self::NotAssociated => ProtectionError::NotAssociated { stag },
            Self::AccessRights => ProtectionError::AccessRights { stag },
            Self::BaseOrBounds => ProtectionError::BaseOrBounds { stag, to, len },
            Self::ToWrap => ProtectionError::ToWrap { stag, to, len },
        }
        .into()
    }
}

/// Reason why an atomic of the peer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AtomicError {
    /// The memory may not be accessed.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The address is not a multiple of eight (RFC 7306 section 5.2).
    #[error("the address is not aligned to 64 bits")]
    Unaligned,
}

impl AtomicError {
    pub(crate) fn fault(self, stag: STag, to: u64) -> Fault {
        match self {
            Self::Access(error) => error.of_read(stag, to, ATOMIC_BYTES),
            Self::Unaligned => RdmapError::AtomicUnaligned { stag, to }.into(),
        }
    }
}

/// Reason why a stream does not send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestRefusal {
    /// The peer lacks the extension that the request needs.
    #[error("the peer does not support {0}")]
    MissingExtension(&'static str),
    /// A Read or an atomic that was posted before ORD was negotiated to 0.
    #[error("ORD was negotiated to 0, so Reads and atomics are not possible")]
    NoOrd,
}

/// Reason why the host cannot continue with a request or a receive. The peer is not at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocalError {
    /// Local memory is not, or no longer, registered for this use.
    #[error("local memory protection error")]
    Protection,
    /// A window could not be bound.
    #[error("the memory window cannot be bound")]
    WindowBind,
    /// The stream has refused the request.
    #[error(transparent)]
    Refused(#[from] RequestRefusal),
    /// A completion queue has overflowed.
    #[error("completion queue overflow")]
    CqOverflow,
    /// The host has too little memory for received bytes: for the rest of a long message of this
    /// stream, or for other streams while the peer of this one is silent inside an FPDU.
    #[error("the memory for received bytes is exhausted")]
    ReceiveMemory,
    /// The host has given up the peer for a reason of its own.
    #[error("given up by the host")]
    GivenUp,
}

/// Reason why a stream leaves Full Operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnError {
    /// The peer has violated a rule; a Terminate reports it.
    #[error("the peer broke a rule: {}", .0.0)]
    Fault(Box<(Fault, Option<QuotedSegment>)>),
    /// The host has failed; a Terminate tells the peer that the peer is not at fault.
    #[error("{error}")]
    Local {
        /// Request that has failed.
        request: Option<u32>,
        /// Error of the local memory.
        error: LocalError,
    },
    /// The peer has sent a Terminate.
    #[error("the peer terminated the stream: {}", .0.reason())]
    Terminated(Box<Terminate>, TerminateEncoding),
    /// The transport was lost, or a deadline has passed.
    #[error("connection lost")]
    Lost,
    /// The peer has closed within an FPDU.
    #[error("the peer closed inside an FPDU, {bytes} bytes into it")]
    FinInsideFpdu {
        /// Number of bytes of the FPDU that have arrived.
        bytes: usize,
    },
    /// The peer has closed after a whole FPDU, but possibly inside a message (see
    /// [`StreamEnd::idle`](crate::StreamEnd::idle)), or the host was detached while nothing was in
    /// progress.
    #[error("closed in order")]
    Closed,
    /// Memory of a queued FPDU was deregistered. A Terminate reports it, unless the FPDU is partly
    /// sent and so cannot be finished.
    #[error("memory of a queued FPDU was deregistered")]
    SourceGone,
    /// The host has ended the stream.
    #[error("ended by the host")]
    Aborted,
    /// Start-up has ended with a refusal that only a Terminate can report (RFC 6581 section 9).
    #[error("the Reply cannot be accepted: {0}")]
    Refused(StartupRefusal),
    /// The initiator's first FPDU did not arrive within the time for start-up.
    #[error("no first FPDU in time")]
    NoFirstFpdu,
}

impl ConnError {
    pub(crate) fn fault(fault: impl Into<Fault>, quoted: Option<QuotedSegment>) -> Self {
        Self::Fault(Box::new((fault.into(), quoted)))
    }

    pub(crate) fn of_request(request: u32, error: LocalError) -> Self {
        Self::Local { request: Some(request), error }
    }

    pub(crate) fn of_fpdu(error: &FpduError) -> Self {
        let fault = match error {
            FpduError::Crc { .. } => MpaFault::Crc,
            FpduError::Marker { .. } => MpaFault::Marker,
        };
        Self::fault(fault, None)
    }

    /// Returns whether the transport can carry no more bytes.
    pub(crate) const fn is_fatal_to_transport(&self) -> bool {
        matches!(self, Self::Lost | Self::NoFirstFpdu)
    }
}

/// Reason why a connection was not established.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartupFailure {
    /// The peer has rejected the connection.
    #[error("the peer rejected the connection")]
    Rejected {
        /// Private data of the Reply.
        private_data: Vec<u8>,
        /// IRD and ORD of the peer, if its Reply contains them.
        peer_ird_ord: Option<(u16, u16)>,
        /// True if this end asked for Markers, which may be the reason (RFC 5044 section 7.1.2).
        markers_asked: bool,
    },
    /// The frame of the peer is invalid.
    #[error(transparent)]
    Frame(#[from] uiw_mpa::startup::StartupError),
    /// The local settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The peer has closed the connection.
    #[error("the peer closed during start-up")]
    Closed,
    /// The time for start-up has passed.
    #[error("no answer in time")]
    TimedOut,
    /// The transport was lost.
    #[error("the connection was lost during start-up")]
    Lost,
    /// The host has given up.
    #[error("given up by the host")]
    Aborted,
}

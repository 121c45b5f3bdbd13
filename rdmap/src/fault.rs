//! Errors of all layers, and the Terminates that report them.

use uiw_ddp::{HeaderError, STag, TaggedError, UntaggedError};

use crate::stream::RdmapError;
use crate::wire::{FormatError, HeaderCopy, ReadRequest, Terminate, TerminateTooShort};
use crate::{Opcode, TerminateReason};

/// Error that ends a stream, by the layer that detected it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Error of MPA, or of TCP below it.
    #[error("MPA: {0}")]
    Mpa(MpaFault),
    /// Error of DDP.
    #[error("DDP: {0}")]
    Ddp(DdpFault),
    /// Invalid message, detected by RDMAP.
    #[error("RDMAP: {0}")]
    Rdmap(#[from] RdmapError),
    /// Access to our memory for which the peer has no right, detected by RDMAP.
    ///
    /// This is only for Read Requests, Atomic Requests and invalidation. DDP reports the errors of
    /// tagged segments.
    #[error("RDMAP: {0}")]
    RemoteProtection(#[from] ProtectionError),
    /// Local error that is not associated with any message of the peer.
    #[error("local catastrophic error")]
    LocalCatastrophic,
    /// The responder's ORD is above our IRD (RFC 6581 section 9.1).
    #[error("insufficient IRD resources")]
    InsufficientIrd,
    /// The ends have no RTR kind in common (RFC 6581 section 9.2).
    #[error("no matching RTR option")]
    NoMatchingRtr,
}

/// Errors that MPA reports (RFC 5044 section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MpaFault {
    /// Code 1: TCP is closed, reset, timed out or half-closed by the peer.
    #[error("TCP connection closed, terminated or lost")]
    LlpClosed,
    /// Code 2: an FPDU's CRC is wrong.
    #[error("CRC error")]
    Crc,
    /// Code 3: a Marker and the ULPDU_Lengths disagree.
    #[error("Marker and ULPDU_Length disagree")]
    Marker,
}

/// Errors that DDP reports (RFC 5041 section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DdpFault {
    /// The header cannot be decoded.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A tagged segment must not be placed.
    #[error(transparent)]
    Tagged(#[from] TaggedError),
    /// An untagged segment must not be placed.
    #[error(transparent)]
    Untagged(#[from] UntaggedError),
}

/// Violations of the protection of our memory (RFC 5040 section 4.8, Remote Protection Error).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtectionError {
    /// The Tagged Buffer never existed, or no longer exists.
    #[error("invalid STag {stag}")]
    InvalidStag {
        /// STag of the message.
        stag: STag,
    },
    /// Some bytes are outside of the Tagged Buffer.
    #[error("TO {to:#x} with {len} bytes is outside STag {stag}")]
    BaseOrBounds {
        /// STag of the message.
        stag: STag,
        /// TO of the first byte.
        to: u64,
        /// Number of bytes.
        len: u32,
    },
    /// The access rights of the Tagged Buffer do not allow the operation.
    #[error("STag {stag} gives no right to that")]
    AccessRights {
        /// STag of the message.
        stag: STag,
    },
    /// The Tagged Buffer belongs to another stream.
    #[error("STag {stag} is not associated with this stream")]
    NotAssociated {
        /// STag of the message.
        stag: STag,
    },
    /// The sum of TO and length exceeds 64 bits.
    #[error("TO {to:#x} with {len} bytes wraps")]
    ToWrap {
        /// STag of the message.
        stag: STag,
        /// TO of the first byte.
        to: u64,
        /// Number of bytes.
        len: u32,
    },
    /// The peer may not invalidate the STag.
    #[error("STag {stag} cannot be invalidated")]
    CannotInvalidate {
        /// STag of the message.
        stag: STag,
    },
}

impl From<MpaFault> for Fault {
    fn from(fault: MpaFault) -> Self {
        Self::Mpa(fault)
    }
}

/// Implements the conversion of each DDP error through [`DdpFault`].
macro_rules! from_ddp {
    ($($error:ty),*) => {$(
        impl From<$error> for Fault {
            fn from(error: $error) -> Self {
                Self::Ddp(error.into())
            }
        }
    )*};
}
from_ddp!(DdpFault, HeaderError, TaggedError, UntaggedError);

impl From<FormatError> for Fault {
    fn from(error: FormatError) -> Self {
        Self::Rdmap(error.into())
    }
}

impl From<TerminateTooShort> for Fault {
    fn from(error: TerminateTooShort) -> Self {
        FormatError::Length { message: Opcode::Terminate, len: error.len, needed: 4 }.into()
    }
}

/// Headers of the segment that caused an error, which the Terminate quotes.
#[derive(Clone, Copy, Debug)]
pub struct QuotedHeaders<'a> {
    /// Length in bytes of the DDP segment, including its header: its ULPDU_Length.
    pub segment_len: u16,
    /// Header of the segment, possibly followed by further bytes of the segment.
    pub header: &'a [u8],
    /// Bytes after the DDP header if the segment is a Read Request.
    pub read_request: Option<&'a [u8]>,
}

impl Fault {
    /// Returns the reason for the Terminate. Only this function maps errors to Terminates.
    #[must_use]
    pub const fn reason(&self) -> TerminateReason {
        match self {
            Self::Mpa(fault) => match fault {
                MpaFault::LlpClosed => TerminateReason::LlpClosed,
                MpaFault::Crc => TerminateReason::LlpCrc,
                MpaFault::Marker => TerminateReason::LlpMarker,
            },
            Self::Ddp(fault) => ddp_reason(fault),
            Self::Rdmap(error) => rdmap_reason(error),
            Self::RemoteProtection(protection) => match protection {
                ProtectionError::InvalidStag { .. } => TerminateReason::ProtectionInvalidStag,
                ProtectionError::BaseOrBounds { .. } => TerminateReason::ProtectionBaseOrBounds,
                ProtectionError::AccessRights { .. } => TerminateReason::ProtectionAccessRights,
                ProtectionError::NotAssociated { .. } => TerminateReason::ProtectionNotAssociated,
                ProtectionError::ToWrap { .. } => TerminateReason::ProtectionToWrap,
                // RFC 5040 lists this code under two types. According to Figure 10, a Send with
                // Invalidate causes this one.
                ProtectionError::CannotInvalidate { .. } => {
                    TerminateReason::ProtectionCannotInvalidate
                }
            },
            Self::LocalCatastrophic => TerminateReason::LocalCatastrophic,
            Self::InsufficientIrd => TerminateReason::LlpInsufficientIrd,
            Self::NoMatchingRtr => TerminateReason::LlpNoMatchingRtr,
        }
    }

    /// Builds the Terminate to send. RFC 5040 Figure 10 determines which parts of `quoted` it
    /// contains. An incomplete header is not quoted.
    #[must_use]
    pub fn terminate(&self, quoted: Option<QuotedHeaders<'_>>) -> Terminate {
        let mut terminate = Terminate::new(self.reason());
        let (quotes_ddp, quotes_rdma) = match (terminate.layer, terminate.etype) {
            // Local catastrophic errors of RDMAP and DDP.
            (0 | 1, 0) => (false, false),
            // Remote protection errors. The RDMA header is quoted only if it is that of a Read
            // Request.
            (0, 1) => (true, true),
            // Remote operation errors and errors of DDP.
            (0 | 1, _) => (true, false),
            // Errors of the LLP.
            _ => (false, false),
        };
        let Some(quoted) = quoted.filter(|_| quotes_ddp) else { return terminate };
        let Some(header) = HeaderCopy::new(quoted.header) else { return terminate };
        terminate.segment_len = Some(quoted.segment_len);
        terminate.ddp_header = Some(header);
        if quotes_rdma {
            terminate.read_request =
                quoted.read_request.and_then(|bytes| ReadRequest::parse(bytes).ok());
        }
        terminate
    }
}

const fn ddp_reason(fault: &DdpFault) -> TerminateReason {
    match fault {
        // DDP has no code for a segment shorter than its header.
        DdpFault::Header(HeaderError::TooShort { .. }) => TerminateReason::DdpLocalCatastrophic,
        DdpFault::Header(HeaderError::Version { tagged: true, .. }) => {
            TerminateReason::TaggedVersion
        }
        DdpFault::Header(HeaderError::Version { tagged: false, .. }) => {
            TerminateReason::UntaggedVersion
        }
        DdpFault::Tagged(error) => match error {
            // DDP has no code for missing access rights.
            TaggedError::InvalidStag { .. } | TaggedError::AccessRights { .. } => {
                TerminateReason::TaggedInvalidStag
            }
            TaggedError::BaseOrBounds { .. } => TerminateReason::TaggedBaseOrBounds,
            TaggedError::NotAssociated { .. } => TerminateReason::TaggedNotAssociated,
            TaggedError::ToWrap { .. } => TerminateReason::TaggedToWrap,
        },
        DdpFault::Untagged(error) => match error {
            UntaggedError::NoBuffer { .. } => TerminateReason::UntaggedNoBuffer,
            UntaggedError::MsnRange { .. } => TerminateReason::UntaggedMsnRange,
            UntaggedError::Mo { .. } => TerminateReason::UntaggedMo,
            UntaggedError::TooLong { .. } | UntaggedError::MessageTooLong { .. } => {
                TerminateReason::UntaggedTooLong
            }
            // DDP does not have to detect this error. RDMAP treats the segment as part of a
            // different message inside the first one.
            UntaggedError::RsvdUlpChanged { .. } => TerminateReason::UnexpectedOpcode,
        },
    }
}

const fn rdmap_reason(error: &RdmapError) -> TerminateReason {
    match error {
        RdmapError::Version { .. } => TerminateReason::RdmapVersion,
        RdmapError::InvalidQn { .. } => TerminateReason::UntaggedInvalidQn,
        RdmapError::UnexpectedOpcode { .. }
        | RdmapError::WrongBuffer { .. }
        | RdmapError::AfterTerminate { .. }
        | RdmapError::UnexpectedAtomicResponse { .. }
        | RdmapError::Format(FormatError::AtomicCode { .. }) => TerminateReason::UnexpectedOpcode,
        // RFC 7306 section 8.2 names this code.
        RdmapError::AtomicUnaligned { .. } => TerminateReason::StreamCatastrophic,
        RdmapError::Format(FormatError::Length { .. }) => TerminateReason::OperationUnspecified,
    }
}

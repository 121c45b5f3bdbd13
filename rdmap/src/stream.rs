//! Rules of an RDMAP stream: which segments may arrive, and which messages they belong to (RFC 5040
//! sections 5 and 7.2).

use uiw_ddp::{Header, STag, Tagged, Untagged};

use crate::wire::{Control, FormatError, VERSION};
use crate::{Opcode, QN_ATOMIC_RESPONSE, QN_SEND, QN_TERMINATE};

/// Messages beyond RFC 5040 that both ends have agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Extensions {
    /// Immediate Data (RFC 7306 section 6).
    pub immediate: bool,
    /// Atomic Operations (RFC 7306 section 5).
    pub atomic: bool,
    /// Send with immediate data, [`Opcode::SendImm`].
    pub send_imm: bool,
}

/// Effects of a Send or of Immediate Data at its receiver, besides taking a receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryEffects {
    /// True if the receiver gets an event for the message.
    pub solicited: bool,
    /// STag to invalidate when the message is delivered.
    pub invalidate: Option<STag>,
    /// Immediate data of an [`Opcode::SendImm`]. The two Immediate Data messages carry it in their
    /// payload instead.
    pub imm: Option<u32>,
}

impl DeliveryEffects {
    /// Determines the effects from the opcode and header of a message on queue [`QN_SEND`].
    #[inline]
    #[must_use]
    pub const fn new(opcode: Opcode, header: &Untagged) -> Self {
        let plain = Self { solicited: false, invalidate: None, imm: None };
        let word = header.rsvd_ulp32;
        match opcode {
            Opcode::SendSe | Opcode::ImmediateSe => Self { solicited: true, ..plain },
            Opcode::SendInvalidate => Self { invalidate: Some(STag(word)), ..plain },
            Opcode::SendSeInvalidate => {
                Self { solicited: true, invalidate: Some(STag(word)), ..plain }
            }
            Opcode::SendImm => {
                let solicited = Control::parse(header.rsvd_ulp).rsv & Control::SOLICITED != 0;
                Self { solicited, imm: Some(word), ..plain }
            }
            _ => plain,
        }
    }
}

/// Rules for the messages that may arrive on one stream.
#[derive(Clone, Debug)]
pub struct StreamRx {
    extensions: Extensions,
    terminated: bool,
}

impl StreamRx {
    /// Creates the rules of a new stream with these extensions.
    #[must_use]
    pub const fn new(extensions: Extensions) -> Self {
        Self { extensions, terminated: false }
    }

    /// Changes the extensions, because the ends may agree on them after the first messages.
    pub const fn set_extensions(&mut self, extensions: Extensions) {
        self.extensions = extensions;
    }

    /// Checks that the segment with this header may arrive now, and returns its opcode.
    ///
    /// The version must be right, the opcode known and agreed on, and the segment must go to the
    /// kind of buffer and to the queue of its message. Nothing may arrive after a Terminate.
    ///
    /// # Errors
    /// Returns the first violation.
    #[inline]
    pub fn admit(&mut self, header: &Header) -> Result<Opcode, RdmapError> {
        let control = Control::parse(header.rsvd_ulp());
        if self.terminated {
            return Err(RdmapError::AfterTerminate { opcode: control.opcode });
        }
        // This is a check of DDP, so it precedes those of RDMAP.
        let queue = match header {
            Header::Tagged(_) => None,
            Header::Untagged(Untagged { qn, .. }) => {
                let queues = if self.extensions.atomic { QN_ATOMIC_RESPONSE } else { QN_TERMINATE };
                if *qn > queues {
                    return Err(RdmapError::InvalidQn { qn: *qn });
                }
                Some(*qn)
            }
        };
        if control.version != VERSION {
            return Err(RdmapError::Version { got: control.version });
        }
        let opcode = self.check_opcode(control.opcode)?;
        if opcode.queue() != queue {
            return Err(RdmapError::WrongBuffer {
                opcode,
                tagged: queue.is_none(),
                qn: queue.unwrap_or(0),
            });
        }
        // A Terminate in several segments is accepted, although it is never necessary.
        self.terminated = opcode == Opcode::Terminate && header.last();
        Ok(opcode)
    }

    /// Returns the opcode if it is known and not part of an extension that the ends have not agreed
    /// on.
    #[inline]
    fn check_opcode(&self, raw: u8) -> Result<Opcode, RdmapError> {
        let unexpected = RdmapError::UnexpectedOpcode { opcode: raw };
        let opcode = Opcode::from_raw(raw).ok_or(unexpected)?;
        let is_agreed = match opcode {
            Opcode::Immediate | Opcode::ImmediateSe => self.extensions.immediate,
            Opcode::AtomicRequest | Opcode::AtomicResponse => self.extensions.atomic,
            Opcode::SendImm => self.extensions.send_imm,
            _ => true,
        };
        if is_agreed { Ok(opcode) } else { Err(unexpected) }
    }
}

/// Violation of the rules of a stream, or of the format of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RdmapError {
    /// RV is not 1 (RFC 5040 section 7.2).
    #[error("RDMAP version {got}")]
    Version {
        /// RV of the segment.
        got: u8,
    },
    /// The opcode is unknown, or belongs to an extension that the ends have not agreed on (RFC 5040
    /// section 7.2).
    #[error("unexpected opcode {opcode}")]
    UnexpectedOpcode {
        /// Raw opcode of the segment.
        opcode: u8,
    },
    /// The queue does not exist. This is a check of DDP (RFC 5041 section 7.1), but RDMAP defines
    /// the number of queues.
    #[error("invalid queue number {qn}")]
    InvalidQn {
        /// QN of the segment.
        qn: u32,
    },
    /// The message was sent to the wrong kind of buffer or to the wrong queue (RFC 5040 section
    /// 4.1, Figure 4).
    #[error("{opcode} in {}", BufferPlace { tagged: *tagged, qn: *qn })]
    WrongBuffer {
        /// Opcode of the message.
        opcode: Opcode,
        /// True if the message was tagged.
        tagged: bool,
        /// Queue of an untagged message.
        qn: u32,
    },
    /// The peer sent a message after its Terminate, which it must not do (RFC 5040 section 5.4).
    #[error("opcode {opcode} after the Terminate")]
    AfterTerminate {
        /// Raw opcode of the segment.
        opcode: u8,
    },
    /// The message does not have the format of its opcode.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// An Atomic Response does not answer the oldest outstanding Atomic Request.
    #[error("Atomic Response to request {request_id:#x}, which is not the one outstanding")]
    UnexpectedAtomicResponse {
        /// Request identifier in the response.
        request_id: u32,
    },
    /// The memory of an atomic operation is not 64-bit aligned (RFC 7306 section 8.2).
    #[error("atomic operation on STag {stag}, TO {to:#x}: not 64-bit aligned")]
    AtomicUnaligned {
        /// STag of the request.
        stag: STag,
        /// TO of the request.
        to: u64,
    },
}

/// Destination of a message, for the text of [`RdmapError::WrongBuffer`].
struct BufferPlace {
    tagged: bool,
    qn: u32,
}

impl core::fmt::Display for BufferPlace {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.tagged { f.write_str("a tagged segment") } else { write!(f, "queue {}", self.qn) }
    }
}

/// Returns the DDP header of an untagged segment. `rsvd_ulp32` is the STag to invalidate, or 0 if
/// there is none.
#[inline]
#[must_use]
pub const fn untagged_header(
    opcode: Opcode,
    qn: u32,
    msn: u32,
    mo: u32,
    last: bool,
    rsvd_ulp32: u32,
) -> Untagged {
    Untagged { last, rsvd_ulp: Control::new(opcode).emit(), rsvd_ulp32, qn, msn, mo }
}

/// Returns the DDP header of a tagged segment.
#[inline]
#[must_use]
pub const fn tagged_header(opcode: Opcode, stag: STag, to: u64, last: bool) -> Tagged {
    Tagged { last, rsvd_ulp: Control::new(opcode).emit(), stag, to }
}

/// Returns the DDP header of a segment of an [`Opcode::SendImm`].
#[inline]
#[must_use]
pub const fn send_imm_header(msn: u32, mo: u32, last: bool, imm: u32, solicited: bool) -> Untagged {
    let rsv = if solicited { Control::SOLICITED } else { 0 };
    let control = Control { rsv, ..Control::new(Opcode::SendImm) };
    Untagged { last, rsvd_ulp: control.emit(), rsvd_ulp32: imm, qn: QN_SEND, msn, mo }
}

//! The rules of an RDMAP stream: which segments may be there, and what they are (RFC 5040 sections
//! 5 and 7.2).

use uiw_ddp::{Header, STag, Tagged, Untagged};

use crate::wire::{Control, FormatError, VERSION};
use crate::{Opcode, QN_ATOMIC_RESPONSE, QN_SEND, QN_TERMINATE};

/// Messages beyond RFC 5040 that both ends agreed on.
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
pub struct Delivery {
    /// The receiver gets an event for the message.
    pub solicited: bool,
    /// STag to invalidate when the message is delivered.
    pub invalidate: Option<STag>,
    /// Immediate data of a [`Opcode::SendImm`]; that of the two Immediate Data messages is their
    /// payload.
    pub imm: Option<u32>,
}

impl Delivery {
    /// Reads the effects from the opcode and header of a message on queue [`QN_SEND`].
    #[inline]
    #[must_use]
    pub const fn new(opcode: Opcode, header: &Untagged) -> Self {
        let plain = Self { solicited: false, invalidate: None, imm: None };
        let word = header.rsvd_ulp32;
        match opcode {
            Opcode::SendSe | Opcode::ImmediateSe => Self { solicited: true, ..plain },
            Opcode::SendInvalidate => Self { invalidate: Some(STag(word)), ..plain },
            Opcode::SendSeInvalidate => Self { solicited: true, invalidate: Some(STag(word)), ..plain },
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
    /// A new stream with these extensions.
    #[must_use]
    pub const fn new(extensions: Extensions) -> Self {
        Self { extensions, terminated: false }
    }

    /// Changes the extensions: ends may agree on them after the first messages.
    pub const fn set_extensions(&mut self, extensions: Extensions) {
        self.extensions = extensions;
    }

    /// The extensions in force.
    #[must_use]
    pub const fn extensions(&self) -> Extensions {
        self.extensions
    }

    /// Returns whether the peer's Terminate has arrived.
    #[must_use]
    pub const fn terminated(&self) -> bool {
        self.terminated
    }

    /// Checks that the segment with this header may come here, and returns its opcode: its version
    /// is right, its opcode is known and agreed on, it goes to the kind of buffer and to the queue
    /// where that message belongs, and nothing comes after a Terminate.
    ///
    /// # Errors
    /// The first rule broken.
    #[inline]
    pub fn admit(&mut self, header: &Header) -> Result<Opcode, RdmapError> {
        let control = Control::parse(header.rsvd_ulp());
        if self.terminated {
            return Err(RdmapError::AfterTerminate { opcode: control.opcode });
        }
        // DDP's own check, before any of RDMAP's.
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
            return Err(RdmapError::WrongBuffer { opcode, tagged: queue.is_none(), qn: queue.unwrap_or(0) });
        }
        // A Terminate in several segments, which is never necessary, is accepted.
        self.terminated = opcode == Opcode::Terminate && header.last();
        Ok(opcode)
    }

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

/// A message that must not be there, or not like this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RdmapError {
    /// RV is not 1 (RFC 5040 section 7.2).
    #[error("RDMAP version {got}")]
    Version {
        /// RV of the segment.
        got: u8,
    },
    /// An opcode without meaning, or of an extension that was not agreed on (RFC 5040 section 7.2).
    #[error("unexpected opcode {opcode}")]
    UnexpectedOpcode {
        /// Raw.
        opcode: u8,
    },
    /// DDP's check of the queue (RFC 5041 section 7.1): only RDMAP defines how many there are.
    #[error("invalid queue number {qn}")]
    InvalidQn {
        /// QN of the segment.
        qn: u32,
    },
    /// A message that belongs elsewhere (RFC 5040 section 4.1, Figure 4).
    #[error("{opcode} in {}", BufferPlace { tagged: *tagged, qn: *qn })]
    WrongBuffer {
        /// Opcode of the message.
        opcode: Opcode,
        /// True if the message was tagged.
        tagged: bool,
        /// Queue of an untagged message.
        qn: u32,
    },
    /// A peer must not send after its Terminate (RFC 5040 section 5.4).
    #[error("opcode {opcode} after the Terminate")]
    AfterTerminate {
        /// Raw.
        opcode: u8,
    },
    /// The bytes of the message are not what its opcode says.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A Read Response, and no Read is outstanding. RFC 5040 has no code of its own for it.
    #[error("RDMA Read Response to STag {stag}, TO {to:#x}, and no Read is outstanding")]
    UnexpectedReadResponse {
        /// STag of the segment.
        stag: STag,
        /// TO of the segment.
        to: u64,
    },
    /// An Atomic Response that answers no Atomic Request of ours in its turn.
    #[error("Atomic Response to request {request_id:#x}, which is not the one outstanding")]
    UnexpectedAtomicResponse {
        /// The identifier it names.
        request_id: u32,
    },
    /// An atomic operation on memory that is not 64-bit aligned (RFC 7306 section 8.2).
    #[error("atomic operation on STag {stag}, TO {to:#x}: not 64-bit aligned")]
    AtomicUnaligned {
        /// STag of the request.
        stag: STag,
        /// TO of the request.
        to: u64,
    },
}

/// Destination named in the text of [`RdmapError::WrongBuffer`].
struct BufferPlace {
    tagged: bool,
    qn: u32,
}

impl core::fmt::Display for BufferPlace {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.tagged { f.write_str("a tagged segment") } else { write!(f, "queue {}", self.qn) }
    }
}

/// The DDP header of an untagged segment. `rsvd_ulp32` is the Invalidate STag where there is one,
/// and else 0.
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

/// The DDP header of a tagged segment.
#[inline]
#[must_use]
pub const fn tagged_header(opcode: Opcode, stag: STag, to: u64, last: bool) -> Tagged {
    Tagged { last, rsvd_ulp: Control::new(opcode).emit(), stag, to }
}

/// The DDP header of a segment of a [`Opcode::SendImm`].
#[inline]
#[must_use]
pub const fn send_imm_header(msn: u32, mo: u32, last: bool, imm: u32, solicited: bool) -> Untagged {
    let rsv = if solicited { Control::SOLICITED } else { 0 };
    let control = Control { rsv, ..Control::new(Opcode::SendImm) };
    Untagged { last, rsvd_ulp: control.emit(), rsvd_ulp32: imm, qn: QN_SEND, msn, mo }
}

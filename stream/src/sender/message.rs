//! Messages that are being sent: the headers of their segments, and the source of their bytes.

use crate::host::Traffic;
use crate::request::{Op, Remote, Request};
use uiw_ddp::Header;
use uiw_ddp::STag;
use uiw_rdmap::Opcode;

/// Message that is being sent.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) header: MessageHeader,
    pub(super) total: u32,
    pub(super) offset: u32,
    pub(super) source: Source,
    pub(super) end: MessageEnd,
    /// Number of staged bytes from which on the message waits for the next batch.
    pub(super) part: usize,
    /// Maximum length of its segments.
    pub(super) max_segment: u32,
}

/// Minimum length of messages that are divided in any case, and the length of their parts.
const DIVIDED_MIN: u32 = 512 << 10;
const DIVIDED_PART: usize = 256 << 10;
/// Minimum length of messages that are divided if the program waits for an answer to them.
const AWAITED_MIN: u32 = 64 << 10;
/// Maximum length of a segment of such a message. With longer segments, the first one would contain
/// nearly all of a message of the minimum length.
const AWAITED_SEGMENT: u32 = 48 << 10;

/// Consequence of sending the last segment of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageEnd {
    /// No request completes.
    Nothing,
    /// The request is built. It completes with its response.
    Answered(u32),
    /// The request is built. It completes when its bytes are sent, or acknowledged.
    Sent(u32),
    /// The Immediate Data message of the same request follows (RFC 7306 section 6).
    Immediate { id: u32, imm: u32, solicited: bool },
}

#[derive(Clone, Copy, Debug)]
pub(super) enum MessageHeader {
    Tagged { opcode: Opcode, stag: STag, to: u64 },
    Untagged { opcode: Opcode, qn: u32, msn: u32, ulp32: u32 },
    SendImm { msn: u32, imm: u32, solicited: bool },
}

#[derive(Debug)]
pub(super) enum Source {
    Empty,
    /// Memory of a request.
    Request {
        id: u32,
    },
    /// Payload that the host has copied while posting.
    Inline {
        id: u32,
    },
    /// [`Sender::fields`](super::Sender), for a message that consists of a few fixed fields.
    Fields,
    /// Memory that the oldest inbound Read requests, which is checked for every segment.
    Inbound(Remote),
}

impl Message {
    pub(super) fn empty(header: MessageHeader) -> Self {
        Self::new(header, 0, Source::Empty, MessageEnd::Nothing)
    }

    pub(super) fn of_request(header: MessageHeader, request: &Request, end: MessageEnd) -> Self {
        let id = request.id;
        let source = if request.inline { Source::Inline { id } } else { Source::Request { id } };
        Self::new(header, request.len, source, end)
    }

    pub(super) fn new(header: MessageHeader, total: u32, source: Source, end: MessageEnd) -> Self {
        let (part, max_segment) = (usize::MAX, u32::MAX);
        Self { header, total, offset: 0, source, end, part, max_segment }
    }

    /// Divides a long message into parts for several batches
    /// ([`RdmapConfig::divides_long_messages`]).
    ///
    /// [`RdmapConfig::divides_long_messages`]: crate::RdmapConfig::divides_long_messages
    pub(super) fn divide(&mut self, is_awaited: bool) {
        if self.total >= DIVIDED_MIN {
            self.part = DIVIDED_PART;
        } else if is_awaited && self.total >= AWAITED_MIN {
            self.max_segment = AWAITED_SEGMENT;
            self.part = self.max_segment.max(self.total / 2) as usize;
        }
    }

    /// Returns the DDP header of the next segment, with `len` bytes of payload.
    #[inline(always)]
    pub(super) fn segment_header(&self, len: u32) -> Header {
        self.header.segment(self.offset, self.offset + len == self.total)
    }

    /// Returns the kind and number of bytes by which [`StreamHost::count`] counts a segment with
    /// `len` bytes of payload.
    ///
    /// [`StreamHost::count`]: crate::StreamHost::count
    pub(super) fn counted(&self, len: u32) -> Option<(Traffic, u32)> {
        match (&self.source, &self.header) {
            (Source::Request { .. } | Source::Inline { .. } | Source::Inbound(_), header) => {
                Some((header.traffic(), len))
            }
            (Source::Fields, MessageHeader::Untagged { opcode, .. }) => match opcode {
                Opcode::AtomicResponse => Some((Traffic::AtomicSent, crate::host::ATOMIC_BYTES)),
                Opcode::Immediate | Opcode::ImmediateSe => Some((Traffic::SendSent, 0)),
                _ => None,
            },
            (Source::Empty | Source::Fields, _) => None,
        }
    }

    pub(super) fn left(&self) -> u32 {
        self.total - self.offset
    }

    /// Returns whether the message belongs to a request.
    pub(super) fn is_request(&self) -> bool {
        self.end != MessageEnd::Nothing
    }
}

impl MessageHeader {
    pub(super) fn write(remote: Remote) -> Self {
        Self::Tagged { opcode: Opcode::Write, stag: remote.stag, to: remote.to }
    }

    /// Returns the DDP header of the segment at `offset`.
    pub(super) fn segment(&self, offset: u32, last: bool) -> Header {
        match *self {
            Self::Tagged { opcode, stag, to } => Header::Tagged(uiw_rdmap::tagged_header(
                opcode,
                stag,
                to.wrapping_add(u64::from(offset)),
                last,
            )),
            Self::Untagged { opcode, qn, msn, ulp32 } => {
                Header::Untagged(uiw_rdmap::untagged_header(opcode, qn, msn, offset, last, ulp32))
            }
            Self::SendImm { msn, imm, solicited } => {
                Header::Untagged(uiw_rdmap::send_imm_header(msn, offset, last, imm, solicited))
            }
        }
    }

    /// Returns the kind of traffic as which the payload is counted.
    #[inline(always)]
    pub(super) fn traffic(&self) -> Traffic {
        match self {
            Self::Tagged { opcode: Opcode::ReadResponse, .. } => Traffic::ReadSent,
            Self::Tagged { .. } => Traffic::WriteSent,
            Self::Untagged { .. } | Self::SendImm { .. } => Traffic::SendSent,
        }
    }

    /// Returns the length of a segment's header in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Tagged { .. } => uiw_ddp::Tagged::LEN,
            Self::Untagged { .. } | Self::SendImm { .. } => uiw_ddp::Untagged::LEN,
        }
    }

    /// Returns the MSN, or 0 for a tagged message.
    pub(super) fn msn(&self) -> u32 {
        match self {
            Self::Tagged { .. } => 0,
            Self::Untagged { msn, .. } | Self::SendImm { msn, .. } => *msn,
        }
    }
}

/// Returns the name of the extension that `op` needs and the peer lacks.
#[inline(always)]
pub(super) fn missing_extension(op: &Op, peer: uiw_rdmap::Extensions) -> Option<&'static str> {
    match op {
        Op::WriteImm { .. } if !peer.immediate => Some("immediate data (RFC 7306)"),
        Op::FetchAdd { .. } | Op::CmpSwap { .. } if !peer.atomic => Some("atomics (RFC 7306)"),
        Op::AtomicWrite { .. } if !peer.send_imm => Some("atomic writes (between uiw peers)"),
        Op::SendImm { .. } if !peer.send_imm => Some("Send with immediate (between uiw peers)"),
        _ => None,
    }
}

//! A message on its way out: what its segments' headers say and where its octets come from.

use crate::qp::read_queue::QuotedSegment;
use crate::qp::send_queue::Wqe;
use crate::wr::Remote;
use ddp::{Header, STag};
use rdmap::{Opcode, ReadRequest};

/// A message being sent.
pub(super) struct Message {
    pub(super) header: MessageHeader,
    pub(super) total: u32,
    pub(super) offset: u32,
    pub(super) source: Source,
    /// The request that is built when this message is.
    pub(super) ends: Option<u32>,
    /// The Immediate Data message that follows this Write: request, immediate, solicited.
    pub(super) then: Option<(u32, u32, bool)>,
}

#[derive(Clone, Copy)]
pub(super) enum MessageHeader {
    Tagged { opcode: Opcode, stag: STag, to: u64 },
    Untagged { opcode: Opcode, qn: u32, msn: u32, ulp32: u32 },
    SendImm { msn: u32, imm: u32, solicited: bool },
}

pub(super) enum Source {
    Empty,
    /// The elements (or inline octets) of request `seq`.
    Request {
        seq: u32,
        sge: usize,
        sge_offset: u32,
    },
    /// A header that is all of the message.
    Octets {
        octets: [u8; 52],
    },
    /// The memory of an owed Read, checked for every segment; the request's own segment is what a Terminate quotes.
    Owed {
        request: ReadRequest,
        asked: QuotedSegment,
    },
}

impl Message {
    pub(super) fn octets(header: MessageHeader, message: &[u8], ends: Option<u32>) -> Self {
        let mut octets = [0; 52];
        octets[..message.len()].copy_from_slice(message);
        Self {
            header,
            total: message.len() as u32,
            offset: 0,
            source: Source::Octets { octets },
            ends,
            then: None,
        }
    }

    pub(super) fn empty(header: MessageHeader) -> Self {
        Self { header, total: 0, offset: 0, source: Source::Empty, ends: None, then: None }
    }

    pub(super) fn of_request(header: MessageHeader, seq: u32, wqe: &Wqe, ends: bool) -> Self {
        let source = Source::Request { seq, sge: 0, sge_offset: 0 };
        Self { header, total: wqe.len, offset: 0, source, ends: ends.then_some(seq), then: None }
    }

    /// The octets of a message that is nothing but a header.
    pub(super) fn own_octets(&self) -> &[u8] {
        match &self.source {
            Source::Octets { octets } => &octets[..self.total as usize],
            Source::Empty | Source::Request { .. } | Source::Owed { .. } => &[],
        }
    }

    /// The DDP header of the next segment with `len` octets of payload.
    pub(super) fn segment_header(&self, len: u32) -> Header {
        self.header.segment(self.offset, self.offset + len == self.total)
    }

    pub(super) fn header_len(&self) -> usize {
        self.header.len()
    }
}

impl MessageHeader {
    /// The DDP header of the segment at `offset`.
    pub(super) fn segment(&self, offset: u32, last: bool) -> Header {
        match *self {
            Self::Tagged { opcode, stag, to } => {
                Header::Tagged(rdmap::tagged_header(opcode, stag, to.wrapping_add(u64::from(offset)), last))
            }
            Self::Untagged { opcode, qn, msn, ulp32 } => {
                Header::Untagged(rdmap::untagged_header(opcode, qn, msn, offset, last, ulp32))
            }
            Self::SendImm { msn, imm, solicited } => {
                Header::Untagged(rdmap::send_imm_header(msn, offset, last, imm, solicited))
            }
        }
    }

    /// Octets of a segment's header.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Tagged { .. } => ddp::Tagged::LEN,
            Self::Untagged { .. } | Self::SendImm { .. } => ddp::Untagged::LEN,
        }
    }

    pub(super) fn msn(&self) -> u32 {
        match self {
            Self::Tagged { .. } => 0,
            Self::Untagged { msn, .. } | Self::SendImm { msn, .. } => *msn,
        }
    }
}

pub(super) fn tagged_write(remote: Remote) -> MessageHeader {
    MessageHeader::Tagged { opcode: Opcode::Write, stag: STag(remote.rkey), to: remote.addr }
}

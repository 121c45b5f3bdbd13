//! Reads and atomics under way: ours at the peer (bounded by ORD), the peer's here (bounded by IRD).

use crate::wr::Sge;
use ddp::STag;
use rdmap::{AtomicRequest, ReadRequest};
use std::collections::VecDeque;

/// A request of ours that waits for its answer.
pub(crate) struct Outstanding {
    pub(crate) asker: Asker,
    /// MSN of the request on queue 1: a Terminate names it.
    pub(crate) msn: u32,
    pub(crate) kind: OutstandingKind,
    /// Where the answer lands.
    pub(crate) sges: Vec<Sge>,
    pub(crate) invalidate: Option<STag>,
}

/// On whose behalf a Read or atomic was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A work request.
    Request(u32),
    /// The engine: the RTR message.
    Rtr,
    /// The engine: its answer says that the peer has placed everything up to this request.
    Ack(u32),
    /// The engine, for a queue pair that is gone: behind its answer the peer waits for no acknowledgement any more.
    Farewell,
}

impl Asker {
    pub(crate) fn request(self) -> Option<u32> {
        match self {
            Self::Request(seq) => Some(seq),
            Self::Rtr | Self::Ack(_) | Self::Farewell => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutstandingKind {
    Read { sink_to: u64, len: u32, received: u32 },
    Atomic { request_id: u32 },
}

/// A request of the peer's that is owed an answer.
pub(crate) struct Owed {
    pub(crate) kind: OwedKind,
    /// The request's DDP header, DDP segment and length as they came: a Terminate quotes them.
    pub(crate) segment: QuotedSegment,
}

pub(crate) enum OwedKind {
    Read(ReadRequest),
    Atomic(AtomicRequest),
}

/// The front of a received segment, as far as a Terminate may quote it.
#[derive(Clone, Debug)]
pub(crate) struct QuotedSegment {
    octets: [u8; Self::LEN],
    kept: u8,
    header_len: u8,
    segment_len: u16,
}

impl QuotedSegment {
    /// Untagged header and Read Request.
    const LEN: usize = 46;

    pub(crate) fn new(ulpdu: &[u8], header_len: usize) -> Self {
        let mut octets = [0; Self::LEN];
        let kept = ulpdu.len().min(Self::LEN);
        octets[..kept].copy_from_slice(&ulpdu[..kept]);
        Self {
            octets,
            kept: kept as u8,
            header_len: header_len.min(kept) as u8,
            segment_len: u16::try_from(ulpdu.len()).unwrap_or(u16::MAX),
        }
    }

    pub(crate) fn segment_len(&self) -> u16 {
        self.segment_len
    }

    pub(crate) fn header(&self) -> &[u8] {
        &self.octets[..usize::from(self.header_len)]
    }

    /// The Read Request behind the header, if it is there whole.
    pub(crate) fn read_request(&self) -> Option<&[u8]> {
        self.octets[..usize::from(self.kept)].get(18..Self::LEN)
    }
}

/// Both queues of a stream.
pub(crate) struct ReadQueues {
    pub(crate) outstanding: VecDeque<Outstanding>,
    pub(crate) owed: VecDeque<Owed>,
    pub(crate) ord: u16,
    pub(crate) ird: u16,
    /// STag that our Reads name as sink. It resolves to nothing: an answer is matched with its request instead, so the peer
    /// never learns a key or an address of ours by being read.
    pub(crate) sink: STag,
    next_sink: u32,
    next_request_id: u32,
}

impl ReadQueues {
    pub(crate) fn new(sink: STag) -> Self {
        Self {
            outstanding: VecDeque::new(),
            owed: VecDeque::new(),
            ord: 0,
            ird: 0,
            sink,
            next_sink: 0,
            next_request_id: 0,
        }
    }

    pub(crate) fn may_ask(&self) -> bool {
        self.outstanding.len() < usize::from(self.ord)
    }

    /// A request of ours goes out; its elements are added by the send queue.
    pub(crate) fn ask(&mut self, asker: Asker, msn: u32, kind: OutstandingKind, invalidate: Option<STag>) {
        self.outstanding.push_back(Outstanding { asker, msn, kind, sges: Vec::new(), invalidate });
    }

    /// Whether another request may join: `under_way` answers of which the last segment is still to come count as well
    /// (RFC 5040 section 6.1).
    pub(crate) fn may_owe(&self, under_way: usize) -> bool {
        self.owed.len() + under_way < usize::from(self.ird)
    }

    /// A tagged offset for the sink of the next Read: unlike those before, so that a stale answer matches nothing.
    pub(crate) fn next_sink_to(&mut self) -> u64 {
        self.next_sink = self.next_sink.wrapping_add(1) & 0x7FFF_FFFF;
        u64::from(self.next_sink) << 32
    }

    pub(crate) fn next_request_id(&mut self) -> u32 {
        self.next_request_id = self.next_request_id.wrapping_add(1);
        self.next_request_id
    }
}

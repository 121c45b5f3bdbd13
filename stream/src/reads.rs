//! Reads and atomics in progress: those of this end (ORQ, limited by ORD), and those of the peer
//! (IRQ, limited by IRD).

use crate::acks::Acks;
use crate::request::Remote;
use alloc::collections::VecDeque;
use uiw_ddp::{Header, STag, Untagged};
use uiw_rdmap::{AtomicRequest, Control, Opcode, QuotedHeaders, ReadRequest};

/// STag and offset in the zero-length Reads and Writes that the stream generates itself, as source
/// and as sink.
///
/// A receiver does not check them (RFC 5040 section 5.2.1), but Chelsio's adapters refuse STag 0 in
/// a tagged segment and in a Read Request of any length. Their own driver uses STag 1 and TO 1
/// (`build_rtr_msg` in `drivers/infiniband/hw/cxgb4/qp.c`).
pub(crate) const PLACEHOLDER: Remote = Remote { stag: STag(1), to: 1 };

/// Read or atomic of this end that waits for its response.
#[derive(Debug)]
pub(crate) struct Outstanding {
    pub(crate) origin: ReadOrigin,
    /// MSN of the request on queue 1, which a Terminate may name.
    pub(crate) msn: u32,
    pub(crate) kind: OutstandingKind,
    pub(crate) invalidate: Option<STag>,
}

/// Capacity that an empty queue keeps. More is released, because every connection may have had a
/// burst.
const KEPT: usize = 256;

/// Removes the oldest entry. Returning it would move it, which takes longer than the rest.
#[inline]
fn remove_oldest<T>(queue: &mut VecDeque<T>) {
    queue.pop_front();
    if queue.is_empty() && queue.capacity() > KEPT {
        *queue = VecDeque::new();
    }
}

/// Originator of a Read or an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOrigin {
    /// A request of the host.
    Request(u32),
    /// The stream, for the RTR message.
    Rtr,
    /// The stream. The response means that the peer has placed everything up to this request.
    Ack(u32),
    /// The stream, after the host was detached or at the end of an orderly close. After the
    /// response the peer waits for no acknowledgement.
    Drain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutstandingKind {
    Read { sink_to: u64, len: u32, received: u32 },
    Atomic { request_id: u32 },
}

/// Read or atomic of the peer that waits for a response.
#[derive(Debug)]
pub(crate) struct InboundRead {
    pub(crate) kind: InboundKind,
    /// The request as it arrived, which a Terminate may quote.
    pub(crate) segment: QuotedSegment,
}

#[derive(Debug)]
pub(crate) enum InboundKind {
    Read(ReadRequest),
    Atomic(AtomicRequest),
}

/// Beginning of a received segment, as far as a Terminate may quote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotedSegment {
    bytes: [u8; Self::LEN],
    kept: u8,
    header_len: u8,
    segment_len: u16,
}

impl QuotedSegment {
    /// Length in bytes of the untagged header and a Read Request.
    const LEN: usize = Untagged::LEN + ReadRequest::LEN;

    pub(crate) fn new(ulpdu: &[u8], header_len: usize) -> Self {
        let kept = ulpdu.len().min(Self::LEN);
        let bytes = ulpdu.first_chunk().copied().unwrap_or_else(|| {
            let mut bytes = [0; Self::LEN];
            bytes[..kept].copy_from_slice(ulpdu);
            bytes
        });
        Self {
            bytes,
            kept: kept as u8,
            header_len: header_len.min(kept) as u8,
            segment_len: u16::try_from(ulpdu.len()).unwrap_or(u16::MAX),
        }
    }

    pub(crate) fn quoted(&self) -> QuotedHeaders<'_> {
        let kept = &self.bytes[..usize::from(self.kept)];
        let is_read_request = matches!(Header::parse(kept), Ok((Header::Untagged(header), _))
            if Control::parse(header.rsvd_ulp).opcode == Opcode::ReadRequest.raw());
        QuotedHeaders {
            segment_len: self.segment_len,
            header: &kept[..usize::from(self.header_len)],
            read_request: kept.get(Untagged::LEN..Self::LEN).filter(|_| is_read_request),
        }
    }
}

/// Outstanding and inbound Reads of a stream.
#[derive(Debug)]
pub(crate) struct Reads {
    pub(crate) outstanding: VecDeque<Outstanding>,
    /// Reads and atomics of the peer, including the one that is being answered. A Read counts
    /// against the IRD until the last segment of its response is built (RFC 5040 section 6.1),
    /// because the peer cannot use the credit before it has the response.
    pub(crate) inbound: VecDeque<InboundRead>,
    /// Maximum length of `inbound` since it was last empty.
    inbound_peak: usize,
    pub(crate) ord: u16,
    pub(crate) ird: u16,
    /// STag that the Reads of this end name as sink. It refers to no memory: a response is matched
    /// with its request instead, so that the peer never learns a key or an address from a Read.
    pub(crate) sink: STag,
    pub(crate) acks: Acks,
    /// True if a request waits for credit, which was reported to the host.
    pub(crate) lacks_credit: bool,
    next_sink: u32,
    next_request_id: u32,
}

impl Reads {
    pub(crate) fn new(sink: STag) -> Self {
        Self {
            outstanding: VecDeque::new(),
            inbound: VecDeque::new(),
            inbound_peak: 0,
            ord: 0,
            ird: 0,
            sink,
            acks: Acks::default(),
            lacks_credit: false,
            next_sink: 0,
            next_request_id: 0,
        }
    }

    /// Returns whether ORD allows another Read or atomic of this end.
    #[inline]
    pub(crate) fn has_credit(&self) -> bool {
        self.outstanding.len() < usize::from(self.ord)
    }

    /// Returns whether IRD allows another Read or atomic of the peer.
    pub(crate) fn has_inbound_room(&self) -> bool {
        self.inbound.len() < usize::from(self.ird)
    }

    #[inline]
    pub(crate) fn add(
        &mut self,
        origin: ReadOrigin,
        msn: u32,
        kind: OutstandingKind,
        invalidate: Option<STag>,
    ) {
        self.outstanding.push_back(Outstanding { origin, msn, kind, invalidate });
    }

    /// Removes the oldest Read or atomic of this end, whose response has arrived.
    #[inline]
    pub(crate) fn end_outstanding(&mut self) {
        remove_oldest(&mut self.outstanding);
    }

    /// Adds a Read or atomic of the peer.
    pub(crate) fn add_inbound(&mut self, read: InboundRead) {
        self.inbound.push_back(read);
        self.inbound_peak = self.inbound_peak.max(self.inbound.len());
    }

    /// Removes the oldest Read or atomic of the peer, whose response is built.
    pub(crate) fn end_inbound(&mut self) {
        remove_oldest(&mut self.inbound);
        if self.inbound.is_empty() {
            self.inbound_peak = 0;
        }
    }

    /// Returns the maximum number of responses in a batch.
    ///
    /// It is half of the largest number of requests that were waiting at once, so that the requester
    /// handles a batch while the next one is built. If a single batch answered all requests, each
    /// end would wait while the other one works. Batches below the minimum would cost more in system
    /// calls than they save.
    pub(crate) fn max_responses(&self) -> usize {
        const MIN: usize = 8;
        const MAX: usize = 48;
        (self.inbound_peak / 2).clamp(MIN, MAX)
    }

    /// Returns the request of the oldest Read or atomic of the peer, for a Terminate. A Read Request
    /// is updated to the location after the first `sent` bytes (RFC 5040 section 4.8).
    #[cold]
    pub(crate) fn oldest_segment(&self, sent: u32) -> Option<QuotedSegment> {
        let oldest = self.inbound.front()?;
        let mut segment = oldest.segment.clone();
        if let InboundKind::Read(request) = oldest.kind {
            let left = ReadRequest {
                sink_to: request.sink_to.wrapping_add(sent.into()),
                len: request.len - sent,
                source_to: request.source_to.wrapping_add(sent.into()),
                ..request
            };
            segment.bytes[Untagged::LEN..].copy_from_slice(&left.emit());
        }
        Some(segment)
    }

    /// Returns whether an RTR Read waits for its response.
    #[inline]
    pub(crate) fn awaits_rtr(&self) -> bool {
        self.outstanding.front().is_some_and(|front| front.origin == ReadOrigin::Rtr)
    }

    /// Returns the tagged offset for the sink of the next Read. It differs from earlier ones, so
    /// that a stale response matches nothing.
    pub(crate) fn next_sink_to(&mut self) -> u64 {
        self.next_sink = self.next_sink.wrapping_add(1) & 0x7FFF_FFFF;
        u64::from(self.next_sink) << 32
    }

    pub(crate) fn next_request_id(&mut self) -> u32 {
        self.next_request_id = self.next_request_id.wrapping_add(1);
        self.next_request_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the capacity of the two queues.
    fn capacities(reads: &Reads) -> [usize; 2] {
        [reads.outstanding.capacity(), reads.inbound.capacity()]
    }

    #[test]
    fn read_slots_released_after_burst() {
        let mut reads = Reads { ord: 1024, ird: 1024, ..Reads::new(STag(1)) };
        assert_eq!(capacities(&reads), [0, 0]);
        let request = ReadRequest {
            sink_stag: STag(1),
            sink_to: 0,
            len: 8,
            source_stag: STag(2),
            source_to: 0,
        };
        for count in [1, KEPT, 1024] {
            for at in 0..count as u32 {
                let kind = OutstandingKind::Read { sink_to: 0, len: 8, received: 0 };
                assert!(reads.has_credit() && reads.has_inbound_room());
                reads.add(ReadOrigin::Request(at), at, kind, None);
                let segment = QuotedSegment::new(&[], 0);
                reads.add_inbound(InboundRead { kind: InboundKind::Read(request), segment });
            }
            // The capacity starts at four entries and doubles when the queue is full.
            assert!(
                capacities(&reads).iter().all(|places| *places <= (2 * count).max(4)),
                "{count}"
            );
            for _ in 0..count {
                reads.end_outstanding();
                reads.end_inbound();
            }
            assert!(reads.outstanding.is_empty() && reads.inbound.is_empty());
            assert!(capacities(&reads).iter().all(|places| *places <= KEPT), "{count}");
        }
    }
}

//! Reassembly of the byte stream of one direction of a TCP connection from captured segments.
//!
//! ```text
//!               next                held back, out of order
//!                ▼                 ┌──────┐      ┌────┐
//! ───delivered───┼─────missing─────┤ held ├──────┤held│
//!                                  └──────┘      └────┘
//! ```
//! Bytes that are not in the capture are reported as [`Chunk::Missing`], at the latest when
//! [`MAX_HELD`] bytes wait for them.

use std::collections::BTreeMap;

/// Maximum number of bytes held after a hole, before the hole counts as missing from the capture.
pub(super) const MAX_HELD: usize = 4 << 20;

/// Cost of a held segment in addition to its bytes, which limits the memory of many tiny segments.
const HELD_COST: usize = 128;

/// Distance from the expected sequence number above which a segment belongs to another connection.
const WINDOW: u64 = 1 << 30;

/// Distance from the last captured byte above which an acknowledgment is not trusted. A sender has
/// at most the receive window in flight, which Linux limits to 32 MiB unless it is configured
/// otherwise. Behind a gap, captured bytes move the limit.
const MAX_UNSEEN: u64 = 32 << 20;

/// A piece of the stream, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    Bytes(Vec<u8>),
    /// This number of bytes is not in the capture.
    Missing(u64),
}

/// Byte stream of one direction.
#[derive(Debug)]
pub(super) struct ByteStream {
    /// Number of bytes already delivered. The expected sequence number is `first` plus its low 32
    /// bits.
    delivered: u64,
    /// Sequence number of the first byte.
    first: u32,
    held: BTreeMap<u64, HeldSegment>,
    held_bytes: usize,
    /// Number of bytes that were captured again.
    pub(super) repeated: u64,
    /// Number of segments with such bytes.
    pub(super) retransmissions: u64,
}

#[derive(Debug)]
struct HeldSegment {
    bytes: Vec<u8>,
    cut: u32,
}

impl ByteStream {
    /// Creates a stream whose first byte has the sequence number `first`.
    pub(super) fn new(first: u32) -> Self {
        Self {
            delivered: 0,
            first,
            held: BTreeMap::new(),
            held_bytes: 0,
            repeated: 0,
            retransmissions: 0,
        }
    }

    /// Returns the sequence number of the first byte.
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// Returns whether this is the sequence number of the next byte to be delivered.
    pub(super) fn is_next(&self, sequence: u32) -> bool {
        self.distance(sequence) == 0
    }

    /// Returns whether a segment with this sequence number can belong to the stream in its current
    /// state.
    pub(super) fn is_near(&self, sequence: u32) -> bool {
        self.distance(sequence).unsigned_abs() < WINDOW
    }

    /// Takes a segment: its sequence number, its payload, and the number of payload bytes that the
    /// capture has cut off.
    pub(super) fn push(&mut self, sequence: u32, payload: &[u8], cut: u32, out: &mut Vec<Chunk>) {
        if (payload.is_empty() && cut == 0) || !self.is_near(sequence) {
            return;
        }
        let distance = self.distance(sequence);
        let behind = usize::try_from(distance.min(0).unsigned_abs()).unwrap_or(usize::MAX);
        let before = self.repeated;
        self.repeated += behind.min(payload.len()) as u64;
        let fresh = payload.get(behind..).unwrap_or_default();
        // Ignore the cut bytes that were delivered before.
        let old_cut = behind.saturating_sub(payload.len());
        let cut = cut.saturating_sub(u32::try_from(old_cut).unwrap_or(u32::MAX));
        if fresh.is_empty() && cut == 0 {
            self.retransmissions += u64::from(self.repeated > before);
            return;
        }
        match u64::try_from(distance) {
            Ok(ahead) if ahead > 0 => self.hold(self.delivered + ahead, fresh, cut),
            _ => {
                self.deliver(fresh.to_vec(), cut, out);
                self.release(out);
            }
        }
        self.retransmissions += u64::from(self.repeated > before);
        while self.held_bytes > MAX_HELD {
            self.give_up_hole(out);
        }
    }

    /// Returns the number of bytes before this acknowledgment that were not delivered yet, or 0 if
    /// they cannot have been sent.
    pub(super) fn missing_before(&self, acknowledgment: u32) -> u64 {
        let missing = u64::try_from(self.distance(acknowledgment)).unwrap_or(0);
        let held = self
            .held
            .last_key_value()
            .map_or(0, |(position, _)| position.saturating_sub(self.delivered));
        if missing <= held + MAX_UNSEEN { missing } else { 0 }
    }

    /// Returns whether bytes wait after a hole.
    pub(super) fn has_hole(&self) -> bool {
        !self.held.is_empty()
    }

    /// Reports bytes before this sequence number that have not arrived as missing, because the
    /// other end has acknowledged them.
    pub(super) fn give_up_to(&mut self, sequence: u32, out: &mut Vec<Chunk>) {
        while let lacking @ 1.. = self.missing_before(sequence) {
            match self.held.first_key_value() {
                Some((&position, _)) if position < self.delivered + lacking => {
                    self.give_up_hole(out);
                }
                _ => {
                    out.push(Chunk::Missing(lacking));
                    self.delivered += lacking;
                    self.release(out);
                }
            }
        }
    }

    /// Delivers everything that is held, with the holes in between, at the end of the capture or
    /// the connection.
    pub(super) fn finish(&mut self, out: &mut Vec<Chunk>) {
        while !self.held.is_empty() {
            self.give_up_hole(out);
        }
    }

    /// Returns the signed distance of a sequence number from the expected one.
    fn distance(&self, sequence: u32) -> i64 {
        // Sequence numbers count the low 32 bits of the position.
        let expected = self.first.wrapping_add(self.delivered as u32);
        i64::from(sequence.wrapping_sub(expected).cast_signed())
    }

    fn deliver(&mut self, bytes: Vec<u8>, cut: u32, out: &mut Vec<Chunk>) {
        self.delivered += bytes.len() as u64 + u64::from(cut);
        if !bytes.is_empty() {
            out.push(Chunk::Bytes(bytes));
        }
        if cut > 0 {
            out.push(Chunk::Missing(cut.into()));
        }
    }

    /// Holds a segment. Of two segments with the same start, the one with more captured bytes is
    /// kept.
    fn hold(&mut self, position: u64, bytes: &[u8], cut: u32) {
        let length = |bytes: usize, cut: u32| (bytes, cut);
        let fresh = HeldSegment { bytes: bytes.to_vec(), cut };
        match self.held.get(&position) {
            Some(old) if length(old.bytes.len(), old.cut) >= length(bytes.len(), cut) => {
                self.repeated += bytes.len() as u64;
            }
            _ => {
                self.held_bytes += bytes.len() + HELD_COST;
                if let Some(old) = self.held.insert(position, fresh) {
                    self.held_bytes -= old.bytes.len() + HELD_COST;
                    self.repeated += old.bytes.len() as u64;
                }
            }
        }
    }

    /// Delivers held segments that are now in order.
    fn release(&mut self, out: &mut Vec<Chunk>) {
        while let Some(entry) = self.held.first_entry()
            && *entry.key() <= self.delivered
        {
            let position = *entry.key();
            let mut held = entry.remove();
            self.held_bytes -= held.bytes.len() + HELD_COST;
            let overlap = usize::try_from(self.delivered - position).unwrap_or(usize::MAX);
            let known = overlap.min(held.bytes.len());
            self.repeated += known as u64;
            let old_cut = u32::try_from(overlap - known).unwrap_or(u32::MAX);
            held.bytes.drain(..known);
            self.deliver(held.bytes, held.cut.saturating_sub(old_cut), out);
        }
    }

    fn give_up_hole(&mut self, out: &mut Vec<Chunk>) {
        if let Some((&position, _)) = self.held.first_key_value() {
            let hole = position.saturating_sub(self.delivered);
            if hole > 0 {
                out.push(Chunk::Missing(hole));
                self.delivered = position;
            }
            self.release(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(first: u32, segments: &[(u32, &[u8])]) -> (Vec<Chunk>, u64) {
        let mut stream = ByteStream::new(first);
        let mut out = Vec::new();
        for (sequence, payload) in segments {
            stream.push(*sequence, payload, 0, &mut out);
        }
        stream.finish(&mut out);
        (joined(out), stream.repeated)
    }

    fn joined(chunks: Vec<Chunk>) -> Vec<Chunk> {
        let mut out: Vec<Chunk> = Vec::new();
        for chunk in chunks {
            match (out.last_mut(), chunk) {
                (Some(Chunk::Bytes(before)), Chunk::Bytes(more)) => before.extend(more),
                (_, chunk) => out.push(chunk),
            }
        }
        out
    }

    fn bytes(text: &str) -> Chunk {
        Chunk::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn out_of_order_over_the_wrap() {
        let (chunks, repeated) =
            run(u32::MAX - 1, &[(1, b"de"), (u32::MAX - 1, b"abc"), (3, b"f")]);
        assert_eq!(chunks, [bytes("abcdef")]);
        assert_eq!(repeated, 0);
    }

    #[test]
    fn retransmissions_and_overlaps() {
        let (chunks, repeated) = run(10, &[(10, b"abcd"), (10, b"abcd"), (12, b"cdef"), (9, b"X")]);
        assert_eq!(chunks, [bytes("abcdef")]);
        assert_eq!(repeated, 7);
    }

    #[test]
    fn holes_are_counted() {
        let (chunks, _) = run(0, &[(0, b"ab"), (5, b"f"), (9, b"j")]);
        assert_eq!(
            chunks,
            [bytes("ab"), Chunk::Missing(3), bytes("f"), Chunk::Missing(3), bytes("j")]
        );
    }

    #[test]
    fn cut_packets_are_holes() {
        let mut stream = ByteStream::new(0);
        let mut out = Vec::new();
        stream.push(0, b"ab", 3, &mut out);
        stream.push(2, b"", 3, &mut out);
        stream.push(5, b"f", 0, &mut out);
        assert_eq!(out, [bytes("ab"), Chunk::Missing(3), bytes("f")]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut stream = ByteStream::new(0);
        let mut out = Vec::new();
        for n in 0..100_u32 {
            stream.push(10 + n * 100_000, &vec![0; 100_000], 0, &mut out);
            assert!(stream.held_bytes <= MAX_HELD);
        }
        assert_eq!(out.first(), Some(&Chunk::Missing(10)));
    }

    proptest! {
        #[test]
        fn any_segmentation_and_order_reassembled(
            first in any::<u32>(),
            text in proptest::collection::vec(any::<u8>(), 1..200),
            pieces in proptest::collection::vec((0..200_usize, 1..50_usize), 0..60),
        ) {
            // Every byte arrives at least once: the pieces in any order, then all single bytes
            // backwards.
            let mut stream = ByteStream::new(first);
            let mut out = Vec::new();
            let mut push = |from: usize, to: usize| {
                let sequence = first.wrapping_add(u32::try_from(from).unwrap());
                stream.push(sequence, &text[from..to], 0, &mut out);
            };
            for (from, length) in pieces {
                let from = from % text.len();
                push(from, (from + length).min(text.len()));
            }
            (0..text.len()).rev().for_each(|at| push(at, at + 1));
            prop_assert_eq!(joined(out), [Chunk::Bytes(text)]);
        }
    }
}

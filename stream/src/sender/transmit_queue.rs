//! Bytes that wait for TCP, in stream order and with FPDU boundaries: staged bytes, and references
//! to memory of the host.
//!
//! Bytes that TCP does not accept at once stay here, so a partial send costs nothing, and nothing
//! is ever inserted into an FPDU: a Terminate is sent after the FPDU whose first byte is on the
//! wire.

use crate::host::StreamHost;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

#[derive(Debug)]
enum QueuedPiece {
    /// Bytes `start..end` of staging.
    Staged { start: usize, end: usize },
    /// Bytes `start..end` of memory of the host.
    Memory { memory: MemoryId, start: usize, end: usize },
}

impl QueuedPiece {
    fn len(&self) -> usize {
        match self {
            Self::Staged { start, end } | Self::Memory { start, end, .. } => end - start,
        }
    }
}

/// Identifies the memory of one or more consecutive pieces. Ids count up and are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemoryId(u64);

/// Piece of the bytes to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece<'a, M> {
    /// Bytes in memory of the stream.
    Bytes(&'a [u8]),
    /// Range of memory of the host. Consecutive pieces may refer to the same memory; then the
    /// references are equal.
    Memory {
        /// Memory that holds the bytes.
        memory: &'a M,
        /// Range of the bytes in `memory`.
        range: Range<usize>,
    },
}

/// Transmit queue of a stream. Positions count bytes from the beginning of the connection.
#[derive(Debug)]
pub(super) struct TransmitQueue<M> {
    pub(super) staging: Vec<u8>,
    pieces: VecDeque<QueuedPiece>,
    /// Memory of the pieces, oldest first.
    memory: VecDeque<M>,
    /// Id of the first element of `memory`.
    first_memory: u64,
    /// Number of bytes of the first piece that were sent.
    skip: usize,
    queued: u64,
    sent: u64,
    /// End positions of FPDUs that are not completely sent.
    ends: VecDeque<u64>,
    /// End position of the last FPDU that was completely sent.
    boundary: u64,
}

impl<M> TransmitQueue<M> {
    pub(super) const fn new() -> Self {
        Self {
            staging: Vec::new(),
            pieces: VecDeque::new(),
            memory: VecDeque::new(),
            first_memory: 0,
            skip: 0,
            queued: 0,
            sent: 0,
            ends: VecDeque::new(),
            boundary: 0,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queued == self.sent
    }

    /// Returns the number of bytes in the queue.
    pub(super) fn waiting(&self) -> u64 {
        self.queued - self.sent
    }

    pub(super) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the position after the last queued byte.
    pub(super) fn queued(&self) -> u64 {
        self.queued
    }

    /// Returns the position after the last byte that TCP has accepted.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Queues the bytes that were appended to `staging` since `start`.
    pub(super) fn push_staged(&mut self, start: usize) {
        let end = self.staging.len();
        debug_assert!(start < end, "an empty piece");
        self.queued += (end - start) as u64;
        match self.pieces.back_mut() {
            Some(QueuedPiece::Staged { end: last, .. }) if *last == start => *last = end,
            _ => self.pieces.push_back(QueuedPiece::Staged { start, end }),
        }
    }

    /// Adds the memory to which the next pieces refer.
    pub(super) fn add_memory(&mut self, memory: M) -> MemoryId {
        self.memory.push_back(memory);
        MemoryId(self.first_memory + self.memory.len() as u64 - 1)
    }

    /// Queues `range` of the memory that was added last.
    pub(super) fn push_memory(&mut self, memory: MemoryId, range: Range<usize>) {
        self.queued += range.len() as u64;
        self.pieces.push_back(QueuedPiece::Memory { memory, start: range.start, end: range.end });
    }

    /// Records that an FPDU or start-up frame ends at the current end of the queue.
    pub(super) fn end_fpdu(&mut self) {
        self.ends.push_back(self.queued);
    }

    /// Returns the bytes, if there is only one piece and it is staged.
    pub(super) fn single(&self) -> Option<&[u8]> {
        match self.pieces.front() {
            Some(QueuedPiece::Staged { start, end }) if self.pieces.len() == 1 => {
                Some(&self.staging[start + self.skip..*end])
            }
            _ => None,
        }
    }

    /// Returns the pieces, in stream order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Piece<'_, M>> {
        let mut skip = self.skip;
        self.pieces.iter().map(move |piece| {
            let skip = core::mem::take(&mut skip);
            match piece {
                QueuedPiece::Staged { start, end } => {
                    Piece::Bytes(&self.staging[start + skip..*end])
                }
                QueuedPiece::Memory { memory, start, end } => Piece::Memory {
                    memory: &self.memory[self.place(*memory)],
                    range: start + skip..*end,
                },
            }
        })
    }

    /// Returns the index in `memory` for this id.
    fn place(&self, id: MemoryId) -> usize {
        (id.0 - self.first_memory) as usize
    }

    /// Drops the memory with ids below `before`, to which no piece refers any more.
    fn drop_memory(&mut self, before: u64) {
        let gone = (before - self.first_memory) as usize;
        self.memory.drain(..gone);
        self.first_memory = before;
    }

    /// Removes `count` bytes, which TCP has accepted.
    pub(super) fn advance(&mut self, count: usize) {
        debug_assert!(count as u64 <= self.waiting());
        self.sent += count as u64;
        if self.is_empty() {
            return self.clear();
        }
        let mut left = count + self.skip;
        while let Some(piece) = self.pieces.front() {
            if left < piece.len() {
                break;
            }
            left -= piece.len();
            // Pieces of the same memory are consecutive.
            if let QueuedPiece::Memory { memory, .. } = *piece {
                self.drop_memory(memory.0);
            }
            self.pieces.pop_front();
        }
        self.skip = left;
        while let Some(end) = self.ends.front().copied().filter(|end| *end <= self.sent) {
            self.boundary = end;
            self.ends.pop_front();
        }
    }

    /// Removes everything, because TCP has accepted it.
    fn clear(&mut self) {
        self.pieces.clear();
        if !self.memory.is_empty() {
            self.drop_memory(self.first_memory + self.memory.len() as u64);
        }
        self.staging.clear();
        self.ends.clear();
        self.boundary = self.sent;
        self.skip = 0;
    }

    /// Drops all FPDUs of which TCP has no byte, and copies the rest of a partly sent one, so that
    /// nothing refers to memory of the host any more. Returns false if that memory is no longer
    /// valid, so that the FPDU cannot be finished.
    pub(super) fn keep_started<H: StreamHost<Memory = M>>(&mut self, host: &mut H) -> bool {
        let started_end = match self.ends.front() {
            Some(end) if self.sent > self.boundary => *end,
            _ => self.sent,
        };
        let mut rest = Vec::new();
        let mut left = (started_end - self.sent) as usize;
        let mut whole = true;
        for piece in self.iter() {
            if left == 0 {
                break;
            }
            match piece {
                Piece::Bytes(bytes) => {
                    let take = left.min(bytes.len());
                    rest.extend_from_slice(&bytes[..take]);
                    left -= take;
                }
                Piece::Memory { memory, range } => {
                    let take = left.min(range.len());
                    whole &= host.copy_memory(memory, range.start..range.start + take, &mut rest);
                    left -= take;
                }
            }
        }
        self.pieces.clear();
        self.drop_memory(self.first_memory + self.memory.len() as u64);
        self.skip = 0;
        self.ends.clear();
        self.staging = rest;
        self.queued = self.sent;
        if !self.staging.is_empty() {
            self.push_staged(0);
            self.end_fpdu();
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes that TCP accepts: at most `room` bytes of the pieces.
    fn take(queue: &TransmitQueue<u8>, room: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in queue.iter() {
            match piece {
                Piece::Bytes(staged) => bytes.extend_from_slice(staged),
                Piece::Memory { memory, range } => bytes.extend(range.map(|_| *memory)),
            }
        }
        bytes.truncate(room);
        bytes
    }

    /// TCP has no room directly after the last byte of the memory. The memory's request completes
    /// and the host frees it, while the next FPDU, which has memory of its own, is still queued.
    #[test]
    fn sent_memory_released() {
        for taken in [9, 10, 11] {
            let mut queue = TransmitQueue::new();
            for number in 1..=2u8 {
                for byte in [b'h', b'c'] {
                    let start = queue.staging.len();
                    queue.staging.extend([byte; 3]);
                    queue.push_staged(start);
                    if byte == b'h' {
                        let id = queue.add_memory(number);
                        queue.push_memory(id, 0..4);
                    }
                }
                queue.end_fpdu();
            }
            // The FPDU has 10 bytes; after 9 bytes the memory's own bytes have been sent, but not
            // its CRC.
            let mut sent = take(&queue, taken);
            queue.advance(taken);
            let named: Vec<_> = queue
                .iter()
                .filter_map(|piece| match piece {
                    Piece::Memory { memory, .. } => Some(*memory),
                    Piece::Bytes(_) => None,
                })
                .collect();
            assert_eq!(named, [2], "with {taken} bytes sent");
            sent.extend(take(&queue, 100));
            queue.advance(20 - taken);
            assert_eq!(sent, b"hhh\x01\x01\x01\x01ccchhh\x02\x02\x02\x02ccc");
            assert!(queue.is_empty() && queue.memory.is_empty() && queue.staging.is_empty());
        }
    }
}

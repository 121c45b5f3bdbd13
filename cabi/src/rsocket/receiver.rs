//! The receiving half of a connection: a ring of two halves that the peer writes, the messages that say how much of it is written, and
//! what the peer is to be granted.
//!
//! ```text
//!   published to the peer        written, and not read by the program      read: free, and not published again
//!        granted                          readable                                   free
//! ```
//!
//! A half is published as one target once so many bytes are free, so the peer fills the halves in turn and the bytes of the stream are
//! consecutive in the ring.

use std::collections::VecDeque;
use std::ops::Range;

/// What a peer did that it was not allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A data message beyond the credits that were given.
    Credits,
    /// More bytes than were published, or none.
    Length {
        /// The bytes of the message.
        len: u32,
        /// The bytes that were published and not written.
        granted: u32,
    },
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Credits => f.write_str("a data message beyond the credits"),
            Self::Length { len, granted } => write!(f, "{len} bytes, where {granted} were published"),
        }
    }
}

/// What the peer is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The offset of the half that is published, if one is.
    pub half: Option<u32>,
    /// Data messages that the peer may send, modulo 2^16.
    pub limit: u16,
}

/// What has arrived, and what the peer may still send.
pub struct Receiver {
    half: u32,
    /// Data messages that the peer may have sent before it gets credits.
    depth: u16,
    /// The next byte to be read.
    offset: u32,
    /// Lengths of the messages that are not read; of the first one, what is left.
    messages: VecDeque<u32>,
    readable: u64,
    granted: u32,
    free: u32,
    /// The half that is published next.
    next: u32,
    /// Data messages that were read, that arrived, and that may arrive; modulo 2^16.
    read: u16,
    arrived: u16,
    limit: u16,
}

impl Receiver {
    /// A ring of two halves of `half` bytes, the first of which the peer has with the private data.
    #[must_use]
    pub fn new(half: u32, depth: u16) -> Self {
        Self {
            half,
            depth,
            offset: 0,
            messages: VecDeque::new(),
            readable: 0,
            granted: half,
            free: half,
            next: half,
            read: 0,
            arrived: 0,
            limit: depth,
        }
    }

    /// The peer has written `len` bytes.
    ///
    /// # Errors
    /// [`Violation`]
    pub fn arrive(&mut self, len: u32) -> Result<(), Violation> {
        if self.arrived == self.limit {
            return Err(Violation::Credits);
        }
        if len == 0 || len > self.granted {
            return Err(Violation::Length { len, granted: self.granted });
        }
        self.arrived = self.arrived.wrapping_add(1);
        self.granted -= len;
        self.readable += u64::from(len);
        self.messages.push_back(len);
        Ok(())
    }

    /// Bytes that can be read.
    #[must_use]
    pub fn readable(&self) -> u64 {
        self.readable
    }

    /// Where up to `max` of the readable bytes are that follow the first `skip` ones, as far as they are consecutive.
    #[must_use]
    pub fn chunk(&self, skip: u64, max: usize) -> Range<u32> {
        let size = 2 * self.half;
        // Both are less than the size of the ring.
        let start = (self.offset + skip as u32) % size;
        let left = u64::from(size - start).min(self.readable - skip).min(max as u64);
        start..start + left as u32
    }

    /// The program has read `len` bytes, at most those that are readable.
    pub fn consume(&mut self, len: u32) {
        self.offset = (self.offset + len) % (2 * self.half);
        self.readable -= u64::from(len);
        self.free += len;
        let mut left = len;
        while let Some(first) = self.messages.front_mut() {
            if *first > left {
                *first -= left;
                break;
            }
            left -= *first;
            self.messages.pop_front();
            self.read = self.read.wrapping_add(1);
        }
    }

    /// What the peer is to be granted now, if anything.
    #[must_use]
    pub fn due(&self) -> Option<Grant> {
        let limit = self.read.wrapping_add(self.depth);
        let half = (self.free >= self.half).then_some(self.next);
        let many = limit.wrapping_sub(self.limit) >= (self.depth / 2).max(1);
        (half.is_some() || many).then_some(Grant { half, limit })
    }

    /// The peer has been notified of it.
    pub fn given(&mut self, grant: Grant) {
        self.limit = grant.limit;
        if grant.half.is_some() {
            self.free -= self.half;
            self.granted += self.half;
            self.next = if self.next == 0 { self.half } else { 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that does what it may fills the ring without end, and every byte is read where it was written.
    #[test]
    fn halves_are_published_in_turn() {
        let mut receiver = Receiver::new(100, 16);
        let (mut targets, mut written, mut read) = (VecDeque::new(), 0u64, 0u64);
        targets.push_back(0..100u32);
        for round in 0..5000u32 {
            if let Some(grant) = receiver.due() {
                targets.extend(grant.half.map(|half| half..half + 100));
                receiver.given(grant);
            }
            assert_eq!(receiver.due(), None);
            let wanted = 1 + round * 7 % 40;
            if let Some(target) = targets.front_mut()
                && receiver.messages.len() < 16
            {
                let len = wanted.min(target.end - target.start);
                assert_eq!(u64::from(target.start), written % 200);
                receiver.arrive(len).unwrap();
                target.start += len;
                written += u64::from(len);
                if target.start == target.end {
                    targets.pop_front();
                }
            }
            let chunk = receiver.chunk(0, (round % 61) as usize);
            assert_eq!(u64::from(chunk.start), read % 200);
            receiver.consume(chunk.end - chunk.start);
            read += u64::from(chunk.end - chunk.start);
            assert_eq!(receiver.readable(), written - read);
        }
        assert!(read > 50_000);
    }

    #[test]
    fn bytes_behind_others_are_found_across_the_end() {
        let mut receiver = Receiver::new(10, 4);
        receiver.given(receiver.due().unwrap());
        receiver.arrive(10).unwrap();
        receiver.arrive(10).unwrap();
        receiver.consume(10);
        receiver.given(receiver.due().unwrap());
        receiver.arrive(5).unwrap();
        assert_eq!(receiver.chunk(0, 100), 10..20);
        assert_eq!(receiver.chunk(4, 100), 14..20);
        assert_eq!(receiver.chunk(10, 100), 0..5);
        assert_eq!(receiver.chunk(12, 2), 2..4);
    }

    #[test]
    fn a_peer_may_not_send_beyond_its_credits_or_its_targets() {
        let mut receiver = Receiver::new(1000, 4);
        assert_eq!(receiver.arrive(0), Err(Violation::Length { len: 0, granted: 1000 }));
        assert_eq!(receiver.arrive(1001), Err(Violation::Length { len: 1001, granted: 1000 }));
        for _ in 0..4 {
            receiver.arrive(1).unwrap();
        }
        assert_eq!(receiver.arrive(1), Err(Violation::Credits));
        receiver.consume(2);
        let grant = receiver.due().unwrap();
        assert_eq!(grant, Grant { half: Some(1000), limit: 6 });
        receiver.given(grant);
        receiver.arrive(1).unwrap();
        receiver.arrive(1995).unwrap();
        assert_eq!(receiver.arrive(1), Err(Violation::Credits));
    }

    #[test]
    fn credits_alone_are_given_for_many_small_messages() {
        let mut receiver = Receiver::new(1 << 16, 16);
        receiver.given(receiver.due().unwrap());
        for _ in 0..7 {
            receiver.arrive(1).unwrap();
            receiver.consume(1);
            assert_eq!(receiver.due(), None);
        }
        receiver.arrive(1).unwrap();
        receiver.consume(1);
        assert_eq!(receiver.due(), Some(Grant { half: None, limit: 24 }));
    }
}

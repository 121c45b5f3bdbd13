//! Bookkeeping of the receiving half of a connection: a ring of two halves that the peer writes,
//! the messages that report how much was written, and the credits and targets to grant to the peer.
//!
//! ```text
//!   published to the peer        written, and not read by the program      read: free, and not published again
//!        granted                          readable                                   free
//! ```
//!
//! A half is published as one target once all of it has been read, so the peer fills the halves in
//! turn. At first targets are shorter than the halves, so that a connection touches no more memory
//! than its path needs; they become longer while the peer fills them quickly.

use std::collections::VecDeque;
use std::ops::Range;

/// Rule of the protocol that a peer has violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A data message exceeds the granted credits.
    Credits,
    /// The message announces more bytes than were published, or none.
    Length {
        /// Size in the message.
        len: u32,
        /// Number of bytes that were published and not written.
        granted: u32,
    },
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Credits => f.write_str("a data message beyond the credits"),
            Self::Length { len, granted } => write!(f, "{len} bytes, but {granted} were published"),
        }
    }
}

/// Permission for the peer to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Part of the ring that is published, if any.
    pub target: Option<Range<u32>>,
    /// Number of data messages that the peer may send, modulo 2^16.
    pub limit: u16,
}

/// State of the receiving half: data that has arrived, and the room that the peer has.
pub struct Receiver {
    half: u32,
    /// Length of the next target.
    len: u32,
    /// Number of data messages that the peer can send before it gets credits.
    depth: u16,
    /// Targets that were published and not completely read, the oldest first. There is at most one
    /// in each half.
    targets: VecDeque<Range<u32>>,
    /// Lengths of the messages that were not read. For the first one, only the unread rest is
    /// counted.
    messages: VecDeque<u32>,
    readable: u64,
    granted: u32,
    /// Offset of the next target.
    next: u32,
    /// Number of data messages that were read, modulo 2^16.
    read: u16,
    /// Number of data messages that have arrived, modulo 2^16.
    arrived: u16,
    /// Number of data messages that may arrive in total, modulo 2^16.
    limit: u16,
}

impl Receiver {
    /// Creates a ring of two halves of `half` bytes. Targets initially have `first` bytes. The
    /// first target was sent to the peer with the private data.
    pub fn new(half: u32, first: u32, depth: u16) -> Self {
        let len = first.min(half);
        let mut targets = VecDeque::with_capacity(2);
        targets.push_back(0..len);
        Self {
            half,
            len,
            depth,
            targets,
            messages: VecDeque::new(),
            readable: 0,
            granted: len,
            next: half,
            read: 0,
            arrived: 0,
            limit: depth,
        }
    }

    /// Records that the peer has written `len` bytes.
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

    /// Returns the number of readable bytes.
    pub fn readable(&self) -> u64 {
        self.readable
    }

    /// Returns the range of up to `max` readable bytes after the first `skip` ones, as far as they
    /// are contiguous.
    pub fn chunk(&self, mut skip: u64, max: usize) -> Range<u32> {
        let most = self.readable.saturating_sub(skip).min(max as u64);
        for target in &self.targets {
            let len = u64::from(target.end - target.start);
            if skip < len {
                let start = target.start + skip as u32;
                return start..start + (len - skip).min(most) as u32;
            }
            skip -= len;
        }
        0..0
    }

    /// Records that the program has read `len` bytes, which must be readable.
    pub fn consume(&mut self, len: u32) {
        self.readable -= u64::from(len);
        let mut left = len;
        while let Some(target) = self.targets.front_mut() {
            let taken = left.min(target.end - target.start);
            target.start += taken;
            left -= taken;
            if target.start < target.end {
                break;
            }
            self.targets.pop_front();
        }
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

    /// Returns the grant that is due, if any.
    #[must_use]
    pub fn due(&self) -> Option<Grant> {
        let limit = self.read.wrapping_add(self.depth);
        let target = (self.targets.len() < 2).then_some(self.next..self.next + self.len);
        let many = limit.wrapping_sub(self.limit) >= (self.depth / 2).max(1);
        (target.is_some() || many).then_some(Grant { target, limit })
    }

    /// Records that the grant was sent to the peer.
    pub fn given(&mut self, grant: Grant) {
        self.limit = grant.limit;
        if let Some(target) = grant.target {
            self.granted += target.end - target.start;
            self.targets.push_back(target);
            self.next = if self.next == 0 { self.half } else { 0 };
        }
    }

    /// Returns whether targets are shorter than the halves.
    pub fn can_grow(&self) -> bool {
        self.len < self.half
    }

    /// Doubles the length of the next targets, up to the length of a half.
    pub fn grow(&mut self) {
        self.len = self.len.saturating_mul(2).min(self.half);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that uses all permissions can fill the ring forever, and every byte is read where it
    /// was written.
    #[test]
    fn halves_are_published_in_turn() {
        let mut receiver = Receiver::new(100, 10, 16);
        let (mut targets, mut written, mut read) = (VecDeque::new(), VecDeque::new(), 0u64);
        targets.push_back(0..10u32);
        for round in 0..5000u32 {
            if round % 1000 == 999 {
                receiver.grow();
            }
            if let Some(grant) = receiver.due() {
                if let Some(target) = grant.target.clone() {
                    let len = (10 << ((round + 1) / 1000)).min(100);
                    assert!(
                        [0..len, 100..100 + len].contains(&target),
                        "round {round}: {target:?}"
                    );
                    targets.push_back(target);
                }
                receiver.given(grant);
            }
            assert_eq!(receiver.due(), None);
            let wanted = 1 + round * 7 % 40;
            if let Some(target) = targets.front_mut()
                && receiver.messages.len() < 16
            {
                let len = wanted.min(target.end - target.start);
                receiver.arrive(len).unwrap();
                written.extend(target.start..target.start + len);
                target.start += len;
                if target.start == target.end {
                    targets.pop_front();
                }
            }
            let chunk = receiver.chunk(0, (round % 61) as usize);
            receiver.consume(chunk.end - chunk.start);
            read += u64::from(chunk.end - chunk.start);
            assert!(chunk.clone().eq(written.drain(..chunk.len())), "round {round}");
            assert_eq!(receiver.readable(), written.len() as u64);
        }
        assert!(read > 50_000 && !receiver.can_grow());
    }

    /// There are two targets in each half, each with half of its bytes, so the second one ends
    /// inside the half.
    #[test]
    fn bytes_of_next_target_found() {
        let mut receiver = Receiver::new(100, 50, 16);
        receiver.given(receiver.due().unwrap());
        receiver.arrive(50).unwrap();
        receiver.arrive(20).unwrap();
        assert_eq!(receiver.chunk(45, 100), 45..50);
        assert_eq!(receiver.chunk(50, 100), 100..120);
        receiver.consume(60);
        assert_eq!(receiver.chunk(0, 100), 110..120);
        receiver.grow();
        assert_eq!(receiver.due().unwrap().target, Some(0..100));
    }

    #[test]
    fn peeked_bytes_found_across_end() {
        let mut receiver = Receiver::new(10, 10, 4);
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
    fn peer_limited_to_credits_and_targets() {
        let mut receiver = Receiver::new(1000, 1000, 4);
        assert_eq!(receiver.arrive(0), Err(Violation::Length { len: 0, granted: 1000 }));
        assert_eq!(receiver.arrive(1001), Err(Violation::Length { len: 1001, granted: 1000 }));
        for _ in 0..4 {
            receiver.arrive(1).unwrap();
        }
        assert_eq!(receiver.arrive(1), Err(Violation::Credits));
        receiver.consume(2);
        let grant = receiver.due().unwrap();
        assert_eq!(grant, Grant { target: Some(1000..2000), limit: 6 });
        receiver.given(grant);
        receiver.arrive(1).unwrap();
        receiver.arrive(1995).unwrap();
        assert_eq!(receiver.arrive(1), Err(Violation::Credits));
    }

    #[test]
    fn credits_granted_for_small_messages() {
        let mut receiver = Receiver::new(1 << 16, 1 << 16, 16);
        receiver.given(receiver.due().unwrap());
        for _ in 0..7 {
            receiver.arrive(1).unwrap();
            receiver.consume(1);
            assert_eq!(receiver.due(), None);
        }
        receiver.arrive(1).unwrap();
        receiver.consume(1);
        assert_eq!(receiver.due(), Some(Grant { target: None, limit: 24 }));
    }
}

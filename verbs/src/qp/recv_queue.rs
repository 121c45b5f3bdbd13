//! Queues of posted receives, of one queue pair or shared.

use crate::error::Error;
use crate::qp::ring::Ring;
use crate::wr::{RecvWr, Sges, store};
use std::collections::HashSet;
use uiw_llp::Token;

/// A posted receive.
#[derive(Default)]
pub(crate) struct RecvWqe {
    pub(crate) wr_id: u64,
    pub(crate) sges: Sges,
    /// Number of bytes that it can hold.
    pub(crate) len: u32,
}

/// Queue of posted receives.
pub(crate) struct RecvQueue {
    ring: Ring<RecvWqe>,
    depth: u32,
    max_sge: u32,
    /// True if messages take the receive that was posted last. The memory of this receive is likely
    /// to be in the cache, and only as much memory is touched as messages are in use at a time.
    pub(crate) newest_first: bool,
    /// True if posting is an error (RESET).
    pub(crate) closed: bool,
    /// True if receives are flushed as soon as they are posted (ERR).
    pub(crate) flushing: bool,
    waiting: WaitingConns,
}

/// Connections that are not read until a receive is posted, the one that waits longest first. Each
/// peer of a shared queue can add one.
#[derive(Default)]
struct WaitingConns {
    order: Vec<Token>,
    /// The connections in `order`.
    all: HashSet<Token>,
}

impl RecvQueue {
    pub(crate) fn new(depth: u32, max_sge: u32) -> Self {
        Self {
            ring: Ring::new(),
            depth,
            max_sge,
            newest_first: false,
            closed: false,
            flushing: false,
            waiting: WaitingConns::default(),
        }
    }

    /// Adds a connection that waits for a receive.
    pub(crate) fn wait(&mut self, token: Token) {
        if self.waiting.all.insert(token) {
            self.waiting.order.push(token);
        }
    }

    /// Removes a connection that waits for a receive.
    pub(crate) fn stop_waiting(&mut self, token: Token) {
        if self.waiting.all.remove(&token) {
            self.waiting.order.retain(|other| *other != token);
        }
    }

    /// Removes all connections that wait for a receive. The caller rings their doorbells.
    #[inline]
    pub(crate) fn take_waiting(&mut self) -> Vec<Token> {
        if self.waiting.order.is_empty() {
            return Vec::new();
        }
        std::mem::take(&mut self.waiting).order
    }

    #[inline]
    pub(crate) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), Error> {
        if self.ring.len() >= self.depth as usize {
            return Err(Error::QueueFull { queue: "receive", depth: self.depth });
        }
        if wr.sges.len() > self.max_sge as usize {
            return Err(Error::TooManySges { given: wr.sges.len(), max: self.max_sge });
        }
        let len: u64 = wr.sges.iter().map(|sge| u64::from(sge.length)).sum();
        let wqe = self.ring.push();
        wqe.wr_id = wr.wr_id;
        // The length is capped, because no message is longer than 32 bits can express.
        wqe.len = u32::try_from(len).unwrap_or(u32::MAX);
        store(&mut wqe.sges, wr.sges);
        Ok(())
    }

    /// Returns the next receives, as far as they are contiguous in memory.
    pub(crate) fn peek(&mut self) -> &[RecvWqe] {
        if self.newest_first { self.ring.last_run() } else { self.ring.run(0) }
    }

    /// Removes the first `count` receives of [`RecvQueue::peek`].
    pub(crate) fn take_many(&mut self, count: usize) {
        if self.newest_first {
            for _ in 0..count {
                self.ring.pop_last();
            }
        } else {
            self.ring.pop_many(count);
        }
    }

    /// Swaps the next receive into `into`, whose allocation the slot keeps. Returns false if there
    /// is none.
    pub(crate) fn take(&mut self, into: &mut RecvWqe) -> bool {
        let next = if self.newest_first { self.ring.pop_last() } else { self.ring.pop() };
        match next {
            Some(wqe) => {
                std::mem::swap(wqe, into);
                true
            }
            None => false,
        }
    }

    /// Puts back a receive that was taken. The next message takes it.
    pub(crate) fn put_back(&mut self, receive: &mut RecvWqe) {
        let place = if self.newest_first { self.ring.push() } else { self.ring.push_front() };
        std::mem::swap(place, receive);
    }

    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    pub(crate) fn set_depth(&mut self, depth: u32) -> Result<(), Error> {
        if self.ring.len() > depth as usize {
            return Err(Error::Limit {
                what: "posted receives",
                asked: self.ring.len() as u64,
                limit: depth.into(),
            });
        }
        self.depth = depth;
        Ok(())
    }

    pub(crate) fn reset(&mut self) {
        self.ring.clear();
        self.flushing = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(mut queue: RecvQueue) -> Vec<u64> {
        let mut wqe = RecvWqe::default();
        let mut taken = Vec::new();
        for wr_id in 0..3 {
            queue.post(&RecvWr { wr_id, sges: &[] }).unwrap();
        }
        assert!(queue.take(&mut wqe));
        taken.push(wqe.wr_id);
        queue.post(&RecvWr { wr_id: 3, sges: &[] }).unwrap();
        while queue.take(&mut wqe) {
            taken.push(wqe.wr_id);
        }
        taken
    }

    #[test]
    fn receive_put_back_is_next() {
        for newest_first in [false, true] {
            let mut queue = RecvQueue { newest_first, ..RecvQueue::new(4, 1) };
            for wr_id in 0..4 {
                queue.post(&RecvWr { wr_id, sges: &[] }).unwrap();
            }
            let mut wqe = RecvWqe::default();
            assert!(queue.take(&mut wqe));
            let taken = wqe.wr_id;
            queue.put_back(&mut wqe);
            assert_eq!(queue.len(), 4);
            assert!(queue.take(&mut wqe));
            assert_eq!(wqe.wr_id, taken);
        }
    }

    #[test]
    fn receives_taken_oldest_first_by_default() {
        assert_eq!(taken(RecvQueue::new(4, 1)), [0, 1, 2, 3]);
        assert_eq!(taken(RecvQueue { newest_first: true, ..RecvQueue::new(4, 1) }), [2, 3, 1, 0]);
    }
}

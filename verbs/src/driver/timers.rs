//! Deadlines of connections: a heap from which entries are not removed when they become stale. Only
//! the entry for the deadline that the connection itself has is valid.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use uiw_llp::Token;
use uiw_stream::Time;

pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Time, u64)>>,
    /// Number of entries at which those of removed connections are purged.
    full: usize,
}

/// Size below which stale entries are not purged.
const FEW: usize = 256;

impl Default for Timers {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), full: FEW }
    }
}

impl Timers {
    pub(crate) fn add(&mut self, at: Time, token: Token) {
        self.heap.push(Reverse((at, token.0)));
    }

    /// Returns the time of the earliest entry, which may be stale.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Removes one entry whose time has passed, and returns its connection.
    pub(crate) fn due(&mut self, now: Time) -> Option<Token> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, token))| Token(token))
    }

    /// Returns whether there are twice as many entries as [`Timers::keep`] retained, so that the
    /// cost of its walk is amortised over the entries that were added.
    pub(crate) fn is_full(&self) -> bool {
        self.heap.len() >= self.full
    }

    /// Purges the entries of connections for which `lives` returns false, and releases their
    /// memory: they would accumulate while peers connect and disconnect.
    pub(crate) fn keep(&mut self, lives: impl Fn(Token) -> bool) {
        self.heap.retain(|Reverse((_, token))| lives(Token(*token)));
        self.full = (2 * self.heap.len()).max(FEW);
        self.heap.shrink_to(self.full);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn entries_of_removed_connections_purged() {
        const AT_A_TIME: u64 = if cfg!(miri) { 200 } else { 1000 };
        let (begin, mut timers) = (Time::from_nanos(7), Timers::default());
        let mut most = 0;
        for token in 0..20 * AT_A_TIME {
            timers.add(begin.after(Duration::from_secs(10)), Token(token));
            if timers.is_full() {
                timers.keep(|other| other.0 + AT_A_TIME > token);
            }
            most = most.max(timers.heap.len());
        }
        assert!(
            (AT_A_TIME..=2 * AT_A_TIME).contains(&(most as u64)),
            "{most} entries for {AT_A_TIME} streams"
        );
        let last = Token(20 * AT_A_TIME - 1);
        timers.keep(|token| token == last);
        assert!(timers.heap.capacity() <= 2 * FEW, "room for {}", timers.heap.capacity());
        assert_eq!(timers.due(begin), None);
        let due = timers.due(begin.after(Duration::from_secs(10)));
        assert_eq!(due, Some(last));
        assert_eq!(timers.next(), None);
    }
}

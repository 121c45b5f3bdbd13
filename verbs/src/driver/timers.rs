//! Deadlines of connections: a heap, cancelled by forgetting (the connection keeps the time that counts).

use llp::Token;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use stream::Time;

pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Time, u64)>>,
    /// With so many entries it is time to look for those of streams that are gone.
    full: usize,
}

/// Below this size stale entries are not purged.
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

    /// The next deadline that may matter.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes one deadline that has passed.
    pub(crate) fn due(&mut self, now: Time) -> Option<Token> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, token))| Token(token))
    }

    /// Whether there are twice as many entries as [`Timers::keep`] left: so what it walks is paid for by what was added.
    pub(crate) fn is_full(&self) -> bool {
        self.heap.len() >= self.full
    }

    /// Forgets the entries of connections that are gone, which peers that come and go would pile up, and the room they took.
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
    fn streams_that_come_and_go_leave_no_entries_and_no_room_behind() {
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

//! Deadlines of streams: a heap, cancelled by forgetting (the stream keeps the time that counts).

use llp::Token;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// What a deadline is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TimerKind {
    /// TCP and MPA set-up take too long.
    Startup,
    /// A Send waits for a receive.
    NoReceive,
    /// The orderly close takes too long.
    Close,
    /// Repeat the hello, or stop waiting for its answer.
    Hello,
    /// Posted requests wait for nothing but a pump, or a refused connection is tried again.
    Retry,
}

pub(crate) const TIMER_KINDS: usize = 5;

pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u64, TimerKind)>>,
    /// With so many entries it is time to look for those of streams that are gone.
    full: usize,
}

/// Entries among which nobody looks for those that do not matter.
const FEW: usize = 256;

impl Default for Timers {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), full: FEW }
    }
}

impl Timers {
    pub(crate) fn add(&mut self, at: Instant, token: Token, kind: TimerKind) {
        self.heap.push(Reverse((at, token.0, kind)));
    }

    /// The next deadline that may matter.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes one deadline that has passed.
    pub(crate) fn due(&mut self, now: Instant) -> Option<(Token, TimerKind)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, token, kind))| (Token(token), kind))
    }

    /// Whether there are twice as many entries as [`Timers::keep`] left: so what it walks is paid for by what was added.
    pub(crate) fn is_full(&self) -> bool {
        self.heap.len() >= self.full
    }

    /// Forgets the entries of streams that are gone, which peers that come and go would pile up, and the room they took.
    pub(crate) fn keep(&mut self, lives: impl Fn(Token) -> bool) {
        self.heap.retain(|Reverse((_, token, _))| lives(Token(*token)));
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
        let (begin, mut timers) = (Instant::now(), Timers::default());
        let mut most = 0;
        for token in 0..20 * AT_A_TIME {
            timers.add(begin + Duration::from_secs(10), Token(token), TimerKind::Startup);
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
        let due = timers.due(begin + Duration::from_secs(10));
        assert_eq!(due, Some((last, TimerKind::Startup)));
        assert_eq!(timers.next(), None);
    }
}

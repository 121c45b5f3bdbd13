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

#[derive(Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(Instant, u64, TimerKind)>>);

impl Timers {
    pub(crate) fn add(&mut self, at: Instant, token: Token, kind: TimerKind) {
        self.0.push(Reverse((at, token.0, kind)));
    }

    /// The next deadline that may matter.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes one deadline that has passed.
    pub(crate) fn due(&mut self, now: Instant) -> Option<(Token, TimerKind)> {
        if self.next()? > now {
            return None;
        }
        self.0.pop().map(|Reverse((_, token, kind))| (Token(token), kind))
    }
}

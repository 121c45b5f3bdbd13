//! Deadlines of connections and of SIDR requesters.

use std::collections::BTreeSet;
use uiw_llp::Token;
use uiw_stream::Time;

/// Timers of a shard. A connection has at most one, which it cancels when it sets an earlier one.
pub(crate) struct Timers {
    entries: BTreeSet<(Time, u64)>,
    /// Time of the first entry. Every round asks for it.
    next: Time,
}

impl Default for Timers {
    fn default() -> Self {
        Self { entries: BTreeSet::new(), next: Time::NEVER }
    }
}

impl Timers {
    pub(crate) fn add(&mut self, at: Time, token: Token) {
        self.entries.insert((at, token.0));
        self.update();
    }

    /// Removes a timer, unless it has expired.
    pub(crate) fn cancel(&mut self, at: Time, token: Token) {
        self.entries.remove(&(at, token.0));
        self.update();
    }

    /// Returns the time of the earliest timer. [`Time::NEVER`] if there is none.
    #[inline]
    pub(crate) fn next(&self) -> Time {
        self.next
    }

    /// Removes one timer whose time has passed, and returns its owner.
    pub(crate) fn due(&mut self, now: Time) -> Option<Token> {
        if self.next > now {
            return None;
        }
        let (_, token) = self.entries.pop_first()?;
        self.update();
        Some(Token(token))
    }

    fn update(&mut self) {
        self.next = self.entries.first().map_or(Time::NEVER, |(at, _)| *at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_expire_in_order_unless_cancelled() {
        let at = Time::from_nanos;
        let mut timers = Timers::default();
        for (time, token) in [(30, 1), (10, 2), (20, 1), (20, 3)] {
            timers.add(at(time), Token(token));
        }
        timers.cancel(at(20), Token(1));
        timers.cancel(at(40), Token(1));
        assert_eq!(timers.due(at(9)), None);
        assert_eq!(timers.due(at(25)), Some(Token(2)));
        assert_eq!((timers.next(), timers.due(at(25))), (at(20), Some(Token(3))));
        assert_eq!((timers.next(), timers.due(at(25))), (at(30), None));
        assert_eq!(timers.due(at(30)), Some(Token(1)));
        assert_eq!((timers.next(), timers.due(at(30))), (Time::NEVER, None));
    }
}

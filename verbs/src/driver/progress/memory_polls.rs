//! Detects programs that poll memory for a Write of the peer, and their completion queue only
//! between two Writes.
//!
//! Such a program drives the shard with its polls, so the background thread stays on standby. But
//! an arrival then waits for the timer of the standby, because the program makes no call until the
//! bytes are in its memory.
//!
//! At the ends of some of its timers, and as the owner if the program polls without making a round, the
//! background thread checks whether an arrival stays unserved although the thread that polled last
//! is running. If so, it becomes the owner despite the poll hint, with a higher priority if it is
//! allowed to have one. It stays the owner until a check, or a time without arrivals, shows that
//! polls serve the arrivals.

use super::super::os::Instant;
use super::RECENT;

/// Maximum number of arrivals of which the background thread, as the owner, checks one. A check
/// delays its arrival, so checks become rare while they confirm the assumption.
pub(super) const ARRIVALS_PER_CHECK: u32 = 4096;

/// Assumption about the programs of a shard.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Assumption {
    /// They poll their queues, or not at all.
    #[default]
    PollQueues,
    /// The last check found an unserved arrival. The next arrival is checked.
    MayPollMemory,
    PollMemory,
}

/// Observations of the background thread about the programs of its shard.
#[derive(Default)]
pub(super) struct MemoryPolls {
    assumption: Assumption,
    /// Number of arrivals since the last check.
    arrivals: u32,
    /// Number of arrivals after which one is checked.
    per_check: u32,
    /// Time of the last arrival since the programs are assumed to poll memory. Until there was one,
    /// the time from which they are assumed to do so.
    pub(super) last_arrival: Option<Instant>,
}

impl MemoryPolls {
    /// Returns whether the programs are assumed to poll memory.
    pub(super) fn are_likely(&self) -> bool {
        self.assumption == Assumption::PollMemory
    }

    /// Returns the time until which an arrival of programs that are assumed to poll memory is
    /// expected. Without one, polls are assumed to serve the arrivals.
    pub(super) fn end(&mut self) -> Option<Instant> {
        let last = self.are_likely().then(|| *self.last_arrival.get_or_insert_with(Instant::now));
        last.map(|last| last + RECENT)
    }

    /// Records the result of a check. If the thread that polled last is not running, the check
    /// counts as one without an unserved arrival, so that checks do not delay arrivals repeatedly.
    pub(super) fn observe(&mut self, unserved: bool) {
        let before = self.assumption;
        self.assumption = match (before, unserved) {
            (_, false) => Assumption::PollQueues,
            (Assumption::PollQueues, true) => Assumption::MayPollMemory,
            (Assumption::MayPollMemory | Assumption::PollMemory, true) => Assumption::PollMemory,
        };
        self.arrivals = 0;
        let confirmed = self.assumption == before;
        self.per_check =
            if confirmed { (self.per_check * 2).clamp(1, ARRIVALS_PER_CHECK) } else { 1 };
        if !unserved {
            self.last_arrival = None;
        }
    }

    /// Counts an arrival that the background thread has found, as the owner or at the end of a timer.
    /// Returns whether to check it; at least one of `most` arrivals is checked. `polled` is true if
    /// the program may poll memory: it has polled without making a round, or polls between arrivals.
    pub(super) fn is_to_be_checked(&mut self, polled: bool, most: u32) -> bool {
        if !polled && !self.are_likely() {
            return false;
        }
        self.arrivals += 1;
        self.arrivals >= self.per_check.min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_poller_detected_after_unserved_arrivals() {
        let mut polls = MemoryPolls::default();
        for unserved in [true, false, true, false] {
            polls.observe(unserved);
            assert!(!polls.are_likely());
        }
        (0..1000).for_each(|_| polls.observe(true));
        assert!(polls.are_likely());
        polls.observe(false);
        assert!(!polls.are_likely());
    }

    #[test]
    fn confirmed_checks_stay_within_limit() {
        let mut polls = MemoryPolls::default();
        (0..100).for_each(|_| polls.observe(false));
        assert_eq!((1..100).find(|_| polls.is_to_be_checked(true, 10)), Some(10));
    }

    /// Simulates `arrivals`, each with the result `unserved` if it is checked, and returns the
    /// number of checks.
    fn checked(polls: &mut MemoryPolls, arrivals: u32, unserved: bool) -> usize {
        let is_checked = |_: &u32| {
            let checked = polls.is_to_be_checked(true, ARRIVALS_PER_CHECK);
            if checked {
                polls.observe(unserved);
            }
            checked
        };
        (0..arrivals).filter(is_checked).count()
    }

    #[test]
    fn checks_rare_for_memory_pollers() {
        let mut polls = MemoryPolls::default();
        assert!((0..1000).all(|_| !polls.is_to_be_checked(false, ARRIVALS_PER_CHECK)));
        assert!(checked(&mut polls, 4 * ARRIVALS_PER_CHECK, false) <= 17);
        // After the first unserved arrival, the next one is checked at once.
        polls.observe(true);
        assert_eq!(checked(&mut polls, 1, true), 1);
        assert!(polls.are_likely());
        assert!(checked(&mut polls, 4 * ARRIVALS_PER_CHECK, true) <= 17);
        assert_eq!(checked(&mut polls, 2 * ARRIVALS_PER_CHECK, true), 2);
    }
}

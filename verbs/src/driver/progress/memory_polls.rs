//! Programs that poll memory for a peer's Write, and the completion queue only between two Writes.
//!
//! Such a program drives the shard at its polls, so the background thread stays on standby; but an
//! arrival then waits for the timer of that standby, as the program makes no call until the bytes
//! are in its memory. At the ends of its timers, and where it is the owner and the program polls
//! without a round, the background thread checks whether an arrival stays unserved although the
//! thread that polled last runs. If so, it becomes the owner in spite of the poll hint, at a higher
//! priority where it may have one, until a check, or a time without an arrival, shows that polls
//! serve the arrivals.

use super::super::os::Instant;
use std::time::Duration;

/// Processor time in which a thread that polls a completion queue repeatedly has polled it, also
/// where it handles a request between. Wall-clock time does not count: a thread that polls all the
/// time may have been preempted.
pub(super) const UNSERVED: Duration = Duration::from_micros(150);
/// Sleeps of a check, each of this length, after which it ends: the thread that polled last does
/// not run.
pub(super) const SLEEPS: usize = 8;
pub(super) const SLEEP: Duration = Duration::from_micros(20);
/// Time without arrivals left to the background thread after which polls serve them.
const SERVED_BY_POLLS: Duration = Duration::from_millis(10);

/// Checks in succession that find an unserved arrival, after which the program is taken for one
/// that polls memory.
const ENOUGH: u8 = 2;
/// Number of arrivals of which the background thread, as the owner, checks one, which is served
/// later than others: of those of programs that are taken for ones that poll memory, and of others
/// that polled without a round. The latter doubles with each check that finds no unserved arrival.
const ARRIVALS_PER_CHECK: u32 = 512;
const OTHERS_PER_CHECK: u32 = 16;
const MAX_OTHERS_PER_CHECK: u32 = 1 << 14;

/// Observations of the background thread about the programs of its shard.
pub(super) struct MemoryPolls {
    /// Checks in succession that found an unserved arrival.
    unserved: u8,
    /// Arrivals since the last check.
    arrivals: u32,
    others_per_check: u32,
    /// Since the programs are taken for ones that poll memory; before the first one the time of
    /// that.
    pub(super) last_arrival: Option<Instant>,
}

impl Default for MemoryPolls {
    fn default() -> Self {
        Self { unserved: 0, arrivals: 0, others_per_check: OTHERS_PER_CHECK, last_arrival: None }
    }
}

impl MemoryPolls {
    /// Returns whether the programs are taken for ones that poll memory.
    pub(super) fn are_likely(&self) -> bool {
        self.unserved >= ENOUGH
    }

    /// Returns the time until which an arrival is awaited, of programs that are taken for ones that
    /// poll memory: without one polls serve them.
    pub(super) fn end(&mut self) -> Option<Instant> {
        let last = self.are_likely().then(|| *self.last_arrival.get_or_insert_with(Instant::now));
        last.map(|last| last + SERVED_BY_POLLS)
    }

    /// The result of a check. One that finds nothing, as the thread that polled last does not run,
    /// is one that finds no unserved arrival: the checks may not make arrivals wait repeatedly.
    pub(super) fn observe(&mut self, unserved: bool) {
        self.arrivals = 0;
        if unserved {
            self.unserved = (self.unserved + 1).min(ENOUGH);
            self.others_per_check = OTHERS_PER_CHECK;
        } else {
            self.unserved = 0;
            self.last_arrival = None;
            self.others_per_check = (self.others_per_check * 2).min(MAX_OTHERS_PER_CHECK);
        }
    }

    /// Counts an arrival for the background thread as the owner; whether it is one to be checked.
    /// `polled`: the program has polled, but made no round.
    pub(super) fn is_to_be_checked(&mut self, polled: bool) -> bool {
        if !polled && !self.are_likely() {
            return false;
        }
        self.arrivals += 1;
        let most = match self.unserved {
            0 => self.others_per_check,
            ENOUGH => ARRIVALS_PER_CHECK,
            _ => 0,
        };
        self.arrivals >= most
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

    /// Returns the number of `arrivals` that are checked, each with this result.
    fn checked(polls: &mut MemoryPolls, arrivals: u32, unserved: bool) -> usize {
        let is_checked = |_: &u32| {
            let checked = polls.is_to_be_checked(true);
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
        assert!((0..1000).all(|_| !polls.is_to_be_checked(false)));
        assert_eq!(checked(&mut polls, 3 * OTHERS_PER_CHECK, false), 2);
        assert!(checked(&mut polls, 4 * MAX_OTHERS_PER_CHECK, false) < 16);
        // A first unserved one is followed by another check at once.
        polls.observe(true);
        assert_eq!(checked(&mut polls, 1, true), 1);
        assert!(polls.are_likely());
        assert_eq!(checked(&mut polls, 2 * ARRIVALS_PER_CHECK, true), 2);
    }
}

//! Detects programs that poll memory for a Write of the peer, and their completion queue only
//! between two Writes.
//!
//! Such a program drives the shard with its polls, so the background thread stays on standby. But
//! an arrival then waits for the timer of the standby, because the program makes no call until the
//! bytes are in its memory.
//!
//! At the ends of its timers, and as the owner if the program polls without making a round, the
//! background thread checks whether an arrival stays unserved although the thread that polled last
//! is running. If so, it becomes the owner despite the poll hint, with a higher priority if it is
//! allowed to have one. It stays the owner until a check, or a time without arrivals, shows that
//! polls serve the arrivals.

use super::super::os::Instant;
use std::time::Duration;

/// Processor time within which a thread that polls a completion queue continuously polls it again,
/// even if it handles a request in between. Wall-clock time does not count, because the thread may
/// have been preempted.
pub(super) const UNSERVED: Duration = Duration::from_micros(150);
/// Number of pauses of a check. After them the check ends, because the thread that polled last is
/// not running.
pub(super) const SLEEPS: usize = 8;
/// Duration of each pause of a check.
pub(super) const SLEEP: Duration = Duration::from_micros(20);
/// Time without arrivals for the background thread after which polls are assumed to serve them.
const SERVED_BY_POLLS: Duration = Duration::from_millis(10);

/// Number of consecutive checks with an unserved arrival after which the program is assumed to poll
/// memory.
const ENOUGH: u8 = 2;
/// Number of arrivals of which the background thread, as the owner, checks one if the programs are
/// assumed to poll memory. A check delays its arrival.
const ARRIVALS_PER_CHECK: u32 = 512;
/// Like [`ARRIVALS_PER_CHECK`], but the initial number for other programs that polled without
/// making a round. It doubles with each check that finds no unserved arrival.
const OTHERS_PER_CHECK: u32 = 16;
/// Maximum to which [`OTHERS_PER_CHECK`] doubles.
const MAX_OTHERS_PER_CHECK: u32 = 1 << 14;

/// Observations of the background thread about the programs of its shard.
pub(super) struct MemoryPolls {
    /// Number of consecutive checks that found an unserved arrival.
    unserved: u8,
    /// Number of arrivals since the last check.
    arrivals: u32,
    others_per_check: u32,
    /// Time of the last arrival since the programs are assumed to poll memory. Until there was one,
    /// the time from which they are assumed to do so.
    pub(super) last_arrival: Option<Instant>,
}

impl Default for MemoryPolls {
    fn default() -> Self {
        Self { unserved: 0, arrivals: 0, others_per_check: OTHERS_PER_CHECK, last_arrival: None }
    }
}

impl MemoryPolls {
    /// Returns whether the programs are assumed to poll memory.
    pub(super) fn are_likely(&self) -> bool {
        self.unserved >= ENOUGH
    }

    /// Returns the time until which an arrival of programs that are assumed to poll memory is
    /// expected. Without one, polls are assumed to serve the arrivals.
    pub(super) fn end(&mut self) -> Option<Instant> {
        let last = self.are_likely().then(|| *self.last_arrival.get_or_insert_with(Instant::now));
        last.map(|last| last + SERVED_BY_POLLS)
    }

    /// Records the result of a check. If the thread that polled last is not running, the check
    /// counts as one without an unserved arrival, so that checks do not delay arrivals repeatedly.
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

    /// Counts an arrival for the background thread as the owner. Returns whether to check it.
    /// `polled` is true if the program has polled without making a round.
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

    /// Simulates `arrivals`, each with the result `unserved` if it is checked, and returns the
    /// number of checks.
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
        // After the first unserved arrival, the next one is checked at once.
        polls.observe(true);
        assert_eq!(checked(&mut polls, 1, true), 1);
        assert!(polls.are_likely());
        assert_eq!(checked(&mut polls, 2 * ARRIVALS_PER_CHECK, true), 2);
    }
}

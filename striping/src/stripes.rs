//! The life of one stripe: up, dying, down, joining.

use crate::wire::Reason;
use core::time::Duration;

/// The pause before an attempt to join, after the first failure; each further one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A stripe that was up for so long was of use.
const USEFUL_AFTER: Duration = Duration::from_secs(10);

/// Why a stripe did not join.
///
/// ```
/// use core::time::Duration;
/// use uiw_striping::wire::Reason;
/// use uiw_striping::{Config, End, Endpoint, JoinFailure, Role};
/// let (zero, later) = (Duration::ZERO, Duration::from_secs(1));
/// let mut end = Endpoint::<()>::new(Role::Initiator, Config::default());
/// end.died(1, zero);
/// end.poll_action(zero);
/// end.drained(1, zero);
/// // A first attempt fails, and the peer refuses the second one.
/// assert!(end.poll_action(later).is_some());
/// end.join_failed(1, JoinFailure::Retry, later);
/// assert_eq!(end.ended(), None);
/// assert!(end.poll_action(later + later).is_some());
/// end.join_failed(1, JoinFailure::Rejected(Reason::Unknown), later + later);
/// assert_eq!(end.ended(), Some(End::Rejected(Reason::Unknown)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinFailure {
    /// The attempt failed: the next one may succeed.
    Retry,
    /// The peer does not let it join.
    Rejected(Reason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its connection is established.
    Up,
    /// Its queue pair is not drained yet.
    Dying,
    /// It has no connection.
    Down,
    /// Its connection is in set-up.
    Joining,
}

/// No request was placed since a stripe died that had some.
#[derive(Debug)]
pub(crate) struct Stall {
    /// The first death.
    pub(crate) since: Duration,
    /// How often a stripe was replaced since.
    pub(crate) attempts: u32,
}

#[derive(Debug)]
pub(crate) struct Stripe {
    pub(crate) phase: Phase,
    /// Of the last connection, also one in set-up; at the acceptor, of the last Request.
    pub(crate) generation: u32,
    /// A Request of [`Stripe::generation`] waits for its answer.
    pub(crate) is_offered: bool,
    /// It has placed a request since it was up.
    pub(crate) has_placed: bool,
    /// It had requests under way when it died last.
    pub(crate) had_requests: bool,
    up_since: Duration,
    /// Its first death since it was last of use.
    died: Option<Duration>,
    /// How often it was replaced since.
    pub(crate) replaced: u32,
    failures: u32,
    /// When the initiator may try to join.
    pub(crate) retry_at: Duration,
}

impl Stripe {
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Up,
            generation: 0,
            is_offered: false,
            has_placed: false,
            had_requests: false,
            up_since: Duration::ZERO,
            died: None,
            replaced: 0,
            failures: 0,
            retry_at: Duration::ZERO,
        }
    }

    /// Its connection has ended, or must end.
    pub(crate) fn die(&mut self, now: Duration) {
        if self.phase == Phase::Up {
            if self.has_placed || now.saturating_sub(self.up_since) >= USEFUL_AFTER {
                (self.died, self.replaced, self.failures) = (None, 0, 0);
            } else {
                self.failures += 1;
            }
        }
        self.died.get_or_insert(now);
        self.phase = Phase::Dying;
    }

    /// It has no connection any more.
    pub(crate) fn go_down(&mut self, now: Duration) {
        self.phase = Phase::Down;
        self.retry_at = now + self.pause();
    }

    /// An attempt to join failed.
    pub(crate) fn fail_to_join(&mut self, now: Duration) {
        self.failures += 1;
        self.go_down(now);
    }

    pub(crate) fn go_up(&mut self, now: Duration) {
        self.phase = Phase::Up;
        self.replaced = self.replaced.saturating_add(1);
        self.up_since = now;
        (self.has_placed, self.had_requests) = (false, false);
    }

    fn pause(&self) -> Duration {
        match self.failures {
            0 => Duration::ZERO,
            failures => (FIRST_PAUSE * (1 << (failures - 1).min(8))).min(LONGEST_PAUSE),
        }
    }

    /// When it has been dead for too long.
    pub(crate) fn deadline(&self, stall: Option<&Stall>, limit: Duration) -> Option<Duration> {
        self.lost_since(stall).map(|since| since.saturating_add(limit))
    }

    /// Since when it is of no use, where it is not up.
    pub(crate) fn lost_since(&self, stall: Option<&Stall>) -> Option<Duration> {
        if self.phase == Phase::Up {
            return None;
        }
        // One that is up for long after each replacement, and never places what it was replaced for, is of no use either.
        let stalled = stall.filter(|_| self.had_requests).map(|stall| stall.since);
        stalled.into_iter().chain(self.died).min()
    }
}

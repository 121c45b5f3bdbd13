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

#[derive(Debug)]
pub(crate) struct Stripe {
    pub(crate) phase: Phase,
    /// Of the last connection, also one in set-up; at the acceptor, of the last Request.
    pub(crate) generation: u32,
    /// A Request of [`Stripe::generation`] waits for its answer.
    pub(crate) is_offered: bool,
    /// It has placed a request since it was up.
    pub(crate) has_placed: bool,
    up_since: Duration,
    /// Its first death since it was last of use.
    died: Option<Duration>,
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
            up_since: Duration::ZERO,
            died: None,
            failures: 0,
            retry_at: Duration::ZERO,
        }
    }

    /// Its connection has ended, or must end.
    pub(crate) fn die(&mut self, now: Duration) {
        if self.phase == Phase::Up {
            if self.has_placed || now.saturating_sub(self.up_since) >= USEFUL_AFTER {
                (self.died, self.failures) = (None, 0);
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
        self.up_since = now;
        self.has_placed = false;
    }

    fn pause(&self) -> Duration {
        match self.failures {
            0 => Duration::ZERO,
            failures => (FIRST_PAUSE * (1 << (failures - 1).min(8))).min(LONGEST_PAUSE),
        }
    }

    /// When it has been dead for too long.
    pub(crate) fn deadline(&self, limit: Duration) -> Option<Duration> {
        match (self.phase, self.died) {
            (Phase::Up, _) | (_, None) => None,
            (_, Some(died)) => Some(died.saturating_add(limit)),
        }
    }
}

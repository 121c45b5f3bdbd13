//! State of a queue pair from RTR on, until it is reset or destroyed.

use super::{RetryPolicy, Target};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use uiw_verbs::cm::ConnId;

/// Time for which the listening end waits before it connects as well.
const RESPONDER_DELAY: Duration = Duration::from_secs(1);
/// Time for which a message of an unreliable queue pair waits for a peer that could not be reached
/// before.
const UNREACHABLE_TIMEOUT: Duration = Duration::from_millis(500);
/// Time between the first two attempts. It doubles with each attempt, up to [`MAX_RETRY`].
const RETRY: Duration = Duration::from_millis(20);
/// Maximum time between two attempts.
const MAX_RETRY: Duration = Duration::from_millis(500);

/// State of a queue pair in RTR or RTS. `Worker::forget` removes the state, and with it the
/// reference to the engine's queue pair.
pub(super) type Pair = Mutex<Option<PairState>>;

pub(super) struct PairState {
    pub(super) qp: Arc<uiw_verbs::Qp>,
    /// True while the next post has to start the time-out of the connection.
    pub(super) connecting: Arc<AtomicBool>,
    pub(super) target: Target,
    pub(super) policy: RetryPolicy,
    pub(super) phase: Phase,
    /// Time of the next connection attempt, if no connection was accepted before.
    pub(super) next_attempt: Option<Instant>,
    retry: Duration,
    /// Time at which the connection fails. Set after something was posted.
    pub(super) deadline: Option<Instant>,
    /// True if the peer has disconnected or has not connected in time. Messages of an unreliable
    /// queue pair then wait only briefly for another connection.
    pub(super) unreachable: bool,
    /// Error of the last attempt to connect.
    pub(super) last_failure: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Connecting(ConnId),
    Accepting(ConnId),
    Established(ConnId),
}

impl Phase {
    /// Returns the connection, if there is one.
    pub(super) fn conn(self) -> Option<ConnId> {
        match self {
            Self::Waiting => None,
            Self::Connecting(conn) | Self::Accepting(conn) | Self::Established(conn) => Some(conn),
        }
    }
}

impl PairState {
    /// Creates the state of a queue pair that has just entered RTR.
    pub(super) fn new(
        qp: &Arc<uiw_verbs::Qp>,
        connecting: &Arc<AtomicBool>,
        target: Target,
    ) -> Self {
        let delay = if target.initiates() { Duration::ZERO } else { RESPONDER_DELAY };
        Self {
            qp: Arc::clone(qp),
            connecting: Arc::clone(connecting),
            target,
            policy: RetryPolicy::UNLIMITED,
            phase: Phase::Waiting,
            next_attempt: Some(Instant::now() + delay),
            retry: RETRY,
            deadline: None,
            unreachable: false,
            last_failure: None,
        }
    }

    /// Returns the time for which a new request waits for a connection, or `None` if it waits
    /// without limit.
    pub(super) fn connection_timeout(&self) -> Option<Duration> {
        if self.target.unreliable && self.unreachable {
            Some(UNREACHABLE_TIMEOUT)
        } else {
            self.policy.connection
        }
    }

    /// Schedules another attempt, with increasing delays.
    pub(super) fn retry_later(&mut self) {
        self.phase = Phase::Waiting;
        self.next_attempt = Some(Instant::now() + self.retry);
        self.retry = (self.retry * 2).min(MAX_RETRY);
    }
}

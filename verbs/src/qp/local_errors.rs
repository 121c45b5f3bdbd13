//! Errors of a queue pair's own requests and receives, as the log names them.

use crate::qp::{RecvWqe, Wqe};
use parking_lot::Mutex;
use std::fmt;
use std::time::{Duration, Instant};

/// Minimum time between two log lines of one queue pair about the same cause.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Cause of a local error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalCause {
    /// Memory is not registered for the use.
    Protection,
    /// A message is too long for its receive, or for a datagram.
    Length,
    /// An STag cannot be bound, registered or invalidated.
    Stag,
    /// The peer lacks an extension, or a destination cannot be reached.
    Unsupported,
    /// Anything else that ends a connection from within.
    Other,
    /// The peer refused a request.
    Remote,
}

impl LocalCause {
    const COUNT: usize = Self::Remote as usize + 1;
}

/// Time of the last log line for each cause.
#[derive(Default)]
pub(crate) struct LogLimit(Mutex<[Option<Instant>; LocalCause::COUNT]>);

impl LogLimit {
    /// Returns whether a line about `cause` may be logged now. If so, it is counted.
    pub(crate) fn permits(&self, cause: LocalCause) -> bool {
        let now = Instant::now();
        let last = &mut self.0.lock()[cause as usize];
        let permits = last.is_none_or(|last| now.duration_since(last) >= LOG_INTERVAL);
        if permits {
            *last = Some(now);
        }
        permits
    }
}

/// Description of a local error: the request or receive, its value, and the limit.
#[derive(Debug)]
pub(crate) struct LocalDetail {
    pub(crate) cause: LocalCause,
    text: String,
}

impl fmt::Display for LocalDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl LocalDetail {
    /// Creates an error that belongs to no request.
    #[cold]
    pub(crate) fn other(text: impl fmt::Display) -> Self {
        Self { cause: LocalCause::Other, text: text.to_string() }
    }

    /// Creates an error of a request.
    #[cold]
    pub(crate) fn of_request(wqe: &Wqe, cause: LocalCause, text: impl fmt::Display) -> Self {
        Self { cause, text: format!("request wr_id {} ({:?}): {text}", wqe.wr_id, wqe.opcode()) }
    }

    /// Creates an error of a receive.
    #[cold]
    pub(crate) fn of_receive(wqe: &RecvWqe, cause: LocalCause, text: impl fmt::Display) -> Self {
        Self { cause, text: format!("receive wr_id {}: {text}", wqe.wr_id) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_cause_and_second() {
        let limit = LogLimit::default();
        assert!(limit.permits(LocalCause::Protection));
        assert!(!limit.permits(LocalCause::Protection));
        assert!(limit.permits(LocalCause::Length));
        limit.0.lock()[LocalCause::Protection as usize] = Instant::now().checked_sub(LOG_INTERVAL);
        assert!(limit.permits(LocalCause::Protection));
        assert!(!limit.permits(LocalCause::Protection));
    }
}

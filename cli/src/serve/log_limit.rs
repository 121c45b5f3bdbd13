//! Bound for the lines that connections log, as any host may connect as often as it likes.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Connections that are logged at once at most, after a time without many.
const BURST: u32 = 1000;
/// Time after which one more connection may be logged.
const EACH: Duration = Duration::from_millis(100);

/// Decides which connections are logged: all of them, unless there are more than ten a second.
#[derive(Debug)]
pub(super) struct LogLimit(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Connections that may be logged, and when this number was right.
    left: u32,
    since: Instant,
    /// Connections that were not logged since the last one that was.
    silent: u64,
}

impl LogLimit {
    pub(super) fn new(now: Instant) -> Self {
        Self(Mutex::new(State { left: BURST, since: now, silent: 0 }))
    }

    /// Returns whether a connection is logged, with the number of those before it that were not.
    pub(super) fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gained = now.saturating_duration_since(state.since).as_millis() / EACH.as_millis();
        let gained = u32::try_from(gained).unwrap_or(u32::MAX);
        if gained >= BURST - state.left {
            (state.left, state.since) = (BURST, now);
        } else {
            state.left += gained;
            state.since += EACH * gained;
        }
        if state.left == 0 {
            state.silent += 1;
            return None;
        }
        state.left -= 1;
        Some(std::mem::take(&mut state.silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_of_connections_logged_in_part() {
        let start = Instant::now();
        let limit = LogLimit::new(start);
        let logged = |at: Duration, count: usize| {
            (0..count).filter_map(|_| limit.admit(start + at)).collect::<Vec<_>>()
        };
        assert_eq!(logged(Duration::ZERO, 5000), vec![0; BURST as usize]);
        let mut next = logged(Duration::from_millis(350), 1000);
        assert_eq!(next, [4000, 0, 0]);
        next = logged(Duration::from_millis(400), 10);
        assert_eq!(next, [997]);
        // A day later.
        assert_eq!(logged(Duration::from_secs(86_400), 5000).len(), BURST as usize);
    }
}

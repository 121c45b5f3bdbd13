//! Time limits of tests.

use std::time::{Duration, Instant};

/// Maximum time that counts between two checks.
const LONGEST_STEP: Duration = Duration::from_secs(1);

/// Time that a test may still wait. It decreases by the time between checks, at most by a second
/// for each: a virtual machine may stand still for minutes, together with the program that the test
/// waits for.
#[derive(Debug)]
pub struct WaitLimit {
    left: Duration,
    looked: Instant,
}

impl WaitLimit {
    /// Creates a limit of `time`, from now on.
    pub fn new(time: Duration) -> Self {
        Self { left: time, looked: Instant::now() }
    }

    /// Returns whether the time is used up.
    pub fn is_over(&mut self) -> bool {
        let now = Instant::now();
        self.left = self.left.saturating_sub((now - self.looked).min(LONGEST_STEP));
        self.looked = now;
        self.left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_machine_costs_one_step() {
        let mut limit = WaitLimit::new(Duration::from_secs(3));
        for _ in 0..2 {
            limit.looked -= Duration::from_secs(600);
            assert!(!limit.is_over());
        }
        limit.looked -= Duration::from_secs(600);
        assert!(limit.is_over());
    }
}

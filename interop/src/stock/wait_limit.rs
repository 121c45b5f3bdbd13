//! Time limits of tests.

use std::time::{Duration, Instant};

/// Looks that are farther apart than this count as so far apart.
const LONGEST_STEP: Duration = Duration::from_secs(1);

/// Time that a test may still wait. It shrinks by the time between looks, and by a second at most:
/// a virtual machine may stand still for minutes, and what the test waits for has stood still with
/// it.
#[derive(Debug)]
pub struct WaitLimit {
    left: Duration,
    looked: Instant,
}

impl WaitLimit {
    /// `time`, from now on.
    pub fn new(time: Duration) -> Self {
        Self { left: time, looked: Instant::now() }
    }

    /// Looks whether it is used up.
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

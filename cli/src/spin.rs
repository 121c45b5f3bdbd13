//! How polling threads wait: uiw and raw TCP, which it is compared with, do it in the same way.

use std::thread;
use std::time::{Duration, Instant};

/// Polls that find nothing before a spinning thread lets others have its core. `llp/examples/bare.rs` has the same.
const SPINS: u32 = 2000;
/// Nothing that is measured takes longer: the peer that requested the spinning was stopped.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Between two polls then: a server's thousand clients that say nothing are not to take its processors.
const NAP: Duration = Duration::from_millis(20);

/// Counts the polls of one wait that found nothing.
#[derive(Default)]
pub(crate) struct Spin {
    empty: u32,
    /// When it began to let others have the core.
    since: Option<Instant>,
}

impl Spin {
    /// A poll found nothing: spins, from the 2,000th on lets others have the core, and after a second sleeps in between. Returns how long
    /// the wait has lasted, from the 2,000th on.
    pub(crate) fn empty(&mut self) -> Duration {
        if self.empty < SPINS {
            self.empty += 1;
            std::hint::spin_loop();
            return Duration::ZERO;
        }
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        if waited < TIMEOUT {
            thread::yield_now();
        } else {
            thread::sleep(NAP);
        }
        waited
    }
}

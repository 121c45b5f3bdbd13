//! Clocks.
//!
//! The system's clocks are read through libc. rustix would look for the vDSO by itself, and crashes
//! under valgrind, which hides the vDSO.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Returns the time of the system's monotonic clock, in nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

/// Returns the processor time that this process has used, in nanoseconds.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    read_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec of this function, valid for writes during the call.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Clock of the system, or a clock that advances only by explicit calls. Clones share the same
/// clock.
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Arc<VirtualClock>>);

#[derive(Debug)]
struct VirtualClock {
    base: Instant,
    nanos: AtomicU64,
}

impl Clock {
    /// Returns the clock of the system.
    #[must_use]
    pub fn system() -> Self {
        Self(None)
    }

    /// Returns a clock that stands still until [`Clock::advance`] is called.
    #[must_use]
    pub fn virtual_time() -> Self {
        Self(Some(Arc::new(VirtualClock { base: Instant::now(), nanos: AtomicU64::new(0) })))
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.0 {
            None => Instant::now(),
            Some(clock) => clock.base + Duration::from_nanos(clock.nanos.load(Ordering::SeqCst)),
        }
    }

    /// Returns whether this is not the clock of the system.
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        self.0.is_some()
    }

    /// Advances a virtual clock. The system's clock is not affected.
    pub fn advance(&self, by: Duration) {
        if let Some(clock) = &self.0 {
            let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            clock.nanos.fetch_add(nanos, Ordering::SeqCst);
        }
    }
}

//! Clocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The system's clock, or one that moves only by explicit calls. A clone is the same clock.
///
/// ```
/// use std::time::Duration;
/// use uiw_llp::Clock;
/// let clock = Clock::virtual_time();
/// let (start, same) = (clock.now(), clock.clone());
/// same.advance(Duration::from_secs(3600));
/// assert_eq!(clock.now() - start, Duration::from_secs(3600));
/// assert!(!Clock::system().is_virtual());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Arc<Virtual>>);

#[derive(Debug)]
struct Virtual {
    base: Instant,
    nanos: AtomicU64,
}

impl Clock {
    /// The system's.
    #[must_use]
    pub fn system() -> Self {
        Self(None)
    }

    /// One that stands still until [`Clock::advance`].
    #[must_use]
    pub fn virtual_time() -> Self {
        Self(Some(Arc::new(Virtual { base: Instant::now(), nanos: AtomicU64::new(0) })))
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.0 {
            None => Instant::now(),
            Some(clock) => clock.base + Duration::from_nanos(clock.nanos.load(Ordering::SeqCst)),
        }
    }

    /// Whether it is none of the system's.
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        self.0.is_some()
    }

    /// Moves a virtual clock; the system's goes by itself.
    pub fn advance(&self, by: Duration) {
        if let Some(clock) = &self.0 {
            let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            clock.nanos.fetch_add(nanos, Ordering::SeqCst);
        }
    }
}

//! How polling threads wait: uiw and raw TCP, which it is compared with, do it in the same way.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Polls that find nothing before a spinning thread lets others have its core.
/// `llp/examples/bare.rs` has the same.
const SPINS: u32 = 2000;
/// Nothing that is measured takes longer: the peer that requested the spinning was stopped.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Between two polls then: a server's thousand clients that say nothing are not to take its
/// processors.
const NAP: Duration = Duration::from_millis(20);
/// The first of these times.
const SHORT_NAP: Duration = Duration::from_millis(1);

/// Permits to spin, of all threads of the process. Without [`limit`] there is no end of them.
static PERMITS: SpinPermits = SpinPermits::new(usize::MAX);

/// Leaves one of the processors to threads that do not spin: for a server, whose peers request the
/// spinning.
pub(crate) fn limit() {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    PERMITS.most.store((processors - 1).max(1), Ordering::Relaxed);
}

struct SpinPermits {
    most: AtomicUsize,
    taken: AtomicUsize,
    /// Somebody wants a permit: a wait that has lasted gives up its own.
    wanted: AtomicBool,
}

/// The right to spin, until it is dropped.
struct SpinPermit(&'static SpinPermits);

impl SpinPermits {
    const fn new(most: usize) -> Self {
        Self { most: AtomicUsize::new(most), taken: AtomicUsize::new(0), wanted: AtomicBool::new(false) }
    }

    fn take(&'static self) -> Option<SpinPermit> {
        let most = self.most.load(Ordering::Relaxed);
        let more = |taken| (taken < most).then_some(taken + 1);
        let is_taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if !is_taken {
            self.wanted.store(true, Ordering::Relaxed);
        }
        is_taken.then(|| SpinPermit(self))
    }
}

impl Drop for SpinPermit {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts the polls of one wait that found nothing.
pub(crate) struct Spin {
    empty: u32,
    /// When it began to let others have the core.
    since: Option<Instant>,
    /// The next time that it sleeps without a permit.
    nap: Duration,
    permits: &'static SpinPermits,
    permit: Option<SpinPermit>,
}

impl Default for Spin {
    fn default() -> Self {
        Self::new(&PERMITS)
    }
}

impl Spin {
    fn new(permits: &'static SpinPermits) -> Self {
        Self { empty: 0, since: None, nap: SHORT_NAP, permits, permit: permits.take() }
    }

    /// Returns whether this thread may spin; otherwise as many others do as may, and
    /// [`Spin::empty`] sleeps.
    pub(crate) fn is_permitted(&self) -> bool {
        self.permit.is_some()
    }

    /// A poll found something: another wait begins.
    pub(crate) fn restart(&mut self) {
        self.empty = 0;
        self.since = None;
        self.nap = SHORT_NAP;
        if self.permit.is_none() {
            self.permit = self.permits.take();
        }
    }

    /// A poll found nothing: spins, from the 2,000th on lets others have the core, and after a
    /// second, or without a permit, sleeps in between. Returns how long the wait has lasted, from
    /// the 2,000th on.
    pub(crate) fn empty(&mut self) -> Duration {
        if self.empty < SPINS && self.is_permitted() {
            self.empty += 1;
            std::hint::spin_loop();
            return Duration::ZERO;
        }
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        let gives_way = waited >= TIMEOUT || self.permits.wanted.load(Ordering::Relaxed);
        if self.permit.is_some() && !gives_way {
            thread::yield_now();
            return waited;
        }
        if self.permit.take().is_some() {
            self.permits.wanted.store(false, Ordering::Relaxed);
        }
        thread::sleep(self.nap);
        self.nap = (self.nap * 2).min(NAP);
        waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_to_spin_are_bounded() {
        static PERMITS: SpinPermits = SpinPermits::new(2);
        let mut waits: Vec<_> = (0..512).map(|_| Spin::new(&PERMITS)).collect();
        let spinning = |waits: &[Spin]| waits.iter().filter(|wait| wait.is_permitted()).count();
        assert_eq!(spinning(&waits), 2);
        assert_eq!(waits[0].empty(), Duration::ZERO);
        let before = Instant::now();
        let _ = waits[2].empty();
        assert!(before.elapsed() >= SHORT_NAP, "it did not sleep");
        waits[0].restart();
        assert_eq!(spinning(&waits), 2);
        // A wait that lasts gives way to others.
        waits[0].empty = SPINS;
        let _ = waits[0].empty();
        assert!(!waits[0].is_permitted());
        waits[2].restart();
        waits[3].restart();
        assert!(waits[2].is_permitted() && !waits[3].is_permitted());
        drop(waits);
        assert_eq!(PERMITS.taken.load(Ordering::Relaxed), 0);
    }
}

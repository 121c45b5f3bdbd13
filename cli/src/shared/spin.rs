//! Waiting of polling threads. uiw and the raw TCP that it is compared with use the same code.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Number of empty polls after which a spinning thread yields its core. `llp/examples/bare.rs` uses
/// the same number.
const SPINS: u32 = 2000;
/// Time after which a spinning thread starts to sleep. No measured operation takes that long, so
/// the peer that requested the spinning has probably stopped.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Longest sleep between two polls. It prevents a thousand silent clients from using all processors
/// of a server.
const NAP: Duration = Duration::from_millis(20);
/// First and shortest sleep between two polls.
const SHORT_NAP: Duration = Duration::from_millis(1);

/// Permits to spin, for all threads of the process. Without [`limit_spinning`] their number is
/// unlimited.
static PERMITS: SpinPermits = SpinPermits::new(usize::MAX);

/// Reserves one processor for threads that do not spin. Servers call this, because their peers
/// request the spinning.
pub(crate) fn limit_spinning() {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    PERMITS.most.store((processors - 1).max(1), Ordering::Relaxed);
}

struct SpinPermits {
    most: AtomicUsize,
    taken: AtomicUsize,
    /// True if a thread waits for a permit. A thread that has polled [`SPINS`] times without
    /// success then gives up its own permit.
    wanted: AtomicBool,
}

/// Permission to spin, until dropped.
struct SpinPermit(&'static SpinPermits);

impl SpinPermits {
    const fn new(most: usize) -> Self {
        Self {
            most: AtomicUsize::new(most),
            taken: AtomicUsize::new(0),
            wanted: AtomicBool::new(false),
        }
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

/// Counter of empty polls during one wait.
pub(crate) struct Spin {
    empty: u32,
    /// Time when this thread began to yield its core.
    since: Option<Instant>,
    /// Duration of the next sleep.
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

    /// Returns whether this thread may spin. If not, other threads use all permits, and
    /// [`Spin::on_empty_poll`] sleeps.
    pub(crate) fn is_permitted(&self) -> bool {
        self.permit.is_some()
    }

    /// Begins another wait, after a poll that found something.
    pub(crate) fn restart(&mut self) {
        self.empty = 0;
        self.since = None;
        self.nap = SHORT_NAP;
        if self.permit.is_none() {
            self.permit = self.permits.take();
        }
    }

    /// Waits after a poll that found nothing. The first 2,000 times it spins, then it yields the
    /// core. It sleeps after a second, without a permit, or if another thread waits for the permit.
    /// Returns the duration of the wait since it stopped spinning.
    pub(crate) fn on_empty_poll(&mut self) -> Duration {
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
        assert_eq!(waits[0].on_empty_poll(), Duration::ZERO);
        let before = Instant::now();
        let _ = waits[2].on_empty_poll();
        assert!(before.elapsed() >= SHORT_NAP, "it did not sleep");
        waits[0].restart();
        assert_eq!(spinning(&waits), 2);
        // A long wait yields to others.
        waits[0].empty = SPINS;
        let _ = waits[0].on_empty_poll();
        assert!(!waits[0].is_permitted());
        waits[2].restart();
        waits[3].restart();
        assert!(waits[2].is_permitted() && !waits[3].is_permitted());
        drop(waits);
        assert_eq!(PERMITS.taken.load(Ordering::Relaxed), 0);
    }
}

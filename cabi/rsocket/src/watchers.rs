//! Threads and epoll sets that wait for a socket to change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use uiw_cabi_core::lock::Mutex;

/// Condition under which a look registers the task for the next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakerPolicy {
    /// Register if the answer is "not yet".
    Pending,
    /// Whatever its answer is: for edges.
    Always,
}

/// Watchers of one socket. The engine has one waker of a socket, which wakes all of them: what it
/// keeps does not grow with epoll sets that are made and closed, or to which the program adds the
/// socket repeatedly.
#[derive(Default)]
pub(crate) struct Watchers {
    wakers: Mutex<Vec<Waker>>,
    /// True if there are any, for a look without the lock; written with it.
    any: AtomicBool,
}

impl Watchers {
    /// `waker` is woken by the next change.
    pub(crate) fn add(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
            self.any.store(true, Ordering::Relaxed);
        }
    }

    /// `waker` does not wait any more.
    pub(crate) fn remove(&self, waker: &Waker) {
        // It was woken, and with that removed.
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut wakers = self.wakers.lock();
        let removed: Vec<_> = wakers.extract_if(.., |known| known.will_wake(waker)).collect();
        self.any.store(!wakers.is_empty(), Ordering::Relaxed);
        drop(wakers);
        // When the lock is released.
        drop(removed);
    }

    /// There is a change: all but `except` look again. Each registers again when it finds nothing.
    pub(crate) fn wake_all(&self, except: Option<&Waker>) {
        let is_woken = |waker: &Waker| !except.is_some_and(|own| own.will_wake(waker));
        let mut wakers = self.wakers.lock();
        // Mostly there is one, and the list keeps its memory.
        let first = wakers.pop();
        let others = if wakers.is_empty() { Vec::new() } else { std::mem::take(&mut *wakers) };
        self.any.store(false, Ordering::Relaxed);
        drop(wakers);
        first.into_iter().chain(others).filter(is_woken).for_each(Waker::wake);
    }

    /// Like [`Watchers::wake_all`], by a thread that has made the change with the socket's lock. A
    /// waker that is added with that lock is seen here, or is one that was added after the change.
    pub(crate) fn wake_changed(&self, except: Option<&Waker>) {
        if self.any.load(Ordering::Relaxed) {
            self.wake_all(except);
        }
    }

    /// The waker for the engine.
    pub(crate) fn all(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.wakers.lock().len()
    }
}

impl Wake for Watchers {
    fn wake(self: Arc<Self>) {
        self.wake_all(None);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_all(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[derive(Default)]
    struct WakeCounter(AtomicU32);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn other_watchers_woken_once() {
        let watchers: Arc<Watchers> = Arc::default();
        let counters = [(); 3].map(|()| Arc::<WakeCounter>::default());
        let wakers = counters.clone().map(Waker::from);
        let counts = || counters.each_ref().map(|counter| counter.0.load(Ordering::Relaxed));
        wakers.iter().chain(&wakers).for_each(|waker| watchers.add(waker));
        assert_eq!(watchers.len(), 3);
        watchers.remove(&wakers[2]);
        watchers.wake_all(Some(&wakers[0]));
        assert_eq!(counts(), [0, 1, 0]);
        watchers.wake_all(None);
        assert_eq!(counts(), [0, 1, 0], "none has registered again");
        watchers.add(&wakers[0]);
        watchers.all().wake_by_ref();
        assert_eq!(counts(), [1, 1, 0]);
        watchers.wake_changed(None);
        watchers.add(&wakers[1]);
        watchers.wake_changed(None);
        watchers.add(&wakers[2]);
        watchers.remove(&wakers[2]);
        assert!(!watchers.any.load(Ordering::Relaxed));
        assert_eq!(counts(), [1, 2, 0]);
        assert!(watchers.all().will_wake(&watchers.all()));
    }

    /// A socket of a busy program has one watcher, which comes and goes with each message.
    #[test]
    fn single_watcher_list_keeps_memory() {
        let watchers: Arc<Watchers> = Arc::default();
        let waker = Waker::from(Arc::<WakeCounter>::default());
        for _ in 0..3 {
            watchers.add(&waker);
            watchers.wake_all(None);
            assert!(watchers.wakers.lock().capacity() > 0);
        }
    }
}

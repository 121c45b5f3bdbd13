//! Threads and epoll sets that wait for a socket to change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use uiw_cabi_core::lock::Mutex;

/// Condition under which a check registers the task for the next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakerPolicy {
    /// The task is registered if the answer is pending.
    Pending,
    /// The task is always registered, for edge-triggered events.
    Always,
}

/// Watchers of one socket. The engine has only one waker for a socket, which wakes all watchers, so
/// its state does not grow if epoll sets are created and closed, or if the program adds the socket
/// repeatedly.
#[derive(Default)]
pub(crate) struct Watchers {
    wakers: Mutex<Vec<Waker>>,
    /// True if there are watchers. It is read without the lock, and written with it.
    any: AtomicBool,
}

impl Watchers {
    /// Adds a waker, which the next change wakes.
    pub(crate) fn add(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
            self.any.store(true, Ordering::Relaxed);
        }
    }

    /// Removes a waker that does not wait any more.
    pub(crate) fn remove(&self, waker: &Waker) {
        // If there are no watchers, the waker was woken and thereby removed.
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut wakers = self.wakers.lock();
        let removed: Vec<_> = wakers.extract_if(.., |known| known.will_wake(waker)).collect();
        self.any.store(!wakers.is_empty(), Ordering::Relaxed);
        drop(wakers);
        // The waker is dropped after the lock is released.
        drop(removed);
    }

    /// Wakes all watchers except `except`, so that they check the socket again. Each registers
    /// again if it finds nothing.
    pub(crate) fn wake_all(&self, except: Option<&Waker>) {
        let is_woken = |waker: &Waker| !except.is_some_and(|own| own.will_wake(waker));
        let mut wakers = self.wakers.lock();
        // There is usually one watcher, and the list keeps its memory in this case.
        let first = wakers.pop();
        let others = if wakers.is_empty() { Vec::new() } else { std::mem::take(&mut *wakers) };
        self.any.store(false, Ordering::Relaxed);
        drop(wakers);
        first.into_iter().chain(others).filter(is_woken).for_each(Waker::wake);
    }

    /// Like [`Watchers::wake_all`], for a thread that has made the change while it held the
    /// socket's lock. A waker that was added under that lock is either seen here, or was added
    /// after the change.
    pub(crate) fn wake_changed(&self, except: Option<&Waker>) {
        if self.any.load(Ordering::Relaxed) {
            self.wake_all(except);
        }
    }

    /// Returns the waker for the engine, which wakes all watchers.
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

    /// A busy program adds and removes the only watcher of a socket with each message.
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

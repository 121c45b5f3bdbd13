//! Lets a thread sleep, in poll(2) or in the stack's epoll set, until it is woken like a task.
//!
//! The sleeper sets `asleep` and then reads `notified`; [`Parker::notify`] sets `notified` and then
//! reads `asleep`. The accesses are sequentially consistent, so at least one of the two threads
//! sees what the other has stored: either the sleeper stays awake, or the descriptor is written.

use super::epoll_waiter::EpollWaiter;
use super::os::{Instant, StackFd, WakeFd};
use super::sync::{AtomicBool, Mutex, per_thread};
use std::cell::Cell;
use std::io::Result;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Wake;
use std::time::Duration;

/// Wake-up target with a descriptor, which is written only while its thread sleeps.
pub(super) struct Parker {
    wake_fd: WakeFd,
    notified: AtomicBool,
    asleep: AtomicBool,
    sleeps_in: Mutex<SleepsIn>,
}

/// Object in which the thread sleeps.
enum SleepsIn {
    Nothing,
    /// The thread sleeps in poll(2), with the parker's own descriptor.
    Poll,
    Epoll(Arc<EpollWaiter>),
}

// Parker of this thread, with the process that has created it.
per_thread!(PARKER: Cell<Option<(u32, Arc<Parker>)>> = Cell::new(None));

impl Parker {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            wake_fd: WakeFd::new()?,
            notified: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            sleeps_in: Mutex::new(SleepsIn::Nothing),
        })
    }

    /// Returns the parker of the calling thread, which belongs to this process.
    ///
    /// A thread that ends may still wait, in the destructor of a thread-local value or in an
    /// `atexit` handler. If its parker was destroyed already, this creates another one.
    pub(super) fn current(process: u32) -> Result<Arc<Self>> {
        let own = PARKER.try_with(|own| {
            let parker = match own.take() {
                Some((creator, parker)) if creator == process => parker,
                // A child of a fork shares the descriptor with its parent, which would take its
                // wake-ups. It may also have closed the descriptor, so it must not do so again.
                inherited => {
                    std::mem::forget(inherited);
                    Arc::new(Self::new()?)
                }
            };
            own.set(Some((process, Arc::clone(&parker))));
            Ok(parker)
        });
        own.unwrap_or_else(|_| Self::new().map(Arc::new))
    }

    /// Clears an earlier wake-up.
    pub(super) fn reset(&self) {
        // A read-modify-write, like the one of `notify`: what the notifying thread did before it is
        // visible afterwards, or the notification is kept.
        self.notified.swap(false, Ordering::SeqCst);
    }

    pub(super) fn is_notified(&self) -> bool {
        self.notified.load(Ordering::SeqCst)
    }

    /// Returns whether the thread sleeps, or is about to.
    pub(super) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst)
    }

    pub(super) fn notify(&self) {
        self.notified.swap(true, Ordering::SeqCst);
        if self.is_asleep() {
            // Locked while the descriptor is written, so that no thread writes it after the sleeper
            // has taken this lock.
            match &*self.sleeps_in.lock() {
                SleepsIn::Nothing => {}
                SleepsIn::Poll => self.wake_fd.write(),
                SleepsIn::Epoll(waiter) => waiter.wake(),
            }
        }
    }

    /// Sleeps until notified, until `stack` is readable, or until `deadline`. Returns whether
    /// `stack` is readable.
    pub(super) fn sleep(&self, stack: Option<&StackFd>, deadline: Option<Instant>) -> bool {
        *self.sleeps_in.lock() = SleepsIn::Poll;
        let readable =
            self.sleep_unless_notified(|| self.wake_fd.sleep(stack, deadline.map(remaining)));
        *self.sleeps_in.lock() = SleepsIn::Nothing;
        readable
    }

    /// Sleeps until notified, until the stack of `waiter` has events, or until `deadline`, at most
    /// a millisecond later. Returns whether the stack has events.
    pub(super) fn sleep_in(&self, waiter: &Arc<EpollWaiter>, deadline: Option<Instant>) -> bool {
        *self.sleeps_in.lock() = SleepsIn::Epoll(Arc::clone(waiter));
        let readable = self.sleep_unless_notified(|| waiter.sleep(deadline.map(remaining)));
        *self.sleeps_in.lock() = SleepsIn::Nothing;
        waiter.clear();
        readable
    }

    /// Calls `sleep`, unless this thread was notified already, and returns its result. A
    /// notification from now on wakes the thread.
    fn sleep_unless_notified(&self, sleep: impl FnOnce() -> bool) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let readable = if self.is_notified() { false } else { sleep() };
        self.asleep.store(false, Ordering::SeqCst);
        readable
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}

fn remaining(at: Instant) -> Duration {
    at.saturating_duration_since(Instant::now())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn inherited_parker_not_used() {
        let parker = |process| Parker::current(process).unwrap();
        let of_parent = parker(1);
        assert!(Arc::ptr_eq(&of_parent, &parker(1)));
        let of_child = parker(2);
        assert!(!Arc::ptr_eq(&of_parent, &of_child));
        assert!(Arc::ptr_eq(&of_child, &parker(2)));
    }
}

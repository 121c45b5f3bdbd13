//! Lets the active poller sleep in the stack's own epoll set, which contains a wake descriptor.
//!
//! A nested epoll set, or an epoll set in poll(2), costs an extra wake-up. It also reports only
//! that something is ready and not which descriptor, so that a second call is needed.

use super::os::{EpollSet, StackFd, WakeFd};
use super::sync::AtomicBool;
use std::io::Result;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Epoll set in which one thread at a time can sleep.
pub(super) struct EpollWaiter {
    set: EpollSet,
    wake_fd: WakeFd,
    /// True if the wake descriptor was written since it was last cleared.
    written: AtomicBool,
}

impl EpollWaiter {
    pub(super) fn new(stack: &Arc<StackFd>) -> Result<Self> {
        let wake_fd = WakeFd::new()?;
        Ok(Self { set: EpollSet::new(stack, &wake_fd)?, wake_fd, written: AtomicBool::new(false) })
    }

    /// Returns whether the descriptor of the stack is an epoll set.
    pub(super) fn is_set_of(&self, stack: &Arc<StackFd>) -> bool {
        self.set.is_set_of(stack)
    }

    /// Sleeps until the stack has events, [`EpollWaiter::wake`] is called, a signal arrives, or
    /// `timeout`, rounded up to a millisecond, has passed. Returns whether the stack has events.
    pub(super) fn sleep(&self, timeout: Option<Duration>) -> bool {
        self.set.sleep(timeout)
    }

    /// Wakes the thread that sleeps here.
    pub(super) fn wake(&self) {
        self.written.store(true, Ordering::SeqCst);
        self.wake_fd.write();
    }

    /// Clears the wake descriptor. The caller makes sure that no thread can write it any more.
    /// While the descriptor is readable, no thread can sleep in the set.
    pub(super) fn clear(&self) {
        if self.written.swap(false, Ordering::SeqCst) {
            self.wake_fd.clear();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::EpollWaiter;
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn wake_ends_sleep_until_cleared() {
        let set = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        let waiter = EpollWaiter::new(&set).unwrap();
        waiter.wake();
        assert!(!waiter.sleep(None), "the stack has nothing");
        waiter.clear();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&set, PollFlags::IN)], Some(&at_once)), Ok(0));
    }

    #[test]
    fn stack_without_epoll_ends_sleep() {
        let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let waiter = EpollWaiter::new(&fd).unwrap();
        assert!(!waiter.sleep(Some(Duration::ZERO)));
        rustix::io::write(&fd, &1u64.to_ne_bytes()).unwrap();
        assert!(waiter.sleep(None));
        waiter.wake();
        assert!(waiter.sleep(None), "the stack is reported beside the wake fd");
    }
}

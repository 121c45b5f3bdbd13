//! Ending a command on Ctrl-C, or when its parent process ends.

use crate::shared::fail::{Failure, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use uiw_cli_sys::signals::is_ignored;

/// Flag that is set once and wakes all waiting threads.
pub(crate) struct StopFlag {
    set: AtomicBool,
    /// Wakers, each with the thread that has registered it.
    wakers: Mutex<Vec<(ThreadId, Waker)>>,
    /// Readable once the flag is set.
    fd: OwnedFd,
}

/// Calls `action` with each of these signals, on a separate thread.
fn on_each(
    signals: impl Iterator<Item = i32>,
    action: impl Fn(i32) + Send + 'static,
) -> Result<()> {
    let mut signals =
        Signals::new(signals).map_err(|error| Failure::local("cannot catch signals", error))?;
    std::thread::spawn(move || signals.forever().for_each(action));
    Ok(())
}

impl StopFlag {
    fn new() -> Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC)
            .map_err(|error| Failure::local("cannot make an eventfd", error))?;
        Ok(Self { set: AtomicBool::new(false), wakers: Mutex::default(), fd })
    }

    /// Creates a flag that Ctrl-C, SIGTERM and SIGHUP set, unless this process ignores them, for
    /// example under nohup(1).
    pub(crate) fn on_signal() -> Result<Arc<Self>> {
        let stop = Arc::new(Self::new()?);
        let signalled = Arc::clone(&stop);
        let signals = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal));
        on_each(signals, move |_| signalled.set())?;
        Ok(stop)
    }

    /// Creates a flag that Ctrl-C and SIGTERM set. SIGHUP calls `reload` on a separate thread.
    pub(crate) fn on_signal_but_hangup(reload: impl Fn() + Send + 'static) -> Result<Arc<Self>> {
        let stop = Arc::new(Self::new()?);
        let signalled = Arc::clone(&stop);
        let set_or_reload = move |signal| if signal == SIGHUP { reload() } else { signalled.set() };
        on_each([SIGINT, SIGTERM, SIGHUP].into_iter(), set_or_reload)?;
        Ok(stop)
    }

    /// Also sets the flag when standard input ends. The parent process holds the other end, so this
    /// happens when the parent process ends.
    pub(crate) fn on_stdin_end(self: &Arc<Self>) {
        let stop = Arc::clone(self);
        std::thread::spawn(move || {
            let mut bytes = [0; 64];
            while matches!(std::io::stdin().read(&mut bytes), Ok(1..)) {}
            stop.set();
        });
    }

    pub(crate) fn set(&self) {
        self.set.store(true, Ordering::SeqCst);
        // The write cannot block: the counter of an eventfd goes up to 2^64 - 2 (eventfd(2)).
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        let wakers =
            std::mem::take(&mut *self.wakers.lock().unwrap_or_else(PoisonError::into_inner));
        for (_, waker) in wakers {
            waker.wake();
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::SeqCst)
    }

    /// Returns a descriptor that is readable once the flag is set.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Sleeps until `fd` is readable (returns true) or the flag is set (returns false), without
    /// driving any device.
    pub(crate) fn sleep_on(&self, fd: BorrowedFd<'_>) -> bool {
        while !self.is_set() {
            let mut fds =
                [PollFd::from_borrowed_fd(fd, PollFlags::IN), PollFd::new(&self.fd, PollFlags::IN)];
            // A signal may interrupt the call, so check again.
            if poll(&mut fds, None).is_ok() && !fds[0].revents().is_empty() {
                return true;
            }
        }
        false
    }

    /// Sleeps for `time`, or until the flag is set. Returns whether it is set.
    pub(crate) fn sleep_for(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while !self.is_set() {
            let left = until.saturating_duration_since(Instant::now());
            // A time that does not fit counts as infinite.
            let timeout = Timespec::try_from(left).ok();
            if left.is_zero() {
                return false;
            }
            // A signal may interrupt the call, so check again.
            let _ = poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], timeout.as_ref());
        }
        true
    }

    /// Removes the wakers of the calling thread, which is about to end. Each of them holds a
    /// descriptor.
    pub(crate) fn forget_this_thread(&self) {
        let this = std::thread::current().id();
        self.wakers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|(thread, _)| *thread != this);
    }

    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_set() {
            return Poll::Ready(());
        }
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|(_, known)| known.will_wake(cx.waker())) {
            wakers.push((std::thread::current().id(), cx.waker().clone()));
        }
        drop(wakers);
        // Check again: the flag may have been set before the waker was registered.
        if self.is_set() { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_thread_leaves_no_waker() {
        let stop = Arc::new(StopFlag::new().unwrap());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(stop.poll(&mut cx).is_pending());
        let other = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            struct NoopWake;
            impl std::task::Wake for NoopWake {
                fn wake(self: Arc<Self>) {}
            }
            let waker = Waker::from(Arc::new(NoopWake));
            assert!(other.poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!(other.wakers.lock().unwrap().len(), 2);
            other.forget_this_thread();
        });
        thread.join().unwrap();
        assert_eq!(stop.wakers.lock().unwrap().len(), 1);
    }

    #[test]
    fn stop_seen_by_all_checks() {
        let stop = StopFlag::new().unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(stop.poll(&mut cx).is_pending());
        stop.set();
        assert!(stop.poll(&mut cx).is_ready());
        assert!(stop.is_set());
        assert!(!stop.sleep_on(stop.fd.as_fd()));
    }
}

//! Descriptors on which threads sleep (eventfd, poll(2), epoll), and the clock.

pub(super) use crate::thread::raise_priority;
pub(super) use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::io::Result;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Descriptor of a stack. It is readable while the stack has events.
pub(super) type StackFd = OwnedFd;

/// Epoll data of a wake descriptor. No token of a stream has all bits set, because its slot would
/// have the largest possible number.
const WAKE: u64 = u64::MAX;
/// Number of events that one wait reads: the wake descriptor's event, and one other event, which
/// shows that the stack has events.
const EVENTS: usize = 2;

/// Eventfd that is readable from a write until it is cleared.
pub(super) struct WakeFd(OwnedFd);

impl WakeFd {
    pub(super) fn new() -> Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    pub(super) fn write(&self) {
        // A write fails only if the count is 2^64 - 2, so the descriptor is readable in any case.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(super) fn clear(&self) {
        // A read fails only if the count is 0.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }

    /// Sleeps in poll(2) until this descriptor or `stack` is readable, a signal arrives, or
    /// `timeout` has passed. Clears this descriptor if it is readable. Returns whether `stack` is
    /// readable.
    pub(super) fn sleep(&self, stack: Option<&StackFd>, timeout: Option<Duration>) -> bool {
        let own: BorrowedFd<'_> = self.0.as_fd();
        let other = stack.map_or(own, AsFd::as_fd);
        let mut fds = [
            PollFd::from_borrowed_fd(own, PollFlags::IN),
            PollFd::from_borrowed_fd(other, PollFlags::IN),
        ];
        let used = if stack.is_some() { 2 } else { 1 };
        // EINTR counts as a wake-up, because every caller checks its condition again.
        let _ = poll(&mut fds[..used], timeout.map(timespec).as_ref());
        if !fds[0].revents().is_empty() {
            self.clear();
        }
        used == 2 && !fds[1].revents().is_empty()
    }
}

/// Epoll set that contains a wake descriptor.
pub(super) struct EpollSet(Arc<OwnedFd>);

impl EpollSet {
    /// Adds `wake` to the stack's own epoll set. If the stack does not use one, creates a set for
    /// both.
    pub(super) fn new(stack: &Arc<StackFd>, wake: &WakeFd) -> Result<Self> {
        let add = |set: &OwnedFd, fd: &OwnedFd, data| {
            epoll::add(set, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN)
        };
        match add(stack, &wake.0, WAKE) {
            Ok(()) => Ok(Self(Arc::clone(stack))),
            Err(Errno::INVAL) => {
                let own = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                add(&own, &wake.0, WAKE)?;
                add(&own, stack, 0)?;
                Ok(Self(Arc::new(own)))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns whether this is the stack's own set.
    pub(super) fn is_set_of(&self, stack: &Arc<StackFd>) -> bool {
        Arc::ptr_eq(&self.0, stack)
    }

    /// Sleeps until the stack has events, the wake descriptor is readable, a signal arrives, or
    /// `timeout`, rounded up to a millisecond, has passed. Returns whether the stack has events.
    pub(super) fn sleep(&self, timeout: Option<Duration>) -> bool {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        match epoll::wait(&self.0, &mut events[..], timeout.map(timespec).as_ref()) {
            Ok((ready, _)) => ready.iter().any(|event| event.data.u64() != WAKE),
            // EINTR counts as a wake-up, because every caller checks its condition again.
            Err(_) => false,
        }
    }
}

/// Epoll set that an application waits on with its own poll(2). It is the descriptor of a
/// completion channel.
pub(crate) struct ChannelSet(OwnedFd);

impl ChannelSet {
    /// Creates a set that is readable while the descriptor `tokens` is.
    pub(crate) fn new(tokens: BorrowedFd<'_>) -> Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&set, tokens, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        Ok(Self(set))
    }

    /// Replaces the descriptor of the set by the result of `map`.
    pub(crate) fn map_fd(self, map: impl FnOnce(OwnedFd) -> OwnedFd) -> Self {
        Self(map(self.0))
    }

    /// Adds the stack's descriptor without waiting for it yet. The descriptor must be an epoll set,
    /// because epoll reports errors of other descriptors even if no event is requested.
    pub(super) fn add(&self, stack: &StackFd) -> Result<()> {
        Ok(epoll::add(&self.0, stack, epoll::EventData::new_u64(0), epoll::EventFlags::empty())?)
    }

    /// Sets whether this set is readable while the stack's descriptor is.
    pub(super) fn wait_for(&self, stack: &StackFd, on: bool) {
        let flags = if on { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        // Fails only if the descriptor is not in the set.
        let _ = epoll::modify(&self.0, stack, epoll::EventData::new_u64(0), flags);
    }
}

impl AsFd for ChannelSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns whether the stack's descriptor is readable.
pub(super) fn is_readable(stack: &StackFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(stack, PollFlags::IN)], Some(&at_once)) == Ok(1)
}

pub(super) fn sleep_for(time: Duration) {
    std::thread::sleep(time);
}

/// Returns the kernel's id of this thread.
pub(super) fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_pid().unsigned_abs()
}

/// Returns the processor time that a thread of this process has used, or `None` if there is no such
/// thread.
pub(super) fn thread_time(thread: u32) -> Option<Duration> {
    /// CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED of the kernel's `posix-timers.h`. They select the
    /// clock that `pthread_getcpuclockid` returns. That function must not be called for a thread
    /// that has ended.
    const OF_A_THREAD: libc::clockid_t = 4 | 2;
    // For the kernel, 0 means the calling thread.
    let thread = i32::try_from(thread).ok().filter(|thread| *thread > 0)?;
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the structure is a local variable. If the call fails it stays all zeros, which is a
    // valid time.
    let (failed, time) = unsafe {
        (
            libc::clock_gettime(!thread << 3 | OF_A_THREAD, time.as_mut_ptr()) != 0,
            time.assume_init(),
        )
    };
    let time = Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    (!failed).then_some(time)
}

fn timespec(wait: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(wait.subsec_nanos()),
    }
}

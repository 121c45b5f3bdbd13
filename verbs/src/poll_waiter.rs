//! Support for threads that wait for connections in a poll(2) of their own, together with other
//! descriptors.

use crate::cq::Cq;
use crate::device::Device;
use crate::driver::{ChannelSet, Driver, MAX_SHARDS, Watch, thread_id};
use crate::error::{Error, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::fcntl_dupfd_cloexec;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

/// Set of shards of one device (see [`DeviceConfig::shards`](crate::DeviceConfig::shards)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardSet(u64);

impl ShardSet {
    /// Adds the shards of `other`.
    pub fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn indices(self) -> impl Iterator<Item = usize> {
        (0..MAX_SHARDS).filter(move |index| self.0 >> index & 1 != 0)
    }
}

impl Cq {
    /// Returns the shards of the connections that complete here.
    #[must_use]
    pub fn shards(&self) -> ShardSet {
        ShardSet(self.shard_bits())
    }
}

impl Device {
    /// Makes one round on each of these shards, as an empty poll of a completion queue does. For
    /// programs that then look at many queues with [`Cq::take_with`].
    pub fn drive(&self, shards: ShardSet) {
        self.driver().note_poll(shards.0);
        // It is not known which queues this thread polls, so no connection is moved.
        let _ = self.driver().poll_progress(shards.0, Some(thread_id()), &|| false);
    }
}

/// Waiter that sleeps in `poll(2)` until bytes arrive for the thread's connections or one of its
/// other descriptors is ready.
///
/// The arrival itself ends the sleep, and the thread drives the shards, so that no second thread is
/// woken. If another thread drives them, it wakes this one through its wakers. A waiter is used by
/// one thread.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let end = End::new()?;
/// use rustix::event::{PollFd, PollFlags, poll};
/// use std::task::{Context, Waker};
/// use uiw::raw::PollWaiter;
///
/// let mut waiter = PollWaiter::new(&end.device)?;
/// waiter.arm(end.cq.shards());
/// let waker = waiter.waker();
/// if end.cq.poll_ready(&mut Context::from_waker(&waker)).is_pending() && waiter.begin_sleep() {
///     // A program adds its other descriptors here.
///     let mut fds = [PollFd::new(&waiter, PollFlags::IN)];
///     # let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
///     poll(&mut fds, Some(&none))?;
///     let readable = !fds[0].revents().is_empty();
///     waiter.end_sleep(readable);
/// }
/// # Ok(())
/// # }
/// ```
pub struct PollWaiter {
    driver: Weak<Driver>,
    set: Arc<ChannelSet>,
    wakeup: Arc<WakeupFd>,
    /// Watches that were armed, by shard.
    watches: Vec<Option<Arc<Watch>>>,
    /// Shards for which this thread is expected to sleep.
    armed: ShardSet,
}

/// Flag that the wakers of the thread set, and descriptor that they write while the thread sleeps.
struct WakeupFd {
    fd: OwnedFd,
    notified: AtomicBool,
    asleep: AtomicBool,
    /// Number of writes to the descriptor that have begun and were not read. While it is 0, the
    /// descriptor is not readable, and no system call is made to read it.
    unread: AtomicU64,
}

impl Wake for WakeupFd {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    /// Sets `notified`, and then reads `asleep`. The sleeper does the opposite: it sets `asleep`
    /// and then reads `notified`. So one of the two threads sees the store of the other one,
    /// because all these accesses are sequentially consistent.
    fn wake_by_ref(self: &Arc<Self>) {
        self.notified.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            // Incremented before the write: the write may make the sleeper run at once, which would
            // otherwise leave the descriptor readable.
            self.unread.fetch_add(1, Ordering::SeqCst);
            // A write fails only if the count is 2^64 - 2.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }
}

impl WakeupFd {
    /// Reads the tokens that were written. A write that has only begun is left for the next call.
    fn clear(&self) {
        if self.unread.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut count = [0; 8];
        // Fails if none of the writes has ended.
        if let Ok(8) = rustix::io::read(&self.fd, &mut count) {
            self.unread.fetch_sub(u64::from_ne_bytes(count), Ordering::SeqCst);
        }
    }
}

impl PollWaiter {
    /// Creates a waiter for connections of `device`.
    ///
    /// # Errors
    /// [`Error::Io`] if the process has no free descriptor.
    pub fn new(device: &Device) -> Result<Self> {
        Self::new_above(device, 0)
    }

    /// Like [`PollWaiter::new`], but with descriptors whose numbers are at least `least`, if there
    /// are any. For a library in a program that expects to get low numbers for its own files.
    ///
    /// # Errors
    /// The errors of [`PollWaiter::new`].
    pub fn new_above(device: &Device, least: RawFd) -> Result<Self> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let fd =
            eventfd(0, flags).map_err(|errno| Error::io("opening an eventfd")(errno.into()))?;
        let fd = move_descriptor(fd, least);
        let set = ChannelSet::new(fd.as_fd()).map_err(Error::io("opening an epoll set"))?;
        let set = set.map_fd(|fd| move_descriptor(fd, least));
        let [notified, asleep] = [const { AtomicBool::new(false) }; 2];
        let wakeup = WakeupFd { fd, notified, asleep, unread: AtomicU64::new(0) };
        Ok(Self {
            driver: Arc::downgrade(device.driver()),
            set: Arc::new(set),
            wakeup: Arc::new(wakeup),
            watches: Vec::new(),
            armed: ShardSet::default(),
        })
    }

    /// Returns the waker that ends the sleep.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.wakeup))
    }

    /// Announces that the thread is about to sleep until something arrives on `shards`. Before it
    /// sleeps, it must check its condition once more, with [`PollWaiter::waker`] registered.
    pub fn arm(&mut self, shards: ShardSet) {
        self.wakeup.notified.store(false, Ordering::SeqCst);
        let Some(driver) = self.driver.upgrade() else { return };
        for index in self.armed.indices().filter(|index| shards.0 >> index & 1 == 0) {
            if let Some(watch) = self.watches.get(index).and_then(Option::as_ref) {
                driver.disarm(index, watch);
                driver.end_served(index);
            }
        }
        for index in shards.indices() {
            if self.watches.len() <= index {
                self.watches.resize(index + 1, None);
            }
            let watch = &mut self.watches[index];
            if watch.is_none() {
                *watch = driver.watch(index, &self.set, Waker::noop().clone()).map(Arc::new);
            }
            driver.arm_waiter(index, watch.as_ref());
        }
        self.armed = shards;
    }

    /// Makes one round on the armed shards, before a sleep or instead of one.
    pub fn make_round(&self) {
        let Some(driver) = self.driver.upgrade() else { return };
        driver.poll_progress(self.armed.0, Some(thread_id()), &|| false);
    }

    /// Returns whether the thread may sleep, because no waker was called since [`PollWaiter::arm`].
    /// Call [`PollWaiter::end_sleep`] after the sleep.
    #[must_use]
    pub fn begin_sleep(&self) -> bool {
        self.wakeup.asleep.store(true, Ordering::SeqCst);
        let sleeps = !self.wakeup.notified.load(Ordering::SeqCst);
        if !sleeps {
            self.wakeup.asleep.store(false, Ordering::SeqCst);
        }
        sleeps
    }

    /// Ends the sleep. If the waiter's descriptor was `readable`, the thread drives the armed
    /// shards, because an arrival on one of them may have ended the sleep.
    pub fn end_sleep(&self, readable: bool) {
        self.wakeup.asleep.store(false, Ordering::SeqCst);
        if !readable {
            return;
        }
        // A waker may have written after the end of an earlier sleep that something else has ended.
        self.wakeup.clear();
        let Some(driver) = self.driver.upgrade() else { return };
        for (index, watch) in self.each_armed() {
            driver.answer_armed(index, watch);
            driver.disarm(index, watch);
        }
    }

    /// Reports that the sleep has ended although the condition of the thread is not met:
    /// connections of other threads share its shards, or only a part of a message has arrived.
    /// Then the background thread drives for a while.
    pub fn note_spurious(&self) {
        let Some(driver) = self.driver.upgrade() else { return };
        self.each_armed().for_each(|(index, watch)| driver.note_spurious_wake_up(index, watch));
    }

    fn each_armed(&self) -> impl Iterator<Item = (usize, &Arc<Watch>)> {
        self.armed.indices().filter_map(|index| Some((index, self.watches.get(index)?.as_ref()?)))
    }
}

/// Duplicates the file to a number that is at least `least`; returns it unchanged if there is none.
fn move_descriptor(fd: OwnedFd, least: RawFd) -> OwnedFd {
    if fd.as_raw_fd() >= least { fd } else { fcntl_dupfd_cloexec(&fd, least).unwrap_or(fd) }
}

impl AsFd for PollWaiter {
    /// Returns a descriptor that is readable when a waker was called during the sleep, or something
    /// has arrived on an armed shard.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

impl fmt::Debug for PollWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollWaiter").field("armed", &self.armed).finish_non_exhaustive()
    }
}

impl Drop for PollWaiter {
    fn drop(&mut self) {
        self.arm(ShardSet::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(waiter: &PollWaiter) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(waiter, PollFlags::IN)], Some(&at_once)) == Ok(1)
    }

    #[test]
    fn wake_ups_cleared_after_sleep() {
        let mut waiter = PollWaiter::new(&Device::open().unwrap()).unwrap();
        let waker = waiter.waker();
        for _ in 0..2 {
            waiter.arm(ShardSet::default());
            assert!(waiter.begin_sleep() && !is_readable(&waiter));
            waker.wake_by_ref();
            waker.wake_by_ref();
            assert!(is_readable(&waiter));
            waiter.end_sleep(true);
            assert!(!is_readable(&waiter));
            waker.wake_by_ref();
            assert!(!is_readable(&waiter), "no thread sleeps");
        }
    }

    /// The waking thread is preempted before its write, while something else ends the sleep.
    #[test]
    fn late_wakeup_cleared_by_sleep() {
        let waiter = PollWaiter::new(&Device::open().unwrap()).unwrap();
        let waker = waiter.waker();
        assert!(waiter.begin_sleep());
        waiter.wakeup.unread.fetch_add(1, Ordering::SeqCst);
        waker.wake_by_ref();
        waiter.end_sleep(true);
        assert!(!is_readable(&waiter));
        rustix::io::write(&waiter.wakeup.fd, &1u64.to_ne_bytes()).unwrap();
        assert!(is_readable(&waiter));
        waiter.end_sleep(true);
        assert!(!is_readable(&waiter));
        assert_eq!(waiter.wakeup.unread.load(Ordering::SeqCst), 0);
    }
}

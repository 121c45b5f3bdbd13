//! A thread that sleeps and can be woken as a task: in poll(2), or in the leader's seat.

use crate::driver::seat::Seat;
use crate::error::{Error, Result};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::time::{Duration, Instant};

/// A wake-up target with a descriptor. The descriptor is written only while its thread sleeps.
pub(crate) struct Parker {
    fd: OwnedFd,
    notified: AtomicBool,
    asleep: AtomicBool,
    place: Mutex<Place>,
}

/// Where the thread sleeps.
enum Place {
    Awake,
    /// On its own descriptor, among others.
    Alone,
    Seat(Arc<Seat>),
}

impl Parker {
    pub(crate) fn new() -> Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(std::io::Error::from)
            .map_err(Error::io("eventfd"))?;
        Ok(Self {
            fd,
            notified: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            place: Mutex::new(Place::Awake),
        })
    }

    /// The calling thread's own.
    pub(crate) fn current() -> Result<Arc<Self>> {
        thread_local! {
            static PARKER: std::cell::OnceCell<Arc<Parker>> = const { std::cell::OnceCell::new() };
        }
        PARKER.with(|cell| {
            if let Some(parker) = cell.get() {
                return Ok(Arc::clone(parker));
            }
            let parker = Arc::new(Self::new()?);
            Ok(Arc::clone(cell.get_or_init(|| parker)))
        })
    }

    /// Forgets a wake-up given before now.
    pub(crate) fn reset(&self) {
        self.notified.store(false, Ordering::SeqCst);
    }

    pub(crate) fn is_notified(&self) -> bool {
        self.notified.load(Ordering::SeqCst)
    }

    pub(crate) fn notify(&self) {
        self.notified.store(true, Ordering::SeqCst);
        // Order: the sleeper sets `asleep` and then reads `notified`; here it is the other way round. One of the two sees the
        // other, so a wake-up between its last look and its sleep still writes the descriptor.
        if self.asleep.load(Ordering::SeqCst) {
            // Held while the bell is rung: behind the sleeper's own lock nobody rings any more.
            match &*self.place.lock() {
                Place::Awake => {}
                Place::Alone => drop(rustix::io::write(&self.fd, &1u64.to_ne_bytes())),
                Place::Seat(seat) => seat.ring(),
            }
        }
    }

    /// Sleeps until notified, until `extra` is readable, or until `deadline`. True when `extra` is readable.
    pub(crate) fn sleep(&self, extra: Option<BorrowedFd<'_>>, deadline: Option<Instant>) -> bool {
        *self.place.lock() = Place::Alone;
        let readable = self.asleep_while(|| self.poll(extra, deadline));
        *self.place.lock() = Place::Awake;
        readable
    }

    /// Sleeps until notified, until the stack of `seat` has something, or until `deadline`, a millisecond later at most. True
    /// when the stack has something.
    pub(crate) fn sleep_in(&self, seat: &Arc<Seat>, deadline: Option<Instant>) -> bool {
        *self.place.lock() = Place::Seat(Arc::clone(seat));
        let readable = self.asleep_while(|| seat.sleep(deadline.map(remaining)));
        *self.place.lock() = Place::Awake;
        seat.silence();
        readable
    }

    fn asleep_while(&self, sleep: impl FnOnce() -> bool) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let readable = if self.is_notified() { false } else { sleep() };
        self.asleep.store(false, Ordering::SeqCst);
        readable
    }

    fn poll(&self, extra: Option<BorrowedFd<'_>>, deadline: Option<Instant>) -> bool {
        let own = PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN);
        let other = PollFd::from_borrowed_fd(extra.unwrap_or(self.fd.as_fd()), PollFlags::IN);
        let mut fds = [own, other];
        let used = if extra.is_some() { 2 } else { 1 };
        let timeout = deadline.map(|at| timespec(remaining(at)));
        // EINTR is a wake-up like any other: every caller looks again.
        let _ = poll(&mut fds[..used], timeout.as_ref());
        if !fds[0].revents().is_empty() {
            let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        }
        used == 2 && !fds[1].revents().is_empty()
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

pub(super) fn timespec(wait: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(wait.subsec_nanos()),
    }
}

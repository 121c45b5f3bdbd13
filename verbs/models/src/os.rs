//! Descriptors, their sleeps and the clock, with the interface of `verbs/src/driver/os.rs`.

use super::sync::{Condvar, Mutex, MutexGuard, yield_now};
use std::cell::Cell;
use std::io::Result;
use std::ops::{Add, Sub};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Which descriptor.
type Fd = usize;

/// What the kernel knows: one lock, as a system call is one step for the others.
#[derive(Default)]
struct Kernel {
    /// How much is in each descriptor.
    fds: Vec<usize>,
    /// Threads in a sleep, and what they sleep on.
    sleepers: Vec<([Option<Fd>; 2], Arc<Condvar>)>,
}

#[cfg(loom)]
loom::lazy_static! {
    static ref KERNEL: Mutex<Kernel> = Mutex::default();
}
#[cfg(shuttle)]
shuttle::lazy_static! {
    static ref KERNEL: Mutex<Kernel> = Mutex::default();
}

fn kernel() -> MutexGuard<'static, Kernel> {
    KERNEL.lock()
}

impl Kernel {
    fn open(&mut self) -> Fd {
        self.fds.push(0);
        self.fds.len() - 1
    }

    fn add(&mut self, fd: Fd) {
        self.fds[fd] += 1;
        for (fds, condvar) in &self.sleepers {
            if fds.contains(&Some(fd)) {
                condvar.notify_one();
            }
        }
    }
}

/// Sleeps until one of `fds` is readable. A time-out is over at once.
fn sleep(fds: [Option<Fd>; 2], timeout: Option<Duration>) -> [bool; 2] {
    let mut kernel = kernel();
    let readable = |kernel: &Kernel| fds.map(|fd| fd.is_some_and(|fd| kernel.fds[fd] > 0));
    let now = readable(&kernel);
    if now.contains(&true) {
        return now;
    }
    if timeout.is_some() {
        drop(kernel);
        yield_now();
        return now;
    }
    let condvar = Arc::new(Condvar::new());
    kernel.sleepers.push((fds, Arc::clone(&condvar)));
    loop {
        kernel = condvar.wait(kernel).unwrap_or_else(PoisonError::into_inner);
        let now = readable(&kernel);
        if now.contains(&true) {
            kernel.sleepers.retain(|(_, other)| !Arc::ptr_eq(other, &condvar));
            return now;
        }
    }
}

/// The stack's descriptor: readable while there are arrivals.
pub(super) struct StackFd(Fd);

impl StackFd {
    pub(super) fn new() -> Self {
        Self(kernel().open())
    }

    /// The peer sends something.
    pub(super) fn arrive(&self) {
        kernel().add(self.0);
    }

    /// Reads all that has arrived.
    pub(super) fn read(&self) -> usize {
        std::mem::take(&mut kernel().fds[self.0])
    }
}

/// An eventfd.
pub(super) struct WakeFd(Fd);

impl WakeFd {
    #[expect(clippy::unnecessary_wraps, reason = "the interface of the kernel's")]
    pub(super) fn new() -> Result<Self> {
        Ok(Self(kernel().open()))
    }

    pub(super) fn write(&self) {
        kernel().add(self.0);
    }

    pub(super) fn clear(&self) {
        kernel().fds[self.0] = 0;
    }

    pub(super) fn sleep(&self, stack: Option<&StackFd>, timeout: Option<Duration>) -> bool {
        let [own, other] = sleep([Some(self.0), stack.map(|stack| stack.0)], timeout);
        if own {
            self.clear();
        }
        other
    }
}

/// An epoll set with a wake fd in it.
pub(super) struct EpollSet([Option<Fd>; 2]);

impl EpollSet {
    #[expect(clippy::unnecessary_wraps, reason = "the interface of the kernel's")]
    pub(super) fn new(stack: &Arc<StackFd>, wake: &WakeFd) -> Result<Self> {
        Ok(Self([Some(wake.0), Some(stack.0)]))
    }

    pub(super) fn sleep(&self, timeout: Option<Duration>) -> bool {
        sleep(self.0, timeout)[1]
    }
}

pub(super) fn sleep_for(_: Duration) {
    yield_now();
}

/// A time of a clock that is later with every reading by more than each short time of the engine: every deadline has passed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Instant(Duration);

const STEP: Duration = Duration::from_millis(20);

thread_local! {
    /// Of all executions of a model: only differences matter.
    static CLOCK: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

impl Instant {
    pub(super) fn now() -> Self {
        CLOCK.set(CLOCK.get() + STEP);
        Self(CLOCK.get())
    }

    pub(super) fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub(super) fn elapsed(self) -> Duration {
        Self::now() - self
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, wait: Duration) -> Self {
        Self(self.0 + wait)
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

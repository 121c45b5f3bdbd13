//! Descriptors, their sleeps and the clock, with the interface of `verbs/src/driver/os.rs`.

use super::sync::{Condvar, Mutex, yield_now};
use std::cell::Cell;
use std::io::Result;
use std::ops::{Add, Sub};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// A descriptor. A lock of its own, as the order of calls for different ones does not matter.
#[derive(Clone)]
struct Fd(Arc<Mutex<FdState>>);

#[derive(Default)]
struct FdState {
    /// How much is in it.
    count: usize,
    /// Threads to be woken when something comes.
    sleepers: Vec<Arc<Sleeper>>,
}

/// A thread in one sleep.
#[derive(Default)]
struct Sleeper {
    woken: Mutex<bool>,
    condvar: Condvar,
}

impl Fd {
    fn new() -> Self {
        Self(Arc::new(Mutex::default()))
    }

    fn add(&self) {
        let mut state = self.0.lock();
        state.count += 1;
        let sleepers = std::mem::take(&mut state.sleepers);
        drop(state);
        for sleeper in sleepers {
            *sleeper.woken.lock() = true;
            sleeper.condvar.notify_one();
        }
    }

    fn take(&self) -> usize {
        std::mem::take(&mut self.0.lock().count)
    }
}

/// Sleeps until one of `fds` is readable. A time-out is over at once.
fn sleep(fds: [Option<&Fd>; 2], timeout: Option<Duration>) -> [bool; 2] {
    loop {
        let sleeper = Arc::<Sleeper>::default();
        let readable = fds.map(|fd| {
            let Some(fd) = fd else { return false };
            let mut state = fd.0.lock();
            if state.count == 0 && timeout.is_none() {
                state.sleepers.push(Arc::clone(&sleeper));
            }
            state.count > 0
        });
        if readable.contains(&true) {
            return readable;
        }
        if timeout.is_some() {
            yield_now();
            return readable;
        }
        let mut woken = sleeper.woken.lock();
        while !*woken {
            woken = sleeper.condvar.wait(woken).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The stack's descriptor: readable while there are arrivals.
pub(super) struct StackFd(Fd);

impl StackFd {
    pub(super) fn new() -> Self {
        Self(Fd::new())
    }

    /// The peer sends something.
    pub(super) fn arrive(&self) {
        self.0.add();
    }

    /// Reads all that has arrived.
    pub(super) fn read(&self) -> usize {
        self.0.take()
    }
}

/// An eventfd.
pub(super) struct WakeFd(Fd);

impl WakeFd {
    #[expect(clippy::unnecessary_wraps, reason = "the interface of the kernel's")]
    pub(super) fn new() -> Result<Self> {
        Ok(Self(Fd::new()))
    }

    pub(super) fn write(&self) {
        self.0.add();
    }

    pub(super) fn clear(&self) {
        self.0.take();
    }

    pub(super) fn sleep(&self, stack: Option<&StackFd>, timeout: Option<Duration>) -> bool {
        let [own, other] = sleep([Some(&self.0), stack.map(|stack| &stack.0)], timeout);
        if own {
            self.clear();
        }
        other
    }
}

/// An epoll set with a wake fd in it.
pub(super) struct EpollSet([Fd; 2]);

impl EpollSet {
    #[expect(clippy::unnecessary_wraps, reason = "the interface of the kernel's")]
    pub(super) fn new(stack: &Arc<StackFd>, wake: &WakeFd) -> Result<Self> {
        Ok(Self([wake.0.clone(), stack.0.clone()]))
    }

    pub(super) fn sleep(&self, timeout: Option<Duration>) -> bool {
        sleep([Some(&self.0[0]), Some(&self.0[1])], timeout)[1]
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

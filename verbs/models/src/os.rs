//! Descriptors, sleeps on them and the clock, with the interface of `verbs/src/driver/os.rs`.

use super::sync::{Mutex, per_thread};
use super::time::{self, Sleeper};
use std::cell::Cell;
use std::io::Result;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::time::Duration;

/// Descriptor. Each has its own lock, because the order of calls on different descriptors does not
/// matter.
#[derive(Clone)]
struct ModelFd(Arc<Mutex<FdState>>);

#[derive(Default)]
struct FdState {
    /// Current value.
    count: usize,
    /// Threads to be woken when the descriptor becomes readable.
    sleepers: Vec<Arc<Sleeper>>,
}

impl ModelFd {
    fn new() -> Self {
        Self(Arc::new(Mutex::default()))
    }

    fn add(&self) {
        let mut state = self.0.lock();
        state.count += 1;
        let sleepers = std::mem::take(&mut state.sleepers);
        drop(state);
        sleepers.iter().for_each(|sleeper| sleeper.wake());
    }

    fn take(&self) -> usize {
        std::mem::take(&mut self.0.lock().count)
    }
}

impl ModelFd {
    fn is_readable(&self) -> bool {
        self.0.lock().count > 0
    }

    /// Wakes the threads that sleep on the descriptor; they then check its state again.
    fn wake_all(&self) {
        let sleepers = std::mem::take(&mut self.0.lock().sleepers);
        sleepers.iter().for_each(|sleeper| sleeper.wake());
    }
}

/// Sleeps until one of `fds` is readable or the timeout has passed.
fn sleep(fds: [Option<&ModelFd>; 2], timeout: Option<Duration>) -> [bool; 2] {
    // An expired deadline is treated as one that expires next.
    let mut timeout = timeout.map(|wait| wait.max(STEP));
    loop {
        let sleeper = Arc::<Sleeper>::default();
        let readable = fds.map(|fd| {
            let Some(fd) = fd else { return false };
            let mut state = fd.0.lock();
            if state.count == 0 && timeout != Some(Duration::ZERO) {
                state.sleepers.push(Arc::clone(&sleeper));
            }
            state.count > 0
        });
        if readable.contains(&true) || timeout == Some(Duration::ZERO) {
            return readable;
        }
        time::sleep(&sleeper, timeout.is_some());
        timeout = timeout.map(|_| Duration::ZERO);
    }
}

/// Descriptor of the stack, which is readable while there are arrivals.
pub(super) struct StackFd(ModelFd);

impl StackFd {
    pub(super) fn new() -> Self {
        Self(ModelFd::new())
    }

    /// Simulates data sent by the peer.
    pub(super) fn arrive(&self) {
        self.0.add();
    }

    /// Reads all arrivals and returns their number.
    pub(super) fn read(&self) -> usize {
        self.0.take()
    }
}

/// Models an eventfd.
pub(super) struct WakeFd(ModelFd);

impl WakeFd {
    #[expect(clippy::unnecessary_wraps, reason = "the interface of the kernel's")]
    pub(super) fn new() -> Result<Self> {
        Ok(Self(ModelFd::new()))
    }

    pub(super) fn write(&self) {
        self.0.add();
    }

    pub(super) fn clear(&self) {
        self.0.take();
    }

    /// Reads the descriptor and returns its value.
    pub(super) fn read(&self) -> usize {
        self.0.take()
    }

    pub(super) fn sleep(&self, stack: Option<&StackFd>, timeout: Option<Duration>) -> bool {
        let [own, other] = sleep([Some(&self.0), stack.map(|stack| &stack.0)], timeout);
        if own {
            self.clear();
        }
        other
    }
}

/// Epoll set that contains a wake descriptor.
pub(super) struct EpollSet([ModelFd; 2]);

impl EpollSet {
    #[expect(clippy::unnecessary_wraps, reason = "the interface of the kernel's")]
    pub(super) fn new(stack: &Arc<StackFd>, wake: &WakeFd) -> Result<Self> {
        Ok(Self([wake.0.clone(), stack.0.clone()]))
    }

    #[expect(clippy::unused_self, reason = "the interface of the kernel's")]
    pub(super) fn is_set_of(&self, _: &Arc<StackFd>) -> bool {
        true
    }

    pub(super) fn sleep(&self, timeout: Option<Duration>) -> bool {
        sleep([Some(&self.0[0]), Some(&self.0[1])], timeout)[1]
    }
}

/// Epoll set of a channel.
pub(crate) struct ChannelSet {
    tokens: ModelFd,
    watched: Mutex<Option<ModelFd>>,
}

impl ChannelSet {
    pub(super) fn new(tokens: &WakeFd) -> Self {
        Self { tokens: tokens.0.clone(), watched: Mutex::default() }
    }

    #[expect(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        reason = "the interface of the kernel's"
    )]
    pub(super) fn add(&self, _: &StackFd) -> Result<()> {
        Ok(())
    }

    pub(super) fn wait_for(&self, stack: &StackFd, on: bool) {
        *self.watched.lock() = on.then(|| stack.0.clone());
        self.tokens.wake_all();
    }

    /// Models poll(2) of the application with a time-out of 0.
    pub(super) fn is_readable(&self) -> bool {
        let watched = self.watched.lock().clone();
        self.tokens.is_readable() || watched.is_some_and(|stack| stack.is_readable())
    }

    /// Models poll(2) of the application.
    pub(super) fn sleep(&self) {
        loop {
            let watched = self.watched.lock().clone();
            let fds = [Some(&self.tokens), watched.as_ref()];
            let sleeper = Arc::<Sleeper>::default();
            let mut readable = false;
            for fd in fds.into_iter().flatten() {
                let mut state = fd.0.lock();
                readable |= state.count > 0;
                state.sleepers.push(Arc::clone(&sleeper));
            }
            // The watched descriptor may have changed before this thread was registered to be
            // woken.
            let changed = self.watched.lock().is_some() != watched.is_some();
            if readable {
                return;
            }
            if !changed {
                time::sleep(&sleeper, false);
            }
        }
    }
}

/// Returns whether the stack has arrivals.
pub(super) fn is_readable(stack: &StackFd) -> bool {
    stack.0.is_readable()
}

pub(super) fn sleep_for(_: Duration) {
    time::yield_now();
}

/// Time of a clock that advances with every reading, so every deadline has passed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Instant(Duration);

/// Timeout that has not expired.
const STEP: Duration = Duration::from_millis(1);

thread_local! {
    /// Current time, shared by all executions of a model; only differences matter.
    static CLOCK: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// Advance of the clock per reading.
    static TICK: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Makes the clock advance by `tick` with every reading. The initial time does not matter.
pub fn set_tick(tick: Duration) {
    TICK.set(tick);
}

impl Instant {
    pub(super) fn now() -> Self {
        CLOCK.set(CLOCK.get() + TICK.get());
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

pub(super) fn raise_priority(_: bool) {}

per_thread!(THREAD_ID: u32 = time::new_thread_id());

pub(super) fn thread_id() -> u32 {
    THREAD_ID.with(|id| *id)
}

/// Returns `None`: no thread runs long enough between two of its steps.
pub(super) fn thread_time(_: u32) -> Option<Duration> {
    None
}

//! Waiting: a thread drives the engine for some time, and then sleeps in a system call that signals
//! interrupt or restart.

use crate::attempts::Attempts;
use crate::settings::polling_time;
use crate::sys;
use std::cell::RefCell;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::engine;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::fork;
use uiw_cabi_core::signals::{self, SignalGuard};
use uiw_verbs::{Arm, Cq, Device, PollWaiter, ShardSet};

/// Time for which a waiting thread drives the engine itself. Then it sleeps, and leaves the engine
/// to the background thread. Signals end only the sleep.
const DRIVE: Duration = Duration::from_millis(5);

/// Maximum duration of a wait, and the signals that are blocked meanwhile.
#[derive(Clone, Default)]
pub(crate) struct Limit<'a> {
    /// `None` means no limit.
    deadline: Option<Instant>,
    /// True if the call does not wait.
    now: bool,
    /// Signal mask; `None` means the thread's own mask.
    mask: Option<&'a libc::sigset_t>,
}

impl<'a> Limit<'a> {
    pub(crate) fn within(time: Duration) -> Self {
        Self { deadline: Instant::now().checked_add(time), now: time.is_zero(), mask: None }
    }

    /// Creates a limit from milliseconds as in poll(2). Negative numbers mean no limit.
    pub(crate) fn of_milliseconds(ms: i32) -> Self {
        u64::try_from(ms)
            .map_or_else(|_| Self::default(), |ms| Self::within(Duration::from_millis(ms)))
    }

    /// Returns the same limit, but at most `time`.
    pub(crate) fn at_most(&self, time: Duration) -> Self {
        let deadline =
            [self.deadline, Instant::now().checked_add(time)].into_iter().flatten().min();
        Self { deadline, ..self.clone() }
    }

    pub(crate) fn with_mask(self, mask: Option<&'a libc::sigset_t>) -> Self {
        Self { mask, ..self }
    }

    /// Returns whether the call does not wait.
    pub(crate) fn is_now(&self) -> bool {
        self.now
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.now || self.deadline.is_some_and(|at| Instant::now() >= at)
    }

    fn left(&self) -> Option<Duration> {
        self.deadline.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

thread_local! {
    static SLEEPER: RefCell<Option<Arc<SleeperFd>>> = const { RefCell::new(None) };
}

/// Eventfd that wakes a sleeping thread.
struct SleeperFd {
    event: File,
    generation: u32,
}

impl SleeperFd {
    fn new() -> Result<Arc<Self>> {
        let fd = sys::eventfd(0)?;
        // The original number becomes free again, for the program.
        let fd = sys::duplicate(fd.as_raw_fd())?;
        Ok(Arc::new(Self { event: fd.into(), generation: fork::generation() }))
    }

    /// Takes this thread's eventfd out of its place for the duration of a wait. A wait in a signal
    /// handler therefore uses another one, and takes neither the tokens nor the registrations of
    /// the interrupted wait.
    fn take() -> Result<Arc<Self>> {
        let kept = SLEEPER.try_with(RefCell::take).unwrap_or_default();
        // The child of a fork shares the previous descriptor with its parent.
        kept.filter(|sleeper| sleeper.generation == fork::generation()).map_or_else(Self::new, Ok)
    }

    fn put_back(self: Arc<Self>) {
        // This fails only if the thread is ending and its thread-local storage was destroyed.
        let _ = SLEEPER.try_with(|place| place.replace(Some(self)));
    }

    /// Sleeps until the thread is woken. It sleeps in a read, because only a read is interrupted or
    /// restarted by signals as the program has requested.
    fn sleep(&self) -> Result<()> {
        let mut token = [0u8; 8];
        (&self.event).read(&mut token).map(drop).map_err(Errno::from)
    }
}

impl Wake for SleeperFd {
    fn wake(self: Arc<Self>) {
        // This does not block in practice, because the counter has room for 2^64 - 2 wake-ups.
        let _ = (&self.event).write(&1u64.to_ne_bytes());
    }
}

/// Waits until `poll` is ready. `arm` is called before each sleep, and requests wake-ups by the
/// engine's other threads. `leave` is called after the wait, and removes the waker from where
/// `poll` has registered it, because the thread may end and the awaited object may never change.
///
/// # Errors
/// EINTR; EMFILE.
pub(crate) fn until<T>(
    device: &Device,
    mut arm: impl FnMut(),
    leave: impl Fn(&Waker),
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<T> {
    if let Some(value) = drive(device, DRIVE, SignalGuard::interrupts_read, &leave, &mut poll)? {
        return Ok(value);
    }
    let sleeper = SleeperFd::take()?;
    let waker = Waker::from(Arc::clone(&sleeper));
    let waited = loop {
        arm();
        if let Poll::Ready(value) = poll(&mut Context::from_waker(&waker)) {
            break Ok(value);
        }
        if let Err(errno) = sleeper.sleep() {
            break Err(errno);
        }
    };
    leave(&waker);
    sleeper.put_back();
    waited
}

/// Waiter with which this thread sleeps until the engine or another descriptor is ready. It is
/// taken out of its place during a wait, because a signal handler may wait as well.
struct ThreadWaiter {
    /// Dropped only in the process that created it. In the child of a fork, threads of the parent
    /// may hold its locks.
    inner: ManuallyDrop<PollWaiter>,
    generation: u32,
}

thread_local! {
    static WAITER: RefCell<Option<ThreadWaiter>> = const { RefCell::new(None) };
}

impl ThreadWaiter {
    fn take(device: &Device) -> Result<Self> {
        let kept = WAITER.try_with(RefCell::take).unwrap_or_default();
        match kept.filter(|waiter| waiter.generation == fork::generation()) {
            Some(waiter) => Ok(waiter),
            None => {
                let inner = ManuallyDrop::new(PollWaiter::new_above(device, sys::FIRST_OWN)?);
                Ok(Self { inner, generation: fork::generation() })
            }
        }
    }

    fn put_back(self) {
        // This fails only if the thread is ending and its thread-local storage was destroyed.
        let _ = WAITER.try_with(|place| place.replace(Some(self)));
    }
}

impl Drop for ThreadWaiter {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            // SAFETY: `drop` runs once for a value, and it is the only place that drops or takes
            // `inner`, which is private to this module. Nothing uses the value after `drop`.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

/// Like [`until`], but also returns, with `None`, if one of `fds` is ready or the time has passed.
/// An arrival on `shards` ends the sleep, and the thread drives them. `leave` is the same as in
/// [`until`]. A signal that is handled in the microseconds before the sleep does not end it, as
/// with poll(2).
///
/// # Errors
/// EINTR, as with poll(2) even if the program's handler restarts calls; EMFILE.
pub(crate) fn until_or<T>(
    device: Option<&Device>,
    fds: &mut Vec<libc::pollfd>,
    limit: &Limit<'_>,
    shards: impl Fn() -> ShardSet,
    leave: impl Fn(&Waker),
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<Option<T>> {
    let Some(device) = device else {
        return sleep_without_engine(fds, limit, leave, poll);
    };
    if fds.is_empty() {
        let left = limit.left().map_or(DRIVE, |left| left.min(DRIVE));
        if let Some(value) = drive(device, left, SignalGuard::interrupts_poll, &leave, &mut poll)? {
            return Ok(Some(value));
        }
    }
    let mut waiter = ThreadWaiter::take(device)?;
    let result = sleep_with(&mut waiter.inner, fds, limit, shards, poll);
    leave(&waiter.inner.waker());
    waiter.put_back();
    result
}

/// Drives `shards` for one round, in a thread that repeatedly waits for arrivals there.
pub(crate) fn make_round(device: &Device, shards: ShardSet) {
    match ThreadWaiter::take(device) {
        Ok(mut waiter) => {
            waiter.inner.arm(shards);
            waiter.inner.make_round();
            waiter.put_back();
        }
        // There is no descriptor left.
        Err(_) => device.drive(shards),
    }
}

/// Sleeps in a thread that waits only for rsockets without a connection.
fn sleep_without_engine<T>(
    fds: &mut Vec<libc::pollfd>,
    limit: &Limit<'_>,
    leave: impl Fn(&Waker),
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<Option<T>> {
    let sleeper = SleeperFd::take()?;
    let waker = Waker::from(Arc::clone(&sleeper));
    let others = fds.len();
    fds.push(libc::pollfd { fd: sleeper.event.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    let result = loop {
        if let Poll::Ready(value) = poll(&mut Context::from_waker(&waker)) {
            break Ok(Some(value));
        }
        match poll_system(fds, limit) {
            Ok(0) => break Ok(None),
            Ok(_) if fds[..others].iter().any(|fd| fd.revents != 0) => break Ok(None),
            Ok(_) => {
                if let Err(errno) = sleeper.sleep() {
                    break Err(errno);
                }
            }
            Err(errno) => break Err(errno),
        }
    };
    leave(&waker);
    sleeper.put_back();
    fds.pop();
    result
}

/// Implements the part of [`until_or`] in which the thread sleeps.
fn sleep_with<T>(
    waiter: &mut PollWaiter,
    fds: &mut Vec<libc::pollfd>,
    limit: &Limit<'_>,
    shards: impl Fn() -> ShardSet,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<Option<T>> {
    let waker = waiter.waker();
    let mut cx = Context::from_waker(&waker);
    let others = fds.len();
    fds.push(libc::pollfd { fd: waiter.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 });
    let result = loop {
        waiter.arm(shards());
        if let Poll::Ready(value) = poll(&mut cx) {
            break Ok(Some(value));
        }
        // In a busy program something has often arrived by now, which saves a system call.
        waiter.make_round();
        if !waiter.begin_sleep() {
            // Wake-ups for other purposes do not extend the wait.
            if limit.has_passed() {
                break Ok(None);
            }
            continue;
        }
        let slept = poll_system(fds, limit);
        let readable = slept.is_ok() && fds[others].revents != 0;
        waiter.end_sleep(readable);
        let found = if readable { poll(&mut cx) } else { Poll::Pending };
        match (slept, found) {
            (Err(errno), _) => break Err(errno),
            (_, Poll::Ready(value)) => break Ok(Some(value)),
            (Ok(0), _) => break Ok(None),
            (Ok(_), _) if fds[..others].iter().any(|fd| fd.revents != 0) => break Ok(None),
            (Ok(_), _) => waiter.note_spurious(),
        }
    };
    fds.pop();
    result
}

/// Drives the engine for at most `time`, with signals blocked. Otherwise a signal that arrives
/// meanwhile would be handled unnoticed, and the following sleep would not end. `interrupts` says
/// whether a pending signal ends the call.
fn drive<T>(
    device: &Device,
    time: Duration,
    interrupts: fn(&SignalGuard) -> bool,
    leave: impl Fn(&Waker),
    poll: &mut impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<Option<T>> {
    let held = signals::block_all();
    let mut registered = None;
    let found = device.wait(Some(Instant::now() + time), |cx| {
        registered.get_or_insert_with(|| cx.waker().clone());
        poll(cx)
    });
    registered.iter().for_each(leave);
    if found.is_none() && interrupts(&held) {
        return Err(Errno::INTR);
    }
    Ok(found)
}

/// Calls poll(2), and returns the number of ready descriptors.
///
/// # Errors
/// OS errors.
pub(crate) fn poll_system(fds: &mut [libc::pollfd], limit: &Limit<'_>) -> Result<usize> {
    let left = limit.left().map(|left| libc::timespec {
        tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    sys::ppoll(fds, left, limit.mask)
}

/// Mode in which a call on a socket is repeated.
pub(crate) enum RetryMode<'a, 'b> {
    /// Arrivals are processed before the call.
    Processed,
    /// Like `Processed`. If the answer is EAGAIN, the task is registered, and the next change wakes
    /// it.
    Watched(&'a mut Context<'b>),
}

/// Object for which calls of a program wait.
pub(crate) trait WaitSource {
    /// Returns the statistics of such calls.
    fn attempts(&self) -> &Attempts;

    /// Returns the completion queue of the object, if it has one.
    fn cq(&self) -> Option<Arc<Cq>>;

    /// Removes the waker of a task that does not wait any more.
    fn unwatch(&self, waker: &Waker);

    /// Requests a wake-up by the engine's background thread for the next completion.
    fn arm(&self) {
        if let Some(cq) = self.cq() {
            cq.arm(Arm::Any);
        }
    }

    /// Returns the shards of the object's connections.
    fn shards(&self) -> ShardSet {
        self.cq().map(|cq| cq.shards()).unwrap_or_default()
    }
}

/// Repeats a call until it does not return EAGAIN. Waits between the attempts, for at most `time`,
/// unless the call is non-blocking. `first` is the result for the current state of the object.
///
/// # Errors
/// The errors of the call; EAGAIN also if the time has passed.
pub(crate) fn complete<T>(
    first: Result<T>,
    source: &impl WaitSource,
    nonblocking: bool,
    time: Option<Duration>,
    mut call: impl FnMut(RetryMode<'_, '_>) -> Result<T>,
) -> Result<T> {
    if !matches!(first, Err(Errno::AGAIN)) {
        return first;
    }
    let attempts = source.attempts();
    if nonblocking || !attempts.is_omitted() {
        let second = call(RetryMode::Processed);
        let found = !matches!(second, Err(Errno::AGAIN));
        if nonblocking {
            attempts.note(found);
            return second;
        }
        attempts.count(found);
        if found {
            return second;
        }
    }
    let begun = Instant::now();
    let most = time.unwrap_or(Duration::MAX).min(polling_time());
    // Without a connection there is nothing to drive.
    if attempts.expect_soon() && !source.shards().is_empty() {
        // Signals are blocked for the same reason as in `drive`.
        let held = signals::block_all();
        if let Some(found) = attempts.poll(begun, most, || pending(call(RetryMode::Processed))) {
            return found;
        }
        let is_interrupted =
            if time.is_some() { held.interrupts_poll() } else { held.interrupts_read() };
        if is_interrupted {
            return Err(Errno::INTR);
        }
    }
    let poll = |cx: &mut Context<'_>| pending(call(RetryMode::Watched(cx)));
    let device = engine::get()?;
    let leave = |waker: &Waker| source.unwatch(waker);
    let waited = match time {
        None => until(&device, || source.arm(), leave, poll)?,
        Some(time) => {
            let limit = Limit::within(time.saturating_sub(begun.elapsed()));
            let done =
                until_or(Some(&device), &mut Vec::new(), &limit, || source.shards(), leave, poll)?;
            done.unwrap_or(Err(Errno::AGAIN))
        }
    };
    if !matches!(waited, Err(Errno::AGAIN)) {
        attempts.ended(begun.elapsed());
    }
    waited
}

/// Converts the result of an attempt: EAGAIN becomes `Pending`.
pub(crate) fn pending<T>(answer: Result<T>) -> Poll<Result<T>> {
    match answer {
        Err(Errno::AGAIN) => Poll::Pending,
        other => Poll::Ready(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each attempt is followed by a wake-up, as in a thread that waits beside busy connections,
    /// and therefore never sleeps.
    #[test]
    fn wait_unaffected_by_foreign_wakeups() {
        let device = Device::open().unwrap();
        let begun = Instant::now();
        let limit = Limit::within(Duration::from_millis(20));
        let mut attempts = 0;
        let waited = until_or(
            Some(&device),
            &mut Vec::new(),
            &limit,
            ShardSet::default,
            |_| {},
            |cx| {
                attempts += 1;
                cx.waker().wake_by_ref();
                // The wait ends here if it does not end by itself.
                if begun.elapsed() < Duration::from_secs(5) {
                    Poll::Pending
                } else {
                    Poll::Ready(())
                }
            },
        );
        assert_eq!(waited, Ok(None), "after {attempts} attempts");
        assert!(limit.has_passed() && attempts > 1, "{attempts} attempts");
    }
}

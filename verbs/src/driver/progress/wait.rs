//! Blocking waits: a thread drives the shard, or sleeps, until its condition is met.

use super::super::mutant::{Mutant, is_mutant};
use super::super::os::Instant;
use super::super::park::Parker;
use super::super::sync::yield_now;
use super::{Drive, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

/// Time for which a driving thread keeps polling after bytes have moved. Related segments arrive
/// within it, and a sleep with its wake-up costs as much.
const KEEP_POLLING: Duration = Duration::from_micros(20);
/// Maximum number of rounds before the caller checks the ownership, and whether the driver still
/// exists.
const KEEP_POLLING_ROUNDS: usize = 256;
/// Pause of a thread that an event has woken while another thread drives, before it waits for the
/// descriptor again.
const CORE_HELD: Duration = Duration::from_micros(200);

/// Pause between two rounds of a thread that has no descriptor to sleep on. The process is short of
/// descriptors, so the processor time is better spent on its connections.
const WITHOUT_DESCRIPTOR: Duration = Duration::from_millis(1);

/// True if the shortage of descriptors was logged. Every wait of every thread finds it again.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// Calls `poll` until it is ready or `deadline` has passed, and drives meanwhile. Returns `None` if
/// the deadline has passed.
pub(in super::super) fn block_on<D: Drive, T>(
    drive: &Arc<D>,
    deadline: Option<Instant>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    let parker = match Parker::current() {
        Ok(parker) => parker,
        Err(error) => {
            if !REPORTED.swap(true, Ordering::Relaxed) {
                tracing::warn!(%error, "no descriptor to sleep on: the thread polls every millisecond instead");
            }
            return poll_on(drive, deadline, poll);
        }
    };
    let waker = Waker::from(Arc::clone(&parker));
    let mut cx = Context::from_waker(&waker);
    // This wait may be nested in another one of the thread and clear its wake-ups. So the outer
    // wait is notified to check its condition again.
    let _outer = NotifyOnDrop(&parker);
    // The thread stays the active poller from its first sleep until it returns. Handing over at
    // every wake-up would wake two threads each time.
    let mut active = None;
    loop {
        parker.reset();
        if let Poll::Ready(value) = poll(&mut cx) {
            return Some(value);
        }
        let pumped = drive.try_pump();
        let moved = pumped.is_some_and(|moved| moved > 0);
        let is_late = deadline.is_some_and(|at| Instant::now() >= at);
        if parker.is_notified() {
            if !is_late {
                continue;
            }
            // Wake-ups for other waits do not extend this one.
            return match poll(&mut cx) {
                Poll::Ready(value) => Some(value),
                Poll::Pending => None,
            };
        }
        if is_late {
            return None;
        }
        // A thread on standby does not keep polling, because one driving thread is enough.
        if moved && (active.is_some() || !drive.progress().ownership.is_owned()) {
            keep_polling(drive, || parker.is_notified());
            continue;
        }
        let pending = sleep(drive, &parker, deadline, &mut active);
        if pending && pumped.is_none() {
            // The thread that holds the core serves the work.
            yield_now();
        }
    }
}

/// Like [`block_on`], for a thread that cannot be woken.
fn poll_on<D: Drive, T>(
    drive: &Arc<D>,
    deadline: Option<Instant>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = poll(&mut cx) {
            return Some(value);
        }
        let moved = drive.try_pump().is_some_and(|moved| moved > 0);
        if deadline.is_some_and(|at| Instant::now() >= at) {
            return None;
        }
        if !moved {
            thread::sleep(WITHOUT_DESCRIPTOR);
        }
    }
}

/// Sleeps. Returns true without sleeping if a post or a command is waiting. On a device that the
/// program drives itself, only yields the processor.
fn sleep<'a, D: Drive>(
    drive: &'a Arc<D>,
    parker: &Arc<Parker>,
    deadline: Option<Instant>,
    active: &mut Option<ActivePoller<'a>>,
) -> bool {
    let state = drive.progress();
    if state.manual {
        yield_now();
        return false;
    }
    let read = || (drive.is_pending(), state.deadline());
    let read_early = is_mutant(Mutant::ReadBeforeClaim).then(read);
    if active.is_none() && !state.ownership.is_owned_by(parker) {
        if !state.ownership.claim_or_stand_by(parker) {
            parker.sleep(None, deadline);
            state.ownership.leave_standby(parker);
            return false;
        }
        *active = Some(ActivePoller(state));
    }
    // Read after the claim, because a thread that changed either value before it may have found no
    // owner to wake.
    let (pending, timer) = read_early.unwrap_or_else(read);
    if pending {
        return true;
    }
    let until = match (timer, deadline) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    state.ownership.fall_asleep();
    let readable = match &state.waiter {
        Some(waiter) => parker.sleep_in(waiter, until),
        None => parker.sleep(None, until),
    };
    state.ownership.wake_up();
    if readable && !drive.try_handle_stack_event() {
        parker.sleep(None, Some(Instant::now() + CORE_HELD));
    }
    false
}

/// Makes rounds while bytes move, and for [`KEEP_POLLING`] after that, until `stop` returns true.
pub(super) fn keep_polling<D: Drive>(drive: &Arc<D>, stop: impl Fn() -> bool) {
    if drive.progress().manual {
        return;
    }
    let mut last = Instant::now();
    for _ in 0..KEEP_POLLING_ROUNDS {
        if stop() {
            return;
        }
        if drive.try_pump().is_some_and(|moved| moved > 0) {
            last = Instant::now();
        } else if last.elapsed() >= KEEP_POLLING {
            return;
        } else {
            yield_now();
        }
    }
}

/// Guard that notifies the parker of its own thread when the wait ends for any reason.
struct NotifyOnDrop<'a>(&'a Parker);

impl Drop for NotifyOnDrop<'_> {
    fn drop(&mut self) {
        self.0.notify();
    }
}

/// Role of the active poller, which the thread has until this is dropped.
struct ActivePoller<'a>(&'a State);

impl Drop for ActivePoller<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

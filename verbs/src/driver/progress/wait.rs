//! Blocking waits: a thread drives the shard, or sleeps, until its condition is met.

use super::super::os::Instant;
use super::super::park::Parker;
use super::super::sync::{per_thread, yield_now};
use super::ownership::{PAUSE, WaitRole};
use super::{Drive, POLL_GAP, RELATED, State};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

/// True if the shortage of descriptors was logged. Every wait of every thread finds it again.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// Calls `poll` until it is ready or `deadline` has passed, and drives meanwhile. Returns `None` if
/// the deadline has passed.
pub(in super::super) fn block_on<D: Drive, T>(
    drive: &Arc<D>,
    deadline: Option<Instant>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    let parker = match Parker::current(drive.progress().process) {
        Ok(parker) => parker,
        Err(error) => {
            if !REPORTED.swap(true, Ordering::Relaxed) {
                tracing::warn!(%error, "no descriptor to sleep on: the thread polls with pauses instead");
            }
            return poll_on(drive, deadline, poll);
        }
    };
    let waker = Waker::from(Arc::clone(&parker));
    let mut cx = Context::from_waker(&waker);
    // This wait may be nested in another one of the thread and clear its wake-ups. So the outer
    // wait is notified to check its condition again.
    let _outer = NotifyOnDrop(&parker);
    // The thread stays the active poller from its first sleep until it returns, or until another
    // thread is found to poll steadily. Handing over at every wake-up would wake two threads each
    // time.
    let mut active = None;
    let mut other = OtherPoller::default();
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
        let pending = sleep(drive, &parker, deadline, &mut active, &mut other);
        if pending && pumped.is_none() {
            // The thread that holds the core serves the work.
            if is_contended() {
                parker.sleep(None, Some(Instant::now() + RELATED));
            } else {
                yield_processor();
            }
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
            // The process is short of descriptors, so the processor time is better spent on its
            // connections.
            thread::sleep(POLL_GAP);
        }
    }
}

/// Sleeps. Returns true without sleeping if a post or a command is waiting. On a device that the
/// program drives itself, only yields the processor.
fn sleep<'a, D: Drive>(
    drive: &'a Arc<D>,
    parker: &Arc<Parker>,
    deadline: Option<Instant>,
    active: &mut Option<PollerRole<'a>>,
    other: &mut OtherPoller,
) -> bool {
    let state = drive.progress();
    if state.manual {
        yield_now();
        return false;
    }
    if active.is_none() && !state.ownership.is_owned_by(parker) {
        match state.ownership.claim_or_stand_by(parker, || state.now()) {
            WaitRole::Poller { was_left } => {
                *active = Some(PollerRole(state));
                if was_left {
                    other.expect();
                }
            }
            WaitRole::Standby => {
                parker.sleep(None, deadline);
                state.ownership.leave_standby(parker);
                return false;
            }
            WaitRole::LeftUntil(until) => {
                // The other thread serves the arrivals. If it stops, the background thread does.
                let until = state.base + Duration::from_nanos(until);
                parker.sleep(None, Some(deadline.map_or(until, |at| at.min(until))));
                return false;
            }
        }
    }
    // Read after the claim, because a thread that changed either value before it may have found no
    // owner to wake.
    if drive.is_pending() {
        return true;
    }
    let until = [state.deadline(), deadline].into_iter().flatten().min();
    let readable = match &state.waiter {
        Some(waiter) => parker.sleep_in(waiter, until),
        None => parker.sleep(None, until),
    };
    state.ownership.end_sleep();
    if readable && !drive.try_handle_stack_event() {
        // Another thread drives. Until its round ends, the descriptor stays readable.
        parker.sleep(None, Some(Instant::now() + POLL_GAP));
    }
    if readable && active.is_some() && other.serves(state) {
        state.ownership.leave(state.now() + PAUSE);
        *active = None;
    }
    false
}

// Time until which another thread is expected to want the processor of this thread.
per_thread!(CONTENDED_UNTIL: Cell<Option<Instant>> = Cell::new(None));

/// Returns whether, during the last [`PAUSE`], another thread has kept the processor for
/// [`POLL_GAP`] or longer after this thread had yielded it.
///
/// If so, the caller should sleep instead of yielding again: a thread that wakes up preempts the
/// other one, while a thread that yields waits milliseconds for its turn.
fn is_contended() -> bool {
    CONTENDED_UNTIL.with(Cell::get).is_some_and(|until| Instant::now() < until)
}

/// Yields the processor to any other thread. Updates [`is_contended`].
fn yield_processor() {
    let begun = Instant::now();
    yield_now();
    let now = Instant::now();
    if now - begun >= POLL_GAP {
        CONTENDED_UNTIL.with(|until| until.set(Some(now + Duration::from_nanos(PAUSE))));
    }
}

/// Makes rounds while bytes move, and for [`RELATED`] after that, because a sleep with its wake-up
/// costs as much. Ends early if `stop` returns true, if the processor is contended, and after
/// [`POLL_GAP`], so that the caller checks its deadline and the owner.
pub(super) fn keep_polling<D: Drive>(drive: &Arc<D>, stop: impl Fn() -> bool) {
    if drive.progress().manual || is_contended() {
        return;
    }
    let begun = Instant::now();
    let mut last = begun;
    while last - begun < POLL_GAP && !stop() {
        if drive.try_pump().is_some_and(|moved| moved > 0) {
            last = Instant::now();
        } else if last.elapsed() >= RELATED {
            return;
        } else {
            yield_processor();
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
struct PollerRole<'a>(&'a State);

impl Drop for PollerRole<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Count of arrivals that another thread serves. An arrival counts up if another thread has polled
/// before it, and down otherwise. The first arrivals of a wait count up without being examined,
/// because most waits are shorter.
///
/// Only arrivals that end the sleep are counted. The kernel wakes the thread several times as often,
/// but lets it sleep on if the other thread has served the arrival by then.
#[derive(Default)]
struct OtherPoller(u32);

impl OtherPoller {
    /// Number of arrivals of a wait that are not examined, and number of arrivals in excess of it
    /// after which the other thread is assumed to poll steadily.
    const ARRIVALS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 4 };

    /// Records that another thread has polled steadily a short time ago. It is expected to poll
    /// still, so that the next arrival decides.
    fn expect(&mut self) {
        self.0 = 2 * Self::ARRIVALS;
    }

    /// Records an arrival. Returns whether another thread polls so steadily that this thread only
    /// disturbs it.
    fn serves(&mut self, state: &State) -> bool {
        self.0 += 1;
        if self.0 > Self::ARRIVALS && !state.take_hint_of_another() {
            // The count is not reset, because the background thread may have cleared the hint.
            self.0 = self.0.saturating_sub(2);
            return false;
        }
        self.0 > 2 * Self::ARRIVALS
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::super::os::thread_id;
    use super::super::WAIT_ENDED;
    use super::*;

    #[test]
    fn role_ends_if_another_thread_polls_steadily() {
        let state = State::new(None, false).unwrap();
        let arrivals_until_served = |other: &mut OtherPoller, hints: [u32; 2]| {
            (1..100).find(|n| {
                state.poll_hint.store(hints[n % 2], Ordering::SeqCst);
                other.serves(&state)
            })
        };
        let another = thread_id() + 1;
        let mut other = OtherPoller::default();
        for none in [0, thread_id(), WAIT_ENDED] {
            assert_eq!(arrivals_until_served(&mut other, [none, another]), None);
        }
        let longest = 2 * OtherPoller::ARRIVALS as usize + 1;
        assert!(arrivals_until_served(&mut other, [another; 2]).is_some_and(|n| n <= longest));
        let mut other = OtherPoller::default();
        other.expect();
        assert_eq!(arrivals_until_served(&mut other, [another; 2]), Some(1));
    }
}

//! The background thread: the owner while no application thread waits or polls, on standby otherwise.

use super::super::os::{Instant, is_readable, sleep_for};
use super::ownership::{Beside, Seen, Turn};
use super::wait::keep_polling;
use super::{COALESCE, Drive, State};
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The timer of standby, at first. An arrival at an application that stopped polling without arming waits for at most two timers.
const TIMER: Duration = Duration::from_micros(200);
/// Under steady polling the timer grows, soon to this.
const MAX_TIMER: Duration = Duration::from_millis(1);
/// Where polling has lasted for long, the timer is this part of that time: a turn takes 25 microseconds of a poller's core, and with
/// one each millisecond at both ends one of fifty round trips met one.
const TIMER_PART: u32 = 16;
/// But it is no longer than this.
const MAX_LONG_TIMER: Duration = Duration::from_millis(4);

/// Runs the background thread of `drive`, until that is dropped.
pub(in super::super) fn run<D: Drive>(state: &State, drive: &Weak<D>) {
    let mut background = Background { state, drive, standby: Standby::default() };
    // The flag ends a sleep; the count ends this loop also while `drop` has not come to [`State::stop`] yet.
    while !state.stop.load(Ordering::SeqCst) && drive.strong_count() > 0 {
        // Before any state is read: a wake-up that comes later is not forgotten.
        state.background.reset();
        if state.coalescing.load(Ordering::SeqCst) {
            background.flush_coalesced();
        } else {
            background.turn();
        }
    }
}

struct Background<'a, D> {
    state: &'a State,
    drive: &'a Weak<D>,
    standby: Standby,
}

/// What the background thread has seen while it was on standby.
#[derive(Default)]
struct Standby {
    seen: Seen,
    /// Rounds that were made, at the last turn or after the last one of its own, which is no sign of life of others.
    rounds: u32,
    /// Rounds were made between the last two turns.
    driven: bool,
    /// At every turn since then there was a poll hint and rounds were made.
    polled_since: Option<Instant>,
    timer: Duration,
}

impl<D: Drive> Background<'_, D> {
    fn turn(&mut self) {
        let state = self.state;
        self.standby.driven = self.see_rounds();
        // Who polls but never finds the queue empty makes no rounds.
        let hinted = state.poll_hint.swap(false, Ordering::SeqCst) && self.standby.driven;
        state.poll_hint_held.store(hinted, Ordering::Relaxed);
        let beside =
            Beside { readable: &|| state.stack.as_deref().is_some_and(is_readable), now: &|| state.now() };
        let (seen, driven) = (&mut self.standby.seen, self.standby.driven);
        let until = match state.ownership.background_turn(seen, driven, hinted, &beside) {
            Turn::Own => {
                (self.standby.timer, self.standby.polled_since) = (Duration::ZERO, None);
                return self.own();
            }
            Turn::Parked => None,
            Turn::Timed { owned } => Some(self.standby.next_timer(owned)),
        };
        self.help();
        state.standby_timed.store(until.is_some(), Ordering::SeqCst);
        state.background.sleep(None, until);
        state.standby_timed.store(false, Ordering::SeqCst);
    }

    /// Coalesced posts wait for more for [`COALESCE`]; mostly a poll serves them meanwhile.
    fn flush_coalesced(&mut self) {
        sleep_for(COALESCE);
        // Cleared before `pending` is read: a post behind that reading sets it again.
        self.state.coalescing.store(false, Ordering::SeqCst);
        if self.is_pending() {
            self.make_round(false);
        }
    }

    /// Drives in the place of others when they do not: an active poller that is awake but busy with something else, a poller that
    /// posted and does not poll any more, an armed program, which no deadline wakes. If rounds were made since the last turn there is
    /// nothing to help with.
    fn help(&mut self) {
        let due = || self.state.deadline().is_some_and(|at| at <= Instant::now());
        let seen = &self.standby.seen;
        if !self.standby.driven && (seen.stays_awake || self.is_pending() || seen.armed && due()) {
            self.make_round(false);
            self.see_rounds();
        }
    }

    /// Sleeps as the owner, and drives if it still is the owner then.
    fn own(&mut self) {
        let state = self.state;
        let Some(drive) = self.drive.upgrade() else { return };
        let idle = !drive.is_pending() && !state.coalescing.load(Ordering::SeqCst);
        // Not kept alive by its own thread's sleep.
        drop(drive);
        let readable = idle && state.background.sleep(state.stack.as_deref(), state.deadline());
        let was_owner = state.ownership.background_release();
        // While an application thread polls and drives, the arrival is its own; with an active poller, that one's.
        let theirs = state.poll_hint.load(Ordering::SeqCst) && self.has_rounds();
        if was_owner && !theirs {
            self.make_round(readable);
            self.see_rounds();
        }
    }

    fn make_round(&self, readable: bool) {
        let state = self.state;
        let Some(drive) = self.drive.upgrade() else { return };
        let drove = if readable { drive.try_ask() } else { drive.try_pump() }.is_some();
        if !drove {
            // Another thread drives, and until it is done the descriptor stays readable or the deadline past.
            state.background.sleep(None, Some(Instant::now() + TIMER));
        } else if readable {
            keep_polling(&drive, || state.poll_hint.load(Ordering::SeqCst) || state.ownership.is_taken());
        }
    }

    fn is_pending(&self) -> bool {
        self.drive.upgrade().is_some_and(|drive| drive.is_pending())
    }

    /// Whether rounds were made since this was asked last.
    fn see_rounds(&mut self) -> bool {
        let now = self.rounds();
        std::mem::replace(&mut self.standby.rounds, now) != now
    }

    /// As [`Self::see_rounds`], and the next question is answered the same.
    fn has_rounds(&self) -> bool {
        self.rounds() != self.standby.rounds
    }

    fn rounds(&self) -> u32 {
        self.drive.upgrade().map_or(self.standby.rounds, |drive| drive.rounds())
    }
}

impl Standby {
    /// When the standby that begins now ends. `owned`: there is an active poller.
    fn next_timer(&mut self, owned: bool) -> Instant {
        let now = Instant::now();
        let most = if owned {
            self.polled_since = None;
            MAX_TIMER
        } else {
            let polled_for = now - *self.polled_since.get_or_insert(now);
            (polled_for / TIMER_PART).clamp(MAX_TIMER, MAX_LONG_TIMER)
        };
        self.timer = (self.timer * 2).clamp(TIMER, most);
        now + self.timer
    }
}

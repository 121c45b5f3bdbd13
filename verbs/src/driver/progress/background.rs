//! Background thread: the owner while no application thread waits or polls, on standby otherwise.

use super::super::os::{Instant, raise_priority, sleep_for, thread_time};
use super::memory_polls::{ARRIVALS_PER_CHECK, MemoryPolls};
use super::ownership::{BackgroundAction, IDLE_TURNS, TurnObservations, TurnProbes};
use super::wait::keep_polling;
use super::{Drive, POLL_GAP, RELATED, StandbyTimer, State};
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Divisor for the timer of the standby: the timer is the time for which the standby has lasted,
/// divided by this number. A turn takes some processor time of the poller, so turns must be rare
/// compared with round trips. If an application has stopped polling without arming a queue, an
/// arrival waits for at most two timers.
const TIMER_PART: u32 = 8;
/// Maximum timer of the standby.
const MAX_TIMER: Duration = Duration::from_millis(16);

/// Runs the background thread of the shard `drive` until the shard is dropped.
pub(in super::super) fn run<D: Drive>(state: &State, drive: &Weak<D>) {
    let mut background = BackgroundThread {
        state,
        drive,
        standby: StandbyState::default(),
        memory_polls: MemoryPolls::default(),
        poller: 0,
    };
    loop {
        // Reset before any state is read, so that a later wake-up is kept.
        state.background.reset();
        if drive.strong_count() == 0 {
            return;
        }
        if state.coalescing.load(Ordering::SeqCst) {
            background.flush_coalesced();
        } else {
            background.turn();
        }
    }
}

struct BackgroundThread<'a, D> {
    state: &'a State,
    drive: &'a Weak<D>,
    standby: StandbyState,
    memory_polls: MemoryPolls,
    /// Poll hint that this thread has cleared last.
    poller: u32,
}

/// Observations of the background thread while it was on standby.
#[derive(Default)]
struct StandbyState {
    seen: TurnObservations,
    /// Number of rounds at the last turn, or after the last round that this thread has made itself.
    /// That one must not count as a round of another thread.
    rounds: u32,
    /// True if rounds were made between the last two turns.
    driven: bool,
    /// Start of the standby. `None` if this thread was the owner at its last turn.
    since: Option<Instant>,
    /// Time since which this thread has been the owner of a shard whose program polls; `None` if it
    /// is not.
    polled_since: Option<Instant>,
}

impl<D: Drive> BackgroundThread<'_, D> {
    fn turn(&mut self) {
        let state = self.state;
        self.standby.driven = self.see_rounds();
        // A program that polls but never finds its queue empty makes no rounds. Then the poll hint
        // does not count.
        let polled = self.take_hint();
        let hinted = polled && self.standby.driven;
        if hinted
            && self.standby.since.is_some()
            && state.is_readable()
            && self.memory_polls.is_to_be_checked(true, IDLE_TURNS)
        {
            // Handled like a turn of the standby.
            state.set_standby_timer(StandbyTimer::Polled);
            let unserved = self.check();
            state.set_standby_timer(StandbyTimer::Off);
            if unserved {
                self.make_round(false);
            }
        }
        let hinted = hinted && !self.memory_polls.are_likely();
        let probes = TurnProbes { readable: &|| state.is_readable(), now: &|| state.now() };
        let (seen, driven) = (&mut self.standby.seen, self.standby.driven);
        let until = match state.ownership.background_turn(seen, driven, hinted, &probes) {
            BackgroundAction::Own => {
                self.standby.since = None;
                return self.sleep_as_owner(polled);
            }
            BackgroundAction::Parked => None,
            // An active poller may run other code.
            BackgroundAction::Timed { owned } => Some(next_timer(&mut self.standby.since, owned)),
        };
        self.help();
        state.set_standby_timer(match until {
            None => StandbyTimer::Off,
            Some(_) if hinted => StandbyTimer::Polled,
            Some(_) => StandbyTimer::On,
        });
        state.background.sleep(None, until);
        state.set_standby_timer(StandbyTimer::Off);
    }

    /// Clears the poll hint. Returns whether there was one.
    fn take_hint(&mut self) -> bool {
        let hint = self.state.poll_hint.swap(0, Ordering::SeqCst);
        if hint != 0 {
            self.poller = hint;
        }
        hint != 0
    }

    /// Waits for [`RELATED`], so that coalesced posts get company. Usually a poll serves them within
    /// that time.
    fn flush_coalesced(&mut self) {
        sleep_for(RELATED);
        // Cleared before `pending` is read, because a later post sets it again.
        self.state.coalescing.store(false, Ordering::SeqCst);
        if self.is_pending() {
            self.make_round(false);
        }
    }

    /// Drives if no other thread does: if an active poller is awake but runs other code, if a post
    /// of a program that has stopped polling is pending, or if a deadline has passed while an armed
    /// program, which a deadline does not wake, is the owner. Does nothing if rounds were made
    /// since the last turn.
    fn help(&mut self) {
        let due = || self.state.deadline().is_some_and(|at| at <= Instant::now());
        let seen = &self.standby.seen;
        if !self.standby.driven && (seen.stays_awake || self.is_pending() || seen.armed && due()) {
            self.make_round(false);
        }
    }

    /// Sleeps as the owner. Then drives, if this thread is still the owner.
    ///
    /// If the program has `polled`, it is expected to serve its coalesced posts itself. So they do
    /// not wake this thread, whose sleep has a timer instead.
    fn sleep_as_owner(&mut self, polled: bool) {
        let state = self.state;
        let Some(drive) = self.drive.upgrade() else { return };
        let idle = !drive.is_pending() && !state.coalescing.load(Ordering::SeqCst);
        // The thread must not keep the shard alive while it sleeps.
        drop(drive);
        let end = self.memory_polls.end();
        let timer = if polled && !self.memory_polls.are_likely() {
            state.set_standby_timer(StandbyTimer::Polled);
            Some(next_timer(&mut self.standby.polled_since, true))
        } else {
            self.standby.polled_since = None;
            None
        };
        let until = [state.deadline(), end, timer].into_iter().flatten().min();
        let readable = idle && state.background.sleep(state.stack.as_deref(), until);
        state.set_standby_timer(StandbyTimer::Off);
        let was_owner = state.ownership.background_release();
        if let Some(end) = end {
            let now = Instant::now();
            if readable {
                self.memory_polls.last_arrival = Some(now);
            } else if end <= now || !was_owner {
                // If anything has arrived, a poll has served it before this thread was woken, or a
                // thread waits in a call.
                self.observe(false);
            }
        }
        if !was_owner {
            return;
        }
        // If an application thread polls and drives, it serves the arrival. So does an active
        // poller.
        let polled = state.poll_hint.load(Ordering::SeqCst) != 0;
        let by_poller = polled && self.has_rounds();
        if readable && self.memory_polls.is_to_be_checked(polled && !by_poller, ARRIVALS_PER_CHECK)
        {
            self.take_hint();
            self.check();
        }
        if self.memory_polls.are_likely() {
            self.serve_memory_poller(readable);
        } else if !by_poller {
            self.make_round(readable);
        }
    }

    /// Checks whether the program polls memory. Returns whether an arrival is unserved.
    fn check(&mut self) -> bool {
        let unserved = self.is_unserved().unwrap_or(false);
        self.observe(unserved);
        unserved
    }

    /// Records whether an arrival was unserved, or polls serve the arrivals.
    fn observe(&mut self, unserved: bool) {
        let was_likely = self.memory_polls.are_likely();
        self.memory_polls.observe(unserved);
        let is_likely = self.memory_polls.are_likely();
        if is_likely != was_likely {
            raise_priority(is_likely);
            tracing::debug!(polls_memory = is_likely, "assumption about memory polling changed");
        }
    }

    /// Returns whether the stack stays readable while the thread that polled last is running and
    /// makes no poll. Returns `None` if that thread is not running or has ended.
    fn is_unserved(&self) -> Option<bool> {
        let state = self.state;
        let (poller, rounds) = (self.poller, self.rounds());
        let begun = thread_time(poller)?;
        let mut before = begun;
        loop {
            sleep_for(RELATED);
            // A round that has begun serves the arrival.
            let served = self.rounds() != rounds || self.is_held() || !state.is_readable();
            if served || state.poll_hint.load(Ordering::SeqCst) != 0 {
                return Some(false);
            }
            // Wall-clock time does not count, because the thread may have been preempted. The clock
            // goes back if the thread has ended and a new one has its number.
            let now = thread_time(poller)?;
            if now.saturating_sub(begun) >= POLL_GAP {
                return Some(true);
            }
            if now.saturating_sub(before) < RELATED / 2 {
                return None;
            }
            before = now;
        }
    }

    /// Makes a round for a program that polls memory; the next arrival ends the next sleep. This
    /// thread does not keep polling, because it would yield the processor to the program, which may
    /// keep it for milliseconds. A thread that is woken from sleep preempts the program.
    fn serve_memory_poller(&mut self, readable: bool) {
        let Some(drive) = self.drive.upgrade() else { return };
        let served = if readable { drive.try_poll_stack() } else { drive.try_pump() };
        drop(drive);
        if served.is_some() {
            self.see_rounds();
        } else {
            // The core is held by a call of the program, which ends soon.
            self.state.background.sleep(None, Some(Instant::now() + RELATED));
        }
    }

    fn make_round(&mut self, readable: bool) {
        let state = self.state;
        let Some(drive) = self.drive.upgrade() else { return };
        let drove = if readable { drive.try_poll_stack() } else { drive.try_pump() }.is_some();
        if !drove {
            // Another thread drives. Until its round ends, the descriptor stays readable, or the
            // deadline stays in the past. Its rounds count at the next turn.
            state.background.sleep(None, Some(Instant::now() + POLL_GAP));
            return;
        }
        if readable {
            let hinted = || state.poll_hint.load(Ordering::SeqCst) != 0;
            keep_polling(&drive, || hinted() || state.ownership.is_taken());
        }
        self.see_rounds();
    }

    fn is_pending(&self) -> bool {
        self.drive.upgrade().is_some_and(|drive| drive.is_pending())
    }

    fn is_held(&self) -> bool {
        self.drive.upgrade().is_some_and(|drive| drive.is_held())
    }

    /// Returns whether rounds were made since the last call.
    fn see_rounds(&mut self) -> bool {
        let now = self.rounds();
        std::mem::replace(&mut self.standby.rounds, now) != now
    }

    /// Like [`Self::see_rounds`], but does not affect the result of the next call.
    fn has_rounds(&self) -> bool {
        self.rounds() != self.standby.rounds
    }

    fn rounds(&self) -> u32 {
        self.drive.upgrade().map_or(self.standby.rounds, |drive| drive.rounds())
    }
}

/// Returns the end of a timer that begins now, in a state that has lasted since `since`. A `short`
/// timer is for states in which other threads may stop serving the shard at any time.
fn next_timer(since: &mut Option<Instant>, short: bool) -> Instant {
    let now = Instant::now();
    let lasted = now - *since.get_or_insert(now);
    let most = if short { MAX_TIMER / TIMER_PART } else { MAX_TIMER };
    now + (lasted / TIMER_PART).clamp(POLL_GAP, most)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::super::os::StackFd;
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32};

    /// Shard whose descriptor is always readable, and whose core another thread holds. That thread
    /// polls and makes a round whenever the background thread tries to make one.
    struct PolledShard {
        state: State,
        rounds: AtomicU32,
        tries: AtomicU32,
    }

    impl Drive for PolledShard {
        fn progress(&self) -> &State {
            &self.state
        }
        fn is_pending(&self) -> bool {
            false
        }
        fn is_held(&self) -> bool {
            true
        }
        fn rounds(&self) -> u32 {
            self.rounds.load(Ordering::SeqCst)
        }
        fn try_pump(self: &Arc<Self>) -> Option<usize> {
            self.try_poll_stack()
        }
        fn try_poll_stack(self: &Arc<Self>) -> Option<usize> {
            self.tries.fetch_add(1, Ordering::SeqCst);
            self.rounds.fetch_add(1, Ordering::SeqCst);
            self.state.hint_poll();
            None
        }
        fn try_handle_stack_event(self: &Arc<Self>) -> bool {
            false
        }
    }

    /// Shard without events, on which only the background thread makes rounds.
    struct IdleShard(State);

    impl Drive for IdleShard {
        fn progress(&self) -> &State {
            &self.0
        }
        fn is_pending(&self) -> bool {
            false
        }
        fn is_held(&self) -> bool {
            false
        }
        fn rounds(&self) -> u32 {
            0
        }
        fn try_pump(self: &Arc<Self>) -> Option<usize> {
            Some(0)
        }
        fn try_poll_stack(self: &Arc<Self>) -> Option<usize> {
            Some(0)
        }
        fn try_handle_stack_event(self: &Arc<Self>) -> bool {
            true
        }
    }

    fn background_thread<'a, D: Drive>(
        state: &'a State,
        drive: &'a Weak<D>,
    ) -> BackgroundThread<'a, D> {
        BackgroundThread {
            state,
            drive,
            standby: StandbyState::default(),
            memory_polls: MemoryPolls::default(),
            poller: 0,
        }
    }

    #[test]
    fn posts_of_polling_program_do_not_wake_owner() {
        const TIMEOUT: Duration = Duration::from_secs(20);
        let shard = Arc::new(IdleShard(State::new(None, false).unwrap()));
        let (state, drive) = (&shard.0, Arc::downgrade(&shard));
        let ended = AtomicBool::new(false);
        let was_woken = std::thread::scope(|scope| {
            let program = scope.spawn(|| {
                let until = Instant::now() + TIMEOUT;
                while state.standby_timer() == StandbyTimer::Off as u32 && Instant::now() < until {
                    std::thread::yield_now();
                }
                state.coalesce_timer();
                ended.store(true, Ordering::SeqCst);
                // Ends a sleep without a timer.
                state.background.notify();
                state.coalescing.load(Ordering::SeqCst)
            });
            let mut background = background_thread(state, &drive);
            while !ended.load(Ordering::SeqCst) {
                state.hint_poll();
                background.turn();
                assert!(background.standby.since.is_none(), "it is the owner");
            }
            program.join().unwrap()
        });
        assert!(!was_woken);
    }

    #[test]
    fn background_thread_leaves_polled_shard() {
        // A pipe whose other end is closed is readable.
        let (stack, _) = std::io::pipe().unwrap();
        let stack = StackFd::from(stack);
        let shard = Arc::new(PolledShard {
            state: State::new(Some(Arc::new(stack)), false).unwrap(),
            rounds: AtomicU32::new(0),
            tries: AtomicU32::new(0),
        });
        let drive = Arc::downgrade(&shard);
        let mut background = background_thread(&shard.state, &drive);
        // The owner, because there was no poll yet.
        background.turn();
        assert_eq!(shard.tries.load(Ordering::SeqCst), 1);
        // On standby, because the polling thread has made a round meanwhile.
        background.turn();
        assert_eq!(shard.tries.load(Ordering::SeqCst), 1);
        assert!(background.standby.since.is_some());
    }
}

//! Who drives a shard, and who wakes whom.
//!
//! A thread that waits in one of the engine's calls sleeps in the stack's descriptor itself and drives when it wakes: no second thread
//! stands between an arrival and its receiver. It is the *active poller*; other threads that wait are on *standby*, and one of them
//! takes over when it returns. The *background thread* drives when there is no active poller and no application thread polls. When all
//! is idle every thread sleeps without a time-out.
//!
//! # Ownership
//!
//! The owner is whoever sleeps in the stack's descriptor, or is about to. It is one word under a lock ([`ownership`]); each row is one
//! method there. "Background, if parked": the background thread is woken when it is on standby without a timer.
//!
//! | transition | moved by | from | to | occasion | who is woken |
//! |---|---|---|---|---|---|
//! | `claim` | a thread in a wait, a driving task | nobody | awake | it has nothing to do | nobody |
//! | `claim` | the same | background | awake | it has nothing to do | background: it finds that it is not the owner any more |
//! | `claim_or_stand_by` | a thread in a wait | awake, asleep | no change, the thread is on standby | another is the active poller | nobody |
//! | `fall_asleep` | the active poller | awake | asleep | nothing is pending, the deadline is read | nobody |
//! | `wake_up` | the active poller | asleep | awake | its sleep ended; it drives and then runs foreign code | background, if parked |
//! | `release` | the active poller | awake, asleep | nobody | its wait is over | one standby; background, if parked |
//! | `background_turn` | background | nobody | background | no poll hint since its last turn | nobody |
//! | `background_turn` | background | nobody | no change: standby with a timer | a poll hint since its last turn | nobody |
//! | `background_turn` | background | awake | no change: standby with a timer | the active poller may run foreign code | nobody |
//! | `background_turn` | background | asleep | no change: standby with a timer | the same active poller for less than [`STANDBY_TURNS`](ownership::STANDBY_TURNS) turns | nobody |
//! | `background_turn` | background | asleep | no change: standby without a timer ("parked") | the same active poller for longer | nobody |
//! | `background_release` | background | background | nobody | its sleep ended | nobody |
//! | `background_release` | background | awake, asleep | no change: it does not drive | a thread has claimed meanwhile | nobody |
//!
//! | `arm` | a program that arms a queue of a channel with a descriptor | nobody, served | armed | no failure lately (`Backoff`) | nobody |
//! | `arm` | the same | background | armed | the same | background: it finds that it is not the owner any more |
//! | `arm` | the same, of another channel | armed, served | nobody | each would wake up for the other one | background |
//! | `disarm` | the program takes an event | armed | served | | nobody |
//! | `end_served` | the program polls, or asks for an event | served | nobody | it does not arm at once | nobody |
//! | `claim` | a thread in a wait, a driving task | armed, served | awake | it has nothing to do | nobody |
//! | `background_turn` | background | armed, served | no change: standby with a timer | rounds or armings since its last turn, or neither for few turns | nobody |
//! | `background_turn` | background | armed, served | background | neither for [`ARMED_TURNS`](ownership::ARMED_TURNS) turns, or the stack had something at two of them | nobody |
//!
//! "armed" is a program that sleeps in a poll(2) of its own, which an arrival ends ([`watch`](super::watch)); "served" is the same program
//! with its event. It may compute instead of sleeping, so the background thread looks after it with a timer, and takes over when the
//! stack's descriptor stays readable, or when nothing happens: an idle process has no timer.
//!
//! "awake" and "asleep" are states of the active poller: between its sleeps it may run foreign code for any time and drive nothing, so
//! the background thread drives in its place when it was awake at two turns and no round was made between them.
//!
//! # Who is woken for what
//!
//! | occasion | in state | who serves it |
//! |---|---|---|
//! | the stack's descriptor becomes readable | awake, asleep | the active poller |
//! | | background | the background thread |
//! | | nobody | the next poll; without one the background thread, which is on standby with a timer or awake |
//! | an earlier deadline ([`State::set_timer`], then [`State::wake_owner`]) | awake, asleep | the active poller is woken, and reads the deadline after its claim |
//! | | background, nobody | the background thread is woken, unless it is on standby with a timer |
//! | a post, where another thread holds the core | any | the holder, after unlocking (`driver/handoff.rs`) |
//! | a coalesced post ([`State::coalesce_timer`]) | any | the next poll within the poll hint; else the background thread, after [`COALESCE`] |
//! | a queue is armed ([`State::arm`]) | nobody | the program itself ("armed"); without a channel's descriptor the background thread, which is woken |
//! | the stack's descriptor becomes readable | armed, served | the program, at its next call for an event or its next poll |
//! | an earlier deadline | armed, served | the background thread, at its next turn |
//! | a completion | any | the thread that pushed it wakes the wakers that waited, after unlocking |
//!
//! # Poll hint
//!
//! A poll leaves a flag, and not a time: it does not read the clock. While it is renewed and rounds are made between two turns of the
//! background thread, that thread stays on standby with a timer ([`background`] has its length). A program that polls but never finds
//! its queue empty (it spins on its own memory until the peer has written) makes no rounds: then the background thread is the owner in
//! spite of the hint.
//!
//! # Orders that matter
//!
//! The models in `verbs/models` show for those marked with * that the opposite order loses a wake-up.
//!
//! * (*) A thread claims first and then reads `pending` and the deadline: whoever stores either and then asks who the owner is has seen
//!   the claim, or the thread sees what was stored.
//! * The background thread forgets its wake-ups (`Parker::reset`) before it reads any state.
//! * The background thread clears `coalescing` and then reads `pending`; a post sets `pending` and then `coalescing`.
//! * (*) The sleeper's and the core holder's orders stand in `driver/park.rs` and `driver/handoff.rs`.

mod armed;
mod background;
mod ownership;
#[cfg(feature = "tokio")]
mod task;
mod wait;

pub(super) use armed::answer_armed;
pub(super) use background::run;
#[cfg(feature = "tokio")]
pub(crate) use task::TaskLead;
pub(super) use wait::block_on;

use super::epoll_waiter::EpollWaiter;
use super::os::{Instant, StackFd};
use super::park::Parker;
use super::sync::{AtomicBool, AtomicU64};
use ownership::Ownership;
use std::io::Result;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Within this time after a sleep in one of the engine's waits, arming a queue is taken as the prelude of the next one.
const OWN_WAIT_HINT: Duration = Duration::from_millis(10);
/// Coalesced posts wait at most this long.
const COALESCE: Duration = Duration::from_micros(50);

/// A time, in nanoseconds from [`State`]'s base.
type Nanos = u64;
/// No time.
const NEVER: Nanos = Nanos::MAX;

/// What drives: a shard.
pub(super) trait Drive: Send + Sync + 'static {
    /// Its part of the state of this module.
    fn progress(&self) -> &State;
    /// Whether a post or a command waits.
    fn is_pending(&self) -> bool;
    /// Rounds that were made, wrapping.
    fn rounds(&self) -> u32;
    /// One round. How much was done; `None` when another thread holds the core.
    fn try_pump(self: &Arc<Self>) -> Option<usize>;
    /// A round that asks the stack first. How much news it had; `None` when another thread holds the core.
    fn try_ask(self: &Arc<Self>) -> Option<usize>;
    /// A round after a sleep that an event ended: it reads first, and asks the stack when that finds nothing. False when another
    /// thread holds the core.
    fn try_answer(self: &Arc<Self>) -> bool;
}

/// The part of a shard that decides who drives it.
pub(super) struct State {
    base: Instant,
    stack: Option<Arc<StackFd>>,
    /// On the stack's descriptor, for the active poller.
    waiter: Option<Arc<EpollWaiter>>,
    background: Arc<Parker>,
    ownership: Ownership,
    /// An application thread polled since the background thread's last turn.
    poll_hint: AtomicBool,
    /// The poll hint at the background thread's last turn, if rounds were made.
    poll_hint_held: AtomicBool,
    /// When the last thread slept in one of the engine's waits.
    own_wait: AtomicU64,
    /// The next deadline of any stream.
    timer: AtomicU64,
    /// Coalesced posts wait for the background thread.
    coalescing: AtomicBool,
    /// The background thread is on standby with a timer, after which it looks for what is posted.
    standby_timed: AtomicBool,
    /// A round has done something since the last program that armed a queue became the owner.
    worked: AtomicBool,
    /// A program that was the owner has its event, and has not polled since.
    served: AtomicBool,
    stop: AtomicBool,
    manual: bool,
}

impl State {
    /// For a stack that waits with `stack`. `manual`: the program drives by itself, and no thread is ever woken to drive.
    pub(super) fn new(stack: Option<Arc<StackFd>>, manual: bool) -> Result<Self> {
        let waiter = stack.as_ref().map(EpollWaiter::new).transpose()?.map(Arc::new);
        let background = Arc::new(Parker::new()?);
        Ok(Self {
            base: Instant::now(),
            stack,
            waiter,
            ownership: Ownership::new(Arc::clone(&background)),
            background,
            poll_hint: AtomicBool::new(false),
            poll_hint_held: AtomicBool::new(false),
            own_wait: AtomicU64::new(0),
            timer: AtomicU64::new(NEVER),
            coalescing: AtomicBool::new(false),
            standby_timed: AtomicBool::new(false),
            worked: AtomicBool::new(false),
            served: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            manual,
        })
    }

    pub(super) fn is_manual(&self) -> bool {
        self.manual
    }

    /// Ends the background thread.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.background.notify();
    }

    /// The streams' next deadline, as the last round left it; the core is held. True when it is earlier than the one before: then the
    /// owner is to be woken once the core is unlocked.
    pub(super) fn set_timer(&self, next: Option<Instant>) -> bool {
        let at = next.map_or(NEVER, |at| self.since_base(at));
        let before = self.timer.swap(at, Ordering::SeqCst);
        at < before && !self.manual
    }

    /// Wakes the owner: a deadline is earlier than it knows. Not the background thread while it is on standby with a timer: woken
    /// early, it would take the pollers for gone, as they have not polled since its last turn.
    pub(super) fn wake_owner(&self) {
        self.ownership.wake_owner(|| !self.standby_timed.load(Ordering::SeqCst));
    }

    /// An application thread polls, and is expected to poll again soon: the background thread stays on standby.
    pub(super) fn hint_poll(&self) {
        // Read first: the line is shared with other pollers.
        if !self.poll_hint.load(Ordering::Relaxed) {
            self.poll_hint.store(true, Ordering::Relaxed);
            self.end_served();
        }
    }

    /// Posts wait to be coalesced with more: until the next poll where an application thread polls steadily, else for at most
    /// [`COALESCE`].
    pub(super) fn coalesce_timer(&self) {
        // A thread that is woken for what the poller is about to do contends for the core, and for a processor. One poll is no promise
        // of another, so the hint counts only while the background thread has a timer. A hint at its last turn counts until the next
        // one: a program posts hundreds of messages between two polls, and on two processors a third thread that takes the core is soon
        // one that holds it without a processor.
        let hinted = self.poll_hint.load(Ordering::Relaxed) || self.poll_hint_held.load(Ordering::Relaxed);
        if hinted && self.standby_timed.load(Ordering::SeqCst) {
            return;
        }
        if !self.manual && !self.coalescing.swap(true, Ordering::SeqCst) {
            self.background.notify();
        }
    }

    fn since_base(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.base).as_nanos()).unwrap_or(NEVER - 1)
    }

    fn now(&self) -> u64 {
        self.since_base(Instant::now())
    }

    /// The streams' next deadline.
    fn deadline(&self) -> Option<Instant> {
        let at = self.timer.load(Ordering::SeqCst);
        (at != NEVER).then(|| self.base + Duration::from_nanos(at))
    }

    /// The active poller's wait is over.
    fn release(&self) {
        self.own_wait.store(self.now(), Ordering::Relaxed);
        self.poll_hint.store(true, Ordering::SeqCst);
        self.ownership.release();
    }
}

const fn nanos(wait: Duration) -> u64 {
    wait.as_nanos() as u64
}

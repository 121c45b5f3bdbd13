//! Which thread drives a shard, and which threads are woken.
//!
//! A thread that waits in one of the engine's calls sleeps in the stack's descriptor itself and
//! drives when it wakes, so an arrival reaches its receiver without a second thread. It is the
//! *active poller*; other threads that wait are on *standby*, and one of them takes over when it
//! returns.
//! The *background thread* drives when there is no active poller and no application thread polls.
//! When all is idle every thread sleeps without a time-out.
//!
//! # Ownership
//!
//! The owner is the thread or program that sleeps in the stack's descriptor, or is about to:
//!
//! * *unowned*: nobody does;
//! * *background*: the background thread;
//! * *polled*: the active poller;
//! * *armed*: a program that sleeps in a poll(2) of its own, which an arrival ends
//!   ([`watch`](super::watch));
//! * *served*: that program after it has taken its event. It may compute instead of sleeping.
//!
//! It is one value under a lock ([`ownership`]), with one method for each transition. The background
//! thread is woken when it loses the role. `release` wakes one thread on standby, and the background
//! thread if it is parked.
//!
//! | transition | caller | from | to | condition |
//! |---|---|---|---|---|
//! | `claim` | a thread in a wait, a driving task | all but polled; for a thread, also polled by a task | polled | it has nothing to do; for a thread, no pause (see below) |
//! | `release` | the active poller | polled | unowned; polled by the task from which it was taken | its wait is over, or another thread polls steadily |
//! | `background_turn` | background | unowned | background | no poll hint since its last turn |
//! | `background_turn` | background | armed, served | background | neither rounds nor armings for [`IDLE_TURNS`](ownership::IDLE_TURNS) turns, or unserved events at two turns |
//! | `background_release` | background | background | unowned | its sleep ended |
//! | `arm` | a program that arms a queue of a channel with a descriptor | unowned, background, served | armed | no failure lately ([`PAUSE`](ownership::PAUSE)) |
//! | `arm` | the same, after a failure | served | unowned | |
//! | `arm` | the same, of another channel | armed, served | unowned | each would wake up for the other one |
//! | `disarm` | the program takes an event | armed | served | |
//! | `background_turn` | background | served | unowned | the program polls, and has not armed since its last turn |
//! | `end_served` | the program asks for an event | served | unowned | something has arrived since its last one |
//! | `end_served` | another program asks for an event, or a thread no longer sleeps for the shard | served | unowned | |
//!
//! Calls that do not change the owner:
//!
//! | call | owner | effect |
//! |---|---|---|
//! | `claim_or_stand_by` | polled by a thread | the thread is on standby |
//! | | any, during the pause described below | the thread sleeps until it is woken, or the pause ends |
//! | `background_turn` | unowned, with a poll hint; armed, served | the background thread is on standby with a timer |
//! | `background_turn` | polled | the same, or without a timer (*parked*) if the poller has slept for [`IDLE_TURNS`](ownership::IDLE_TURNS) turns without rounds |
//! | `end_sleep` | polled | the background thread is woken if it is parked |
//! | `withhold` | armed | a post's token is written later (`comp_channel`) |
//!
//! If another thread polls steadily, each arrival would wake the active poller in vain, and take the
//! processor from the other thread. So the active poller gives up its role, and for a while
//! ([`PAUSE`](ownership::PAUSE)) no waiting thread claims it: only completions wake these threads.
//! The pause ends early when the background thread becomes the owner, because nobody polls then.
//!
//! Between its sleeps, an active poller may run code of the application for any time without
//! driving. So the background thread drives when the poller was awake at two turns and no round was
//! made between them. The reactor of a runtime sleeps for a task, which therefore counts as asleep.
//! A parked background thread has no timer, so an idle process does not wake up.
//!
//! # Which thread serves an occasion
//!
//! | occasion | state | served by |
//! |---|---|---|
//! | the stack's descriptor becomes readable | polled | the active poller |
//! | | background | the background thread |
//! | | unowned | the next poll; without one the background thread, which is on standby with a timer or awake |
//! | an earlier deadline ([`State::set_timer`], then [`State::wake_owner`]) | polled | the active poller is woken, and reads the deadline after its claim |
//! | | background, unowned | the background thread is woken, unless it has a timer |
//! | a post, where another thread holds the core | any | the holder, after unlocking (`driver/handoff.rs`) |
//! | a coalesced post ([`State::coalesce_timer`]) | any | the next poll within the poll hint; else the background thread, after [`RELATED`] |
//! | a queue is armed ([`State::arm`]) | unowned | the program itself ("armed"); without a channel's descriptor the background thread, which is woken |
//! | the stack's descriptor becomes readable | armed, served | the program, at its next call for an event or its next poll |
//! | an earlier deadline | armed, served | the background thread, at its next turn |
//! | a completion | any | the thread that pushed it calls the registered wakers, after unlocking |
//!
//! # Poll hint
//!
//! A poll stores the id of its thread and no time, because it does not read the clock. While the
//! hint is set again and rounds are made between two turns of the background thread, that thread stays
//! on standby with a timer ([`background`] has its length). A program that polls but never finds
//! its queue empty makes no rounds; then the background thread becomes the owner despite the hint,
//! but sleeps with a timer, so that the program's coalesced posts need not wake it.
//! It also becomes the owner for a program that polls its own memory until the peer has written to
//! it, and its queue only between two Writes ([`memory_polls`]).
//!
//! # Required orders
//!
//! For the orders marked with *, the models in `verbs/models` show that the opposite order loses a
//! wake-up.
//!
//! * (*) A thread claims first and then reads `pending` and the deadline. A thread that stores
//!   either of them and then reads the owner sees the claim, or the claiming thread sees what was
//!   stored.
//! * The background thread clears its wake-ups (`Parker::reset`) before it reads any state.
//! * The background thread clears `coalescing` and then reads `pending`; a post sets `pending` and
//!   then `coalescing`.
//! * (*) The orders of a sleeper and of the core's holder are in `driver/park.rs` and
//!   `driver/handoff.rs`.

mod armed;
mod background;
mod memory_polls;
mod ownership;
#[cfg(not(any(loom, shuttle)))]
mod task;
mod wait;

pub(super) use armed::answer_armed;
pub(super) use background::run;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use task::ActiveTask;
pub(super) use wait::block_on;

use super::epoll_waiter::EpollWaiter;
use super::os::{Instant, StackFd, is_readable, thread_id};
use super::park::Parker;
use super::sync::{AtomicBool, AtomicU32, AtomicU64};
use ownership::Ownership;
use std::io::Result;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time within which related work is expected: the next segments of a message, posts that are
/// coalesced with earlier ones, the end of another thread's call.
const RELATED: Duration = Duration::from_micros(20);
/// Time within which a program that polls continuously polls again, even if it handles a request in
/// between. Other short waits last as long: for a thread that holds the core, or while bytes move.
const POLL_GAP: Duration = Duration::from_micros(200);
/// Time for which what a program does is expected to continue: a thread that arms a queue so soon
/// after a sleep in one of the engine's waits sleeps in such a wait again, and programs that poll
/// memory wait for the next arrival.
const RECENT: Duration = Duration::from_millis(10);

/// Poll hint that a thread sets at the end of a wait, in which it does not poll.
const WAIT_ENDED: u32 = u32::MAX;

/// Timer of the background thread while it is on standby, or sleeps as the owner.
#[derive(Clone, Copy)]
enum StandbyTimer {
    /// It is awake, or has no timer.
    Off,
    /// It checks for posts when its timer ends.
    On,
    /// Like [`StandbyTimer::On`], and it has found a poll hint at its last turn. This does not
    /// include hints of programs that are assumed to poll memory ([`memory_polls`]), and, on
    /// standby, hints without rounds.
    Polled,
}

/// Time in nanoseconds since the base of [`State`].
type Nanos = u64;
/// Value for "no time".
const NEVER: Nanos = Nanos::MAX;

/// Interface through which this module uses a shard.
pub(super) trait Drive: Send + Sync + 'static {
    /// Returns the state of this module for the shard.
    fn progress(&self) -> &State;
    /// Returns whether a post or a command is waiting.
    fn is_pending(&self) -> bool;
    /// Returns whether a thread holds the core.
    fn is_held(&self) -> bool;
    /// Returns the number of rounds that were made (wrapping).
    fn rounds(&self) -> u32;
    /// Makes one round. Returns the amount of work done, or `None` if another thread holds the
    /// core.
    fn try_pump(self: &Arc<Self>) -> Option<usize>;
    /// Makes a round that polls the stack first. Returns the number of the stack's events, or
    /// `None` if another thread holds the core.
    fn try_poll_stack(self: &Arc<Self>) -> Option<usize>;
    /// Makes a round after an event has ended a sleep. Polls the stack only if the round finds
    /// nothing. Returns false if another thread holds the core.
    fn try_handle_stack_event(self: &Arc<Self>) -> bool;
}

/// Part of a shard that decides which thread drives it.
pub(super) struct State {
    base: Instant,
    /// Process that has created the shard.
    process: u32,
    stack: Option<Arc<StackFd>>,
    /// Epoll set over the stack's descriptor, for the active poller.
    waiter: Option<Arc<EpollWaiter>>,
    background: Arc<Parker>,
    ownership: Ownership,
    /// Poll hint: the id of an application thread that has polled since the background thread's
    /// last turn, [`WAIT_ENDED`], or 0 if there is no hint.
    poll_hint: AtomicU32,
    /// Time when the last thread slept in one of the engine's waits; [`NEVER`] before the first
    /// one.
    own_wait: AtomicU64,
    /// Next deadline of any stream.
    timer: AtomicU64,
    /// True if coalesced posts wait for the background thread.
    coalescing: AtomicBool,
    /// Timer of the background thread's standby, as a [`StandbyTimer`].
    standby_timer: AtomicU32,
    /// True if a round had work to do since a program that armed a queue last became the owner.
    worked: AtomicBool,
    manual: bool,
}

impl State {
    /// Creates the state for a stack that waits with `stack`. `manual` means that the program
    /// drives by itself, and no thread is ever woken to drive.
    pub(super) fn new(stack: Option<Arc<StackFd>>, manual: bool) -> Result<Self> {
        let waiter = stack.as_ref().map(EpollWaiter::new).transpose()?.map(Arc::new);
        let background = Arc::new(Parker::new()?);
        Ok(Self {
            base: Instant::now(),
            process: std::process::id(),
            stack,
            waiter,
            ownership: Ownership::new(Arc::clone(&background)),
            background,
            poll_hint: AtomicU32::new(0),
            own_wait: AtomicU64::new(NEVER),
            timer: AtomicU64::new(NEVER),
            coalescing: AtomicBool::new(false),
            standby_timer: AtomicU32::new(StandbyTimer::Off as u32),
            worked: AtomicBool::new(false),
            manual,
        })
    }

    pub(super) fn is_manual(&self) -> bool {
        self.manual
    }

    /// Ends the background thread. Called when the shard is dropped, so that no reference to it is
    /// left.
    pub(super) fn stop(&self) {
        self.background.notify();
    }

    /// Stores the next deadline of all streams, while the core is held. Returns true if it is
    /// earlier than the previous one; then the owner must be woken once the core is unlocked.
    pub(super) fn set_timer(&self, next: Option<Instant>) -> bool {
        let at = next.map_or(NEVER, |at| self.since_base(at));
        let before = self.timer.swap(at, Ordering::SeqCst);
        at < before && !self.manual
    }

    /// Wakes the owner, because a deadline is earlier than the one that it has read. Does not wake
    /// the background thread while it has a timer, because an early turn would find no poll since
    /// the last one, and take the ownership from the pollers.
    pub(super) fn wake_owner(&self) {
        self.ownership.wake_owner(|| self.standby_timer() == StandbyTimer::Off as u32);
    }

    /// Records that an application thread polls. It is expected to poll again soon, so the
    /// background thread stays on standby.
    pub(super) fn hint_poll(&self) {
        // Read first, because the cache line is shared with other pollers.
        if self.poll_hint.load(Ordering::Relaxed) == 0 {
            self.poll_hint.store(thread_id(), Ordering::Relaxed);
        }
    }

    /// Clears the poll hint. Returns whether another thread has set it by a poll.
    fn take_hint_of_another(&self) -> bool {
        let hint = self.poll_hint.swap(0, Ordering::SeqCst);
        hint != 0 && hint != WAIT_ENDED && hint != thread_id()
    }

    /// Starts the wait of posts that are coalesced with later ones. If application threads poll
    /// steadily, it ends at the next poll, and otherwise after about [`RELATED`].
    pub(super) fn coalesce_timer(&self) {
        // A thread that is woken for work that the poller is about to do would contend for the core
        // and for a processor. A poll may be the last one, so the hint counts only while the
        // background thread has a timer. A hint at its last turn counts until the next one: a
        // program may post hundreds of messages between two polls, and on two processors a third
        // thread that takes the core is likely to be preempted while it holds it.
        let timer = self.standby_timer();
        let hinted =
            self.poll_hint.load(Ordering::Relaxed) != 0 || timer == StandbyTimer::Polled as u32;
        if hinted && timer != StandbyTimer::Off as u32 {
            return;
        }
        if !self.manual && !self.coalescing.swap(true, Ordering::SeqCst) {
            self.background.notify();
        }
    }

    fn since_base(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.base).as_nanos()).unwrap_or(NEVER - 1)
    }

    fn set_standby_timer(&self, timer: StandbyTimer) {
        self.standby_timer.store(timer as u32, Ordering::SeqCst);
    }

    fn standby_timer(&self) -> u32 {
        self.standby_timer.load(Ordering::SeqCst)
    }

    /// Returns whether the stack has events.
    fn is_readable(&self) -> bool {
        self.stack.as_deref().is_some_and(is_readable)
    }

    fn now(&self) -> u64 {
        self.since_base(Instant::now())
    }

    /// Returns the next deadline of any stream.
    fn deadline(&self) -> Option<Instant> {
        let at = self.timer.load(Ordering::SeqCst);
        (at != NEVER).then(|| self.base + Duration::from_nanos(at))
    }

    /// Ends the role of the active poller, whose wait is over.
    fn release(&self) {
        self.own_wait.store(self.now(), Ordering::Relaxed);
        self.poll_hint.store(WAIT_ENDED, Ordering::SeqCst);
        self.ownership.release();
    }
}

const fn nanos(wait: Duration) -> u64 {
    wait.as_nanos() as u64
}

//! Owner of a shard: the states and transitions of the table in [`super`].

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use super::super::park::Parker;
use super::super::sync::Mutex;
use super::super::watch::Watch;
use super::{Nanos, nanos};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// Number of consecutive turns without news during which the background thread stays on standby with
/// a timer. After more turns with the same active poller asleep, it parks. After more turns without
/// a round or an arming, it takes over from an armed program.
///
/// Also the maximum number of turns of the standby at which the background thread checks for
/// programs that poll memory only once.
pub(super) const IDLE_TURNS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 10 };
/// Time for which a behavior of the application is expected to last after it was observed.
///
/// * No armed program becomes the owner after one did not drive in time or had a spurious wake-up,
///   or after two were armed.
/// * No waiting thread claims the role of the active poller after one has given it up to a thread
///   that polls.
/// * A thread does not yield the processor after another thread has kept it.
pub(super) const PAUSE: Nanos = nanos(Duration::from_millis(100));

/// Owner of a shard: the thread or program that sleeps in the stack's descriptor, or is about to.
#[derive(Default)]
enum ShardOwner {
    #[default]
    Unowned,
    Background,
    Polled(ActivePoller),
    /// A program that has armed a queue and is expected to sleep in its own poll(2), which an
    /// arrival ends.
    Armed(Arc<Watch>),
    /// The armed program after it has taken its event. It drives or runs its own code, and usually
    /// arms the queue again soon. Its watch stays on.
    Served(Arc<Watch>),
}

/// Thread or task of the application that sleeps in the stack's descriptor and drives.
pub(super) enum ActivePoller {
    /// A thread, which may run code of the application between its sleeps.
    Thread(Arc<Parker>),
    /// A task of a runtime, whose reactor sleeps for it.
    Task(Waker),
}

impl ActivePoller {
    fn is_asleep(&self) -> bool {
        match self {
            Self::Thread(parker) => parker.is_asleep(),
            Self::Task(_) => true,
        }
    }

    fn wake(&self) {
        match self {
            Self::Thread(parker) => parker.notify(),
            Self::Task(waker) => waker.wake_by_ref(),
        }
    }
}

#[derive(Default)]
struct OwnershipState {
    owner: ShardOwner,
    /// Task whose role the active poller, a thread, has taken over until its wait ends: the runtime
    /// of the task may not run meanwhile.
    replaced_task: Option<Waker>,
    /// Number of claims and armings.
    epoch: u32,
    /// Threads that wait while another one is the active poller.
    standby: Vec<Arc<Parker>>,
    /// True if the background thread is on standby without a timer.
    background_parked: bool,
    /// End of the last [`PAUSE`] of armed programs.
    paused_until: Nanos,
    /// End of the [`PAUSE`] during which waiting threads leave the shard to a thread that polls; 0 if
    /// there was none lately.
    left_until: Nanos,
}

pub(super) struct Ownership {
    inner: Mutex<OwnershipState>,
    background: Arc<Parker>,
}

/// Role of a thread that is about to sleep in a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitRole {
    /// The active poller.
    Poller {
        /// True if a waiting thread has given up this role during the last two [`PAUSE`]s.
        was_left: bool,
    },
    /// On standby, because there is an active poller.
    Standby,
    /// No role until this time, because another thread polls steadily.
    LeftUntil(Nanos),
}

/// Role of a program that is the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgramRole {
    /// It has armed a queue.
    Armed,
    /// It has taken its event.
    Served,
}

/// Action of the background thread in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackgroundAction {
    /// Drives as the owner.
    Own,
    /// Is on standby with a timer.
    Timed {
        /// True if there is an active poller.
        owned: bool,
    },
    /// Is on standby until it is woken.
    Parked,
}

/// Observations of the background thread about the owner at its turns.
#[derive(Default)]
pub(super) struct TurnObservations {
    epoch: u32,
    /// Number of consecutive turns with the same owner, an active poller that sleeps or an armed
    /// program, and without rounds.
    idle: u32,
    /// True if an armed program was the owner at the last turn.
    pub(super) armed: bool,
    /// True if the stack had unserved events at the last turn with an armed program.
    unserved: bool,
    /// True if the active poller was awake at the last turn.
    awake: bool,
    /// True if the active poller was awake at the last two turns, so that it may be running other
    /// code.
    pub(super) stays_awake: bool,
}

impl TurnObservations {
    /// Counts a turn. Returns whether the owner has been idle for more than [`IDLE_TURNS`].
    fn is_idle(&mut self, is_active: bool) -> bool {
        self.idle = if is_active { 0 } else { self.idle + 1 };
        self.idle > IDLE_TURNS
    }
}

impl OwnershipState {
    fn role_of(&self, watch: &Arc<Watch>) -> Option<ProgramRole> {
        match &self.owner {
            ShardOwner::Armed(own) if Arc::ptr_eq(own, watch) => Some(ProgramRole::Armed),
            ShardOwner::Served(own) if Arc::ptr_eq(own, watch) => Some(ProgramRole::Served),
            _ => None,
        }
    }

    fn claim(&mut self, background: &Parker, poller: impl FnOnce() -> ActivePoller) -> bool {
        match &self.owner {
            ShardOwner::Polled(_) => return false,
            // For a moment, both may sleep in the stack's descriptor.
            ShardOwner::Background => background.notify(),
            ShardOwner::Armed(watch) | ShardOwner::Served(watch) => watch.take(),
            ShardOwner::Unowned => {}
        }
        self.owner = ShardOwner::Polled(poller());
        self.epoch = self.epoch.wrapping_add(1);
        true
    }

    /// Wakes the threads that may take over the role of the active poller.
    fn hand_over(&mut self, background: &Parker) {
        if let Some(next) = self.standby.pop() {
            next.notify();
        }
        self.wake_parked_background(background);
    }

    fn wake_parked_background(&mut self, background: &Parker) {
        if std::mem::take(&mut self.background_parked) {
            background.notify();
        }
    }
}

impl Ownership {
    pub(super) fn new(background: Arc<Parker>) -> Self {
        Self { inner: Mutex::default(), background }
    }

    /// Makes the caller the active poller, unless there is one.
    pub(super) fn claim(&self, poller: impl FnOnce() -> ActivePoller) -> bool {
        self.inner.lock().claim(&self.background, poller)
    }

    /// Like [`Ownership::claim`] for the thread of `parker`, but takes over the role of a task, and
    /// puts the thread on standby if another thread is the active poller. Does neither while waiting
    /// threads leave the shard to a thread that polls ([`Ownership::leave`]).
    pub(super) fn claim_or_stand_by(
        &self,
        parker: &Arc<Parker>,
        now: impl Fn() -> Nanos,
    ) -> WaitRole {
        let mut inner = self.inner.lock();
        // Usually no thread has left the shard, and the clock is not read.
        if inner.left_until > 0 {
            let now = now();
            if now < inner.left_until {
                return WaitRole::LeftUntil(inner.left_until);
            }
            if now >= inner.left_until + PAUSE {
                inner.left_until = 0;
            }
        }
        if let ShardOwner::Polled(ActivePoller::Task(waker)) = &inner.owner {
            inner.replaced_task = Some(waker.clone());
            inner.owner = ShardOwner::Unowned;
        }
        if inner.claim(&self.background, || ActivePoller::Thread(Arc::clone(parker))) {
            return WaitRole::Poller { was_left: inner.left_until > 0 };
        }
        inner.standby.push(Arc::clone(parker));
        WaitRole::Standby
    }

    /// Makes waiting threads claim no role until this time, because another thread polls the shard
    /// steadily. This ends early if the background thread becomes the owner.
    pub(super) fn leave(&self, until: Nanos) {
        self.inner.lock().left_until = until;
    }

    /// Ends the standby of the thread of `parker`.
    pub(super) fn leave_standby(&self, parker: &Arc<Parker>) {
        self.inner.lock().standby.retain(|p| !Arc::ptr_eq(p, parker));
    }

    /// Wakes the background thread if it is parked, so that it checks with a timer again whether
    /// the active poller drives. Called by the active poller after each sleep: the background thread
    /// parks only while the poller sleeps, but the poller may run other code now.
    pub(super) fn end_sleep(&self) {
        self.inner.lock().wake_parked_background(&self.background);
    }

    /// Ends the role of the active poller, a thread. The task that had the role before gets it back.
    /// Otherwise a thread on standby takes over, or the background thread once the poll hint ends.
    pub(super) fn release(&self) {
        let mut inner = self.inner.lock();
        inner.owner = match inner.replaced_task.take() {
            Some(task) => {
                // It reads the deadline, which may have changed.
                task.wake_by_ref();
                ShardOwner::Polled(ActivePoller::Task(task))
            }
            None => ShardOwner::Unowned,
        };
        inner.hand_over(&self.background);
    }

    /// Ends the role of the task that drives, also if a thread has taken it over.
    pub(super) fn release_task(&self) {
        let mut inner = self.inner.lock();
        if inner.replaced_task.take().is_none() {
            inner.owner = ShardOwner::Unowned;
            inner.hand_over(&self.background);
        }
    }

    /// Makes the program of `watch`, which has armed a queue, the owner, unless there is an active
    /// poller, another armed program, or a pause ([`PAUSE`]). Returns whether it is the owner.
    /// `begin` is called before the program's descriptor can become readable, unless the program
    /// was armed already.
    pub(super) fn arm(
        &self,
        watch: &Arc<Watch>,
        now: impl Fn() -> Nanos,
        begin: impl FnOnce(),
    ) -> bool {
        let mut inner = self.inner.lock();
        // Usually there is no pause, and the clock is not read.
        let paused = inner.paused_until > 0 && now() < inner.paused_until;
        match &inner.owner {
            ShardOwner::Polled(_) => return false,
            ShardOwner::Armed(known) if Arc::ptr_eq(known, watch) => {}
            ShardOwner::Served(known) if Arc::ptr_eq(known, watch) && !paused => begin(),
            ShardOwner::Served(known) if Arc::ptr_eq(known, watch) => {
                known.stop();
                inner.owner = ShardOwner::Unowned;
                return false;
            }
            ShardOwner::Armed(other) | ShardOwner::Served(other) => {
                // Each program would be woken by the arrivals of the other one.
                other.take();
                inner.owner = ShardOwner::Unowned;
                inner.paused_until = now() + PAUSE;
                return false;
            }
            ShardOwner::Background | ShardOwner::Unowned if paused => return false,
            owner => {
                if let ShardOwner::Background = owner {
                    self.background.notify();
                }
                begin();
                watch.start();
            }
        }
        inner.owner = ShardOwner::Armed(Arc::clone(watch));
        inner.epoch = inner.epoch.wrapping_add(1);
        true
    }

    /// Records that the program of `watch` has taken an event. Returns true if it was armed.
    pub(super) fn disarm(&self, watch: &Arc<Watch>) -> bool {
        let mut inner = self.inner.lock();
        let armed = matches!(&inner.owner, ShardOwner::Armed(armed) if Arc::ptr_eq(armed, watch));
        if armed {
            inner.owner = ShardOwner::Served(Arc::clone(watch));
        }
        armed
    }

    /// Ends the state "served", because the program asks for another event instead of arming.
    pub(super) fn end_served(&self) {
        let mut inner = self.inner.lock();
        if let ShardOwner::Served(watch) = &inner.owner {
            watch.stop();
            inner.owner = ShardOwner::Unowned;
        }
    }

    /// Withholds the token of the channel whose `WithheldToken` is at the given address, if the
    /// program of the channel is the owner and armed. Returns whether the token is withheld.
    pub(super) fn withhold(&self, withheld: *const ()) -> bool {
        match &self.inner.lock().owner {
            ShardOwner::Armed(watch) if watch.releases(withheld) => watch.withhold(),
            _ => return false,
        }
        true
    }

    /// Returns the role of the program of `watch`, if it is the owner.
    pub(super) fn role_of(&self, watch: &Arc<Watch>) -> Option<ProgramRole> {
        self.inner.lock().role_of(watch)
    }

    /// Records that the program of `watch` woke up for an arrival that completed nothing for it.
    /// Has no effect if the program is not the owner, because another thread has woken it then.
    /// Otherwise, a program that sleeps often would never leave the pause.
    pub(super) fn note_spurious_wake_up(&self, watch: &Arc<Watch>, now: impl Fn() -> Nanos) {
        let mut inner = self.inner.lock();
        if inner.role_of(watch).is_some() {
            inner.paused_until = now() + PAUSE;
        }
    }

    /// Returns whether there is an active poller.
    pub(super) fn is_owned(&self) -> bool {
        matches!(self.inner.lock().owner, ShardOwner::Polled(_))
    }

    /// Returns whether there is an owner other than the background thread.
    pub(super) fn is_taken(&self) -> bool {
        !matches!(self.inner.lock().owner, ShardOwner::Unowned | ShardOwner::Background)
    }

    /// Returns whether the thread of `parker` is the active poller already, because its wait is
    /// nested in another one, in a waker or a future.
    pub(super) fn is_owned_by(&self, parker: &Arc<Parker>) -> bool {
        matches!(
            &self.inner.lock().owner,
            ShardOwner::Polled(ActivePoller::Thread(known)) if Arc::ptr_eq(known, parker)
        )
    }

    /// Wakes the active poller. If there is none, wakes the background thread if `background`
    /// returns true.
    pub(super) fn wake_owner(&self, background: impl Fn() -> bool) {
        match &self.inner.lock().owner {
            ShardOwner::Polled(poller) => poller.wake(),
            _ if background() => self.background.notify(),
            _ => {}
        }
    }

    /// Wakes the background thread if there is no owner.
    pub(super) fn wake_background_if_unowned(&self) {
        if matches!(self.inner.lock().owner, ShardOwner::Unowned) {
            self.background.notify();
        }
    }

    /// Handles a turn of the background thread. `driven` is true if rounds were made since the last
    /// turn, and `hinted` if application threads poll as well.
    pub(super) fn background_turn(
        &self,
        seen: &mut TurnObservations,
        driven: bool,
        hinted: bool,
        probes: &TurnProbes<'_>,
    ) -> BackgroundAction {
        let mut inner = self.inner.lock();
        let is_new = std::mem::replace(&mut seen.epoch, inner.epoch) != inner.epoch;
        let is_active = driven || is_new;
        let (was_unserved, was_awake) =
            (std::mem::take(&mut seen.unserved), std::mem::take(&mut seen.awake));
        (seen.armed, seen.stays_awake) = (false, false);
        match &inner.owner {
            ShardOwner::Polled(poller) => {
                seen.awake = !poller.is_asleep();
                seen.stays_awake = seen.awake && was_awake;
                if !seen.is_idle(is_active || seen.awake) {
                    return BackgroundAction::Timed { owned: true };
                }
                inner.background_parked = true;
                return BackgroundAction::Parked;
            }
            // The program polls instead of arming its queue.
            ShardOwner::Served(watch) if hinted && !is_new => {
                watch.take();
                inner.owner = ShardOwner::Unowned;
                return BackgroundAction::Timed { owned: false };
            }
            ShardOwner::Armed(watch) | ShardOwner::Served(watch) => {
                watch.age_withheld();
                seen.unserved = !is_active && (probes.readable)();
                let is_late = seen.unserved && was_unserved;
                if !seen.is_idle(is_active) && !is_late {
                    seen.armed = true;
                    return BackgroundAction::Timed { owned: false };
                }
                watch.take();
                if is_late {
                    inner.paused_until = (probes.now)() + PAUSE;
                }
            }
            ShardOwner::Unowned | ShardOwner::Background if hinted => {
                return BackgroundAction::Timed { owned: false };
            }
            ShardOwner::Unowned | ShardOwner::Background => {}
        }
        (seen.unserved, seen.idle) = (false, 0);
        inner.owner = ShardOwner::Background;
        // No thread polls any more.
        inner.left_until = 0;
        BackgroundAction::Own
    }

    /// Ends the sleep of the background thread. Returns whether it was the owner until now.
    pub(super) fn background_release(&self) -> bool {
        let owner = &mut self.inner.lock().owner;
        let was_owner = matches!(owner, ShardOwner::Background);
        if was_owner {
            *owner = ShardOwner::Unowned;
        }
        was_owner
    }
}

/// Functions by which a turn of the background thread observes the shard, called only when needed.
pub(super) struct TurnProbes<'a> {
    /// Returns whether the stack has events.
    pub(super) readable: &'a dyn Fn() -> bool,
    /// Current time.
    pub(super) now: &'a dyn Fn() -> Nanos,
}

//! The owner of a shard's progress: the states and transitions of the table in [`super`].

use super::super::mutant::{MODEL, Mutant, is_mutant};
use super::super::park::Parker;
use super::super::sync::Mutex;
use std::sync::Arc;
use std::task::Waker;

/// The background thread keeps its timer for so many turns with the same active poller asleep; then it parks.
pub(super) const STANDBY_TURNS: u32 = if MODEL { 0 } else { 10 };

/// Who sleeps in the stack's descriptor, or is about to.
#[derive(Default)]
enum Owner {
    #[default]
    Nobody,
    Background,
    /// An application's thread or task, which drives or runs foreign code, and how it is woken.
    Awake(Waker),
    /// The same, in its sleep.
    Asleep(Waker),
}

#[derive(Default)]
struct Inner {
    owner: Owner,
    /// Counts claims.
    epoch: u32,
    /// Threads that wait while another one is the active poller.
    standby: Vec<Arc<Parker>>,
    /// The background thread is on standby without a timer.
    background_parked: bool,
}

pub(super) struct Ownership {
    inner: Mutex<Inner>,
    background: Arc<Parker>,
}

/// What the background thread does in this turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is the owner.
    Own,
    /// Standby with a timer.
    Timed {
        /// There is an active poller.
        owned: bool,
    },
    /// Standby until woken.
    Parked,
}

/// What the background thread has seen of the active pollers at its turns.
#[derive(Default)]
pub(super) struct Seen {
    epoch: u32,
    /// Turns with the same active poller asleep.
    same_owner: u32,
    /// The active poller was awake at the last turn.
    awake: bool,
    /// It was awake at the last two turns: it may be busy with something else.
    pub(super) stays_awake: bool,
}

impl Inner {
    fn claim(&mut self, background: &Parker, waker: impl FnOnce() -> Waker) -> bool {
        match self.owner {
            Owner::Awake(_) | Owner::Asleep(_) => return false,
            // Both may sleep in the stack's descriptor for a moment.
            Owner::Background => background.notify(),
            Owner::Nobody => {}
        }
        self.owner = Owner::Awake(waker());
        self.epoch = self.epoch.wrapping_add(1);
        true
    }

    fn wake_parked(&mut self, background: &Parker) {
        if std::mem::take(&mut self.background_parked) && !is_mutant(Mutant::ParkedStaysAsleep) {
            background.notify();
        }
    }
}

impl Ownership {
    pub(super) fn new(background: Arc<Parker>) -> Self {
        Self { inner: Mutex::default(), background }
    }

    /// The caller becomes the active poller, unless there is one.
    #[cfg(feature = "tokio")]
    pub(super) fn claim(&self, waker: impl FnOnce() -> Waker) -> bool {
        self.inner.lock().claim(&self.background, waker)
    }

    /// As [`Ownership::claim`] for the thread of `parker`; where there is an active poller, the thread is on standby.
    pub(super) fn claim_or_stand_by(&self, parker: &Arc<Parker>) -> bool {
        let mut inner = self.inner.lock();
        let claimed = inner.claim(&self.background, || Waker::from(Arc::clone(parker)));
        if !claimed {
            inner.standby.push(Arc::clone(parker));
        }
        claimed
    }

    /// The thread of `parker` is not on standby any more.
    pub(super) fn leave_standby(&self, parker: &Arc<Parker>) {
        self.inner.lock().standby.retain(|p| !Arc::ptr_eq(p, parker));
    }

    /// The active poller is about to sleep.
    pub(super) fn fall_asleep(&self) {
        let owner = &mut self.inner.lock().owner;
        *owner = match std::mem::take(owner) {
            Owner::Awake(waker) => Owner::Asleep(waker),
            other => other,
        };
    }

    /// The active poller is about to drive, and then to run foreign code: the background thread watches it again.
    pub(super) fn wake_up(&self) {
        let mut inner = self.inner.lock();
        inner.owner = match std::mem::take(&mut inner.owner) {
            Owner::Asleep(waker) => Owner::Awake(waker),
            other => other,
        };
        inner.wake_parked(&self.background);
    }

    /// The active poller is none any more: one on standby takes over, or the background thread when the poll hint ends.
    pub(super) fn release(&self) {
        let mut inner = self.inner.lock();
        inner.owner = Owner::Nobody;
        if let Some(next) = inner.standby.pop() {
            next.notify();
        }
        inner.wake_parked(&self.background);
    }

    /// Whether there is an active poller.
    pub(super) fn is_owned(&self) -> bool {
        matches!(self.inner.lock().owner, Owner::Awake(_) | Owner::Asleep(_))
    }

    /// Whether the thread of `parker` is the active poller: it waits inside another wait of its own, in a waker or a future.
    pub(super) fn is_owned_by(&self, parker: &Arc<Parker>) -> bool {
        match &self.inner.lock().owner {
            Owner::Awake(waker) | Owner::Asleep(waker) => waker.data() == Arc::as_ptr(parker).cast(),
            Owner::Nobody | Owner::Background => false,
        }
    }

    /// Wakes the active poller; without one the background thread, if `background` says so.
    pub(super) fn wake_owner(&self, background: impl Fn() -> bool) {
        match &self.inner.lock().owner {
            Owner::Awake(waker) | Owner::Asleep(waker) => waker.wake_by_ref(),
            Owner::Nobody | Owner::Background if background() => self.background.notify(),
            Owner::Nobody | Owner::Background => {}
        }
    }

    /// Wakes the background thread if nobody is the owner.
    pub(super) fn wake_background_if_nobody(&self) {
        if matches!(self.inner.lock().owner, Owner::Nobody) {
            self.background.notify();
        }
    }

    /// A turn of the background thread. `hinted`: application threads poll and drive.
    pub(super) fn background_turn(&self, seen: &mut Seen, hinted: bool) -> Turn {
        let mut inner = self.inner.lock();
        let (owned, awake) = match inner.owner {
            Owner::Awake(_) => (true, true),
            Owner::Asleep(_) => (true, false),
            Owner::Nobody | Owner::Background => (false, false),
        };
        seen.stays_awake = awake && seen.awake;
        seen.awake = awake;
        if owned && !awake && seen.epoch == inner.epoch {
            seen.same_owner += 1;
            if seen.same_owner > STANDBY_TURNS {
                inner.background_parked = true;
                return Turn::Parked;
            }
        } else {
            seen.epoch = inner.epoch;
            seen.same_owner = 0;
        }
        if owned || hinted {
            return Turn::Timed { owned };
        }
        inner.owner = Owner::Background;
        Turn::Own
    }

    /// The background thread's sleep has ended. True when it was the owner until now.
    pub(super) fn background_release(&self) -> bool {
        let owner = &mut self.inner.lock().owner;
        let was_owner = matches!(owner, Owner::Background);
        if was_owner {
            *owner = Owner::Nobody;
        }
        was_owner
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    struct Fixture {
        background: Arc<Parker>,
        ownership: Ownership,
        seen: Seen,
    }

    impl Fixture {
        fn new() -> Self {
            let background = Arc::new(Parker::new().unwrap());
            let ownership = Ownership::new(Arc::clone(&background));
            Self { background, ownership, seen: Seen::default() }
        }

        fn turn(&mut self, hinted: bool) -> Turn {
            self.ownership.background_turn(&mut self.seen, hinted)
        }

        /// Whether the background thread was woken since this was asked last.
        fn woken(&self) -> bool {
            let woken = self.background.is_notified();
            self.background.reset();
            woken
        }
    }

    fn parker() -> Arc<Parker> {
        Arc::new(Parker::new().unwrap())
    }

    #[test]
    fn background_owns_without_a_hint_and_yields_to_a_claim() {
        let mut f = Fixture::new();
        assert_eq!(f.turn(true), Turn::Timed { owned: false });
        assert_eq!(f.turn(false), Turn::Own);
        assert!(f.ownership.background_release());
        assert_eq!(f.turn(false), Turn::Own);
        assert!(!f.woken());
        let active = parker();
        assert!(f.ownership.claim_or_stand_by(&active));
        assert!(f.woken(), "it sleeps in the descriptor");
        assert!(f.ownership.is_owned_by(&active));
        assert!(!f.ownership.background_release());
        assert_eq!(f.turn(false), Turn::Timed { owned: true });
    }

    #[test]
    fn claim_from_nobody_wakes_nobody() {
        let f = Fixture::new();
        assert!(f.ownership.claim_or_stand_by(&parker()));
        assert!(!f.woken());
    }

    #[test]
    fn release_wakes_one_standby() {
        let f = Fixture::new();
        let (active, second, third) = (parker(), parker(), parker());
        assert!(f.ownership.claim_or_stand_by(&active));
        assert!(!f.ownership.claim_or_stand_by(&second));
        assert!(!f.ownership.claim_or_stand_by(&third));
        f.ownership.leave_standby(&third);
        f.ownership.release();
        assert!(second.is_notified() && !third.is_notified());
        assert!(!f.ownership.is_owned());
        assert!(!f.woken(), "it was not parked");
    }

    #[test]
    fn background_parks_beside_a_sleeping_owner_until_that_wakes_up() {
        let mut f = Fixture::new();
        assert!(f.ownership.claim_or_stand_by(&parker()));
        assert_eq!(f.turn(false), Turn::Timed { owned: true });
        assert_eq!(f.turn(false), Turn::Timed { owned: true });
        assert!(f.seen.stays_awake);
        f.ownership.fall_asleep();
        for _ in 0..STANDBY_TURNS {
            assert_eq!(f.turn(false), Turn::Timed { owned: true });
            assert!(!f.seen.stays_awake);
        }
        assert_eq!(f.turn(false), Turn::Parked);
        f.ownership.wake_up();
        assert!(f.woken());
        f.ownership.wake_up();
        assert!(!f.woken(), "once");
    }

    #[test]
    fn release_wakes_a_parked_background_thread() {
        let mut f = Fixture::new();
        assert!(f.ownership.claim_or_stand_by(&parker()));
        f.ownership.fall_asleep();
        while f.turn(false) != Turn::Parked {}
        f.ownership.release();
        assert!(f.woken());
    }

    #[test]
    fn another_active_poller_restarts_the_count() {
        let mut f = Fixture::new();
        for _ in 0..2 {
            assert!(f.ownership.claim_or_stand_by(&parker()));
            f.ownership.fall_asleep();
            for _ in 0..STANDBY_TURNS {
                assert_eq!(f.turn(false), Turn::Timed { owned: true });
            }
            f.ownership.release();
        }
    }

    #[test]
    fn an_earlier_deadline_wakes_the_owner() {
        let f = Fixture::new();
        f.ownership.wake_owner(|| false);
        assert!(!f.woken(), "on standby with a timer");
        f.ownership.wake_owner(|| true);
        assert!(f.woken());
        let active = parker();
        assert!(f.ownership.claim_or_stand_by(&active));
        f.ownership.wake_owner(|| true);
        assert!(active.is_notified() && !f.woken());
        f.ownership.wake_background_if_nobody();
        assert!(!f.woken());
        f.ownership.release();
        f.ownership.wake_background_if_nobody();
        assert!(f.woken());
    }
}

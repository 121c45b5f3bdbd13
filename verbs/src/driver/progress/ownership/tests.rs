//! Tests of the transitions.

use super::super::super::os::ChannelSet;
use super::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use std::os::fd::{AsFd, OwnedFd};

struct OwnershipFixture {
    background: Arc<Parker>,
    ownership: Ownership,
    seen: TurnObservations,
}

impl OwnershipFixture {
    fn new() -> Self {
        let background = Arc::new(Parker::new().unwrap());
        let ownership = Ownership::new(Arc::clone(&background));
        Self { background, ownership, seen: TurnObservations::default() }
    }

    fn turn(&mut self, hinted: bool) -> BackgroundAction {
        self.turn_with(hinted, hinted, false)
    }

    fn turn_with(&mut self, driven: bool, hinted: bool, readable: bool) -> BackgroundAction {
        let probes = TurnProbes { readable: &|| readable, now: &|| 0 };
        self.ownership.background_turn(&mut self.seen, driven, hinted, &probes)
    }

    fn arm(&self, watch: &WatchedStack, now: Nanos) -> bool {
        self.ownership.arm(&watch.watch, || now, || ())
    }

    /// Makes a thread the active poller or puts it on standby. Returns whether it is the poller.
    fn claim(&self, parker: &Arc<Parker>) -> bool {
        self.ownership.claim_or_stand_by(parker, || 0) == WaitRole::Poller { was_left: false }
    }

    /// Makes a task the active poller, which counts as asleep.
    fn claim_asleep(&self) -> bool {
        self.ownership.claim(|| ActivePoller::Task(Waker::noop().clone()))
    }

    /// Returns whether the background thread was woken since the last call.
    fn woken(&self) -> bool {
        let woken = self.background.is_notified();
        self.background.reset();
        woken
    }
}

/// Watch of a stack that has events.
struct WatchedStack {
    watch: Arc<Watch>,
    set: Arc<ChannelSet>,
    release: Arc<Parker>,
    _descriptors: (Arc<OwnedFd>, [OwnedFd; 2]),
}

impl WatchedStack {
    fn new() -> Self {
        let eventfds = [0, 1].map(|count| eventfd(count, EventfdFlags::CLOEXEC).unwrap());
        let stack = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        epoll::add(&stack, &eventfds[1], epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .unwrap();
        let set = Arc::new(ChannelSet::new(eventfds[0].as_fd()).unwrap());
        let release = parker();
        let watch = Watch::new(&set, &stack, Waker::from(Arc::clone(&release))).unwrap();
        Self { watch: Arc::new(watch), set, release, _descriptors: (stack, eventfds) }
    }

    /// Returns the address that identifies the channel.
    fn withheld(&self) -> *const () {
        Arc::as_ptr(&self.release).cast()
    }

    /// Returns whether the tokens of the channel were released since the last call.
    fn released(&self) -> bool {
        let released = self.release.is_notified();
        self.release.reset();
        released
    }

    /// Returns whether the channel's descriptor is readable because the stack has events.
    fn is_on(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&*self.set, PollFlags::IN)], Some(&at_once)) == Ok(1)
    }
}

fn parker() -> Arc<Parker> {
    Arc::new(Parker::new().unwrap())
}

#[test]
fn background_owns_until_claim() {
    let mut f = OwnershipFixture::new();
    assert_eq!(f.turn(true), BackgroundAction::Timed { owned: false });
    assert_eq!(f.turn(false), BackgroundAction::Own);
    assert!(f.ownership.background_release());
    assert_eq!(f.turn(false), BackgroundAction::Own);
    assert!(!f.woken());
    let active = parker();
    assert!(f.claim(&active));
    assert!(f.woken(), "it sleeps in the descriptor");
    assert!(f.ownership.is_owned_by(&active));
    assert!(!f.ownership.background_release());
    assert_eq!(f.turn(false), BackgroundAction::Timed { owned: true });
}

#[test]
fn claim_of_unowned_shard_wakes_nobody() {
    let f = OwnershipFixture::new();
    assert!(f.claim(&parker()));
    assert!(!f.woken());
}

#[test]
fn release_wakes_one_standby() {
    let f = OwnershipFixture::new();
    let (active, second, third) = (parker(), parker(), parker());
    assert!(f.claim(&active));
    assert!(!f.claim(&second));
    assert!(!f.claim(&third));
    f.ownership.leave_standby(&third);
    f.ownership.release();
    assert!(second.is_notified() && !third.is_notified());
    assert!(!f.ownership.is_owned());
    assert!(!f.woken(), "it was not parked");
}

#[test]
fn waiting_threads_leave_polled_shard() {
    const BEGIN: Nanos = 1000;
    let mut f = OwnershipFixture::new();
    let role_at = |f: &OwnershipFixture, now| f.ownership.claim_or_stand_by(&parker(), || now);
    assert!(f.claim(&parker()));
    assert_eq!(role_at(&f, BEGIN), WaitRole::Standby);
    f.ownership.leave(BEGIN + PAUSE);
    f.ownership.release();
    for now in [BEGIN, BEGIN + PAUSE - 1] {
        assert_eq!(role_at(&f, now), WaitRole::LeftUntil(BEGIN + PAUSE));
    }
    for (now, was_left) in
        [(PAUSE, true), (2 * PAUSE - 1, true), (2 * PAUSE, false), (PAUSE, false)]
    {
        assert_eq!(role_at(&f, BEGIN + now), WaitRole::Poller { was_left }, "after {now} ns");
        f.ownership.release();
    }
    f.ownership.leave(BEGIN + PAUSE);
    assert_eq!(f.turn(false), BackgroundAction::Own, "no thread polls");
    assert_eq!(role_at(&f, BEGIN), WaitRole::Poller { was_left: false });
}

#[test]
fn background_parked_while_poller_sleeps() {
    let mut f = OwnershipFixture::new();
    assert!(f.claim(&parker()));
    assert_eq!(f.turn(false), BackgroundAction::Timed { owned: true });
    assert_eq!(f.turn(false), BackgroundAction::Timed { owned: true });
    assert!(f.seen.stays_awake);
    f.ownership.release();
    assert!(f.claim_asleep());
    for _ in 0..=IDLE_TURNS {
        assert_eq!(f.turn(false), BackgroundAction::Timed { owned: true });
        assert!(!f.seen.stays_awake);
    }
    assert_eq!(f.turn(false), BackgroundAction::Parked);
    f.ownership.end_sleep();
    assert!(f.woken());
    f.ownership.end_sleep();
    assert!(!f.woken(), "once");
}

#[test]
fn release_wakes_a_parked_background_thread() {
    let mut f = OwnershipFixture::new();
    assert!(f.claim_asleep());
    while f.turn(false) != BackgroundAction::Parked {}
    f.ownership.release();
    assert!(f.woken());
}

#[test]
fn another_active_poller_restarts_the_count() {
    let mut f = OwnershipFixture::new();
    for _ in 0..2 {
        assert!(f.claim_asleep());
        for _ in 0..IDLE_TURNS {
            assert_eq!(f.turn(false), BackgroundAction::Timed { owned: true });
        }
        f.ownership.release();
    }
}

#[test]
fn earlier_deadline_wakes_owner() {
    let f = OwnershipFixture::new();
    f.ownership.wake_owner(|| false);
    assert!(!f.woken(), "on standby with a timer");
    f.ownership.wake_owner(|| true);
    assert!(f.woken());
    let active = parker();
    assert!(f.claim(&active));
    f.ownership.wake_owner(|| true);
    assert!(active.is_notified() && !f.woken());
    f.ownership.wake_background_if_unowned();
    assert!(!f.woken());
    f.ownership.release();
    f.ownership.wake_background_if_unowned();
    assert!(f.woken());
}

#[test]
fn armed_program_owns_until_it_asks_again() {
    let mut f = OwnershipFixture::new();
    let watched = WatchedStack::new();
    assert_eq!(f.turn(false), BackgroundAction::Own);
    assert!(f.arm(&watched, 0));
    assert!(f.woken(), "the background thread sleeps in the descriptor");
    assert!(!f.ownership.background_release() && watched.is_on());
    assert_eq!(f.ownership.role_of(&watched.watch), Some(ProgramRole::Armed));
    assert!(f.ownership.disarm(&watched.watch));
    assert!(watched.is_on(), "it mostly arms again soon");
    assert!(f.arm(&watched, 0) && watched.is_on());
    assert!(f.ownership.disarm(&watched.watch));
    assert_eq!(f.ownership.role_of(&watched.watch), Some(ProgramRole::Served));
    f.ownership.end_served();
    assert!(!watched.is_on());
    assert_eq!(f.ownership.role_of(&watched.watch), None);
    assert!(!f.ownership.disarm(&watched.watch));
    assert!(!f.woken());
}

#[test]
fn polling_program_without_arming_owns_until_turn() {
    let mut f = OwnershipFixture::new();
    let watched = WatchedStack::new();
    assert!(f.arm(&watched, 0) && f.ownership.disarm(&watched.watch));
    assert_eq!(f.turn(true), BackgroundAction::Timed { owned: false });
    assert!(watched.is_on(), "armed since the last turn");
    assert_eq!(f.turn(true), BackgroundAction::Timed { owned: false });
    assert!(!watched.is_on() && watched.watch.is_taken());
    assert_eq!(f.ownership.role_of(&watched.watch), None);
    assert!(f.arm(&watched, 0), "it is no failure");
    assert_eq!(f.turn(true), BackgroundAction::Timed { owned: false });
    assert_eq!(f.turn(true), BackgroundAction::Timed { owned: false });
    assert!(watched.is_on(), "armed");
}

#[test]
fn background_replaces_idle_armed_program() {
    let mut f = OwnershipFixture::new();
    let watched = WatchedStack::new();
    for (count, alive) in [(3, true), (IDLE_TURNS + 1, false)] {
        assert!(f.arm(&watched, 0));
        for _ in 0..count {
            assert_eq!(f.turn_with(alive, false, false), BackgroundAction::Timed { owned: false });
        }
    }
    assert_eq!(f.turn(false), BackgroundAction::Own);
    assert!(!watched.is_on() && watched.watch.is_taken());
    assert!(f.arm(&watched, 0), "idleness is no failure");
}

#[test]
fn background_replaces_passive_armed_program() {
    let mut f = OwnershipFixture::new();
    let watched = WatchedStack::new();
    for now in [0, PAUSE] {
        assert!(f.arm(&watched, now));
        assert_eq!(f.turn_with(true, false, true), BackgroundAction::Timed { owned: false });
        assert_eq!(f.turn_with(false, false, true), BackgroundAction::Timed { owned: false });
        assert_eq!(f.turn_with(false, false, true), BackgroundAction::Own);
        assert!(!watched.is_on() && watched.watch.is_taken());
        assert!(!f.arm(&watched, PAUSE - 1), "not before the pause is over");
    }
}

#[test]
fn pause_unaffected_by_wakeups() {
    let f = OwnershipFixture::new();
    let watched = WatchedStack::new();
    assert!(f.arm(&watched, 0));
    assert!(f.ownership.disarm(&watched.watch));
    f.ownership.note_spurious_wake_up(&watched.watch, || 0);
    assert!(!f.arm(&watched, PAUSE - 1), "a pause");
    f.ownership.note_spurious_wake_up(&watched.watch, || PAUSE - 1);
    assert!(f.arm(&watched, PAUSE), "its end");
}

#[test]
fn two_armed_channels_have_no_owner() {
    let f = OwnershipFixture::new();
    let (first, second) = (WatchedStack::new(), WatchedStack::new());
    assert!(f.arm(&first, 0));
    assert!(!f.arm(&second, 0));
    assert!(first.watch.is_taken() && !first.is_on() && !second.is_on());
    assert!(!f.arm(&first, PAUSE - 1) && f.arm(&first, PAUSE));
}

#[test]
fn withheld_token_released_at_second_turn() {
    let mut f = OwnershipFixture::new();
    let watched = WatchedStack::new();
    assert!(!f.ownership.withhold(watched.withheld()), "not armed");
    assert!(f.arm(&watched, 0));
    // Rounds of other threads do not count as turns of the program.
    assert!(f.ownership.withhold(watched.withheld()));
    f.turn_with(true, false, false);
    assert!(!watched.released());
    f.turn_with(true, false, false);
    assert!(watched.released());
    f.turn_with(true, false, false);
    assert!(!watched.released(), "once");
    // Counting restarts with each post.
    for _ in 0..3 {
        assert!(f.ownership.withhold(watched.withheld()));
        f.turn_with(true, false, false);
        assert!(!watched.released());
    }
}

#[test]
fn withheld_token_released_with_watch() {
    let f = OwnershipFixture::new();
    let (watched, other) = (WatchedStack::new(), WatchedStack::new());
    let withhold = || {
        assert!(f.arm(&watched, PAUSE));
        assert!(!f.ownership.withhold(other.withheld()), "another channel");
        assert!(f.ownership.withhold(watched.withheld()) && !watched.released());
    };
    withhold();
    assert!(f.ownership.disarm(&watched.watch));
    f.ownership.end_served();
    assert!(watched.released());
    withhold();
    assert!(!f.arm(&other, 0));
    assert!(watched.released());
    withhold();
    assert!(f.claim(&parker()));
    assert!(watched.released());
}

#[test]
fn waiting_thread_replaces_armed_program() {
    let f = OwnershipFixture::new();
    let watched = WatchedStack::new();
    assert!(f.arm(&watched, 0));
    assert!(f.claim(&parker()));
    assert!(!watched.is_on() && watched.watch.is_taken());
    assert!(!f.arm(&watched, 0), "there is an active poller");
}

#[test]
fn thread_replaces_task_until_release() {
    let f = OwnershipFixture::new();
    let thread = parker();
    assert!(f.claim_asleep());
    assert!(f.claim(&thread));
    assert!(!f.claim_asleep(), "the role is taken");
    f.ownership.release();
    assert!(f.ownership.is_owned() && !f.ownership.is_owned_by(&thread), "by the task");
    assert!(f.claim(&thread));
    f.ownership.release_task();
    assert!(f.ownership.is_owned_by(&thread));
    f.ownership.release();
    assert!(!f.ownership.is_owned());
}

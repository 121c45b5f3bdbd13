//! Who drives when: the scheme of `ARCHITECTURE.md`, "Progress".
//!
//! A thread that waits in our own calls sleeps in the stack's descriptor itself and drives when it wakes: no second thread
//! stands between an arrival and its receiver. It is the *leader*; others wait on their own parkers and take over when it
//! leaves. While somebody polls the background thread sleeps on a timer (the pollers' *lease*); while there is a leader it follows;
//! else it leads. When all is idle everybody sleeps without a time-out.

use crate::driver::Shard;
use crate::driver::park::Parker;
use crate::driver::seat::Seat;
use crate::error::{Error, Result};
use crate::options::Progress;
use parking_lot::Mutex;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The background thread looks this often, at first, whether somebody still polls. An arrival at an application that stopped
/// polling without arming waits at most two looks.
const LEASE: Duration = Duration::from_micros(200);
/// Under steady polling it looks ever less often, soon down to this.
const MAX_LEASE: Duration = Duration::from_millis(1);
/// Where polling has lasted for long, each look is so large a part of that time behind the one before: a look takes 25 microseconds
/// of a poller's core, and with one each millisecond at both ends one of fifty round trips met one.
const LEASE_PART: u32 = 16;
/// But it looks this often.
const MAX_LONG_LEASE: Duration = Duration::from_millis(4);
/// Within this time after a sleep in our own wait, arming a queue is taken as the prelude of the next one.
const OWN_WAIT_HABIT: Duration = Duration::from_millis(10);
/// Posts that wait for company wait at most this long.
const DEFER: Duration = Duration::from_micros(50);
/// The background thread looks this often whether the leader has changed before it stops looking.
const FOLLOW_TICKS: u32 = 10;

/// After octets moved, a driving thread looks again for this long before it sleeps: what belongs together comes within it, and
/// a sleep and its wake-up cost as much.
const LINGER: Duration = Duration::from_micros(20);
/// Looks in one go; then roles and the driver's life are looked at again.
const LINGER_LOOKS: usize = 256;

const NEVER: u64 = u64::MAX;

#[derive(Default)]
enum Leader {
    #[default]
    None,
    Background,
    /// An application's thread or task, and how it is woken.
    App(Waker),
}

#[derive(Default)]
struct Roles {
    leader: Leader,
    /// Changes whenever an application thread begins to lead.
    epoch: u64,
    /// Threads that wait without leading.
    followers: Vec<Arc<Parker>>,
    /// The background thread follows without a timer: whoever stops leading must wake it.
    background_parked: bool,
}

pub(crate) struct Sleepers(Arc<Shared>);

struct Shared {
    base: Instant,
    set: Option<Arc<OwnedFd>>,
    /// In the set, for the leader.
    seat: Option<Arc<Seat>>,
    background: Arc<Parker>,
    roles: Mutex<Roles>,
    /// Somebody polled since the background thread looked last. A flag and not a time: a poll must not read the clock.
    polled: AtomicBool,
    /// When the last thread slept in our own wait.
    own_wait: AtomicU64,
    /// The next deadline of any stream.
    timer: AtomicU64,
    /// The leader sleeps in the set. Awake for long, it runs foreign code and does not drive: the background thread helps out.
    leader_sleeps: AtomicBool,
    /// Posts wait for company.
    deferred: AtomicBool,
    /// The background thread sleeps on a timer, behind which it looks at what is posted.
    watches: AtomicBool,
    /// At its last look somebody polled and drove.
    trusts: AtomicBool,
    stop: AtomicBool,
    manual: bool,
}

impl Sleepers {
    pub(crate) fn new(set: Option<Arc<OwnedFd>>, progress: Progress) -> Result<Self> {
        let seat = set.as_ref().map(Seat::new).transpose()?.map(Arc::new);
        Ok(Self(Arc::new(Shared {
            base: Instant::now(),
            set,
            seat,
            background: Arc::new(Parker::new()?),
            roles: Mutex::default(),
            polled: AtomicBool::new(false),
            own_wait: AtomicU64::new(0),
            timer: AtomicU64::new(NEVER),
            leader_sleeps: AtomicBool::new(false),
            deferred: AtomicBool::new(false),
            watches: AtomicBool::new(false),
            trusts: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            manual: progress == Progress::Manual,
        })))
    }

    /// The streams' next deadline, as the pump left it; the core is held. True when a sleeper must be woken, as it is earlier
    /// than the one before.
    pub(crate) fn timer_at(&self, next: Option<Instant>) -> bool {
        let shared = &self.0;
        let at = next.map_or(NEVER, |at| shared.since_base(at));
        let before = shared.timer.swap(at, Ordering::SeqCst);
        at < before && !shared.manual
    }

    pub(crate) fn is_manual(&self) -> bool {
        self.0.manual
    }

    /// Wakes the thread whose sleep the streams depend on.
    pub(crate) fn wake(&self) {
        self.0.wake_sleeper();
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
        self.0.background.notify();
    }
}

impl Shared {
    fn since_base(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.base).as_nanos()).unwrap_or(NEVER - 1)
    }

    fn now(&self) -> u64 {
        self.since_base(Instant::now())
    }

    fn instant(&self, ns: u64) -> Option<Instant> {
        (ns != NEVER).then(|| self.base + Duration::from_nanos(ns))
    }

    /// Wakes the thread whose sleep the streams depend on, unless it looks within [`MAX_LONG_LEASE`] anyway: woken before, the
    /// background thread would take the pollers for gone, as they have not polled since its last look.
    fn wake_sleeper(&self) {
        let roles = self.roles.lock();
        match &roles.leader {
            Leader::App(waker) => waker.wake_by_ref(),
            Leader::Background | Leader::None if self.watches.load(Ordering::SeqCst) => {}
            Leader::Background | Leader::None => self.background.notify(),
        }
    }

    /// Makes the calling thread the leader if no other application thread leads.
    fn lead(&self, parker: &Arc<Parker>) -> bool {
        let mut roles = self.roles.lock();
        if self.take_lead(&mut roles, || Waker::from(Arc::clone(parker))) {
            return true;
        }
        roles.followers.push(Arc::clone(parker));
        false
    }

    fn take_lead(&self, roles: &mut Roles, waker: impl FnOnce() -> Waker) -> bool {
        match roles.leader {
            Leader::App(_) => return false,
            // Both may sleep in the set for a moment; the background thread finds out when it wakes.
            Leader::Background => self.background.notify(),
            Leader::None => {}
        }
        roles.leader = Leader::App(waker());
        roles.epoch += 1;
        true
    }

    /// The calling thread stops leading: another follower takes over, or the background thread when the lease ends.
    fn leave(&self) {
        self.own_wait.store(self.now(), Ordering::Relaxed);
        self.polled.store(true, Ordering::SeqCst);
        let mut roles = self.roles.lock();
        roles.leader = Leader::None;
        if let Some(next) = roles.followers.pop() {
            next.notify();
        }
        if std::mem::take(&mut roles.background_parked) {
            self.background.notify();
        }
    }

    /// Whether a thread or task of the application leads.
    fn is_led(&self) -> bool {
        matches!(self.roles.lock().leader, Leader::App(_))
    }

    /// Whether this very thread leads already: it waits inside another wait of its own, in a waker or a future.
    fn is_led_by(&self, parker: &Arc<Parker>) -> bool {
        match &self.roles.lock().leader {
            Leader::App(waker) => waker.data() == Arc::as_ptr(parker).cast(),
            Leader::Background | Leader::None => false,
        }
    }

    /// The leader is about to drive, and then to run foreign code: the background thread watches it again.
    fn leader_awake(&self) {
        self.leader_sleeps.store(false, Ordering::SeqCst);
        if std::mem::take(&mut self.roles.lock().background_parked) {
            self.background.notify();
        }
    }

    fn unfollow(&self, parker: &Arc<Parker>) {
        self.roles.lock().followers.retain(|p| !Arc::ptr_eq(p, parker));
    }
}

const fn nanos(wait: Duration) -> u64 {
    wait.as_nanos() as u64
}

impl Shard {
    /// What a poll that found nothing does: drives once, until `enough` says that the poll has what it wants. Never blocks.
    pub(crate) fn poll_progress(self: &Arc<Self>, enough: &dyn Fn() -> bool) {
        if let Some(mut busy) = self.try_lock() {
            busy.pump_until(enough);
        }
    }

    /// Somebody polls and is trusted to poll again soon: the background thread keeps out of the way.
    pub(crate) fn note_poll(&self) {
        let polled = &self.sleepers.0.polled;
        // Read first: the line is shared with other pollers.
        if !polled.load(Ordering::Relaxed) {
            polled.store(true, Ordering::Relaxed);
        }
    }

    /// A completion queue was armed: the application is about to sleep, perhaps in a poll of its own, and must not wait out
    /// its own lease.
    pub(crate) fn armed(self: &Arc<Self>) {
        self.try_flush();
        let shared = &self.sleepers.0;
        if shared.manual {
            return;
        }
        let now = shared.now();
        if now.saturating_sub(shared.own_wait.load(Ordering::Relaxed)) < nanos(OWN_WAIT_HABIT) {
            return;
        }
        shared.polled.store(false, Ordering::SeqCst);
        if matches!(shared.roles.lock().leader, Leader::None) {
            shared.background.notify();
        }
    }

    /// Posts wait for more of their kind: for the next poll where somebody polls steadily, else at most [`DEFER`].
    pub(crate) fn deferred(&self) {
        let shared = &self.sleepers.0;
        // To wake a thread for what the poller is about to do would only make it contend for the core, and for a processor.
        // One poll is no promise of another: somebody must be about to look. Who polled until the last look is trusted until
        // the next one: he posts hundreds of messages between two polls, and on two processors a thread that takes the core
        // beside him and his peer is soon one that holds it without a processor.
        let polls = shared.polled.load(Ordering::Relaxed) || shared.trusts.load(Ordering::Relaxed);
        if polls && shared.watches.load(Ordering::SeqCst) {
            return;
        }
        if !shared.manual && !shared.deferred.swap(true, Ordering::SeqCst) {
            shared.background.notify();
        }
    }

    /// Runs `poll` until it is ready or `deadline` has passed, driving the device meanwhile.
    pub(crate) fn block_on<T>(
        self: &Arc<Self>,
        deadline: Option<Instant>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        let parker = match Parker::current() {
            Ok(parker) => parker,
            Err(error) => {
                tracing::error!(%error, "no descriptor to sleep on: spinning");
                return self.spin_on(deadline, poll);
            }
        };
        let waker = Waker::from(Arc::clone(&parker));
        let mut cx = Context::from_waker(&waker);
        // The thread may be inside another wait, whose wake-ups are forgotten here: it looks again.
        let _outer = NotifyOnDrop(&parker);
        // Led from the first sleep to the return: handing the lead over at every wake-up would wake two threads for each.
        let mut lead = None;
        loop {
            parker.reset();
            if let Poll::Ready(value) = poll(&mut cx) {
                return Some(value);
            }
            let moved = self.try_pump() > 0;
            if parker.is_notified() {
                continue;
            }
            if deadline.is_some_and(|at| Instant::now() >= at) {
                return None;
            }
            // A follower does not linger: one thread that drives is enough.
            if moved && (lead.is_some() || !self.sleepers.0.is_led()) {
                self.linger(|| parker.is_notified());
                continue;
            }
            self.sleep(&parker, deadline, &mut lead);
        }
    }

    fn spin_on<T>(
        self: &Arc<Self>,
        deadline: Option<Instant>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(value) = poll(&mut cx) {
                return Some(value);
            }
            self.try_pump();
            if deadline.is_some_and(|at| Instant::now() >= at) {
                return None;
            }
            std::thread::yield_now();
        }
    }

    fn sleep<'a>(
        self: &'a Arc<Self>,
        parker: &Arc<Parker>,
        deadline: Option<Instant>,
        lead: &mut Option<Lead<'a>>,
    ) {
        let shared = &*self.sleepers.0;
        if shared.manual {
            std::thread::yield_now();
            return;
        }
        if lead.is_none() && !shared.is_led_by(parker) {
            if !shared.lead(parker) {
                parker.sleep(None, deadline);
                shared.unfollow(parker);
                return;
            }
            *lead = Some(Lead(shared));
        }
        // Whoever rang before we led may have seen nobody to wake.
        if !self.is_pending() {
            let timer = shared.instant(shared.timer.load(Ordering::SeqCst));
            let until = match (timer, deadline) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            shared.leader_sleeps.store(true, Ordering::SeqCst);
            let readable = match &shared.seat {
                Some(seat) => parker.sleep_in(seat, until),
                None => parker.sleep(None, until),
            };
            shared.leader_awake();
            if readable && self.try_lock().map(|mut busy| busy.answer()).is_none() {
                // Somebody else drives at the moment; the set stays readable until he has served it.
                parker.sleep(None, Some(Instant::now() + LEASE));
            }
        }
    }

    /// Pumps on while octets move, and [`LINGER`] longer, until `stop`.
    fn linger(self: &Arc<Self>, stop: impl Fn() -> bool) {
        if self.sleepers.0.manual {
            return;
        }
        let mut last = Instant::now();
        for _ in 0..LINGER_LOOKS {
            if stop() {
                return;
            }
            if self.try_pump() > 0 {
                last = Instant::now();
            } else if last.elapsed() >= LINGER {
                return;
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// A pump that asks the stack: after its descriptor was readable. `Some(true)` when the stack may have more, none when
    /// another thread drives.
    pub(crate) fn pump_events(self: &Arc<Self>) -> Option<bool> {
        let mut busy = self.try_lock()?;
        Some(busy.ask() > 0)
    }
}

/// Wakes a thread's own parker when its wait is over, however it ends.
struct NotifyOnDrop<'a>(&'a Parker);

impl Drop for NotifyOnDrop<'_> {
    fn drop(&mut self) {
        self.0.notify();
    }
}

/// The lead of a thread, until dropped.
struct Lead<'a>(&'a Shared);

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A task that leads in the place of a thread: a runtime's reactor waits for the stack's descriptor.
#[cfg(feature = "tokio")]
pub(crate) struct TaskLead(Arc<Shared>);

#[cfg(feature = "tokio")]
impl TaskLead {
    /// Leads if no other application thread or task does.
    pub(crate) fn try_new(shard: &Shard, waker: impl FnOnce() -> Waker) -> Option<Self> {
        let shared = &shard.sleepers.0;
        let taken = shared.take_lead(&mut shared.roles.lock(), waker);
        if taken {
            // Its runtime's reactor sleeps in its place.
            shared.leader_sleeps.store(true, Ordering::SeqCst);
        }
        taken.then(|| Self(Arc::clone(shared)))
    }

    /// The descriptor to wait for.
    pub(crate) fn set(&self) -> Option<Arc<OwnedFd>> {
        self.0.set.clone()
    }

    /// The streams' next deadline.
    pub(crate) fn timer(&self) -> Option<Instant> {
        self.0.instant(self.0.timer.load(Ordering::SeqCst))
    }
}

#[cfg(feature = "tokio")]
impl Drop for TaskLead {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Starts the background thread. It ends with the driver.
pub(crate) fn spawn(shard: &Arc<Shard>) -> Result<()> {
    let shared = Arc::clone(&shard.sleepers.0);
    let driver = Arc::downgrade(shard);
    crate::thread::spawn("uiw-driver", move || background(&shared, &driver))
        .map_err(Error::io("starting the driver thread"))?;
    Ok(())
}

fn background(shared: &Shared, driver: &Weak<Shard>) {
    let mut habits = Habits::default();
    while !shared.stop.load(Ordering::SeqCst) {
        shared.background.reset();
        if shared.deferred.load(Ordering::SeqCst) {
            std::thread::sleep(DEFER);
            shared.deferred.store(false, Ordering::SeqCst);
            // Mostly a poll has served them.
            if driver.upgrade().is_some_and(|driver| driver.is_pending()) {
                drive(shared, driver, false);
            }
        } else if let Some(wait) = follow(shared, driver, &mut habits) {
            help(shared, driver, &mut habits);
            shared.watches.store(wait.is_some(), Ordering::SeqCst);
            shared.background.sleep(None, wait);
            shared.watches.store(false, Ordering::SeqCst);
        } else {
            lead(shared, driver, &mut habits);
        }
    }
}

/// How long the background thread stays out of the way: `None` = it leads, `Some(None)` = until woken.
fn follow(shared: &Shared, driver: &Weak<Shard>, habits: &mut Habits) -> Option<Option<Instant>> {
    habits.driven = habits.see_rounds(driver);
    // Who polls but never finds the queue empty does not drive: a program that spins on its memory until the peer has written.
    let polled = shared.polled.swap(false, Ordering::SeqCst) && habits.driven;
    shared.trusts.store(polled, Ordering::Relaxed);
    let mut roles = shared.roles.lock();
    let led = matches!(roles.leader, Leader::App(_));
    let awake = led && !shared.leader_sleeps.load(Ordering::SeqCst);
    // Awake at two looks in a row: it may be busy with something else.
    habits.helps = awake && std::mem::replace(&mut habits.leader_awake, awake);
    habits.leader_awake = awake;
    if led && habits.epoch == roles.epoch && !awake {
        habits.same_leader += 1;
        if habits.same_leader > FOLLOW_TICKS {
            roles.background_parked = true;
            return Some(None);
        }
    } else {
        habits.epoch = roles.epoch;
        habits.same_leader = 0;
    }
    if !led && !polled {
        (habits.lease, habits.polled_since) = (Duration::ZERO, None);
        roles.leader = Leader::Background;
        return None;
    }
    let now = Instant::now();
    let most = if led {
        habits.polled_since = None;
        MAX_LEASE
    } else {
        let polled_for = now - *habits.polled_since.get_or_insert(now);
        (polled_for / LEASE_PART).clamp(MAX_LEASE, MAX_LONG_LEASE)
    };
    habits.lease = (habits.lease * 2).clamp(LEASE, most);
    Some(Some(now + habits.lease))
}

/// Drives in the place of others when they do not: a leader that is awake but busy with something else, a poller that posted and
/// does not poll any more. If somebody drove since the last look there is nothing to help with, and the core is left to him.
fn help(shared: &Shared, driver: &Weak<Shard>, habits: &mut Habits) {
    let posted = driver.upgrade().is_some_and(|driver| driver.is_pending());
    if !habits.driven && (habits.helps || posted) {
        drive(shared, driver, false);
        habits.see_rounds(driver);
    }
}

/// What the background thread has seen while it kept out of the way.
#[derive(Default)]
struct Habits {
    epoch: u64,
    same_leader: u32,
    /// The leader was awake at the last look.
    leader_awake: bool,
    /// The leader does not seem to drive.
    helps: bool,
    /// Rounds of whoever drives, at the last look or behind the last one of its own, which is nobody's sign of life.
    rounds: u32,
    /// Somebody drove between the last two looks.
    driven: bool,
    /// At every look since then somebody had polled and driven.
    polled_since: Option<Instant>,
    lease: Duration,
}

impl Habits {
    /// Whether somebody drove since it was asked last.
    fn see_rounds(&mut self, driver: &Weak<Shard>) -> bool {
        let now = self.rounds_now(driver);
        std::mem::replace(&mut self.rounds, now) != now
    }

    /// As [`Self::see_rounds`], and the next question is answered the same: two looks right after one another find no round
    /// between them.
    fn has_rounds(&self, driver: &Weak<Shard>) -> bool {
        self.rounds_now(driver) != self.rounds
    }

    fn rounds_now(&self, driver: &Weak<Shard>) -> u32 {
        driver.upgrade().map_or(self.rounds, |driver| driver.rounds.load(Ordering::Relaxed))
    }
}

fn lead(shared: &Shared, driver: &Weak<Shard>, habits: &mut Habits) {
    let idle = match driver.upgrade() {
        Some(driver) => !driver.is_pending(),
        None => return,
    };
    let mut readable = false;
    if idle && !shared.deferred.load(Ordering::SeqCst) {
        let timer = shared.instant(shared.timer.load(Ordering::SeqCst));
        readable = shared.background.sleep(shared.set.as_ref().map(|fd| fd.as_fd()), timer);
    }
    let mine = {
        let mut roles = shared.roles.lock();
        let mine = matches!(roles.leader, Leader::Background);
        if mine {
            roles.leader = Leader::None;
        }
        mine
    };
    // While somebody polls and drives the arrival belongs to the thread that polls; with another leader, to it.
    let theirs = shared.polled.load(Ordering::SeqCst) && habits.has_rounds(driver);
    if mine && !theirs {
        drive(shared, driver, readable);
        habits.see_rounds(driver);
    }
}

fn drive(shared: &Shared, driver: &Weak<Shard>, readable: bool) {
    let Some(driver) = driver.upgrade() else { return };
    let drove = if readable {
        driver.pump_events().is_some()
    } else {
        driver.try_lock().map(|mut busy| busy.pump()).is_some()
    };
    if !drove {
        // Somebody else drives at the moment, and until he is done the set stays readable or the deadline past.
        shared.background.sleep(None, Some(Instant::now() + LEASE));
    } else if readable {
        driver.linger(|| shared.polled.load(Ordering::SeqCst) || shared.is_led());
    }
}

//! The driver: the one place where the streams of a device make progress.
//!
//! Everything a stream owns lives in [`Core`], behind one lock that the data path only ever *tries* to take: whoever gets it
//! pumps for all, whoever does not leaves a note in `pending`, which the holder reads after letting go. So no post and no
//! poll ever waits for another thread's system call, and no flush is lost.

mod core;
mod park;
mod pool;
mod progress;
mod seat;
mod timers;

pub(crate) use self::core::{Core, RX_STAGING, Services, Slot};
pub(crate) use pool::Pool;
#[cfg(feature = "tokio")]
pub(crate) use progress::TaskLead;
pub(crate) use timers::Timers;

use crate::device::DeviceOptions;
use crate::error::{Error, Result};
use crate::options::{DriveGuard, Limits, Progress};
use crate::qp::QpInner;
use llp::{Stack, Token};
use parking_lot::{Mutex, MutexGuard};
use progress::Sleepers;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Counts of a device's objects against its limits.
#[derive(Default)]
pub(crate) struct Counts {
    qp: AtomicU32,
    cq: AtomicU32,
    srq: AtomicU32,
    pd: AtomicU32,
}

macro_rules! counted {
    ($take:ident, $release:ident, $field:ident, $limit:ident, $what:literal) => {
        pub(crate) fn $take(&self, limits: &Limits) -> Result<()> {
            let before = self.$field.fetch_add(1, Ordering::AcqRel);
            if before >= limits.$limit {
                self.$field.fetch_sub(1, Ordering::AcqRel);
                return Err(Error::Limit {
                    what: $what,
                    asked: u64::from(before) + 1,
                    limit: limits.$limit.into(),
                });
            }
            Ok(())
        }
        pub(crate) fn $release(&self) {
            self.$field.fetch_sub(1, Ordering::AcqRel);
        }
    };
}

impl Counts {
    counted!(take_qp, release_qp, qp, max_qp, "number of queue pairs");
    counted!(take_cq, release_cq, cq, max_cq, "number of completion queues");
    counted!(take_srq, release_srq, srq, max_srq, "number of shared receive queues");
    counted!(take_pd, release_pd, pd, max_pd, "number of protection domains");
}

impl Limits {
    pub(crate) fn check(&self, what: &'static str, asked: u64, limit: u64) -> Result<()> {
        if asked == 0 {
            return Err(Error::Zero { what });
        }
        if asked > limit {
            return Err(Error::Limit { what, asked, limit });
        }
        Ok(())
    }
}

pub(crate) struct Driver {
    core: Mutex<Core>,
    /// Streams with something to do: posts, receives for a stalled stream.
    ready: Mutex<Vec<Token>>,
    /// Set after `ready` was extended; read by the holder of `core` after letting go.
    pending: AtomicBool,
    /// Counts rounds of whoever drives: the background thread sees by it that somebody does. Written with the core held.
    rounds: AtomicU32,
    pub(crate) table: Arc<mem::Table>,
    pub(crate) counts: Counts,
    limits: Limits,
    pub(crate) qps: Mutex<HashMap<u32, Weak<QpInner>>>,
    sleepers: Sleepers,
    guard: Option<DriveGuard>,
    /// See [`crate::Device::when_a_crowd_leaves`].
    crowd_left: OnceLock<Box<dyn Fn() + Send + Sync>>,
    next_num: AtomicU32,
    next_stream: std::sync::atomic::AtomicU64,
}

impl Driver {
    pub(crate) fn start(stack: Box<dyn Stack>, options: DeviceOptions) -> Result<Arc<Self>> {
        let DeviceOptions { limits, progress, guard } = options;
        let table = mem::Table::new(mem::Limits { max_entries: limits.max_mr });
        let sleepers = Sleepers::new(stack.wait_fd(), progress)?;
        let driver = Arc::new_cyclic(|this| Self {
            core: Mutex::new(Core::new(stack, this.clone(), Arc::clone(&table), limits.max_held_octets)),
            ready: Mutex::default(),
            pending: AtomicBool::new(false),
            rounds: AtomicU32::new(0),
            table,
            counts: Counts::default(),
            limits,
            qps: Mutex::default(),
            sleepers,
            guard,
            crowd_left: OnceLock::new(),
            next_num: AtomicU32::new(1),
            next_stream: std::sync::atomic::AtomicU64::new(1),
        });
        if progress == Progress::Thread {
            progress::spawn(&driver)?;
        }
        Ok(driver)
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A number for an object that has no meaning on the wire.
    pub(crate) fn next_num(&self) -> u32 {
        self.next_num.fetch_add(1, Ordering::Relaxed)
    }

    /// The identity of one stream: never used again.
    pub(crate) fn next_stream(&self) -> mem::StreamId {
        mem::StreamId(self.next_stream.fetch_add(1, Ordering::Relaxed))
    }

    /// Puts a stream on the list of those with something to do.
    pub(crate) fn ring(&self, token: Token) {
        self.ready.lock().push(token);
        self.pending.store(true, Ordering::SeqCst);
    }

    /// Takes the core, waiting for it: control path only.
    pub(crate) fn lock(self: &Arc<Self>) -> Busy<'_> {
        let guarded = self.guarded();
        let mut core = self.core.lock();
        core.look_at_clock();
        Busy { driver: self, core: Some(core), _guarded: guarded }
    }

    /// Whether a connection of a queue pair that is gone has something left to say.
    pub(crate) fn has_let_go(&self) -> bool {
        !self.core.lock().conns(crate::conn::Conn::is_draining).is_empty()
    }

    pub(crate) fn deadline(&self) -> Option<std::time::Instant> {
        self.core.lock().deadline()
    }

    /// Whether the stack has nothing left to do for a process that ends.
    pub(crate) fn farewell(&self) -> bool {
        self.core.lock().stack.farewell()
    }

    /// False: there is something to call already.
    pub(crate) fn when_a_crowd_leaves(&self, call: Box<dyn Fn() + Send + Sync>) -> bool {
        self.crowd_left.set(call).is_ok()
    }

    pub(crate) fn is_manual(&self) -> bool {
        self.sleepers.is_manual()
    }

    fn try_lock(self: &Arc<Self>) -> Option<Busy<'_>> {
        self.core.try_lock().map(|core| Busy { driver: self, core: Some(core), _guarded: self.guarded() })
    }

    fn guarded(&self) -> Option<Guarded> {
        self.guard.map(|guard| Guarded { leave: guard.leave, entered: (guard.enter)() })
    }

    /// Pumps once if nobody else does. Returns how much was done.
    pub(crate) fn try_pump(self: &Arc<Self>) -> usize {
        self.try_lock().map_or(0, |mut busy| busy.pump())
    }

    /// Pumps only the streams that rang, without looking at the network: what a post does.
    pub(crate) fn try_flush(self: &Arc<Self>) -> bool {
        let Some(mut busy) = self.try_lock() else { return false };
        busy.flush();
        true
    }

    /// Serves one stream, for which something was posted; while another thread drives, that one does.
    pub(crate) fn serve(self: &Arc<Self>, token: Token) {
        if let Some(mut busy) = self.try_lock() {
            busy.core().serve(token);
        } else {
            self.ring(token);
            self.try_flush();
        }
    }

    /// Moves the streams that rang to `into`, which is empty: the two lists change places and keep what they allocated.
    fn take_ready(&self, into: &mut Vec<Token>) {
        if self.pending.load(Ordering::SeqCst) && self.pending.swap(false, Ordering::SeqCst) {
            std::mem::swap(&mut *self.ready.lock(), into);
        }
    }
}

/// Rounds that a thread serves posts of others after its own work.
const SERVE_OTHERS: usize = 8;

/// The core, held. Letting go gives the wake-ups that were collected and serves what others left in `pending` meanwhile.
pub(crate) struct Busy<'a> {
    driver: &'a Arc<Driver>,
    core: Option<MutexGuard<'a, Core>>,
    /// Dropped last.
    _guarded: Option<Guarded>,
}

/// Between a [`DriveGuard`]'s two calls.
struct Guarded {
    leave: fn(i32),
    entered: i32,
}

impl Drop for Guarded {
    fn drop(&mut self) {
        (self.leave)(self.entered);
    }
}

impl Busy<'_> {
    /// The core.
    pub(crate) fn core(&mut self) -> &mut Core {
        match &mut self.core {
            Some(core) => core,
            None => unreachable!("the core is held until drop"),
        }
    }

    /// One round: streams that rang, what the network has, timers.
    pub(crate) fn pump(&mut self) -> usize {
        let driver = self.driver;
        let round = driver.rounds.load(Ordering::Relaxed).wrapping_add(1);
        driver.rounds.store(round, Ordering::Relaxed);
        self.core().pump(driver)
    }

    /// A round that asks the stack first. Returns how much news it had.
    pub(crate) fn ask(&mut self) -> usize {
        let driver = self.driver;
        let core = self.core();
        core.look_at_clock();
        let events = core.serve_events(driver);
        core.pump(driver);
        events
    }

    /// A round after a sleep that news ended. With few streams they are read without asking which of them it is.
    pub(crate) fn answer(&mut self) {
        if self.pump() == 0 {
            self.ask();
        }
    }

    fn flush(&mut self) {
        let driver = self.driver;
        self.core().serve_ready(driver);
    }

    fn release(&mut self) {
        if let Some(mut core) = self.core.take() {
            if core.has_no_news() {
                return;
            }
            let mut wakes = std::mem::take(&mut core.services.wakes);
            let trash = std::mem::take(&mut core.trash);
            // Told while the core is held: a deadline that another thread adds meanwhile is not to be overwritten.
            let earlier = core.new_deadline().is_some_and(|next| self.driver.sleepers.timer_at(next));
            let crowd_left = std::mem::take(&mut core.crowd_left);
            drop(core);
            if earlier {
                self.driver.sleepers.wake();
            }
            drop(trash);
            wakes.give();
            if crowd_left && let Some(call) = self.driver.crowd_left.get() {
                call();
            }
        }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.release();
        // A post that found the core busy left its note before its try; so either that try succeeds or the note is seen here.
        for _ in 0..SERVE_OTHERS {
            if !self.driver.pending.load(Ordering::SeqCst) {
                return;
            }
            let Some(core) = self.driver.core.try_lock() else { return };
            self.core = Some(core);
            self.flush();
            self.release();
        }
        // Others post faster than this thread can serve them: it has work of its own.
        self.driver.deferred();
    }
}

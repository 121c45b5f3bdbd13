//! Completion queues.

use crate::comp_channel::CompChannel;
use crate::device::Device;
use crate::driver::{Driver, PollContention};
use crate::error::{Error, Result};
use crate::event::AsyncEvent;
use crate::faults::{Call, Faults};
use crate::notify::{Wake, Wakes, register_waker};
use crate::wc::{Wc, WcStatus};
use arrayvec::ArrayVec;
use parking_lot::{Mutex, MutexGuard};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};

/// Completions taken under one locking.
const BATCH: usize = 16;

/// Condition that raises the next event of a completion queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arm {
    /// No event.
    #[default]
    None,
    /// A completion of a solicited receive, or one in error.
    Solicited,
    /// Any completion.
    Any,
}

/// Options of a completion queue.
#[derive(Clone, Debug, Default)]
pub struct CqConfig {
    /// Channel of the events.
    pub channel: Option<Arc<CompChannel>>,
    /// True if completions carry the time.
    pub timestamps: bool,
    /// The shard of connections whose receives complete here, less than [`Device::shards`]. By
    /// default the device chooses, and moves the connections to a shard of the thread that polls
    /// the queue where threads disturb each other.
    pub shard: Option<usize>,
}

/// Receiver of the completions of a queue that has no ring.
pub trait CompletionConsumer: Send + Sync {
    /// Takes a completion. Locks of the engine are held: code of the application runs later, by a
    /// waker that is added to `wakes`.
    fn complete(&self, wc: Wc, wakes: &mut Wakes);
}

#[derive(Clone, Copy)]
pub(crate) struct Cqe {
    pub(crate) wc: Wc,
    /// Raises an event even when only solicited ones were asked for.
    pub(crate) solicited: bool,
}

/// A completion queue: a ring of fixed depth. A completion that finds it full is lost: the queue
/// raises [`AsyncEvent::CqError`] once, and every queue pair that loses a completion enters the
/// error state.
pub struct Cq {
    num: u32,
    device: Device,
    options: CqConfig,
    inner: Mutex<CompletionRing>,
    /// Copy of the ring's length that a poller reads without the lock.
    queued: AtomicUsize,
    /// Completions that have left the ring: copy of what the lock guards.
    taken: AtomicU64,
    /// Queue pairs that complete here.
    users: AtomicU32,
    /// The shard of connections whose receives complete here: see [`Cq::shard`].
    shard: OnceLock<usize>,
    /// Polls that found that another thread polls the same shards.
    contention: PollContention,
    /// The shards of connections that complete here: a bit for each.
    shards: AtomicU64,
    /// True if, when the queue was last armed, its channel had a descriptor that becomes readable
    /// when something arrives on one of these shards, by a watch or by the background thread.
    watched: AtomicBool,
    /// The next poll that finds nothing drives nothing. Stored without an order: a poll more or
    /// less that drives changes nothing.
    skips_drive: AtomicBool,
    /// Number of connections that complete here, by shard; `shards` is a copy.
    connections: Mutex<Vec<u32>>,
    faults: Option<Arc<Faults>>,
    consumer: Option<Arc<dyn CompletionConsumer>>,
    this: Weak<Self>,
}

struct CompletionRing {
    ring: VecDeque<Cqe>,
    /// Completions that were ever in the ring.
    pushed: u64,
    depth: usize,
    arm: Arm,
    overflowed: bool,
    wakers: Vec<Waker>,
}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cq").field("num", &self.num).field("queued", &self.len()).finish_non_exhaustive()
    }
}

impl Cq {
    fn new(
        device: &Device,
        num: u32,
        depth: u32,
        options: CqConfig,
        consumer: Option<Arc<dyn CompletionConsumer>>,
    ) -> Arc<Self> {
        // A consumer has taken every completion.
        let taken = if consumer.is_some() { u64::MAX } else { 0 };
        Arc::new_cyclic(|this| Self {
            num,
            device: device.for_object(),
            options,
            inner: Mutex::new(CompletionRing {
                ring: VecDeque::new(),
                pushed: 0,
                depth: depth as usize,
                arm: Arm::None,
                overflowed: false,
                wakers: Vec::new(),
            }),
            queued: AtomicUsize::new(0),
            taken: AtomicU64::new(taken),
            users: AtomicU32::new(0),
            shard: OnceLock::new(),
            contention: PollContention::default(),
            shards: AtomicU64::new(0),
            watched: AtomicBool::new(false),
            skips_drive: AtomicBool::new(false),
            connections: Mutex::default(),
            faults: device.driver().shared.faults.clone(),
            consumer,
            this: this.clone(),
        })
    }

    /// Returns the number on the device.
    pub fn num(&self) -> u32 {
        self.num
    }

    /// Completions it holds at most.
    pub fn depth(&self) -> u32 {
        u32::try_from(self.inner.lock().depth).unwrap_or(u32::MAX)
    }

    /// The channel given at creation.
    pub fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.options.channel.as_ref()
    }

    /// Queue pairs that complete here.
    pub fn users(&self) -> u32 {
        self.users.load(Ordering::Acquire)
    }

    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns the shard on which connections begin whose receives complete here: that of
    /// [`CqConfig::shard`], or the one that the device assigned when it was first asked for.
    pub fn shard(&self) -> usize {
        let assign = || self.options.shard.unwrap_or_else(|| self.driver().shard_for_queue());
        *self.shard.get_or_init(assign)
    }

    /// A connection of `shard` completes here from now on.
    pub(crate) fn add_connection(&self, shard: usize) {
        let mut connections = self.connections.lock();
        if connections.len() <= shard {
            connections.resize(shard + 1, 0);
        }
        connections[shard] += 1;
        self.contention.reset();
        self.shards.fetch_or(1 << shard, Ordering::Release);
    }

    /// A connection of `shard` does not complete here any more.
    pub(crate) fn remove_connection(&self, shard: usize) {
        let mut connections = self.connections.lock();
        if let Some(count) = connections.get_mut(shard) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.shards.fetch_and(!(1 << shard), Ordering::Release);
            }
        }
    }

    /// Changes the depth; completions in the queue stay. For a smaller depth requests that are
    /// posted are served before, as their completions count.
    ///
    /// # Errors
    /// [`Error::Limit`] when more completions are queued than `depth`, [`Error::Zero`].
    pub fn resize(&self, depth: u32) -> Result<()> {
        self.driver().limits().check(
            "completion queue depth",
            depth.into(),
            self.driver().limits().max_cqe.into(),
        )?;
        if depth < self.depth() && !self.driver().is_manual() {
            self.driver().serve_posts(self.shards.load(Ordering::Acquire));
        }
        let mut inner = self.inner.lock();
        if inner.ring.len() > depth as usize {
            return Err(Error::Limit {
                what: "queued completions",
                asked: inner.ring.len() as u64,
                limit: depth.into(),
            });
        }
        inner.depth = depth as usize;
        Ok(())
    }

    /// Takes up to `max` completions, oldest first; each goes to `each`. Returns how many.
    ///
    /// When none is queued, the caller's thread drives the shards on which connections complete
    /// here, once, until one is queued (`verbs/src/driver/progress`). A program that sleeps in
    /// poll(2) on the channel's descriptor is woken by what the sockets have, and polls until
    /// nothing is left before it sleeps: that poll, the first empty one after a completion or after
    /// [`Cq::arm`], drives only where requests wait to be sent.
    pub fn poll_with(&self, max: usize, mut each: impl FnMut(Wc)) -> usize {
        self.poll_into(max, &mut |max| self.pop(max, &mut each))
    }

    /// Like [`Cq::poll_with`]; `pop` takes what is there.
    #[inline]
    fn poll_into(&self, max: usize, pop: &mut impl FnMut(usize) -> usize) -> usize {
        if let Some(faults) = &self.faults {
            faults.delay(Call::PollCq);
        }
        self.driver().note_poll(self.shards.load(Ordering::Acquire));
        if !self.is_empty() {
            let taken = pop(max);
            if taken > 0 {
                self.skips_drive.store(self.watched.load(Ordering::Relaxed), Ordering::Relaxed);
                return taken;
            }
        }
        if self.skips_drive.load(Ordering::Relaxed) {
            self.skips_drive.store(false, Ordering::Relaxed);
            if !self.driver().has_pending(self.shards.load(Ordering::Acquire)) {
                return 0;
            }
        }
        let enough = || self.queued.load(Ordering::Relaxed) > 0;
        let thread = self.contention.sample();
        let contended = self.driver().poll_progress(self.shards.load(Ordering::Acquire), thread, &enough);
        if let Some(thread) = thread
            && self.contention.note_empty_poll(thread, contended)
            && self.options.shard.is_none()
        {
            self.driver().gather(self.num);
        }
        if self.is_empty() { 0 } else { pop(max) }
    }

    /// Takes up to `max` completions as [`Cq::poll_with`] does, without driving: for a program that
    /// drives many queues at once ([`Device::drive`], [`PollWaiter`](crate::PollWaiter)).
    pub fn take_with(&self, max: usize, mut each: impl FnMut(Wc)) -> usize {
        if self.is_empty() { 0 } else { self.pop(max, &mut each) }
    }

    /// Like [`Cq::poll_with`], appended to `out`.
    pub fn poll(&self, out: &mut Vec<Wc>, max: usize) -> usize {
        self.poll_into(max, &mut |max| self.pop_all(max, out))
    }

    /// Takes completions without driving the device. `each` is called without the queue's lock: it
    /// may post.
    pub(crate) fn pop(&self, max: usize, each: &mut impl FnMut(Wc)) -> usize {
        // What `each` brings about is for the next call.
        let max = max.min(self.queued.load(Ordering::Acquire));
        // A batch of one costs more than a completion by itself.
        if max == 1 {
            let mut inner = self.inner.lock();
            let Some(cqe) = inner.ring.pop_front() else { return 0 };
            self.note_left(&mut inner);
            drop(inner);
            each(cqe.wc);
            return 1;
        }
        let mut taken = 0;
        while taken < max {
            let mut batch = ArrayVec::<Wc, BATCH>::new();
            {
                let mut inner = self.inner.lock();
                while batch.len() < BATCH.min(max - taken)
                    && let Some(cqe) = inner.ring.pop_front()
                {
                    batch.push(cqe.wc);
                }
                self.note_left(&mut inner);
            }
            let count = batch.len();
            // Not moved: that would copy the room for all of them.
            batch.drain(..).for_each(&mut *each);
            taken += count;
            if count < BATCH {
                break;
            }
        }
        taken
    }

    /// Like [`Cq::pop`], appended to `out`, which is not foreign code: under one locking.
    fn pop_all(&self, max: usize, out: &mut Vec<Wc>) -> usize {
        let mut inner = self.inner.lock();
        let count = max.min(inner.ring.len());
        if count == 1 {
            // The answer of a ping-pong: for one, the ranges below cost more than it does.
            out.extend(inner.ring.pop_front().map(|cqe| cqe.wc));
        } else {
            let (front, back) = inner.ring.as_slices();
            let front = &front[..count.min(front.len())];
            for part in [front, &back[..count - front.len()]] {
                out.extend(part.iter().map(|cqe| cqe.wc));
            }
            inner.ring.drain(..count);
        }
        self.note_left(&mut inner);
        count
    }

    /// Asks for one event at the next completion (`ibv_req_notify_cq`). Poll once more after
    /// arming: what completed before raises no event.
    pub fn arm(&self, arm: Arm) {
        {
            let mut inner = self.inner.lock();
            // Arming for any completion is not weakened by a later arming for solicited ones.
            if inner.arm != Arm::Any {
                inner.arm = arm;
            }
        }
        let channel = self.options.channel.as_deref().filter(|channel| channel.note_armed(&self.this));
        let driver = self.driver();
        let watched = Cell::new(channel.is_some());
        driver.arm(self.shards.load(Ordering::Acquire), |shard| {
            let watch = channel?.watch(driver, shard);
            watched.set(watched.get() && watch.is_some());
            watch
        });
        self.watched.store(watched.get(), Ordering::Relaxed);
        self.skips_drive.store(watched.get(), Ordering::Relaxed);
    }

    /// Withdraws [`Cq::arm`]. False: it was not armed.
    pub(crate) fn disarm(&self) -> bool {
        std::mem::take(&mut self.inner.lock().arm) != Arm::None
    }

    /// Returns whether connections of this shard of `driver` complete here.
    pub(crate) fn is_driven_by(&self, driver: &Arc<Driver>, shard: usize) -> bool {
        self.shards.load(Ordering::Acquire) >> shard & 1 != 0 && Arc::ptr_eq(self.driver(), driver)
    }

    /// Ready when at least one completion is queued.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.queued.load(Ordering::Acquire) > 0 {
            return Poll::Ready(());
        }
        let mut inner = self.inner.lock();
        if !inner.ring.is_empty() {
            return Poll::Ready(());
        }
        register_waker(&mut inner.wakers, cx.waker());
        Poll::Pending
    }

    /// The shards of connections that complete here: a bit for each.
    pub(crate) fn shard_bits(&self) -> u64 {
        self.shards.load(Ordering::Acquire)
    }

    /// Completions queued now.
    pub fn len(&self) -> usize {
        self.queued.load(Ordering::Acquire)
    }

    /// Returns whether no completion is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn driver(&self) -> &Arc<Driver> {
        self.device.driver()
    }

    /// Completions have left the ring.
    #[inline]
    fn note_left(&self, inner: &mut CompletionRing) {
        let queued = inner.ring.len();
        if queued == 0 {
            // An empty ring begins anew: of one that empties repeatedly the same few places are
            // used, which are in the cache.
            inner.ring.clear();
        }
        self.queued.store(queued, Ordering::Release);
        self.taken.store(inner.pushed - queued as u64, Ordering::Release);
    }

    /// Returns the number of completions that have left the queue: those whose number is less,
    /// except a destroyed queue pair's, which leave from anywhere.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// Adds a completion and returns its number. Returns `None` if the queue has overflowed; then the
    /// caller's queue pair enters the error state.
    pub(crate) fn push(&self, cqe: Cqe, wakes: &mut Wakes) -> Option<u64> {
        self.appender(wakes).push(cqe)
    }

    /// Adds completions in order, and returns how many of them: all, or as many as the queue has
    /// room for. If it has overflowed, the caller's queue pair enters the error state.
    pub(crate) fn push_all(&self, cqes: impl IntoIterator<Item = Cqe>, wakes: &mut Wakes) -> usize {
        let mut appender = self.appender(wakes);
        cqes.into_iter().take_while(|cqe| appender.push(*cqe).is_some()).count()
    }

    /// Returns an appender, which locks the queue with the first completion.
    #[inline(always)]
    pub(crate) fn appender<'a>(&'a self, wakes: &'a mut Wakes) -> CompletionAppender<'a> {
        CompletionAppender { cq: self, wakes, inner: None, fires: false, overflows: false }
    }

    /// Tells the channel that completions were added. `fires` is true if an event was requested for
    /// one of them. Not inlined, because most queues have no channel.
    #[inline(never)]
    fn notify(&self, channel: &CompChannel, fires: bool, wakes: &mut Wakes) {
        if fires {
            channel.push(self.this.clone(), wakes);
        } else {
            channel.note_completion(wakes);
        }
    }

    fn report_overflow(&self, wakes: &mut Wakes) {
        tracing::error!(cq = self.num, "completion queue overflow");
        self.device.events().raise(AsyncEvent::CqError { cq: self.num }, wakes);
    }

    /// Removes the completions of a queue pair that is being destroyed.
    pub(crate) fn forget_qp(&self, qp_num: u32) {
        if self.consumer.is_some() {
            return;
        }
        let mut inner = self.inner.lock();
        inner.ring.retain(|cqe| cqe.wc.qp_num != qp_num);
        self.note_left(&mut inner);
    }
}

/// Adds completions to a queue under one lock, which it releases when it is dropped.
///
/// While it has added a completion and is not dropped, its thread must take no lock of a queue.
pub(crate) struct CompletionAppender<'a> {
    cq: &'a Cq,
    wakes: &'a mut Wakes,
    /// Locked by the first completion. Always `None` if the queue has a consumer.
    inner: Option<MutexGuard<'a, CompletionRing>>,
    /// True if an event was requested for one of the completions.
    fires: bool,
    /// True if a completion has found the queue full for the first time.
    overflows: bool,
}

impl CompletionAppender<'_> {
    /// Adds a completion and returns its number, or gives it to the queue's consumer. Returns `None`
    /// if the queue has overflowed.
    #[inline(always)]
    pub(crate) fn push(&mut self, mut cqe: Cqe) -> Option<u64> {
        let cq = self.cq;
        if let Some(consumer) = &cq.consumer {
            consumer.complete(cqe.wc, self.wakes);
            return Some(0);
        }
        if cq.options.timestamps {
            cqe.wc.timestamp_ns = uiw_llp::monotonic_ns();
        }
        let inner = self.inner.get_or_insert_with(|| cq.inner.lock());
        if inner.ring.len() >= inner.depth {
            self.overflows |= !std::mem::replace(&mut inner.overflowed, true);
            return None;
        }
        self.fires |= match inner.arm {
            Arm::None => false,
            Arm::Any => true,
            Arm::Solicited => cqe.solicited || cqe.wc.status != WcStatus::Success,
        };
        inner.ring.push_back(cqe);
        let number = inner.pushed;
        inner.pushed += 1;
        Some(number)
    }
}

impl Drop for CompletionAppender<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let Some(mut inner) = self.inner.take() else { return };
        let cq = self.cq;
        cq.queued.store(inner.ring.len(), Ordering::Release);
        if !inner.wakers.is_empty() {
            inner.wakers.drain(..).for_each(|waker| self.wakes.push(Wake::Waker(waker)));
        }
        if self.fires {
            inner.arm = Arm::None;
        }
        drop(inner);
        if let Some(channel) = &cq.options.channel {
            cq.notify(channel, self.fires, self.wakes);
        }
        if self.overflows {
            cq.report_overflow(self.wakes);
        }
    }
}

impl Device {
    /// A completion queue of `depth` entries.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Limit`].
    pub fn create_cq(&self, depth: u32, options: CqConfig) -> Result<Arc<Cq>> {
        self.create_cq_with(depth, options, None)
    }

    /// A completion queue whose completions a consumer takes: it is always empty, and does not
    /// overflow. The consumer holds at most as many completions as requests were posted that it has
    /// not given back to the program.
    pub(crate) fn create_consumed_cq(
        &self,
        depth: u32,
        consumer: Arc<dyn CompletionConsumer>,
    ) -> Result<Arc<Cq>> {
        self.create_cq_with(depth, CqConfig::default(), Some(consumer))
    }

    fn create_cq_with(
        &self,
        depth: u32,
        options: CqConfig,
        consumer: Option<Arc<dyn CompletionConsumer>>,
    ) -> Result<Arc<Cq>> {
        self.driver().shared.call(Call::CreateCq)?;
        let limits = self.driver().limits();
        limits.check("completion queue depth", depth.into(), limits.max_cqe.into())?;
        let shards = self.shards();
        if let Some(shard) = options.shard.filter(|shard| *shard >= shards) {
            let (asked, limit) = (shard as u64, shards as u64 - 1);
            return Err(Error::Limit { what: "shard", asked, limit });
        }
        self.driver().shared.counts.take_cq(limits)?;
        Ok(Cq::new(self, self.driver().shared.next_num(), depth, options, consumer))
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.driver().shared.counts.release_cq();
        if self.inner.get_mut().overflowed {
            let gone = AsyncEvent::CqError { cq: self.num };
            self.device.events().remove_if(|event| *event == gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wc::WcOpcode;

    #[derive(Default)]
    struct RecordingConsumer(Mutex<Vec<u64>>);

    impl CompletionConsumer for RecordingConsumer {
        fn complete(&self, wc: Wc, _: &mut Wakes) {
            self.0.lock().push(wc.wr_id);
        }
    }

    fn cqe(wr_id: u64) -> Cqe {
        Cqe { wc: Wc::plain(wr_id, WcStatus::Success, WcOpcode::Recv, 0), solicited: false }
    }

    #[test]
    fn concurrent_consumer_takes_all_completions() {
        let device = Device::open().unwrap();
        let consumer = Arc::<RecordingConsumer>::default();
        let cq = device.create_consumed_cq(1, Arc::clone(&consumer) as Arc<_>).unwrap();
        let mut wakes = Wakes::default();
        for wr_id in 0..3 {
            let number = cq.push(cqe(wr_id), &mut wakes);
            assert!(number.is_some_and(|number| number < cq.taken()), "the program has seen it");
        }
        assert_eq!(cq.push_all([cqe(3), cqe(4)], &mut wakes), 2);
        assert_eq!(*consumer.0.lock(), [0, 1, 2, 3, 4]);
        assert!(cq.is_empty() && wakes.is_empty());
        cq.forget_qp(0);
        assert!(cq.taken() > 0, "what was taken stays taken");
        assert!(device.async_events().try_pop().is_none());
    }

    /// Completions are taken in order and none twice, however many at a time, where the ring wraps
    /// and where it is full.
    #[test]
    fn completions_ordered_across_ring_wrap() {
        let device = Device::open().unwrap();
        let cq = device.create_cq(7, CqConfig::default()).unwrap();
        let mut wakes = Wakes::default();
        let (mut pushed, mut taken) = (0, Vec::new());
        for (count, max, all) in
            [(5, 3, true), (5, 2, true), (4, 6, false), (6, 4, true), (1, 1, true), (7, 9, true)]
        {
            let room = 7 - cq.len();
            let added = cq.push_all((pushed..pushed + count).map(cqe), &mut wakes);
            assert_eq!(added, room.min(count as usize));
            // Those that found no room are lost; the next ones get their numbers here.
            pushed += added as u64;
            let before = cq.len();
            let got = if all { cq.poll(&mut taken, max) } else { cq.take_with(max, |wc| taken.push(wc)) };
            assert_eq!((got, cq.len()), (before.min(max), before - before.min(max)));
            assert_eq!(cq.taken(), taken.len() as u64);
        }
        while cq.poll(&mut taken, 2) > 0 {}
        assert!(taken.iter().map(|wc| wc.wr_id).eq(0..pushed));
    }
}

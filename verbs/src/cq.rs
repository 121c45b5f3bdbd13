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

/// Maximum number of completions that are removed while the lock is held once.
const BATCH: usize = 16;

/// Condition that raises the next event of a completion queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arm {
    /// Completions raise no event.
    #[default]
    None,
    /// A completion of a solicited receive, or one with an error.
    Solicited,
    /// Any completion.
    Any,
}

/// Options of a completion queue.
#[derive(Clone, Debug, Default)]
pub struct CqConfig {
    /// Channel that receives the events of the queue.
    pub channel: Option<Arc<CompChannel>>,
    /// True if completions carry the time at which they were added.
    pub timestamps: bool,
    /// Shard of the connections whose receives complete here, less than [`Device::shards`].
    ///
    /// By default the device chooses a shard, and later moves the connections to a shard of the
    /// thread that polls the queue, if several threads poll the same shard.
    pub shard: Option<usize>,
}

/// Receiver of the completions of a queue that has no ring.
pub trait CompletionConsumer: Send + Sync {
    /// Takes a completion. Locks of the engine are held, so code of the application must run later,
    /// in a waker that is added to `wakes`.
    fn complete(&self, wc: Wc, wakes: &mut Wakes);
}

#[derive(Clone, Copy)]
pub(crate) struct Cqe {
    pub(crate) wc: Wc,
    /// True if the completion raises an event even if only solicited events were requested.
    pub(crate) solicited: bool,
}

/// Completion queue: a ring of fixed depth.
///
/// A completion that finds the ring full is lost. Then the queue raises [`AsyncEvent::CqError`]
/// once, and every queue pair that loses a completion enters the error state.
pub struct Cq {
    num: u32,
    device: Device,
    options: CqConfig,
    inner: Mutex<CompletionRing>,
    /// Copy of the ring's length, which can be read without the lock.
    queued: AtomicUsize,
    /// Number of completions that have left the ring; can be read without the lock.
    taken: AtomicU64,
    /// Number of queue pairs that complete here.
    users: AtomicU32,
    /// Shard on which new connections of this queue begin (see [`Cq::shard`]).
    shard: OnceLock<usize>,
    /// Detects that other threads poll the same shards.
    contention: PollContention,
    /// Bit mask of the shards that have connections which complete here.
    shards: AtomicU64,
    /// True if, when the queue was last armed, an arrival on any of these shards makes the
    /// descriptor of its channel readable: because of a watch, or because the background thread
    /// then drives.
    watched: AtomicBool,
    /// True if the next poll that finds no completion makes no progress on the shards. Relaxed,
    /// because it does no harm if a poll makes progress once more or once less.
    skips_drive: AtomicBool,
    /// Number of connections that complete here, by shard. `shards` is derived from it.
    connections: Mutex<Vec<u32>>,
    faults: Option<Arc<Faults>>,
    consumer: Option<Arc<dyn CompletionConsumer>>,
    this: Weak<Self>,
}

struct CompletionRing {
    ring: VecDeque<Cqe>,
    /// Number of completions that were added so far.
    pushed: u64,
    depth: usize,
    arm: Arm,
    overflowed: bool,
    wakers: Vec<Waker>,
}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cq")
            .field("num", &self.num)
            .field("queued", &self.len())
            .finish_non_exhaustive()
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
        // All completions are taken at once by the consumer.
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

    /// Returns the number of the queue on its device.
    pub fn num(&self) -> u32 {
        self.num
    }

    /// Returns the maximum number of completions in the queue.
    pub fn depth(&self) -> u32 {
        u32::try_from(self.inner.lock().depth).unwrap_or(u32::MAX)
    }

    /// Returns the channel given at creation.
    pub fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.options.channel.as_ref()
    }

    /// Returns the number of queue pairs that complete here.
    pub fn users(&self) -> u32 {
        self.users.load(Ordering::Acquire)
    }

    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns the shard on which connections begin whose receives complete here:
    /// [`CqConfig::shard`], or a shard that the device assigns at the first call.
    pub fn shard(&self) -> usize {
        let assign = || self.options.shard.unwrap_or_else(|| self.driver().shard_for_queue());
        *self.shard.get_or_init(assign)
    }

    /// Records a new connection of `shard` that completes here.
    pub(crate) fn add_connection(&self, shard: usize) {
        let mut connections = self.connections.lock();
        if connections.len() <= shard {
            connections.resize(shard + 1, 0);
        }
        connections[shard] += 1;
        self.contention.reset();
        self.shards.fetch_or(1 << shard, Ordering::Release);
    }

    /// Records that a connection of `shard` no longer completes here.
    pub(crate) fn remove_connection(&self, shard: usize) {
        let mut connections = self.connections.lock();
        if let Some(count) = connections.get_mut(shard) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.shards.fetch_and(!(1 << shard), Ordering::Release);
            }
        }
    }

    /// Changes the depth. Queued completions stay.
    ///
    /// If the new depth is smaller, posted requests are served first, because their completions may
    /// fill the queue.
    ///
    /// # Errors
    /// Returns [`Error::Zero`] if `depth` is zero, and [`Error::Limit`] if it exceeds the limit of
    /// the device or if more completions than `depth` are queued.
    pub fn resize(&self, depth: u32) -> Result<()> {
        self.driver().limits().check(
            "completion queue depth",
            depth.into(),
            self.driver().limits().max_cqe.into(),
        )?;
        if depth < self.depth() && !self.driver().is_manual() {
            self.driver().serve_posts(self.shard_bits());
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

    /// Removes up to `max` completions, oldest first, and passes each to `each`. Returns their
    /// number.
    ///
    /// If none is queued, the calling thread makes progress once on the shards whose connections
    /// complete here, until a completion is queued (`verbs/src/driver/progress`).
    ///
    /// A program that sleeps in poll(2) on the channel's descriptor is woken when a socket is
    /// readable, and polls until the queue is empty before it sleeps again. So for such a program,
    /// the first empty poll after a completion, or after [`Cq::arm`], makes progress only if
    /// requests wait to be sent.
    pub fn poll_with(&self, max: usize, mut each: impl FnMut(Wc)) -> usize {
        self.poll_into(max, &mut |max| self.pop(max, &mut each))
    }

    /// Like [`Cq::poll_with`]; `pop` removes the queued completions.
    #[inline]
    fn poll_into(&self, max: usize, pop: &mut impl FnMut(usize) -> usize) -> usize {
        if let Some(faults) = &self.faults {
            faults.delay(Call::PollCq);
        }
        self.driver().note_poll(self.shard_bits());
        if !self.is_empty() {
            let taken = pop(max);
            if taken > 0 {
                self.skips_drive.store(self.watched.load(Ordering::Relaxed), Ordering::Relaxed);
                return taken;
            }
        }
        if self.skips_drive.load(Ordering::Relaxed) {
            self.skips_drive.store(false, Ordering::Relaxed);
            if !self.driver().has_pending(self.shard_bits()) {
                return 0;
            }
        }
        let enough = || self.queued.load(Ordering::Relaxed) > 0;
        let thread = self.contention.sample();
        let contended = self.driver().poll_progress(self.shard_bits(), thread, &enough);
        if let Some(thread) = thread
            && self.contention.note_empty_poll(thread, contended)
            && self.options.shard.is_none()
        {
            self.driver().gather(self.num);
        }
        if self.is_empty() { 0 } else { pop(max) }
    }

    /// Removes up to `max` completions like [`Cq::poll_with`], but never makes progress. For
    /// programs that drive many queues at once ([`Device::drive`],
    /// [`PollWaiter`](crate::PollWaiter)).
    pub fn take_with(&self, max: usize, mut each: impl FnMut(Wc)) -> usize {
        if self.is_empty() { 0 } else { self.pop(max, &mut each) }
    }

    /// Like [`Cq::poll_with`], but appends the completions to `out`.
    pub fn poll(&self, out: &mut Vec<Wc>, max: usize) -> usize {
        self.poll_into(max, &mut |max| self.pop_all(max, out))
    }

    /// Removes completions without making progress. The lock is not held while `each` is called, so
    /// `each` may post.
    pub(crate) fn pop(&self, max: usize, each: &mut impl FnMut(Wc)) -> usize {
        // Completions that calls of `each` cause are left for the next call.
        let max = max.min(self.queued.load(Ordering::Acquire));
        // A single completion is cheaper without a batch.
        if max == 1 {
            let mut inner = self.inner.lock();
            let Some(&Cqe { wc, .. }) = inner.ring.front() else { return 0 };
            inner.ring.pop_front();
            self.note_left(&mut inner);
            drop(inner);
            each(wc);
            return 1;
        }
        let mut taken = 0;
        while taken < max {
            let mut batch = ArrayVec::<Wc, BATCH>::new();
            {
                let mut inner = self.inner.lock();
                let count = inner.ring.len().min(BATCH).min(max - taken);
                batch.extend(inner.ring.range(..count).map(|cqe| cqe.wc));
                inner.ring.drain(..count);
                self.note_left(&mut inner);
            }
            let count = batch.len();
            // Copied from their places, because an iterator by value would move each one twice.
            batch.iter().for_each(|wc| each(*wc));
            taken += count;
            if count < BATCH {
                break;
            }
        }
        taken
    }

    /// Like [`Cq::pop`], but appends all completions to `out` while holding the lock once.
    fn pop_all(&self, max: usize, out: &mut Vec<Wc>) -> usize {
        let mut inner = self.inner.lock();
        let count = max.min(inner.ring.len());
        if count == 1 {
            // In a ping-pong there is only one completion, and handling ranges would cost more.
            out.extend(inner.ring.front().map(|cqe| cqe.wc));
            inner.ring.pop_front();
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

    /// Requests one event for the next completion (`ibv_req_notify_cq`). Poll once more after
    /// arming, because completions that were queued before raise no event.
    pub fn arm(&self, arm: Arm) {
        let any = {
            let mut inner = self.inner.lock();
            // A request for any completion is not weakened by a later one for solicited
            // completions.
            if inner.arm != Arm::Any {
                inner.arm = arm;
            }
            inner.arm == Arm::Any
        };
        // Every arrival on a watched shard ends the sleep of the program. One that has requested
        // solicited completions must sleep on, so its shards are not watched.
        let channel =
            self.options.channel.as_deref().filter(|channel| any && channel.note_armed(&self.this));
        let driver = self.driver();
        let watched = Cell::new(channel.is_some());
        driver.arm(self.shard_bits(), |shard| {
            let watch = channel?.watch(driver, shard);
            watched.set(watched.get() && watch.is_some());
            watch
        });
        self.watched.store(watched.get(), Ordering::Relaxed);
        self.skips_drive.store(watched.get(), Ordering::Relaxed);
    }

    /// Cancels [`Cq::arm`]. Returns false if the queue was not armed.
    pub(crate) fn disarm(&self) -> bool {
        std::mem::take(&mut self.inner.lock().arm) != Arm::None
    }

    /// Returns whether connections on this shard of `driver` complete here.
    pub(crate) fn is_driven_by(&self, driver: &Arc<Driver>, shard: usize) -> bool {
        self.shard_bits() >> shard & 1 != 0 && Arc::ptr_eq(self.driver(), driver)
    }

    /// Returns `Ready` if a completion is queued; otherwise registers the waker.
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

    /// Returns the bit mask of the shards that have connections which complete here.
    pub(crate) fn shard_bits(&self) -> u64 {
        self.shards.load(Ordering::Acquire)
    }

    /// Returns the number of queued completions.
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

    /// Updates the copies of the counts after completions have left the ring.
    #[inline]
    fn note_left(&self, inner: &mut CompletionRing) {
        let queued = inner.ring.len();
        if queued == 0 {
            // Restarting at the first slot keeps using the same few slots, which are in the cache.
            inner.ring.clear();
        }
        self.queued.store(queued, Ordering::Release);
        self.taken.store(inner.pushed - queued as u64, Ordering::Release);
    }

    /// Returns the number of completions that have left the queue. All completions with smaller
    /// numbers have left; those of a destroyed queue pair leave out of order.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// Adds a completion and returns its number. Returns `None` if the queue has overflowed; then
    /// the caller's queue pair enters the error state.
    pub(crate) fn push(&self, cqe: Cqe, wakes: &mut Wakes) -> Option<u64> {
        self.appender(wakes).push(&cqe)
    }

    /// Adds completions in order until the queue is full, and returns the number of completions
    /// that were added. If some were not, the caller's queue pair enters the error state.
    pub(crate) fn push_all(&self, cqes: impl IntoIterator<Item = Cqe>, wakes: &mut Wakes) -> usize {
        let mut appender = self.appender(wakes);
        cqes.into_iter().take_while(|cqe| appender.push(cqe).is_some()).count()
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
            channel.note_unarmed_completion(wakes);
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

/// Appender of completions to a queue, which locks the queue only once. The lock is released when
/// the appender is dropped.
///
/// After the first completion, the thread must not lock a queue until it has dropped the appender.
pub(crate) struct CompletionAppender<'a> {
    cq: &'a Cq,
    wakes: &'a mut Wakes,
    /// The locked ring, from the first completion on. Always `None` if the queue has a consumer.
    inner: Option<MutexGuard<'a, CompletionRing>>,
    /// True if an event was requested for one of the completions.
    fires: bool,
    /// True if a completion has found the ring full, for the first time in the life of the queue.
    overflows: bool,
}

impl CompletionAppender<'_> {
    /// Adds a completion and returns its number, or gives it to the queue's consumer. Returns
    /// `None` if the queue has overflowed.
    #[inline(always)]
    pub(crate) fn push(&mut self, cqe: &Cqe) -> Option<u64> {
        let cq = self.cq;
        if let Some(consumer) = &cq.consumer {
            consumer.complete(cqe.wc, self.wakes);
            return Some(0);
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
        inner.ring.push_back(*cqe);
        if cq.options.timestamps
            && let Some(cqe) = inner.ring.back_mut()
        {
            cqe.wc.timestamp_ns = uiw_llp::monotonic_ns();
        }
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
    /// Creates a completion queue of `depth` entries.
    ///
    /// # Errors
    /// Returns [`Error::Zero`] if `depth` is zero, and [`Error::Limit`] if `depth`,
    /// [`CqConfig::shard`] or the number of completion queues exceeds the limit of the device.
    pub fn create_cq(&self, depth: u32, options: CqConfig) -> Result<Arc<Cq>> {
        self.create_cq_with(depth, options, None)
    }

    /// Creates a completion queue whose completions are taken by a consumer. The queue is always
    /// empty and never overflows. The number of completions that the consumer holds is limited by
    /// the number of posted requests whose completion it has not passed on.
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
        self.driver().shared.counts.cq.take("number of completion queues", limits.max_cq)?;
        Ok(Cq::new(self, self.driver().shared.next_num(), depth, options, consumer))
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.driver().shared.counts.cq.release();
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

    /// Completions are taken in order and without duplicates, however many are taken at a time,
    /// also when the ring wraps or is full.
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
            // Completions that found no room are lost; the next ones reuse their numbers in this
            // test.
            pushed += added as u64;
            let before = cq.len();
            let got =
                if all { cq.poll(&mut taken, max) } else { cq.take_with(max, |wc| taken.push(wc)) };
            assert_eq!((got, cq.len()), (before.min(max), before - before.min(max)));
            assert_eq!(cq.taken(), taken.len() as u64);
        }
        while cq.poll(&mut taken, 2) > 0 {}
        assert!(taken.iter().map(|wc| wc.wr_id).eq(0..pushed));
    }
}

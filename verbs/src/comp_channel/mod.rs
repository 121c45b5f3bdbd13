//! Completion channels, to which armed completion queues report events.

mod withheld;

pub(crate) use withheld::WithheldToken;

use crate::cq::Cq;
use crate::driver::{ChannelSet, Driver, MAX_SHARDS, Watch};
use crate::error::{Error, Result};
use crate::notify::{EventQueue, Wake, Wakes};
use arrayvec::ArrayVec;
use parking_lot::Mutex;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};

/// Completion events of one or more queues: `ibv_comp_channel`.
///
/// A queue whose event was taken may be empty: its completion was polled before, or the descriptor
/// was readable for an arrival that completed nothing.
pub struct CompChannel {
    events: EventQueue<Weak<Cq>>,
    withheld: Arc<WithheldToken>,
    /// Created by the first call of [`CompChannel::fd`].
    set: OnceLock<Arc<ChannelSet>>,
    armed: Mutex<ArmedQueues>,
    /// See [`CompChannel::set_direct`].
    indirect: AtomicBool,
}

/// The queues that were armed while the channel had a descriptor, and the shards that it watches
/// for them.
#[derive(Default)]
struct ArmedQueues {
    /// Queues that were armed since their last event was taken.
    queues: Vec<Weak<Cq>>,
    /// The queue of the last event.
    last: Weak<Cq>,
    /// Copied when one is added: threads that drive have a reference to all.
    watches: Arc<Vec<ShardWatch>>,
}

#[derive(Clone)]
struct ShardWatch {
    driver: Weak<Driver>,
    shard: usize,
    /// `None` where the shard's stack cannot be watched.
    watch: Option<Arc<Watch>>,
}

impl std::fmt::Debug for CompChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompChannel").field("queued", &self.len()).finish_non_exhaustive()
    }
}

impl Default for CompChannel {
    fn default() -> Self {
        let events = EventQueue::default();
        let withheld = Arc::new(WithheldToken::new(events.tokens()));
        Self {
            events,
            withheld,
            set: OnceLock::new(),
            armed: Mutex::default(),
            indirect: AtomicBool::new(false),
        }
    }
}

impl CompChannel {
    /// A descriptor that is readable while there is an event for [`CompChannel::try_pop`]: for
    /// poll(2), epoll and the like, not for reading.
    ///
    /// # Errors
    /// [`Error::Io`] when the process has no descriptor left.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        if let Some(set) = self.set.get() {
            return Ok(set.as_fd());
        }
        let set = ChannelSet::new(self.token_fd()?).map_err(Error::io("opening an epoll set"))?;
        Ok(self.set.get_or_init(|| Arc::new(set)).as_fd())
    }

    /// A semaphore (eventfd) with one token for each event that is queued, for a thread that waits
    /// in a blocking read of it. It is not written for an event that [`CompChannel::try_pop`] finds
    /// by driving.
    ///
    /// # Errors
    /// [`Error::Io`] when the process has no descriptor left.
    pub fn token_fd(&self) -> Result<BorrowedFd<'_>> {
        self.events.token_fd()
    }

    /// The oldest event, if there is one. When there is none, and an arrival may have ended the
    /// caller's sleep on [`CompChannel::fd`], the shards whose arrivals do that are driven once.
    pub fn try_pop(&self) -> Option<Weak<Cq>> {
        // The arrival that has ended the sleep belongs to the event whose token is withheld.
        if self.withheld.take()
            && let Some(event) = self.drive()
        {
            return self.taken(Some(event));
        }
        let event = self.events.try_pop().inspect(|queue| {
            self.withheld.observe(|| queue.upgrade().is_none_or(|queue| queue.is_empty()));
        });
        self.taken(event.or_else(|| self.drive()))
    }

    /// Like [`EventQueue::pop_with_token`], for a token of [`CompChannel::token_fd`].
    pub fn pop_with_token(&self) -> Option<Weak<Cq>> {
        self.taken(self.events.pop_with_token())
    }

    /// The oldest event, or a wake-up when there is one.
    pub fn poll_pop(&self, cx: &mut Context<'_>) -> Poll<Weak<Cq>> {
        let event = self.events.poll_pop(cx);
        if let Poll::Ready(queue) = &event {
            self.disarm(queue);
        }
        event
    }

    /// Removes the events of `queue`, and disarms it: no event follows from an earlier arming.
    pub fn forget(&self, queue: &Arc<Cq>) {
        queue.disarm();
        let queue = Arc::downgrade(queue);
        drop(self.events.remove_if(|event| event.ptr_eq(&queue)));
        self.disarm(&queue);
        self.armed.lock().last = Weak::new();
    }

    /// Events queued.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns whether no event is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether an arrival may end a sleep on [`CompChannel::fd`] directly; by default it
    /// may. Then an event may come of a queue that is empty, though nothing was polled. Without it
    /// a queue raises an event for a completion alone.
    pub fn set_direct(&self, direct: bool) {
        self.indirect.store(!direct, Ordering::Relaxed);
    }

    pub(crate) fn push(&self, queue: Weak<Cq>, wakes: &mut Wakes) {
        self.events.push_with(queue, wakes, || Wake::Due(Arc::clone(&self.withheld)));
    }

    /// Something has completed for a queue that is not armed.
    #[inline]
    pub(crate) fn note_completion(&self, wakes: &mut Wakes) {
        self.withheld.note_completion(wakes);
    }

    /// `queue` was armed. Returns whether its shards are to be watched, as the application uses the
    /// descriptor.
    pub(crate) fn note_armed(&self, queue: &Weak<Cq>) -> bool {
        if self.set.get().is_none() || self.indirect.load(Ordering::Relaxed) {
            return false;
        }
        let mut armed = self.armed.lock();
        if !armed.queues.iter().any(|other| other.ptr_eq(queue)) {
            armed.queues.push(queue.clone());
        }
        true
    }

    /// The watch of `shard`, created at its first use; `None` where its stack cannot be watched.
    pub(crate) fn watch(&self, driver: &Arc<Driver>, shard: usize) -> Option<Arc<Watch>> {
        let mut armed = self.armed.lock();
        let driver_at = Arc::as_ptr(driver);
        let is_same =
            |known: &&ShardWatch| known.shard == shard && std::ptr::eq(known.driver.as_ptr(), driver_at);
        if let Some(known) = armed.watches.iter().find(is_same) {
            return known.watch.clone();
        }
        let set = self.set.get()?;
        let watches = Arc::make_mut(&mut armed.watches);
        watches.retain(|known| known.driver.strong_count() > 0);
        let release = Waker::from(Arc::clone(&self.withheld));
        let watch = driver.watch(shard, set, release).map(Arc::new);
        watches.push(ShardWatch { driver: Arc::downgrade(driver), shard, watch: watch.clone() });
        watch
    }

    fn taken(&self, event: Option<Weak<Cq>>) -> Option<Weak<Cq>> {
        self.disarm(event.as_ref()?);
        event
    }

    /// The application has taken the event of `queue`: the watches of shards on which no other
    /// armed queue completes are disarmed.
    fn disarm(&self, queue: &Weak<Cq>) {
        if self.set.get().is_none() {
            return;
        }
        let mut armed = self.armed.lock();
        let ArmedQueues { queues, last, watches } = &mut *armed;
        queues.retain(|other| !other.ptr_eq(queue) && other.strong_count() > 0);
        if !last.ptr_eq(queue) {
            last.clone_from(queue);
        }
        for (driver, shard, watch) in watches.iter().filter_map(ShardWatch::get) {
            if !queues.iter().filter_map(Weak::upgrade).any(|queue| queue.is_driven_by(&driver, shard)) {
                driver.disarm(shard, &watch);
            }
        }
    }

    /// Drives the shards that are watched. Returns an event, if need be of an empty queue, where
    /// the descriptor may have been readable.
    fn drive(&self) -> Option<Weak<Cq>> {
        let watches = Arc::clone(&self.armed.lock().watches);
        if watches.is_empty() {
            return None;
        }
        let mut readable = ArrayVec::<_, MAX_SHARDS>::new();
        let event = self.events.pop_found(|| {
            let found = watches.iter().filter_map(ShardWatch::get);
            let found = found.filter(|(driver, shard, watch)| driver.answer_armed(*shard, watch));
            // Each is driven, also where several devices have more shards.
            found.for_each(|watch| drop(readable.try_push(watch)));
        });
        if event.is_some() || readable.is_empty() {
            return event;
        }
        readable.iter().for_each(|(driver, shard, watch)| driver.note_spurious_wake_up(*shard, watch));
        let (queues, last) = {
            let armed = self.armed.lock();
            (armed.queues.clone(), armed.last.clone())
        };
        let armed = queues.into_iter().find(|queue| queue.upgrade().is_some_and(|queue| queue.disarm()));
        armed.or_else(|| (last.strong_count() > 0).then_some(last))
    }
}

impl ShardWatch {
    fn get(&self) -> Option<(Arc<Driver>, usize, Arc<Watch>)> {
        Some((self.driver.upgrade()?, self.shard, self.watch.clone()?))
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        for (driver, shard, watch) in self.armed.get_mut().watches.iter().filter_map(ShardWatch::get) {
            driver.disarm(shard, &watch);
        }
    }
}

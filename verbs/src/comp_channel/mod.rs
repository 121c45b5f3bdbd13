//! Completion channels, to which armed completion queues report events.

mod withheld;

pub(crate) use withheld::WithheldToken;

use crate::cq::Cq;
use crate::driver::{Driver, MAX_SHARDS, Watch};
use crate::error::Result;
use crate::notify::{EventQueue, Wake, Wakes};
use arrayvec::ArrayVec;
use parking_lot::Mutex;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

/// Channel for the completion events of one or more queues (`ibv_comp_channel`).
///
/// The queue of an event may be empty: its completion may have been polled already, or the
/// descriptor was readable for an arrival that completed nothing.
pub struct CompChannel {
    events: EventQueue<Weak<Cq>>,
    withheld: Arc<WithheldToken>,
    armed: Mutex<ArmedQueues>,
    /// True if only completions raise events (see [`CompChannel::set_direct`]).
    indirect: AtomicBool,
}

/// Queues that were armed while the channel had a descriptor, and the shards that it watches for
/// them.
#[derive(Default)]
struct ArmedQueues {
    /// Queues that were armed since their last event was taken.
    queues: Vec<Weak<Cq>>,
    /// Queue of the last event.
    last: Weak<Cq>,
    /// Copied when a watch is added, because driving threads hold references to the whole list.
    watches: Arc<Vec<ShardWatch>>,
}

#[derive(Clone)]
struct ShardWatch {
    driver: Weak<Driver>,
    shard: usize,
    /// `None` if the shard's stack cannot be watched.
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
        Self { events, withheld, armed: Mutex::default(), indirect: AtomicBool::new(false) }
    }
}

impl CompChannel {
    /// Returns a descriptor that is readable while [`CompChannel::try_pop`] has an event, for
    /// poll(2), epoll and the like. Do not read from it.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the process has no free descriptor.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        self.events.fd()
    }

    /// Returns a semaphore (eventfd) with one token for each queued event, for a thread that waits
    /// in a blocking read. It gets no token for an event that [`CompChannel::try_pop`] finds by
    /// making progress.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the process has no free descriptor.
    pub fn token_fd(&self) -> Result<BorrowedFd<'_>> {
        self.events.token_fd()
    }

    /// Removes the oldest event. If there is none, and an arrival may have ended a sleep on
    /// [`CompChannel::fd`], first makes progress once on the watched shards.
    pub fn try_pop(&self) -> Option<Weak<Cq>> {
        // The arrival that has ended the sleep stands for the event whose token was withheld.
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

    /// Removes the oldest event, or registers the waker.
    pub fn poll_pop(&self, cx: &mut Context<'_>) -> Poll<Weak<Cq>> {
        let event = self.events.poll_pop(cx);
        if let Poll::Ready(queue) = &event {
            self.disarm(queue);
        }
        event
    }

    /// Removes the events of `queue` and disarms it, so that earlier arming causes no event.
    pub fn forget(&self, queue: &Arc<Cq>) {
        queue.disarm();
        let queue = Arc::downgrade(queue);
        drop(self.events.remove_if(|event| event.ptr_eq(&queue)));
        self.disarm(&queue);
        self.armed.lock().last = Weak::new();
    }

    /// Returns the number of queued events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns whether no event is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets whether an arrival may end a sleep on [`CompChannel::fd`] directly, which is the
    /// default. In that case an event may refer to an empty queue that was not polled. Otherwise
    /// only completions raise events.
    pub fn set_direct(&self, direct: bool) {
        self.indirect.store(!direct, Ordering::Relaxed);
    }

    pub(crate) fn push(&self, queue: Weak<Cq>, wakes: &mut Wakes) {
        self.events.push_with(queue, wakes, || Wake::Due(Arc::clone(&self.withheld)));
    }

    /// Reports a completion of a queue that is not armed.
    #[inline]
    pub(crate) fn note_unarmed_completion(&self, wakes: &mut Wakes) {
        self.withheld.note_unarmed_completion(wakes);
    }

    /// Records that `queue` was armed. Returns whether its shards are to be watched, because the
    /// application uses the descriptor.
    pub(crate) fn note_armed(&self, queue: &Weak<Cq>) -> bool {
        if self.events.set().is_none() || self.indirect.load(Ordering::Relaxed) {
            return false;
        }
        let mut armed = self.armed.lock();
        if !armed.queues.iter().any(|other| other.ptr_eq(queue)) {
            armed.queues.push(queue.clone());
        }
        true
    }

    /// Returns the watch of `shard`, which is created when it is first used; `None` if its stack
    /// cannot be watched.
    pub(crate) fn watch(&self, driver: &Arc<Driver>, shard: usize) -> Option<Arc<Watch>> {
        let mut armed = self.armed.lock();
        let driver_at = Arc::as_ptr(driver);
        let is_same = |known: &&ShardWatch| {
            known.shard == shard && std::ptr::eq(known.driver.as_ptr(), driver_at)
        };
        if let Some(known) = armed.watches.iter().find(is_same) {
            return known.watch.clone();
        }
        let set = self.events.set()?;
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

    /// Disarms the watches of shards that no other armed queue uses, because the application has
    /// taken the event of `queue`.
    fn disarm(&self, queue: &Weak<Cq>) {
        if self.events.set().is_none() {
            return;
        }
        let mut armed = self.armed.lock();
        let ArmedQueues { queues, last, watches } = &mut *armed;
        queues.retain(|other| !other.ptr_eq(queue) && other.strong_count() > 0);
        if !last.ptr_eq(queue) {
            last.clone_from(queue);
        }
        for (driver, shard, watch) in watches.iter().filter_map(ShardWatch::get) {
            if !queues
                .iter()
                .filter_map(Weak::upgrade)
                .any(|queue| queue.is_driven_by(&driver, shard))
            {
                driver.disarm(shard, &watch);
            }
        }
    }

    /// Makes progress on the watched shards. If the descriptor may have been readable, returns an
    /// event even if nothing has completed; its queue may be empty.
    fn drive(&self) -> Option<Weak<Cq>> {
        let watches = Arc::clone(&self.armed.lock().watches);
        if watches.is_empty() {
            return None;
        }
        let mut readable = ArrayVec::<_, MAX_SHARDS>::new();
        let event = self.events.pop_found(|| {
            let found = watches.iter().filter_map(ShardWatch::get);
            let found = found.filter(|(driver, shard, watch)| driver.answer_armed(*shard, watch));
            // Progress is made on all shards, even if `readable` has no room for the watches of
            // several devices.
            found.for_each(|watch| drop(readable.try_push(watch)));
        });
        if event.is_some() || readable.is_empty() {
            return event;
        }
        readable
            .iter()
            .for_each(|(driver, shard, watch)| driver.note_spurious_wake_up(*shard, watch));
        let (queues, last) = {
            let armed = self.armed.lock();
            (armed.queues.clone(), armed.last.clone())
        };
        let armed =
            queues.into_iter().find(|queue| queue.upgrade().is_some_and(|queue| queue.disarm()));
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
        for (driver, shard, watch) in
            self.armed.get_mut().watches.iter().filter_map(ShardWatch::get)
        {
            driver.disarm(shard, &watch);
        }
    }
}

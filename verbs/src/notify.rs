//! Event queues with an optional descriptor, and wake-ups that are executed after all locks are
//! released.

use crate::comp_channel::WithheldToken;
use crate::driver::ChannelSet;
use crate::error::{Error, Result};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

/// A pending wake-up. It is collected while locks are held, and executed after the last one is
/// released.
pub(crate) enum Wake {
    /// Wakes a sleeping thread or task.
    Waker(Waker),
    /// Writes one token to a descriptor.
    Fd(Arc<Tokens>),
    /// Writes one token to the descriptor of a completion channel. A post may withhold it.
    Due(Arc<WithheldToken>),
    /// Releases the withheld token of a channel, if there is one, after a completion that raises no
    /// event. A post does not release it.
    Completed(Arc<WithheldToken>),
}

impl Wake {
    fn give(self) {
        match self {
            Self::Waker(waker) => waker.wake(),
            Self::Fd(tokens) => tokens.give(),
            Self::Due(withheld) => withheld.give(),
            Self::Completed(withheld) => withheld.release_for_completion(),
        }
    }
}

/// Pending wake-ups, collected while locks are held.
#[derive(Default)]
pub struct Wakes(WakeList);

/// Most calls cause at most one wake-up, which needs no allocation.
#[derive(Default)]
enum WakeList {
    #[default]
    None,
    One(Wake),
    Many(Vec<Wake>),
}

impl std::fmt::Debug for Wakes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wakes").field("empty", &self.is_empty()).finish_non_exhaustive()
    }
}

impl Wakes {
    /// Adds a waker.
    #[inline]
    pub fn push_waker(&mut self, waker: Waker) {
        self.push(Wake::Waker(waker));
    }

    pub(crate) fn push(&mut self, wake: Wake) {
        self.0 = match std::mem::take(&mut self.0) {
            WakeList::None => WakeList::One(wake),
            WakeList::One(first) => WakeList::Many(vec![first, wake]),
            WakeList::Many(mut wakes) => {
                wakes.push(wake);
                WakeList::Many(wakes)
            }
        };
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.0, WakeList::None)
    }

    /// Executes all wake-ups. The caller holds no lock, because a waker runs code of the
    /// application.
    #[inline]
    pub fn give(self) {
        if !self.is_empty() {
            self.give_all(Wake::give);
        }
    }

    #[inline(never)]
    fn give_all(self, mut give: impl FnMut(Wake)) {
        match self.0 {
            WakeList::None => {}
            WakeList::One(wake) => give(wake),
            WakeList::Many(wakes) => wakes.into_iter().for_each(give),
        }
    }

    /// Like [`Wakes::give`], for wake-ups that are caused only by a post of this thread: tokens may
    /// be withheld. `may_withhold` returns true if the program sleeps only until an arrival; then
    /// it has arranged that another thread releases the token in time.
    pub(crate) fn give_after_post(self, may_withhold: impl Fn(&Arc<WithheldToken>) -> bool) {
        if self.is_empty() {
            return;
        }
        self.give_all(|wake| match wake {
            Wake::Due(withheld) => withheld.give_after_post(&may_withhold),
            // The release of a withheld token was arranged when it was withheld. Arranging it again
            // for every post would postpone it without end.
            Wake::Completed(_) => {}
            other => other.give(),
        });
    }
}

/// Event descriptor in semaphore mode. It holds one token for each queued event whose token is not
/// withheld.
///
/// The descriptor is created when it is first requested, so that ten thousand idle connections have
/// no descriptors besides their sockets.
#[derive(Default)]
pub(crate) struct Tokens {
    fd: OnceLock<OwnedFd>,
    /// If positive, the number of events that were taken before their token was written; that many
    /// tokens are skipped. If negative, the number of queued events whose token is withheld.
    balance: Mutex<i32>,
}

impl Tokens {
    fn open(&self, queued: u32) -> Result<&OwnedFd> {
        if let Some(fd) = self.fd.get() {
            return Ok(fd);
        }
        let fd = eventfd(queued, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)
            .map_err(std::io::Error::from)
            .map_err(Error::io("eventfd"))?;
        Ok(self.fd.get_or_init(|| fd))
    }

    pub(crate) fn give(&self) {
        let Some(fd) = self.fd.get() else { return };
        let mut balance = self.balance.lock();
        if *balance > 0 {
            *balance -= 1;
        } else {
            Self::write(fd, 1);
        }
    }

    /// Withholds the token of an event, so that it does not make the descriptor readable. Called
    /// instead of [`Tokens::give`].
    pub(crate) fn withhold(&self) {
        *self.balance.lock() -= 1;
    }

    /// Writes the withheld tokens.
    pub(crate) fn release(&self) {
        let Some(fd) = self.fd.get() else { return };
        let mut balance = self.balance.lock();
        if *balance < 0 {
            Self::write(fd, balance.unsigned_abs().into());
            *balance = 0;
        }
    }

    /// Writes `count` tokens. The semaphore cannot reach its maximum of 2^64 - 2 tokens, and
    /// writing to a valid eventfd cannot fail for another reason.
    fn write(fd: &OwnedFd, count: u64) {
        let _ = rustix::io::write(fd, &count.to_ne_bytes());
    }

    /// Counts a token as read before it is written, so that the next one is not written.
    fn borrow(&self) {
        *self.balance.lock() += 1;
    }

    /// Takes the token of an event that was just removed, or notes that its token need not be
    /// written.
    fn take(&self) {
        let Some(fd) = self.fd.get() else { return };
        let mut balance = self.balance.lock();
        if *balance < 0 || !Self::read(fd) {
            *balance += 1;
        }
    }

    /// Takes a token that was written before [`Tokens::borrow`].
    fn take_written(&self) {
        let Some(fd) = self.fd.get() else { return };
        let mut balance = self.balance.lock();
        if *balance > 0 && Self::read(fd) {
            *balance -= 1;
        }
    }

    /// Takes a token. Returns false if there is none.
    fn read(fd: &OwnedFd) -> bool {
        // The application decides whether the descriptor is blocking. RWF_NOWAIT never blocks.
        let mut token = [0u8; 8];
        let read = rustix::io::preadv2(
            fd,
            &mut [std::io::IoSliceMut::new(&mut token)],
            u64::MAX,
            rustix::io::ReadWriteFlags::NOWAIT,
        );
        !matches!(read, Err(Errno::AGAIN))
    }
}

/// A queue of events with three ways to wait for them: a waker, a descriptor, or polling.
pub struct EventQueue<T> {
    inner: Mutex<EventItems<T>>,
    /// Number of events, which can be read without the lock.
    queued: AtomicUsize,
    tokens: Arc<Tokens>,
    /// Created by the first call of [`EventQueue::fd`].
    set: OnceLock<Arc<ChannelSet>>,
}

struct EventItems<T> {
    items: VecDeque<T>,
    /// Wakers that the next event wakes.
    wakers: Vec<Waker>,
    /// Waker that every event wakes (see [`EventQueue::set_waker`]).
    standing: Option<Waker>,
}

/// Maximum number of events for which an empty queue keeps memory. More memory, after a burst of
/// connections, is released.
const KEPT: usize = 64;

impl<T> EventItems<T> {
    fn pop(&mut self) -> Option<T> {
        let item = self.items.pop_front();
        if self.items.is_empty() && self.items.capacity() > KEPT {
            self.items.shrink_to(KEPT);
        }
        item
    }
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        Self {
            inner: Mutex::new(EventItems {
                items: VecDeque::new(),
                wakers: Vec::new(),
                standing: None,
            }),
            queued: AtomicUsize::new(0),
            tokens: Arc::default(),
            set: OnceLock::new(),
        }
    }
}

impl<T> std::fmt::Debug for EventQueue<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventQueue").field("queued", &self.len()).finish_non_exhaustive()
    }
}

impl<T> EventQueue<T> {
    pub(crate) fn push(&self, item: T, wakes: &mut Wakes) {
        self.push_with(item, wakes, || Wake::Fd(Arc::clone(&self.tokens)));
    }

    /// Like [`EventQueue::push`]; `token` creates the wake-up that writes the descriptor's token.
    pub(crate) fn push_with(&self, item: T, wakes: &mut Wakes, token: impl FnOnce() -> Wake) {
        let mut inner = self.inner.lock();
        inner.items.push_back(item);
        self.note_count(&inner);
        if self.tokens.fd.get().is_some() {
            wakes.push(token());
        }
        let EventItems { wakers, standing, .. } = &mut *inner;
        for waker in wakers.drain(..).chain(standing.clone()) {
            wakes.push(Wake::Waker(waker));
        }
    }

    /// Sets the waker that every event wakes from now on. Events that are already queued do not
    /// wake it. It replaces the previous waker.
    ///
    /// It is meant for programs that look for events often and mostly find none, and would
    /// otherwise register a waker each time.
    ///
    /// ```
    /// # mod uiw { pub use uiw_verbs as raw; }
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU32, Ordering};
    /// use std::task::{Wake, Waker};
    /// use uiw::raw::EventQueue;
    ///
    /// #[derive(Default)]
    /// struct Count(AtomicU32);
    ///
    /// impl Wake for Count {
    ///     fn wake(self: Arc<Self>) {
    ///         self.0.fetch_add(1, Ordering::Relaxed);
    ///     }
    /// }
    ///
    /// let (queue, count) = (EventQueue::default(), Arc::<Count>::default());
    /// queue.set_waker(Waker::from(Arc::clone(&count)));
    /// queue.post("first");
    /// queue.post("second");
    /// assert_eq!(count.0.load(Ordering::Relaxed), 2);
    /// ```
    pub fn set_waker(&self, waker: Waker) {
        let before = self.inner.lock().standing.replace(waker);
        // Dropped after unlocking, because it may be the last reference to data of the application.
        drop(before);
    }

    /// Adds an event of the program's own, and wakes waiting threads and tasks. The wakers run in
    /// this call, so no lock that they need may be held.
    pub fn post(&self, item: T) {
        let mut wakes = Wakes::default();
        self.push(item, &mut wakes);
        wakes.give();
    }

    /// Returns the tokens of the queue's descriptor.
    pub(crate) fn tokens(&self) -> &Arc<Tokens> {
        &self.tokens
    }

    /// Moves the events for which `which` returns true, with their tokens, to the end of another
    /// queue, in order.
    pub(crate) fn move_to(&self, other: &Self, which: impl FnMut(&T) -> bool, wakes: &mut Wakes) {
        for item in self.remove_if(which) {
            other.push(item, wakes);
        }
    }

    /// Removes the oldest event.
    pub fn try_pop(&self) -> Option<T> {
        // A program may look for events with every message, and mostly finds none.
        if self.is_empty() {
            return None;
        }
        let mut inner = self.inner.lock();
        let item = inner.pop()?;
        self.note_count(&inner);
        self.tokens.take();
        Some(item)
    }

    /// Removes the oldest event, for a caller that has read one token from the descriptor itself. A
    /// blocking read is the only wait that signals interrupt or restart as the program has
    /// requested.
    ///
    /// Returns `None` if another thread has removed the event; the token is put back if it belongs
    /// to another event.
    pub fn pop_with_token(&self) -> Option<T> {
        let item = {
            let mut inner = self.inner.lock();
            let item = inner.pop();
            self.note_count(&inner);
            item
        };
        if item.is_none() {
            self.tokens.give();
        }
        item
    }

    /// Removes the oldest event for which `before` returns true instead of `item`, which was just
    /// removed and becomes the oldest event again. Returns `item` if there is none.
    pub fn exchange(&self, item: T, before: impl FnMut(&T) -> bool) -> T {
        let mut inner = self.inner.lock();
        let found = inner.items.iter().position(before).and_then(|place| inner.items.remove(place));
        let Some(found) = found else { return item };
        // The number of events stays the same, and so does the number of tokens.
        inner.items.push_front(item);
        found
    }

    /// Runs `find`, which may add an event on this thread, then removes the oldest event. No token
    /// is written for an event that `find` adds.
    pub(crate) fn pop_found(&self, find: impl FnOnce()) -> Option<T> {
        self.tokens.borrow();
        find();
        let item = self.pop_with_token();
        self.tokens.take_written();
        item
    }

    /// Removes the oldest event, or registers the waker.
    pub fn poll_pop(&self, cx: &mut Context<'_>) -> Poll<T> {
        let mut inner = self.inner.lock();
        if let Some(item) = inner.pop() {
            self.note_count(&inner);
            self.tokens.take();
            return Poll::Ready(item);
        }
        register_waker(&mut inner.wakers, cx.waker());
        Poll::Pending
    }

    /// Removes and returns the events for which `gone` returns true, with their tokens.
    pub fn remove_if(&self, mut gone: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut inner = self.inner.lock();
        let mut removed = Vec::new();
        let mut kept = VecDeque::with_capacity(inner.items.len());
        for item in inner.items.drain(..) {
            if gone(&item) {
                self.tokens.take();
                removed.push(item);
            } else {
                kept.push_back(item);
            }
        }
        inner.items = kept;
        self.note_count(&inner);
        removed
    }

    /// Returns the number of queued events.
    pub fn len(&self) -> usize {
        self.queued.load(Ordering::Acquire)
    }

    /// Updates the copy of the number of events.
    fn note_count(&self, inner: &EventItems<T>) {
        self.queued.store(inner.items.len(), Ordering::Release);
    }

    /// Returns whether no event is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a descriptor that is readable while events are queued, for poll(2), epoll and the
    /// like. Do not read from it.
    ///
    /// Unlike a plain eventfd, and like the descriptor of the kernel, it is never writable, so that
    /// a program which watches it in both directions can sleep.
    ///
    /// # Errors
    /// [`Error::Io`] if the process has no free descriptor.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        if let Some(set) = self.set.get() {
            return Ok(set.as_fd());
        }
        let set = ChannelSet::new(self.token_fd()?).map_err(Error::io("opening an epoll set"))?;
        Ok(self.set.get_or_init(|| Arc::new(set)).as_fd())
    }

    /// Returns the set of [`EventQueue::fd`]; `None` before its first call.
    pub(crate) fn set(&self) -> Option<&Arc<ChannelSet>> {
        self.set.get()
    }

    /// Returns a semaphore (eventfd) with one token for each queued event, for a thread that waits
    /// in a blocking read and then calls [`EventQueue::pop_with_token`]. [`EventQueue::try_pop`]
    /// takes the token itself.
    ///
    /// # Errors
    /// [`Error::Io`] if the process has no free descriptor.
    pub fn token_fd(&self) -> Result<BorrowedFd<'_>> {
        let inner = self.inner.lock();
        let queued = u32::try_from(inner.items.len()).unwrap_or(u32::MAX);
        self.tokens.open(queued).map(AsFd::as_fd)
    }
}

/// Adds `waker` unless there is one that wakes the same task.
#[inline]
pub fn register_waker(wakers: &mut Vec<Waker>, waker: &Waker) {
    if !wakers.iter().any(|known| known.will_wake(waker)) {
        wakers.push(waker.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn is_readable(fd: BorrowedFd<'_>) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn event_taken_in_place_of_previous() {
        let queue = EventQueue::default();
        for item in [1, 2, 3, 4] {
            queue.post(item);
        }
        let fd = queue.fd().unwrap();
        let first = queue.try_pop().unwrap();
        let other = queue.exchange(first, |item| *item > 2);
        assert_eq!(other, 3);
        assert_eq!(queue.exchange(other, |item| *item > 9), 3);
        assert_eq!(std::iter::from_fn(|| queue.try_pop()).collect::<Vec<_>>(), [1, 2, 4]);
        assert!(!is_readable(fd));
    }

    #[test]
    fn descriptor_holds_one_token_an_event() {
        let queue = EventQueue::default();
        let mut wakes = Wakes::default();
        queue.push(1, &mut wakes);
        let fd = queue.fd().unwrap();
        assert!(is_readable(fd), "the event queued before the descriptor existed counts");
        queue.push(2, &mut wakes);
        wakes.give();
        assert_eq!(queue.try_pop(), Some(1));
        assert!(is_readable(fd));
        assert_eq!(queue.try_pop(), Some(2));
        assert!(!is_readable(fd));
        assert_eq!(queue.try_pop(), None);
    }

    #[test]
    fn descriptor_is_never_writable() {
        let queue = EventQueue::default();
        let fd = queue.fd().unwrap();
        let events = || {
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN | PollFlags::OUT)];
            poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
            fds[0].revents()
        };
        assert_eq!(events(), PollFlags::empty());
        queue.post(1);
        assert_eq!(events(), PollFlags::IN);
        assert_eq!(queue.try_pop(), Some(1));
        assert_eq!(events(), PollFlags::empty());
    }

    #[test]
    fn early_taken_event_leaves_no_token() {
        let queue = EventQueue::default();
        let fd = queue.fd().unwrap();
        let mut wakes = Wakes::default();
        queue.push(7, &mut wakes);
        assert_eq!(queue.try_pop(), Some(7));
        wakes.give();
        assert!(!is_readable(fd));
    }

    #[test]
    fn token_read_by_caller_counted_once() {
        let queue = EventQueue::default();
        let fd = queue.token_fd().unwrap();
        let read = || rustix::io::read(fd, &mut [0u8; 8]).unwrap();
        queue.post(1);
        read();
        assert_eq!(queue.pop_with_token(), Some(1));
        assert!(!is_readable(fd));

        // One of the two readers gets the token, the other one takes the event.
        queue.post(2);
        read();
        assert_eq!(queue.try_pop(), Some(2));
        assert_eq!(queue.pop_with_token(), None);
        assert!(!is_readable(fd), "no event, no token");
        queue.post(3);
        assert!(is_readable(fd), "the next event has its token");
        read();
        assert_eq!(queue.pop_with_token(), Some(3));
    }

    #[test]
    fn earlier_token_taken_with_event() {
        let queue = EventQueue::default();
        let fd = queue.fd().unwrap();
        queue.post(1);
        assert_eq!(queue.pop_found(|| ()), Some(1));
        assert!(!is_readable(fd));
        queue.post(2);
        assert!(is_readable(fd));
        assert_eq!(queue.pop_found(|| queue.post(3)), Some(2));
        assert_eq!((queue.try_pop(), is_readable(fd)), (Some(3), false));
        assert_eq!((queue.pop_found(|| ()), is_readable(fd)), (None, false));
    }

    #[test]
    fn posted_and_moved_events_have_tokens() {
        let (from, to) = (EventQueue::default(), EventQueue::default());
        let (from_fd, to_fd) = (from.fd().unwrap(), to.fd().unwrap());
        for i in 0..4 {
            from.post(i);
        }
        assert!(is_readable(from_fd) && !is_readable(to_fd));
        let mut wakes = Wakes::default();
        from.move_to(&to, |i| i % 2 == 0, &mut wakes);
        wakes.give();
        assert_eq!([from.try_pop(), from.try_pop(), from.try_pop()], [Some(1), Some(3), None]);
        assert!(!is_readable(from_fd) && is_readable(to_fd));
        assert_eq!([to.try_pop(), to.try_pop(), to.try_pop()], [Some(0), Some(2), None]);
        assert!(!is_readable(to_fd));
    }

    #[test]
    fn removed_events_take_their_tokens_along() {
        let queue = EventQueue::default();
        let fd = queue.fd().unwrap();
        let mut wakes = Wakes::default();
        for i in 0..4 {
            queue.push(i, &mut wakes);
        }
        wakes.give();
        assert_eq!(queue.remove_if(|i| i % 2 == 0), [0, 2]);
        assert_eq!(queue.try_pop(), Some(1));
        assert_eq!(queue.try_pop(), Some(3));
        assert!(!is_readable(fd));
    }
}

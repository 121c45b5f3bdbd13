//! Tokens that are not written for events of a post.
//!
//! A program that sleeps in poll(2) on a channel's descriptor typically posts a response, polls its
//! queue until it is empty, and sleeps. The completion of the response raises the requested event,
//! although the program has polled the completion already. The token of the event would only end
//! the sleep for nothing, with three system calls, and the next message ends the sleep again. While
//! a program behaves like this, a post withholds the token. The event is queued, and is taken
//! together with the arrival that ends the sleep.
//!
//! No event is lost or delayed without bound. The token is written
//! * when anything but a post completes something on a queue of the channel,
//! * when the program no longer watches the shard ([`Watch`](crate::driver::Watch)),
//! * at the background thread's second turn after the post.
//!
//! The last case delays a program that waits for the completion of its post without polling.
//! Afterwards, the program is observed for longer before a token is withheld again.

use crate::notify::{Tokens, Wake, Wakes};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Number of consecutive events of posts that were polled before they were taken, after which
/// tokens are withheld. It doubles after each delay of an event that was not polled.
const FIRST_NEEDED: u32 = 16;

/// Withheld token of one channel.
pub(crate) struct WithheldToken {
    tokens: Arc<Tokens>,
    /// True if a token may be withheld.
    may_be_withheld: AtomicBool,
    /// True if a post has raised an event, and only posts have completed anything since.
    by_post: AtomicBool,
    /// Number of consecutive events of posts that were polled before they were taken.
    polled: AtomicU32,
    /// Number of such events from which on tokens are withheld.
    needed: AtomicU32,
}

impl WithheldToken {
    pub(super) fn new(tokens: &Arc<Tokens>) -> Self {
        Self {
            tokens: Arc::clone(tokens),
            may_be_withheld: AtomicBool::new(false),
            by_post: AtomicBool::new(false),
            polled: AtomicU32::new(0),
            needed: AtomicU32::new(FIRST_NEEDED),
        }
    }

    /// Reports a completion of a queue that is not armed. If a post withholds its token at the same
    /// moment, the background thread's turn writes it.
    #[inline]
    pub(super) fn note_unarmed_completion(self: &Arc<Self>, wakes: &mut Wakes) {
        if self.may_be_withheld.load(Ordering::Relaxed) {
            wakes.push(Wake::Completed(Arc::clone(self)));
        }
    }

    /// Handles the token of a new event after a post. It is withheld if enough events of earlier
    /// posts were polled before they were taken, and if `may_withhold` returns true; that call
    /// arranges the release.
    pub(crate) fn give_after_post(self: &Arc<Self>, may_withhold: impl FnOnce(&Arc<Self>) -> bool) {
        self.by_post.store(true, Ordering::Relaxed);
        if self.polled.load(Ordering::Relaxed) < self.needed.load(Ordering::Relaxed) {
            return self.tokens.give();
        }
        self.tokens.withhold();
        self.may_be_withheld.store(true, Ordering::Relaxed);
        if !may_withhold(self) {
            self.release();
        }
    }

    /// Writes the token of a new event.
    pub(crate) fn give(&self) {
        self.tokens.give();
    }

    /// Reports that a thread has completed something without posting for the program.
    pub(crate) fn release_for_completion(&self) {
        self.by_post.store(false, Ordering::Relaxed);
        self.release();
    }

    /// Returns and clears whether a token may be withheld, because the caller takes the event.
    pub(super) fn take(&self) -> bool {
        let any = self.may_be_withheld.load(Ordering::Relaxed);
        if any {
            self.may_be_withheld.store(false, Ordering::Relaxed);
            self.by_post.store(false, Ordering::Relaxed);
        }
        any
    }

    /// Records that an event was taken whose token was written. `is_empty` returns whether the
    /// queue of the event is empty.
    pub(super) fn observe(&self, is_empty: impl FnOnce() -> bool) {
        if !self.by_post.load(Ordering::Relaxed) {
            return;
        }
        self.by_post.store(false, Ordering::Relaxed);
        let (polled, needed) =
            (self.polled.load(Ordering::Relaxed), self.needed.load(Ordering::Relaxed));
        if is_empty() {
            self.polled.store(polled.saturating_add(1), Ordering::Relaxed);
            return;
        }
        self.polled.store(0, Ordering::Relaxed);
        if polled >= needed {
            self.needed.store(needed.saturating_mul(2), Ordering::Relaxed);
        }
    }

    fn release(&self) {
        self.may_be_withheld.store(false, Ordering::Relaxed);
        self.tokens.release();
    }
}

/// Writes the withheld tokens.
impl std::task::Wake for WithheldToken {
    fn wake(self: Arc<Self>) {
        self.release();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::EventQueue;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    struct WithheldFixture {
        queue: EventQueue<u32>,
        withheld: Arc<WithheldToken>,
    }

    impl WithheldFixture {
        fn new() -> Self {
            let queue = EventQueue::default();
            queue.fd().unwrap();
            let withheld = Arc::new(WithheldToken::new(queue.tokens()));
            Self { queue, withheld }
        }

        /// Creates the state of a program that polls first, after a post.
        fn withholding() -> Self {
            let f = Self::new();
            f.polled_early(FIRST_NEEDED);
            assert!(!f.post(true));
            f
        }

        /// Makes a post that raises an event. Returns whether the descriptor is readable.
        fn post(&self, may_withhold: bool) -> bool {
            let mut wakes = Wakes::default();
            self.queue.push_with(1, &mut wakes, || Wake::Due(Arc::clone(&self.withheld)));
            wakes.give_after_post(|_| may_withhold);
            self.is_readable()
        }

        fn is_readable(&self) -> bool {
            let mut fds = [PollFd::from_borrowed_fd(self.queue.fd().unwrap(), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
        }

        fn take(&self, is_empty: bool) {
            assert_eq!(self.queue.try_pop(), Some(1));
            self.withheld.observe(|| is_empty);
            assert!(!self.is_readable());
        }

        /// Reports events, each of a queue that was polled empty before.
        fn polled_early(&self, count: u32) {
            for _ in 0..count {
                assert!(self.post(true));
                self.take(true);
            }
        }
    }

    #[test]
    fn token_withheld_from_polling_program() {
        let f = WithheldFixture::withholding();
        assert!(f.withheld.take(), "the caller drives, as the event is for an arrival");
        f.take(true);
        assert!(!f.withheld.take());
        assert!(f.post(false), "a program that is not armed");
    }

    #[test]
    fn token_is_written_when_released() {
        let f = WithheldFixture::withholding();
        std::task::Waker::from(Arc::clone(&f.withheld)).wake();
        assert!(f.is_readable());
        f.take(true);
        assert!(!f.post(true), "an idle program is woken up once");
    }

    #[test]
    fn token_written_for_other_thread() {
        let f = WithheldFixture::withholding();
        let completed = || {
            let mut wakes = Wakes::default();
            f.withheld.note_unarmed_completion(&mut wakes);
            wakes
        };
        completed().give_after_post(|_| panic!("the release is postponed"));
        assert!(!f.is_readable(), "a post of the program");
        completed().give();
        assert!(f.is_readable());
        f.take(false);
        assert!(!f.post(true), "the arrival was not polled, the post was");
    }

    #[test]
    fn idle_program_observed_longer() {
        let f = WithheldFixture::withholding();
        std::task::Waker::from(Arc::clone(&f.withheld)).wake();
        f.take(false);
        f.polled_early(2 * FIRST_NEEDED);
        assert!(!f.post(true));
    }
}

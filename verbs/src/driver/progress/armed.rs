//! A program that arms a completion queue and sleeps in a poll(2) of its own: see [`Watch`].

use super::super::mutant::{Mutant, is_mutant};
use super::super::os::ChannelSet;
use super::super::sync::yield_now;
use super::super::watch::Watch;
use super::{Drive, NEVER, OWN_WAIT_HINT, State, nanos};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

/// The program of `watch` asks for an event and there is none: it drives once, if it is the owner.
/// Returns whether its channel's descriptor may have been readable.
pub(in super::super) fn answer_armed<D: Drive>(drive: &Arc<D>, watch: &Arc<Watch>) -> bool {
    let state = drive.progress();
    let watched = state.ownership.is_watched_by(watch);
    state.end_served();
    if !watched {
        return watch.is_taken();
    }
    if !drive.try_answer() {
        // The thread that holds the core may be serving the arrival that woke the program.
        yield_now();
        return true;
    }
    state.worked.load(Ordering::SeqCst)
}

impl State {
    /// A watch of the stack's descriptor in `set`, if the stack's descriptor is an epoll set.
    /// `release` writes the tokens that the channel withholds.
    pub(in super::super) fn watch(&self, set: &Arc<ChannelSet>, release: Waker) -> Option<Watch> {
        let (stack, waiter) = (self.stack.as_ref()?, self.waiter.as_ref()?);
        if waiter.is_set_of(stack) { Watch::new(set, stack, release) } else { None }
    }

    /// Returns whether a post may withhold the token of a channel, the address of whose
    /// `WithheldToken` is given: its program is armed.
    pub(in super::super) fn may_withhold(&self, withheld: *const ()) -> bool {
        self.ownership.withhold(withheld)
    }

    /// A completion queue was armed: the application is about to sleep, perhaps in a poll(2) of its
    /// own, so the poll hint is cleared. With `watch` it sleeps on a channel that can watch the
    /// stack's descriptor.
    pub(in super::super) fn arm(&self, watch: Option<&Arc<Watch>>) {
        if self.manual {
            return;
        }
        let own_wait = self.own_wait.load(Ordering::Relaxed);
        if own_wait != NEVER && self.now().saturating_sub(own_wait) < nanos(OWN_WAIT_HINT) {
            return;
        }
        self.arm_waiter(watch);
    }

    /// Like [`State::arm`], by a thread that sleeps in a poll(2) of its own next, whatever it did
    /// before.
    pub(in super::super) fn arm_waiter(&self, watch: Option<&Arc<Watch>>) {
        if self.manual {
            return;
        }
        self.poll_hint.store(false, Ordering::SeqCst);
        let begin = || {
            self.worked.store(false, Ordering::SeqCst);
            self.served.store(false, Ordering::SeqCst);
        };
        if watch.is_some_and(|watch| self.ownership.arm(watch, || self.now(), begin)) {
            return;
        }
        self.ownership.wake_background_if_unowned();
    }

    /// A program that armed a queue has taken its event, and is expected to poll.
    pub(in super::super) fn disarm(&self, watch: &Arc<Watch>) {
        watch.reset();
        if self.ownership.disarm(watch) {
            self.worked.store(false, Ordering::SeqCst);
            self.served.store(true, Ordering::SeqCst);
            // So that the next poll calls `end_served`, see `hint_poll`.
            self.poll_hint.store(false, Ordering::SeqCst);
        }
    }

    /// A round had work to do.
    #[inline]
    pub(in super::super) fn note_work(&self) {
        // Read first: the cache line is shared.
        if !self.worked.load(Ordering::Relaxed) && !is_mutant(Mutant::WorkIsNotNoted) {
            self.worked.store(true, Ordering::Relaxed);
        }
    }

    /// An armed program woke up for an arrival that completed nothing of its own.
    pub(in super::super) fn note_spurious_wake_up(&self, watch: &Arc<Watch>) {
        self.ownership.note_spurious_wake_up(watch, || self.now());
    }

    /// A program that has taken its event polls, or asks for another one, instead of arming at
    /// once.
    pub(in super::super) fn end_served(&self) {
        if self.served.load(Ordering::Relaxed) {
            self.served.store(false, Ordering::Relaxed);
            self.ownership.end_served();
        }
    }
}

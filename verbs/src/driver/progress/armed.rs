//! Programs that arm a completion queue and sleep in their own poll(2) (see [`Watch`]).

use super::super::os::ChannelSet;
use super::super::sync::yield_now;
use super::super::watch::Watch;
use super::ownership::ProgramRole;
use super::{Drive, NEVER, RECENT, State, nanos};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

/// Drives once, if the program of `watch` is the owner. Called when that program asks for an event
/// and there is none. Returns whether the channel's descriptor may have been readable.
pub(in super::super) fn answer_armed<D: Drive>(drive: &Arc<D>, watch: &Arc<Watch>) -> bool {
    let state = drive.progress();
    match state.ownership.role_of(watch) {
        Some(ProgramRole::Armed) => {}
        // Programs ask until there is no event left, and then arm.
        Some(ProgramRole::Served) if has_nothing_arrived(drive) => return false,
        Some(ProgramRole::Served) => state.ownership.end_served(),
        None => {
            state.ownership.end_served();
            return watch.is_taken();
        }
    }
    if !drive.try_handle_stack_event() {
        // The thread that holds the core may be serving the arrival that woke the program.
        yield_now();
        return true;
    }
    state.worked.load(Ordering::SeqCst)
}

/// Returns whether nothing has arrived since the program of the watch has taken its event.
fn has_nothing_arrived<D: Drive>(drive: &Arc<D>) -> bool {
    let state = drive.progress();
    // In this order: the round that has made the descriptor unreadable holds the core until it has
    // set `worked`.
    !state.is_readable() && !drive.is_held() && !state.worked.load(Ordering::SeqCst)
}

impl State {
    /// Creates a watch of the stack's descriptor in `set`, if that descriptor is an epoll set.
    /// `release` writes the tokens that the channel withholds.
    pub(in super::super) fn watch(&self, set: &Arc<ChannelSet>, release: Waker) -> Option<Watch> {
        let (stack, waiter) = (self.stack.as_ref()?, self.waiter.as_ref()?);
        if waiter.is_set_of(stack) { Watch::new(set, stack, release) } else { None }
    }

    /// Lets a post withhold the token of the channel whose `WithheldToken` is at the given address,
    /// if the program of the channel is armed. Returns whether the token is withheld.
    pub(in super::super) fn withhold(&self, withheld: *const ()) -> bool {
        self.ownership.withhold(withheld)
    }

    /// Records that a completion queue was armed, so that the application is about to sleep,
    /// perhaps in its own poll(2). Clears the poll hint. `watch` is given if the application sleeps
    /// on a channel that can watch the stack's descriptor.
    pub(in super::super) fn arm(&self, watch: Option<&Arc<Watch>>) {
        if self.manual {
            return;
        }
        let own_wait = self.own_wait.load(Ordering::Relaxed);
        if own_wait != NEVER && self.now().saturating_sub(own_wait) < nanos(RECENT) {
            return;
        }
        self.arm_waiter(watch);
    }

    /// Like [`State::arm`], for a thread that is known to sleep in its own poll(2) next.
    pub(in super::super) fn arm_waiter(&self, watch: Option<&Arc<Watch>>) {
        if self.manual {
            return;
        }
        self.poll_hint.store(0, Ordering::SeqCst);
        let begin = || self.worked.store(false, Ordering::SeqCst);
        if watch.is_some_and(|watch| self.ownership.arm(watch, || self.now(), begin)) {
            return;
        }
        self.ownership.wake_background_if_unowned();
    }

    /// Records that an armed program has taken its event, and is expected to poll.
    pub(in super::super) fn disarm(&self, watch: &Arc<Watch>) {
        watch.reset();
        if self.ownership.disarm(watch) {
            self.worked.store(false, Ordering::SeqCst);
        }
    }

    /// Records that a round had work to do.
    #[inline]
    pub(in super::super) fn note_work(&self) {
        // Read first, because the cache line is shared.
        if !self.worked.load(Ordering::Relaxed) {
            self.worked.store(true, Ordering::Relaxed);
        }
    }

    /// Records that an armed program woke up for an arrival that completed nothing for it.
    pub(in super::super) fn note_spurious_wake_up(&self, watch: &Arc<Watch>) {
        self.ownership.note_spurious_wake_up(watch, || self.now());
    }

    /// Ends the state "served", because the program asks for another event instead of arming.
    pub(in super::super) fn end_served(&self) {
        self.ownership.end_served();
    }
}

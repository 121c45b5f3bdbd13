//! Watches the descriptor of a stack in the epoll set of a completion channel.
//!
//! A program may arm a completion queue and then sleep in its own poll(2) on the descriptor of the
//! channel. Then the arrival itself wakes it, and it drives the shard when it asks the channel for
//! the event, without a second thread.
//!
//! The descriptor may be readable although nothing has completed, but never without an event: in
//! this case the channel reports an event of an armed queue. Verbs allow events of empty queues,
//! because the completion may have been polled already.
//!
//! While the program sleeps like this, a post may withhold the token of its event (see
//! `comp_channel/withheld.rs`).

use super::os::{ChannelSet, StackFd};
use super::sync::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::Waker;

/// Entry of a shard in the epoll set of a channel.
pub(crate) struct Watch {
    set: Arc<ChannelSet>,
    stack: Weak<StackFd>,
    /// True if another thread has stopped the watch since [`Watch::reset`]; the descriptor may have
    /// been readable before.
    taken: AtomicBool,
    /// Writes the tokens that the channel withholds.
    release: Waker,
    /// True if this watch has to release a withheld token.
    withheld: AtomicBool,
    /// Value of `withheld` at the background thread's last turn.
    withheld_seen: AtomicBool,
}

impl Watch {
    /// Creates a watch that is stopped. Returns `None` if the descriptor cannot be added to the
    /// set.
    pub(super) fn new(set: &Arc<ChannelSet>, stack: &Arc<StackFd>, release: Waker) -> Option<Self> {
        set.add(stack).ok()?;
        Some(Self {
            set: Arc::clone(set),
            stack: Arc::downgrade(stack),
            taken: AtomicBool::new(false),
            release,
            withheld: AtomicBool::new(false),
            withheld_seen: AtomicBool::new(false),
        })
    }

    /// Makes the channel's descriptor readable while the stack's is.
    pub(super) fn start(&self) {
        self.wait_for(true);
    }

    /// Ends [`Watch::start`].
    pub(super) fn stop(&self) {
        self.wait_for(false);
        self.release_withheld();
    }

    /// Like [`Watch::stop`], but called by another thread than the program's. [`Watch::is_taken`]
    /// reports it.
    pub(super) fn take(&self) {
        self.taken.store(true, Ordering::SeqCst);
        self.stop();
    }

    /// Returns whether [`Watch::take`] was called since [`Watch::reset`].
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst)
    }

    /// Records that the program has taken an event. This accounts for a descriptor that was
    /// readable before.
    pub(crate) fn reset(&self) {
        self.taken.store(false, Ordering::SeqCst);
    }

    /// Returns whether [`Watch::release_withheld`] writes the tokens of the channel whose
    /// `WithheldToken` is at this address.
    pub(super) fn releases(&self, withheld: *const ()) -> bool {
        self.release.data() == withheld
    }

    /// Records that the channel withholds a token until [`Watch::release_withheld`]. This and the
    /// next two functions are called while the lock of the ownership is held.
    pub(super) fn withhold(&self) {
        self.withheld_seen.store(false, Ordering::Relaxed);
        self.withheld.store(true, Ordering::Relaxed);
    }

    /// Releases tokens that were withheld already at the previous turn of the background thread.
    /// Called at each of its turns.
    pub(super) fn age_withheld(&self) {
        if self.withheld_seen.swap(self.withheld.load(Ordering::Relaxed), Ordering::Relaxed) {
            self.release_withheld();
        }
    }

    fn release_withheld(&self) {
        self.withheld_seen.store(false, Ordering::Relaxed);
        if self.withheld.swap(false, Ordering::Relaxed) {
            self.release.wake_by_ref();
        }
    }

    fn wait_for(&self, on: bool) {
        // After the stack was dropped, its descriptor is no longer in the set.
        if let Some(stack) = self.stack.upgrade() {
            self.set.wait_for(&stack, on);
        }
    }
}

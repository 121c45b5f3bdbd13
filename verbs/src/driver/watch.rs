//! The stack's descriptor in the epoll set of a completion channel.
//!
//! A program that arms a completion queue and then sleeps in a poll(2) of its own on the channel's descriptor is woken by the arrival
//! itself, and drives the shard when it asks the channel for the event: no second thread stands between. The descriptor may then be
//! readable though no completion has come. It is never readable without an event: verbs allow events of queues in which nothing is, as
//! the completion may have been polled already, so the channel takes one of an armed queue.

use super::os::{ChannelSet, StackFd};
use super::sync::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// A shard's part of a channel's epoll set.
pub(crate) struct Watch {
    set: Arc<ChannelSet>,
    stack: Weak<StackFd>,
    /// Another thread has stopped the watch since the channel's last event: the program may have seen the descriptor readable.
    taken: AtomicBool,
}

impl Watch {
    /// A watch that is off. None where the descriptor cannot be added to the set.
    pub(super) fn new(set: &Arc<ChannelSet>, stack: &Arc<StackFd>) -> Option<Self> {
        set.add(stack).ok()?;
        Some(Self { set: Arc::clone(set), stack: Arc::downgrade(stack), taken: AtomicBool::new(false) })
    }

    /// From now on the channel's descriptor is readable while the stack's is.
    pub(super) fn start(&self) {
        self.wait_for(true);
    }

    /// The opposite of [`Watch::start`].
    pub(super) fn stop(&self) {
        self.wait_for(false);
    }

    /// As [`Watch::stop`], by another thread than the program's, which does not know of it.
    pub(super) fn take(&self) {
        self.taken.store(true, Ordering::SeqCst);
        self.wait_for(false);
    }

    /// Whether it was taken since [`Watch::forget`].
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst)
    }

    /// The program has an event: it will not ask for one that it has seen announced before.
    pub(crate) fn forget(&self) {
        self.taken.store(false, Ordering::SeqCst);
    }

    fn wait_for(&self, on: bool) {
        // Without the stack nothing is in the set.
        if let Some(stack) = self.stack.upgrade() {
            self.set.wait_for(&stack, on);
        }
    }
}

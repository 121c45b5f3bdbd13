//! The stack's descriptor in the epoll set of a completion channel.
//!
//! A program that arms a completion queue and then sleeps in a poll(2) of its own on the channel's descriptor is woken by the arrival
//! itself, and drives the shard when it asks the channel for the event, without a second thread. The descriptor may then be readable
//! although nothing has completed. It is never readable without an event: verbs allow events of empty queues, as the completion may have
//! been polled already, so the channel reports one of an armed queue.

use super::os::{ChannelSet, StackFd};
use super::sync::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// A shard's part of a channel's epoll set.
pub(crate) struct Watch {
    set: Arc<ChannelSet>,
    stack: Weak<StackFd>,
    /// Another thread has stopped the watch since [`Watch::reset`]: the descriptor may have been readable before that.
    taken: AtomicBool,
}

impl Watch {
    /// A watch that is stopped. `None` where the descriptor cannot be added to the set.
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

    /// As [`Watch::stop`], by another thread than the program's; recorded for [`Watch::is_taken`].
    pub(super) fn take(&self) {
        self.taken.store(true, Ordering::SeqCst);
        self.wait_for(false);
    }

    /// Whether [`Watch::take`] was called since [`Watch::reset`].
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst)
    }

    /// The program has taken an event, which also accounts for a descriptor that was readable before.
    pub(crate) fn reset(&self) {
        self.taken.store(false, Ordering::SeqCst);
    }

    fn wait_for(&self, on: bool) {
        // A stack that was dropped is not in the set any more.
        if let Some(stack) = self.stack.upgrade() {
            self.set.wait_for(&stack, on);
        }
    }
}

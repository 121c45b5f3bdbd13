//! The stack's descriptor in the epoll set of a completion channel.
//!
//! A program that arms a completion queue and then sleeps in a poll(2) of its own on the channel's
//! descriptor is woken by the arrival itself, and drives the shard when it asks the channel for the
//! event, without a second thread. The descriptor may then be readable although nothing has
//! completed. It is never readable without an event: verbs allow events of empty queues, as the
//! completion may have been polled already, so the channel reports one of an armed queue.
//!
//! While the program sleeps like that, a post may withhold the token of its event: see
//! `comp_channel/withheld.rs`.

use super::mutant::{Mutant, is_mutant};
use super::os::{ChannelSet, StackFd};
use super::sync::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::Waker;

/// A shard's part of a channel's epoll set.
pub(crate) struct Watch {
    set: Arc<ChannelSet>,
    stack: Weak<StackFd>,
    /// Another thread has stopped the watch since [`Watch::reset`]: the descriptor may have been
    /// readable before that.
    taken: AtomicBool,
    /// Writes the tokens that the channel withholds.
    release: Waker,
    /// A token is withheld that this watch releases.
    withheld: AtomicBool,
    /// Value of the withheld flag at the background thread's last turn.
    withheld_seen: AtomicBool,
}

impl Watch {
    /// A watch that is stopped. `None` where the descriptor cannot be added to the set.
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

    /// The opposite of [`Watch::start`].
    pub(super) fn stop(&self) {
        self.wait_for(false);
        self.release_withheld();
    }

    /// Like [`Watch::stop`], by another thread than the program's; recorded for
    /// [`Watch::is_taken`].
    pub(super) fn take(&self) {
        self.taken.store(true, Ordering::SeqCst);
        self.stop();
    }

    /// Returns whether [`Watch::take`] was called since [`Watch::reset`].
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst)
    }

    /// The program has taken an event, which also accounts for a descriptor that was readable
    /// before.
    pub(crate) fn reset(&self) {
        self.taken.store(false, Ordering::SeqCst);
    }

    /// Returns whether [`Watch::release_withheld`] writes the tokens of the channel whose
    /// `WithheldToken` is at this address.
    pub(super) fn releases(&self, withheld: *const ()) -> bool {
        self.release.data() == withheld
    }

    /// The channel withholds a token until [`Watch::release_withheld`]. Called, as the next two
    /// are, with the lock of the ownership held.
    pub(super) fn withhold(&self) {
        self.withheld_seen.store(false, Ordering::Relaxed);
        self.withheld.store(true, Ordering::Relaxed);
    }

    /// A turn of the background thread: releases what was withheld at its last one.
    pub(super) fn age_withheld(&self) {
        if self.withheld_seen.swap(self.withheld.load(Ordering::Relaxed), Ordering::Relaxed) {
            self.release_withheld();
        }
    }

    fn release_withheld(&self) {
        self.withheld_seen.store(false, Ordering::Relaxed);
        if self.withheld.swap(false, Ordering::Relaxed) && !is_mutant(Mutant::WithheldIsKept) {
            self.release.wake_by_ref();
        }
    }

    fn wait_for(&self, on: bool) {
        // A stack that was dropped is not in the set any more.
        if let Some(stack) = self.stack.upgrade() {
            self.set.wait_for(&stack, on);
        }
    }
}

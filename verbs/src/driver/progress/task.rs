//! A task as the active poller.

use super::State;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

/// A task that is the active poller: a runtime's reactor waits for the stack's descriptor. Released
/// on drop.
pub(crate) struct ActiveTask(Arc<State>);

impl ActiveTask {
    /// The task of `waker` becomes the active poller, unless there is one.
    pub(in super::super) fn claim(state: &Arc<State>, waker: impl FnOnce() -> Waker) -> Option<Self> {
        if !state.ownership.claim(waker) {
            return None;
        }
        // The runtime's reactor sleeps for it.
        state.ownership.fall_asleep();
        Some(Self(Arc::clone(state)))
    }

    /// The descriptor to wait for.
    pub(crate) fn set(&self) -> Option<Arc<OwnedFd>> {
        self.0.stack.clone()
    }

    /// The streams' next deadline.
    pub(crate) fn timer(&self) -> Option<Instant> {
        self.0.deadline()
    }
}

impl Drop for ActiveTask {
    fn drop(&mut self) {
        self.0.release();
    }
}

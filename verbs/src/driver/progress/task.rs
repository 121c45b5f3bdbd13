//! Tasks of a runtime as active pollers.

use super::State;
use super::ownership::ActivePoller;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

/// Task that is the active poller: the reactor of a runtime waits for the stack's descriptor. The
/// role is released on drop.
pub(crate) struct ActiveTask(Arc<State>);

impl ActiveTask {
    /// Makes the task of `waker` the active poller, unless there is one.
    pub(in super::super) fn claim(state: &Arc<State>, waker: impl FnOnce() -> Waker) -> Option<Self> {
        state.ownership.claim(|| ActivePoller::Task(waker())).then(|| Self(Arc::clone(state)))
    }

    /// Returns the descriptor to wait for.
    pub(crate) fn set(&self) -> Option<Arc<OwnedFd>> {
        self.0.stack.clone()
    }

    /// Returns the next deadline of the streams.
    pub(crate) fn timer(&self) -> Option<Instant> {
        self.0.deadline()
    }
}

impl Drop for ActiveTask {
    fn drop(&mut self) {
        self.0.release();
    }
}

//! Tasks of a runtime as active pollers.

use super::super::Shard;
use super::State;
use super::ownership::ActivePoller;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Instant;

/// Task that is the active poller: the reactor of a runtime waits for the stack's descriptor. The
/// role is released on drop.
pub(crate) struct ActiveTask {
    state: Arc<State>,
    released: AtomicBool,
}

impl ActiveTask {
    /// Makes the task of `waker` the active poller of `shard`, unless there is one.
    pub(crate) fn try_new(shard: &Shard, waker: impl FnOnce() -> Waker) -> Option<Self> {
        let state = &shard.progress;
        let claimed = state.ownership.claim(|| ActivePoller::Task(waker()));
        claimed.then(|| Self { state: Arc::clone(state), released: AtomicBool::new(false) })
    }

    /// Returns the descriptor to wait for.
    pub(crate) fn set(&self) -> Option<Arc<OwnedFd>> {
        self.state.stack.clone()
    }

    /// Returns the next deadline of the streams.
    pub(crate) fn timer(&self) -> Option<Instant> {
        self.state.deadline()
    }

    /// Releases the role, if this was not done before.
    pub(crate) fn release(&self) {
        if !self.released.swap(true, Ordering::SeqCst) {
            self.state.ownership.release_task();
        }
    }
}

impl Drop for ActiveTask {
    fn drop(&mut self) {
        self.release();
    }
}

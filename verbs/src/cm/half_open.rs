//! Connections in set-up and requests without a decision, counted by their listener.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use uiw_llp::Token;

/// Guard that counts one connection until it is established or has ended. The connection and its
/// request share it: a request that waits for the program needs memory even if the peer is gone.
pub(crate) struct HalfOpenGuard {
    count: Arc<AtomicU32>,
    /// Slot of the listener.
    pub(super) listener: Token,
}

impl HalfOpenGuard {
    pub(super) fn new(count: &Arc<AtomicU32>, listener: Token) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self { count: Arc::clone(count), listener }
    }

    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }
}

impl Drop for HalfOpenGuard {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

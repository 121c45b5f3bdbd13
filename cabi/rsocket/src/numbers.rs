//! The numbers that the program has for an rsocket.

use std::sync::atomic::{AtomicU32, Ordering};

/// Present number of sockets, and number of removed ones.
#[derive(Default)]
pub(crate) struct Numbers {
    count: AtomicU32,
    /// Wraps.
    removed: AtomicU32,
}

impl Numbers {
    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether it was the last one. Called when the table has the number no more.
    pub(crate) fn remove(&self) -> bool {
        self.removed.fetch_add(1, Ordering::Release);
        self.count.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Returns whether the program has closed the socket.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns the number of removals: while this stays the same, a number that the table had for
    /// the socket is the socket's.
    pub(crate) fn removed(&self) -> u32 {
        self.removed.load(Ordering::Acquire)
    }
}

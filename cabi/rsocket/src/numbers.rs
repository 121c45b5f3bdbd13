//! Descriptor numbers that the program has for an rsocket.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

/// Current number of descriptors of a socket, and number of descriptors that were removed.
#[derive(Default)]
pub(crate) struct Numbers {
    count: AtomicU32,
    /// Wraps around.
    removed: AtomicU32,
}

impl Numbers {
    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the removal of a number, after the table has removed it. Returns whether it was the
    /// last one.
    pub(crate) fn remove(&self) -> bool {
        self.removed.fetch_add(1, Ordering::Release);
        self.count.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Returns whether the program has closed the socket.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns the number of removals. As long as it does not change, a number that the table had
    /// for the socket still belongs to it.
    pub(crate) fn removed(&self) -> u32 {
        self.removed.load(Ordering::Acquire)
    }
}

/// Flags that the program has set with `rfcntl`.
pub(crate) struct FileFlags {
    /// O_NONBLOCK and the other flags of F_GETFL.
    pub(crate) status: c_int,
    /// FD_CLOEXEC, like F_GETFD.
    pub(crate) descriptor: c_int,
}

//! Threads whose channel was destroyed while they were between two looks at it.
//!
//! Programs (rping among them) have a thread that does nothing but `rdma_get_cm_event`, and a main thread that destroys the channel
//! and ends the process without a word to it. In rdma-core that thread sleeps on in the kernel. Here the last event and the
//! destruction may be microseconds apart, so that the thread finds the channel gone when it comes back, and would end the process
//! with an error before the main thread can end it with success. So it sleeps, as if it had been in time.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::thread::ThreadId;

/// More of them than this are forgotten, the oldest first, and are told EINVAL like everybody else.
const MOST: usize = 64;

/// By the address of the channel that is gone, and the thread that read it last.
#[derive(Default)]
pub(crate) struct LeftBehind(VecDeque<(usize, ThreadId)>);

impl LeftBehind {
    /// Another thread than `reader` destroyed the channel at `address`.
    pub(crate) fn add(&mut self, address: usize, reader: ThreadId) {
        self.0.truncate(MOST - 1);
        self.0.push_front((address, reader));
    }

    /// A new channel lives at `address`: whoever comes from now on means that one.
    pub(crate) fn forget(&mut self, address: usize) {
        self.0.retain(|&(gone, _)| gone != address);
    }

    /// Whether `thread` read the channel that was at `address` when it was destroyed.
    pub(crate) fn contains(&self, address: usize, thread: ThreadId) -> bool {
        self.0.contains(&(address, thread))
    }
}

/// Sleeps until the thread is cancelled or a signal's handler has run; `errno` is EINTR then.
///
/// # Safety
/// As for [`read_token`](crate::boundary::read_token).
#[inline]
pub(crate) unsafe fn sleep() {
    unsafe extern "C-unwind" {
        fn pause() -> c_int;
    }
    // SAFETY: no arguments; the declaration is the C library's own, except that it says that a cancelled thread unwinds.
    unsafe { pause() };
}

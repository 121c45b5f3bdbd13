//! Threads that wait for an epoll set with the system's call.
//!
//! A set belongs to the system until an rsocket is added. A thread that is in the system's wait at
//! that time would not see the rsocket. A descriptor that is always ready, the marker, is therefore
//! added to the set together with the first rsocket. All threads return from the system's call, one
//! after the other, and wait again in a way that includes rsockets. The marker is removed when no
//! such thread is left. The preload library counts these threads, and hides the marker from
//! programs.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use uiw_cabi_core::fork;

/// Number of counters. Sets whose numbers are equal modulo this number share a counter, so that a
/// marker may stay longer than necessary.
const COUNTS: usize = 1024;

/// Counters of the threads that wait for a set, by its descriptor number.
#[repr(transparent)]
pub(crate) struct WaiterCounts([AtomicU32; COUNTS]);

/// Counters of this process. The preload library increments a counter before it checks whether the
/// set is followed, and decrements it after the wait.
pub(crate) static WAITING: WaiterCounts = WaiterCounts([const { AtomicU32::new(0) }; COUNTS]);

impl WaiterCounts {
    /// Returns the number of counters.
    pub(super) const fn len() -> usize {
        COUNTS
    }

    /// Returns whether a thread may be waiting for the set, which is already followed.
    pub(crate) fn has_waiters(&self, set: RawFd) -> bool {
        // Either this thread sees the count, or the other one sees that the set is followed.
        fence(Ordering::SeqCst);
        self.0[set as u32 as usize % COUNTS].load(Ordering::Acquire) > 0
    }

    /// Returns the data of the marker in events of the set. No program uses this value.
    pub(crate) fn marker(&self) -> u64 {
        (&raw const *self).addr() as u64
    }
}

/// Resets the counters in the child of a fork, whose only thread is not waiting.
pub(crate) fn forked() {
    static GENERATION: AtomicU32 = AtomicU32::new(0);
    if GENERATION.swap(fork::generation(), Ordering::Relaxed) != fork::generation() {
        WAITING.0.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

//! Threads that wait for an epoll set by the system's call.
//!
//! A set is the system's until an rsocket enters it, and a thread that is in the system's wait then
//! would see no rsocket. So a descriptor that is always ready, the marker, enters the set with the
//! first one: every thread there returns, one after the other, and waits anew where rsockets are
//! seen. It leaves the set when no such thread is left. The preload library counts the threads, and
//! shows no program the marker.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use uiw_cabi_core::fork;

/// Sets whose numbers differ by this are counted together, which at most lets a marker stay longer.
const COUNTS: usize = 1024;

/// Numbers of threads that wait for a set, by its number.
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

    /// Returns the data of the marker in the set's events: a number that no program has.
    pub(crate) fn marker(&self) -> u64 {
        (&raw const *self).addr() as u64
    }
}

/// Resets the counts in the child of a fork, whose one thread waits for nothing.
pub(crate) fn forked() {
    static GENERATION: AtomicU32 = AtomicU32::new(0);
    if GENERATION.swap(fork::generation(), Ordering::Relaxed) != fork::generation() {
        WAITING.0.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

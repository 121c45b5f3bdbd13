//! The process to which the table of descriptors belongs. A child of vfork(2) has the memory of its
//! parent, and must not change the table.

use crate::sys;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Records that the table belongs to this process, which has created a socket or is the child of a
/// fork.
pub(crate) fn has_table() {
    PROCESS.store(sys::process(), Ordering::Relaxed);
}

/// Number of copies of parts of the table.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Called before the process forks.
pub(crate) fn will_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns a number that changes with each fork.
pub(super) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Returns whether this is a child of vfork(2).
pub(crate) fn is_vforked() -> bool {
    PROCESS.load(Ordering::Relaxed) != sys::process()
}

//! The process that has the table of descriptors: a child of vfork(2) has its parent's memory, and
//! must not change it.

use crate::sys;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

static PROCESS: AtomicI32 = AtomicI32::new(0);

/// This process has it: it has made a socket, or is the child of a fork.
pub(crate) fn has_table() {
    PROCESS.store(sys::process(), Ordering::Relaxed);
}

/// Counts the parts of the table that were copied.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process is about to fork.
pub(crate) fn will_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A number that changes with each fork.
pub(super) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Returns whether this is a child of vfork(2).
pub(crate) fn is_vforked() -> bool {
    PROCESS.load(Ordering::Relaxed) != sys::process()
}

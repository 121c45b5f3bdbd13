//! Orphaned channels: destroyed while a thread was between two reads of them.
//!
//! Programs (rping among them) have a thread that does nothing but `rdma_get_cm_event`, and a main
//! thread that destroys the channel and ends the process without notifying it. In rdma-core that
//! thread sleeps on in the kernel. Here the last event and the destruction may be microseconds
//! apart, so that the thread finds the channel destroyed when it calls again, and would end the
//! process with an error before the main thread can end it with success. Therefore it sleeps, as it
//! would in rdma-core.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::thread::ThreadId;
use uiw_cabi_core::fork::{ForkSafe, ForkState};

/// Maximum number of orphans; the oldest are forgotten, and their threads get EINVAL like every
/// other one.
const MAX: usize = 64;

/// The address of each orphaned channel, and the thread that read it last.
struct OrphanedChannels(VecDeque<(usize, ThreadId)>);

impl ForkState for OrphanedChannels {
    const NEW: Self = Self(VecDeque::new());

    /// The threads are the parent's.
    fn in_child(&mut self) {
        self.0.clear();
    }
}

static ORPHANED: ForkSafe<OrphanedChannels> = ForkSafe::new();

/// Another thread than `reader` destroys the channel at `address`.
pub(crate) fn add(address: usize, reader: ThreadId) {
    let mut orphaned = ORPHANED.write();
    orphaned.0.truncate(MAX - 1);
    orphaned.0.push_front((address, reader));
}

/// Removes the orphan at `address`, because a new channel gets this address.
pub(crate) fn remove(address: usize) {
    // The table is read first: destroyed channels are rare, and new ones need not wait for each
    // other.
    if ORPHANED.read().0.iter().any(|&(gone, _)| gone == address) {
        ORPHANED.write().0.retain(|&(gone, _)| gone != address);
    }
}

/// Returns whether `thread` read the channel that was at `address` when it was destroyed.
pub(crate) fn contains(address: usize, thread: ThreadId) -> bool {
    ORPHANED.read().0.contains(&(address, thread))
}

/// Sleeps until the thread is cancelled or a signal's handler has run; `errno` is EINTR then.
///
/// # Safety
/// The requirements are those of [`read_token`](uiw_cabi_core::boundary::read_token).
#[inline]
pub(crate) unsafe fn sleep() {
    unsafe extern "C-unwind" {
        fn pause() -> c_int;
    }
    // SAFETY: the caller ensures that no frame up to C has a destructor, so a thread that is
    // cancelled here may unwind.
    unsafe { pause() };
}

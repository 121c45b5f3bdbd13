//! Orphaned channels, which were destroyed while a thread was between two reads of them.
//!
//! Some programs (rping among them) have a thread that does nothing but call `rdma_get_cm_event`,
//! and a main thread that destroys the channel and ends the process without notifying the other
//! thread. With rdma-core that thread continues to sleep in the kernel. In this library the last
//! event and the destruction may be only microseconds apart. The thread would then find the channel
//! destroyed when it calls again, and would end the process with an error before the main thread
//! can end it successfully. Therefore it sleeps, as it would with rdma-core.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::thread::ThreadId;
use uiw_cabi_core::fork::{ForkSafe, ForkState};

/// Maximum number of orphans. The oldest are removed, and their readers get EINVAL like all other
/// threads.
const MAX: usize = 64;

/// Address of each orphaned channel, and the thread that read it last.
struct OrphanedChannels(VecDeque<(usize, ThreadId)>);

impl ForkState for OrphanedChannels {
    const NEW: Self = Self(VecDeque::new());

    /// The threads exist only in the parent.
    fn in_child(&mut self) {
        self.0.clear();
    }
}

static ORPHANED: ForkSafe<OrphanedChannels> = ForkSafe::new();

/// Adds the channel at `address`, which is being destroyed by another thread than `reader`.
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

/// Sleeps until the thread is cancelled or a signal handler has run; `errno` is EINTR in the latter
/// case.
///
/// # Safety
/// The requirements are those of [`read_token`](uiw_cabi_core::boundary::read_token).
#[inline]
pub(crate) unsafe fn sleep() {
    unsafe extern "C-unwind" {
        fn pause() -> c_int;
    }
    // SAFETY: pause(2) has this type, and takes no arguments. A cancelled thread unwinds from it
    // through this frame, which holds nothing and, as one of Rust, may unwind, and through its
    // callers up to C, which hold nothing with a destructor and may unwind, as the caller ensures.
    unsafe { pause() };
}

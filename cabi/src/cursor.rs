//! The completion of a queue that a program reads field by field.

use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use std::cell::UnsafeCell;
use uiw_verbs::Wc;

/// Locked from a successful `ibv_start_poll` to `ibv_end_poll`.
pub(crate) struct Cursor {
    lock: RawMutex,
    wc: UnsafeCell<Option<Wc>>,
}

// SAFETY: the completion is touched between `lock` and `unlock` alone, by the thread that holds the lock.
unsafe impl Sync for Cursor {}

impl Default for Cursor {
    fn default() -> Self {
        Self { lock: RawMutex::INIT, wc: UnsafeCell::new(None) }
    }
}

impl Cursor {
    /// Waits for the lock.
    pub(crate) fn lock(&self) {
        self.lock.lock();
    }

    /// Unlocks it, if it is locked.
    ///
    /// # Safety
    /// No other thread has locked it.
    pub(crate) unsafe fn unlock(&self) {
        if self.lock.is_locked() {
            // SAFETY: locked, by the caller's promise on this thread.
            unsafe { self.lock.unlock() };
        }
    }

    /// # Safety
    /// This thread has locked it.
    pub(crate) unsafe fn set(&self, wc: Wc) {
        // SAFETY: the caller's promise.
        unsafe { *self.wc.get() = Some(wc) };
    }

    /// # Safety
    /// This thread has locked it, and neither unlocks nor sets it during `'a`.
    pub(crate) unsafe fn get<'a>(&self) -> Option<&'a Wc> {
        // SAFETY: the caller's promise.
        unsafe { (*self.wc.get()).as_ref() }
    }
}

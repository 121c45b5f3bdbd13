//! The completion of a queue that a program reads field by field.

use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use std::cell::UnsafeCell;
use uiw_verbs::Wc;

/// Locked from a successful `ibv_start_poll` to `ibv_end_poll`.
pub(crate) struct Cursor {
    lock: RawMutex,
    wc: UnsafeCell<Option<Wc>>,
    /// Completions that were in the queue when the batch began and are still there; `None` once the program has been told that the
    /// batch is at its end.
    left: UnsafeCell<Option<usize>>,
}

// SAFETY: the fields are touched between `lock` and `unlock` alone, by the thread that holds the lock.
unsafe impl Sync for Cursor {}

impl Default for Cursor {
    fn default() -> Self {
        Self { lock: RawMutex::INIT, wc: UnsafeCell::new(None), left: UnsafeCell::new(None) }
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

    /// Begins a batch of completions of which `left` are in the queue.
    ///
    /// # Safety
    /// This thread has locked it.
    pub(crate) unsafe fn begin_batch(&self, left: usize) {
        // SAFETY: only the thread that holds the lock, which is this one, accesses the field.
        unsafe { *self.left.get() = Some(left) };
    }

    /// Counts a completion of the batch. False once when the batch is at its end: completions that are added while a program handles
    /// the batch have an event of their own, and a program that sleeps for it after the batch must find them in the queue then.
    ///
    /// # Safety
    /// This thread has locked it.
    pub(crate) unsafe fn continues(&self) -> bool {
        // SAFETY: only the thread that holds the lock, which is this one, accesses the field.
        let left = unsafe { &mut *self.left.get() };
        let continues = *left != Some(0);
        *left = left.and_then(|left| left.checked_sub(1));
        continues
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

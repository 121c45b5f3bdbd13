//! State that a program locks with one call and unlocks with a later one: the completion that it
//! reads field by field from `ibv_start_poll` to `ibv_end_poll`, and the requests that it builds
//! from `ibv_wr_start` to `ibv_wr_complete`.

use parking_lot::{Mutex, MutexGuard};
use std::marker::PhantomData;
use uiw_cabi_core::arguments::Argument;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::object::{Body, Object};

/// Lock that remains locked after the call that takes it.
#[derive(Default)]
pub(crate) struct CallLock<T>(Mutex<T>);

impl<T> CallLock<T> {
    /// Waits for the lock. The caller forgets the guard to keep the lock.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }

    /// Returns whether a thread has locked the state.
    pub(crate) fn is_locked(&self) -> bool {
        self.0.is_locked()
    }
}

/// Object with a state that is locked across calls.
pub(crate) trait Batched: Body {
    /// The locked state.
    type State;
    /// Returns the lock of the state.
    ///
    /// # Errors
    /// EINVAL for an object that was created without this state.
    fn state(&self) -> Result<&CallLock<Self::State>>;
}

/// Like [`TableHandle`](uiw_cabi_core::arguments::TableHandle), for functions that C calls on the
/// thread that has locked the object's state, before that thread unlocks it: between
/// `ibv_start_poll` and `ibv_end_poll` (ibv_create_cq_ex(3)), or between `ibv_wr_start` and
/// `ibv_wr_complete` or `ibv_wr_abort` (ibv_wr_post(3)). If the call posts requests, their memory
/// stays registered until they complete, and until then the program neither writes the memory of a
/// source nor accesses that of a target.
#[repr(transparent)]
pub(crate) struct BatchHandle<'a, B: Body>(*mut B::Abi, PhantomData<&'a Object<B>>);

// SAFETY: `repr(transparent)` gives the structure the representation of its only field that has a
// size.
unsafe impl<B: Body> Argument for BatchHandle<'_, B> {
    type C = *mut B::Abi;
}

impl<'a, B: Batched> BatchHandle<'a, B> {
    #[inline]
    fn get(&self) -> Result<&'a Object<B>> {
        // SAFETY: the pointer is NULL or points to a live object of the kind of `B`, which the
        // program does not destroy during the call, the end of `'a`. `TableHandle` requires both,
        // and this type requires the same.
        unsafe { Object::get_called(self.0.cast()) }
    }

    /// Calls `body` with the object and its state.
    #[inline]
    pub(crate) fn with<R>(
        &mut self,
        body: impl FnOnce(&'a Object<B>, &mut B::State) -> Result<R>,
    ) -> Result<R> {
        let object = self.get()?;
        // SAFETY: this thread locked the state before this call, as the type requires, so no other
        // thread accesses it. It forgot the guard, so no other reference exists on this thread,
        // except through this handle, which is borrowed mutably. `object` keeps the state alive.
        body(object, unsafe { &mut *object.state()?.0.data_ptr() })
    }

    /// Unlocks the state, if it is locked.
    #[inline]
    pub(crate) fn unlock(self) -> Result<()> {
        let lock = self.get()?.state()?;
        if lock.is_locked() {
            // SAFETY: this thread has locked the state, as the type requires, and has forgotten the
            // guard, so nothing else unlocks it. The handle is consumed, so no reference to the
            // state exists.
            unsafe { lock.0.force_unlock() };
        }
        Ok(())
    }
}

//! Structures that both C and this library read and write.

use crate::abi::{PlainAbi, zeroed};
use std::cell::UnsafeCell;
use std::ptr;

/// Structure of C at a fixed address: the first field of an [`Object`](crate::object::Object).
///
/// Fields are copied in and out one at a time, and this library never creates a reference to the
/// structure, because C may read and write it at any time. The program orders its own accesses to a
/// field with the calls that change the field, as the manual pages require, and calls for one object
/// that must not be made at the same time. This library holds a lock of the object while it writes a
/// field that calls may otherwise write at the same time.
#[repr(transparent)]
pub struct AbiCell<T>(UnsafeCell<T>);

// SAFETY: `new` is the only way to create a cell, so `T` is a `PlainAbi` structure. It owns nothing
// that is tied to a thread: its pointers belong to C, and a cell only copies them. Code that
// follows a copied pointer states at that place why the object is alive.
unsafe impl<T> Send for AbiCell<T> {}
// SAFETY: fields are only copied in and out, by volatile accesses through raw pointers, and no
// reference to the structure or to a field is ever created. The documentation of the type says who
// orders an access and a write.
unsafe impl<T> Sync for AbiCell<T> {}

impl<T: PlainAbi> AbiCell<T> {
    /// Creates a cell that contains `value`.
    pub const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Returns the pointer for C.
    pub const fn as_ptr(&self) -> *mut T {
        self.0.get()
    }

    /// Returns a pointer to the field that `field` selects.
    #[inline]
    fn pointer<F: Copy>(&self, field: impl FnOnce(&T) -> &F) -> *mut F {
        let like: T = zeroed();
        let offset = ptr::from_ref(field(&like)).addr().wrapping_sub(ptr::from_ref(&like).addr());
        let end = offset.checked_add(size_of::<F>());
        assert!(end.is_some_and(|end| end <= size_of::<T>()), "the closure selects a field");
        self.0.get().wrapping_byte_add(offset).cast()
    }

    /// Returns a copy of the field that `field` selects.
    #[inline]
    pub fn get<F: Copy>(&self, field: impl FnOnce(&T) -> &F) -> F {
        // SAFETY: `pointer` returns the address of a field of type `F` inside the structure,
        // aligned because `field` borrows it, and alive because `self` is borrowed. All values that
        // C stores are valid for a `PlainAbi`. No write races with it, as the documentation of the
        // type says.
        unsafe { self.pointer(field).read_volatile() }
    }

    /// Sets the field that `field` selects.
    #[inline]
    pub fn set<F: Copy>(&self, field: impl FnOnce(&T) -> &F, value: F) {
        // SAFETY: `pointer` returns the address of a field of type `F` inside the structure,
        // aligned because `field` borrows it, and alive because `self` is borrowed. The
        // `UnsafeCell` permits the write. No access races with it, as the documentation of the type
        // says.
        unsafe { self.pointer(field).write_volatile(value) };
    }

    /// Sets the field that `field` selects, and returns its previous value.
    pub fn replace<F: Copy>(&self, field: impl Fn(&T) -> &F, value: F) -> F {
        let before = self.get(&field);
        self.set(field, value);
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::ibv_qp_ex;

    #[test]
    fn fields_read_and_written_alone() {
        let cell = AbiCell::new(zeroed::<ibv_qp_ex>());
        cell.set(|qp| &qp.qp_base.state, 3);
        assert_eq!(cell.replace(|qp| &qp.wr_id, 7), 0);
        assert_eq!((cell.get(|qp| &qp.qp_base.state), cell.get(|qp| &qp.wr_id)), (3, 7));
        assert_eq!((cell.get(|qp| &qp.qp_base.qp_type), cell.get(|qp| &qp.wr_flags)), (0, 0));
    }

    #[test]
    #[should_panic = "the closure selects a field"]
    fn place_outside_refused() {
        static OTHER: u64 = 1;
        AbiCell::new(zeroed::<ibv_qp_ex>()).set(|_| &OTHER, 2);
    }

    #[test]
    #[should_panic = "the closure selects a field"]
    fn larger_place_outside_refused() {
        static OTHER: [u64; 100] = [1; 100];
        AbiCell::new(zeroed::<ibv_qp_ex>()).get(|_| &OTHER);
    }
}

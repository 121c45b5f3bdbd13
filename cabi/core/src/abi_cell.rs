//! Structures that both C and this library read and write.

use crate::abi::{PlainAbi, zeroed};
use std::cell::UnsafeCell;
use std::mem::transmute_copy;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, Ordering::Relaxed};

/// Structure of C at a fixed address: the first field of an [`Object`](crate::object::Object).
///
/// This library never creates a reference to the structure, because C may read and write it at any
/// time. It accesses one field at a time, atomically, so calls of several threads may read and set
/// the same field. Longer fields, such as the addresses of an id, are only set, under a lock of the
/// object. C's own accesses are not atomic: the program orders its access to a field with the calls
/// that change the field, as the manual pages require.
#[repr(transparent)]
pub struct AbiCell<T>(UnsafeCell<T>);

// SAFETY: `new` is the only way to create a cell, so `T` is a `PlainAbi` structure. It owns nothing
// that is tied to a thread: its pointers belong to C, and a cell only copies them. Code that
// follows a copied pointer states at that place why the object is alive.
unsafe impl<T> Send for AbiCell<T> {}
// SAFETY: no reference to the structure or to a field is ever created. `get` and `set` access
// fields atomically, and the callers of `set_long`, which is for the other fields, hold a lock. The
// program orders C's accesses, as the type's documentation says.
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

    /// Returns a pointer to the field that `field` selects: inside the structure, and aligned,
    /// because `field` borrows the field. It is valid while `self` is borrowed.
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
        const { assert!(is_atomic::<F>()) }
        let at = self.pointer(field);
        // SAFETY: `pointer` returns an aligned field of type `F`, alive while `self` is borrowed.
        // `F` has the size and the alignment of the atomic type, as asserted, and any value that C
        // stores is one of `F` (`PlainAbi`). This library writes the field atomically, and the
        // program orders C's accesses (see the type).
        unsafe {
            match size_of::<F>() {
                1 => transmute_copy(&AtomicU8::from_ptr(at.cast()).load(Relaxed)),
                2 => transmute_copy(&AtomicU16::from_ptr(at.cast()).load(Relaxed)),
                4 => transmute_copy(&AtomicU32::from_ptr(at.cast()).load(Relaxed)),
                _ => transmute_copy(&AtomicPtr::<u8>::from_ptr(at.cast()).load(Relaxed)),
            }
        }
    }

    /// Sets the field that `field` selects.
    #[inline]
    pub fn set<F: Copy>(&self, field: impl FnOnce(&T) -> &F, value: F) {
        const { assert!(is_atomic::<F>()) }
        let at = self.pointer(field);
        // SAFETY: `pointer` returns an aligned field of type `F`, alive while `self` is borrowed,
        // and the `UnsafeCell` permits writes. `F` has the size and the alignment of the atomic
        // type, as asserted, so this library only accesses the field atomically, and the copy has
        // the right size. The program orders C's accesses.
        unsafe {
            match size_of::<F>() {
                1 => AtomicU8::from_ptr(at.cast()).store(transmute_copy(&value), Relaxed),
                2 => AtomicU16::from_ptr(at.cast()).store(transmute_copy(&value), Relaxed),
                4 => AtomicU32::from_ptr(at.cast()).store(transmute_copy(&value), Relaxed),
                _ => AtomicPtr::<u8>::from_ptr(at.cast()).store(transmute_copy(&value), Relaxed),
            }
        }
    }

    /// Sets a field that is too long for [`AbiCell::set`].
    ///
    /// # Safety
    /// The caller holds a lock of the object with which it sets this field.
    pub unsafe fn set_long<F: Copy>(&self, field: impl FnOnce(&T) -> &F, value: F) {
        // SAFETY: `pointer` returns an aligned field of type `F`, alive while `self` is borrowed,
        // and the `UnsafeCell` permits writes. `get` and `set` do not compile for such a field, and
        // the caller's lock excludes other calls of this function. The program orders C's accesses.
        unsafe { self.pointer(field).write_volatile(value) };
    }

    /// Sets the field that `field` selects, and returns its previous value.
    pub fn replace<F: Copy>(&self, field: impl Fn(&T) -> &F, value: F) -> F {
        let before = self.get(&field);
        self.set(field, value);
        before
    }
}

/// Returns whether values of `F` have the size and the alignment of an atomic type.
const fn is_atomic<F>() -> bool {
    matches!((size_of::<F>(), align_of::<F>()), (1, 1) | (2, 2) | (4, 4) | (8, 8))
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
        AbiCell::new(zeroed::<ibv_qp_ex>()).pointer(|_| &OTHER);
    }
}

//! The C library: its heap, and its functions of which this library exports its own.

use std::ffi::CStr;
use std::ptr;

/// The C library's function of this name; 0 where there is none.
#[must_use]
pub fn function(name: &CStr) -> usize {
    // SAFETY: a name with its NUL.
    let behind = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }.addr();
    if behind != 0 {
        return behind;
    }
    // The C library is in front of this one: a program that needs librdmacm and not libibverbs has the libraries in this order.
    // SAFETY: as above.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.addr()
}

/// A copy on the C library's heap, which the program frees; NULL if there is no memory for it, and for no items.
pub(crate) fn copy_to_heap<T: Copy>(items: &[T]) -> *mut T {
    if items.is_empty() {
        return ptr::null_mut();
    }
    // SAFETY: takes an integer alone.
    let copy = unsafe { libc::malloc(size_of_val(items)) }.cast::<T>();
    if !copy.is_null() {
        // SAFETY: the memory is new, as long as the items, and aligned for every type.
        unsafe { ptr::copy_nonoverlapping(items.as_ptr(), copy, items.len()) };
    }
    copy
}

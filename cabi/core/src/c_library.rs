//! The C library: its heap, and its functions of which this library exports its own.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{mem, ptr};

/// Argument of a call of one of the C library's functions, which has the lifetime `'a` in common
/// with the call's other arguments.
///
/// The program promises with it what the manual page of the function asks. It goes on, unchanged,
/// to the C library's function. The program makes the values; Rust makes them with
/// [`PassedValue::new`], which is unsafe.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct PassedValue<'a, T>(T, PhantomData<fn(&'a ()) -> &'a ()>);

impl<T: Copy> PassedValue<'_, T> {
    /// # Safety
    /// The value is one that the manual page of the function permits to which it is given, with the
    /// other arguments of the same lifetime.
    pub const unsafe fn new(value: T) -> Self {
        Self(value, PhantomData)
    }

    /// The value.
    pub const fn get(self) -> T {
        self.0
    }
}

/// Function of the C library of which this library exports its own.
///
/// # Safety
/// `Type` is its type, with arguments that carry the promises of its manual page.
pub unsafe trait NextFunction {
    /// Name of the function.
    const NAME: &CStr;
    /// Type of the function pointer.
    type Type;

    /// Returns the cell that caches the address of the function; 0 before the first call.
    fn address_cell() -> &'static AtomicUsize;

    /// The function, if there is one.
    fn get() -> Option<Self::Type> {
        let mut address = Self::address_cell().load(Ordering::Relaxed);
        if address == 0 {
            address = find(libc::RTLD_NEXT, Self::NAME);
            if address == 0 {
                // The C library is in front of this one: a program that needs librdmacm and not
                // libibverbs has the libraries in this order.
                address = find(libc::RTLD_DEFAULT, Self::NAME);
            }
            Self::address_cell().store(address, Ordering::Relaxed);
        }
        const { assert!(size_of::<Option<Self::Type>>() == size_of::<usize>()) };
        // SAFETY: the function of this name has this type, as the implementation promises, and 0 is
        // `None`.
        unsafe { mem::transmute_copy::<usize, Option<Self::Type>>(&address) }
    }
}

fn find(where_from: *mut c_void, name: &CStr) -> usize {
    // SAFETY: the name ends in NUL.
    unsafe { libc::dlsym(where_from, name.as_ptr()) }.addr()
}

/// A copy on the C library's heap, which the program frees; NULL if there is no memory for it, and
/// for no items.
pub fn copy_to_heap<T: Copy>(items: &[T]) -> *mut T {
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

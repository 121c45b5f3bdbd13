//! The C library: its heap, and those of its functions that this library interposes.

use crate::arguments::OutPtr;
use crate::boundary::Result;
use crate::errno::Errno;
use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{mem, ptr};

/// Argument of a function of the C library. The lifetime `'a` is shared with the other arguments of
/// the same call.
///
/// The value satisfies the manual page of the function, because the program has passed it, and it
/// is passed on unchanged to the function of the C library, in the same call. Rust code creates
/// values with [`PassedValue::new`], which is unsafe.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct PassedValue<'a, T>(T, PhantomData<fn(&'a ()) -> &'a ()>);

impl<T: Copy> PassedValue<'_, T> {
    /// Wraps a value.
    ///
    /// # Safety
    /// The manual page of the function to which the value is passed permits it, together with the
    /// other arguments of the same lifetime, until the function returns.
    pub const unsafe fn new(value: T) -> Self {
        Self(value, PhantomData)
    }

    /// Returns the value.
    pub const fn get(self) -> T {
        self.0
    }
}

/// Function of the C library that this library interposes.
///
/// # Safety
/// `Type` is the type of a function pointer, of the function with the name `NAME` in the C library.
/// If it is safe to call, its arguments carry the guarantees of the function's manual page.
pub unsafe trait NextFunction {
    /// Name of the function.
    const NAME: &CStr;
    /// Type of the function pointer.
    type Type;

    /// Returns the cell that caches the address of the function; 0 before the first call. Each type
    /// has its own cell, which only [`NextFunction::get`] uses.
    fn address_cell() -> &'static AtomicUsize;

    /// Returns the function of the next library, or `None` if there is none.
    fn get() -> Option<Self::Type> {
        let mut address = Self::address_cell().load(Ordering::Relaxed);
        if address == 0 {
            address = find(libc::RTLD_NEXT, Self::NAME);
            if address == 0 {
                // The C library comes before this library in the search order, as in a program that
                // is linked with librdmacm but not with libibverbs.
                address = find(libc::RTLD_DEFAULT, Self::NAME);
            }
            Self::address_cell().store(address, Ordering::Relaxed);
        }
        const { assert!(size_of::<Option<Self::Type>>() == size_of::<usize>()) };
        // SAFETY: `address` is 0, which is `None`, or that of the function `NAME`, because only
        // this function stores in the cell. The trait requires that it has the type `Type`, which
        // has this size, as asserted above. It is in the C library or in a library that was loaded
        // before that one, at the start of the process, and neither is ever unloaded.
        unsafe { mem::transmute_copy::<usize, Option<Self::Type>>(&address) }
    }
}

fn find(where_from: *mut c_void, name: &CStr) -> usize {
    // SAFETY: the name is a borrowed `CStr`, which ends in NUL, and both callers pass a handle that
    // dlsym(3) accepts.
    unsafe { libc::dlsym(where_from, name.as_ptr()) }.addr()
}

/// Returns a copy on the C library's heap, which the program frees. Returns NULL if there are no
/// items or no memory.
pub fn copy_to_heap<T: Copy>(items: &[T]) -> *mut T {
    const { assert!(align_of::<T>() <= align_of::<libc::max_align_t>()) };
    if items.is_empty() {
        return ptr::null_mut();
    }
    // SAFETY: the call takes only an integer, and a failure returns NULL, which is checked below.
    let copy = unsafe { libc::malloc(size_of_val(items)) }.cast::<T>();
    if !copy.is_null() {
        // SAFETY: the memory is new, so it does not overlap `items` and nothing else uses it. It
        // has the size of `items`, which is borrowed, and malloc(3) aligns it for every type of C,
        // and so for `T`, as asserted above.
        unsafe { ptr::copy_nonoverlapping(items.as_ptr(), copy, items.len()) };
    }
    copy
}

/// Copies a list of pointers to the C library's heap, followed by NULL, and stores its length in
/// `count` if that is not NULL; 0 if there is an error.
///
/// # Errors
/// The error of `list`, or ENOMEM.
pub fn list_to_heap<T>(list: Result<Vec<*mut T>>, count: OutPtr<'_, c_int>) -> Result<*mut *mut T> {
    let array = list.and_then(|mut list| {
        let length = c_int::try_from(list.len()).unwrap_or(c_int::MAX);
        list.push(ptr::null_mut());
        match copy_to_heap(&list) {
            array if array.is_null() => Err(Errno::NOMEM.because("out of memory for the list")),
            array => Ok((array, length)),
        }
    });
    if !count.is_null() {
        count.write(array.as_ref().map_or(0, |(_, length)| *length))?;
    }
    array.map(|(array, _)| array)
}

//! Functions of the C library of which this library exports its own.

use std::ffi::CStr;

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

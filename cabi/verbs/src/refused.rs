//! Functions that are not offered, with the results of rdma-core. One function serves exports with
//! any parameters, because in C's calling convention the caller passes and removes the arguments,
//! and these functions do not read them.

use std::ffi::{c_int, c_void};
use std::ptr;
use uiw_cabi_core::errno::Errno;

/// Sets `errno`, and logs that a function is not offered.
fn refuse(errno: Errno) -> Errno {
    let errno = errno.because("the function is not offered, see docs/verbs.md");
    errno.set();
    errno
}

/// Fails for functions that return an error number: ECE, counters, commands to a kernel driver.
pub extern "C" fn unsupported() -> c_int {
    refuse(Errno::UNSUPPORTED).0
}

/// Fails for functions that return -1 and `errno`.
pub extern "C" fn unsupported_minus_one() -> c_int {
    refuse(Errno::UNSUPPORTED);
    -1
}

/// Fails for functions that return an object.
pub extern "C" fn unsupported_null() -> *mut c_void {
    refuse(Errno::UNSUPPORTED);
    ptr::null_mut()
}

/// Does nothing. This is for functions that return nothing, and for those that vendors' libraries
/// call when they are loaded.
pub extern "C" fn nothing() {}

/// Returns 0, for functions whose result 0 means "no" or "none".
pub extern "C" fn zero() -> c_int {
    0
}

/// Fails for the functions of libibverbs 1.0 (2006). They take structures that no later header has,
/// so they are not implemented.
pub extern "C" fn old() -> c_int {
    refuse(Errno::NOSYS).0
}

/// Like [`old`], for functions that return an object.
pub extern "C" fn old_null() -> *mut c_void {
    refuse(Errno::NOSYS);
    ptr::null_mut()
}

//! Address information on C's heap.

use crate::abi::rdma_addrinfo;
use std::ffi::{c_int, c_void};
use std::ptr;

/// The result of a look-up: the head of a list, or an error of the C library (`EAI_*`).
pub(crate) struct Resolved(Result<*mut rdma_addrinfo, c_int>);

// SAFETY: the list is on C's heap and belongs to this value, on whatever thread that is.
unsafe impl Send for Resolved {}

impl Drop for Resolved {
    fn drop(&mut self) {
        if let Ok(list) = self.0 {
            // SAFETY: the list that `new` was given, and not handed out.
            unsafe { rdma_freeaddrinfo(list) };
        }
    }
}

impl Resolved {
    /// # Safety
    /// A list is one that [`rdma_freeaddrinfo`] may free, and nothing else does.
    pub(crate) unsafe fn new(result: Result<*mut rdma_addrinfo, c_int>) -> Self {
        Self(result)
    }

    /// The error, or 0.
    pub(crate) fn error(&self) -> c_int {
        self.0.err().unwrap_or(0)
    }

    /// The list, which the caller frees.
    ///
    /// # Errors
    /// The C library's.
    pub(crate) fn take(mut self) -> Result<*mut rdma_addrinfo, c_int> {
        std::mem::replace(&mut self.0, Err(0))
    }
}

/// `rdma_freeaddrinfo`.
///
/// # Safety
/// `res` is NULL or a list of `rdma_getaddrinfo`.
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    let mut next = res;
    while !next.is_null() {
        // SAFETY: the caller's promise: every part is on C's heap or NULL.
        unsafe {
            let one = ptr::read(next);
            for part in
                [one.ai_route, one.ai_connect, one.ai_src_addr.cast::<c_void>(), one.ai_dst_addr.cast()]
            {
                libc::free(part);
            }
            libc::free(one.ai_src_canonname.cast());
            libc::free(one.ai_dst_canonname.cast());
            libc::free(next.cast());
            next = one.ai_next;
        }
    }
}

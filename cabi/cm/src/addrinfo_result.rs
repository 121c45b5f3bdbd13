//! Address information on C's heap.

use std::ffi::{c_int, c_void};
use std::ptr;
use uiw_cabi_core::abi::rdma_addrinfo;
use uiw_cabi_core::arguments::{HeapPtr, argument};

/// Result of a look-up: the head of a list, or an error of the C library (`EAI_*`).
pub(crate) struct AddrinfoResult(Result<*mut rdma_addrinfo, c_int>);

// SAFETY: the list is memory of C's heap, which any thread may read and free, and only this value
// refers to it, as `new` requires.
unsafe impl Send for AddrinfoResult {}

impl Drop for AddrinfoResult {
    fn drop(&mut self) {
        if let Ok(list) = self.0 {
            // SAFETY: `HeapPtr` permits the list: it is memory of C's heap that this library has
            // allocated, and only this value refers to it, as `new` requires. It is freed once:
            // `drop` runs once, and `take` replaces a list that it returns by an error.
            rdma_freeaddrinfo(unsafe { argument(list) });
        }
    }
}

impl AddrinfoResult {
    /// Wraps a result.
    ///
    /// # Safety
    /// If `result` is a list, it is one that [`rdma_freeaddrinfo`] may free: its elements and their
    /// parts are blocks of C's heap that this library allocated, or NULL. Nothing else refers to
    /// them.
    pub(crate) unsafe fn new(result: Result<*mut rdma_addrinfo, c_int>) -> Self {
        Self(result)
    }

    /// Returns the error, or 0.
    pub(crate) fn error(&self) -> c_int {
        self.0.err().unwrap_or(0)
    }

    /// Returns the list, which the caller has to free.
    ///
    /// # Errors
    /// The error of the C library.
    pub(crate) fn take(mut self) -> Result<*mut rdma_addrinfo, c_int> {
        std::mem::replace(&mut self.0, Err(0))
    }
}

/// `rdma_freeaddrinfo`. The program may have freed or replaced parts of the list itself, if it has
/// stored NULL, or another block of C's heap that nothing else frees, in their place. A block in
/// the place of the next element is an element, too.
pub extern "C" fn rdma_freeaddrinfo(list: HeapPtr<'_, rdma_addrinfo>) {
    let mut next = list.as_ptr();
    while !next.is_null() {
        // SAFETY: `next` is an initialized, aligned element on C's heap, which nothing uses any
        // more (`HeapPtr`), and its parts are NULL or blocks of that heap that nothing else frees:
        // `AddressQuery::convert` made them, or the program, as documented above. The element is
        // copied before it is freed, as the last of these blocks.
        unsafe {
            let one = ptr::read(next);
            let addresses = [one.ai_src_addr.cast::<c_void>(), one.ai_dst_addr.cast()];
            let names = [one.ai_src_canonname.cast(), one.ai_dst_canonname.cast()];
            for part in addresses.into_iter().chain(names).chain([
                one.ai_route,
                one.ai_connect,
                next.cast(),
            ]) {
                libc::free(part);
            }
            next = one.ai_next;
        }
    }
}

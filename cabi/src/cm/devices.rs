//! The connection manager's devices: one context each, the same for every id.

use crate::abi::ibv_context;
use crate::boundary;
use crate::errno::Errno;
use crate::{context, device};
use std::ffi::c_int;
use std::ptr;

/// `rdma_get_devices`.
///
/// # Safety
/// `count` is NULL or writable.
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    boundary::pointer(|| {
        let devices = device::list()?;
        if devices.is_empty() {
            return Err(Errno::NODEV);
        }
        let mut list = Vec::with_capacity(devices.len() + 1);
        for device in devices {
            list.push(context::shared(device)?);
        }
        if !count.is_null() {
            // SAFETY: the caller's promise.
            unsafe { *count = list.len() as c_int };
        }
        list.push(ptr::null_mut());
        // SAFETY: memory of C's heap, large enough for the copy; `rdma_free_devices` frees it.
        unsafe {
            let array = libc::malloc(size_of_val(list.as_slice())).cast::<*mut ibv_context>();
            if array.is_null() {
                return Err(Errno::NOMEM);
            }
            ptr::copy_nonoverlapping(list.as_ptr(), array, list.len());
            Ok(array)
        }
    })
}

/// `rdma_free_devices`. The devices stay open.
///
/// # Safety
/// `list` is NULL or came out of [`rdma_get_devices`].
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the caller's promise.
    unsafe { libc::free(list.cast()) };
}

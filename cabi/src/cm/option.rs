//! `rdma_set_option`, and the extended connection establishment of vendors, which is not offered.

use crate::abi::cm::*;
use crate::abi::{self, ibv_ece, rdma_cm_id};
use crate::boundary::{self, Result};
use crate::cm::registry;
use crate::errno::Errno;
use std::ffi::{c_int, c_void};

/// `rdma_set_option`. An acknowledgement time-out is InfiniBand's: it becomes the queue pair's attribute, and TCP has its own.
///
/// # Safety
/// `value` is NULL or `len` readable bytes.
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    boundary::minus_one(|| {
        let id = registry::id(id)?;
        if level != RDMA_OPTION_ID {
            return Err(Errno::NOSYS.because("an option of another level than the id's"));
        }
        let mut state = id.lock_alive().ok_or_else(|| Errno::INVAL.destroyed())?;
        // SAFETY: the caller's promise.
        unsafe {
            match name {
                RDMA_OPTION_ID_TOS => state.options.tos = Some(value_of::<u8>(value, len)?),
                RDMA_OPTION_ID_REUSEADDR => state.options.reuse = value_of::<c_int>(value, len)? != 0,
                RDMA_OPTION_ID_AFONLY => state.options.v6_only = value_of::<c_int>(value, len)? != 0,
                RDMA_OPTION_ID_ACK_TIMEOUT => state.options.ack_timeout = Some(value_of::<u8>(value, len)?),
                _ => return Err(Errno::NOSYS.because("an option that is not known")),
            }
        }
        Ok(())
    })
}

/// # Safety
/// `value` is NULL or `len` readable bytes; any bytes are a `T`.
unsafe fn value_of<T: Copy>(value: *const c_void, len: usize) -> Result<T> {
    if value.is_null() || len != size_of::<T>() {
        return Err(Errno::INVAL.because("the value of an option is NULL or has another length"));
    }
    // SAFETY: the caller's promise; C need not have aligned it.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// `rdma_set_local_ece`: accepted before there is a queue pair, and not sent.
///
/// # Safety
/// `ece` is NULL or readable.
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    boundary::minus_one(|| {
        let id = registry::id(id)?;
        // SAFETY: the caller's promise.
        let vendor = unsafe { ece.as_ref() }.ok_or_else(|| Errno::INVAL.null())?.vendor_id;
        if id.own_qp().is_some() || vendor == 0 {
            return Err(
                Errno::INVAL.because("vendor options of an id with a queue pair of its own, or of no vendor")
            );
        }
        Ok(())
    })
}

/// `rdma_get_remote_ece`: always empty.
///
/// # Safety
/// `ece` is NULL or writable.
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    boundary::minus_one(|| {
        let id = registry::id(id)?;
        if id.own_qp().is_some() || ece.is_null() {
            return Err(Errno::INVAL
                .because("vendor options of an id with a queue pair of its own, or no place for them"));
        }
        // SAFETY: the caller's promise; integers.
        unsafe { *ece = abi::zeroed() };
        Ok(())
    })
}

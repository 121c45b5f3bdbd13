//! Multicast, which iWARP does not have: refused as the kernel does for an iWARP device.

use crate::abi::{rdma_cm_id, rdma_cm_join_mc_attr_ex};
use crate::boundary;
use crate::cm::registry;
use crate::errno::Errno;
use std::ffi::{c_int, c_void};

/// `rdma_join_multicast`.
///
/// # Safety
/// None: only the id is used.
pub unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    _addr: *mut libc::sockaddr,
    _context: *mut c_void,
) -> c_int {
    refuse(id)
}

/// `rdma_join_multicast_ex`.
///
/// # Safety
/// As [`rdma_join_multicast`].
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    _attr: *mut rdma_cm_join_mc_attr_ex,
    _context: *mut c_void,
) -> c_int {
    refuse(id)
}

fn refuse(id: *mut rdma_cm_id) -> c_int {
    boundary::minus_one(|| {
        Err(registry::id(id).map_or_else(|errno| errno, |_| Errno::NOSYS.because("iWARP has no multicast")))
    })
}

/// `rdma_leave_multicast`: no group can have been joined.
///
/// # Safety
/// As [`rdma_join_multicast`].
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, _addr: *mut libc::sockaddr) -> c_int {
    boundary::minus_one(|| {
        let none = || Errno(libc::EADDRNOTAVAIL).because("iWARP has no multicast");
        Err(registry::id(id).map_or_else(|errno| errno, |_| none()))
    })
}

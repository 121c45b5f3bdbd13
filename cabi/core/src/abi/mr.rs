//! Protection domains, memory regions and windows.

use super::*;
use std::ffi::{c_int, c_uint, c_void};

#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}
layout!(ibv_pd: 16 { context: 0, handle: 8 });

#[repr(C)]
pub struct ibv_td {
    pub context: *mut ibv_context,
}

#[repr(C)]
pub struct ibv_td_init_attr {
    pub comp_mask: u32,
}

#[repr(C)]
pub struct ibv_parent_domain_init_attr {
    pub pd: *mut ibv_pd,
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc: *mut c_void,
    pub free: *mut c_void,
    pub pd_context: *mut c_void,
}

#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}
layout!(ibv_mr: 48 { pd: 8, addr: 16, length: 24, handle: 32, lkey: 36, rkey: 40 });

/// Buffer of `ibv_mr_init_attr`. The type is opaque in the header.
#[repr(C)]
pub struct ibv_buf {
    pub addr: *mut c_void,
    pub size: usize,
}

/// `ibv_dmah`, which no function of this library creates.
pub type ibv_dmah = c_void;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_mr_init_attr {
    pub length: usize,
    pub access: c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut c_void,
    pub fd: c_int,
    pub fd_offset: u64,
    pub dmah: *mut ibv_dmah,
    pub buf: *mut ibv_buf,
}
layout!(ibv_mr_init_attr: 72 { access: 8, comp_mask: 16, iova: 24, addr: 32, fd: 40, fd_offset: 48, dmah: 56, buf: 64 });

pub const IBV_REG_MR_MASK_IOVA: u64 = 1 << 0;
pub const IBV_REG_MR_MASK_ADDR: u64 = 1 << 1;
pub const IBV_REG_MR_MASK_FD: u64 = 1 << 2;
pub const IBV_REG_MR_MASK_FD_OFFSET: u64 = 1 << 3;
pub const IBV_REG_MR_MASK_BUF: u64 = 1 << 5;

/// LOCAL_WRITE, REMOTE_WRITE, REMOTE_ATOMIC, MW_BIND: rights for which the kernel pins pages for
/// writing (`ib_access_writable`).
pub const IBV_ACCESS_WRITABLE: c_uint = 1 | 2 | 8 | 16;
pub const IBV_ACCESS_ON_DEMAND: c_uint = 1 << 6;
pub const IBV_ACCESS_HUGETLB: c_uint = 1 << 7;
/// Flags that a device may ignore, relaxed ordering among them.
pub const IBV_ACCESS_OPTIONAL_RANGE: c_uint = 0x3FF0_0000;

pub const IBV_REREG_MR_CHANGE_TRANSLATION: c_int = 1;
pub const IBV_REREG_MR_CHANGE_PD: c_int = 2;
pub const IBV_REREG_MR_CHANGE_ACCESS: c_int = 4;

#[repr(C)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub r#type: c_int,
}
layout!(ibv_mw: 32 { pd: 8, rkey: 16, handle: 20, r#type: 24 });

pub const IBV_MW_TYPE_1: c_int = 1;
pub const IBV_MW_TYPE_2: c_int = 2;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

#[repr(C)]
pub struct ibv_mw_bind {
    pub wr_id: u64,
    pub send_flags: c_uint,
    pub bind_info: ibv_mw_bind_info,
}
layout!(ibv_mw_bind: 48 { wr_id: 0, send_flags: 8, bind_info: 16, bind_info.length: 32, bind_info.mw_access_flags: 40 });

/// Header that precedes a received datagram. Numbers are big-endian.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_grh {
    pub version_tclass_flow: u32,
    pub paylen: u16,
    pub next_hdr: u8,
    pub hop_limit: u8,
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
}
layout!(ibv_grh: 40 { paylen: 4, next_hdr: 6, hop_limit: 7, sgid: 8, dgid: 24 });

#[repr(C)]
pub struct ibv_ah {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: u32,
}
layout!(ibv_ah: 24 { handle: 16 });

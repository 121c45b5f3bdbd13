//! Contexts. The last part of a `verbs_context` is the `ibv_context` to which applications have
//! pointers.

use super::*;
use std::ffi::{c_int, c_uint, c_void};

/// Slot that stays empty, because it has not been called since 2006 or the operation is not
/// supported.
pub type unused = *mut c_void;

#[repr(C)]
pub struct ibv_context_ops {
    pub _compat_1: [unused; 7],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw>,
    pub bind_mw:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *const ibv_mw_bind) -> c_int>,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    pub _compat_create_cq: unused,
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub _compat_2: [unused; 7],
    pub post_srq_recv: Option<
        unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    >,
    pub _compat_3: [unused; 4],
    pub post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub _compat_4: [unused; 5],
}
layout!(ibv_context_ops: 256 { alloc_mw: 56, bind_mw: 64, dealloc_mw: 72, poll_cq: 88, req_notify_cq: 96, post_srq_recv: 160, post_send: 200, post_recv: 208 });

#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: pthread_mutex,
    /// Marker: if all bits are set, this context is the last part of a [`verbs_context`].
    pub abi_compat: usize,
}
layout!(ibv_context: 328 { device: 0, ops: 8, cmd_fd: 264, async_fd: 268, num_comp_vectors: 272, mutex: 280, abi_compat: 320 });

#[repr(C)]
pub struct ibv_values_ex {
    pub comp_mask: u32,
    pub raw_clock: libc::timespec,
}
layout!(ibv_values_ex: 24 { comp_mask: 0, raw_clock: 8 });

/// Extended context with its table of functions. If a slot is empty, the inline functions of the
/// header return EOPNOTSUPP.
#[repr(C)]
pub struct verbs_context {
    pub query_port:
        Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    pub advise_mr:
        Option<unsafe extern "C" fn(*mut ibv_pd, c_int, u32, *const ibv_sge, u32) -> c_int>,
    pub alloc_null_mr: unused,
    pub counters: [unused; 4],
    pub reg_dm_mr: unused,
    pub alloc_dm: unused,
    pub free_dm: unused,
    pub flow_action_esp: [unused; 3],
    pub modify_qp_rate_limit: unused,
    pub alloc_parent_domain: Option<
        unsafe extern "C" fn(*mut ibv_context, *const ibv_parent_domain_init_attr) -> *mut ibv_pd,
    >,
    pub dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
    pub alloc_td:
        Option<unsafe extern "C" fn(*mut ibv_context, *const ibv_td_init_attr) -> *mut ibv_td>,
    pub modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int>,
    pub post_srq_ops: unused,
    pub rwq_ind_table: [unused; 2],
    pub wq: [unused; 3],
    pub query_rt_values:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
    pub create_cq_ex: Option<
        unsafe extern "C" fn(*mut ibv_context, *const ibv_cq_init_attr_ex) -> *mut ibv_cq_ex,
    >,
    pub private: *mut c_void,
    pub query_device_ex: Option<
        unsafe extern "C" fn(
            *mut ibv_context,
            *const c_uint,
            *mut ibv_device_attr_ex,
            usize,
        ) -> c_int,
    >,
    pub ibv_destroy_flow: unused,
    pub abi_placeholder2: unused,
    pub ibv_create_flow: unused,
    pub abi_placeholder1: unused,
    pub open_qp: unused,
    pub create_qp_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
    pub create_srq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub open_xrcd: unused,
    pub close_xrcd: unused,
    pub _abi_placeholder3: u64,
    pub sz: usize,
    pub context: ibv_context,
}
layout!(verbs_context: 648 { query_port: 0, advise_mr: 8, reg_dm_mr: 56, modify_qp_rate_limit: 104, alloc_parent_domain: 112, dealloc_td: 120, alloc_td: 128, modify_cq: 136, post_srq_ops: 144, query_rt_values: 192, create_cq_ex: 200, private: 208, query_device_ex: 216, ibv_create_flow: 240, open_qp: 256, create_qp_ex: 264, get_srq_num: 272, create_srq_ex: 280, sz: 312, context: 320 });

//! Opening and closing devices. This file fills the function tables of a context and is the only one that refers to every verb.

use crate::abi::{self, ibv_context, ibv_device, verbs_context};
use crate::boundary::{self, Result};
use crate::context::Context;
use crate::device::{self, Device};
use crate::{cq, cq_ex, engine, mr, mw, pd, post, qp, srq};
use std::ffi::{c_int, c_void};

/// Opens `device` once more, on the engine of the process.
///
/// # Errors
/// Those of opening the engine.
pub(crate) fn open(device: &'static Device) -> Result<*mut ibv_context> {
    open_on(device, &engine::get()?)
}

/// Opens `device` on `engine`.
///
/// # Errors
/// As [`Context::create`].
pub(crate) fn open_on(device: &'static Device, engine: &uiw_verbs::Device) -> Result<*mut ibv_context> {
    // Vector 0 lets the engine choose; every other one is a shard.
    let vectors = c_int::try_from(engine.shards() + 1).unwrap_or(c_int::MAX);
    Context::create(device, engine, functions(vectors))
}

/// The function tables through which programs call the verbs of a context, which has so many completion vectors.
fn functions(vectors: c_int) -> verbs_context {
    // SAFETY: integers, pointers and optional functions.
    let mut abi: verbs_context = unsafe { abi::zeroed() };
    abi.query_port = Some(device::port::query_port_long);
    abi.advise_mr = Some(mr::advise_mr);
    abi.alloc_parent_domain = Some(pd::alloc_parent_domain);
    abi.alloc_td = Some(pd::alloc_td);
    abi.dealloc_td = Some(pd::dealloc_td);
    abi.query_rt_values = Some(device::attributes::query_rt_values);
    abi.create_cq_ex = Some(cq_ex::create_cq_ex);
    abi.query_device_ex = Some(device::attributes::query_device_ex);
    abi.create_qp_ex = Some(qp::create_qp_ex);
    abi.get_srq_num = Some(srq::get_srq_num);
    abi.create_srq_ex = Some(srq::create_srq_ex);
    abi.sz = size_of::<verbs_context>();
    let context = &mut abi.context;
    context.ops.alloc_mw = Some(mw::alloc_mw);
    context.ops.bind_mw = Some(mw::bind_mw);
    context.ops.dealloc_mw = Some(mw::dealloc_mw);
    context.ops.poll_cq = Some(cq::poll_cq);
    context.ops.req_notify_cq = Some(cq::req_notify_cq);
    context.ops.post_srq_recv = Some(post::post_srq_recv);
    context.ops.post_send = Some(post::post_send);
    context.ops.post_recv = Some(post::post_recv);
    context.num_comp_vectors = vectors;
    context.abi_compat = usize::MAX;
    abi
}

/// `ibv_open_device`.
pub extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    boundary::pointer(|| open(Device::get(device)?))
}

/// `ibv_close_device`.
///
/// # Safety
/// `context` is NULL or one of ours, and no thread uses it any more.
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller's promise.
    boundary::minus_one(|| unsafe { Context::free(context) })
}

/// `ibv_fork_init`: nothing is pinned and no hardware writes, so there is nothing to prepare.
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`: `IBV_FORK_UNNEEDED`.
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

/// `ibv_dontfork_range` and `ibv_dofork_range`: nothing to do, as for [`ibv_fork_init`].
pub extern "C" fn fork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

//! Opening and closing devices. This file fills the function tables of a context, and is the only
//! one that refers to every verb.

use crate::context::{Context, OpenContext};
use crate::device::{self, Device};
use crate::{cq, cq_ex, mr, mw, pd, post, qp, srq};
use std::ffi::{c_int, c_void};
use uiw_cabi_core::abi::{ibv_context, ibv_device, verbs_context, zeroed};
use uiw_cabi_core::arguments::{OwnedHandle, c1, c2, c3, c4, c5};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::engine;

/// Opens `device` on the engine of the process.
///
/// # Errors
/// The errors of opening the engine, and of [`open_on`].
pub fn open(device: &'static Device) -> Result<*mut ibv_context> {
    open_on(device, &engine::get()?)
}

/// Opens `device` on `engine`.
///
/// # Errors
/// EINVAL if an environment variable has an invalid value, EMFILE.
pub fn open_on(device: &'static Device, engine: &uiw_verbs::Device) -> Result<*mut ibv_context> {
    // With vector 0 the engine chooses; every other vector stands for a shard.
    let vectors = c_int::try_from(engine.shards() + 1).unwrap_or(c_int::MAX);
    Context::create(device, engine, function_tables(vectors))
}

/// Returns the function tables through which programs call the verbs of a context. `vectors` is the
/// number of completion vectors.
fn function_tables(vectors: c_int) -> verbs_context {
    let mut abi: verbs_context = zeroed();
    abi.query_port = c4(device::port::query_port_long);
    abi.advise_mr = c5(mr::advise_mr);
    abi.alloc_parent_domain = c2(pd::alloc_parent_domain);
    abi.alloc_td = c2(pd::alloc_td);
    abi.dealloc_td = c1(pd::dealloc_td);
    abi.query_rt_values = c2(device::attributes::query_rt_values);
    abi.create_cq_ex = c2(cq_ex::create_cq_ex);
    abi.query_device_ex = c4(device::attributes::query_device_ex);
    abi.create_qp_ex = c2(qp::create_qp_ex);
    abi.get_srq_num = c2(srq::get_srq_num);
    abi.create_srq_ex = c2(srq::create_srq_ex);
    abi.sz = size_of::<verbs_context>();
    let context = &mut abi.context;
    context.ops.alloc_mw = c2(mw::alloc_mw);
    context.ops.bind_mw = c3(mw::bind_mw);
    context.ops.dealloc_mw = c1(mw::dealloc_mw);
    context.ops.poll_cq = c3(cq::poll_cq);
    context.ops.req_notify_cq = c2(cq::req_notify_cq);
    context.ops.post_srq_recv = c3(post::post_srq_recv);
    context.ops.post_send = c3(post::post_send);
    context.ops.post_recv = c3(post::post_recv);
    context.num_comp_vectors = vectors;
    context.abi_compat = usize::MAX;
    abi
}

/// `ibv_open_device`.
pub extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    boundary::pointer(|| open(Device::get(device)?))
}

/// `ibv_close_device`.
pub extern "C" fn ibv_close_device(context: OwnedHandle<'_, OpenContext>) -> c_int {
    boundary::minus_one(|| context.destroy(|_| Ok(())))
}

/// `ibv_fork_init`: nothing has to be prepared, because memory is not pinned and no hardware writes
/// it.
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`: returns `IBV_FORK_UNNEEDED`.
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

/// `ibv_dontfork_range` and `ibv_dofork_range`: nothing to do, for the reasons of
/// [`ibv_fork_init`].
pub extern "C" fn fork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

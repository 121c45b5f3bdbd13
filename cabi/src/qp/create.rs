//! Creating and destroying queue pairs.

use super::{Qp, checked_type, create_qp, ex};
use crate::abi::qp as flags;
use crate::abi::{ibv_context, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex};
use crate::boundary;
use crate::context::Context;
use crate::errno::Errno;
use crate::object::Object;
use std::ffi::c_int;

/// `ibv_create_qp`.
///
/// # Safety
/// `pd` is NULL or one of ours, `init` is NULL or readable and writable with pointers of ours in it.
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller's promise.
    boundary::pointer(|| unsafe {
        create_qp(pd, init.as_mut().ok_or_else(|| Errno::INVAL.null())?, false).map(<*mut _>::cast)
    })
}

/// `ibv_create_qp_ex`.
///
/// # Safety
/// `context` is NULL or one of ours, `init` is NULL or readable and writable with pointers of ours in it.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    boundary::pointer(|| {
        // SAFETY: the caller's promise, here and below.
        let persona = unsafe { Context::get(context) }?.persona;
        // SAFETY: as above.
        let init = unsafe { init.as_mut() }.ok_or_else(|| Errno::INVAL.null())?;
        let known = flags::IBV_QP_INIT_ATTR_PD
            | flags::IBV_QP_INIT_ATTR_CREATE_FLAGS
            | flags::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        checked_type(init.qp_type, persona)?;
        if init.comp_mask & !known != 0 {
            return Err(Errno::UNSUPPORTED.because("attributes that are not offered (comp_mask)"));
        }
        if init.comp_mask & flags::IBV_QP_INIT_ATTR_PD == 0 {
            return Err(Errno::INVAL.because("attributes without a protection domain"));
        }
        if init.comp_mask & flags::IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && init.create_flags != 0 {
            return Err(Errno::UNSUPPORTED.because("create_flags are not offered"));
        }
        let send_ops =
            (init.comp_mask & flags::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then_some(init.send_ops_flags);
        if send_ops.is_some_and(|ops| ops & !flags::SEND_OPS_OFFERED != 0) {
            return Err(Errno::UNSUPPORTED.because("send_ops_flags that are not offered"));
        }
        // SAFETY: the structure begins as the shorter one does: asserted by the two layouts.
        let short = unsafe { &mut *std::ptr::from_mut(init).cast::<ibv_qp_init_attr>() };
        let pd = init.pd;
        // SAFETY: as above.
        let qp = unsafe { create_qp(pd, short, send_ops.is_some()) }?;
        if let Some(ops) = send_ops {
            // SAFETY: made just now, and C does not have the pointer yet.
            ex::fill(unsafe { &mut *qp }, ops);
        }
        Ok(qp.cast())
    })
}

/// `ibv_destroy_qp`: waits until every delivered event is acknowledged.
///
/// # Safety
/// `qp` is NULL or one of ours, and no other thread uses it any more.
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise, here and below.
        let object = unsafe { Object::<Qp>::get_any(qp.cast()) }?;
        if !object.is_inherited() {
            object.leave();
        }
        // SAFETY: as above.
        unsafe { Object::<Qp>::free(qp.cast()) };
        Ok(())
    })
}

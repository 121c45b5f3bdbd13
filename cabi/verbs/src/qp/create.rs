//! Creating and destroying queue pairs.

use super::{Qp, QpType, create_qp, parse_qp_type};
use crate::context::{Context, OpenContext};
use crate::pd::Pd;
use std::ffi::c_int;
use uiw_cabi_core::abi::qp as flags;
use uiw_cabi_core::abi::{ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex};
use uiw_cabi_core::arguments::{Handle, InOutPtr, OwnedHandle, argument};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;

/// `ibv_create_qp`.
pub extern "C" fn ibv_create_qp(
    pd: Handle<'_, Pd>,
    init: InOutPtr<'_, ibv_qp_init_attr>,
) -> *mut ibv_qp {
    boundary::pointer(|| {
        let init = init.get()?;
        let mut long = init.extended();
        let domain = pd.get()?;
        // SAFETY: the copy is a local variable that nothing else uses until the call returns. Its
        // only pointers to objects are the queues of `init`, whose type requires that the program
        // does not destroy them during the call. `qp_context` is only stored.
        let qp = create_qp(domain, unsafe { argument(&raw mut long) }, None);
        init.cap = long.cap;
        qp
    })
}

/// `ibv_create_qp_ex`.
pub extern "C" fn create_qp_ex(
    context: Handle<'_, OpenContext>,
    init: InOutPtr<'_, ibv_qp_init_attr_ex>,
) -> *mut ibv_qp {
    boundary::pointer(|| {
        let context = context.get()?;
        create_extended(context, init)
    })
}

/// Creates a queue pair from the attributes of `ibv_create_qp_ex`.
pub fn create_extended(
    context: &Context,
    init: InOutPtr<'_, ibv_qp_init_attr_ex>,
) -> Result<*mut ibv_qp> {
    let known = flags::IBV_QP_INIT_ATTR_PD
        | flags::IBV_QP_INIT_ATTR_CREATE_FLAGS
        | flags::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let given = init.get_ref()?;
    let qp_type = parse_qp_type(given.qp_type, context.persona)?;
    if given.comp_mask & !known != 0 {
        return Err(Errno::UNSUPPORTED.because("attributes that are not supported (comp_mask)"));
    }
    if given.comp_mask & flags::IBV_QP_INIT_ATTR_PD == 0 {
        return Err(Errno::INVAL.because("the attributes contain no protection domain"));
    }
    if given.comp_mask & flags::IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && given.create_flags != 0 {
        return Err(Errno::UNSUPPORTED.because("create_flags are not supported"));
    }
    let send_ops = (given.comp_mask & flags::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0)
        .then_some(given.send_ops_flags);
    let offered = match qp_type {
        QpType::Rc => flags::SEND_OPS_OFFERED,
        QpType::Uc => flags::SEND_OPS_UC,
        QpType::Ud => flags::SEND_OPS_UD,
    };
    if send_ops.is_some_and(|ops| ops & !offered != 0) {
        return Err(Errno::UNSUPPORTED.because("send_ops_flags that are not supported"));
    }
    create_qp(init.object(|init| &init.pd)?, init, send_ops)
}

/// `ibv_destroy_qp`: waits until every delivered event is acknowledged. Returns EBUSY while the
/// queue pair is attached to a multicast group.
pub extern "C" fn ibv_destroy_qp(qp: OwnedHandle<'_, Qp>) -> c_int {
    boundary::code(|| qp.destroy(|qp| qp.leave()))
}

//! Memory windows of both types.

use crate::mr::{self, Mr};
use crate::pd::Pd;
use crate::qp::Qp;
use std::ffi::c_int;
use uiw_cabi_core::abi::mr::{IBV_MW_TYPE_1, IBV_MW_TYPE_2};
use uiw_cabi_core::abi::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info};
use uiw_cabi_core::arguments::{Handle, InPtr, OwnedHandle};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::{Body, Object, ObjectKind};
use uiw_cabi_core::users::UserToken;
use uiw_verbs::{Access, Bind, RawMw, STag, SendFlags, SendOp, SendWr, WindowType};

/// Memory window that C refers to.
pub struct Mw {
    engine: RawMw,
    _in_pd: UserToken,
}

impl Body for Mw {
    type Abi = ibv_mw;
    type C = ibv_mw;
    const KIND: ObjectKind = ObjectKind::Mw;
}

/// `ibv_alloc_mw`.
pub(crate) extern "C" fn alloc_mw(pd: Handle<'_, Pd>, kind: c_int) -> *mut ibv_mw {
    boundary::pointer(|| {
        let domain = pd.get()?;
        let window = match kind {
            IBV_MW_TYPE_1 => WindowType::One,
            IBV_MW_TYPE_2 => WindowType::Two,
            _ => return Err(Errno::INVAL.because("the type of the window is unknown")),
        };
        let engine = domain.engine.alloc_window(window)?;
        let rkey = engine.stag().0;
        let context = domain.abi.get(|pd| &pd.context);
        let abi = ibv_mw { context, pd: domain.abi(), rkey, handle: rkey >> 8, r#type: kind };
        Ok(Object::create(abi, Mw { engine, _in_pd: domain.users.add() }))
    })
}

/// `ibv_dealloc_mw`.
pub(crate) extern "C" fn dealloc_mw(mw: OwnedHandle<'_, Mw>) -> c_int {
    boundary::code(|| mw.destroy(|_| Ok(())))
}

/// Returns the request that binds `window`, which gets the key `rkey`. `region` returns the region
/// of `info`.
///
/// # Errors
/// EINVAL for NULL, EIO for objects that were inherited through a fork, and the errors of
/// [`mr::access`].
pub(crate) fn bind_op<'a>(
    window: &Mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
    region: impl FnOnce() -> Result<&'a Object<Mr>>,
) -> Result<SendOp> {
    // Local rights have no meaning for a window, but some programs set them.
    let access = mr::access(info.mw_access_flags)? & (Access::REMOTE | Access::ZERO_BASED);
    let (region, length) = match (info.length, info.mr.is_null()) {
        // Nothing is bound, which revokes a window of type 1.
        (0, true) => (STag(0), 0),
        (length, _) => region()?.window(info.addr, length)?,
    };
    Ok(SendOp::Bind(Bind {
        window: window.engine.stag(),
        new_stag: STag(rkey),
        region,
        addr: info.addr,
        length,
        access,
    }))
}

/// `ibv_bind_mw`, for windows of type 1. The window has its new key when the call returns.
pub(crate) extern "C" fn bind_mw(
    qp: Handle<'_, Qp>,
    mw: Handle<'_, Mw>,
    bind: InPtr<'_, ibv_mw_bind>,
) -> c_int {
    boundary::code(|| {
        let (qp, request, window) = (qp.get()?, bind.get()?, mw.get()?);
        if window.abi.get(|mw| &mw.r#type) != IBV_MW_TYPE_1 {
            return Err(Errno::INVAL.because("ibv_bind_mw for a window of type 2"));
        }
        let rkey = next_key(window.abi.get(|mw| &mw.rkey));
        let region = || bind.object(|bind| &bind.bind_info.mr);
        let op = bind_op(window, rkey, &request.bind_info, region)?;
        let flags = SendFlags::from_bits_truncate(request.send_flags) - SendFlags::INLINE;
        let wr = SendWr { wr_id: request.wr_id, op, sges: &[], flags };
        // SAFETY: the request has no elements, `INLINE` was removed from its flags, and `bind_op`
        // does not return a `FastRegister`. The engine therefore gets no memory for which
        // `Qp::post_send` has a rule.
        unsafe { qp.engine.post_send([wr]) }.map_err(|refused| Errno::from(refused.error))?;
        // The engine increments the key byte with every bind, like `ibv_inc_rkey`.
        window.abi.set(|mw| &mw.rkey, rkey);
        Ok(())
    })
}

/// Returns `rkey` with its key byte incremented, like `ibv_inc_rkey`.
fn next_key(rkey: u32) -> u32 {
    rkey & !0xFF | rkey.wrapping_add(1) & 0xFF
}

#[cfg(test)]
mod tests {
    #[test]
    fn key_byte_wraps() {
        assert_eq!(super::next_key(0x1234_56FF), 0x1234_5600);
        assert_eq!(super::next_key(0x1234_5601), 0x1234_5602);
    }
}

//! Memory windows of both types.

use crate::abi::mr::{IBV_MW_TYPE_1, IBV_MW_TYPE_2};
use crate::abi::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp};
use crate::boundary::{self, Result};
use crate::errno::Errno;
use crate::mr::{self, Mr};
use crate::object::{Body, Object};
use crate::pd;
use crate::qp::Qp;
use crate::users::Used;
use std::ffi::c_int;
use uiw_verbs::{Access, Bind, RawMw, STag, SendFlags, SendOp, SendWr, WindowType};

/// A window as C holds it.
pub struct Mw {
    engine: RawMw,
    _in_pd: Used,
}

impl Body for Mw {
    type Abi = ibv_mw;
    const KIND: u32 = 0x7569_6305;
}

/// `ibv_alloc_mw`.
///
/// # Safety
/// `pd` is NULL or one of ours.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    boundary::pointer(|| {
        // SAFETY: the caller's promise.
        let domain = unsafe { pd::get(pd) }?;
        let window = match kind {
            IBV_MW_TYPE_1 => WindowType::One,
            IBV_MW_TYPE_2 => WindowType::Two,
            _ => return Err(Errno::INVAL.because("a window of an unknown type")),
        };
        let engine = domain.engine.alloc_window(window)?;
        let rkey = engine.stag().0;
        // SAFETY: as above.
        let context = unsafe { (*pd).context };
        let abi = ibv_mw { context, pd, rkey, handle: rkey >> 8, r#type: kind };
        Ok(Object::create(abi, Mw { engine, _in_pd: domain.users.add() }))
    })
}

/// `ibv_dealloc_mw`.
///
/// # Safety
/// `mw` is NULL or one of ours, and no thread uses it any more.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise.
        unsafe {
            Object::<Mw>::get_any(mw)?;
            Object::<Mw>::free(mw);
        }
        Ok(())
    })
}

/// The request that binds `mw`; `rkey` is the key it gets.
///
/// # Safety
/// `mw` and the region in `info` are NULL or ours.
///
/// # Errors
/// EINVAL for NULL, EIO for what came through a fork, those of [`mr::access`].
pub(crate) unsafe fn bind_op(mw: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> Result<SendOp> {
    // SAFETY: the caller's promise, here and below.
    let window = unsafe { Object::<Mw>::get(mw) }?;
    // Local rights have no meaning for a window; some programs set them.
    let access = mr::access(info.mw_access_flags)? & (Access::REMOTE | Access::ZERO_BASED);
    let (region, length) = match (info.length, info.mr.is_null()) {
        // Nothing is bound: a type 1 window is revoked.
        (0, true) => (STag(0), 0),
        // SAFETY: as above.
        (length, _) => unsafe { Object::<Mr>::get(info.mr) }?.window(info.addr, length)?,
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

/// `ibv_bind_mw`, for windows of type 1: the window has its new key at once.
///
/// # Safety
/// All pointers are NULL or ours; `bind` is NULL or readable.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise, here and below.
        let (qp, request) = unsafe { (Qp::get(qp)?, bind.as_ref().ok_or_else(|| Errno::INVAL.null())?) };
        // SAFETY: as above.
        let window = unsafe { mw.as_mut() }.ok_or_else(|| Errno::INVAL.null())?;
        if window.r#type != IBV_MW_TYPE_1 {
            return Err(Errno::INVAL.because("ibv_bind_mw of a window of type 2"));
        }
        let rkey = next_key(window.rkey);
        // SAFETY: as above.
        let op = unsafe { bind_op(mw, rkey, &request.bind_info) }?;
        let flags = SendFlags::from_bits_truncate(request.send_flags) - SendFlags::INLINE;
        let wr = SendWr { wr_id: request.wr_id, op, sges: &[], flags };
        // SAFETY: a bind names no memory of its own.
        unsafe { qp.engine.post_send([wr]) }.map_err(|refused| Errno::from(refused.error))?;
        // The engine increments the key byte with every bind, as `ibv_inc_rkey` does.
        window.rkey = rkey;
        Ok(())
    })
}

/// `ibv_inc_rkey`: the key byte incremented.
fn next_key(rkey: u32) -> u32 {
    rkey & !0xFF | rkey.wrapping_add(1) & 0xFF
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_key_byte_wraps() {
        assert_eq!(super::next_key(0x1234_56FF), 0x1234_5600);
        assert_eq!(super::next_key(0x1234_5601), 0x1234_5602);
    }
}

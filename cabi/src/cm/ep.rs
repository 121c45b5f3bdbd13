//! Endpoints: an id with everything it needs, in one call.

use crate::abi::cm::{RAI_PASSIVE, RDMA_PS_TCP};
use crate::abi::qp::{IBV_QPT_RC, IBV_QPT_UD};
use crate::abi::{ibv_pd, ibv_qp_init_attr, rdma_addrinfo, rdma_cm_id};
use crate::boundary::{self, Result};
use crate::cm::id::{Endpoint, Id};
use crate::cm::lifecycle::{self, check_port_space};
use crate::cm::{address, qp, registry, resolve};
use crate::errno::Errno;
use std::ffi::c_int;
use std::sync::Arc;
use std::{ptr, slice};

/// Bytes of private data that can precede the caller's.
const MAX_CONNECT_DATA: usize = 255;

/// `rdma_create_ep`: a synchronous id. Of a passive endpoint, the attributes are those of its requests' queue pairs.
///
/// # Safety
/// `id` is NULL or writable, `res` is NULL or an answer of `rdma_getaddrinfo`, `pd` is NULL or ours, `attr` is NULL or readable and
/// writable.
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    boundary::minus_one(|| {
        // SAFETY: the caller's promise, here and below.
        let res = unsafe { res.as_ref() }.ok_or_else(|| Errno::INVAL.null())?;
        if id.is_null() {
            return Err(Errno::INVAL.null());
        }
        check_port_space(if res.ai_port_space == 0 { RDMA_PS_TCP } else { res.ai_port_space })?;
        let new = lifecycle::create(&lifecycle::own_channel()?, true, ptr::null_mut());
        new.set_port_space(if res.ai_port_space == 0 { RDMA_PS_TCP } else { res.ai_port_space });
        if res.ai_qp_type != qp_type(&new) && res.ai_qp_type != 0 {
            lifecycle::discard(&new);
            return Err(Errno::UNSUPPORTED.because("not the type of queue pair of this port space"));
        }
        // SAFETY: as above.
        match unsafe { equip(&new, res, pd, attr) } {
            Ok(()) => {
                // SAFETY: as above.
                unsafe { *id = new.abi() };
                Ok(())
            }
            Err(error) => {
                lifecycle::discard(&new);
                Err(error)
            }
        }
    })
}

/// The type of the id's queue pairs.
fn qp_type(id: &Id) -> c_int {
    if id.is_ud() { IBV_QPT_UD } else { IBV_QPT_RC }
}

/// # Safety
/// As for [`rdma_create_ep`].
unsafe fn equip(
    id: &Arc<Id>,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<()> {
    // SAFETY: the caller's promise, here and below.
    let given = unsafe { attr.as_mut() };
    if res.ai_flags & RAI_PASSIVE != 0 {
        // SAFETY: as above.
        resolve::bind(id, unsafe { address::read(res.ai_src_addr) }?)?;
        let endpoint = given.map(|given| {
            given.qp_type = qp_type(id);
            Endpoint { pd, attr: *given }
        });
        id.lock().endpoint = endpoint;
        return Ok(());
    }
    // SAFETY: as above.
    let (src, dst) = unsafe {
        let src = if res.ai_src_addr.is_null() { None } else { Some(address::read(res.ai_src_addr)?) };
        (src, address::read(res.ai_dst_addr)?)
    };
    resolve::resolve(id, src, dst)?;
    resolve::route(id)?;
    // Both events are notes, and C has not seen the id yet.
    id.forget_notes();
    if let Some(given) = given {
        given.qp_type = qp_type(id);
        // SAFETY: as above.
        unsafe { qp::create(id, pd, given) }?;
    }
    if res.ai_connect_len > 0 && !res.ai_connect.is_null() {
        if res.ai_connect_len > MAX_CONNECT_DATA {
            return Err(Errno::INVAL.because("connection data that is longer than any"));
        }
        // SAFETY: as above.
        let data = unsafe { slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len) };
        id.lock().connect_data = data.to_vec();
    }
    Ok(())
}

/// `rdma_destroy_ep`: the id, and what was made on it.
///
/// # Safety
/// No thread uses the id's queue pair and shared receive queue any more.
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    boundary::value((), || {
        if registry::forget_inherited(id) {
            return Ok(());
        }
        let id = registry::id(id)?;
        // SAFETY: the caller's promise.
        unsafe {
            qp::destroy(&id);
            qp::destroy_srq(&id);
        }
        lifecycle::destroy(&id);
        Ok(())
    });
}

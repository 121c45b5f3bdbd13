//! Endpoints: an id with all objects that it needs, created by one call.

use crate::id::{EndpointAttributes, Id};
use crate::lifecycle::{self, check_port_space};
use crate::registry::RegisteredPtr as _;
use crate::{qp, registry, resolve};
use std::ffi::c_int;
use std::sync::Arc;
use std::{ptr, slice};
use uiw_cabi_core::abi::cm::{RAI_PASSIVE, RDMA_PS_TCP};
use uiw_cabi_core::abi::{ibv_qp_init_attr, rdma_addrinfo, rdma_cm_id};
use uiw_cabi_core::address::AddressPtr;
use uiw_cabi_core::arguments::{AnyPtr, Handle, InOutPtr, InPtr, OutPtr, argument};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_verbs::pd::Pd;

/// Maximum size of the private data that can precede the caller's, in bytes.
const MAX_CONNECT_DATA: usize = 255;

/// `rdma_create_ep`: creates a synchronous id. For a passive endpoint, the attributes are those of
/// its requests' queue pairs. The program does not destroy the domain in the `pd` field of the
/// endpoint, nor the objects that the attributes name, while a thread is in `rdma_get_request` for
/// the endpoint.
pub extern "C" fn rdma_create_ep(
    id: OutPtr<'_, *mut rdma_cm_id>,
    res: InPtr<'_, rdma_addrinfo>,
    pd: Handle<'_, Pd>,
    attr: InOutPtr<'_, ibv_qp_init_attr>,
) -> c_int {
    boundary::minus_one(|| {
        let res = res.get()?;
        id.check()?;
        let ps = if res.ai_port_space == 0 { RDMA_PS_TCP } else { res.ai_port_space };
        check_port_space(ps)?;
        let new = lifecycle::create(&lifecycle::own_channel()?, true, ptr::null_mut());
        new.set_port_space(ps);
        if res.ai_qp_type != new.qp_type() && res.ai_qp_type != 0 {
            lifecycle::discard(&new);
            return Err(Errno::UNSUPPORTED.because("wrong type of queue pair for this port space"));
        }
        equip(&new, res, pd, attr).inspect_err(|_| lifecycle::discard(&new))?;
        id.write(new.abi())
    })
}

fn equip(
    id: &Arc<Id>,
    res: &rdma_addrinfo,
    pd: Handle<'_, Pd>,
    attr: InOutPtr<'_, ibv_qp_init_attr>,
) -> Result<()> {
    // SAFETY: `rdma_create_ep`, the only caller, has `res` from an `InPtr`, which requires that
    // each address is NULL or as large as its family (rdma_getaddrinfo(3)), and that the program
    // does not change it during the call. Both are used only in this function.
    let (src, dst): (AddressPtr<'_>, AddressPtr<'_>) =
        unsafe { (argument(res.ai_src_addr.cast_const()), argument(res.ai_dst_addr.cast_const())) };
    if res.ai_flags & RAI_PASSIVE != 0 {
        resolve::bind(id, src.read()?)?;
        if !pd.is_null() {
            // Programs register the buffers of their connections in the domain of the listener.
            id.abi.set(|id| &id.pd, pd.as_ptr());
        }
        let endpoint = attr.as_mut().map(|attr| {
            attr.qp_type = id.qp_type();
            EndpointAttributes(*attr)
        });
        id.lock().endpoint = endpoint;
        return Ok(());
    }
    let has_data = res.ai_connect_len > 0 && !res.ai_connect.is_null();
    if has_data && res.ai_connect_len > MAX_CONNECT_DATA {
        return Err(Errno::INVAL.because("the connection data is too long"));
    }
    resolve::resolve(id, src.get()?, dst.read()?)?;
    resolve::route(id)?;
    // Both events are local, and C does not know the id yet.
    id.forget_local_events();
    // Last, because dropping the id does not destroy the queue pair.
    if !attr.is_null() {
        qp::create(id, pd, attr, id.qp_type())?;
    }
    if has_data {
        let (data, len) = (res.ai_connect.cast::<u8>(), res.ai_connect_len);
        // SAFETY: `data` is not NULL and `len` is from 1 to 255, as checked above. `res` is from
        // the `InPtr` of `rdma_create_ep`, the only caller, which requires that there are as many
        // initialized bytes (rdma_getaddrinfo(3)), and that they do not change during the call.
        let data = unsafe { slice::from_raw_parts(data, len) };
        id.lock().connect_data = data.to_vec();
    }
    Ok(())
}

/// `rdma_destroy_ep`: destroys the id and the objects that were created on it, which no other
/// thread of the program uses any more.
pub extern "C" fn rdma_destroy_ep(id: AnyPtr<rdma_cm_id>) {
    boundary::value((), || {
        if registry::forget_inherited(id.as_ptr()) {
            return Ok(());
        }
        let id = id.get()?;
        qp::destroy(&id);
        qp::destroy_srq(&id);
        lifecycle::destroy(&id);
        Ok(())
    });
}

//! Address handles: where datagrams go.

use crate::abi::wr::IBV_WC_GRH;
use crate::abi::{self, ibv_ah, ibv_ah_attr, ibv_context, ibv_grh, ibv_pd, ibv_target_ud, ibv_wc};
use crate::boundary::{self, Result};
use crate::context::Context;
use crate::device::gid;
use crate::device::netdev::NetDev;
use crate::errno::Errno;
use crate::object::{Body, Object};
use crate::oob;
use crate::pd;
use crate::persona::Persona;
use crate::settings::Settings;
use crate::users::Used;
use std::ffi::c_int;
use std::net::IpAddr;
use uiw_verbs::{AddressHandle, Destination};

/// An address handle as C holds it.
pub struct Ah {
    engine: AddressHandle,
    _in_pd: Used,
}

impl Body for Ah {
    type Abi = ibv_ah;
    const KIND: u32 = 0x7569_630c;
}

/// `ibv_create_ah`.
///
/// # Safety
/// `pd` is NULL or one of ours, `attr` is NULL or readable.
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller's promise.
    boundary::pointer(|| unsafe {
        create(pd, attr.as_ref().ok_or_else(|| Errno::INVAL.because("no attributes are given"))?)
    })
}

/// # Safety
/// `pd` is NULL or one of ours.
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah> {
    // SAFETY: the caller's promise.
    let domain = unsafe { pd::get(pd) }?;
    if attr.port_num != 1 {
        return Err(Errno::INVAL.because("the port is not 1"));
    }
    if attr.is_global == 0 && Settings::get()?.persona != Persona::Ib {
        return Err(Errno::INVAL.because("on Ethernet an address handle needs a GID"));
    }
    let netdev = domain.context.device.netdev()?;
    let (own, peer) = oob::addresses(&netdev, attr)?;
    // Without a GRH the attributes have no hop limit.
    let hop_limit = if attr.is_global == 0 { 0 } else { attr.grh.hop_limit };
    let engine = AddressHandle::new(own, peer, scope(&netdev, peer)).with_hop_limit(hop_limit);
    // SAFETY: integers and pointers.
    let mut abi: ibv_ah = unsafe { abi::zeroed() };
    // SAFETY: the domain lives.
    abi.context = unsafe { (*pd).context };
    abi.pd = pd;
    Ok(Object::create(abi, Ah { engine, _in_pd: domain.users.add() }))
}

/// The index of the interface, for addresses that mean nothing without it.
fn scope(netdev: &NetDev, peer: IpAddr) -> u32 {
    match peer {
        IpAddr::V6(v6) if v6.is_unicast_link_local() || v6.is_multicast() => netdev.index,
        _ => 0,
    }
}

/// `ibv_destroy_ah`.
///
/// # Safety
/// `ah` is NULL or one of ours, and no thread uses it any more.
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise.
        unsafe {
            Object::<Ah>::get_any(ah)?;
            Object::<Ah>::free(ah);
        }
        Ok(())
    })
}

/// `ibv_init_ah_from_wc`: the way back to the sender of a received datagram.
///
/// # Safety
/// `context` is NULL or one of ours; `wc` and `grh` are NULL or readable, `attr` is NULL or writable.
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    boundary::minus_one(|| {
        // SAFETY: the caller's promise, here and below.
        let context = unsafe { Context::get(context) }?;
        // SAFETY: as above.
        let answer = unsafe { answer(context, port, wc, grh) }?;
        if attr.is_null() {
            return Err(Errno::INVAL.because("no place for the attributes is given"));
        }
        // SAFETY: as above.
        unsafe { attr.write(answer) };
        Ok(())
    })
}

/// # Safety
/// `wc` and `grh` are NULL or readable.
unsafe fn answer(context: &Context, port: u8, wc: *mut ibv_wc, grh: *mut ibv_grh) -> Result<ibv_ah_attr> {
    // SAFETY: the caller's promise.
    let wc = unsafe { wc.as_ref() }.ok_or_else(|| Errno::INVAL.because("no completion is given"))?;
    if port != 1 || wc.wc_flags & IBV_WC_GRH == 0 || grh.is_null() {
        return Err(Errno::INVAL.because("the completion is of no datagram with a GRH"));
    }
    // SAFETY: as above; the header is in the program's buffer, at any address.
    let grh = unsafe { grh.read_unaligned() };
    let netdev = context.device.netdev()?;
    let source =
        gid::to_address(grh.sgid).ok_or_else(|| Errno::INVAL.because("the GRH names no IP address"))?;
    // Of a datagram to a group: the address of the same family.
    let local = gid::to_address(grh.dgid);
    let index = netdev
        .addresses
        .iter()
        .position(|(own, _)| Some(*own) == local)
        .or_else(|| netdev.addresses.iter().position(|(own, _)| own.is_ipv4() == source.is_ipv4()))
        .ok_or_else(|| Errno::INVAL.because("the device has no address of that version"))?;
    let mut attr =
        ibv_ah_attr { dlid: wc.slid, sl: wc.sl, is_global: 1, port_num: 1, ..ibv_ah_attr::default() };
    attr.grh.dgid = grh.sgid;
    attr.grh.sgid_index =
        u8::try_from(index).map_err(|_| Errno::INVAL.because("the device has more than 256 addresses"))?;
    attr.grh.hop_limit = 0xFF;
    Ok(attr)
}

/// `ibv_create_ah_from_wc`.
///
/// # Safety
/// As for [`ibv_create_ah`] and [`ibv_init_ah_from_wc`].
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    boundary::pointer(|| {
        // SAFETY: the caller's promise, here and below.
        let domain = unsafe { pd::get(pd) }?;
        // SAFETY: as above.
        let attr = unsafe { answer(&domain.context, port, wc, grh) }?;
        // SAFETY: as above.
        unsafe { create(pd, &attr) }
    })
}

/// Where the request of a UD queue pair goes.
///
/// # Safety
/// The address handle is NULL or one of ours, and no thread frees it meanwhile.
///
/// # Errors
/// EINVAL for NULL, and for the handle of another protection domain.
pub(crate) unsafe fn destination(to: ibv_target_ud, pd: *mut ibv_pd) -> Result<Destination> {
    // SAFETY: the caller's promise.
    unsafe {
        let ah = Object::<Ah>::get_called(to.ah)?;
        if (*to.ah).pd != pd {
            return Err(Errno::INVAL.because("the address handle belongs to another protection domain"));
        }
        Ok(Destination { ah: ah.engine, qpn: to.remote_qpn, qkey: to.remote_qkey })
    }
}

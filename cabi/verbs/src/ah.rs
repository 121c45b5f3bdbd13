//! Address handles: the destinations of datagrams.

use crate::context::{Context, OpenContext};
use crate::device::gid;
use crate::oob;
use crate::pd::Pd;
use std::ffi::c_int;
use uiw_cabi_core::abi::wr::IBV_WC_GRH;
use uiw_cabi_core::abi::{ibv_ah, ibv_ah_attr, ibv_grh, ibv_wc};
use uiw_cabi_core::arguments::{Handle, InPtr, OutPtr, OwnedHandle};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::{Body, Object, ObjectKind};
use uiw_cabi_core::persona::Persona;
use uiw_cabi_core::settings::Settings;
use uiw_cabi_core::users::UserToken;
use uiw_verbs::{AddressHandle, Destination};

/// Address handle that C refers to.
pub struct Ah {
    engine: AddressHandle,
    /// Number of the engine's protection domain.
    domain: u32,
    _in_pd: UserToken,
}

impl Body for Ah {
    type Abi = ibv_ah;
    type C = ibv_ah;
    const KIND: ObjectKind = ObjectKind::AddressHandle;
}

/// `ibv_create_ah`.
pub extern "C" fn ibv_create_ah(pd: Handle<'_, Pd>, attr: InPtr<'_, ibv_ah_attr>) -> *mut ibv_ah {
    boundary::pointer(|| create(pd.get()?, attr.get()?))
}

fn create(domain: &Object<Pd>, attr: &ibv_ah_attr) -> Result<*mut ibv_ah> {
    if attr.port_num != 1 {
        return Err(Errno::INVAL.because("the port is not 1"));
    }
    if attr.is_global == 0 && Settings::get()?.persona != Persona::Ib {
        return Err(Errno::INVAL.because("an address handle on Ethernet needs a GID"));
    }
    let netdev = domain.context.device.netdev()?;
    let (own, peer) = oob::addresses(&netdev, attr)?;
    // Without a GRH the attributes contain no hop limit.
    let hop_limit = if attr.is_global == 0 { 0 } else { attr.grh.hop_limit };
    let engine = AddressHandle::new(own, peer, netdev.scope_id(peer)).with_hop_limit(hop_limit);
    let abi = ibv_ah { context: domain.abi.get(|pd| &pd.context), pd: domain.abi(), handle: 0 };
    Ok(Object::create(abi, Ah { engine, domain: domain.engine.num(), _in_pd: domain.users.add() }))
}

/// `ibv_destroy_ah`.
pub extern "C" fn ibv_destroy_ah(ah: OwnedHandle<'_, Ah>) -> c_int {
    boundary::code(|| ah.destroy(|_| Ok(())))
}

/// `ibv_init_ah_from_wc`: fills in the attributes for an answer to the sender of a received
/// datagram.
pub extern "C" fn ibv_init_ah_from_wc(
    context: Handle<'_, OpenContext>,
    port: u8,
    wc: InPtr<'_, ibv_wc>,
    grh: InPtr<'_, ibv_grh>,
    attr: OutPtr<'_, ibv_ah_attr>,
) -> c_int {
    boundary::minus_one(|| attr.write(answer(context.get()?, port, &wc, &grh)?))
}

fn answer(
    context: &Context,
    port: u8,
    wc: &InPtr<'_, ibv_wc>,
    grh: &InPtr<'_, ibv_grh>,
) -> Result<ibv_ah_attr> {
    let wc = wc.get()?;
    // The header is in the program's buffer, which may be unaligned.
    let (1, Some(grh), true) = (port, grh.read(), wc.wc_flags & IBV_WC_GRH != 0) else {
        return Err(Errno::INVAL.because("the completion does not belong to a datagram with a GRH"));
    };
    let netdev = context.device.netdev()?;
    let source = gid::to_address(grh.sgid)
        .ok_or_else(|| Errno::INVAL.because("the GRH contains no IP address"))?;
    // The destination of a multicast datagram is the group. In that case an address of the same
    // family is used.
    let local = gid::to_address(grh.dgid);
    let index = netdev
        .addresses
        .iter()
        .position(|(own, _)| Some(*own) == local)
        .or_else(|| netdev.addresses.iter().position(|(own, _)| own.is_ipv4() == source.is_ipv4()))
        .ok_or_else(|| Errno::INVAL.because("the device has no address of this IP version"))?;
    let mut attr = ibv_ah_attr {
        dlid: wc.slid,
        sl: wc.sl,
        is_global: 1,
        port_num: 1,
        ..ibv_ah_attr::default()
    };
    attr.grh.dgid = grh.sgid;
    attr.grh.sgid_index = u8::try_from(index)
        .map_err(|_| Errno::INVAL.because("the device has more than 256 addresses"))?;
    attr.grh.hop_limit = 0xFF;
    Ok(attr)
}

/// `ibv_create_ah_from_wc`.
pub extern "C" fn ibv_create_ah_from_wc(
    pd: Handle<'_, Pd>,
    wc: InPtr<'_, ibv_wc>,
    grh: InPtr<'_, ibv_grh>,
    port: u8,
) -> *mut ibv_ah {
    boundary::pointer(|| {
        let domain = pd.get()?;
        create(domain, &answer(&domain.context, port, &wc, &grh)?)
    })
}

/// Returns the destination of a request of a UD queue pair that belongs to the engine's protection
/// domain with the number `domain`. A parent domain has the number of the domain that it extends.
///
/// # Errors
/// EINVAL for the handle of another protection domain.
pub(crate) fn destination(ah: &Ah, domain: u32, qpn: u32, qkey: u32) -> Result<Destination> {
    if ah.domain != domain {
        return Err(Errno::INVAL.because("the address handle belongs to another protection domain"));
    }
    Ok(Destination { ah: ah.engine, qpn, qkey })
}

//! Address vectors for datagrams between ids.

use std::net::IpAddr;
use uiw_cabi_core::abi::{ibv_ah_attr, ibv_gid};
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_verbs::device::netdev::NetDev;
use uiw_cabi_verbs::device::{self, gid};

/// Returns the address vector from a local address to a GID.
pub(crate) fn address_vector(local: IpAddr, to: ibv_gid) -> Result<ibv_ah_attr> {
    let netdev = device::with_address(local)?.netdev()?;
    let mut attr = ibv_ah_attr { is_global: 1, port_num: 1, ..ibv_ah_attr::default() };
    attr.grh.dgid = to;
    attr.grh.sgid_index = index_of(&netdev, local)
        .ok_or_else(|| Errno::INVAL.because("the address is not one of the device"))?;
    // Multicast messages do not leave the network unless the program requests it. Messages to a
    // host may have to pass routers.
    attr.grh.hop_limit = u8::from(gid::to_group(to).is_some());
    Ok(attr)
}

/// Returns the index of `local` in the GID table, or of another address of the same family.
fn index_of(netdev: &NetDev, local: IpAddr) -> Option<u8> {
    let addresses = &netdev.addresses;
    let own = addresses.iter().position(|(own, _)| *own == local);
    let index =
        own.or_else(|| addresses.iter().position(|(own, _)| own.is_ipv4() == local.is_ipv4()))?;
    u8::try_from(index).ok()
}

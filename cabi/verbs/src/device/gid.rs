//! GIDs: the table has one entry for each address of the network device.
//!
//! The GID of an IPv6 address is the address itself, and that of an IPv4 address is the IPv4-mapped
//! IPv6 address. A GID is therefore never zero, and identifies the host.

use std::net::{IpAddr, Ipv6Addr};
use uiw_cabi_core::abi::ibv_gid;

/// Returns the GID of an address.
pub fn from_address(address: IpAddr) -> ibv_gid {
    let v6 = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    ibv_gid { raw: v6.octets() }
}

/// Returns the address of a GID, or `None` if it is not the address of a host: zero and multicast
/// addresses.
pub fn to_address(gid: ibv_gid) -> Option<IpAddr> {
    let address = Ipv6Addr::from(gid.raw).to_canonical();
    (!address.is_unspecified() && !address.is_multicast()).then_some(address)
}

/// Returns the multicast address of a GID, or `None` for every other GID.
pub fn to_group(gid: ibv_gid) -> Option<IpAddr> {
    let address = Ipv6Addr::from(gid.raw).to_canonical();
    address.is_multicast().then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_map_to_addresses_and_back() {
        for text in ["127.0.0.1", "10.1.2.3", "::1", "fe80::1", "2001:db8::5"] {
            let address: IpAddr = text.parse().unwrap();
            let gid = from_address(address);
            assert_eq!(to_address(gid), Some(address));
            assert_ne!(gid.raw[8..], [0; 8], "programs take a GID with an empty low half for none");
        }
        assert_eq!(to_address(ibv_gid::default()), None);
        assert_eq!(to_address(from_address("0.0.0.0".parse().unwrap())), None);
        for text in ["ff02::1", "239.1.2.3"] {
            let group: IpAddr = text.parse().unwrap();
            assert_eq!(
                (to_address(from_address(group)), to_group(from_address(group))),
                (None, Some(group))
            );
        }
        assert_eq!(to_group(from_address("10.1.2.3".parse().unwrap())), None);
    }
}

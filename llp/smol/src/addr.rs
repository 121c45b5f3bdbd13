//! Conversions between the address types of std and smoltcp.

use smoltcp::wire::{IpAddress, IpEndpoint};
use std::net::{IpAddr, SocketAddr};

pub(super) fn endpoint(address: SocketAddr) -> IpEndpoint {
    IpEndpoint { addr: IpAddress::from(to_canonical(address.ip())), port: address.port() }
}

/// Converts an IPv4 address that is mapped to IPv6 to the plain IPv4 address.
pub(super) fn to_canonical(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

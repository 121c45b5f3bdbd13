//! Addresses of std and of smoltcp.

use smoltcp::wire::{IpAddress, IpEndpoint};
use std::net::{IpAddr, SocketAddr};

pub(super) fn endpoint(address: SocketAddr) -> IpEndpoint {
    IpEndpoint { addr: IpAddress::from(plain(address.ip())), port: address.port() }
}

/// An IPv4 address in its IPv6 clothes is the IPv4 address.
pub(super) fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

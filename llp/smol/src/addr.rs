//! Conversions between the address types of std and smoltcp.

use smoltcp::wire::{IpAddress, IpEndpoint};
use std::net::SocketAddr;

pub(super) fn endpoint(address: SocketAddr) -> IpEndpoint {
    IpEndpoint { addr: IpAddress::from(address.ip().to_canonical()), port: address.port() }
}

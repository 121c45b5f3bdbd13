use std::net::{IpAddr, SocketAddr};

/// Converts an IPv4 address that is mapped to IPv6, as at a socket for both versions, to the plain
/// IPv4 address. All other addresses are unchanged.
///
/// ```
/// let mapped = "[::ffff:192.0.2.2]:7174".parse().unwrap();
/// assert_eq!(uiw_llp::canonical(mapped).to_string(), "192.0.2.2:7174");
/// ```
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}

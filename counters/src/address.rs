//! Encoding of socket addresses in three words: the first has family, port and scope, the others
//! the address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Number of words of an address.
pub(crate) const WORDS: usize = 3;

/// Encodes an address.
pub(crate) fn to_words(address: SocketAddr) -> [u64; WORDS] {
    let front =
        |family: u64, scope: u32| family | u64::from(address.port()) << 8 | u64::from(scope) << 32;
    match address {
        SocketAddr::V4(v4) => [front(4, 0), v4.ip().to_bits().into(), 0],
        SocketAddr::V6(v6) => {
            let bits = v6.ip().to_bits();
            [front(6, v6.scope_id()), (bits >> 64) as u64, bits as u64]
        }
    }
}

/// Decodes an address. Returns `None` if the family is unknown.
pub(crate) fn from_words([front, high, low]: [u64; WORDS]) -> Option<SocketAddr> {
    let port = (front >> 8) as u16;
    match front as u8 {
        4 => Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from_bits(high as u32)), port)),
        6 => {
            let ip = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
            Some(SocketAddrV6::new(ip, port, 0, (front >> 32) as u32).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_round_trip() {
        for text in ["192.0.2.7:65535", "[2001:db8::7:1]:1", "[fe80::1%7]:80", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(from_words(to_words(address)), Some(address));
        }
        assert_eq!(from_words([5, 1, 2]), None);
    }
}

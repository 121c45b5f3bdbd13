//! Owners of connections (an address, a network or a key), and the share of a resource that one owner may hold.

use std::net::{IpAddr, Ipv6Addr};

/// The peer of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    address: IpAddr,
    /// The identity that TLS has verified.
    key: Option<String>,
}

/// Whatever has a share of its own: an address, or a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    /// One host. For IPv6 a whole /64, because a host may have every address of it.
    Host(IpAddr),
    Key(String),
}

impl Holder {
    /// Returns the name of the kind of owner in messages to the peer.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Host(_) => "its address",
            Self::Key(_) => "its key",
        }
    }
}

impl Peer {
    pub(super) fn new(address: IpAddr, key: Option<String>) -> Self {
        Self { address, key }
    }

    pub(super) fn host(&self) -> IpAddr {
        match self.address.to_canonical() {
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
            v4 @ IpAddr::V4(_) => v4,
        }
    }

    /// Everything that a connection of this peer counts for.
    pub(super) fn holders(&self) -> Vec<Holder> {
        let host = Holder::Host(self.host());
        std::iter::once(host).chain(self.key.clone().map(Holder::Key)).collect()
    }
}

/// Whether one holder may have `own` of `total`, of which others have `others`: at most as much as then is left, so that the next one always
/// gets something. One has at most a half, two at most three quarters, and so on.
pub(super) fn is_fair(total: u64, others: u64, own: u64) -> bool {
    own.saturating_mul(2) <= total.saturating_sub(others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_network_counts_as_one_host() {
        let host = |address: &str| Peer::new(address.parse().unwrap(), None).host();
        assert_eq!(host("2001:db8::1"), host("2001:db8::2:0:0:1"));
        assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
        assert_eq!(host("::ffff:192.0.2.1"), host("192.0.2.1"));
        assert_ne!(host("192.0.2.1"), host("192.0.2.2"));
    }
}

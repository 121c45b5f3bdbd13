//! Destinations of datagrams.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use uiw_datagram::{MULTICAST_PORT, Qpn};

/// Address handle (`ibv_ah`): a local address, and the address of a host or multicast group.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressHandle {
    // Stored as IPv6 addresses: the destination of each request is compared with that of the
    // previous one, which is fastest without variants.
    local: [u8; 16],
    peer: [u8; 16],
    /// Index of the interface of a link-local address.
    scope: u32,
    /// Hop limit; 0 selects the default.
    hop_limit: u8,
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle")
            .field("local", &self.local())
            .field("peer", &self.peer())
            .field("scope", &self.scope)
            .field("hop_limit", &self.hop_limit)
            .finish()
    }
}

/// Returns an address in the form of IPv6.
const fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl AddressHandle {
    /// Creates an address handle for datagrams from `local`, at which the datagram port is bound,
    /// to `peer`. IPv4-mapped IPv6 addresses count as IPv4 addresses. `scope` is the index of the
    /// interface, for link-local addresses. The hop limit is the default of the stack for a host,
    /// and 1 for a group.
    #[must_use]
    pub const fn new(local: IpAddr, peer: IpAddr, scope: u32) -> Self {
        Self { local: octets(local), peer: octets(peer), scope, hop_limit: 0 }
    }

    /// Sets another hop limit (IPv4: TTL), `grh.hop_limit` of an `ibv_ah_attr`. 0 selects the
    /// default.
    #[must_use]
    pub const fn with_hop_limit(self, hop_limit: u8) -> Self {
        Self { hop_limit, ..self }
    }

    /// Returns the hop limit; 0 stands for the default.
    #[must_use]
    pub const fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// Returns the local address.
    #[must_use]
    pub const fn local(&self) -> IpAddr {
        Ipv6Addr::from_octets(self.local).to_canonical()
    }

    /// Returns the address of the peer or of the group.
    #[must_use]
    pub const fn peer(&self) -> IpAddr {
        Ipv6Addr::from_octets(self.peer).to_canonical()
    }
}

/// Destination queue pair of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// Host or group.
    pub ah: AddressHandle,
    /// Queue pair number; ignored for a group.
    pub qpn: u32,
    /// Q_Key. If the highest bit is set, the sender's own Q_Key is used instead (IBTA section
    /// 10.2.5).
    pub qkey: u32,
}

impl Destination {
    /// Returns the queue pair number for the header, and the socket address.
    pub(super) fn resolve(&self) -> (Qpn, SocketAddr) {
        let (peer, scope) = (self.ah.peer(), self.ah.scope);
        let (qpn, port) = if peer.is_multicast() {
            (Qpn::MULTICAST, MULTICAST_PORT)
        } else {
            let qpn = Qpn::from_raw(self.qpn);
            (qpn, qpn.port())
        };
        (qpn, socket_addr(peer, port, scope))
    }
}

/// Returns the address of a UDP port. `scope` is the index of the interface, for a link-local
/// address.
pub(super) fn socket_addr(ip: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, scope).into(),
        IpAddr::V4(_) => SocketAddr::new(ip, port),
    }
}

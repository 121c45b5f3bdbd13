//! Where datagrams go.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU8;
use uiw_datagram::{MULTICAST_PORT, Qpn};

/// The way to a host or to a multicast group: from one of our addresses to one of theirs (`ibv_ah`).
///
/// ```
/// use uiw_verbs::AddressHandle;
/// let way = AddressHandle::new("10.0.0.1".parse()?, "10.0.0.2".parse()?, 0);
/// # let _ = way;
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressHandle {
    local: IpAddr,
    peer: IpAddr,
    /// The interface of a link-local address.
    scope: u32,
    hop_limit: Option<NonZeroU8>,
}

impl AddressHandle {
    /// From `local`, at which the datagram port is bound, to `peer`. `scope` is the index of the interface, for link-local addresses. The hop
    /// limit is the default: that of the stack for a host, 1 for a group.
    #[must_use]
    pub const fn new(local: IpAddr, peer: IpAddr, scope: u32) -> Self {
        Self { local, peer, scope, hop_limit: None }
    }

    /// The same way with another hop limit (IPv4: TTL) for its datagrams, `grh.hop_limit` of an `ibv_ah_attr`. 0: the default.
    ///
    /// ```
    /// use uiw_verbs::AddressHandle;
    /// let way = AddressHandle::new("10.0.0.1".parse()?, "239.1.2.3".parse()?, 0);
    /// // The group has members behind at most three routers.
    /// let far = way.with_hop_limit(4);
    /// assert_eq!((way.hop_limit(), far.hop_limit()), (0, 4));
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    #[must_use]
    pub const fn with_hop_limit(self, hop_limit: u8) -> Self {
        Self { hop_limit: NonZeroU8::new(hop_limit), ..self }
    }

    /// The hop limit of the datagrams; 0: the default.
    #[must_use]
    pub const fn hop_limit(&self) -> u8 {
        match self.hop_limit {
            Some(hop_limit) => hop_limit.get(),
            None => 0,
        }
    }

    /// Our address.
    #[must_use]
    pub const fn local(&self) -> IpAddr {
        self.local
    }

    /// The peer's address, or the group's.
    #[must_use]
    pub const fn peer(&self) -> IpAddr {
        self.peer
    }
}

/// The queue pair that a datagram goes to.
///
/// ```
/// use uiw_verbs::{AddressHandle, Destination, SendOp};
/// # let here = std::net::Ipv4Addr::LOCALHOST.into();
/// let peer = AddressHandle::new(here, here, 0);
/// let to = Destination { ah: peer, qpn: 0x12_3401, qkey: 0x1111 };
/// # let _ = to;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The host, or the group.
    pub ah: AddressHandle,
    /// The queue pair number; without meaning for a group.
    pub qpn: u32,
    /// The Q_Key. If the highest bit is set, the sender's own is used instead (IBTA section 10.2.5).
    pub qkey: u32,
}

impl Destination {
    /// The number in the header, and the socket address.
    pub(super) fn resolve(&self) -> (Qpn, SocketAddr) {
        let AddressHandle { peer, scope, .. } = self.ah;
        let (qpn, port) = if peer.is_multicast() {
            (Qpn::MULTICAST, MULTICAST_PORT)
        } else {
            let qpn = Qpn::from_raw(self.qpn);
            (qpn, qpn.port())
        };
        let address = match peer {
            IpAddr::V6(v6) if scope != 0 => SocketAddrV6::new(v6, port, 0, scope).into(),
            ip => SocketAddr::new(ip, port),
        };
        (qpn, address)
    }
}

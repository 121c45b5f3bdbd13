//! Holders of resources (an address, a network or a key), and the amounts that each of them may
//! hold.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The peer of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    address: IpAddr,
    /// The identity that TLS has verified.
    key: Option<String>,
}

/// Someone to whom a limit applies: an address, a network or a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    /// One host. For IPv6 this is a whole /64, because a host may use every address of it.
    Host(IpAddr),
    /// A network of a size that providers assign to one customer, and the length of its prefix.
    Network(IpAddr, u8),
    Key(String),
}

impl Holder {
    /// Returns the name of the kind of holder, for messages to the peer.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Host(_) => "its address",
            Self::Network(..) => "its network",
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
            v6 @ IpAddr::V6(_) => network(v6, 64),
            v4 @ IpAddr::V4(_) => v4,
        }
    }

    /// Returns all holders whose limits apply to a connection of this peer.
    pub(super) fn holders(&self) -> Vec<Holder> {
        let address = self.address.to_canonical();
        let prefixes: &[u8] = match address {
            // The peers of a server in a private network may all belong to the same network, so no
            // limit applies to it.
            address if is_private(address) => &[],
            IpAddr::V4(_) => &[24],
            IpAddr::V6(_) => &[56, 48],
        };
        let networks =
            prefixes.iter().map(|prefix| Holder::Network(network(address, *prefix), *prefix));
        let host = std::iter::once(Holder::Host(self.host()));
        host.chain(networks).chain(self.key.clone().map(Holder::Key)).collect()
    }
}

/// Returns the network of an address: its first `prefix` bits, followed by zeros. `prefix` is at
/// least one.
fn network(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & u32::MAX << (32 - prefix)).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & u128::MAX << (128 - prefix)).into(),
    }
}

/// Returns whether an address is private, link-local or a loopback address.
fn is_private(address: IpAddr) -> bool {
    match address {
        // The second condition is the shared address space of RFC 6598.
        IpAddr::V4(v4) => {
            v4.is_private()
                || matches!(v4.octets(), [100, 64..=127, ..])
                || v4.is_link_local()
                || v4.is_loopback()
        }
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_unicast_link_local() || v6.is_loopback(),
    }
}

/// A resource of which peers hold amounts. Each peer may hold only as much as it leaves to others.
/// A reserve for peers that need little ensures that a few greedy peers leave something to many
/// others.
#[derive(Debug)]
pub(super) struct Ledger {
    general: PeerPool,
    reserve: PeerPool,
}

#[derive(Debug)]
struct PeerPool {
    total: u64,
    held: u64,
    by_holder: HashMap<Holder, u64>,
}

/// An amount that a peer holds until it is passed to [`Ledger::release`].
#[derive(Debug)]
pub(super) struct Grant {
    holders: Vec<Holder>,
    amount: u64,
    is_reserve: bool,
}

/// Error of a request for an amount that exceeds the limit of a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitExceeded {
    /// The holder whose limit would be exceeded.
    pub(super) holder: Holder,
    /// Total amount that the holder may have.
    pub(super) limit: u64,
    /// Amount that the holder has.
    pub(super) own: u64,
}

impl PeerPool {
    fn new(total: u64) -> Self {
        Self { total, held: 0, by_holder: HashMap::new() }
    }

    fn own(&self, holder: &Holder) -> u64 {
        self.by_holder.get(holder).copied().unwrap_or_default()
    }

    /// Checks whether each of `holders` may have `amount` more, within its limit.
    fn check(
        &self,
        holders: &[Holder],
        amount: u64,
        limit: impl Fn(&Self, &Holder) -> u64,
    ) -> Result<(), LimitExceeded> {
        for holder in holders {
            let (own, limit) = (self.own(holder), limit(self, holder));
            if own.saturating_add(amount) > limit {
                return Err(LimitExceeded { holder: holder.clone(), limit, own });
            }
        }
        Ok(())
    }

    /// Returns the limit of a holder in the general pool. A host or a key may hold as much as it
    /// leaves to others: one holds at most half, two hold at most three quarters, and so on. A
    /// network may hold three times as much as it leaves, so that one greedy host does not exhaust
    /// it.
    fn fair_limit(&self, holder: &Holder) -> u64 {
        let left = self.total - (self.held - self.own(holder));
        match holder {
            Holder::Host(_) | Holder::Key(_) => left.div_ceil(2),
            Holder::Network(..) => left - left / 4,
        }
    }

    /// Returns the limit of a holder in the reserve: the same for all holders of a kind, but at
    /// most the free part.
    fn equal_limit(&self, holder: &Holder) -> u64 {
        let of_all = match holder {
            Holder::Host(_) | Holder::Key(_) => self.total.div_ceil(16),
            Holder::Network(..) => self.total.div_ceil(8),
        };
        of_all.min(self.own(holder) + self.total - self.held)
    }

    fn add(&mut self, holders: &[Holder], amount: u64) {
        self.held += amount;
        for holder in holders {
            *self.by_holder.entry(holder.clone()).or_default() += amount;
        }
    }

    fn release(&mut self, holders: &[Holder], amount: u64) {
        self.held -= amount;
        for holder in holders {
            if let Some(own) = self.by_holder.get_mut(holder) {
                *own -= amount;
                if *own == 0 {
                    self.by_holder.remove(holder);
                }
            }
        }
    }
}

impl Ledger {
    pub(super) fn new(general: u64, reserve: u64) -> Self {
        Self { general: PeerPool::new(general), reserve: PeerPool::new(reserve) }
    }

    /// Returns the amount held by all peers together.
    pub(super) fn held(&self) -> u64 {
        self.general.held + self.reserve.held
    }

    /// Grants `amount` to `peer`, from the general pool or else from the reserve.
    pub(super) fn take(&mut self, peer: &Peer, amount: u64) -> Result<Grant, LimitExceeded> {
        let holders = peer.holders();
        let general = self.general.check(&holders, amount, PeerPool::fair_limit);
        let is_reserve = match general {
            Ok(()) => false,
            Err(denied) if self.reserve.check(&holders, amount, PeerPool::equal_limit).is_err() => {
                return Err(denied);
            }
            Err(_) => true,
        };
        self.pool(is_reserve).add(&holders, amount);
        Ok(Grant { holders, amount, is_reserve })
    }

    /// Like [`Ledger::take`], but the only limits are `per_host` for each host and the total.
    pub(super) fn take_within(
        &mut self,
        peer: &Peer,
        amount: u64,
        per_host: u64,
    ) -> Result<Grant, LimitExceeded> {
        let holders = vec![Holder::Host(peer.host())];
        let limit = |pool: &PeerPool, holder: &Holder| {
            per_host.min(pool.own(holder) + pool.total - pool.held)
        };
        self.general.check(&holders, amount, limit)?;
        self.general.add(&holders, amount);
        Ok(Grant { holders, amount, is_reserve: false })
    }

    pub(super) fn release(&mut self, grant: &Grant) {
        self.pool(grant.is_reserve).release(&grant.holders, grant.amount);
    }

    fn pool(&mut self, is_reserve: bool) -> &mut PeerPool {
        if is_reserve { &mut self.reserve } else { &mut self.general }
    }

    /// Returns whether nothing is held and no holder is stored.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.held() == 0 && self.general.by_holder.is_empty() && self.reserve.by_holder.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Peer {
        Peer::new(address.parse().unwrap(), None)
    }

    #[test]
    fn ipv6_network_counts_as_one_host() {
        let host = |address: &str| peer(address).host();
        assert_eq!(host("2001:db8::1"), host("2001:db8::2:0:0:1"));
        assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
        assert_eq!(host("::ffff:192.0.2.1"), host("192.0.2.1"));
        assert_ne!(host("192.0.2.1"), host("192.0.2.2"));
    }

    #[test]
    fn public_networks_count_as_owners() {
        let networks = |address: &str| -> Vec<_> {
            let holders = peer(address).holders();
            let text = |holder| match holder {
                Holder::Network(address, prefix) => Some(format!("{address}/{prefix}")),
                _ => None,
            };
            holders.into_iter().filter_map(text).collect()
        };
        assert_eq!(networks("192.0.2.77"), ["192.0.2.0/24"]);
        assert_eq!(networks("::ffff:192.0.2.77"), ["192.0.2.0/24"]);
        assert_eq!(networks("2001:db8:1:2345::1"), ["2001:db8:1:2300::/56", "2001:db8:1::/48"]);
        for private in [
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "127.0.0.1",
            "::1",
            "fd00::1",
            "fe80::1",
        ] {
            assert_eq!(networks(private), [""; 0], "{private}");
        }
    }

    /// Takes as many pieces as possible for each of `addresses`, and returns the amounts.
    fn taken(ledger: &mut Ledger, piece: u64, addresses: impl Iterator<Item = String>) -> Vec<u64> {
        let all = |address: String| {
            piece * std::iter::from_fn(|| ledger.take(&peer(&address), piece).ok()).count() as u64
        };
        addresses.map(all).collect()
    }

    /// Formerly, seven addresses or all networks of a /48 could take everything.
    #[test]
    fn greedy_networks_leave_reserve_for_others() {
        let mut ledger = Ledger::new(2048, 512);
        let hosts = taken(&mut ledger, 1, (1..=12).map(|number| format!("198.51.{number}.1")));
        assert_eq!(hosts[..3], [1024 + 32, 512 + 32, 256 + 32]);
        let networks =
            taken(&mut ledger, 1, (0..600).map(|number| format!("2001:db8:7:{number:x}::1")));
        assert!(networks.iter().sum::<u64>() <= 64, "{networks:?}");
        assert!(ledger.take(&peer("203.0.113.1"), 32).is_ok());
        assert!(ledger.take(&peer("2001:db8:8::1"), 32).is_ok());
    }

    #[test]
    fn greedy_host_leaves_room_in_network() {
        let mut ledger = Ledger::new(2048, 512);
        let taken = taken(&mut ledger, 16, (1..=3).map(|number| format!("192.0.2.{number}")));
        assert_eq!(taken, [1024 + 32, 512 + 32, 0]);
    }
}

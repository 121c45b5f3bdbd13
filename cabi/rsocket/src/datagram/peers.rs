//! Table of the sockets to which datagrams are sent, or from which they were received. Its size is
//! limited, because anyone can send from any number of addresses.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Maximum number of peers. Further peers replace the oldest ones, which are then reached over UDP
/// again.
pub(super) const MAX_PEERS: usize = 4096;

/// Interval at which a datagram is sent over UDP although the peer's queue pair is known. A
/// restarted peer has another queue pair, and would not be detected otherwise.
const REFRESH: Duration = Duration::from_secs(1);

/// Route to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerRoute {
    /// Local address that leads to the peer.
    pub(super) local: IpAddr,
    /// Index of the queue pair at the device of that address.
    pub(super) queue_pair: usize,
    /// Queue pair of the peer, if it is known.
    pub(super) qpn: Option<u32>,
    /// Time from which the next datagram is sent over UDP.
    refresh_at: Instant,
}

impl PeerRoute {
    pub(super) fn new(local: IpAddr, queue_pair: usize) -> Self {
        Self { local, queue_pair, qpn: None, refresh_at: Instant::now() }
    }
}

/// Known routes.
#[derive(Default)]
pub(super) struct Peers {
    ways: BTreeMap<SocketAddr, PeerRoute>,
    /// Peers in the order in which they were added.
    order: VecDeque<SocketAddr>,
}

impl Peers {
    pub(super) fn get(&self, peer: SocketAddr) -> Option<PeerRoute> {
        self.ways.get(&peer).copied()
    }

    pub(super) fn add(&mut self, peer: SocketAddr, route: PeerRoute) {
        if self.ways.insert(peer, route).is_some() {
            return;
        }
        self.order.push_back(peer);
        if self.order.len() > MAX_PEERS
            && let Some(oldest) = self.order.pop_front()
        {
            self.ways.remove(&oldest);
        }
    }

    /// Stores the queue pair number of a known peer.
    pub(super) fn learn(&mut self, peer: SocketAddr, qpn: u32) {
        if let Some(route) = self.ways.get_mut(&peer) {
            route.qpn = Some(qpn);
            route.refresh_at = Instant::now() + REFRESH;
        }
    }

    /// Returns the queue pair for the next datagram to a peer, or `None` if it has to be sent over
    /// UDP.
    pub(super) fn next_qpn(&mut self, peer: SocketAddr) -> Option<u32> {
        let route = self.ways.get_mut(&peer)?;
        let qpn = route.qpn?;
        let now = Instant::now();
        if now < route.refresh_at {
            return Some(qpn);
        }
        route.refresh_at = now + REFRESH;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn peer(number: usize) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::from_bits(0x0A00_0000 + number as u32), 7))
    }

    fn route() -> PeerRoute {
        PeerRoute::new(Ipv4Addr::LOCALHOST.into(), 0)
    }

    #[test]
    fn table_bounded_and_forgets_oldest() {
        let mut peers = Peers::default();
        for number in 0..MAX_PEERS + 10 {
            peers.add(peer(number), route());
            peers.add(peer(number), route());
        }
        assert_eq!((peers.ways.len(), peers.order.len()), (MAX_PEERS, MAX_PEERS));
        assert_eq!(peers.get(peer(9)), None);
        assert!(peers.get(peer(10)).is_some() && peers.get(peer(MAX_PEERS + 9)).is_some());
    }

    #[test]
    fn unknown_peer_names_no_queue_pair() {
        let mut peers = Peers::default();
        peers.learn(peer(1), 5);
        assert_eq!(peers.get(peer(1)), None);
        peers.add(peer(1), route());
        assert_eq!(peers.next_qpn(peer(1)), None);
        peers.learn(peer(1), 5);
        assert_eq!(peers.next_qpn(peer(1)), Some(5));
    }

    #[test]
    fn datagram_sent_over_udp_periodically() {
        let mut peers = Peers::default();
        peers.add(peer(1), route());
        peers.learn(peer(1), 5);
        peers.ways.get_mut(&peer(1)).unwrap().refresh_at = Instant::now();
        assert_eq!(peers.next_qpn(peer(1)), None);
        assert_eq!(peers.next_qpn(peer(1)), Some(5));
    }
}

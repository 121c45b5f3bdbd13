//! Addresses of the device's own datagram sockets, because datagrams between its own queue pairs
//! are counted separately.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = 1024;

/// Addresses of the datagram ports of a device.
#[derive(Default)]
pub(crate) struct OwnSockets {
    /// Bit set of the port numbers in use. It excludes most peers without a lock.
    ports: OnceLock<Box<[AtomicU64; WORDS]>>,
    sockets: Mutex<HashSet<(IpAddr, u16)>>,
}

impl OwnSockets {
    pub(super) fn add(&self, local: SocketAddr) {
        let mut sockets = self.sockets.lock();
        sockets.insert((local.ip(), local.port()));
        self.set(local.port(), true);
    }

    pub(super) fn remove(&self, local: SocketAddr) {
        let mut sockets = self.sockets.lock();
        sockets.remove(&(local.ip(), local.port()));
        if !sockets.iter().any(|(_, port)| *port == local.port()) {
            self.set(local.port(), false);
        }
    }

    /// Marks a port as used or unused. The caller has locked the sockets.
    fn set(&self, port: u16, is_used: bool) {
        let ports = self.ports.get_or_init(|| Box::new([const { AtomicU64::new(0) }; WORDS]));
        let (word, bit) = (&ports[usize::from(port) / 64], 1 << (port % 64));
        let others = word.load(Ordering::Relaxed) & !bit;
        word.store(if is_used { others | bit } else { others }, Ordering::Relaxed);
    }

    fn has_port(&self, port: u16) -> bool {
        self.ports.get().is_some_and(|ports| {
            ports[usize::from(port) / 64].load(Ordering::Relaxed) >> (port % 64) & 1 != 0
        })
    }

    fn has(&self, address: SocketAddr) -> bool {
        self.sockets.lock().contains(&(address.ip(), address.port()))
    }
}

/// Result of a queue pair's last lookup, which is repeated only for another peer.
#[derive(Default)]
pub(super) struct LastPeer(Option<(SocketAddr, bool)>);

impl LastPeer {
    /// Returns whether `peer` is a queue pair of the device.
    #[inline]
    pub(super) fn is_own(&mut self, own: &OwnSockets, peer: SocketAddr) -> bool {
        own.has_port(peer.port()) && self.look_up(own, peer)
    }

    fn look_up(&mut self, own: &OwnSockets, peer: SocketAddr) -> bool {
        match self.0 {
            Some((last, is_own)) if last == peer => is_own,
            _ => self.0.insert((peer, own.has(peer))).1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_and_port_compared() {
        let own = OwnSockets::default();
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let is_own = |address| LastPeer::default().is_own(&own, at(address));
        assert!(!is_own("10.0.0.1:4000"));
        own.add(at("10.0.0.1:4000"));
        own.add(at("[fd00::1]:4000"));
        assert!(is_own("10.0.0.1:4000") && is_own("[fd00::1]:4000"));
        assert!(!is_own("10.0.0.2:4000") && !is_own("10.0.0.1:4001") && !is_own("10.0.0.1:4064"));
        own.remove(at("10.0.0.1:4000"));
        assert!(!is_own("10.0.0.1:4000") && is_own("[fd00::1]:4000"));
        let mut last = LastPeer::default();
        assert!(last.is_own(&own, at("[fd00::1]:4000")));
        own.remove(at("[fd00::1]:4000"));
        assert!(!last.is_own(&own, at("[fd00::1]:4000")), "the port is looked at first");
    }
}

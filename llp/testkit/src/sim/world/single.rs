//! Faults of individual connections.

use super::{SimulatedEnd, World, WorldState};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

impl World {
    /// Returns the addresses of the established connections from `a` to `b`, the oldest first.
    pub(in crate::sim) fn connections(
        &self,
        a: IpAddr,
        b: IpAddr,
    ) -> Vec<(SocketAddr, SocketAddr)> {
        let is_one = |end: &&SimulatedEnd| {
            end.held && end.state == WorldState::Made && (end.local.ip(), end.peer.ip()) == (a, b)
        };
        self.ends.values().filter(is_one).map(|end| (end.local, end.peer)).collect()
    }

    pub(in crate::sim) fn reset_end(&mut self, local: SocketAddr, peer: SocketAddr) {
        for end in self.ends.values_mut() {
            if (end.local, end.peer) == (local, peer) && end.state == WorldState::Made {
                end.state = WorldState::Failed(ErrorKind::ConnectionReset);
                end.inbound.clear();
            }
        }
    }

    pub(in crate::sim) fn delay(&mut self, local: SocketAddr, peer: SocketAddr, by: Duration) {
        for end in self.ends.values_mut() {
            if (end.local, end.peer) == (local, peer) {
                for (due, _) in &mut end.inbound {
                    *due += by;
                }
            }
            // Data that is sent later must not overtake the delayed data.
            if (end.peer, end.local) == (local, peer) {
                end.last_due += by;
            }
        }
    }
}

//! State of a datagram port in its shard.

use super::counts::{Count, PortCounters};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use uiw_llp::{DatagramSocket, Interest, Token};

/// Number of queue pair numbers of a port.
pub(super) const INDICES: usize = 256;
/// Maximum number of groups to which the queue pairs of a port are attached.
pub(super) const MAX_GROUPS: usize = 64;

/// One socket of a port.
pub(super) struct PortSocket {
    pub(super) socket: Box<dyn DatagramSocket>,
    /// Address of the socket, or of its group.
    pub(super) local: SocketAddr,
    /// Token of its events.
    pub(super) token: Token,
    /// True if the last receive call has filled its buffers, so that the next one gets more.
    pub(super) takes_many: bool,
    /// Interface and attached queue pairs, if this is the socket of a group.
    pub(super) group: Option<Group>,
}

pub(super) struct Group {
    pub(super) member: IpAddr,
    pub(super) attached: Vec<u8>,
}

pub(crate) struct PortSlot {
    pub(super) sockets: Vec<PortSocket>,
    /// Queue pairs by index.
    pub(super) endpoints: Vec<Option<Token>>,
    /// Number of queue pairs.
    pub(super) in_use: usize,
    pub(super) number: u16,
    /// Queue pairs whose next datagram found no room in the socket, in the order in which they
    /// continue.
    pub(super) blocked: VecDeque<Blocked>,
    pub(super) counts: Arc<PortCounters>,
}

/// Queue pair that waits for room in a socket.
#[derive(Clone, Copy)]
pub(super) struct Blocked {
    pub(super) endpoint: Token,
    pub(super) socket: Token,
}

/// Group, and the interface on which it is joined.
#[derive(Clone, Copy)]
pub(super) struct Membership {
    pub(super) group: IpAddr,
    pub(super) member: IpAddr,
    pub(super) interface: u32,
}

impl PortSlot {
    pub(super) fn new(counts: &Arc<PortCounters>) -> Self {
        Self {
            sockets: Vec::new(),
            endpoints: vec![None; INDICES],
            in_use: 0,
            number: 0,
            blocked: VecDeque::new(),
            counts: Arc::clone(counts),
        }
    }

    /// Sets the events for which the sockets of the port are watched.
    pub(super) fn set_interest(&mut self, interest: Interest) {
        for socket in &mut self.sockets {
            if let Err(error) = socket.socket.set_interest(interest) {
                tracing::error!(%error, local = %socket.local, "a UDP port cannot be watched");
            }
        }
    }

    /// Records that queue pair `endpoint` found no room in socket `at`. It continues when there is
    /// room.
    pub(super) fn block(&mut self, endpoint: Token, at: usize) {
        let socket = &mut self.sockets[at];
        let blocked = Blocked { endpoint, socket: socket.token };
        match self.blocked.iter_mut().find(|other| other.endpoint == endpoint) {
            Some(before) => *before = blocked,
            None => self.blocked.push_back(blocked),
        }
        if let Err(error) = socket.socket.set_interest(Interest::BOTH) {
            tracing::error!(%error, local = %socket.local, "a UDP port cannot be watched");
        }
    }

    /// Removes and returns the queue pair that has waited longest for room in `socket`.
    pub(super) fn next_blocked(&mut self, socket: Token) -> Option<Token> {
        let at = self.blocked.iter().position(|blocked| blocked.socket == socket)?;
        self.blocked.remove(at).map(|blocked| blocked.endpoint)
    }

    /// Returns whether the queue pair waits for room.
    pub(super) fn is_blocked(&self, endpoint: Token) -> bool {
        self.blocked.iter().any(|blocked| blocked.endpoint == endpoint)
    }

    /// Records that no queue pair waits for room in `socket`.
    pub(super) fn stop_waiting(&mut self, socket: Token) {
        let interest = if self.in_use == 0 { Interest::NONE } else { Interest::READ };
        if let Some(socket) = self.sockets.iter_mut().find(|other| other.token == socket) {
            let _ = socket.socket.set_interest(interest);
        }
    }

    /// Returns the socket with this local address.
    pub(super) fn socket_at(&self, local: IpAddr) -> Option<usize> {
        (0..self.sockets.len()).find(|at| self.is_socket_at(*at, local))
    }

    /// Returns whether socket `at` has this address and is not that of a group.
    pub(super) fn is_socket_at(&self, at: usize, local: IpAddr) -> bool {
        let has_address = |socket: &PortSocket| {
            socket.group.is_none() && socket.local.ip().to_canonical() == local
        };
        self.sockets.get(at).is_some_and(has_address)
    }

    pub(super) fn count(&self, what: Count) {
        self.counts.add(what, 1);
    }

    pub(super) fn group(&mut self, membership: Membership) -> Option<&mut Group> {
        self.sockets.iter_mut().find_map(|socket| {
            let at = socket.local.ip() == membership.group;
            socket.group.as_mut().filter(|group| at && group.member == membership.member)
        })
    }
}

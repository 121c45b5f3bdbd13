//! The shard's side of a datagram port.

use super::counts::{Count, Counts};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use uiw_llp::{DatagramSocket, Interest, Token};

/// Queue pair numbers of a port.
pub(super) const INDICES: usize = 256;
/// Groups that the queue pairs of a port may be attached to.
pub(super) const MAX_GROUPS: usize = 64;

/// One socket of a port.
pub(super) struct PortSocket {
    pub(super) socket: Box<dyn DatagramSocket>,
    /// Its address, or that of its group.
    pub(super) local: SocketAddr,
    /// The token of its events.
    pub(super) token: Token,
    /// Of a group: the address of the interface, and the indices of the attached queue pairs.
    pub(super) group: Option<Group>,
}

pub(super) struct Group {
    pub(super) member: IpAddr,
    pub(super) attached: Vec<u8>,
}

pub(crate) struct PortSlot {
    pub(super) sockets: Vec<PortSocket>,
    /// The queue pair of each index.
    pub(super) endpoints: Vec<Option<Token>>,
    /// The number of queue pairs.
    pub(super) in_use: usize,
    pub(super) number: u16,
    /// Queue pairs whose next datagram found no room.
    pub(super) blocked: Vec<Token>,
    pub(super) counts: Arc<Counts>,
}

/// A group, and the interface at which it is joined.
#[derive(Clone, Copy)]
pub(super) struct Membership {
    pub(super) group: IpAddr,
    pub(super) member: IpAddr,
    pub(super) interface: u32,
}

impl PortSlot {
    pub(super) fn new(counts: &Arc<Counts>) -> Self {
        Self {
            sockets: Vec::new(),
            endpoints: vec![None; INDICES],
            in_use: 0,
            number: 0,
            blocked: Vec::new(),
            counts: Arc::clone(counts),
        }
    }

    /// Watches the port's sockets for `interest`.
    pub(super) fn set_interest(&mut self, interest: Interest) {
        for socket in &mut self.sockets {
            if let Err(error) = socket.socket.set_interest(interest) {
                tracing::error!(%error, local = %socket.local, "a UDP port cannot be watched");
            }
        }
    }

    /// The queue pair of `token` found no room in the socket `at`: it continues when there is room.
    pub(super) fn block(&mut self, token: Token, at: usize) {
        if !self.blocked.contains(&token) {
            self.blocked.push(token);
        }
        let socket = &mut self.sockets[at];
        if let Err(error) = socket.socket.set_interest(Interest::BOTH) {
            tracing::error!(%error, local = %socket.local, "a UDP port cannot be watched");
        }
    }

    /// There is room again: the queue pairs that waited for it.
    pub(super) fn unblock(&mut self, socket: Token) -> Vec<Token> {
        if let Some(socket) = self.sockets.iter_mut().find(|other| other.token == socket) {
            let _ = socket.socket.set_interest(Interest::READ);
        }
        std::mem::take(&mut self.blocked)
    }

    /// The socket of one of our addresses.
    pub(super) fn socket_at(&self, local: IpAddr) -> Option<usize> {
        self.sockets.iter().position(|socket| socket.group.is_none() && socket.local.ip() == local)
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

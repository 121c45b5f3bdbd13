//! The shard's side of a datagram port.

use super::Endpoint;
use super::counts::{Count, Counts};
use crate::driver::{Core, Slot};
use crate::error::{Error, Result};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use uiw_llp::{DatagramOptions, DatagramSocket, Interest, Token};

/// Queue pair numbers of a port.
pub(super) const INDICES: usize = 256;
/// Groups that the queue pairs of a port may be attached to.
const MAX_GROUPS: usize = 64;

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
    member: IpAddr,
    pub(super) attached: Vec<u8>,
}

pub(crate) struct PortSlot {
    pub(super) sockets: Vec<PortSocket>,
    /// The queue pair of each index.
    pub(super) endpoints: Vec<Option<Token>>,
    in_use: usize,
    number: u16,
    /// Queue pairs whose next datagram found no room.
    blocked: Vec<Token>,
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
    /// Binds a port at every address, the same one where the first address has port 0.
    pub(super) fn bind(
        core: &mut Core,
        addresses: &[SocketAddr],
        counts: &Arc<Counts>,
    ) -> Result<(Token, u16)> {
        let slot = Self {
            sockets: Vec::new(),
            endpoints: vec![None; INDICES],
            in_use: 0,
            number: 0,
            blocked: Vec::new(),
            counts: Arc::clone(counts),
        };
        let token = core.insert(|_, _, _| Ok::<_, Error>(Slot::DatagramPort(Box::new(slot))))?;
        let mut port = 0;
        for address in addresses {
            let address = if address.port() == 0 { with_port(*address, port) } else { *address };
            match Self::add_socket(core, token, address, DatagramOptions::default(), None) {
                Ok(bound) => port = bound.port(),
                Err(error) => {
                    Self::unbind(core, token);
                    return Err(error);
                }
            }
        }
        if let Some(slot) = core.datagram_port(token) {
            slot.number = port;
        }
        Ok((token, port))
    }

    /// Adds a socket, and returns its address.
    pub(super) fn add_socket(
        core: &mut Core,
        port: Token,
        local: SocketAddr,
        options: DatagramOptions,
        group: Option<Group>,
    ) -> Result<SocketAddr> {
        let mut socket = None;
        let token = core.insert(|stack, _, token| {
            let made = stack.bind_datagrams(local, &options, token);
            socket = Some(made.map_err(Error::io("binding a UDP port"))?);
            Ok::<_, Error>(Slot::DatagramSocket(port))
        })?;
        let Some(mut socket) = socket else { unreachable!("filled with the slot") };
        let local = socket.local_addr();
        let Some(slot) = core.datagram_port(port) else { return Err(Error::NotConnected) };
        if slot.in_use > 0 {
            socket.set_interest(Interest::READ).map_err(Error::io("waiting for datagrams"))?;
        }
        slot.sockets.push(PortSocket { socket, local, token, group });
        core.add_direct(token);
        Ok(local)
    }

    fn remove_socket(core: &mut Core, port: Token, token: Token) {
        core.remove_direct(token);
        core.remove(token);
        if let Some(slot) = core.datagram_port(port) {
            slot.sockets.retain(|socket| socket.token != token);
        }
    }

    /// Closes the port.
    pub(super) fn unbind(core: &mut Core, port: Token) {
        let Some(slot) = core.datagram_port(port) else { return };
        for token in slot.sockets.iter().map(|socket| socket.token).collect::<Vec<_>>() {
            Self::remove_socket(core, port, token);
        }
        core.remove(port);
    }

    /// Adds a queue pair.
    pub(super) fn add_endpoint(core: &mut Core, endpoint: Endpoint) -> Result<Token> {
        let (port, index) = (endpoint.port, endpoint.index);
        let token = core.next_token();
        let Some(slot) = core.datagram_port(port) else { return Err(Error::NotConnected) };
        slot.endpoints[usize::from(index)] = Some(token);
        slot.in_use += 1;
        let first = slot.in_use == 1;
        core.fill(token, Slot::Endpoint(Box::new(endpoint)));
        if first {
            Self::set_interest(core, port, Interest::READ);
        }
        Ok(token)
    }

    /// Removes a queue pair.
    pub(super) fn remove_endpoint(core: &mut Core, token: Token) {
        let Some(Slot::Endpoint(endpoint)) = core.remove(token) else { return };
        let (port, index) = (endpoint.port, endpoint.index);
        Self::detach_all(core, port, index);
        let Some(slot) = core.datagram_port(port) else { return };
        slot.endpoints[usize::from(index)] = None;
        slot.blocked.retain(|blocked| *blocked != token);
        slot.in_use -= 1;
        if slot.in_use == 0 {
            // What arrives now stays in the kernel's buffer, which is bounded, and is dropped by the next queue pair.
            Self::set_interest(core, port, Interest::NONE);
        }
    }

    fn set_interest(core: &mut Core, port: Token, interest: Interest) {
        let Some(slot) = core.datagram_port(port) else { return };
        for socket in &mut slot.sockets {
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

    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// The socket of one of our addresses.
    pub(super) fn socket_at(&self, local: IpAddr) -> Option<usize> {
        self.sockets.iter().position(|socket| socket.group.is_none() && socket.local.ip() == local)
    }

    pub(super) fn count(&self, what: Count) {
        self.counts.add(what, 1);
    }

    /// Attaches a queue pair to a group.
    pub(super) fn attach(
        core: &mut Core,
        port: Token,
        index: u8,
        membership: Membership,
        udp: u16,
    ) -> Result<()> {
        let Membership { group, member, interface } = membership;
        let Some(slot) = core.datagram_port(port) else { return Err(Error::NotConnected) };
        if let Some(joined) = slot.group(membership) {
            if !joined.attached.contains(&index) {
                joined.attached.push(index);
            }
            return Ok(());
        }
        let groups = slot.sockets.iter().filter(|socket| socket.group.is_some()).count();
        if groups >= MAX_GROUPS {
            return Err(Error::Limit {
                what: "multicast groups of a port",
                asked: groups as u64 + 1,
                limit: MAX_GROUPS as u64,
            });
        }
        let options = DatagramOptions { member: Some(member), interface };
        let local = match group {
            IpAddr::V6(v6) => std::net::SocketAddrV6::new(v6, udp, 0, interface).into(),
            v4 @ IpAddr::V4(_) => SocketAddr::new(v4, udp),
        };
        Self::add_socket(core, port, local, options, Some(Group { member, attached: vec![index] })).map(drop)
    }

    /// Detaches a queue pair from a group. False: it was not attached.
    pub(super) fn detach(core: &mut Core, port: Token, index: u8, membership: Membership) -> bool {
        let Some(slot) = core.datagram_port(port) else { return false };
        let Some(joined) = slot.group(membership) else { return false };
        let before = joined.attached.len();
        joined.attached.retain(|other| *other != index);
        let detached = joined.attached.len() < before;
        Self::leave_unused(core, port);
        detached
    }

    fn detach_all(core: &mut Core, port: Token, index: u8) {
        let Some(slot) = core.datagram_port(port) else { return };
        for group in slot.sockets.iter_mut().filter_map(|socket| socket.group.as_mut()) {
            group.attached.retain(|other| *other != index);
        }
        Self::leave_unused(core, port);
    }

    /// Closes the sockets of groups to which no queue pair is attached.
    fn leave_unused(core: &mut Core, port: Token) {
        let Some(slot) = core.datagram_port(port) else { return };
        let unused =
            |socket: &&PortSocket| socket.group.as_ref().is_some_and(|group| group.attached.is_empty());
        for token in slot.sockets.iter().filter(unused).map(|socket| socket.token).collect::<Vec<_>>() {
            Self::remove_socket(core, port, token);
        }
    }

    fn group(&mut self, membership: Membership) -> Option<&mut Group> {
        self.sockets.iter_mut().find_map(|socket| {
            let at = socket.local.ip() == membership.group;
            socket.group.as_mut().filter(|group| at && group.member == membership.member)
        })
    }
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

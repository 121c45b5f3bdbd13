//! Sockets, queue pairs and groups of a datagram port, changed by commands on its shard.

use super::Endpoint;
use super::address::socket_addr;
use super::counts::PortCounters;
use super::slot::{Group, MAX_GROUPS, Membership, PortSlot, PortSocket};
use crate::driver::{Core, Slot};
use crate::error::{Error, Result};
use crate::qp::QpInner;
use std::net::SocketAddr;
use std::sync::Arc;
use uiw_datagram::MULTICAST_PORT;
use uiw_llp::{DatagramConfig, Interest, Token};

/// Binds a port at all addresses. An address with port 0 gets the port number of the address before
/// it, and the OS chooses the number if it is the first one.
pub(super) fn bind(
    core: &mut Core,
    addresses: &[SocketAddr],
    counts: &Arc<PortCounters>,
) -> Result<(Token, u16)> {
    let token = core.next_token();
    core.fill_slot(token, Slot::DatagramPort(Box::new(PortSlot::new(counts))));
    let mut port = 0;
    for address in addresses {
        let address = if address.port() == 0 { with_port(*address, port) } else { *address };
        match add_socket(core, token, address, DatagramConfig::default(), None) {
            Ok(bound) => port = bound.port(),
            Err(error) => {
                unbind(core, token);
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
    options: DatagramConfig,
    group: Option<Group>,
) -> Result<SocketAddr> {
    let token = core.next_token();
    let bound = core.stack.bind_datagrams(local, &options, token);
    let mut socket = bound.map_err(Error::io("binding a UDP port"))?;
    core.fill_slot(token, Slot::DatagramSocket(port));
    let local = socket.local_addr();
    let Some(slot) = core.datagram_port(port) else { return Err(Error::NotConnected) };
    if slot.in_use > 0
        && let Err(error) = socket.set_interest(Interest::READ)
    {
        core.remove(token);
        return Err(Error::io("waiting for datagrams")(error));
    }
    let is_group = group.is_some();
    slot.sockets.push(PortSocket { socket, local, token, takes_many: false, group });
    if !is_group {
        core.services.shared.datagram_sockets.add(local);
    }
    core.datagram_sockets.push(token);
    Ok(local)
}

fn remove_socket(core: &mut Core, port: Token, token: Token) {
    core.datagram_sockets.retain(|other| *other != token);
    core.remove(token);
    let Some(slot) = core.datagram_port(port) else { return };
    let Some(at) = slot.sockets.iter().position(|socket| socket.token == token) else { return };
    let socket = slot.sockets.remove(at);
    if socket.group.is_none() {
        core.services.shared.datagram_sockets.remove(socket.local);
    }
}

/// Closes the port.
pub(super) fn unbind(core: &mut Core, port: Token) {
    let Some(slot) = core.datagram_port(port) else { return };
    for token in slot.sockets.iter().map(|socket| socket.token).collect::<Vec<_>>() {
        remove_socket(core, port, token);
    }
    core.remove(port);
}

/// Adds a queue pair.
pub(super) fn add_endpoint(
    core: &mut Core,
    qp: &Arc<QpInner>,
    port: Token,
    index: u8,
) -> Result<Token> {
    let token = core.next_token();
    let Some(slot) = core.datagram_port(port) else { return Err(Error::NotConnected) };
    let Some(local) = slot.sockets.first().map(|socket| socket.local) else {
        return Err(Error::NotConnected);
    };
    slot.endpoints[usize::from(index)] = Some(token);
    slot.in_use += 1;
    if slot.in_use == 1 {
        slot.set_interest(Interest::READ);
    }
    let counters = core.services.counters.open_datagrams(qp.num, local);
    core.fill_slot(token, Slot::Endpoint(Box::new(Endpoint::new(qp, port, index, counters))));
    Ok(token)
}

/// Removes a queue pair.
pub(super) fn remove_endpoint(core: &mut Core, token: Token) {
    let Some(Slot::Endpoint(endpoint)) = core.remove(token) else { return };
    let (port, index) = (endpoint.port, endpoint.index);
    core.services.counters.close_datagrams(&endpoint.counters);
    detach_all(core, port, index);
    let Some(slot) = core.datagram_port(port) else { return };
    slot.endpoints[usize::from(index)] = None;
    slot.blocked.retain(|blocked| blocked.endpoint != token);
    slot.in_use -= 1;
    if slot.in_use == 0 {
        // Datagrams that arrive now stay in the buffer of the kernel, which is bounded. The next
        // queue pair discards them.
        slot.set_interest(Interest::NONE);
    }
}

/// Attaches a queue pair to a group.
pub(super) fn attach(
    core: &mut Core,
    port: Token,
    index: u8,
    membership: Membership,
) -> Result<()> {
    let Membership { group, member, interface } = membership;
    if !group.is_multicast() {
        return Err(Error::Misuse("not the address of a multicast group"));
    }
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
    let options = DatagramConfig { member: Some(member), interface };
    let local = socket_addr(group, MULTICAST_PORT, interface);
    add_socket(core, port, local, options, Some(Group { member, attached: vec![index] })).map(drop)
}

/// Detaches a queue pair from a group. Returns false if it was not attached.
pub(super) fn detach(core: &mut Core, port: Token, index: u8, membership: Membership) -> bool {
    let Some(slot) = core.datagram_port(port) else { return false };
    let Some(joined) = slot.group(membership) else { return false };
    let before = joined.attached.len();
    joined.attached.retain(|other| *other != index);
    let detached = joined.attached.len() < before;
    leave_unused(core, port);
    detached
}

fn detach_all(core: &mut Core, port: Token, index: u8) {
    let Some(slot) = core.datagram_port(port) else { return };
    for group in slot.sockets.iter_mut().filter_map(|socket| socket.group.as_mut()) {
        group.attached.retain(|other| *other != index);
    }
    leave_unused(core, port);
}

/// Closes the sockets of groups to which no queue pair is attached.
fn leave_unused(core: &mut Core, port: Token) {
    let Some(slot) = core.datagram_port(port) else { return };
    let unused =
        |socket: &&PortSocket| socket.group.as_ref().is_some_and(|group| group.attached.is_empty());
    for token in slot.sockets.iter().filter(unused).map(|socket| socket.token).collect::<Vec<_>>() {
        remove_socket(core, port, token);
    }
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

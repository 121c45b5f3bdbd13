//! Queue pair numbers that name a TCP port and one of 256 slots.
//!
//! A port is reserved (bound) when the first queue pair takes a slot, at every address of the device, and listened on from the
//! first INIT. Slots come back at the end of the line, so that a number is not used again at once; nor when nobody was on the port
//! meanwhile, as it may be the first one of a range that the user gave.

use super::worker::Worker;
use crate::boundary::Result;
use crate::device::netdev::NetDev;
use crate::errno::Errno;
use crate::settings::Settings;
use crate::stack;
use socket2::{Domain, Socket, Type};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use verbs::ConnOptions;
use verbs::cm::Listener;

/// All ports of the process.
#[derive(Default)]
pub(super) struct Ports {
    blocks: Vec<Block>,
    /// Where the line begins of a port that was let go.
    former: HashMap<u16, u8>,
}

/// One port, on one device.
pub(super) struct Block {
    netdev: String,
    port: u16,
    addresses: Vec<SocketAddr>,
    state: State,
    free: VecDeque<u8>,
}

enum State {
    Reserved(#[expect(dead_code, reason = "kept open")] Vec<Socket>),
    Listening(Vec<Listener>),
}

/// Slots of a port.
const SLOTS: usize = 256;

/// Attempts to find a port that is free at every address of a device.
const TRIES: u32 = 64;

/// Peers that may wait at a port.
const BACKLOG: u32 = 256;

/// The address of `ip` on `netdev`: link-local ones need to say where.
pub(super) fn socket_address(ip: IpAddr, port: u16, netdev: &NetDev) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, port, 0, netdev.index).into(),
        ip => SocketAddr::new(ip, port),
    }
}

impl Ports {
    /// A number on `netdev` that no living queue pair has.
    pub(super) fn take(&mut self, netdev: &NetDev) -> Result<u32> {
        let place = self.blocks.iter().position(|b| b.netdev == netdev.name && !b.free.is_empty());
        let place = match place {
            Some(place) => place,
            None => {
                let block = self.reserve(netdev)?;
                self.blocks.push(block);
                self.blocks.len() - 1
            }
        };
        let block = &mut self.blocks[place];
        let slot = block.free.pop_front().ok_or(Errno::NOMEM)?;
        Ok(u32::from(block.port) << 8 | u32::from(slot))
    }

    fn reserve(&self, netdev: &NetDev) -> Result<Block> {
        let taken = |port: u16| self.blocks.iter().any(|block| block.port == port);
        let mut last = Errno(libc::EADDRINUSE);
        let range = Settings::get()?.qp_ports.clone();
        let wanted: Box<dyn Iterator<Item = u16>> = match range {
            Some(range) => Box::new(range.filter(|port| !taken(*port))),
            None => Box::new((0..TRIES).map(|_| 0)),
        };
        for port in wanted {
            match bind_all(netdev, port) {
                Ok((port, _, _)) if taken(port) => {}
                Ok((port, addresses, sockets)) => {
                    return Ok(Block {
                        netdev: netdev.name.clone(),
                        port,
                        addresses,
                        state: State::Reserved(sockets),
                        free: self.line(port),
                    });
                }
                Err(error) => last = error.into(),
            }
        }
        tracing::warn!(netdev = netdev.name, error = %last, "no port for queue pairs");
        Err(last)
    }

    /// All slots of a port, in the order in which they are given out.
    fn line(&self, port: u16) -> VecDeque<u8> {
        let first = self.former.get(&port).copied().unwrap_or_default();
        (0..=u8::MAX).map(|slot| slot.wrapping_add(first)).collect()
    }

    /// Listens on the port of `number` at every address of `netdev` where nobody does yet: addresses come and go, and those of IPv6
    /// are checked by the kernel for a while before they can be used.
    pub(super) fn listen(
        &mut self,
        number: u32,
        netdev: &NetDev,
        engine: &verbs::Device,
        worker: &Arc<Worker>,
    ) -> Result<()> {
        let Some(block) = self.blocks.iter_mut().find(|block| u32::from(block.port) == number >> 8) else {
            return Err(Errno::INVAL);
        };
        let options: Arc<ConnOptions> = Arc::new(worker.options());
        let bind = |address| Listener::bind(engine, address, BACKLOG, &options, worker.channel());
        let listeners = match &mut block.state {
            State::Listening(listeners) => listeners,
            State::Reserved(_) => {
                let first: Vec<_> =
                    block.addresses.iter().copied().map(bind).collect::<verbs::Result<_>>()?;
                tracing::debug!(port = block.port, netdev = block.netdev, "queue pairs can be called");
                block.state = State::Listening(first);
                let State::Listening(listeners) = &mut block.state else { return Ok(()) };
                listeners
            }
        };
        for (ip, _) in &netdev.addresses {
            let address = socket_address(*ip, block.port, netdev);
            if !block.addresses.contains(&address)
                && let Ok(listener) = bind(address)
            {
                listeners.push(listener);
                block.addresses.push(address);
            }
        }
        Ok(())
    }

    /// The number is free again. Gives a port that nobody needs any more, for the caller to close.
    pub(super) fn give_back(&mut self, number: u32) -> Option<Block> {
        let place = self.blocks.iter().position(|block| u32::from(block.port) == number >> 8)?;
        let block = &mut self.blocks[place];
        block.free.push_back((number & 0xFF) as u8);
        if block.free.len() < SLOTS {
            return None;
        }
        self.former.insert(block.port, block.free.front().copied().unwrap_or_default());
        Some(self.blocks.swap_remove(place))
    }
}

/// Binds the same port at every address of the device; `port` 0 = any.
fn bind_all(netdev: &NetDev, port: u16) -> io::Result<(u16, Vec<SocketAddr>, Vec<Socket>)> {
    let mut port = port;
    let (mut addresses, mut sockets) = (Vec::new(), Vec::new());
    if stack::is_own() {
        let port = if port == 0 { stack::any_port() } else { port };
        let at = |(ip, _): &(IpAddr, u8)| socket_address(*ip, port, netdev);
        return Ok((port, netdev.addresses.iter().map(at).collect(), sockets));
    }
    for (ip, _) in &netdev.addresses {
        let socket = Socket::new(Domain::for_address(socket_address(*ip, port, netdev)), Type::STREAM, None)?;
        // Lets the engine listen beside this reservation, which never listens.
        socket.set_reuse_address(true)?;
        if let Err(error) = socket.bind(&socket_address(*ip, port, netdev).into()) {
            if error.kind() == io::ErrorKind::AddrNotAvailable {
                // Gone since the list was made, or an IPv6 address that is still being checked.
                continue;
            }
            return Err(error);
        }
        port = socket.local_addr()?.as_socket().map_or(port, |address| address.port());
        addresses.push(socket_address(*ip, port, netdev));
        sockets.push(socket);
    }
    if addresses.is_empty() {
        Err(io::ErrorKind::AddrNotAvailable.into())
    } else {
        Ok((port, addresses, sockets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::netdev;

    fn lo() -> NetDev {
        netdev::all().unwrap().pop().unwrap()
    }

    #[test]
    fn numbers_are_ports_and_slots_and_differ() {
        let mut ports = Ports::default();
        let first: Vec<u32> = (0..SLOTS).map(|_| ports.take(&lo()).unwrap()).collect();
        assert!(first.iter().all(|number| number >> 8 == first[0] >> 8), "256 slots of one port");
        let next = ports.take(&lo()).unwrap();
        assert_ne!(next >> 8, first[0] >> 8, "then another port");
        assert!(ports.give_back(first[3]).is_none());
        assert!(ports.give_back(first[9]).is_none());
        assert_eq!([ports.take(&lo()).unwrap(), ports.take(&lo()).unwrap()], [first[3], first[9]]);
    }

    #[test]
    fn a_slot_is_not_used_again_at_once() {
        let mut ports = Ports::default();
        let (one, two) = (ports.take(&lo()).unwrap(), ports.take(&lo()).unwrap());
        ports.give_back(two);
        assert_ne!(ports.take(&lo()).unwrap(), two);
        assert_ne!(one, two);
    }

    #[test]
    fn nor_when_its_port_was_let_go_meanwhile() {
        let mut ports = Ports::default();
        let numbers = [ports.take(&lo()).unwrap(), ports.take(&lo()).unwrap()];
        let port = (numbers[0] >> 8) as u16;
        assert!(ports.give_back(numbers[1]).is_none());
        drop(ports.give_back(numbers[0]).expect("nobody else is on this port"));
        // The port is taken again.
        let line = ports.line(port);
        assert_eq!(line.len(), SLOTS);
        assert!(line.iter().take(SLOTS - 2).all(|slot| numbers.iter().all(|n| n & 0xFF != u32::from(*slot))));
    }

    #[test]
    fn an_unused_port_is_let_go() {
        let mut ports = Ports::default();
        let number = ports.take(&lo()).unwrap();
        let block = ports.give_back(number).expect("nobody else is on this port");
        drop(block);
        let again = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], (number >> 8) as u16));
        again.bind(&address.into()).expect("the port is free");
    }
}

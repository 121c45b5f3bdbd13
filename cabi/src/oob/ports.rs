//! Queue pair numbers that name a TCP port and one of 256 slots.
//!
//! A port is reserved (bound) when the first queue pair takes a slot, at every address of the device, and listened on from the
//! first INIT. Slots that are given back are used again last, so that a number is not reused at once; this also holds across a
//! release of the whole port, as it may be the first one of a range that the user gave.

use super::worker::Worker;
use crate::boundary::Result;
use crate::device::netdev::NetDev;
use crate::errno::Errno;
use crate::settings::Settings;
use crate::stack;
use parking_lot::Mutex;
use socket2::{Domain, Socket, Type};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use uiw_verbs::ConnOptions;
use uiw_verbs::cm::Listener;

/// All ports of the process.
#[derive(Default)]
pub(super) struct Ports(Mutex<Tables>);

/// Locked for look-ups and changes alone: ports are bound, listened on and closed without this lock.
#[derive(Default)]
struct Tables {
    blocks: Vec<Block>,
    /// The next slot of a port that was released.
    next_slot: HashMap<u16, u8>,
}

/// The slots of one port, on one device.
struct Block {
    netdev: String,
    port: Arc<Port>,
    free: VecDeque<u8>,
}

/// A port at every address of a device, shared by the queue pairs that have its slots.
struct Port {
    number: u16,
    /// Locked while the port begins to be listened on: the queue pairs of the port need the same listeners, so they wait for them.
    sockets: Mutex<Sockets>,
}

struct Sockets {
    addresses: Vec<SocketAddr>,
    state: State,
}

enum State {
    Reserved(#[expect(dead_code, reason = "kept open")] Vec<Socket>),
    Listening(Vec<Listener>),
}

/// A slot of a port: a queue pair number.
pub(super) struct Slot {
    port: Arc<Port>,
    slot: u8,
}

/// Slots of a port.
const SLOTS: usize = 256;

/// Attempts to find a port that is free at every address of a device.
const TRIES: u32 = 64;

/// The backlog of a port.
const BACKLOG: u32 = 256;

impl Ports {
    /// A number on `netdev` that no living queue pair has.
    pub(super) fn take(&self, netdev: &NetDev) -> Result<Slot> {
        if let Some(slot) = self.0.lock().take(netdev) {
            return Ok(slot);
        }
        let mut last = Errno(libc::EADDRINUSE);
        let range = Settings::get()?.qp_ports.clone();
        let wanted: Box<dyn Iterator<Item = u16>> = match range {
            Some(range) => Box::new(range),
            None => Box::new((0..TRIES).map(|_| 0)),
        };
        for port in wanted {
            if port != 0 && self.0.lock().has(port) {
                continue;
            }
            match bind_all(netdev, port) {
                Ok(bound) => {
                    if let Some(slot) = self.0.lock().add(netdev, bound) {
                        return Ok(slot);
                    }
                }
                Err(error) => last = error.into(),
            }
        }
        // Another thread may have added the last port of the range since.
        if let Some(slot) = self.0.lock().take(netdev) {
            return Ok(slot);
        }
        tracing::warn!(netdev = netdev.name, error = %last, "no port for queue pairs");
        Err(last)
    }

    /// The number is free again. A port without queue pairs is closed with the last reference to it.
    pub(super) fn give_back(&self, slot: &Slot) {
        let unused = self.0.lock().give_back(slot);
        drop(unused);
    }
}

impl Tables {
    fn has(&self, port: u16) -> bool {
        self.blocks.iter().any(|block| block.port.number == port)
    }

    fn take(&mut self, netdev: &NetDev) -> Option<Slot> {
        let block = self.blocks.iter_mut().find(|b| b.netdev == netdev.name && !b.free.is_empty())?;
        let slot = block.free.pop_front()?;
        Some(Slot { port: Arc::clone(&block.port), slot })
    }

    /// Adds a port that was bound without the lock, and takes a slot. Where another thread has added one meanwhile, a slot of that
    /// is taken. Nothing when the port is known already: two sockets may be bound to one port, as both allow reuse.
    fn add(&mut self, netdev: &NetDev, (number, sockets): (u16, Sockets)) -> Option<Slot> {
        if let Some(slot) = self.take(netdev) {
            return Some(slot);
        }
        if self.has(number) {
            return None;
        }
        let port = Arc::new(Port { number, sockets: Mutex::new(sockets) });
        let free = self.slots(number);
        self.blocks.push(Block { netdev: netdev.name.clone(), port, free });
        self.take(netdev)
    }

    /// All slots of a port, in the order in which they are taken.
    fn slots(&self, port: u16) -> VecDeque<u8> {
        let first = self.next_slot.get(&port).copied().unwrap_or_default();
        (0..=u8::MAX).map(|slot| slot.wrapping_add(first)).collect()
    }

    fn give_back(&mut self, slot: &Slot) -> Option<Block> {
        let place = self.blocks.iter().position(|block| Arc::ptr_eq(&block.port, &slot.port))?;
        let block = &mut self.blocks[place];
        block.free.push_back(slot.slot);
        if block.free.len() < SLOTS {
            return None;
        }
        self.next_slot.insert(block.port.number, block.free.front().copied().unwrap_or_default());
        Some(self.blocks.swap_remove(place))
    }
}

impl Slot {
    /// The queue pair number.
    pub(super) fn number(&self) -> u32 {
        u32::from(self.port.number) << 8 | u32::from(self.slot)
    }

    /// Listens on the port at every address of `netdev` where it does not yet: addresses come and go, and those of IPv6 are checked
    /// by the kernel for a while before they can be used.
    pub(super) fn listen(&self, netdev: &NetDev, engine: &uiw_verbs::Device, worker: &Worker) -> Result<()> {
        let options: Arc<ConnOptions> = Arc::new(worker.options());
        let bind = |address| Listener::bind(engine, address, BACKLOG, &options, worker.channel());
        let mut sockets = self.port.sockets.lock();
        let Sockets { addresses, state } = &mut *sockets;
        if let State::Reserved(_) = state {
            let first: Vec<_> = addresses.iter().copied().map(bind).collect::<uiw_verbs::Result<_>>()?;
            tracing::debug!(port = self.port.number, netdev = netdev.name, "queue pairs can be connected to");
            *state = State::Listening(first);
        }
        let State::Listening(listeners) = state else { return Ok(()) };
        for (ip, _) in &netdev.addresses {
            let address = netdev.socket_address(*ip, self.port.number);
            if !addresses.contains(&address)
                && let Ok(listener) = bind(address)
            {
                listeners.push(listener);
                addresses.push(address);
            }
        }
        Ok(())
    }
}

/// Binds the same port at every address of the device; `port` 0 = any.
fn bind_all(netdev: &NetDev, port: u16) -> io::Result<(u16, Sockets)> {
    let mut port = port;
    let (mut addresses, mut sockets) = (Vec::new(), Vec::new());
    if stack::is_own() {
        let port = if port == 0 { stack::any_port() } else { port };
        let addresses = netdev.addresses.iter().map(|(ip, _)| netdev.socket_address(*ip, port)).collect();
        return Ok((port, Sockets { addresses, state: State::Reserved(sockets) }));
    }
    for (ip, _) in &netdev.addresses {
        let socket = Socket::new(Domain::for_address(netdev.socket_address(*ip, port)), Type::STREAM, None)?;
        // Lets the engine listen beside this reservation, which never listens.
        socket.set_reuse_address(true)?;
        if let Err(error) = socket.bind(&netdev.socket_address(*ip, port).into()) {
            if error.kind() == io::ErrorKind::AddrNotAvailable {
                // Gone since the list was made, or an IPv6 address that is still being checked.
                continue;
            }
            return Err(error);
        }
        port = socket.local_addr()?.as_socket().map_or(port, |address| address.port());
        addresses.push(netdev.socket_address(*ip, port));
        sockets.push(socket);
    }
    if addresses.is_empty() {
        Err(io::ErrorKind::AddrNotAvailable.into())
    } else {
        Ok((port, Sockets { addresses, state: State::Reserved(sockets) }))
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
        let ports = Ports::default();
        let first: Vec<Slot> = (0..SLOTS).map(|_| ports.take(&lo()).unwrap()).collect();
        assert!(
            first.iter().all(|slot| slot.number() >> 8 == first[0].number() >> 8),
            "256 slots of one port"
        );
        let next = ports.take(&lo()).unwrap();
        assert_ne!(next.number() >> 8, first[0].number() >> 8, "then another port");
        ports.give_back(&first[3]);
        ports.give_back(&first[9]);
        let again = [ports.take(&lo()).unwrap().number(), ports.take(&lo()).unwrap().number()];
        assert_eq!(again, [first[3].number(), first[9].number()]);
    }

    #[test]
    fn numbers_taken_by_many_threads_differ() {
        let ports = Ports::default();
        let taken: Vec<Slot> = std::thread::scope(|scope| {
            let take = || (0..2 * SLOTS).map(|_| ports.take(&lo()).unwrap()).collect::<Vec<_>>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let numbers: std::collections::BTreeSet<_> = taken.iter().map(Slot::number).collect();
        assert_eq!(numbers.len(), 8 * SLOTS);
    }

    #[test]
    fn a_slot_is_not_used_again_at_once() {
        let ports = Ports::default();
        let (one, two) = (ports.take(&lo()).unwrap(), ports.take(&lo()).unwrap());
        ports.give_back(&two);
        assert_ne!(ports.take(&lo()).unwrap().number(), two.number());
        assert_ne!(one.number(), two.number());
    }

    #[test]
    fn slots_are_not_used_again_at_once_after_their_port_was_released() {
        let ports = Ports::default();
        let slots = [ports.take(&lo()).unwrap(), ports.take(&lo()).unwrap()];
        let port = slots[0].port.number;
        ports.give_back(&slots[1]);
        ports.give_back(&slots[0]);
        let tables = ports.0.lock();
        assert!(!tables.has(port), "no queue pair is on this port");
        // The port is taken again.
        let order = tables.slots(port);
        assert_eq!(order.len(), SLOTS);
        assert!(order.iter().take(SLOTS - 2).all(|slot| slots.iter().all(|former| former.slot != *slot)));
    }

    #[test]
    fn an_unused_port_is_released() {
        let ports = Ports::default();
        let slot = ports.take(&lo()).unwrap();
        let port = slot.port.number;
        ports.give_back(&slot);
        drop(slot);
        let again = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        again.bind(&address.into()).expect("the port is free");
    }
}

//! Queue pair numbers. Each consists of a port, of both TCP and UDP, and one of 256 slots.
//!
//! A port is reserved (bound) at every address of the device when the first queue pair takes a
//! slot, and is listened on from the first transition to INIT. It belongs to one shard, the shard
//! of the completion queues for the receives of its queue pairs. Released slots are reused last, so
//! that a number is not reused immediately. This applies even after the release of the whole port,
//! which may be the first one of a range that the user has configured.

use super::worker::Worker;
use crate::device::netdev::NetDev;
use parking_lot::Mutex;
use socket2::{Domain, Socket, Type};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::denied;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::settings::Settings;
use uiw_cabi_core::stack;
use uiw_verbs::DatagramPort;
use uiw_verbs::cm::Listener;

/// Ports of the process.
#[derive(Default)]
pub(super) struct Ports(Mutex<PortTables>);

/// Tables of the ports. They are locked only for look-ups and changes: ports are bound, listened on
/// and closed without this lock.
#[derive(Default)]
struct PortTables {
    blocks: Vec<SlotBlock>,
    /// Next slot of each port that was released.
    next_slot: HashMap<u16, u8>,
}

/// Slots of one port on one device.
struct SlotBlock {
    netdev: String,
    shard: usize,
    port: Arc<SharedPort>,
    free: VecDeque<u8>,
}

/// Port at every address of a device, shared by the queue pairs that have its slots.
struct SharedPort {
    number: u16,
    /// UDP side of the port; `None` if datagrams are not offered.
    datagrams: Option<Arc<DatagramPort>>,
    /// Sockets of the port. They are locked while the port begins to listen, because all queue
    /// pairs of the port need the same listeners.
    sockets: Mutex<PortSockets>,
}

struct PortSockets {
    addresses: Vec<SocketAddr>,
    state: PortState,
}

enum PortState {
    Reserved(#[expect(dead_code, reason = "kept open")] Vec<Socket>),
    Listening(Vec<Listener>),
}

/// Slot of a port, which is a queue pair number.
pub(super) struct Slot {
    port: Arc<SharedPort>,
    slot: u8,
}

/// Number of slots of a port.
const SLOTS: usize = 256;

/// Maximum number of attempts to find a port that is free at every address of a device.
const TRIES: u32 = 64;

/// Backlog of a listening port.
const BACKLOG: u32 = 256;

impl Ports {
    /// Takes a number on `netdev` for `shard` that no live queue pair has.
    pub(super) fn take(
        &self,
        netdev: &NetDev,
        shard: usize,
        bind_datagrams: BindDatagrams<'_>,
    ) -> Result<Slot> {
        if let Some(slot) = self.0.lock().take(netdev, shard) {
            return Ok(slot);
        }
        let mut last = Errno(libc::EADDRINUSE);
        let range = Settings::get()?.qp_ports.clone();
        let wanted: Box<dyn Iterator<Item = u16>> = match range {
            Some(range) => Box::new(range),
            None => Box::new((0..TRIES).map(|_| 0)),
        };
        for port in wanted {
            if port == u16::MAX || port != 0 && self.0.lock().has(port) {
                continue;
            }
            match bind_all(netdev, port, bind_datagrams) {
                Ok(bound) => {
                    let bound = Arc::new(bound);
                    let slot = self.0.lock().add(netdev, shard, &bound);
                    // An unneeded port is closed after the lock is released.
                    if let Some(slot) = slot {
                        return Ok(slot);
                    }
                }
                Err(error) => {
                    denied::report("opening a port for queue pairs", &error);
                    last = error.into();
                }
            }
        }
        // Another thread may have added the last port of the range meanwhile.
        if let Some(slot) = self.0.lock().take(netdev, shard) {
            return Ok(slot);
        }
        tracing::warn!(netdev = netdev.name, error = %last, "no port for queue pairs");
        Err(last)
    }

    /// Releases a number. A port without queue pairs is closed with the last reference to it.
    pub(super) fn give_back(&self, slot: &Slot) {
        let unused = self.0.lock().give_back(slot);
        drop(unused);
    }
}

impl PortTables {
    fn has(&self, port: u16) -> bool {
        self.blocks.iter().any(|block| block.port.number == port)
    }

    fn take(&mut self, netdev: &NetDev, shard: usize) -> Option<Slot> {
        let fits = |block: &&mut SlotBlock| {
            block.netdev == netdev.name && block.shard == shard && !block.free.is_empty()
        };
        let block = self.blocks.iter_mut().find(fits)?;
        let slot = block.free.pop_front()?;
        Some(Slot { port: Arc::clone(&block.port), slot })
    }

    /// Adds a port that was bound without the lock, and takes a slot. If another thread has added a
    /// port meanwhile, takes a slot of that port. Returns `None` if the port cannot be used or is
    /// already known: two sockets may be bound to the same port, because both permit reuse.
    fn add(&mut self, netdev: &NetDev, shard: usize, port: &Arc<SharedPort>) -> Option<Slot> {
        if let Some(slot) = self.take(netdev, shard) {
            return Some(slot);
        }
        // The last number of the last port is the destination of multicast messages.
        if self.has(port.number) || port.number == u16::MAX {
            return None;
        }
        let free = self.slots(port.number);
        self.blocks.push(SlotBlock {
            netdev: netdev.name.clone(),
            shard,
            port: Arc::clone(port),
            free,
        });
        self.take(netdev, shard)
    }

    /// Returns the slots of a port in the order in which they will be taken.
    fn slots(&self, port: u16) -> VecDeque<u8> {
        let first = self.next_slot.get(&port).copied().unwrap_or_default();
        (0..=u8::MAX).map(|slot| slot.wrapping_add(first)).collect()
    }

    fn give_back(&mut self, slot: &Slot) -> Option<SlotBlock> {
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
    /// Returns the queue pair number.
    pub(super) fn number(&self) -> u32 {
        u32::from(self.port.number) << 8 | u32::from(self.slot)
    }

    /// Returns the UDP side of the port.
    pub(super) fn datagrams(&self) -> Option<&Arc<DatagramPort>> {
        self.port.datagrams.as_ref()
    }

    /// Listens at all addresses of `netdev` where the port does not listen yet. Addresses come and
    /// go, and the kernel checks IPv6 addresses for a while before they can be used.
    pub(super) fn listen(
        &self,
        netdev: &NetDev,
        engine: &uiw_verbs::Device,
        worker: &Worker,
    ) -> Result<()> {
        let bind =
            |address| Listener::bind(engine, address, BACKLOG, worker.options(), worker.channel());
        let mut sockets = self.port.sockets.lock();
        let PortSockets { addresses, state } = &mut *sockets;
        let mut failure = Errno(libc::EADDRNOTAVAIL);
        if let PortState::Reserved(_) = state {
            let (mut first, mut bound) = (Vec::new(), Vec::new());
            for &address in &*addresses {
                match bind(address) {
                    Ok(listener) => {
                        first.push(listener);
                        bound.push(address);
                    }
                    // The address was removed from its interface after it was reserved.
                    Err(error) if error.io_kind() == io::ErrorKind::AddrNotAvailable => {}
                    // The port stays reserved for the next attempt.
                    Err(error) => return Err(error.into()),
                }
            }
            tracing::debug!(
                port = self.port.number,
                netdev = netdev.name,
                "queue pairs accept connections"
            );
            *addresses = bound;
            *state = PortState::Listening(first);
        }
        let PortState::Listening(listeners) = state else { return Ok(()) };
        for (ip, _) in &netdev.addresses {
            let address = netdev.socket_address(*ip, self.port.number);
            if addresses.contains(&address) {
                continue;
            }
            match bind(address) {
                Ok(listener) => {
                    listeners.push(listener);
                    addresses.push(address);
                }
                Err(error) => failure = error.into(),
            }
        }
        if listeners.is_empty() { Err(failure) } else { Ok(()) }
    }
}

/// Function that binds the same UDP port at the given addresses, if datagrams are offered.
type BindDatagrams<'a> = &'a dyn Fn(&[SocketAddr]) -> io::Result<Option<Arc<DatagramPort>>>;

/// Binds the same port at every address of the device. `port` 0 means any port.
fn bind_all(
    netdev: &NetDev,
    mut port: u16,
    bind_datagrams: BindDatagrams<'_>,
) -> io::Result<SharedPort> {
    let (mut addresses, mut sockets) = (Vec::new(), Vec::new());
    if stack::is_in_process() {
        let port = if port == 0 { stack::random_port() } else { port };
        let addresses =
            netdev.addresses.iter().map(|(ip, _)| netdev.socket_address(*ip, port)).collect();
        return SharedPort::reserve(port, addresses, sockets, bind_datagrams);
    }
    for (ip, _) in &netdev.addresses {
        let socket =
            Socket::new(Domain::for_address(netdev.socket_address(*ip, port)), Type::STREAM, None)?;
        // The engine must be able to listen on the port in addition to this socket, which never
        // listens.
        socket.set_reuse_address(true)?;
        if let Err(error) = socket.bind(&netdev.socket_address(*ip, port).into()) {
            if error.kind() == io::ErrorKind::AddrNotAvailable {
                // The address has disappeared since the list was made, or it is an IPv6 address
                // that is still being checked.
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
        SharedPort::reserve(port, addresses, sockets, bind_datagrams)
    }
}

impl SharedPort {
    /// Creates a port whose TCP side is bound.
    fn reserve(
        number: u16,
        addresses: Vec<SocketAddr>,
        reserved: Vec<Socket>,
        bind_datagrams: BindDatagrams<'_>,
    ) -> io::Result<Self> {
        let datagrams = bind_datagrams(&addresses)?;
        let sockets = Mutex::new(PortSockets { addresses, state: PortState::Reserved(reserved) });
        Ok(Self { number, datagrams, sockets })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::netdev;
    use uiw_llp::tcp::TcpStack;
    use uiw_verbs::{Device, DeviceConfig};

    fn take(ports: &Ports) -> Result<Slot> {
        ports.take(&lo(), 0, &|_| Ok(None))
    }

    fn lo() -> NetDev {
        netdev::all().unwrap().pop().unwrap()
    }

    #[test]
    fn numbers_unique_per_port_and_slot() {
        let ports = Ports::default();
        let first: Vec<Slot> = (0..SLOTS).map(|_| take(&ports).unwrap()).collect();
        assert!(
            first.iter().all(|slot| slot.number() >> 8 == first[0].number() >> 8),
            "256 slots of one port"
        );
        let next = take(&ports).unwrap();
        assert_ne!(next.number() >> 8, first[0].number() >> 8, "then another port");
        ports.give_back(&first[3]);
        ports.give_back(&first[9]);
        let again = [take(&ports).unwrap().number(), take(&ports).unwrap().number()];
        assert_eq!(again, [first[3].number(), first[9].number()]);
    }

    #[test]
    fn numbers_taken_by_many_threads_differ() {
        let ports = Ports::default();
        let taken: Vec<Slot> = std::thread::scope(|scope| {
            let take = || (0..2 * SLOTS).map(|_| take(&ports).unwrap()).collect::<Vec<_>>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let numbers: std::collections::BTreeSet<_> = taken.iter().map(Slot::number).collect();
        assert_eq!(numbers.len(), 8 * SLOTS);
    }

    #[test]
    fn slot_not_reused_at_once() {
        let ports = Ports::default();
        let (one, two) = (take(&ports).unwrap(), take(&ports).unwrap());
        ports.give_back(&two);
        assert_ne!(take(&ports).unwrap().number(), two.number());
        assert_ne!(one.number(), two.number());
    }

    #[test]
    fn slots_not_reused_after_port_release() {
        let ports = Ports::default();
        let slots = [take(&ports).unwrap(), take(&ports).unwrap()];
        let port = slots[0].port.number;
        ports.give_back(&slots[1]);
        ports.give_back(&slots[0]);
        let tables = ports.0.lock();
        assert!(!tables.has(port), "no queue pair is on this port");
        // The port is taken again.
        let order = tables.slots(port);
        assert_eq!(order.len(), SLOTS);
        assert!(
            order
                .iter()
                .take(SLOTS - 2)
                .all(|slot| slots.iter().all(|former| former.slot != *slot))
        );
    }

    #[test]
    fn unused_port_released() {
        let ports = Ports::default();
        let slot = take(&ports).unwrap();
        let port = slot.port.number;
        ports.give_back(&slot);
        drop(slot);
        let again = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        again.bind(&address.into()).expect("the port is free");
    }

    #[test]
    fn failed_listen_can_be_repeated() {
        let (engine, ports) = (Device::open().unwrap(), Ports::default());
        let worker = Worker::start(&engine).unwrap();
        let slot = take(&ports).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], slot.port.number));
        let other = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        other.set_reuse_address(true).unwrap();
        other.bind(&address.into()).unwrap();
        other.listen(1).unwrap();
        for _ in 0..2 {
            assert_eq!(slot.listen(&lo(), &engine, &worker), Err(Errno(libc::EADDRINUSE)));
        }
        drop(other);
        slot.listen(&lo(), &engine, &worker).unwrap();
        std::net::TcpStream::connect(address).unwrap();
    }

    #[test]
    fn block_has_both_protocols_and_shard() {
        let ports = Ports::default();
        let options = DeviceConfig::default().shards(2);
        let engine = Device::with_stack(Box::new(TcpStack::new().unwrap()), options).unwrap();
        let bind = |shard| {
            let engine = engine.clone();
            move |addresses: &[SocketAddr]| {
                DatagramPort::bind(&engine, addresses, shard, 1024)
                    .map(Some)
                    .map_err(io::Error::other)
            }
        };
        let one = ports.take(&lo(), 0, &bind(0)).unwrap();
        let other = ports.take(&lo(), 1, &bind(1)).unwrap();
        let same = ports.take(&lo(), 1, &bind(1)).unwrap();
        assert_ne!(one.number() >> 8, other.number() >> 8, "each shard has a block of its own");
        assert_eq!(other.number() >> 8, same.number() >> 8);
        for slot in [&one, &other] {
            assert_eq!(slot.datagrams().unwrap().number(), slot.port.number);
            let address = SocketAddr::from(([127, 0, 0, 1], slot.port.number));
            assert!(std::net::UdpSocket::bind(address).is_err(), "the UDP port is taken");
        }
        let number = one.port.number;
        ports.give_back(&one);
        drop(one);
        std::net::UdpSocket::bind(("127.0.0.1", number)).expect("the UDP port is free");
    }
}

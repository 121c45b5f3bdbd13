//! Ports that the ids of this process have reserved.

use crate::address;
use crate::boundary::Result;
use crate::denied;
use crate::errno::Errno;
use crate::fork::{ForkSafe, ForkState};
use crate::inherited::InheritableSocket;
use crate::lock::RwLock;
use crate::stack;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

/// Maximum number of ports that are requested from the system until the program can be given one.
const PORT_TRIES: usize = 64;

/// Reserved port of an id.
#[derive(Clone, Copy)]
struct PortEntry {
    /// The real address.
    at: SocketAddr,
    /// True for UDP, false for TCP.
    datagrams: bool,
    /// Value of `RDMA_OPTION_ID_REUSEADDR`.
    reuse: bool,
    /// Identifies the id among those that have the same port.
    holder: usize,
    /// Socket that was bound for the reservation. A child of a fork closes its copy.
    socket: Option<InheritableSocket>,
}

/// Reserved ports by number. Ids conflict only if their port numbers are equal.
struct PortTable(BTreeMap<u16, Vec<PortEntry>>);

impl ForkState for PortTable {
    const NEW: Self = Self(BTreeMap::new());

    fn in_child(&mut self) {
        for entry in std::mem::take(&mut self.0).into_values().flatten() {
            entry.socket.into_iter().for_each(InheritableSocket::close);
        }
    }
}

static PORTS: ForkSafe<PortTable, 16> = ForkSafe::new();

fn shard(port: u16) -> &'static RwLock<PortTable> {
    PORTS.shard(port.into())
}

/// Reservation of a port for an id: no other id of this process gets the port, and the system
/// assigns it to no other socket while it is bound.
pub struct PortReservation {
    at: SocketAddr,
    holder: usize,
    /// Socket that is bound, but neither listening nor connected. `None` after
    /// [`PortReservation::unbind`], and if TCP runs in this process.
    bound: Option<Socket>,
}

impl PortReservation {
    /// Returns the real address that is reserved.
    pub fn address(&self) -> SocketAddr {
        self.at
    }

    /// Releases the system's part of the reservation, because the connection or listener of the id
    /// is about to use the port.
    pub fn unbind(&mut self) -> Option<Socket> {
        self.bound.take()
    }
}

impl Drop for PortReservation {
    fn drop(&mut self) {
        let number = self.at.port();
        let mut shard = shard(number).write();
        if let Some(ports) = shard.0.get_mut(&number) {
            ports.retain(|port| port.holder != self.holder);
            if ports.is_empty() {
                shard.0.remove(&number);
            }
        }
    }
}

/// Reserves the real address `at` for the id `holder`, and returns the address with its port. For
/// port 0, a free port is chosen.
///
/// # Errors
/// EADDRINUSE, EADDRNOTAVAIL, EACCES.
pub fn reserve(
    holder: usize,
    at: SocketAddr,
    datagrams: bool,
    reuse: bool,
    v6_only: bool,
) -> Result<(SocketAddr, PortReservation)> {
    for _ in 0..PORT_TRIES {
        let (bound, socket) = if stack::is_in_process() {
            let port = if at.port() == 0 { stack::random_port() } else { at.port() };
            (SocketAddr::new(at.ip(), port), None)
        } else {
            let (bound, socket) = bind(at, datagrams, v6_only)?;
            (bound, Some(socket))
        };
        if at.port() == 0 && !address::has_program_port(bound.port()) {
            continue;
        }
        let inheritable =
            socket.as_ref().and_then(|socket| InheritableSocket::from_fd(socket.as_raw_fd()));
        let entry = PortEntry { at: bound, datagrams, reuse, holder, socket: inheritable };
        match record(entry, socket) {
            // The system may assign a port that is still recorded here, because the socket of an id
            // may be closed before its reservation ends.
            Err(Errno(libc::EADDRINUSE)) if at.port() == 0 => {}
            taken => return taken.map(|reservation| (bound, reservation)),
        }
    }
    Err(Errno(libc::EADDRNOTAVAIL).because("no port is free"))
}

/// Binds a new socket to `at`, and returns the address that the system has given it.
fn bind(at: SocketAddr, datagrams: bool, v6_only: bool) -> Result<(SocketAddr, Socket)> {
    let socket = new_socket(at, datagrams).inspect_err(|error| {
        // Every system has IPv4, but IPv6 may be disabled.
        if at.is_ipv4() && !datagrams {
            denied::report("opening a socket for a port", error);
        }
    })?;
    if at.is_ipv6() {
        socket.set_only_v6(v6_only)?;
    }
    socket.bind(&at.into())?;
    let bound = socket
        .local_addr()?
        .as_socket()
        .ok_or_else(|| Errno::INVAL.because("the system bound the socket to no IP address"))?;
    Ok((bound, socket))
}

fn new_socket(at: SocketAddr, datagrams: bool) -> io::Result<Socket> {
    let (kind, protocol) =
        if datagrams { (Type::DGRAM, Protocol::UDP) } else { (Type::STREAM, Protocol::TCP) };
    let socket = Socket::new(Domain::for_address(at), kind, Some(protocol))?;
    // Earlier connections of the port in TIME-WAIT must not prevent the bind.
    socket.set_reuse_address(!datagrams)?;
    Ok(socket)
}

/// Returns whether a bind to `at` that the system has refused with EADDRINUSE conflicts with a
/// wildcard address. This is like [`is_taken_by_wildcard`], but also covers other processes. The
/// test binds to an address of the documentation range, which no host has: this fails only if a
/// socket at a wildcard address has the port.
pub fn is_bound_to_wildcard(at: SocketAddr, datagrams: bool) -> bool {
    if at.ip().is_unspecified() {
        return true;
    }
    let bind = || -> io::Result<()> {
        let socket = new_socket(at, datagrams)?;
        let unused: IpAddr = if at.is_ipv4() {
            socket.set_freebind_v4(true)?;
            Ipv4Addr::new(192, 0, 2, 1).into()
        } else {
            socket.set_freebind_v6(true)?;
            Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, 1).into()
        };
        socket.bind(&SocketAddr::new(unused, at.port()).into())
    };
    bind().is_err_and(|error| error.raw_os_error() == Some(libc::EADDRINUSE))
}

/// Returns a port that is free for the address `ip` and that the program can have. Returns 0 if
/// every port that the system assigns for port 0 is such a port.
///
/// # Errors
/// EADDRNOTAVAIL, and OS errors.
pub fn free_named(ip: IpAddr) -> Result<u16> {
    let (first, last) = system_ports();
    // The ports that the program can have form a range, so checking both ends is sufficient.
    if address::has_program_port(first) && address::has_program_port(last) {
        return Ok(0);
    }
    let at = SocketAddr::new(ip, 0);
    for _ in 0..PORT_TRIES {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
        socket.bind(&at.into())?;
        let port = socket.local_addr()?.as_socket().map_or(0, |bound| bound.port());
        if address::has_program_port(port) {
            return Ok(port);
        }
    }
    Err(Errno(libc::EADDRNOTAVAIL).because("UIW_PORT_OFFSET permits none of the free ports"))
}

/// Returns the first and the last port that the system assigns for port 0.
fn system_ports() -> (u16, u16) {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut words = text.split_whitespace().map(str::parse);
    match (words.next(), words.next()) {
        (Some(Ok(first)), Some(Ok(last))) => (first, last),
        _ => (32768, 60999),
    }
}

/// Records a reserved port, unless another id of this process has it.
fn record(port: PortEntry, bound: Option<Socket>) -> Result<PortReservation> {
    let number = port.at.port();
    let mut shard = shard(number).write();
    let ports = shard.0.entry(number).or_default();
    if ports.iter().any(|other| collide(*other, port)) {
        return Err(Errno(libc::EADDRINUSE).because("another id has the port"));
    }
    ports.push(port);
    Ok(PortReservation { at: port.at, holder: port.holder, bound })
}

/// Returns whether another id of this process prevents an id from using `at` because one of the two
/// has a wildcard address. The kernel's rdma_cm reports such a conflict as EADDRNOTAVAIL, and a
/// conflict of two ids with the same address as EADDRINUSE (`cma_check_port`).
pub fn is_taken_by_wildcard(at: SocketAddr, datagrams: bool, reuse: bool) -> bool {
    let port = PortEntry { at, datagrams, reuse, holder: 0, socket: None };
    shard(at.port()).read().0.get(&at.port()).is_some_and(|ports| {
        ports.iter().any(|other| {
            collide(*other, port) && (at.ip().is_unspecified() || other.at.ip().is_unspecified())
        })
    })
}

fn collide(a: PortEntry, b: PortEntry) -> bool {
    let (left, right) = (a.at.ip(), b.at.ip());
    let same = left == right
        || (left.is_unspecified() || right.is_unspecified()) && left.is_ipv4() == right.is_ipv4();
    a.at.port() == b.at.port() && a.datagrams == b.datagrams && same && !(a.reuse && b.reuse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_collide_by_address_and_family() {
        let port = |at: &str, reuse| PortEntry {
            at: at.parse().unwrap(),
            datagrams: false,
            reuse,
            holder: 0,
            socket: None,
        };
        let udp = PortEntry { datagrams: true, ..port("10.0.0.1:5", false) };
        assert!(collide(udp, udp) && !collide(udp, port("10.0.0.1:5", false)));
        assert!(collide(port("10.0.0.1:5", false), port("10.0.0.1:5", true)));
        assert!(collide(port("0.0.0.0:5", false), port("10.0.0.1:5", false)));
        assert!(!collide(port("10.0.0.1:5", true), port("10.0.0.1:5", true)));
        assert!(!collide(port("10.0.0.1:5", false), port("10.0.0.2:5", false)));
        assert!(!collide(port("10.0.0.1:5", false), port("10.0.0.1:6", false)));
        assert!(!collide(port("0.0.0.0:5", false), port("[::1]:5", false)));
    }

    #[test]
    fn port_held_until_reservation_ends() {
        let (bound, reservation) =
            reserve(1, "127.0.0.1:0".parse().unwrap(), false, false, false).unwrap();
        assert_eq!(reserve(2, bound, false, false, false).err(), Some(Errno(libc::EADDRINUSE)));
        assert!(!is_taken_by_wildcard(bound, false, false));
        let wildcard = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), bound.port());
        assert!(
            is_taken_by_wildcard(wildcard, false, false)
                && !is_taken_by_wildcard(wildcard, true, false)
        );
        drop(reservation);
        assert!(!is_taken_by_wildcard(wildcard, false, false));
        let (again, _reservation) = reserve(2, bound, false, false, false).unwrap();
        assert_eq!(again, bound);
    }
}

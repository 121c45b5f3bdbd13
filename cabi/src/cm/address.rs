//! Addresses of C, the port offset, ports that ids have, and which of our addresses leads to a peer.

use crate::abi::cm::rdma_sockaddr;
use crate::abi::rdma_cm_id;
use crate::boundary::{self, Result};
use crate::cm::id::{Id, Options};
use crate::cm::registry::{self, Port};
use crate::errno::Errno;
use crate::settings::Settings;
use crate::{context, process, stack};
use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, Socket, Type};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::ptr;

/// Ports that are asked of the system until one can be shown to the program.
const PORT_TRIES: usize = 16;

/// An address of C's.
///
/// # Safety
/// `addr` is NULL or points to an address as long as its family's.
///
/// # Errors
/// EINVAL for NULL and for families other than IPv4 and IPv6.
pub(crate) unsafe fn read(addr: *const libc::sockaddr) -> Result<SocketAddr> {
    if addr.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise; every address begins with its family. C need not have aligned it.
    let len = match c_int_of(unsafe { (&raw const (*addr).sa_family).read_unaligned() }) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return Err(Errno::INVAL),
    };
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: the caller's promise: that many octets are there, and they fit the storage.
    let address = unsafe {
        ptr::copy_nonoverlapping(addr.cast::<u8>(), (&raw mut storage).cast::<u8>(), len);
        SockAddr::new(storage, len as libc::socklen_t)
    };
    address.as_socket().ok_or(Errno::INVAL)
}

fn c_int_of(family: libc::sa_family_t) -> i32 {
    family.into()
}

/// An address as C reads it, in room for any.
pub(crate) fn write(address: SocketAddr) -> rdma_sockaddr {
    let from = SockAddr::from(address);
    let mut to = rdma_sockaddr([0; 128]);
    let len = (from.len() as usize).min(to.0.len());
    // SAFETY: both are that long.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr().cast::<u8>(), to.0.as_mut_ptr(), len) };
    to
}

/// A real address with the number that the program has for its port.
pub(crate) fn shown(address: SocketAddr) -> rdma_sockaddr {
    let mut address = address;
    if address.port() != 0 {
        address.set_port(program_port(address.port(), offset()));
    }
    write(address)
}

/// The real address that the program means: `UIW_PORT_OFFSET` is added to its port. 0 stays "any".
///
/// # Errors
/// EADDRNOTAVAIL when no port has the number.
pub(crate) fn real(address: SocketAddr) -> Result<SocketAddr> {
    let mut address = plain(address);
    if address.port() != 0 {
        let port = real_port(address.port(), offset()).ok_or(Errno(libc::EADDRNOTAVAIL))?;
        address.set_port(port);
    }
    Ok(address)
}

fn offset() -> i32 {
    Settings::get().map_or(0, |settings| settings.port_offset)
}

/// Counting goes round at 65536, so that every port but one that would be 0 has a number, at both ends of a connection the same.
fn real_port(program: u16, offset: i32) -> Option<u16> {
    let real = (i32::from(program) + offset).rem_euclid(1 << 16) as u16;
    (real != 0).then_some(real)
}

fn program_port(real: u16, offset: i32) -> u16 {
    (i32::from(real) - offset).rem_euclid(1 << 16) as u16
}

/// An IPv4 address that came through an IPv6 socket, as what it is.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}

/// A port that an id has: nobody else in this process gets it, and the system gives it to nobody.
pub(crate) struct Reservation {
    /// Bound, and neither listening nor connected: it ends when the id gives up its port. None on a TCP in this process.
    _socket: Option<Socket>,
}

/// Takes the real address `at` for `id`. Port 0 takes a free one. Returns the address with its port.
///
/// # Errors
/// EADDRINUSE, EADDRNOTAVAIL, EACCES.
pub(crate) fn reserve(id: &Id, at: SocketAddr, options: Options) -> Result<(SocketAddr, Reservation)> {
    for _ in 0..PORT_TRIES {
        if stack::is_own() {
            let port = if at.port() == 0 { stack::any_port() } else { at.port() };
            let bound = SocketAddr::new(at.ip(), port);
            match take(id, Port { at: bound, reuse: options.reuse }) {
                Err(Errno(libc::EADDRINUSE)) if at.port() == 0 => continue,
                taken => return taken.map(|()| (bound, Reservation { _socket: None })),
            }
        }
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
        // Connections of a former life in TIME-WAIT do not matter.
        socket.set_reuse_address(true)?;
        if at.is_ipv6() {
            socket.set_only_v6(options.v6_only)?;
        }
        socket.bind(&at.into())?;
        let bound = socket.local_addr()?.as_socket().ok_or(Errno::INVAL)?;
        if program_port(bound.port(), offset()) == 0 {
            continue;
        }
        take(id, Port { at: bound, reuse: options.reuse })?;
        return Ok((bound, Reservation { _socket: Some(socket) }));
    }
    Err(Errno(libc::EADDRNOTAVAIL))
}

/// Notes that `id` has a port, unless another id of this process has it.
fn take(id: &Id, port: Port) -> Result<()> {
    process::with(|process| {
        let taken = process.cm.ports.values().any(|other| collide(*other, port));
        if taken {
            return Err(Errno(libc::EADDRINUSE));
        }
        process.cm.ports.insert(id.abi().addr(), port);
        Ok(())
    })
}

fn collide(a: Port, b: Port) -> bool {
    let (left, right) = (a.at.ip(), b.at.ip());
    let same = left == right
        || (left.is_unspecified() || right.is_unspecified()) && left.is_ipv4() == right.is_ipv4();
    a.at.port() == b.at.port() && same && !(a.reuse && b.reuse)
}

/// Which of our addresses the system sends from to reach `peer`, without a port.
///
/// # Errors
/// ENETUNREACH, EHOSTUNREACH, ..
pub(crate) fn source_for(peer: SocketAddr) -> Result<SocketAddr> {
    if let Some(source) = stack::source_for(peer) {
        return source;
    }
    let any: IpAddr =
        if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
    // Connecting a datagram socket asks for the route and sends nothing. Any port does, but 0 is none.
    let socket = UdpSocket::bind((any, 0))?;
    let mut probe = peer;
    probe.set_port(if peer.port() == 0 { 9 } else { peer.port() });
    socket.connect(probe)?;
    let mut source = socket.local_addr()?;
    source.set_port(0);
    Ok(source)
}

/// Ties an id to the device that has `address`: its context and its default protection domain.
///
/// # Errors
/// ENODEV when no device has the address; those of opening it.
pub(crate) fn bind_device(id: &Id, address: IpAddr) -> Result<()> {
    let verbs = context::for_address(address)?;
    let pd = crate::cm::qp::default_domain(verbs)?;
    let _ordered = id.lock();
    // SAFETY: the structure is alive, and the lock orders us.
    unsafe {
        (*id.abi()).verbs = verbs;
        (*id.abi()).pd = pd;
        (*id.abi()).port_num = 1;
    }
    Ok(())
}

/// `rdma_get_src_port`, in network order.
///
/// # Safety
/// None: what is no id of ours has port 0.
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    port(id, |id| id.lock().local)
}

/// `rdma_get_dst_port`, in network order.
///
/// # Safety
/// As [`rdma_get_src_port`].
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    port(id, |id| id.lock().peer)
}

fn port(id: *mut rdma_cm_id, of: impl FnOnce(&Id) -> Option<SocketAddr>) -> u16 {
    boundary::value(0, || {
        let id = registry::id(id)?;
        let real = of(&id).map_or(0, |address| address.port());
        Ok(if real == 0 { 0 } else { program_port(real, offset()).to_be() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_go_round_and_both_ends_agree() {
        for offset in [-65535, -40000, -1, 0, 1, 10000, 40000, 65535] {
            for program in [1u16, 80, 7471, 32768, 65535] {
                match real_port(program, offset) {
                    Some(real) => assert_eq!(program_port(real, offset), program, "{offset}"),
                    None => assert_eq!((i32::from(program) + offset) % 65536, 0),
                }
            }
        }
        assert_eq!(real_port(7471, 1000), Some(8471));
    }

    #[test]
    fn addresses_of_both_families_there_and_back() {
        for text in ["10.1.2.3:4711", "[fe80::1%3]:7", "[::]:0", "0.0.0.0:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let written = write(address);
            // SAFETY: an address just written, and as long as any.
            assert_eq!(unsafe { read(written.0.as_ptr().cast()) }.unwrap(), address);
        }
    }

    #[test]
    fn mapped_addresses_are_ipv4_and_scopes_stay() {
        let of = |text: &str| plain(text.parse().unwrap()).to_string();
        assert_eq!(of("[::ffff:10.1.2.3]:7"), "10.1.2.3:7");
        assert_eq!(of("[fe80::1%3]:7"), "[fe80::1%3]:7");
        assert_eq!(of("10.1.2.3:7"), "10.1.2.3:7");
    }

    #[test]
    fn other_families_and_nothing_are_refused() {
        // SAFETY: NULL is allowed; a family is all that is read of an unknown one.
        unsafe {
            assert_eq!(read(ptr::null()), Err(Errno::INVAL));
            let infiniband = rdma_sockaddr([27; 128]);
            assert_eq!(read(infiniband.0.as_ptr().cast()), Err(Errno::INVAL));
        }
    }

    #[test]
    fn ports_collide_by_address_family_and_consent() {
        let port = |at: &str, reuse| Port { at: at.parse().unwrap(), reuse };
        assert!(collide(port("10.0.0.1:5", false), port("10.0.0.1:5", true)));
        assert!(collide(port("0.0.0.0:5", false), port("10.0.0.1:5", false)));
        assert!(!collide(port("10.0.0.1:5", true), port("10.0.0.1:5", true)));
        assert!(!collide(port("10.0.0.1:5", false), port("10.0.0.2:5", false)));
        assert!(!collide(port("10.0.0.1:5", false), port("10.0.0.1:6", false)));
        assert!(!collide(port("0.0.0.0:5", false), port("[::1]:5", false)));
    }
}

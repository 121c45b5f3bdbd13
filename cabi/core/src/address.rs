//! Socket addresses in C's representation, the port offset, and the source address for a peer.

use crate::abi::cm::rdma_sockaddr;
use crate::arguments::Argument;
use crate::boundary::Result;
use crate::denied;
use crate::errno::Errno;
use crate::settings::Settings;
use crate::stack;
use socket2::{SockAddr, SockAddrStorage};
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::{ptr, slice};
pub use uiw_llp::canonical as to_canonical;

/// Pointer that is NULL or points to a socket address of the size of its family. The pointer may be
/// unaligned. The program does not change the address during the call.
#[repr(transparent)]
pub struct AddressPtr<'a>(*const libc::sockaddr, PhantomData<&'a libc::sockaddr>);

// SAFETY: the structure is declared as `repr(transparent)` above, and its only field that has a
// size is a `C`.
unsafe impl Argument for AddressPtr<'_> {
    type C = *const libc::sockaddr;
}

impl AddressPtr<'_> {
    /// Returns the address, or `None` for NULL.
    ///
    /// # Errors
    /// EINVAL for families other than IPv4 and IPv6.
    pub fn get(&self) -> Result<Option<SocketAddr>> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: the pointer is not NULL, as checked above, so it points to a socket address,
        // which the program does not change during the call, as the type requires. Every socket
        // address contains `sa_family` at the same place, and `read_unaligned` reads it at any
        // alignment.
        let family = unsafe { (&raw const (*self.0).sa_family).read_unaligned() };
        let len = family_len(family).ok_or_else(unknown_family)?;
        // SAFETY: the pointer is not NULL, as checked above, so the address has `len` bytes, the
        // size of its family, which the program does not change during the call, as the type
        // requires. Bytes need no alignment, and those of the program count as initialized (module
        // `arguments`).
        parse(unsafe { slice::from_raw_parts(self.0.cast(), len) }).map(Some)
    }

    /// Returns the address.
    ///
    /// # Errors
    /// EINVAL for NULL, and for families other than IPv4 and IPv6.
    pub fn read(&self) -> Result<SocketAddr> {
        self.get()?.ok_or_else(|| Errno::INVAL.because("an address is NULL"))
    }
}

fn unknown_family() -> Errno {
    Errno::INVAL.because("the address is neither IPv4 nor IPv6")
}

/// Returns the size in bytes of the socket addresses of `family`.
#[inline]
pub(crate) fn family_len(family: libc::sa_family_t) -> Option<usize> {
    match family.into() {
        libc::AF_INET => Some(size_of::<libc::sockaddr_in>()),
        libc::AF_INET6 => Some(size_of::<libc::sockaddr_in6>()),
        _ => None,
    }
}

/// Returns the family of a socket address, or `None` if `address` is too short to contain one.
#[inline]
pub fn family(address: &[u8]) -> Option<libc::sa_family_t> {
    address.first_chunk().map(|family| libc::sa_family_t::from_ne_bytes(*family))
}

/// Parses the socket address at the beginning of `bytes`.
///
/// # Errors
/// EINVAL for families other than IPv4 and IPv6, and if `bytes` is shorter than an address of its
/// family.
pub fn parse(bytes: &[u8]) -> Result<SocketAddr> {
    let known = family(bytes).and_then(family_len).and_then(|len| bytes.get(..len));
    let known = known.ok_or_else(unknown_family)?;
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: `known` is a borrowed slice with the size of an address of its family, and `storage`
    // is a local variable that is larger and for which all bytes are valid. `SockAddr::new` gets an
    // initialized address of that family with its length.
    let address = unsafe {
        ptr::copy_nonoverlapping(known.as_ptr(), (&raw mut storage).cast::<u8>(), known.len());
        SockAddr::new(storage, known.len() as libc::socklen_t)
    };
    address.as_socket().ok_or_else(unknown_family)
}

/// Returns the address in C's representation, in a buffer for addresses of any family.
pub fn to_sockaddr(address: SocketAddr) -> rdma_sockaddr {
    let from = SockAddr::from(address);
    let mut to = rdma_sockaddr([0; 128]);
    let len = (from.len() as usize).min(to.0.len());
    // SAFETY: `SockAddr::as_ptr` points to `from.len()` initialized bytes, and `to.0` has
    // `to.0.len()`; `len` is the smaller number. Both are local variables, so they live and do not
    // overlap.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr().cast::<u8>(), to.0.as_mut_ptr(), len) };
    to
}

/// Converts a real address to C's representation, with the port number that the program sees.
pub fn to_program(mut address: SocketAddr) -> rdma_sockaddr {
    if address.port() != 0 {
        address.set_port(program_port(address.port()));
    }
    to_sockaddr(address)
}

/// Returns the bytes of the buffer that belong to the address. An address of an unknown family has
/// the size of an IPv4 address.
#[inline]
pub fn significant_bytes(address: &rdma_sockaddr) -> &[u8] {
    let len = family(&address.0).and_then(family_len).unwrap_or(size_of::<libc::sockaddr_in>());
    &address.0[..len]
}

/// Converts an address of the program to its real address, without converting IPv4-mapped IPv6
/// addresses. Returns `None` if the port offset leads to an invalid port.
pub fn to_real_same_family(mut address: SocketAddr) -> Option<SocketAddr> {
    if address.port() != 0 {
        address.set_port(real_port(address.port(), offset())?);
    }
    Some(address)
}

/// Converts an address of the program to its real address: `UIW_PORT_OFFSET` is added to its port,
/// and an IPv4-mapped IPv6 address becomes an IPv4 address. Port 0 remains 0 (any port).
///
/// # Errors
/// EADDRNOTAVAIL if the sum is not a valid port.
pub fn to_real(address: SocketAddr) -> Result<SocketAddr> {
    to_real_same_family(to_canonical(address)).ok_or_else(|| unmapped_port(address.port()))
}

fn offset() -> i32 {
    Settings::get().map_or(0, |settings| settings.port_offset)
}

/// Returns the error for a port of the program that has no real port.
pub fn unmapped_port(program: u16) -> Errno {
    Errno(libc::EADDRNOTAVAIL)
        .because(format_args!("with UIW_PORT_OFFSET, port {program} is not from 1 to 65535"))
}

/// Returns the real port for a port of the program, or `None` if the sum is not a valid port. The
/// sum does not wrap, because the result could be the port of a system service: with the offset
/// 10,000, port 55558 would become the port of ssh.
fn real_port(program: u16, offset: i32) -> Option<u16> {
    u16::try_from(i32::from(program) + offset).ok().filter(|real| *real != 0)
}

/// Returns the number by which the program sees a real port. If no port of the program corresponds
/// to the real port (see `has_program_port`), for example for the local port of an outgoing
/// connection, the number wraps at 65536. Numbers remain distinct, but such a number is only for
/// display.
pub fn program_port(real: u16) -> u16 {
    (i32::from(real) - offset()).rem_euclid(1 << 16) as u16
}

/// Returns whether the real port corresponds to a port of the program. Only such ports may be
/// assigned when the program binds to port 0.
pub(crate) fn has_program_port(real: u16) -> bool {
    real_port(real, -offset()).is_some()
}

/// Returns the unspecified address of IPv4 or IPv6 with port 0.
pub fn any(is_ipv6: bool) -> SocketAddr {
    let ip: IpAddr =
        if is_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    SocketAddr::new(ip, 0)
}

/// Returns the address from which the system sends to `peer`, with port 0.
///
/// # Errors
/// Errors of routing, such as ENETUNREACH and EHOSTUNREACH.
pub fn source_for(peer: SocketAddr) -> Result<SocketAddr> {
    if let Some(source) = stack::source_for(peer) {
        return source;
    }
    // Connecting a datagram socket looks up the route and sends nothing. Any port except 0 is
    // suitable.
    let socket = UdpSocket::bind(any(peer.is_ipv6())).inspect_err(|error| {
        // Every system has IPv4, but IPv6 may be disabled.
        if peer.is_ipv4() {
            denied::report("looking for a route to the peer", error);
        }
    })?;
    let mut probe = peer;
    probe.set_port(if peer.port() == 0 { 9 } else { peer.port() });
    socket.connect(probe)?;
    let mut source = socket.local_addr()?;
    source.set_port(0);
    Ok(source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::argument;

    #[test]
    fn port_offsets_do_not_wrap() {
        for offset in [-65535, -40000, -1, 0, 1, 10000, 40000, 65535] {
            for program in [1u16, 80, 7471, 32768, 65535] {
                match real_port(program, offset) {
                    Some(real) => assert_eq!(real_port(real, -offset), Some(program), "{offset}"),
                    None => {
                        assert!(!(1..=65535).contains(&(i32::from(program) + offset)), "{offset}");
                    }
                }
            }
        }
        assert_eq!(real_port(7471, 1000), Some(8471));
        assert_eq!((real_port(55535, 10_000), real_port(55536, 10_000)), (Some(65535), None));
        // The port of ssh, and a port below 1024.
        assert_eq!((real_port(55558, 10_000), real_port(56000, 10_000)), (None, None));
        assert_eq!((real_port(5001, -5000), real_port(5000, -5000)), (Some(1), None));
    }

    #[test]
    fn addresses_of_both_families_round_trip() {
        for text in ["10.1.2.3:4711", "[fe80::1%3]:7", "[::]:0", "0.0.0.0:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let written = to_sockaddr(address);
            // SAFETY: `AddressPtr` permits the pointer: `to_sockaddr` has written an address of
            // IPv4 or IPv6 to the buffer, a local variable that lives, unchanged, until the end of
            // this iteration.
            let written: AddressPtr<'_> = unsafe { argument(written.0.as_ptr().cast()) };
            assert_eq!(written.read().unwrap(), address);
        }
    }

    #[test]
    fn mapped_addresses_become_ipv4() {
        let of = |text: &str| to_canonical(text.parse().unwrap()).to_string();
        assert_eq!(of("[::ffff:10.1.2.3]:7"), "10.1.2.3:7");
        assert_eq!(of("[fe80::1%3]:7"), "[fe80::1%3]:7");
        assert_eq!(of("10.1.2.3:7"), "10.1.2.3:7");
    }

    #[test]
    fn other_families_and_nothing_are_refused() {
        let infiniband = rdma_sockaddr([27; 128]);
        for address in [ptr::null(), infiniband.0.as_ptr().cast()] {
            // SAFETY: `AddressPtr` permits NULL. The other pointer is to a local buffer of 128
            // bytes, enough for an address of any family, which lives, unchanged, until the end of
            // the test.
            let address: AddressPtr<'_> = unsafe { argument(address) };
            assert_eq!(address.read(), Err(Errno::INVAL));
        }
    }
}

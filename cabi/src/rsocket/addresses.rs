//! Addresses that C gives and takes, and the program's name.

use crate::boundary::Result;
use crate::cm::address;
use crate::errno::Errno;
use libc::{sockaddr, socklen_t};
use std::ffi::{CStr, c_char, c_int};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr;

/// An address of C, `len` bytes long.
///
/// # Safety
/// `addr` is NULL or `len` readable bytes.
pub(crate) unsafe fn read_address(addr: *const sockaddr, len: socklen_t) -> Result<SocketAddr> {
    if !addr.is_null() && (len as usize) < size_of::<libc::sa_family_t>() {
        return Err(Errno::INVAL.because("an address that is shorter than its family"));
    }
    // SAFETY: the caller's promise; the family is there.
    let family = if addr.is_null() { 0 } else { unsafe { (&raw const (*addr).sa_family).read_unaligned() } };
    let least = match c_int::from(family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        // Programs of before RFC 2553 leave out the scope.
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => 0,
    };
    if (len as usize) < least {
        return Err(Errno::INVAL.because("an address that is shorter than its family's"));
    }
    // SAFETY: as long as its family's.
    unsafe { address::read(addr) }
}

/// Gives C an address, as much as fits, and its length.
///
/// # Safety
/// `len` is NULL or readable and writable; `addr` is NULL or has `*len` bytes.
pub(crate) unsafe fn write_address(real: SocketAddr, addr: *mut sockaddr, len: *mut socklen_t) -> Result<()> {
    if len.is_null() {
        return Err(Errno(libc::EFAULT).null());
    }
    let bytes = address::shown(real);
    let full = if real.is_ipv4() { size_of::<libc::sockaddr_in>() } else { size_of::<libc::sockaddr_in6>() };
    // SAFETY: the caller's promise.
    unsafe {
        let room = (*len as usize).min(full);
        if !addr.is_null() {
            ptr::copy_nonoverlapping(bytes.0.as_ptr().cast::<u8>(), addr.cast::<u8>(), room);
        }
        *len = full as socklen_t;
    }
    Ok(())
}

/// The name by which the program was started, without folders.
pub(crate) fn program_name() -> &'static str {
    unsafe extern "C" {
        static program_invocation_short_name: *const c_char;
    }
    // SAFETY: a text that the C library makes before any other code runs, and that stays.
    unsafe {
        if program_invocation_short_name.is_null() {
            return "";
        }
        CStr::from_ptr(program_invocation_short_name).to_str().unwrap_or("")
    }
}

/// The address of this host, where a program connects to "any".
pub(crate) fn reachable(to: SocketAddr) -> SocketAddr {
    let mut to = to;
    match to {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => to.set_ip(Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => to.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    to
}

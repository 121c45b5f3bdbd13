//! Addresses that are passed from and to C, and the name of the program.

use libc::socklen_t;
use std::ffi::{CStr, c_char};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use uiw_cabi_core::address;
use uiw_cabi_core::arguments::{ArrayMutPtr, ArrayPtr, Count, RoomPtr, write_bytes};
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;

/// Reads an address of C that has `len` bytes.
pub(crate) fn read_address<'a>(addr: &ArrayPtr<'a, u8>, len: Count<'a, socklen_t>) -> Result<SocketAddr> {
    address::parse(addr.get(len)?.ok_or_else(|| Errno::INVAL.because("an address is NULL"))?)
}

/// Writes as much of an address as fits, and its length.
pub(crate) fn write_address<'a>(real: SocketAddr, addr: ArrayMutPtr<'a, u8>, len: RoomPtr<'a>) -> Result<()> {
    let shown = address::to_program(real);
    write_bytes(addr, len, address::significant_bytes(&shown))
}

/// Returns the name with which the program was started, without directories.
pub(crate) fn program_name() -> &'static str {
    unsafe extern "C" {
        static program_invocation_short_name: *const c_char;
    }
    // SAFETY: the variable has this type. It is NULL until the C library's startup code sets it, to
    // a string that ends in NUL and is never freed (program_invocation_name(3)). A program that
    // sets it must store such a string, while it has no other threads, because err(3) reads it in
    // any thread at any time. This library only reads it.
    unsafe {
        if program_invocation_short_name.is_null() {
            return "";
        }
        CStr::from_ptr(program_invocation_short_name).to_str().unwrap_or("")
    }
}

/// Returns an address of this host if a program connects to the unspecified address.
pub(crate) fn reachable(to: SocketAddr) -> SocketAddr {
    let mut to = to;
    match to {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => to.set_ip(Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => to.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    to
}

//! Addresses that are passed from and to C, and the name of the program.

use libc::socklen_t;
use std::ffi::{CStr, c_char};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use uiw_cabi_core::address;
use uiw_cabi_core::arguments::{ArrayMutPtr, ArrayPtr, Count, RoomPtr, write_bytes};
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;

/// Reads an address of C that has `len` bytes.
pub(crate) fn read_address<'a>(
    addr: &ArrayPtr<'a, u8>,
    len: Count<'a, socklen_t>,
) -> Result<SocketAddr> {
    address::parse(addr.get(len)?.ok_or_else(|| Errno::INVAL.because("an address is NULL"))?)
}

/// Writes as much of an address as fits, and its length.
pub(crate) fn write_address<'a>(
    real: SocketAddr,
    addr: ArrayMutPtr<'a, u8>,
    len: RoomPtr<'a>,
) -> Result<()> {
    let shown = address::to_program(real);
    write_bytes(addr, len, address::significant_bytes(&shown))
}

/// Returns the name with which the program was started, without directories.
pub(crate) fn program_name() -> String {
    unsafe extern "C" {
        static program_invocation_short_name: *const c_char;
    }
    // SAFETY: the variable has this type. It is NULL or points to a string that ends in NUL and is
    // not freed (program_invocation_name(3)). The bytes are copied at once. A program that sets the
    // variable, or overwrites the string in argv[0], must not do so during a call that may read the
    // name, as err(3) does in any thread.
    unsafe {
        if program_invocation_short_name.is_null() {
            return String::new();
        }
        CStr::from_ptr(program_invocation_short_name).to_string_lossy().into_owned()
    }
}

/// Returns an address of this host if a program connects to the unspecified address.
pub(crate) fn reachable(mut to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => to.set_ip(Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => to.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    to
}

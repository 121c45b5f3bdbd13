//! Options and flags. The last argument of `fcntl` and `ioctl` is there with some commands only; in the calling conventions of these
//! processors it is in a register either way.

use crate::bits::{is_rsocket, is_rsocket_already, is_set};
use crate::close::duplicated;
use crate::{next, sockets};
use libc::socklen_t;
use std::ffi::{c_int, c_long, c_ulong, c_void};

/// # Safety
/// As for the C library's, here and below.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if is_rsocket_already(fd) {
            return sockets::rgetsockopt(fd, level, name, value, len);
        }
        next::getsockopt(fd, level, name, value, len)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if is_rsocket_already(fd) {
            return sockets::rsetsockopt(fd, level, name, value, len);
        }
        next::setsockopt(fd, level, name, value, len)
    }
}

/// # Safety
/// As for fcntl(2), with the C library's function.
unsafe fn control(
    fd: c_int,
    command: c_int,
    argument: *mut c_void,
    next: unsafe fn(c_int, c_int, *mut c_void) -> c_int,
) -> c_int {
    match command {
        libc::F_GETFL | libc::F_SETFL if is_rsocket_already(fd) => {
            // SAFETY: numbers.
            unsafe { sockets::rfcntl(fd, command, argument.addr() as c_long) }
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC if is_set(fd) => {
            // SAFETY: the caller's promise.
            duplicated(fd, unsafe { next(fd, command, argument) })
        }
        // SAFETY: the caller's promise.
        _ => unsafe { next(fd, command, argument) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { control(fd, command, argument, next::fcntl) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { control(fd, command, argument, next::fcntl64) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    const SIOCATMARK: c_ulong = 0x8905;
    let is_rsocket = match request {
        libc::FIONBIO => is_rsocket_already(fd),
        // They count bytes. What the kernel counts of an accepted connection that was not used are bytes of MPA.
        libc::FIONREAD | libc::TIOCOUTQ | SIOCATMARK => is_rsocket(fd),
        _ => false,
    };
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if is_rsocket {
            return sockets::uiw_sockets_ioctl(fd, request, argument);
        }
        next::ioctl(fd, request, argument)
    }
}

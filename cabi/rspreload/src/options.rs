//! Options and flags of sockets. Programs pass the last argument of `fcntl` and `ioctl` only with
//! some commands. In the calling conventions of the supported processors, a register holds it in
//! either case.

use crate::argument::{Argument, In, Out};
use crate::bits::{is_rsocket, is_rsocket_already, is_set};
use crate::close::duplicated;
use crate::{next, sockets};
use libc::socklen_t;
use std::ffi::{c_int, c_long, c_ulong, c_void};

#[unsafe(no_mangle)]
extern "C-unwind" fn getsockopt<'a>(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: Out<'a, c_void>,
    len: Out<'a, socklen_t>,
) -> c_int {
    if is_rsocket_already(fd) {
        return sockets::rgetsockopt(fd, level, name, value, len);
    }
    next::getsockopt(fd, level, name, value, len)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn setsockopt<'a>(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: In<'a, c_void>,
    len: Argument<'a, socklen_t>,
) -> c_int {
    if is_rsocket_already(fd) {
        return sockets::rsetsockopt(fd, level, name, value, len);
    }
    next::setsockopt(fd, level, name, value, len)
}

/// Implements fcntl(2). `next` is the C library's function.
fn control<'a>(
    fd: c_int,
    command: c_int,
    argument: Out<'a, c_void>,
    next: fn(c_int, c_int, Out<'a, c_void>) -> c_int,
) -> c_int {
    match command {
        libc::F_GETFL | libc::F_SETFL if is_rsocket_already(fd) => {
            sockets::rfcntl(fd, command, argument.get().addr() as c_long)
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC if is_set(fd) => {
            duplicated(fd, next(fd, command, argument))
        }
        _ => next(fd, command, argument),
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn fcntl<'a>(fd: c_int, command: c_int, argument: Out<'a, c_void>) -> c_int {
    control(fd, command, argument, next::fcntl)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn fcntl64<'a>(fd: c_int, command: c_int, argument: Out<'a, c_void>) -> c_int {
    control(fd, command, argument, next::fcntl64)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn ioctl<'a>(fd: c_int, request: c_ulong, argument: Out<'a, c_void>) -> c_int {
    const SIOCATMARK: c_ulong = 0x8905;
    let is_rsocket = match request {
        libc::FIONBIO => is_rsocket_already(fd),
        // These requests count bytes. For an accepted connection that was not used yet, the kernel
        // would count bytes of MPA.
        libc::FIONREAD | libc::TIOCOUTQ | SIOCATMARK => is_rsocket(fd),
        _ => false,
    };
    if is_rsocket {
        return sockets::uiw_sockets_ioctl(fd, request, argument);
    }
    next::ioctl(fd, request, argument)
}

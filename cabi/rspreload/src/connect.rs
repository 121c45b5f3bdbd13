//! Sockets, their addresses and connections.

use crate::argument::{Argument, In, Out};
use crate::bits::{is_rsocket, is_rsocket_already, is_set};
use crate::sockets::{self, Address, ORDINARY};
use crate::{errno, fail, next};
use libc::{sockaddr, socklen_t};
use std::ffi::c_int;

#[unsafe(no_mangle)]
extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let fd = next::socket(domain, kind, protocol);
    if fd < 0 || !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return fd;
    }
    let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let refused = match (kind, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => sockets::uiw_sockets_made(fd, domain),
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => sockets::uiw_sockets_made_datagram(fd, domain),
        _ => 0,
    };
    if refused != 0 {
        let reason = errno();
        // The program does not get the descriptor.
        next::close(fd);
        return fail(reason);
    }
    fd
}

#[unsafe(no_mangle)]
extern "C-unwind" fn bind<'a>(
    fd: c_int,
    addr: In<'a, sockaddr>,
    len: Argument<'a, socklen_t>,
) -> c_int {
    if is_rsocket_already(fd) {
        return sockets::rbind(fd, addr, len);
    }
    if is_set(fd) {
        let bound = sockets::uiw_sockets_bind(fd, addr, len);
        if bound != ORDINARY {
            return bound;
        }
    }
    next::bind(fd, addr, len)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if is_rsocket_already(fd) {
        return sockets::rlisten(fd, backlog);
    }
    let listens = next::listen(fd, backlog);
    if listens == 0 && is_set(fd) {
        sockets::uiw_sockets_listening(fd);
    }
    listens
}

/// Records a connection that the system has accepted and that may become an rsocket. If that fails,
/// closes the descriptor and returns -1 with `errno`.
///
/// `room` is the value of `len` before the call.
fn accepted<'a>(
    listening: c_int,
    fd: c_int,
    addr: Out<'a, sockaddr>,
    len: Out<'a, socklen_t>,
    room: Argument<'a, socklen_t>,
) -> c_int {
    if fd < 0 || !is_set(listening) {
        return fd;
    }
    if sockets::uiw_sockets_accepted(listening, fd, addr, len, room) == 0 {
        return fd;
    }
    let reason = errno();
    // The program does not get the descriptor.
    next::close(fd);
    fail(reason)
}

/// Returns the number of bytes that there is room for at `addr`. It has to be read before the call,
/// because the system replaces it.
fn room_of<'a>(addr: Out<'a, sockaddr>, len: Out<'a, socklen_t>) -> Argument<'a, socklen_t> {
    let none = addr.get().is_null() || len.get().is_null();
    // SAFETY: if `addr` is not NULL, `len` points to the number of bytes for which there is room at
    // it (accept(2)), and nothing else uses it during the call, as [`Argument`] requires. So the
    // number that is read, at any alignment, belongs to that address. Otherwise no address is
    // written, and 0 is permitted.
    unsafe { Argument::new(if none { 0 } else { len.get().read_unaligned() }) }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn accept<'a>(
    fd: c_int,
    addr: Out<'a, sockaddr>,
    len: Out<'a, socklen_t>,
) -> c_int {
    if is_rsocket_already(fd) {
        return sockets::raccept(fd, addr, len);
    }
    let room = room_of(addr, len);
    accepted(fd, next::accept(fd, addr, len), addr, len, room)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn accept4<'a>(
    fd: c_int,
    addr: Out<'a, sockaddr>,
    len: Out<'a, socklen_t>,
    flags: c_int,
) -> c_int {
    if is_rsocket_already(fd) {
        let new = sockets::raccept(fd, addr, len);
        if new >= 0 {
            let status = if flags & libc::SOCK_NONBLOCK != 0 { libc::O_NONBLOCK } else { 0 };
            sockets::rfcntl(new, libc::F_SETFL, status.into());
        }
        return new;
    }
    let room = room_of(addr, len);
    accepted(fd, next::accept4(fd, addr, len, flags), addr, len, room)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn connect<'a>(
    fd: c_int,
    addr: In<'a, sockaddr>,
    len: Argument<'a, socklen_t>,
) -> c_int {
    if is_rsocket_already(fd) {
        return sockets::rconnect(fd, addr, len);
    }
    if !is_set(fd) {
        return next::connect(fd, addr, len);
    }
    let mut real = Address([0; 128]);
    let real_len = sockets::uiw_sockets_target(fd, addr, len, &mut real);
    if real_len < 0 {
        return real_len;
    }
    if real_len > 0 {
        // SAFETY: `real_len` is positive, as checked above, and `uiw_sockets_target` has written an
        // address of as many bytes to `real`, an aligned local variable that nothing changes until
        // `next::connect`, the only function that gets the two values, has read it.
        let (real, real_len) = unsafe {
            (In::new((&raw const real.0).cast()), Argument::new(real_len.cast_unsigned()))
        };
        let connected = next::connect(fd, real, real_len);
        let outcome = if connected == 0 { 0 } else { errno() };
        let done = sockets::uiw_sockets_connected(fd, addr, len, outcome);
        if done != ORDINARY {
            return done;
        }
    }
    let connected = next::connect(fd, addr, len);
    let outcome = if connected == 0 { 0 } else { errno() };
    if matches!(outcome, 0 | libc::EINPROGRESS | libc::EINTR) {
        sockets::uiw_sockets_on_tcp(fd, addr, len);
        if outcome != 0 {
            return fail(outcome);
        }
    }
    connected
}

#[unsafe(no_mangle)]
extern "C-unwind" fn getsockname<'a>(
    fd: c_int,
    addr: Out<'a, sockaddr>,
    len: Out<'a, socklen_t>,
) -> c_int {
    if is_rsocket_already(fd) {
        return sockets::rgetsockname(fd, addr, len);
    }
    if is_set(fd) {
        let done = sockets::uiw_sockets_address(fd, addr, len, 0);
        if done != ORDINARY {
            return done;
        }
    }
    next::getsockname(fd, addr, len)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn getpeername<'a>(
    fd: c_int,
    addr: Out<'a, sockaddr>,
    len: Out<'a, socklen_t>,
) -> c_int {
    if is_rsocket_already(fd) {
        return sockets::rgetpeername(fd, addr, len);
    }
    if is_set(fd) {
        let done = sockets::uiw_sockets_address(fd, addr, len, 1);
        if done != ORDINARY {
            return done;
        }
    }
    next::getpeername(fd, addr, len)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if is_rsocket(fd) { sockets::rshutdown(fd, how) } else { next::shutdown(fd, how) }
}

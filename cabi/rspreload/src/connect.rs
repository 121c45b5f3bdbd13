//! Sockets, their addresses and connections.

use crate::bits::{is_rsocket, is_rsocket_already, is_set};
use crate::sockets::{self, ORDINARY};
use crate::{errno, fail, next};
use libc::{sockaddr, socklen_t};
use std::ffi::{c_int, c_void};

/// As long as every address.
#[repr(C, align(8))]
struct Address([u8; 128]);

/// # Safety
/// As for the C library's, here and below.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the caller's promise, here and below.
    let fd = unsafe { next::socket(domain, kind, protocol) };
    if fd < 0 || !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return fd;
    }
    let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let refused = match (kind, protocol) {
        // SAFETY: numbers.
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => unsafe { sockets::uiw_sockets_made(fd, domain) },
        // SAFETY: as above.
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => unsafe {
            sockets::uiw_sockets_made_datagram(fd, domain)
        },
        _ => 0,
    };
    if refused != 0 {
        let reason = errno();
        // SAFETY: the socket that was just made, which the program does not get.
        unsafe { next::close(fd) };
        return fail(reason);
    }
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe {
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
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if is_rsocket_already(fd) {
            return sockets::rlisten(fd, backlog);
        }
        let listens = next::listen(fd, backlog);
        if listens == 0 && is_set(fd) {
            sockets::uiw_sockets_listening(fd);
        }
        listens
    }
}

/// The connection that the system accepted may become an rsocket.
///
/// # Safety
/// As for accept(2); `room` is what `len` said before the call.
unsafe fn accepted(
    listening: c_int,
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    room: socklen_t,
) -> c_int {
    if fd < 0 || !is_set(listening) {
        return fd;
    }
    // SAFETY: the caller's promise.
    if unsafe { sockets::uiw_sockets_accepted(listening, fd, addr, len, room) } == 0 {
        return fd;
    }
    let reason = errno();
    // SAFETY: the connection that was just accepted, which the program does not get.
    unsafe { next::close(fd) };
    fail(reason)
}

/// # Safety
/// NULL or readable.
unsafe fn room_of(len: *const socklen_t) -> socklen_t {
    // SAFETY: the caller's promise.
    if len.is_null() { 0 } else { unsafe { len.read_unaligned() } }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if is_rsocket_already(fd) {
            return sockets::raccept(fd, addr, len);
        }
        let room = room_of(len);
        accepted(fd, next::accept(fd, addr, len), addr, len, room)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if is_rsocket_already(fd) {
            let new = sockets::raccept(fd, addr, len);
            if new >= 0 {
                let status = if flags & libc::SOCK_NONBLOCK != 0 { libc::O_NONBLOCK } else { 0 };
                sockets::rfcntl(new, libc::F_SETFL, status.into());
            }
            return new;
        }
        let room = room_of(len);
        accepted(fd, next::accept4(fd, addr, len, flags), addr, len, room)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if is_rsocket_already(fd) {
            return sockets::rconnect(fd, addr, len);
        }
        if !is_set(fd) {
            return next::connect(fd, addr, len);
        }
        let mut real = Address([0; 128]);
        let real_len = sockets::uiw_sockets_target(fd, addr, len, (&raw mut real.0).cast::<c_void>());
        if real_len < 0 {
            return real_len;
        }
        if real_len > 0 {
            let connected = next::connect(fd, (&raw const real.0).cast(), real_len.cast_unsigned());
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
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe {
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
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe {
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
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    // SAFETY: the caller's promise, here and below.
    if is_rsocket(fd) { unsafe { sockets::rshutdown(fd, how) } } else { unsafe { next::shutdown(fd, how) } }
}

//! Moving bytes.

use crate::bits::{is_rsocket, is_set};
use crate::{fail, next, sockets};
use libc::{iovec, mmsghdr, msghdr, off_t, off64_t, sockaddr, socklen_t, timespec};
use std::ffi::{c_int, c_uint, c_void};

/// One of two calls.
macro_rules! of {
    ($fd:expr, $rsocket:expr, $next:expr) => {
        // SAFETY: the caller's promise: what the C library's function has.
        unsafe { if is_rsocket($fd) { $rsocket } else { $next } }
    };
}

/// As [`of`], where one call finds out what the descriptor is and does its work.
macro_rules! tried {
    ($fd:expr, $tried:expr, $next:expr) => {{
        if is_set($fd) {
            // SAFETY: the caller's promise, here and below.
            let done = unsafe { $tried };
            if done != sockets::SYSTEM {
                return done;
            }
        }
        // SAFETY: as above.
        unsafe { $next }
    }};
}

/// The list of one buffer.
fn one(base: *const c_void, len: usize) -> iovec {
    iovec { iov_base: base.cast_mut(), iov_len: len }
}

/// # Safety
/// As for the C library's, here and below.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn read(fd: c_int, buffer: *mut c_void, len: usize) -> isize {
    tried!(fd, sockets::uiw_sockets_read(fd, &one(buffer, len), 1), next::read(fd, buffer, len))
}

/// A call of a program that was compiled with checks of its buffers (`_FORTIFY_SOURCE`), here and below: where `len` is more than `room` the C
/// library's function ends the program.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(fd: c_int, buffer: *mut c_void, len: usize, room: usize) -> isize {
    if len <= room {
        // SAFETY: the caller's promise.
        return unsafe { read(fd, buffer, len) };
    }
    // SAFETY: as above.
    unsafe { next::read_chk(fd, buffer, len, room) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readv(fd: c_int, list: *const iovec, count: c_int) -> isize {
    tried!(fd, sockets::uiw_sockets_read(fd, list, count), next::readv(fd, list, count))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize {
    tried!(
        fd,
        sockets::uiw_sockets_receive(fd, &one(buffer, len), 1, flags),
        next::recv(fd, buffer, len, flags)
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    room: usize,
    flags: c_int,
) -> isize {
    if len <= room {
        // SAFETY: the caller's promise.
        return unsafe { recv(fd, buffer, len, flags) };
    }
    // SAFETY: as above.
    unsafe { next::recv_chk(fd, buffer, len, room, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> isize {
    of!(
        fd,
        sockets::rrecvfrom(fd, buffer, len, flags, addr, addr_len),
        next::recvfrom(fd, buffer, len, flags, addr, addr_len)
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    room: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> isize {
    if len <= room {
        // SAFETY: the caller's promise.
        return unsafe { recvfrom(fd, buffer, len, flags, addr, addr_len) };
    }
    // SAFETY: as above.
    unsafe { next::recvfrom_chk(fd, buffer, len, room, flags, addr, addr_len) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    of!(fd, sockets::rrecvmsg(fd, message, flags), next::recvmsg(fd, message, flags))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    of!(fd, receive_all(fd, messages, count, flags), next::recvmmsg(fd, messages, count, flags, timeout))
}

/// The messages one after the other, as the system does it: an error behind the first one is left for the next call.
///
/// # Safety
/// As for recvmmsg(2).
unsafe fn receive_all(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let mut done = 0;
    while done < count {
        let later = flags & libc::MSG_WAITFORONE != 0 && done > 0;
        let flags = flags & !libc::MSG_WAITFORONE | if later { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: the caller's promise.
        let len = unsafe {
            let message = messages.add(done as usize);
            let len = sockets::rrecvmsg(fd, &raw mut (*message).msg_hdr, flags);
            if len >= 0 {
                (*message).msg_len = len as c_uint;
            }
            len
        };
        if len < 0 {
            return if done > 0 { done as c_int } else { -1 };
        }
        done += 1;
        if len == 0 {
            break;
        }
    }
    done as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, len: usize) -> isize {
    tried!(fd, sockets::uiw_sockets_send(fd, &one(buffer, len), 1, 0), next::write(fd, buffer, len))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn writev(fd: c_int, list: *const iovec, count: c_int) -> isize {
    tried!(fd, sockets::uiw_sockets_send(fd, list, count, 0), next::writev(fd, list, count))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> isize {
    tried!(fd, sockets::uiw_sockets_send(fd, &one(buffer, len), 1, flags), next::send(fd, buffer, len, flags))
}

/// Whether a call would connect a socket that may become an rsocket: by TCP, past `connect`. It is refused as by a system
/// without TCP Fast Open, and programs connect then.
fn connects(fd: c_int, flags: c_int) -> bool {
    flags & libc::MSG_FASTOPEN != 0 && is_set(fd) && !is_rsocket(fd)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> isize {
    if connects(fd, flags) {
        return fail(libc::EOPNOTSUPP) as isize;
    }
    of!(
        fd,
        sockets::uiw_sockets_sendto(fd, buffer, len, flags, addr, addr_len),
        next::sendto(fd, buffer, len, flags, addr, addr_len)
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    if connects(fd, flags) {
        return fail(libc::EOPNOTSUPP) as isize;
    }
    of!(fd, sockets::rsendmsg(fd, message, flags), next::sendmsg(fd, message, flags))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if connects(fd, flags) {
        return fail(libc::EOPNOTSUPP);
    }
    of!(fd, send_all(fd, messages, count, flags), next::sendmmsg(fd, messages, count, flags))
}

/// The messages one after the other.
///
/// # Safety
/// As for sendmmsg(2).
unsafe fn send_all(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let mut done = 0;
    while done < count {
        // SAFETY: the caller's promise.
        let (len, all) = unsafe {
            let message = messages.add(done as usize);
            let len = sockets::rsendmsg(fd, &raw const (*message).msg_hdr, flags);
            if len >= 0 {
                (*message).msg_len = len as c_uint;
            }
            let header = &(*message).msg_hdr;
            let parts = (0..header.msg_iovlen).map(|part| (*header.msg_iov.add(part)).iov_len);
            (len, parts.sum::<usize>())
        };
        if len < 0 {
            return if done > 0 { done as c_int } else { -1 };
        }
        done += 1;
        if len.cast_unsigned() < all {
            break;
        }
    }
    done as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile(to: c_int, file: c_int, offset: *mut off_t, count: usize) -> isize {
    of!(to, send_file(to, file, offset, count), next::sendfile(to, file, offset, count))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile64(to: c_int, file: c_int, offset: *mut off64_t, count: usize) -> isize {
    of!(to, send_file(to, file, offset, count), next::sendfile64(to, file, offset, count))
}

/// # Safety
/// As for sendfile(2).
unsafe fn send_file(to: c_int, file: c_int, offset: *mut off64_t, count: usize) -> isize {
    if is_rsocket(file) {
        return fail(libc::EINVAL) as isize;
    }
    // SAFETY: the caller's promise.
    unsafe { sockets::uiw_sockets_sendfile(to, file, offset, count) }
}

/// Refused for rsockets: a program that uses it has another way for files that do not have it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_offset: *mut off64_t,
    to: c_int,
    to_offset: *mut off64_t,
    len: usize,
    flags: c_uint,
) -> isize {
    if is_rsocket(from) || is_rsocket(to) {
        return fail(libc::EINVAL) as isize;
    }
    // SAFETY: the caller's promise.
    unsafe { next::splice(from, from_offset, to, to_offset, len, flags) }
}

//! Functions of the C library that transfer data, such as read(2), sendmsg(2) and sendfile(2).

use crate::argument::{Argument, In, Len, Out};
use crate::bits::{is_rsocket, is_set};
use crate::wait::WaitTime;
use crate::{fail, next, sockets};
use libc::{iovec, mmsghdr, msghdr, off_t, off64_t, sockaddr, socklen_t, timespec};
use std::ffi::{c_int, c_uint, c_void};

/// Evaluates `$rsocket` if the descriptor is an rsocket, and `$next` otherwise.
macro_rules! of {
    ($fd:expr, $rsocket:expr, $next:expr) => {
        if is_rsocket($fd) { $rsocket } else { $next }
    };
}

/// Like [`of`], but `$tried` both determines whether the descriptor is an rsocket and makes the
/// call. Its result is then returned from the calling function.
macro_rules! tried {
    ($fd:expr, $tried:expr, $next:expr) => {{
        if is_set($fd) {
            let done = $tried;
            if done != sockets::SYSTEM {
                return done;
            }
        }
        $next
    }};
}

/// Calls `call` with a list of one buffer.
#[inline]
fn with_one<'a>(
    base: In<'a, c_void>,
    len: Len<'a>,
    call: impl for<'b> FnOnce(In<'b, iovec>, Argument<'b, c_int>) -> isize,
) -> isize {
    let one = iovec { iov_base: base.get().cast_mut(), iov_len: len.get() };
    // SAFETY: the list is one local variable, which lives, unchanged, until `call` returns. Its
    // buffer has `len` bytes, as the arguments of the same lifetime say. The program permits this
    // call to read them, and to write them if the buffer was an `Out`, as in `read` and `recv`, the
    // only callers whose `call` fills the buffers of the list.
    let (list, count) = unsafe { (In::new(&raw const one), Argument::new(1)) };
    call(list, count)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn read<'a>(fd: c_int, buffer: Out<'a, c_void>, len: Len<'a>) -> isize {
    tried!(
        fd,
        with_one(buffer.as_in(), len, |list, count| sockets::uiw_sockets_read(fd, list, count)),
        next::read(fd, buffer, len)
    )
}

/// `read` of a program that was compiled with checks of its buffers (`_FORTIFY_SOURCE`). The same
/// applies to the other functions whose names end in `_chk`. If `len` is more than `room`, the C
/// library's function ends the program.
#[unsafe(no_mangle)]
extern "C-unwind" fn __read_chk<'a>(
    fd: c_int,
    buffer: Out<'a, c_void>,
    len: Len<'a>,
    room: Len<'a>,
) -> isize {
    if len.get() <= room.get() {
        return read(fd, buffer, len);
    }
    next::read_chk(fd, buffer, len, room)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn readv<'a>(
    fd: c_int,
    list: In<'a, iovec>,
    count: Argument<'a, c_int>,
) -> isize {
    tried!(fd, sockets::uiw_sockets_read(fd, list, count), next::readv(fd, list, count))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn recv<'a>(
    fd: c_int,
    buffer: Out<'a, c_void>,
    len: Len<'a>,
    flags: c_int,
) -> isize {
    tried!(
        fd,
        with_one(buffer.as_in(), len, |list, count| sockets::uiw_sockets_receive(
            fd, list, count, flags
        )),
        next::recv(fd, buffer, len, flags)
    )
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __recv_chk<'a>(
    fd: c_int,
    buffer: Out<'a, c_void>,
    len: Len<'a>,
    room: Len<'a>,
    flags: c_int,
) -> isize {
    if len.get() <= room.get() {
        return recv(fd, buffer, len, flags);
    }
    next::recv_chk(fd, buffer, len, room, flags)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn recvfrom<'a>(
    fd: c_int,
    buffer: Out<'a, c_void>,
    len: Len<'a>,
    flags: c_int,
    addr: Out<'a, sockaddr>,
    addr_len: Out<'a, socklen_t>,
) -> isize {
    of!(
        fd,
        sockets::rrecvfrom(fd, buffer, len, flags, addr, addr_len),
        next::recvfrom(fd, buffer, len, flags, addr, addr_len)
    )
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __recvfrom_chk<'a>(
    fd: c_int,
    buffer: Out<'a, c_void>,
    len: Len<'a>,
    room: Len<'a>,
    flags: c_int,
    addr: Out<'a, sockaddr>,
    addr_len: Out<'a, socklen_t>,
) -> isize {
    if len.get() <= room.get() {
        return recvfrom(fd, buffer, len, flags, addr, addr_len);
    }
    next::recvfrom_chk(fd, buffer, len, room, flags, addr, addr_len)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn recvmsg<'a>(fd: c_int, message: Out<'a, msghdr>, flags: c_int) -> isize {
    of!(fd, sockets::rrecvmsg(fd, message, flags), next::recvmsg(fd, message, flags))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn recvmmsg<'a>(
    fd: c_int,
    messages: Out<'a, mmsghdr>,
    count: Argument<'a, c_uint>,
    flags: c_int,
    timeout: Out<'a, timespec>,
) -> c_int {
    of!(
        fd,
        receive_all(fd, messages, count, flags, timeout.as_in()),
        next::recvmmsg(fd, messages, count, flags, timeout)
    )
}

/// Receives messages one after the other, as recvmmsg(2) does. As there, the time-out is checked
/// only after each message. If a message after the first one fails, the number of messages received
/// before is returned, and the next call reports the error if it persists.
fn receive_all<'a>(
    fd: c_int,
    messages: Out<'a, mmsghdr>,
    count: Argument<'a, c_uint>,
    flags: c_int,
    timeout: In<'a, timespec>,
) -> c_int {
    if count.get() > 0 && messages.as_in().as_ref().is_none() {
        return fail(libc::EFAULT);
    }
    let end = WaitTime(timeout.as_ref().copied()).end();
    if end.is_none() && !timeout.get().is_null() {
        return fail(libc::EINVAL);
    }
    let mut done = 0;
    while done < count.get() {
        let later = flags & libc::MSG_WAITFORONE != 0 && done > 0;
        let flags = flags & !libc::MSG_WAITFORONE | if later { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: the list of `count` messages (recvmmsg(2)) is not NULL, as was checked above, so
        // no element is, and `element` checks `done`. This is the only reference to a message here:
        // the one of the check, and that of the previous round, are not used any more.
        let message = unsafe { messages.element(done, count).as_mut() };
        // SAFETY: the header is that of a message of recvmmsg(2), which asks the same of it as
        // recvmsg(2), and nothing else of the program uses it during the call, as [`Argument`]
        // requires. `message` is not used until the call has returned.
        let len = sockets::rrecvmsg(fd, unsafe { Out::new(&raw mut message.msg_hdr) }, flags);
        if len < 0 {
            return if done > 0 { done as c_int } else { -1 };
        }
        message.msg_len = len as c_uint;
        done += 1;
        if WaitTime::until(end).is_none() {
            break;
        }
    }
    done as c_int
}

#[unsafe(no_mangle)]
extern "C-unwind" fn write<'a>(fd: c_int, buffer: In<'a, c_void>, len: Len<'a>) -> isize {
    tried!(
        fd,
        with_one(buffer, len, |list, count| sockets::uiw_sockets_send(fd, list, count, 0)),
        next::write(fd, buffer, len)
    )
}

#[unsafe(no_mangle)]
extern "C-unwind" fn writev<'a>(
    fd: c_int,
    list: In<'a, iovec>,
    count: Argument<'a, c_int>,
) -> isize {
    tried!(fd, sockets::uiw_sockets_send(fd, list, count, 0), next::writev(fd, list, count))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn send<'a>(
    fd: c_int,
    buffer: In<'a, c_void>,
    len: Len<'a>,
    flags: c_int,
) -> isize {
    tried!(
        fd,
        with_one(buffer, len, |list, count| sockets::uiw_sockets_send(fd, list, count, flags)),
        next::send(fd, buffer, len, flags)
    )
}

/// Returns whether the call would connect a socket that may become an rsocket through TCP Fast
/// Open, which bypasses `connect`. Such a call is refused as on a system without TCP Fast Open;
/// programs then call `connect`.
fn connects(fd: c_int, flags: c_int) -> bool {
    flags & libc::MSG_FASTOPEN != 0 && is_set(fd) && !is_rsocket(fd)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sendto<'a>(
    fd: c_int,
    buffer: In<'a, c_void>,
    len: Len<'a>,
    flags: c_int,
    addr: In<'a, sockaddr>,
    addr_len: Argument<'a, socklen_t>,
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
extern "C-unwind" fn sendmsg<'a>(fd: c_int, message: In<'a, msghdr>, flags: c_int) -> isize {
    if connects(fd, flags) {
        return fail(libc::EOPNOTSUPP) as isize;
    }
    of!(fd, sockets::rsendmsg(fd, message, flags), next::sendmsg(fd, message, flags))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sendmmsg<'a>(
    fd: c_int,
    messages: Out<'a, mmsghdr>,
    count: Argument<'a, c_uint>,
    flags: c_int,
) -> c_int {
    if connects(fd, flags) {
        return fail(libc::EOPNOTSUPP);
    }
    of!(fd, send_all(fd, messages, count, flags), next::sendmmsg(fd, messages, count, flags))
}

/// Sends messages one after the other, until one fails or is sent only in part.
fn send_all<'a>(
    fd: c_int,
    messages: Out<'a, mmsghdr>,
    count: Argument<'a, c_uint>,
    flags: c_int,
) -> c_int {
    if count.get() > 0 && messages.as_in().as_ref().is_none() {
        return fail(libc::EFAULT);
    }
    let mut done = 0;
    while done < count.get() {
        // SAFETY: the list of `count` messages (sendmmsg(2)) is not NULL, as was checked above, so
        // no element is, and `element` checks `done`. This is the only reference to a message here:
        // the one of the check, and that of the previous round, are not used any more.
        let message = unsafe { messages.element(done, count).as_mut() };
        let header = &message.msg_hdr;
        // SAFETY: the header is that of a message of sendmmsg(2), which asks the same of it as
        // sendmsg(2): `msg_iov` is NULL or points to `msg_iovlen` buffers. The program changes none
        // of these during the call, as [`Argument`] requires, and nothing here writes to the header
        // or the list.
        let (header, list, parts) = unsafe {
            (
                In::new(&raw const *header),
                In::new(header.msg_iov.cast_const()),
                Argument::new(header.msg_iovlen),
            )
        };
        let len = sockets::rsendmsg(fd, header, flags);
        if len < 0 {
            return if done > 0 { done as c_int } else { -1 };
        }
        let all: usize = list.elements(parts).iter().map(|part| part.iov_len).sum();
        message.msg_len = len as c_uint;
        done += 1;
        if len.cast_unsigned() < all {
            break;
        }
    }
    done as c_int
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sendfile<'a>(
    to: c_int,
    file: c_int,
    offset: Out<'a, off_t>,
    count: Len<'a>,
) -> isize {
    of!(to, send_file(to, file, offset, count), next::sendfile(to, file, offset, count))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sendfile64<'a>(
    to: c_int,
    file: c_int,
    offset: Out<'a, off64_t>,
    count: Len<'a>,
) -> isize {
    of!(to, send_file(to, file, offset, count), next::sendfile64(to, file, offset, count))
}

/// Implements sendfile(2) to an rsocket. It is refused if the source is an rsocket.
fn send_file<'a>(to: c_int, file: c_int, offset: Out<'a, off64_t>, count: Len<'a>) -> isize {
    if is_rsocket(file) {
        return fail(libc::EINVAL) as isize;
    }
    sockets::uiw_sockets_sendfile(to, file, offset, count)
}

/// `splice` is refused for rsockets with EINVAL. Programs that use it have a fallback, because some
/// files do not support it either.
#[unsafe(no_mangle)]
extern "C-unwind" fn splice<'a>(
    from: c_int,
    from_offset: Out<'a, off64_t>,
    to: c_int,
    to_offset: Out<'a, off64_t>,
    len: Len<'a>,
    flags: c_uint,
) -> isize {
    if is_rsocket(from) || is_rsocket(to) {
        return fail(libc::EINVAL) as isize;
    }
    next::splice(from, from_offset, to, to_offset, len, flags)
}

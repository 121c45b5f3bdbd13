//! The functions of `rdma/rsocket.h` that move bytes.

use crate::boundary::{self, Result};
use crate::errno::Errno;
use crate::mr;
use crate::rsocket::addresses::{read_address, write_address};
use crate::rsocket::any::AnySocket;
use crate::rsocket::datagram::{Datagram, Taken};
use crate::rsocket::early::ANSWER_TIMEOUT;
use crate::rsocket::socket::{Phase, Socket, State};
use crate::rsocket::table;
use libc::{iovec, msghdr, off_t, sockaddr, socklen_t};
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;
use uiw_verbs::Access;

/// More buffers than any call may have.
const MAX_BUFFERS: usize = 1024;

/// The buffers of a program.
///
/// # Safety
/// `list` is NULL or has `count` elements, whose bytes are readable, and writable for a call that receives.
pub(super) unsafe fn buffers<'a>(list: *const iovec, count: usize) -> Result<&'a [iovec]> {
    match count {
        0 => Ok(&[]),
        1..=MAX_BUFFERS if !list.is_null() => {
            // SAFETY: the caller's promise.
            let list = unsafe { slice::from_raw_parts(list, count) };
            let total = list
                .iter()
                .try_fold(0isize, |sum, part| sum.checked_add(isize::try_from(part.iov_len).ok()?));
            total.map(|_| list).ok_or_else(|| Errno::INVAL.out_of_range())
        }
        1..=MAX_BUFFERS => Err(Errno(libc::EFAULT).null()),
        _ => Err(Errno(libc::EMSGSIZE).because("more buffers than a call may have")),
    }
}

/// The bytes of a buffer.
///
/// # Safety
/// They are readable, and `base` may be NULL only if there are none.
unsafe fn bytes<'a>(base: *const c_void, len: usize) -> &'a [u8] {
    if len == 0 || base.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(base.cast(), len) }
}

/// As [`bytes`], for a call that receives.
///
/// # Safety
/// They are writable, and nothing else uses them during the call.
unsafe fn bytes_mut<'a>(base: *mut c_void, len: usize) -> &'a mut [u8] {
    if len == 0 || base.is_null() {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts_mut(base.cast(), len) }
}

/// The bytes of a list of buffers.
fn length(list: &[iovec]) -> Result<usize> {
    if list.iter().any(|part| part.iov_base.is_null() && part.iov_len > 0) {
        return Err(Errno(libc::EFAULT).null());
    }
    // readv(2): the sum fits the result.
    list.iter()
        .try_fold(0usize, |sum, part| sum.checked_add(part.iov_len))
        .filter(|sum| isize::try_from(*sum).is_ok())
        .ok_or_else(|| Errno::INVAL.because("the sum of the buffers' lengths exceeds SSIZE_MAX"))
}

/// Receives into buffers.
///
/// # Safety
/// As for [`buffers`].
pub(super) unsafe fn receive(socket: &AnySocket, list: &[iovec], flags: c_int) -> Result<isize> {
    match socket {
        // SAFETY: the caller's promise, here and below.
        AnySocket::Stream(socket) => unsafe { receive_bytes(socket, list, flags) },
        AnySocket::Datagram(socket) => {
            // SAFETY: as above.
            unsafe { receive_datagram(socket, list, flags) }.map(|taken| taken.returned(flags))
        }
    }
}

/// Receives bytes of a stream into buffers.
///
/// # Safety
/// As for [`buffers`].
unsafe fn receive_bytes(socket: &Socket, list: &[iovec], flags: c_int) -> Result<isize> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::INVAL.because("rsockets have no out-of-band data"));
    }
    let total = length(list)?;
    let (peek, all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
    let mut done = 0;
    loop {
        // SAFETY: the caller's promise.
        let taken = unsafe { receive_some(socket, list, done, flags) };
        match taken {
            Ok(0) => break,
            Ok(taken) => done += taken,
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
        if done == total || peek || !all || socket.is_nonblocking(flags) {
            break;
        }
    }
    Ok(done as isize)
}

/// Receives a datagram into buffers.
///
/// # Safety
/// As for [`buffers`].
unsafe fn receive_datagram(socket: &Datagram, list: &[iovec], flags: c_int) -> Result<Taken> {
    length(list)?;
    // SAFETY: the caller's promise.
    let parts = list.iter().map(|part| unsafe { bytes_mut(part.iov_base, part.iov_len) });
    socket.receive(flags, &mut parts.collect::<Vec<_>>())
}

/// Receives what there is, behind the first `skip` bytes of the buffers; waits for the first byte.
///
/// # Safety
/// As for [`buffers`].
unsafe fn receive_some(socket: &Socket, list: &[iovec], skip: usize, flags: c_int) -> Result<usize> {
    let total: usize = list.iter().map(|part| part.iov_len).sum();
    let mut changed = false;
    let how = |state: &State| (state.is_nonblocking(flags), state.set.receive_timeout);
    let answer = socket.complete_as(how, |state| {
        if matches!(state.phase, Phase::Gone) {
            return Ok(0);
        }
        if state.is_beginning() && state.is_read_shut_early() {
            return Ok(0);
        }
        let stream = state.connected()?;
        if stream.receiver.readable() == 0 {
            return stream.nothing_readable();
        }
        if total == skip {
            return Ok(0);
        }
        let (mut skip, mut done) = (skip, 0);
        for part in list {
            let before = skip.min(part.iov_len);
            skip -= before;
            // SAFETY: the caller's promise.
            let part = unsafe { bytes_mut(part.iov_base, part.iov_len) };
            let taken = stream.copy_out(done as u64, &mut part[before..])?;
            done += taken;
            if before + taken < part.len() {
                break;
            }
        }
        if flags & libc::MSG_PEEK == 0 {
            changed |= stream.consume(done);
        }
        Ok(done)
    });
    if changed {
        socket.wake_changed(None);
    }
    answer
}

/// Sends buffers: all of them, unless the call does not wait.
///
/// # Safety
/// As for [`buffers`].
pub(super) unsafe fn send(socket: &AnySocket, list: &[iovec], flags: c_int) -> Result<isize> {
    match socket {
        // SAFETY: the caller's promise, here and below.
        AnySocket::Stream(socket) => unsafe { send_on_stream(socket, list, flags) },
        // SAFETY: as above.
        AnySocket::Datagram(socket) => unsafe { send_datagram(socket, list, flags, None) },
    }
}

/// Sends buffers on a stream.
///
/// # Safety
/// As for [`buffers`].
unsafe fn send_on_stream(socket: &Arc<Socket>, list: &[iovec], flags: c_int) -> Result<isize> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::UNSUPPORTED.because("rsockets have no out-of-band data"));
    }
    let total = length(list)?;
    let (mut nonblocking, mut early) = (false, None);
    let (mut done, mut begun) = (0usize, false);
    let sent = loop {
        // SAFETY: the caller's promise.
        let parts = list.iter().map(|part| unsafe { bytes(part.iov_base, part.iov_len) });
        let how = |state: &State| {
            nonblocking = state.is_nonblocking(flags);
            let early = *early.get_or_insert_with(|| state.is_beginning());
            (nonblocking, if early { Some(ANSWER_TIMEOUT) } else { state.set.send_timeout })
        };
        let mut sent = socket.complete_as(how, |state| {
            if total == 0 && state.is_beginning() {
                return Ok(0);
            }
            if state.is_write_shut_early() {
                return Err(Errno(libc::EPIPE));
            }
            state.flush_early()?;
            if state.loses_send() {
                return Ok((total - done) as u64);
            }
            let stream = state.connected()?;
            stream.publish_mappings()?;
            if !std::mem::replace(&mut begun, true) {
                stream.sender.begin();
            }
            if total == 0 {
                return stream.check_room_or_nothing();
            }
            stream.send(Rest { parts: parts.clone(), skip: done }, (total - done) as u64)
        });
        if early == Some(true) && matches!(sent, Err(Errno::AGAIN)) {
            sent = socket.send_early(Rest { parts, skip: done });
            // No room is left: from here on the call waits.
            early = Some(sent.is_ok());
            if matches!(sent, Err(Errno::AGAIN)) {
                continue;
            }
        }
        match sent {
            Ok(sent) => done += sent as usize,
            Err(errno) => break Err(errno),
        }
        if done == total || nonblocking {
            break Ok(());
        }
    };
    match sent {
        Err(errno) if done == 0 => Err(errno),
        _ => Ok(done as isize),
    }
}

/// Sends buffers as one datagram, to `to` or the socket's peer.
///
/// # Safety
/// As for [`buffers`].
unsafe fn send_datagram(
    socket: &Datagram,
    list: &[iovec],
    flags: c_int,
    to: Option<SocketAddr>,
) -> Result<isize> {
    let total = length(list)?;
    // SAFETY: the caller's promise.
    let parts = list.iter().map(|part| unsafe { bytes(part.iov_base, part.iov_len) });
    socket.send(parts, total, flags, to).map(usize::cast_signed)
}

/// As write(2).
///
/// # Errors
/// Its errors.
pub(crate) fn send_bytes(fd: c_int, bytes: &[u8]) -> Result<usize> {
    let list = [iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
    // SAFETY: these bytes.
    unsafe { send(&table::socket(fd)?, &list, 0) }.map(isize::cast_unsigned)
}

/// Buffers without their first bytes.
#[derive(Clone)]
struct Rest<I> {
    parts: I,
    skip: usize,
}

impl<'a, I: Iterator<Item = &'a [u8]>> Iterator for Rest<I> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let part = self.parts.next()?;
        let before = self.skip.min(part.len());
        self.skip -= before;
        Some(&part[before..])
    }
}

fn one(base: *mut c_void, len: usize) -> Result<[iovec; 1]> {
    if isize::try_from(len).is_err() {
        return Err(Errno::INVAL.out_of_range());
    }
    Ok([iovec { iov_base: base, iov_len: len }])
}

/// `rrecv`.
///
/// # Safety
/// `buffer` has `len` writable bytes.
pub unsafe extern "C" fn rrecv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    boundary::size(|| unsafe { receive(&table::socket(fd)?, &one(buffer, len)?, flags) })
}

/// The peer of a stream.
fn peer_of(socket: &Socket) -> Option<SocketAddr> {
    let state = socket.lock();
    state.peer.map(|peer| state.shown(peer))
}

/// `rrecvfrom`.
///
/// # Safety
/// As for [`rrecv`]; the address as for recvfrom(2).
pub unsafe extern "C" fn rrecvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> isize {
    boundary::size(|| {
        let list = one(buffer, len)?;
        let (taken, from) = match table::socket(fd)? {
            AnySocket::Stream(socket) => {
                // SAFETY: the caller's promise, here and below.
                let taken = unsafe { receive_bytes(&socket, &list, flags) }?;
                (taken, peer_of(&socket))
            }
            AnySocket::Datagram(socket) => {
                // SAFETY: as above.
                let taken = unsafe { receive_datagram(&socket, &list, flags) }?;
                (taken.returned(flags), taken.from)
            }
        };
        if !addr.is_null()
            && !addr_len.is_null()
            && let Some(from) = from
        {
            // SAFETY: as above.
            unsafe { write_address(from, addr, addr_len) }?;
        }
        Ok(taken)
    })
}

/// `rrecvmsg`. There are no control messages.
///
/// # Safety
/// As for recvmsg(2).
pub unsafe extern "C" fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    boundary::size(|| {
        // SAFETY: the caller's promise, here and below.
        let message = unsafe { message.as_mut() }.ok_or_else(|| Errno(libc::EFAULT).null())?;
        // SAFETY: as above.
        let list = unsafe { buffers(message.msg_iov, message.msg_iovlen) }?;
        let socket = match table::socket(fd)? {
            AnySocket::Stream(socket) => {
                // SAFETY: as above.
                let taken = unsafe { receive_bytes(&socket, list, flags) }?;
                (message.msg_controllen, message.msg_namelen, message.msg_flags) = (0, 0, 0);
                return Ok(taken);
            }
            AnySocket::Datagram(socket) => socket,
        };
        // SAFETY: as above.
        let taken = unsafe { receive_datagram(&socket, list, flags) }?;
        (message.msg_controllen, message.msg_flags) = (0, 0);
        if taken.copied < taken.len {
            message.msg_flags = libc::MSG_TRUNC;
        }
        match taken.from {
            Some(from) if !message.msg_name.is_null() => {
                // SAFETY: as above.
                unsafe { write_address(from, message.msg_name.cast(), &raw mut message.msg_namelen) }?;
            }
            _ => message.msg_namelen = 0,
        }
        Ok(taken.returned(flags))
    })
}

/// Receives as read(2): into no room nothing, at once, where recv(2) waits.
///
/// # Safety
/// As for [`buffers`].
pub(super) unsafe fn read(socket: &AnySocket, list: &[iovec]) -> Result<isize> {
    // A datagram is taken whatever the room.
    if length(list)? == 0 && matches!(socket, AnySocket::Stream(_)) {
        return Ok(0);
    }
    // SAFETY: the caller's promise.
    unsafe { receive(socket, list, 0) }
}

/// `rread`.
///
/// # Safety
/// As for [`rrecv`].
pub unsafe extern "C" fn rread(fd: c_int, buffer: *mut c_void, len: usize) -> isize {
    // SAFETY: the caller's promise.
    boundary::size(|| unsafe { read(&table::socket(fd)?, &one(buffer, len)?) })
}

/// The number of elements of a list.
pub(super) fn count(count: c_int) -> Result<usize> {
    usize::try_from(count).map_err(|_| Errno::INVAL.out_of_range())
}

/// `rreadv`.
///
/// # Safety
/// As for readv(2).
pub unsafe extern "C" fn rreadv(fd: c_int, list: *const iovec, len: c_int) -> isize {
    // SAFETY: the caller's promise.
    boundary::size(|| unsafe { read(&table::socket(fd)?, buffers(list, count(len)?)?) })
}

/// `rsend`. There is no SIGPIPE, as rdma-core has none.
///
/// # Safety
/// `buffer` has `len` readable bytes.
pub unsafe extern "C" fn rsend(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    boundary::size(|| unsafe { send(&table::socket(fd)?, &one(buffer.cast_mut(), len)?, flags) })
}

/// An address that a call of datagrams may leave out.
///
/// # Safety
/// `addr` is NULL or `len` readable bytes.
unsafe fn destination(addr: *const sockaddr, len: socklen_t) -> Result<Option<SocketAddr>> {
    // SAFETY: the caller's promise.
    if addr.is_null() { Ok(None) } else { unsafe { read_address(addr, len) }.map(Some) }
}

/// `rsendto`: an address is for datagrams. A stream is connected, so it is refused there.
///
/// # Safety
/// As for [`rsend`].
pub unsafe extern "C" fn rsendto(
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> isize {
    boundary::size(|| {
        let list = one(buffer.cast_mut(), len)?;
        match table::socket(fd)? {
            AnySocket::Stream(_) if !addr.is_null() || addr_len != 0 => {
                Err(Errno(libc::EISCONN).because("rsendto with an address"))
            }
            // SAFETY: the caller's promise, here and below.
            AnySocket::Stream(socket) => unsafe { send_on_stream(&socket, &list, flags) },
            // SAFETY: as above.
            AnySocket::Datagram(socket) => unsafe {
                send_datagram(&socket, &list, flags, destination(addr, addr_len)?)
            },
        }
    })
}

/// `rsendmsg`. Control messages are refused.
///
/// # Safety
/// As for sendmsg(2).
pub unsafe extern "C" fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    boundary::size(|| {
        // SAFETY: the caller's promise, here and below.
        let message = unsafe { message.as_ref() }.ok_or_else(|| Errno(libc::EFAULT).null())?;
        if !message.msg_control.is_null() && message.msg_controllen > 0 {
            return Err(Errno::UNSUPPORTED.because("rsockets have no control messages"));
        }
        // SAFETY: as above.
        let list = unsafe { buffers(message.msg_iov, message.msg_iovlen) }?;
        match table::socket(fd)? {
            // SAFETY: as above.
            AnySocket::Stream(socket) => unsafe { send_on_stream(&socket, list, flags) },
            // SAFETY: as above.
            AnySocket::Datagram(socket) => unsafe {
                let to = destination(message.msg_name.cast(), message.msg_namelen)?;
                send_datagram(&socket, list, flags, to)
            },
        }
    })
}

/// `rwrite`.
///
/// # Safety
/// As for [`rsend`].
pub unsafe extern "C" fn rwrite(fd: c_int, buffer: *const c_void, len: usize) -> isize {
    // SAFETY: the caller's promise.
    boundary::size(|| unsafe { send(&table::socket(fd)?, &one(buffer.cast_mut(), len)?, 0) })
}

/// `rwritev`.
///
/// # Safety
/// As for writev(2).
pub unsafe extern "C" fn rwritev(fd: c_int, list: *const iovec, len: c_int) -> isize {
    // SAFETY: the caller's promise.
    boundary::size(|| unsafe { send(&table::socket(fd)?, buffers(list, count(len)?)?, 0) })
}

/// `riomap`: with PROT_WRITE the peer's program may write the buffer, by `riowrite` at `offset`, or at the buffer's address if that is -1.
///
/// # Safety
/// The buffer is memory of the program until it is unmapped.
pub unsafe extern "C" fn riomap(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    protection: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    boundary::size(|| {
        let socket = table::stream(fd)?;
        if protection & !libc::PROT_WRITE != 0 || len == 0 || u32::try_from(len).is_err() {
            return Err(
                Errno::INVAL.because("a protection other than PROT_WRITE, or a length that no mapping has")
            );
        }
        let shared = protection & libc::PROT_WRITE != 0;
        let offset = if offset == -1 { buffer.addr() as off_t } else { offset };
        let (memory, registered) = mr::program_memory(buffer, len, shared)?;
        socket.look(None, |state| {
            let stream = state.connected()?;
            if shared && !stream.mappings.has_room() {
                return Err(Errno::NOMEM.because("the peer takes no more mappings"));
            }
            let access = Access::LOCAL_WRITE | if shared { Access::REMOTE_WRITE } else { Access::empty() };
            let region = stream.link.pd().register_raw(memory, buffer.addr() as u64, access)?;
            stream.mappings.add((buffer.addr(), len), (region, registered), offset.cast_unsigned(), shared)
        })?;
        Ok(offset as isize)
    }) as off_t
}

/// `riounmap`.
pub extern "C" fn riounmap(fd: c_int, buffer: *mut c_void, len: usize) -> c_int {
    boundary::minus_one(|| {
        table::stream(fd)?.look(None, |state| match state.stream_mut() {
            Some(stream) => stream.mappings.remove(buffer.addr(), len),
            None => Err(Errno::INVAL.because("a buffer that is not mapped")),
        })
    })
}

/// `riowrite`: writes to what the peer has mapped at `offset`; the peer's program is not notified. Returns the bytes written.
///
/// # Safety
/// As for [`rsend`].
pub unsafe extern "C" fn riowrite(
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    offset: off_t,
    flags: c_int,
) -> usize {
    let written = boundary::size(|| {
        let socket = table::stream(fd)?;
        let nonblocking = socket.is_nonblocking(flags);
        // SAFETY: the caller's promise.
        let bytes = unsafe { bytes(buffer, len) };
        let (mut done, mut begun) = (0, false);
        while done < len {
            let written = socket.complete(nonblocking, |state| {
                let stream = state.connected()?;
                stream.publish_mappings()?;
                if !std::mem::replace(&mut begun, true) {
                    stream.sender.begin();
                }
                stream.write_mapped(&bytes[done..], (offset as u64).wrapping_add(done as u64))
            });
            match written {
                // Nothing is mapped there.
                Ok(0) => break,
                Ok(written) => done += written as usize,
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
            if nonblocking {
                break;
            }
        }
        Ok(done as isize)
    });
    written.cast_unsigned()
}

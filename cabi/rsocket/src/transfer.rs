//! Functions of `rdma/rsocket.h` that transfer bytes.

use crate::addresses::{read_address, write_address};
use crate::any::AnySocket;
use crate::datagram::{CopiedMessage, Datagram};
use crate::early::ANSWER_TIMEOUT;
use crate::socket::{Phase, Socket, State};
use crate::table;
use libc::{iovec, msghdr, off_t, socklen_t};
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uiw_cabi_core::arguments::{ArrayMutPtr, ArrayPtr, Count, InOutPtr, InPtr, RoomPtr, argument};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_verbs::mr;
use uiw_verbs::Access;

/// Maximum number of buffers in a call.
const MAX_BUFFERS: usize = 1024;
const TOO_MANY_BUFFERS: &str = "more buffers than a call may have";

/// Buffer of a program, as the manual pages of readv(2) and writev(2) describe it: the pointer is
/// NULL or points to as many bytes as the length says. `D` determines its direction.
#[repr(transparent)]
pub struct Vector<D>(iovec, PhantomData<D>);

/// Buffer that a call reads: NULL, or memory that the program does not change during the call.
pub type InVec<'a> = Vector<&'a [u8]>;
/// Buffer that a call fills: NULL, or memory that nothing else reads or writes during the call, and
/// that is in no other buffer of the call.
pub type OutVec<'a> = Vector<&'a mut [u8]>;

impl<D> Vector<D> {
    /// Creates a buffer. Fails with EINVAL if the length exceeds `isize::MAX`, because the result
    /// of a call could not report it.
    fn new(base: *mut u8, len: Count<'_>) -> Result<Self> {
        let iov_len = len.get().ok().filter(|len| isize::try_from(*len).is_ok());
        let iov_len = iov_len.ok_or_else(|| Errno::INVAL.out_of_range())?;
        Ok(Self(iovec { iov_base: base.cast(), iov_len }, PhantomData))
    }

    fn is_empty(&self) -> bool {
        self.0.iov_len == 0 || self.0.iov_base.is_null()
    }
}

impl<'a> InVec<'a> {
    fn one(buffer: &ArrayPtr<'a, u8>, len: Count<'a>) -> Result<[Self; 1]> {
        Self::new(buffer.as_ptr().cast_mut(), len).map(|one| [one])
    }

    fn bytes(&self) -> &'a [u8] {
        if self.is_empty() {
            return &[];
        }
        // SAFETY: the pointer is not NULL, as checked above, so there are `iov_len` initialized
        // bytes, which the program does not change during the call, the end of `'a`, as `InVec`
        // requires; in `send_bytes` it is a borrowed slice. The length does not exceed
        // `isize::MAX`, as `elements` and `new` have checked, or because it is that of the slice.
        unsafe { slice::from_raw_parts(self.0.iov_base.cast(), self.0.iov_len) }
    }
}

/// Buffers that a call fills.
pub(crate) struct OutBuffers<'a>(&'a [OutVec<'a>]);

impl<'a> OutBuffers<'a> {
    /// Returns the buffers of a program.
    pub(super) fn new(
        list: ArrayPtr<'a, OutVec<'a>>,
        count: Count<'a, impl TryInto<usize> + Copy>,
    ) -> Result<Self> {
        elements(list, count).map(Self)
    }

    /// Calls `body` with one buffer.
    fn with_one<R>(
        buffer: ArrayMutPtr<'a, u8>,
        len: Count<'a>,
        body: impl FnOnce(&mut OutBuffers<'_>) -> Result<R>,
    ) -> Result<R> {
        body(&mut OutBuffers(&[Vector::new(buffer.into_ptr(), len)?]))
    }

    /// Returns the bytes of the buffers, one buffer after the other.
    fn each(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.0.iter().map(|part| {
            if part.is_empty() {
                return &mut [][..];
            }
            // SAFETY: the pointer is not NULL, as checked above, so there are `iov_len` bytes,
            // which count as initialized (module `arguments`). Nothing else uses them during the
            // call, not even another buffer, as `OutVec` requires, and `self` stays borrowed
            // mutably. The length is at most `isize::MAX`: `elements` and `new` have checked it.
            unsafe { slice::from_raw_parts_mut(part.0.iov_base.cast(), part.0.iov_len) }
        })
    }
}

/// Returns the buffers of a program.
pub(super) fn elements<'a, D>(
    list: ArrayPtr<'a, Vector<D>>,
    count: Count<'a, impl TryInto<usize> + Copy>,
) -> Result<&'a [Vector<D>]> {
    if count.get()? > MAX_BUFFERS {
        return Err(Errno::INVAL.because(TOO_MANY_BUFFERS));
    }
    let list = list.get(count)?.ok_or_else(|| Errno(libc::EFAULT).null_argument())?;
    sum(list).map(|_| list)
}

/// Checks the number of buffers of a message, for which the error differs from that of readv(2).
///
/// # Errors
/// EMSGSIZE.
fn check_buffer_count(message: &msghdr) -> Result<()> {
    if message.msg_iovlen > MAX_BUFFERS {
        return Err(Errno(libc::EMSGSIZE).because(TOO_MANY_BUFFERS));
    }
    Ok(())
}

/// Returns the total size of a list of buffers. It must fit into the result of a call, as with
/// readv(2).
fn sum<D>(list: &[Vector<D>]) -> Result<usize> {
    list.iter()
        .try_fold(0usize, |sum, part| sum.checked_add(part.0.iov_len))
        .filter(|sum| isize::try_from(*sum).is_ok())
        .ok_or_else(|| Errno::INVAL.because("the sum of the buffers' lengths exceeds SSIZE_MAX"))
}

/// Returns the total size of a list of buffers.
///
/// # Errors
/// EFAULT if a buffer that is not empty is NULL; EINVAL if the total exceeds `isize::MAX`.
fn length<D>(list: &[Vector<D>]) -> Result<usize> {
    if list.iter().any(|part| part.0.iov_base.is_null() && part.0.iov_len > 0) {
        return Err(Errno(libc::EFAULT).null_argument());
    }
    sum(list)
}

/// Receives into buffers.
pub(super) fn receive(
    socket: &AnySocket,
    list: &mut OutBuffers<'_>,
    flags: c_int,
) -> Result<isize> {
    match socket {
        AnySocket::Stream(socket) => receive_bytes(socket, list, flags),
        AnySocket::Datagram(socket) => {
            receive_datagram(socket, list, flags).map(|taken| taken.returned(flags))
        }
    }
}

/// Receives bytes of a stream into buffers.
fn receive_bytes(socket: &Socket, list: &mut OutBuffers<'_>, flags: c_int) -> Result<isize> {
    check_receive_flags(flags)?;
    let total = length(list.0)?;
    let (peek, all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
    let (mut done, mut begun) = (0, None);
    loop {
        match receive_some(socket, list, done, flags, &mut begun) {
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

/// Checks the flags of a receive call.
///
/// # Errors
/// EINVAL for MSG_OOB; EAGAIN for MSG_ERRQUEUE, because the error queue is always empty.
fn check_receive_flags(flags: c_int) -> Result<()> {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(Errno::AGAIN);
    }
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::INVAL.because("rsockets have no out-of-band data"));
    }
    Ok(())
}

/// Receives a datagram into buffers.
fn receive_datagram(
    socket: &Datagram,
    list: &mut OutBuffers<'_>,
    flags: c_int,
) -> Result<CopiedMessage> {
    check_receive_flags(flags)?;
    length(list.0)?;
    socket.receive(flags, &mut list.each().collect::<Vec<_>>())
}

/// Returns the rest of the time-out of a call that waits several times. `begun` is the time of its
/// first wait.
fn time_left(timeout: Option<Duration>, begun: &mut Option<Instant>) -> Option<Duration> {
    timeout.map(|time| time.saturating_sub(begun.get_or_insert_with(Instant::now).elapsed()))
}

/// Receives available data, after the first `skip` bytes of the buffers. Waits for the first byte.
fn receive_some(
    socket: &Socket,
    list: &mut OutBuffers<'_>,
    skip: usize,
    flags: c_int,
    begun: &mut Option<Instant>,
) -> Result<usize> {
    let total = sum(list.0)?;
    let mut changed = false;
    let how =
        |state: &State| (state.is_nonblocking(flags), time_left(state.set.receive_timeout, begun));
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
        for part in list.each() {
            let before = skip.min(part.len());
            skip -= before;
            let taken = stream.copy_out(done as u64, &mut part[before..])?;
            done += taken;
            if before + taken < part.len() {
                break;
            }
        }
        if flags & libc::MSG_PEEK == 0 {
            changed |= state.change_stream(|stream| stream.consume(done)).unwrap_or_default();
        }
        Ok(done)
    });
    if changed {
        socket.wake_changed(None);
    }
    answer
}

/// Sends all data in the buffers, or as much as possible if the call is non-blocking.
pub(super) fn send(socket: &AnySocket, list: &[InVec<'_>], flags: c_int) -> Result<isize> {
    match socket {
        AnySocket::Stream(socket) => send_on_stream(socket, list, flags),
        AnySocket::Datagram(socket) => send_datagram(socket, list, flags, None),
    }
}

/// Sends buffers on a stream.
fn send_on_stream(socket: &Arc<Socket>, list: &[InVec<'_>], flags: c_int) -> Result<isize> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::UNSUPPORTED.because("rsockets have no out-of-band data"));
    }
    let total = length(list)?;
    let (mut nonblocking, mut early) = (false, None);
    let (mut done, mut begun, mut waits_since) = (0usize, false, None);
    let sent = loop {
        let parts = list.iter().map(InVec::bytes);
        let how = |state: &State| {
            nonblocking = state.is_nonblocking(flags);
            let early = *early.get_or_insert_with(|| state.is_beginning());
            let timeout = if early { Some(ANSWER_TIMEOUT) } else { state.set.send_timeout };
            (nonblocking, time_left(timeout, &mut waits_since))
        };
        let mut sent = socket.complete_as(how, |state| {
            if total == 0 && state.is_beginning() {
                return Ok(0);
            }
            if state.is_write_shut_early() {
                return Err(Errno(libc::EPIPE));
            }
            state.flush_early_data()?;
            if state.loses_send() {
                return Ok((total - done) as u64);
            }
            let stream = state.connected()?;
            stream.publish_mappings()?;
            if !std::mem::replace(&mut begun, true) {
                stream.sender.begin_call();
            }
            if total == 0 {
                return stream.check_open().map(|()| 0);
            }
            stream.send(RemainingParts { parts: parts.clone(), skip: done }, (total - done) as u64)
        });
        if early == Some(true) && matches!(sent, Err(Errno::AGAIN)) {
            sent = socket.store_early_data(RemainingParts { parts, skip: done });
            // There is no room left. From here on the call waits.
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

/// Sends buffers as one datagram, to `to` or to the socket's peer.
fn send_datagram(
    socket: &Datagram,
    list: &[InVec<'_>],
    flags: c_int,
    to: Option<SocketAddr>,
) -> Result<isize> {
    length(list)?;
    socket.send(list.iter().map(InVec::bytes), flags, to).map(usize::cast_signed)
}

/// Sends bytes, like write(2).
///
/// # Errors
/// The errors of write(2).
pub(crate) fn send_bytes(fd: c_int, bytes: &[u8]) -> Result<usize> {
    let one = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    send(&table::socket(fd)?, &[Vector(one, PhantomData)], 0).map(isize::cast_unsigned)
}

/// Buffers without their first bytes.
#[derive(Clone)]
struct RemainingParts<I> {
    parts: I,
    skip: usize,
}

impl<'a, I: Iterator<Item = &'a [u8]>> Iterator for RemainingParts<I> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let part = self.parts.next()?;
        let before = self.skip.min(part.len());
        self.skip -= before;
        Some(&part[before..])
    }
}

/// `rrecv`.
pub extern "C" fn rrecv<'a>(
    fd: c_int,
    buffer: ArrayMutPtr<'a, u8>,
    len: Count<'a>,
    flags: c_int,
) -> isize {
    boundary::number(|| {
        let socket = table::socket(fd)?;
        OutBuffers::with_one(buffer, len, |list| receive(&socket, list, flags))
    })
}

/// Returns the peer of a stream.
fn peer_of(socket: &Socket) -> Option<SocketAddr> {
    let state = socket.lock();
    state.peer.map(|peer| state.to_program_address(peer))
}

/// `rrecvfrom`.
pub extern "C" fn rrecvfrom<'a, 'b>(
    fd: c_int,
    buffer: ArrayMutPtr<'a, u8>,
    len: Count<'a>,
    flags: c_int,
    addr: ArrayMutPtr<'b, u8>,
    addr_len: RoomPtr<'b>,
) -> isize {
    boundary::number(|| {
        let (taken, from) = OutBuffers::with_one(buffer, len, |list| {
            Ok(match table::socket(fd)? {
                AnySocket::Stream(socket) => {
                    (receive_bytes(&socket, list, flags)?, peer_of(&socket))
                }
                AnySocket::Datagram(socket) => {
                    let taken = receive_datagram(&socket, list, flags)?;
                    (taken.returned(flags), taken.from)
                }
            })
        })?;
        if !addr.is_null()
            && !addr_len.is_null()
            && let Some(from) = from
        {
            write_address(from, addr, addr_len)?;
        }
        Ok(taken)
    })
}

/// `rrecvmsg`. There are no control messages.
pub extern "C" fn rrecvmsg(fd: c_int, message: InOutPtr<'_, msghdr>, flags: c_int) -> isize {
    boundary::number(|| {
        let message = message.as_mut().ok_or_else(|| Errno(libc::EFAULT).null_argument())?;
        check_buffer_count(message)?;
        let iov = message.msg_iov.cast_const().cast();
        // SAFETY: `msg_iov` is NULL or points to `msg_iovlen` buffers (recvmsg(2)), as `InOutPtr`
        // requires of the pointers in the message. During the call the program does not change that
        // array, and nothing else uses the buffers' memory, which the call fills. `OutVec` is a
        // transparent `iovec`.
        let (list, count) = unsafe { (argument(iov), argument(message.msg_iovlen)) };
        let mut list = OutBuffers::new(list, count)?;
        let socket = match table::socket(fd)? {
            AnySocket::Stream(socket) => {
                let taken = receive_bytes(&socket, &mut list, flags)?;
                (message.msg_controllen, message.msg_namelen, message.msg_flags) = (0, 0, 0);
                return Ok(taken);
            }
            AnySocket::Datagram(socket) => socket,
        };
        let taken = receive_datagram(&socket, &mut list, flags)?;
        (message.msg_controllen, message.msg_flags) = (0, 0);
        if taken.copied < taken.len {
            message.msg_flags = libc::MSG_TRUNC;
        }
        match taken.from {
            Some(from) if !message.msg_name.is_null() => {
                let (name, len) = (message.msg_name.cast(), &raw mut message.msg_namelen);
                // SAFETY: `name` is not NULL, as matched above, so it points to `msg_namelen` bytes
                // that nothing else uses during the call (recvmsg(2), as `InOutPtr` requires).
                // `message`, which contains `len`, is not used until `write_address` has returned.
                let (name, len) = unsafe { (argument(name), argument(len)) };
                write_address(from, name, len)?;
            }
            _ => message.msg_namelen = 0,
        }
        Ok(taken.returned(flags))
    })
}

/// Receives like read(2): with buffers of no bytes it returns immediately and consumes nothing,
/// whereas recv(2) waits, and consumes a datagram.
pub(super) fn read(socket: &AnySocket, list: &mut OutBuffers<'_>) -> Result<isize> {
    if length(list.0)? == 0 {
        return Ok(0);
    }
    receive(socket, list, 0)
}

/// `rread`.
pub extern "C" fn rread<'a>(fd: c_int, buffer: ArrayMutPtr<'a, u8>, len: Count<'a>) -> isize {
    boundary::number(|| {
        let socket = table::socket(fd)?;
        OutBuffers::with_one(buffer, len, |list| read(&socket, list))
    })
}

/// `rreadv`.
pub extern "C" fn rreadv<'a>(
    fd: c_int,
    list: ArrayPtr<'a, OutVec<'a>>,
    len: Count<'a, c_int>,
) -> isize {
    boundary::number(|| read(&table::socket(fd)?, &mut OutBuffers::new(list, len)?))
}

/// `rsend`. There is no SIGPIPE, as in rdma-core.
pub extern "C" fn rsend<'a>(
    fd: c_int,
    buffer: ArrayPtr<'a, u8>,
    len: Count<'a>,
    flags: c_int,
) -> isize {
    boundary::number(|| send(&table::socket(fd)?, &InVec::one(&buffer, len)?, flags))
}

/// Reads the address of a datagram call, which may be omitted.
fn destination<'a>(
    addr: &ArrayPtr<'a, u8>,
    len: Count<'a, socklen_t>,
) -> Result<Option<SocketAddr>> {
    if addr.is_null() { Ok(None) } else { read_address(addr, len).map(Some) }
}

/// `rsendto`. Only datagrams may have an address. For a stream, which is connected, an address is
/// refused with EISCONN.
pub extern "C" fn rsendto<'a, 'b>(
    fd: c_int,
    buffer: ArrayPtr<'a, u8>,
    len: Count<'a>,
    flags: c_int,
    addr: ArrayPtr<'b, u8>,
    addr_len: Count<'b, socklen_t>,
) -> isize {
    boundary::number(|| {
        let list = InVec::one(&buffer, len)?;
        match table::socket(fd)? {
            AnySocket::Stream(_) if !addr.is_null() || addr_len.get()? != 0 => {
                Err(Errno(libc::EISCONN).because("rsendto with an address"))
            }
            AnySocket::Stream(socket) => send_on_stream(&socket, &list, flags),
            AnySocket::Datagram(socket) => {
                send_datagram(&socket, &list, flags, destination(&addr, addr_len)?)
            }
        }
    })
}

/// `rsendmsg`. Control messages are refused.
pub extern "C" fn rsendmsg(fd: c_int, message: InPtr<'_, msghdr>, flags: c_int) -> isize {
    boundary::number(|| {
        let message = message.as_ref().ok_or_else(|| Errno(libc::EFAULT).null_argument())?;
        check_buffer_count(message)?;
        if !message.msg_control.is_null() && message.msg_controllen > 0 {
            return Err(Errno::UNSUPPORTED.because("rsockets have no control messages"));
        }
        let iov = message.msg_iov.cast_const().cast();
        // SAFETY: `msg_iov` is NULL or points to an array of `msg_iovlen` buffers (sendmsg(2)). The
        // program changes neither the array nor the bytes of the buffers during the call. `InPtr`
        // requires both of the pointers in the message. An `InVec` has the representation of an
        // `iovec`, because it is transparent.
        let (list, count) = unsafe { (argument(iov), argument(message.msg_iovlen)) };
        let list = elements(list, count)?;
        match table::socket(fd)? {
            AnySocket::Stream(socket) => send_on_stream(&socket, list, flags),
            AnySocket::Datagram(socket) => {
                // SAFETY: `msg_name` is NULL or points to an address of `msg_namelen` bytes
                // (sendmsg(2)), which the program does not change during the call, as `InPtr`
                // requires of the pointers in the message.
                let (name, len) = unsafe {
                    (argument(message.msg_name.cast_const().cast()), argument(message.msg_namelen))
                };
                send_datagram(&socket, list, flags, destination(&name, len)?)
            }
        }
    })
}

/// `rwrite`.
pub extern "C" fn rwrite<'a>(fd: c_int, buffer: ArrayPtr<'a, u8>, len: Count<'a>) -> isize {
    rsend(fd, buffer, len, 0)
}

/// `rwritev`.
pub extern "C" fn rwritev<'a>(
    fd: c_int,
    list: ArrayPtr<'a, InVec<'a>>,
    len: Count<'a, c_int>,
) -> isize {
    boundary::number(|| send(&table::socket(fd)?, elements(list, len)?, 0))
}

/// `riomap`: with PROT_WRITE, the peer's program may write to the buffer with `riowrite`, at
/// `offset`, or at the buffer's address if `offset` is -1.
///
/// The buffer stays memory of the program. It is registered until `riounmap` or `rclose` removes
/// it.
pub extern "C" fn riomap(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    protection: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    boundary::number(|| {
        let socket = table::stream(fd)?;
        if protection & !libc::PROT_WRITE != 0 || len == 0 || u32::try_from(len).is_err() {
            return Err(
                Errno::INVAL.because("the protection is not PROT_WRITE, or the length is invalid")
            );
        }
        let shared = protection & libc::PROT_WRITE != 0;
        let offset = if offset == -1 { buffer.addr() as off_t } else { offset };
        let (memory, registered) = mr::program_memory(buffer, len, shared)?;
        socket.update_then(None, |state| {
            let stream = state.connected()?;
            if shared && !stream.mappings.has_room() {
                return Err(Errno::NOMEM.because("the peer accepts no more mappings"));
            }
            let access =
                Access::LOCAL_WRITE | if shared { Access::REMOTE_WRITE } else { Access::empty() };
            let region = stream.link.pd().register_raw(memory, buffer.addr() as u64, access)?;
            stream.mappings.add(
                (buffer.addr(), len),
                (region, registered),
                offset.cast_unsigned(),
                shared,
            )
        })?;
        Ok(offset as isize)
    }) as off_t
}

/// `riounmap`.
pub extern "C" fn riounmap(fd: c_int, buffer: *mut c_void, len: usize) -> c_int {
    boundary::minus_one(|| {
        table::stream(fd)?.update_then(None, |state| match state.stream_mut() {
            Some(stream) => stream.mappings.remove(buffer.addr(), len),
            None => Err(Errno::INVAL.because("the buffer is not mapped")),
        })
    })
}

/// `riowrite`: writes to the buffer that the peer has mapped at `offset`. The peer's program is not
/// notified. Returns the number of bytes written.
pub extern "C" fn riowrite<'a>(
    fd: c_int,
    buffer: ArrayPtr<'a, u8>,
    len: Count<'a>,
    offset: off_t,
    flags: c_int,
) -> usize {
    let written = boundary::number(|| {
        let socket = table::stream(fd)?;
        let nonblocking = socket.is_nonblocking(flags);
        let bytes = buffer.get(len)?.unwrap_or_default();
        let (mut done, mut begun, mut waits_since) = (0, false, None);
        while done < bytes.len() {
            let written = socket.complete_as(
                |state| (nonblocking, time_left(state.set.send_timeout, &mut waits_since)),
                |state| {
                    let stream = state.connected()?;
                    stream.publish_mappings()?;
                    if !std::mem::replace(&mut begun, true) {
                        stream.sender.begin_call();
                    }
                    stream.write_mapped(&bytes[done..], (offset as u64).wrapping_add(done as u64))
                },
            );
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

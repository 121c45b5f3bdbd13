//! System calls that do not go through the C library: a preloaded library may stand in front of its functions, and would take the
//! descriptors of rsockets for the program's.

use crate::boundary::Result;
use crate::errno::Errno;
use libc::{c_int, c_long, sockaddr, socklen_t};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// The kernel's `sigset_t` has this many bytes.
const SIGNALS: usize = 8;

fn result(value: c_long) -> Result<c_int> {
    if value == -1 { Err(Errno::last()) } else { Ok(value as c_int) }
}

/// ppoll(2).
///
/// # Errors
/// The system's.
pub(crate) fn ppoll(
    fds: &mut [libc::pollfd],
    timeout: Option<libc::timespec>,
    mask: Option<&libc::sigset_t>,
) -> Result<usize> {
    // The kernel writes to it what is left.
    let mut timeout = timeout;
    let timeout = timeout.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    let mask = mask.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: a list of that many structures; time and mask, where there are any, outlive the call.
    result(unsafe { libc::syscall(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), timeout, mask, SIGNALS) })
        .map(|ready| ready as usize)
}

/// Waits for events of a set.
///
/// # Errors
/// The system's.
pub(crate) fn epoll_wait(set: RawFd, events: &mut [libc::epoll_event]) -> Result<usize> {
    let most = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
    let mask = ptr::null::<libc::sigset_t>();
    // SAFETY: that many structures can be written.
    result(unsafe { libc::syscall(libc::SYS_epoll_pwait, set, events.as_mut_ptr(), most, -1, mask, SIGNALS) })
        .map(|found| found as usize)
}

/// epoll_ctl(2).
///
/// # Errors
/// The system's.
pub(crate) fn epoll_ctl(set: RawFd, op: c_int, fd: RawFd, event: Option<libc::epoll_event>) -> Result<()> {
    let mut event = event;
    let event = event.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: the structure, where there is one, outlives the call.
    result(unsafe { libc::syscall(libc::SYS_epoll_ctl, set, op, fd, event) }).map(drop)
}

/// The events of a set that are there now.
///
/// # Errors
/// The system's.
pub(crate) fn epoll_now(set: RawFd, events: &mut [libc::epoll_event]) -> Result<usize> {
    let most = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
    let mask = ptr::null::<libc::sigset_t>();
    // SAFETY: that many structures can be written.
    result(unsafe { libc::syscall(libc::SYS_epoll_pwait, set, events.as_mut_ptr(), most, 0, mask, SIGNALS) })
        .map(|found| found as usize)
}

/// The process, also in a child of vfork(2), which has the memory of its parent.
pub(crate) fn process() -> c_int {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_getpid) as c_int }
}

/// Descriptors that a program has no name for are above this, where there is room. Programs exist that close a number twice (iperf3),
/// which does no harm to them alone; and the low numbers are those that select(2) has.
pub(super) const FIRST_OWN: c_int = 512;

/// A second descriptor for this library alone, which exec(3) closes.
///
/// # Errors
/// EMFILE
pub(crate) fn duplicate(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: numbers alone.
    let above =
        |least: c_int| result(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, least) });
    let new = above(FIRST_OWN).or_else(|_| above(0))?;
    // SAFETY: just made, without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(new) })
}

/// Makes `number` name the file of `fd`; it stays closed or open in exec(3) as it was.
///
/// # Errors
/// The system's.
pub(crate) fn replace(number: RawFd, fd: RawFd) -> Result<()> {
    // SAFETY: numbers alone; the caller has `number`.
    unsafe {
        let flags = result(libc::syscall(libc::SYS_fcntl, number, libc::F_GETFD))?;
        let flags = if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
        result(libc::syscall(libc::SYS_dup3, fd, number, flags)).map(drop)
    }
}

/// Memory is given in pages of the smallest size. A hint: kernels without huge pages refuse it, and need none.
pub(crate) fn use_small_pages(at: *mut u8, len: usize) {
    // SAFETY: changes no byte of the mapping. The system's call, as `madvise` is exported by this library.
    unsafe { libc::syscall(libc::SYS_madvise, at, len, libc::MADV_NOHUGEPAGE) };
}

/// O_NONBLOCK and the other flags of F_GETFL.
///
/// # Errors
/// EBADF
pub(crate) fn status_flags(fd: RawFd) -> Result<c_int> {
    // SAFETY: numbers alone.
    result(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL) })
}

/// Sets them.
///
/// # Errors
/// EBADF
pub(crate) fn set_status_flags(fd: RawFd, flags: c_int) -> Result<()> {
    // SAFETY: numbers alone.
    result(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFL, flags) }).map(drop)
}

/// The own address of a socket, or its peer's.
///
/// # Errors
/// ENOTCONN, EBADF; EINVAL for a socket that is not of IP.
pub(crate) fn address_as_is(fd: RawFd, of_peer: bool) -> Result<SocketAddr> {
    let call = if of_peer { libc::SYS_getpeername } else { libc::SYS_getsockname };
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut len = size_of::<libc::sockaddr_storage>() as socklen_t;
    // SAFETY: room for any address, and its length; `read` is given what the kernel wrote.
    unsafe {
        result(libc::syscall(call, fd, storage.as_mut_ptr(), &raw mut len))?;
        crate::cm::address::read(storage.as_ptr().cast())
    }
}

/// bind(2).
///
/// # Errors
/// The system's.
pub(crate) fn bind(fd: RawFd, addr: &[u8]) -> Result<()> {
    // SAFETY: an address of that length.
    result(unsafe { libc::syscall(libc::SYS_bind, fd, addr.as_ptr().cast::<sockaddr>(), addr.len()) })
        .map(drop)
}

/// connect(2).
///
/// # Errors
/// The system's.
pub(crate) fn connect(fd: RawFd, addr: &[u8]) -> Result<()> {
    // SAFETY: an address of that length.
    result(unsafe { libc::syscall(libc::SYS_connect, fd, addr.as_ptr().cast::<sockaddr>(), addr.len()) })
        .map(drop)
}

/// Dissolves the association of a UDP socket with its peer.
///
/// # Errors
/// The system's.
pub(crate) fn disconnect(fd: RawFd) -> Result<()> {
    // SAFETY: integers; zeros are an address of the unspecified family.
    let mut none: sockaddr = unsafe { MaybeUninit::zeroed().assume_init() };
    none.sa_family = libc::AF_UNSPEC as libc::sa_family_t;
    // SAFETY: an address of that length.
    result(unsafe { libc::syscall(libc::SYS_connect, fd, &raw const none, size_of::<sockaddr>()) }).map(drop)
}

/// A UDP socket.
///
/// # Errors
/// EMFILE; EAFNOSUPPORT where the system has no IPv6.
pub(crate) fn udp_socket(domain: c_int) -> Result<OwnedFd> {
    // SAFETY: numbers alone; makes a descriptor, which has no other owner.
    unsafe {
        let fd = result(libc::syscall(libc::SYS_socket, domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Sends the parts as one datagram, without waiting.
///
/// # Errors
/// The system's.
pub(crate) fn send_message(fd: RawFd, parts: [&[u8]; 2], to: &[u8]) -> Result<()> {
    let mut parts =
        parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    // SAFETY: integers and pointers.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message.msg_name = to.as_ptr().cast_mut().cast();
    message.msg_namelen = to.len() as socklen_t;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: buffers and an address that outlive the call, which does not write them.
    result(unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const message, flags) }).map(drop)
}

/// Receives a datagram, without waiting: its length, as much as `buffer` holds, and its sender.
///
/// # Errors
/// The system's; EINVAL for a sender that is not of IP.
pub(crate) fn receive_from(fd: RawFd, buffer: &mut [u8]) -> Result<(usize, SocketAddr)> {
    let mut from = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut len = size_of::<libc::sockaddr_storage>() as socklen_t;
    // SAFETY: room for the bytes, and for any address and its length; `read` is given what the kernel wrote.
    unsafe {
        let count = result(libc::syscall(
            libc::SYS_recvfrom,
            fd,
            buffer.as_mut_ptr(),
            buffer.len(),
            libc::MSG_DONTWAIT,
            from.as_mut_ptr(),
            &raw mut len,
        ))?;
        Ok((count as usize, crate::cm::address::read(from.as_ptr().cast())?))
    }
}

/// Drops the oldest report of a socket's error queue.
///
/// # Errors
/// EAGAIN where there is none.
pub(crate) fn discard_report(fd: RawFd) -> Result<()> {
    // SAFETY: integers and pointers.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    let flags = libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE;
    // SAFETY: a message without room for anything.
    result(unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut message, flags) }).map(drop)
}

/// Ends both directions of a socket, if it is one that is connected.
pub(crate) fn shut(fd: RawFd) {
    // SAFETY: numbers alone.
    unsafe { libc::syscall(libc::SYS_shutdown, fd, libc::SHUT_RDWR) };
}

/// An option of a socket that is a plain structure; none where the system does not have it.
pub(crate) fn option<T: Copy + Default>(fd: RawFd, level: c_int, name: c_int) -> Option<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as socklen_t;
    // SAFETY: that many bytes, of a type for which every value that the kernel writes is valid: integers and structures of them.
    let done = unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, &raw mut value, &raw mut len) };
    (done == 0).then_some(value)
}

/// An option as bytes, as many as fit; returns how many there are.
///
/// # Errors
/// The system's.
pub(crate) fn option_bytes(fd: RawFd, level: c_int, name: c_int, to: &mut [u8]) -> Result<usize> {
    let mut len = to.len() as socklen_t;
    // SAFETY: that many bytes can be written.
    result(unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, to.as_mut_ptr(), &raw mut len) })?;
    Ok(len as usize)
}

/// Sets an option that is given as bytes.
///
/// # Errors
/// The system's.
pub(crate) fn set_option_bytes(fd: RawFd, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
    // SAFETY: that many bytes.
    result(unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, value.as_ptr(), value.len()) })
        .map(drop)
}

/// The number that distinguishes a socket from every other one that there is or was since the system started; none for other files, and
/// where the system does not have it.
pub(crate) fn cookie(fd: RawFd) -> Option<NonZeroU64> {
    NonZeroU64::new(option::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE)?)
}

/// Sets such an option.
///
/// # Errors
/// The system's.
pub(crate) fn set_option<T: Copy>(fd: RawFd, level: c_int, name: c_int, value: T) -> Result<()> {
    let len = size_of::<T>();
    // SAFETY: that many bytes.
    result(unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, &raw const value, len) }).map(drop)
}

/// A socket that reads as closed: what stands for an rsocket where calls of the system's own look.
///
/// # Errors
/// EMFILE
pub(crate) fn closed_socket() -> Result<OwnedFd> {
    let mut ends = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: room for two descriptors, which have no other owner.
    unsafe {
        result(libc::syscall(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr()))?;
        drop(OwnedFd::from_raw_fd(ends[1]));
        Ok(OwnedFd::from_raw_fd(ends[0]))
    }
}

/// The flags of such a socket, once it stands for the connections of a process: no file has just these.
const MARK: c_int = libc::O_RDWR | libc::O_NONBLOCK | libc::O_APPEND | libc::O_NOATIME;

/// Gives a socket of [`closed_socket`] the flags that [`is_marked`] asks for; false where the system refuses them.
pub(crate) fn mark(fd: RawFd) -> bool {
    // SAFETY: numbers alone.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFL, MARK) == 0 && is_marked(fd) }
}

/// Whether the file is a socket that [`mark`] has marked. This takes a third of the time of [`cookie`].
pub(crate) fn is_marked(fd: RawFd) -> bool {
    // SAFETY: numbers alone.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL) == MARK.into() }
}

/// The beginning of the name of such a socket, once it stands for the connections of a process.
const NAME: &[u8] = b"\0uiw-rsocket-";

/// Gives a socket of [`closed_socket`] a name by which another program of the process finds it after exec(3): [`stood_for_rsocket`]. Without
/// a name it does the same.
pub(crate) fn name_placeholder(fd: RawFd) {
    let Some(cookie) = cookie(fd) else { return };
    let mut address = sockaddr_un();
    let name = [NAME, format!("{}-{cookie}", process()).as_bytes()].concat();
    for (to, from) in address.sun_path.iter_mut().zip(&name) {
        // A `c_char` is signed on some processors only.
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + name.len().min(address.sun_path.len());
    // SAFETY: an address of that length. A failure changes nothing.
    unsafe { libc::syscall(libc::SYS_bind, fd, &raw const address, len) };
}

/// Whether the file is a socket that [`name_placeholder`] has named.
pub(crate) fn stood_for_rsocket(fd: RawFd) -> bool {
    let mut address = sockaddr_un();
    let mut len = size_of_val(&address) as socklen_t;
    // SAFETY: room for an address of that length.
    let named = unsafe { libc::syscall(libc::SYS_getsockname, fd, &raw mut address, &raw mut len) };
    named == 0
        && c_int::from(address.sun_family) == libc::AF_UNIX
        && address.sun_path.iter().zip(NAME).all(|(there, expected)| there.to_ne_bytes() == [*expected])
}

fn sockaddr_un() -> libc::sockaddr_un {
    libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] }
}

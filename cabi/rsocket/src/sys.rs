//! System calls that do not go through the C library: a preloaded library may stand in front of its
//! functions, and would take the descriptors of rsockets for the program's.

use libc::{c_int, c_long, socklen_t};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr;
use uiw_cabi_core::abi::zeroed;
use uiw_cabi_core::address;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;

/// The kernel's `sigset_t` has this many bytes.
const SIGNALS: usize = 8;

fn result(value: c_long) -> Result<c_int> {
    if value == -1 { Err(Errno::last()) } else { Ok(value as c_int) }
}

/// System calls that take integers alone.
#[derive(Clone, Copy)]
#[repr(i64)]
enum IntegerCall {
    Dup3 = libc::SYS_dup3,
    EpollCreate = libc::SYS_epoll_create1,
    Eventfd = libc::SYS_eventfd2,
    Fcntl = libc::SYS_fcntl,
    Process = libc::SYS_getpid,
    Shutdown = libc::SYS_shutdown,
    Socket = libc::SYS_socket,
}

/// Makes a call.
fn call(call: IntegerCall, arguments: [c_int; 3]) -> Result<c_int> {
    let [first, second, third] = arguments;
    // SAFETY: the calls take integers alone, and reach no memory.
    result(unsafe { libc::syscall(call as c_long, first, second, third) })
}

/// Makes a call that makes a descriptor.
fn new_descriptor(made_by: IntegerCall, arguments: [c_int; 3]) -> Result<OwnedFd> {
    // SAFETY: the descriptor was just made, and nothing else owns it.
    call(made_by, arguments).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An epoll set.
///
/// # Errors
/// EMFILE; EINVAL for flags that there are not.
pub(crate) fn epoll_create(flags: c_int) -> Result<OwnedFd> {
    new_descriptor(IntegerCall::EpollCreate, [flags | libc::EPOLL_CLOEXEC, 0, 0])
}

/// An event descriptor.
///
/// # Errors
/// EMFILE
pub(crate) fn eventfd(flags: c_int) -> Result<OwnedFd> {
    new_descriptor(IntegerCall::Eventfd, [0, flags | libc::EFD_CLOEXEC, 0])
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
    // SAFETY: the list has so many structures; time and mask, where there are any, outlive the
    // call.
    result(unsafe { libc::syscall(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), timeout, mask, SIGNALS) })
        .map(|ready| ready as usize)
}

/// Waits for events of a set, for `timeout` milliseconds, or without an end for -1.
///
/// # Errors
/// The system's.
pub(crate) fn epoll_wait(set: RawFd, events: &mut [libc::epoll_event], timeout: c_int) -> Result<usize> {
    let most = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
    let (events, mask) = (events.as_mut_ptr(), ptr::null::<libc::sigset_t>());
    // SAFETY: there is room for so many structures.
    result(unsafe { libc::syscall(libc::SYS_epoll_pwait, set, events, most, timeout, mask, SIGNALS) })
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

/// The process, also in a child of vfork(2), which has the memory of its parent.
pub(crate) fn process() -> c_int {
    call(IntegerCall::Process, [0; 3]).unwrap_or(0)
}

/// Descriptors that a program has no name for are above this, where there is room. Programs exist
/// that close a number twice (iperf3), which does no harm to them alone; and the low numbers are
/// those that select(2) has.
pub(super) const FIRST_OWN: c_int = 512;

/// A second descriptor for this library alone, which exec(3) closes.
///
/// # Errors
/// EMFILE
pub(crate) fn duplicate(fd: RawFd) -> Result<OwnedFd> {
    let above = |least| new_descriptor(IntegerCall::Fcntl, [fd, libc::F_DUPFD_CLOEXEC, least]);
    above(FIRST_OWN).or_else(|_| above(0))
}

/// Makes `number` name the file of `fd`; it stays closed or open in exec(3) as it was.
///
/// # Errors
/// The system's.
pub(crate) fn replace(number: RawFd, fd: RawFd) -> Result<()> {
    let flags = call(IntegerCall::Fcntl, [number, libc::F_GETFD, 0])?;
    let flags = if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    call(IntegerCall::Dup3, [fd, number, flags]).map(drop)
}

/// Memory is given in pages of the smallest size. A hint: kernels without huge pages refuse it, and
/// need none.
pub(crate) fn use_small_pages(at: *mut u8, len: usize) {
    // SAFETY: the advice changes no byte of the mapping. The system's call, as `madvise` is
    // exported by this library.
    unsafe { libc::syscall(libc::SYS_madvise, at, len, libc::MADV_NOHUGEPAGE) };
}

/// O_NONBLOCK and the other flags of F_GETFL.
///
/// # Errors
/// EBADF
pub(crate) fn status_flags(fd: RawFd) -> Result<c_int> {
    call(IntegerCall::Fcntl, [fd, libc::F_GETFL, 0])
}

/// Sets them.
///
/// # Errors
/// EBADF
pub(crate) fn set_status_flags(fd: RawFd, flags: c_int) -> Result<()> {
    call(IntegerCall::Fcntl, [fd, libc::F_SETFL, flags]).map(drop)
}

/// The own name of a socket, or its peer's, as C has it.
fn name(fd: RawFd, of_peer: bool) -> Result<Vec<u8>> {
    let call = if of_peer { libc::SYS_getpeername } else { libc::SYS_getsockname };
    let mut name = vec![0; size_of::<libc::sockaddr_storage>()];
    let mut len = name.len() as socklen_t;
    // SAFETY: there is room for so many bytes, and for their number.
    result(unsafe { libc::syscall(call, fd, name.as_mut_ptr(), &raw mut len) })?;
    name.truncate(len as usize);
    Ok(name)
}

/// The own address of a socket, or its peer's.
///
/// # Errors
/// ENOTCONN, EBADF; EINVAL for a socket that is not of IP.
pub(crate) fn address_as_is(fd: RawFd, of_peer: bool) -> Result<SocketAddr> {
    address::parse(&name(fd, of_peer)?)
}

/// Makes a call that takes an address.
fn call_with_address(call: c_long, fd: RawFd, addr: &[u8]) -> Result<()> {
    // SAFETY: both calls (bind, connect) read an address with that many bytes.
    result(unsafe { libc::syscall(call, fd, addr.as_ptr(), addr.len()) }).map(drop)
}

/// bind(2).
///
/// # Errors
/// The system's.
pub(crate) fn bind(fd: RawFd, addr: &[u8]) -> Result<()> {
    call_with_address(libc::SYS_bind, fd, addr)
}

/// connect(2).
///
/// # Errors
/// The system's.
pub(crate) fn connect(fd: RawFd, addr: &[u8]) -> Result<()> {
    call_with_address(libc::SYS_connect, fd, addr)
}

/// Dissolves the association of a UDP socket with its peer.
///
/// # Errors
/// The system's.
pub(crate) fn disconnect(fd: RawFd) -> Result<()> {
    // Zeros are an address of the unspecified family.
    connect(fd, &[0; size_of::<libc::sockaddr>()])
}

/// A UDP socket.
///
/// # Errors
/// EMFILE; EAFNOSUPPORT where the system has no IPv6.
pub(crate) fn udp_socket(domain: c_int) -> Result<OwnedFd> {
    new_descriptor(IntegerCall::Socket, [domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0])
}

/// Sends the parts as one datagram, without waiting.
///
/// # Errors
/// The system's.
pub(crate) fn send_message(fd: RawFd, parts: [&[u8]; 2], to: &[u8]) -> Result<()> {
    let mut parts =
        parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    let mut message: libc::msghdr = zeroed();
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message.msg_name = to.as_ptr().cast_mut().cast();
    message.msg_namelen = to.len() as socklen_t;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: buffers and address outlive the call, which does not write them.
    result(unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const message, flags) }).map(drop)
}

/// Receives a datagram, without waiting: its length, as much as `buffer` holds, and its sender.
///
/// # Errors
/// The system's; EINVAL for a sender that is not of IP.
pub(crate) fn receive_from(fd: RawFd, buffer: &mut [u8]) -> Result<(usize, SocketAddr)> {
    let mut from = [0u8; size_of::<libc::sockaddr_storage>()];
    let mut len = from.len() as socklen_t;
    let (at, room, flags) = (buffer.as_mut_ptr(), buffer.len(), libc::MSG_DONTWAIT);
    // SAFETY: there is room for the bytes, and for an address and its length.
    let count = result(unsafe {
        libc::syscall(libc::SYS_recvfrom, fd, at, room, flags, from.as_mut_ptr(), &raw mut len)
    })?;
    Ok((count as usize, address::parse(&from[..from.len().min(len as usize)])?))
}

/// Drops the oldest report of a socket's error queue.
///
/// # Errors
/// EAGAIN where there is none.
pub(crate) fn discard_report(fd: RawFd) -> Result<()> {
    let mut message: libc::msghdr = zeroed();
    let flags = libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE;
    // SAFETY: the message has no room that the call could write to, apart from itself.
    result(unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut message, flags) }).map(drop)
}

/// Ends both directions of a socket, if it is one that is connected.
pub(crate) fn shut(fd: RawFd) {
    let _ = call(IntegerCall::Shutdown, [fd, libc::SHUT_RDWR, 0]);
}

/// An option of a socket that has so many bytes; none where the system does not have it.
pub(crate) fn option<const N: usize>(fd: RawFd, level: c_int, name: c_int) -> Option<[u8; N]> {
    let mut value = [0; N];
    option_bytes(fd, level, name, &mut value).ok().map(|_| value)
}

/// An option of a socket that is an integer; none where the system does not have it.
pub(crate) fn int_option(fd: RawFd, level: c_int, name: c_int) -> Option<c_int> {
    option(fd, level, name).map(c_int::from_ne_bytes)
}

/// An option as bytes, as many as fit; returns how many there are.
///
/// # Errors
/// The system's.
pub(crate) fn option_bytes(fd: RawFd, level: c_int, name: c_int, to: &mut [u8]) -> Result<usize> {
    let mut len = to.len() as socklen_t;
    // SAFETY: there is room for so many bytes.
    result(unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, to.as_mut_ptr(), &raw mut len) })?;
    Ok(len as usize)
}

/// Sets an option that is given as bytes.
///
/// # Errors
/// The system's.
pub(crate) fn set_option_bytes(fd: RawFd, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
    // SAFETY: there are so many bytes.
    result(unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, value.as_ptr(), value.len()) })
        .map(drop)
}

/// The number that distinguishes a socket from every other one that there is or was since the
/// system started; none for other files, and where the system does not have it.
pub(crate) fn cookie(fd: RawFd) -> Option<NonZeroU64> {
    NonZeroU64::new(u64::from_ne_bytes(option(fd, libc::SOL_SOCKET, libc::SO_COOKIE)?))
}

/// Sets an option that is an integer.
///
/// # Errors
/// The system's.
pub(crate) fn set_option(fd: RawFd, level: c_int, name: c_int, value: c_int) -> Result<()> {
    set_option_bytes(fd, level, name, &value.to_ne_bytes())
}

/// A socket that reads as closed: what stands for an rsocket where calls of the system's own look.
///
/// # Errors
/// EMFILE
pub(crate) fn closed_socket() -> Result<OwnedFd> {
    let mut ends = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: there is room for two descriptors.
    result(unsafe { libc::syscall(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
    // SAFETY: the descriptors were just made, and nothing else owns them.
    let [end, _other] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(end)
}

/// The flags of such a socket, once it stands for the connections of a process: no file has just
/// these.
const MARK: c_int = libc::O_RDWR | libc::O_NONBLOCK | libc::O_APPEND | libc::O_NOATIME;

/// Gives a socket of [`closed_socket`] the flags that [`is_marked`] asks for; false where the
/// system refuses them.
pub(crate) fn mark(fd: RawFd) -> bool {
    set_status_flags(fd, MARK).is_ok() && is_marked(fd)
}

/// Returns whether the file is a socket that [`mark`] has marked. This takes a third of the time of
/// [`cookie`].
pub(crate) fn is_marked(fd: RawFd) -> bool {
    status_flags(fd) == Ok(MARK)
}

/// The beginning of the name of such a socket, once it stands for the connections of a process.
const NAME: &[u8] = b"\0uiw-rsocket-";

/// Gives a socket of [`closed_socket`] a name by which another program of the process finds it
/// after exec(3): [`stood_for_rsocket`]. Without a name it does the same.
pub(crate) fn name_placeholder(fd: RawFd) {
    let Some(cookie) = cookie(fd) else { return };
    let family = (libc::AF_UNIX as libc::sa_family_t).to_ne_bytes();
    let name = [&family[..], NAME, format!("{}-{cookie}", process()).as_bytes()].concat();
    // A failure changes nothing.
    let _ = bind(fd, &name);
}

/// Returns whether the file is a socket that [`name_placeholder`] has named.
pub(crate) fn stood_for_rsocket(fd: RawFd) -> bool {
    name(fd, false).is_ok_and(|name| {
        address::family(&name).map(c_int::from) == Some(libc::AF_UNIX)
            && name[size_of::<libc::sa_family_t>()..].starts_with(NAME)
    })
}

//! System calls that bypass the C library. A preloaded library may have replaced its functions, and
//! would take the descriptors of rsockets for the program's.

use libc::{c_int, c_long, socklen_t};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr;
use uiw_cabi_core::abi::zeroed;
use uiw_cabi_core::address;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;

/// Size of the kernel's `sigset_t` in bytes.
const SIGNALS: usize = 8;

fn result(value: c_long) -> Result<c_int> {
    if value == -1 { Err(Errno::last()) } else { Ok(value as c_int) }
}

/// System calls that take only integers.
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
    // SAFETY: the calls of `IntegerCall`, and the commands of fcntl(2) that this module passes,
    // take only integers and access no memory. They close no descriptor, except that `replace`
    // makes a number refer to another file: its callers pass numbers that `table` has for sockets
    // of the program.
    result(unsafe { libc::syscall(call as c_long, first, second, third) })
}

/// Makes a call that returns a new descriptor.
fn new_descriptor(made_by: IntegerCall, arguments: [c_int; 3]) -> Result<OwnedFd> {
    // SAFETY: the call has succeeded, and it is one that creates a descriptor: all callers are in
    // this module, and pass epoll_create1, eventfd2, socket, or fcntl with F_DUPFD_CLOEXEC. So the
    // number is that of a new open descriptor, and nothing else owns it.
    call(made_by, arguments).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Creates an epoll set, which exec(3) closes.
///
/// # Errors
/// EMFILE; EINVAL for unknown flags.
pub(crate) fn epoll_create(flags: c_int) -> Result<OwnedFd> {
    new_descriptor(IntegerCall::EpollCreate, [flags | libc::EPOLL_CLOEXEC, 0, 0])
}

/// Creates an eventfd, which exec(3) closes.
///
/// # Errors
/// EMFILE.
pub(crate) fn eventfd(flags: c_int) -> Result<OwnedFd> {
    new_descriptor(IntegerCall::Eventfd, [0, flags | libc::EFD_CLOEXEC, 0])
}

/// Calls ppoll(2).
///
/// # Errors
/// OS errors.
pub(crate) fn ppoll(
    fds: &mut [libc::pollfd],
    mut timeout: Option<libc::timespec>,
    mask: Option<&libc::sigset_t>,
) -> Result<usize> {
    // The kernel writes the remaining time to it.
    let timeout = timeout.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    let mask = mask.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the pointer and the number of structures are those of `fds`, which is borrowed
    // mutably, because the kernel writes `revents`. The time-out is NULL or this function's own
    // copy, which the kernel may write, too. The mask is NULL or borrowed during the call, and a
    // `sigset_t` has more than the `SIGNALS` bytes that the kernel reads.
    result(unsafe {
        libc::syscall(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), timeout, mask, SIGNALS)
    })
    .map(|ready| ready as usize)
}

/// Waits for events of a set for `timeout` milliseconds, or without limit for -1.
///
/// # Errors
/// OS errors.
pub(crate) fn epoll_wait(
    set: RawFd,
    events: &mut [libc::epoll_event],
    timeout: c_int,
) -> Result<usize> {
    let most = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
    let (events, mask) = (events.as_mut_ptr(), ptr::null::<libc::sigset_t>());
    // SAFETY: the kernel writes at most `most` structures of this type. The pointer is that of the
    // slice `events`, which has at least as many and is borrowed mutably during the call. The mask
    // is NULL, so the kernel reads none.
    result(unsafe {
        libc::syscall(libc::SYS_epoll_pwait, set, events, most, timeout, mask, SIGNALS)
    })
    .map(|found| found as usize)
}

/// Calls epoll_ctl(2).
///
/// # Errors
/// OS errors.
pub(crate) fn epoll_ctl(
    set: RawFd,
    op: c_int,
    fd: RawFd,
    mut event: Option<libc::epoll_event>,
) -> Result<()> {
    let event = event.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: `event` is NULL, for which the kernel returns EFAULT where it needs an event, or
    // points to an initialized local copy, which lives until the call returns. The kernel only
    // reads it.
    result(unsafe { libc::syscall(libc::SYS_epoll_ctl, set, op, fd, event) }).map(drop)
}

/// Returns the process ID. It is correct even in a child of vfork(2), which has the memory of its
/// parent.
pub(crate) fn process() -> c_int {
    call(IntegerCall::Process, [0; 3]).unwrap_or(0)
}

/// Lower bound for descriptors that the program does not know, if there is room. Some programs
/// close a number twice (iperf3), which would close descriptors of this library, and select(2)
/// works only with low numbers.
pub(super) const FIRST_OWN: c_int = 512;

/// Duplicates a descriptor for this library alone. exec(3) closes the duplicate.
///
/// # Errors
/// EMFILE.
pub(crate) fn duplicate(fd: RawFd) -> Result<OwnedFd> {
    let above = |least| new_descriptor(IntegerCall::Fcntl, [fd, libc::F_DUPFD_CLOEXEC, least]);
    above(FIRST_OWN).or_else(|_| above(0))
}

/// Makes `number` refer to the file of `fd`. Whether exec(3) closes the number is unchanged.
///
/// # Errors
/// OS errors.
pub(crate) fn replace(number: RawFd, fd: RawFd) -> Result<()> {
    let flags = call(IntegerCall::Fcntl, [number, libc::F_GETFD, 0])?;
    let flags = if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    call(IntegerCall::Dup3, [fd, number, flags]).map(drop)
}

/// Requests pages of the smallest size for this memory. This is a hint: kernels without huge pages
/// refuse it, and do not need it.
pub(crate) fn use_small_pages(at: *mut u8, len: usize) {
    // SAFETY: MADV_NOHUGEPAGE changes the size of pages but no byte, and unmaps nothing, so it
    // conflicts with no access, and an invalid range gives an error. The system call is made
    // directly, because this library exports `madvise`.
    unsafe { libc::syscall(libc::SYS_madvise, at, len, libc::MADV_NOHUGEPAGE) };
}

/// Returns O_NONBLOCK and the other flags of F_GETFL.
///
/// # Errors
/// EBADF.
pub(crate) fn status_flags(fd: RawFd) -> Result<c_int> {
    call(IntegerCall::Fcntl, [fd, libc::F_GETFL, 0])
}

/// Sets the flags of F_SETFL.
///
/// # Errors
/// EBADF.
pub(crate) fn set_status_flags(fd: RawFd, flags: c_int) -> Result<()> {
    call(IntegerCall::Fcntl, [fd, libc::F_SETFL, flags]).map(drop)
}

/// Returns the local address of a socket, or that of its peer, in C's representation.
fn name(fd: RawFd, of_peer: bool) -> Result<Vec<u8>> {
    let call = if of_peer { libc::SYS_getpeername } else { libc::SYS_getsockname };
    let mut name = vec![0; size_of::<libc::sockaddr_storage>()];
    let mut len = name.len() as socklen_t;
    // SAFETY: `call` is one of the two above, which take these arguments. The kernel writes at most
    // `len` bytes to `name`, a local buffer of that length, and then replaces `len`, a local
    // variable. Nothing else uses either.
    result(unsafe { libc::syscall(call, fd, name.as_mut_ptr(), &raw mut len) })?;
    name.truncate(len as usize);
    Ok(name)
}

/// Returns the local address of a socket, or that of its peer.
///
/// # Errors
/// ENOTCONN, EBADF; EINVAL for a socket of another family than IPv4 and IPv6.
pub(crate) fn address_as_is(fd: RawFd, of_peer: bool) -> Result<SocketAddr> {
    address::parse(&name(fd, of_peer)?)
}

/// Makes a call that takes an address.
fn call_with_address(call: c_long, fd: RawFd, addr: &[u8]) -> Result<()> {
    // SAFETY: `call` is bind or connect: the callers are the two functions below. The kernel reads
    // at most `addr.len()` bytes from `addr`, which is borrowed during the call, and writes none.
    result(unsafe { libc::syscall(call, fd, addr.as_ptr(), addr.len()) }).map(drop)
}

/// Calls bind(2).
///
/// # Errors
/// OS errors.
pub(crate) fn bind(fd: RawFd, addr: &[u8]) -> Result<()> {
    call_with_address(libc::SYS_bind, fd, addr)
}

/// Calls connect(2).
///
/// # Errors
/// OS errors.
pub(crate) fn connect(fd: RawFd, addr: &[u8]) -> Result<()> {
    call_with_address(libc::SYS_connect, fd, addr)
}

/// Dissolves the association of a UDP socket with its peer.
///
/// # Errors
/// OS errors.
pub(crate) fn disconnect(fd: RawFd) -> Result<()> {
    // Zeros are an address of the unspecified family.
    connect(fd, &[0; size_of::<libc::sockaddr>()])
}

/// Creates a UDP socket.
///
/// # Errors
/// EMFILE; EAFNOSUPPORT if the system has no IPv6.
pub(crate) fn udp_socket(domain: c_int) -> Result<OwnedFd> {
    new_descriptor(IntegerCall::Socket, [domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0])
}

/// Sends the parts as one datagram, without waiting.
///
/// # Errors
/// OS errors.
pub(crate) fn send_message(fd: RawFd, parts: [&[u8]; 2], to: &[u8]) -> Result<()> {
    let mut parts = parts
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    let mut message: libc::msghdr = zeroed();
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message.msg_name = to.as_ptr().cast_mut().cast();
    message.msg_namelen = to.len() as socklen_t;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `message` is a local variable that refers to the local list `parts` with its length
    // and to `to` with its length. The elements of the list are the borrowed parts with their
    // lengths. The kernel only reads all of these. The other fields are zeros, so there is no
    // control message.
    result(unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const message, flags) }).map(drop)
}

/// Receives a datagram, without waiting. Returns its length, limited to the size of `buffer`, and
/// its sender.
///
/// # Errors
/// OS errors; EINVAL for a sender of another family than IPv4 and IPv6.
pub(crate) fn receive_from(fd: RawFd, buffer: &mut [u8]) -> Result<(usize, SocketAddr)> {
    let mut from = [0u8; size_of::<libc::sockaddr_storage>()];
    let mut len = from.len() as socklen_t;
    let (at, room, flags) = (buffer.as_mut_ptr(), buffer.len(), libc::MSG_DONTWAIT);
    // SAFETY: the kernel writes at most `room` bytes to `buffer`, which has that length and is
    // borrowed mutably, and at most `len` bytes to `from`, which has that size. It replaces `len`,
    // which is a local variable like `from`.
    let count = result(unsafe {
        libc::syscall(libc::SYS_recvfrom, fd, at, room, flags, from.as_mut_ptr(), &raw mut len)
    })?;
    Ok((count as usize, address::parse(&from[..from.len().min(len as usize)])?))
}

/// Discards the oldest report in a socket's error queue.
///
/// # Errors
/// EAGAIN if there is none.
pub(crate) fn discard_report(fd: RawFd) -> Result<()> {
    let mut message: libc::msghdr = zeroed();
    let flags = libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE;
    // SAFETY: `message` is a local variable of the type that recvmsg(2) takes, and all of its
    // pointers are NULL with a length of 0, so the kernel writes only to the structure itself.
    result(unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut message, flags) }).map(drop)
}

/// Shuts down both directions of a socket, if it is connected.
pub(crate) fn shut(fd: RawFd) {
    let _ = call(IntegerCall::Shutdown, [fd, libc::SHUT_RDWR, 0]);
}

/// Returns an option of a socket with `N` bytes, or `None` if the system does not have the option.
pub(crate) fn option<const N: usize>(fd: RawFd, level: c_int, name: c_int) -> Option<[u8; N]> {
    let mut value = [0; N];
    option_bytes(fd, level, name, &mut value).ok().map(|_| value)
}

/// Returns an integer option of a socket, or `None` if the system does not have the option.
pub(crate) fn int_option(fd: RawFd, level: c_int, name: c_int) -> Option<c_int> {
    option(fd, level, name).map(c_int::from_ne_bytes)
}

/// Reads an option, as many bytes as fit. Returns their number.
///
/// # Errors
/// OS errors.
pub(crate) fn option_bytes(fd: RawFd, level: c_int, name: c_int, to: &mut [u8]) -> Result<usize> {
    let mut len = to.len() as socklen_t;
    // SAFETY: the kernel replaces `len`, a local variable, and writes at most as many bytes to
    // `to`, which is borrowed mutably. A few options use more memory (SO_GET_FILTER counts `len` in
    // instructions). Only `rgetsockopt` reads these, whose caller, the program, passes the memory
    // that the option needs (getsockopt(2)).
    result(unsafe {
        libc::syscall(libc::SYS_getsockopt, fd, level, name, to.as_mut_ptr(), &raw mut len)
    })?;
    Ok(len as usize)
}

/// Sets an option to a value of bytes.
///
/// # Errors
/// OS errors.
pub(crate) fn set_option_bytes(fd: RawFd, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
    // SAFETY: the kernel reads `value.len()` bytes from `value`, which is borrowed during the call.
    // The values of some options refer to more memory, which the kernel reads or writes. Only
    // `rsetsockopt` passes such values: those of the program, which passes with them the memory for
    // the option (setsockopt(2)). All other callers pass integers or a `linger`.
    result(unsafe {
        libc::syscall(libc::SYS_setsockopt, fd, level, name, value.as_ptr(), value.len())
    })
    .map(drop)
}

/// Returns a number that identifies a socket among all that existed since the system started.
/// Returns `None` for other files, and if the system does not have the option.
pub(crate) fn cookie(fd: RawFd) -> Option<NonZeroU64> {
    NonZeroU64::new(u64::from_ne_bytes(option(fd, libc::SOL_SOCKET, libc::SO_COOKIE)?))
}

/// Sets an integer option.
///
/// # Errors
/// OS errors.
pub(crate) fn set_option(fd: RawFd, level: c_int, name: c_int, value: c_int) -> Result<()> {
    set_option_bytes(fd, level, name, &value.to_ne_bytes())
}

/// Creates a socket whose peer is closed, so that a read returns the end of the stream. It is the
/// placeholder for an rsocket, and the only socket that the system's own calls see.
///
/// # Errors
/// EMFILE.
pub(crate) fn closed_socket() -> Result<OwnedFd> {
    let mut ends = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the kernel writes two descriptors to `ends`, a local array of two numbers of that
    // type.
    result(unsafe {
        libc::syscall(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr())
    })?;
    // SAFETY: the call has succeeded, so both numbers are those of new open descriptors
    // (socketpair(2)). Each becomes one `OwnedFd`, and nothing else owns it.
    let [end, _other] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(end)
}

/// Flags of a placeholder. No other file has exactly these flags.
const MARK: c_int = libc::O_RDWR | libc::O_NONBLOCK | libc::O_APPEND | libc::O_NOATIME;

/// Gives a socket of [`closed_socket`] the flags that [`is_marked`] checks. Returns false if the
/// system refuses them.
pub(crate) fn mark(fd: RawFd) -> bool {
    set_status_flags(fd, MARK).is_ok() && is_marked(fd)
}

/// Returns whether the file is a socket that [`mark`] has marked. This takes a third of the time of
/// [`cookie`].
pub(crate) fn is_marked(fd: RawFd) -> bool {
    status_flags(fd) == Ok(MARK)
}

/// Prefix of the name of a placeholder.
const NAME: &[u8] = b"\0uiw-rsocket-";

/// Gives a socket of [`closed_socket`] a name by which the next program of the process can identify
/// it after exec(3) (see [`stood_for_rsocket`]). The socket works without a name as well.
pub(crate) fn name_placeholder(fd: RawFd) {
    let Some(cookie) = cookie(fd) else { return };
    let family = (libc::AF_UNIX as libc::sa_family_t).to_ne_bytes();
    let name = [&family[..], NAME, format!("{}-{cookie}", process()).as_bytes()].concat();
    // A failure has no consequences.
    let _ = bind(fd, &name);
}

/// Returns whether the file is a socket that [`name_placeholder`] has named.
pub(crate) fn stood_for_rsocket(fd: RawFd) -> bool {
    name(fd, false).is_ok_and(|name| {
        address::family(&name).map(c_int::from) == Some(libc::AF_UNIX)
            && name[size_of::<libc::sa_family_t>()..].starts_with(NAME)
    })
}

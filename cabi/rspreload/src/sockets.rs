//! Functions of `libibverbs.so.1` that this library calls: those that
//! `uiw_cabi_rsocket::preload::exports` describes, and the API of rsockets.

use crate::argument::{Argument, In, Len, Out};
use libc::{
    epoll_event, fd_set, iovec, msghdr, nfds_t, off64_t, pollfd, sigset_t, sockaddr, socklen_t,
    timespec,
};
use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

/// Result for a descriptor that is not an rsocket.
pub(crate) const ORDINARY: c_int = 1;
/// Like [`ORDINARY`], for calls that return a number of bytes.
pub(crate) const SYSTEM: isize = -2;
/// Result for a descriptor that is an rsocket.
pub(crate) const RSOCKET: c_int = 2;

/// Buffer for a socket address of any family.
#[repr(C, align(8))]
pub(crate) struct Address(pub(crate) [u8; 128]);

// `libibverbs.so.1` declares the functions with these types, except that it has its own argument
// types, which carry the same guarantees. Each declaration is on one line.
#[rustfmt::skip]
unsafe extern "C" {
    pub(crate) safe fn uiw_sockets_bits(count: &mut usize) -> *const u64;
    pub(crate) safe fn uiw_sockets_waiting(count: &mut usize) -> *const u32;
    pub(crate) safe fn uiw_sockets_loaded();
    pub(crate) safe fn uiw_sockets_made(fd: c_int, domain: c_int) -> c_int;
    pub(crate) safe fn uiw_sockets_made_datagram(fd: c_int, domain: c_int) -> c_int;
    pub(crate) safe fn uiw_sockets_sendto<'a>(fd: c_int, buffer: In<'a, c_void>, len: Len<'a>, flags: c_int, addr: In<'a, sockaddr>, addr_len: Argument<'a, socklen_t>) -> isize;
    pub(crate) safe fn uiw_sockets_enter(fd: c_int) -> c_int;
    pub(crate) safe fn uiw_sockets_read<'a>(fd: c_int, list: In<'a, iovec>, count: Argument<'a, c_int>) -> isize;
    pub(crate) safe fn uiw_sockets_receive<'a>(fd: c_int, list: In<'a, iovec>, count: Argument<'a, c_int>, flags: c_int) -> isize;
    pub(crate) safe fn uiw_sockets_send<'a>(fd: c_int, list: In<'a, iovec>, count: Argument<'a, c_int>, flags: c_int) -> isize;
    pub(crate) safe fn uiw_sockets_kind(fd: c_int) -> c_int;
    pub(crate) safe fn uiw_sockets_bind<'a>(fd: c_int, addr: In<'a, sockaddr>, len: Argument<'a, socklen_t>) -> c_int;
    pub(crate) safe fn uiw_sockets_listening(fd: c_int);
    pub(crate) safe fn uiw_sockets_accepted<'a>(listening: c_int, fd: c_int, addr: Out<'a, sockaddr>, len: Out<'a, socklen_t>, room: Argument<'a, socklen_t>) -> c_int;
    pub(crate) safe fn uiw_sockets_target<'a>(fd: c_int, addr: In<'a, sockaddr>, len: Argument<'a, socklen_t>, real: &mut Address) -> c_int;
    pub(crate) safe fn uiw_sockets_connected<'a>(fd: c_int, addr: In<'a, sockaddr>, len: Argument<'a, socklen_t>, outcome: c_int) -> c_int;
    pub(crate) safe fn uiw_sockets_on_tcp<'a>(fd: c_int, addr: In<'a, sockaddr>, len: Argument<'a, socklen_t>);
    pub(crate) safe fn uiw_sockets_close_range(first: c_uint, last: c_uint);
    pub(crate) safe fn uiw_sockets_closing(fd: c_int);
    pub(crate) safe fn uiw_sockets_duplicated(old: c_int, new: c_int);
    pub(crate) safe fn uiw_sockets_address<'a>(fd: c_int, addr: Out<'a, sockaddr>, len: Out<'a, socklen_t>, of_peer: c_int) -> c_int;
    pub(crate) safe fn uiw_sockets_enter_all<'a>(fds: In<'a, pollfd>, count: Argument<'a, nfds_t>) -> c_int;
    pub(crate) safe fn uiw_sockets_poll<'a>(fds: Out<'a, pollfd>, count: Argument<'a, nfds_t>, timeout: In<'_, timespec>, mask: In<'_, sigset_t>) -> c_int;
    pub(crate) safe fn uiw_sockets_select<'a>(count: Argument<'a, c_int>, read: Out<'a, fd_set>, write: Out<'a, fd_set>, except: Out<'a, fd_set>, timeout: In<'_, timespec>, mask: In<'_, sigset_t>) -> c_int;
    pub(crate) safe fn uiw_sockets_epoll_ctl<'a>(set_fd: c_int, op: c_int, fd: c_int, event: Out<'a, epoll_event>) -> c_int;
    pub(crate) safe fn uiw_sockets_epoll_wait<'a>(set_fd: c_int, events: Out<'a, epoll_event>, most: Argument<'a, c_int>, timeout: In<'_, timespec>, mask: In<'_, sigset_t>) -> c_int;
    pub(crate) safe fn uiw_sockets_ioctl<'a>(fd: c_int, request: c_ulong, argument: Out<'a, c_void>)
    -> c_int;
    pub(crate) safe fn uiw_sockets_sendfile<'a>(to: c_int, file: c_int, offset: Out<'a, off64_t>, count: Len<'a>) -> isize;

    pub(crate) safe fn rbind<'a>(fd: c_int, addr: In<'a, sockaddr>, len: Argument<'a, socklen_t>) -> c_int;
    pub(crate) safe fn rlisten(fd: c_int, backlog: c_int) -> c_int;
    pub(crate) safe fn raccept<'a>(fd: c_int, addr: Out<'a, sockaddr>, len: Out<'a, socklen_t>) -> c_int;
    pub(crate) safe fn rconnect<'a>(fd: c_int, addr: In<'a, sockaddr>, len: Argument<'a, socklen_t>)
    -> c_int;
    pub(crate) safe fn rshutdown(fd: c_int, how: c_int) -> c_int;
    pub(crate) safe fn rgetsockname<'a>(fd: c_int, addr: Out<'a, sockaddr>, len: Out<'a, socklen_t>)
    -> c_int;
    pub(crate) safe fn rgetpeername<'a>(fd: c_int, addr: Out<'a, sockaddr>, len: Out<'a, socklen_t>)
    -> c_int;
    pub(crate) safe fn rgetsockopt<'a>(fd: c_int, level: c_int, name: c_int, value: Out<'a, c_void>, len: Out<'a, socklen_t>) -> c_int;
    pub(crate) safe fn rsetsockopt<'a>(fd: c_int, level: c_int, name: c_int, value: In<'a, c_void>, len: Argument<'a, socklen_t>) -> c_int;
    pub(crate) safe fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    pub(crate) safe fn rrecvfrom<'a>(fd: c_int, buffer: Out<'a, c_void>, len: Len<'a>, flags: c_int, addr: Out<'a, sockaddr>, addr_len: Out<'a, socklen_t>) -> isize;
    pub(crate) safe fn rrecvmsg<'a>(fd: c_int, message: Out<'a, msghdr>, flags: c_int) -> isize;
    pub(crate) safe fn rsendmsg<'a>(fd: c_int, message: In<'a, msghdr>, flags: c_int) -> isize;
}

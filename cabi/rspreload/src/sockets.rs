//! The functions of `libibverbs.so.1`: those that `uiw_cabi::rsocket::preload::exports` describes, and the API of rsockets.

use libc::{
    epoll_event, fd_set, iovec, msghdr, nfds_t, off64_t, pollfd, sigset_t, sockaddr, socklen_t, timespec,
};
use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

/// The descriptor is the system's.
pub(crate) const ORDINARY: c_int = 1;
/// The same, where a call returns a number of bytes.
pub(crate) const SYSTEM: isize = -2;
/// It is an rsocket.
pub(crate) const RSOCKET: c_int = 2;

unsafe extern "C" {
    pub(crate) fn uiw_sockets_bits(count: *mut usize) -> *const u64;
    pub(crate) fn uiw_sockets_waiting(count: *mut usize) -> *const u32;
    pub(crate) fn uiw_sockets_loaded();
    pub(crate) fn uiw_sockets_made(fd: c_int, domain: c_int) -> c_int;
    pub(crate) fn uiw_sockets_made_datagram(fd: c_int, domain: c_int) -> c_int;
    pub(crate) fn uiw_sockets_sendto(
        fd: c_int,
        buffer: *const c_void,
        len: usize,
        flags: c_int,
        addr: *const sockaddr,
        addr_len: socklen_t,
    ) -> isize;
    pub(crate) fn uiw_sockets_enter(fd: c_int) -> c_int;
    pub(crate) fn uiw_sockets_read(fd: c_int, list: *const iovec, count: c_int) -> isize;
    pub(crate) fn uiw_sockets_receive(fd: c_int, list: *const iovec, count: c_int, flags: c_int) -> isize;
    pub(crate) fn uiw_sockets_send(fd: c_int, list: *const iovec, count: c_int, flags: c_int) -> isize;
    pub(crate) fn uiw_sockets_kind(fd: c_int) -> c_int;
    pub(crate) fn uiw_sockets_bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    pub(crate) fn uiw_sockets_listening(fd: c_int);
    pub(crate) fn uiw_sockets_accepted(
        listening: c_int,
        fd: c_int,
        addr: *mut sockaddr,
        len: *mut socklen_t,
        room: socklen_t,
    ) -> c_int;
    pub(crate) fn uiw_sockets_target(
        fd: c_int,
        addr: *const sockaddr,
        len: socklen_t,
        real: *mut c_void,
    ) -> c_int;
    pub(crate) fn uiw_sockets_connected(
        fd: c_int,
        addr: *const sockaddr,
        len: socklen_t,
        outcome: c_int,
    ) -> c_int;
    pub(crate) fn uiw_sockets_on_tcp(fd: c_int, addr: *const sockaddr, len: socklen_t);
    pub(crate) fn uiw_sockets_close_range(first: c_uint, last: c_uint);
    pub(crate) fn uiw_sockets_closing(fd: c_int);
    pub(crate) fn uiw_sockets_duplicated(old: c_int, new: c_int);
    pub(crate) fn uiw_sockets_address(
        fd: c_int,
        addr: *mut sockaddr,
        len: *mut socklen_t,
        of_peer: c_int,
    ) -> c_int;
    pub(crate) fn uiw_sockets_enter_all(fds: *const pollfd, count: nfds_t) -> c_int;
    pub(crate) fn uiw_sockets_poll(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;
    pub(crate) fn uiw_sockets_select(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;
    pub(crate) fn uiw_sockets_epoll_ctl(
        set_fd: c_int,
        op: c_int,
        fd: c_int,
        event: *mut epoll_event,
    ) -> c_int;
    pub(crate) fn uiw_sockets_epoll_wait(
        set_fd: c_int,
        events: *mut epoll_event,
        most: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;
    pub(crate) fn uiw_sockets_ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    pub(crate) fn uiw_sockets_sendfile(to: c_int, file: c_int, offset: *mut off64_t, count: usize) -> isize;

    pub(crate) fn rbind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    pub(crate) fn rlisten(fd: c_int, backlog: c_int) -> c_int;
    pub(crate) fn raccept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    pub(crate) fn rconnect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    pub(crate) fn rshutdown(fd: c_int, how: c_int) -> c_int;
    pub(crate) fn rgetsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    pub(crate) fn rgetpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    pub(crate) fn rgetsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut socklen_t,
    ) -> c_int;
    pub(crate) fn rsetsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        len: socklen_t,
    ) -> c_int;
    pub(crate) fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    pub(crate) fn rrecvfrom(
        fd: c_int,
        buffer: *mut c_void,
        len: usize,
        flags: c_int,
        addr: *mut sockaddr,
        addr_len: *mut socklen_t,
    ) -> isize;
    pub(crate) fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize;
    pub(crate) fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize;
}

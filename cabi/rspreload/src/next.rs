//! The functions of the C library that this library stands in front of.

use crate::waiting::{Cleanup, Routine};
use libc::{
    FILE, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, off64_t, pollfd, sigset_t, sockaddr,
    socklen_t, timespec, timeval,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a function that the C library does not have returns.
trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

impl Failed for isize {
    const FAILED: Self = -1;
}

impl Failed for *mut FILE {
    const FAILED: Self = ptr::null_mut();
}

impl Failed for () {
    const FAILED: Self = ();
}

/// The function of this name behind this library; 0 where there is none.
fn find(found: &AtomicUsize, name: &CStr) -> usize {
    match found.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: a name with its NUL.
            let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }.addr();
            found.store(address, Ordering::Relaxed);
            address
        }
        address => address,
    }
}

/// Whether the C library has handlers for threads that are cancelled, outside of the macros of its headers.
pub(crate) fn has_cleanup() -> bool {
    [&found::cleanup_push, &found::cleanup_pop].iter().all(|found| found.load(Ordering::Relaxed) != 0)
}

/// The type of a function by those of its arguments, of the variadic one, and of its result.
macro_rules! function {
    (($($type:ty),*) () ()) => { unsafe extern "C-unwind" fn($($type),*) };
    (($($type:ty),*) () ($result:ty)) => { unsafe extern "C-unwind" fn($($type),*) -> $result };
    (($($type:ty),*) ($word:ty) ($result:ty)) => { unsafe extern "C-unwind" fn($($type),*, ...) -> $result };
}

/// Functions by their names and types; an argument behind a semicolon is that of a variadic function.
macro_rules! functions {
    ($($name:ident = $c:literal ($($argument:ident: $type:ty),* $(; $rest:ident: $word:ty)?) $(-> $result:ty)?;)*) => {
        $(
            /// The C library's.
            ///
            /// # Safety
            /// As for that.
            #[inline]
            pub(crate) unsafe fn $name($($argument: $type),* $(, $rest: $word)?) $(-> $result)? {
                type Function = function!(($($type),*) ($($word)?) ($($result)?));
                // SAFETY: the C library's function of this name has this type; where there is none (0), `None` is that.
                let next = unsafe { mem::transmute::<usize, Option<Function>>(find(&found::$name, $c)) };
                match next {
                    // SAFETY: the caller's promise.
                    Some(next) => unsafe { next($($argument),* $(, $rest)?) },
                    None => {
                        crate::fail(libc::ENOSYS);
                        Failed::FAILED
                    }
                }
            }
        )*

        #[expect(non_upper_case_globals, reason = "one for each function, by its name")]
        mod found {
            use super::AtomicUsize;
            $(pub(super) static $name: AtomicUsize = AtomicUsize::new(0);)*
        }

        /// Looks up all of them: later a thread may be in a signal handler, or the child of a fork.
        pub(crate) fn find_all() {
            $(find(&found::$name, $c);)*
        }
    };
}

functions! {
    socket = c"socket" (domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind = c"bind" (fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    listen = c"listen" (fd: c_int, backlog: c_int) -> c_int;
    accept4 = c"accept4" (fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    accept = c"accept" (fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    connect = c"connect" (fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    getsockname = c"getsockname" (fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getpeername = c"getpeername" (fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockopt = c"getsockopt" (fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    setsockopt = c"setsockopt" (fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    shutdown = c"shutdown" (fd: c_int, how: c_int) -> c_int;
    read = c"read" (fd: c_int, buffer: *mut c_void, len: usize) -> isize;
    read_chk = c"__read_chk" (fd: c_int, buffer: *mut c_void, len: usize, room: usize) -> isize;
    readv = c"readv" (fd: c_int, list: *const iovec, count: c_int) -> isize;
    recv = c"recv" (fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize;
    recv_chk = c"__recv_chk" (fd: c_int, buffer: *mut c_void, len: usize, room: usize, flags: c_int) -> isize;
    recvfrom = c"recvfrom" (fd: c_int, buffer: *mut c_void, len: usize, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> isize;
    recvfrom_chk = c"__recvfrom_chk" (fd: c_int, buffer: *mut c_void, len: usize, room: usize, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> isize;
    recvmsg = c"recvmsg" (fd: c_int, message: *mut msghdr, flags: c_int) -> isize;
    recvmmsg = c"recvmmsg" (fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    write = c"write" (fd: c_int, buffer: *const c_void, len: usize) -> isize;
    writev = c"writev" (fd: c_int, list: *const iovec, count: c_int) -> isize;
    send = c"send" (fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> isize;
    sendto = c"sendto" (fd: c_int, buffer: *const c_void, len: usize, flags: c_int, addr: *const sockaddr, addr_len: socklen_t) -> isize;
    sendmsg = c"sendmsg" (fd: c_int, message: *const msghdr, flags: c_int) -> isize;
    sendmmsg = c"sendmmsg" (fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendfile = c"sendfile" (to: c_int, file: c_int, offset: *mut off_t, count: usize) -> isize;
    sendfile64 = c"sendfile64" (to: c_int, file: c_int, offset: *mut off64_t, count: usize) -> isize;
    splice = c"splice" (from: c_int, from_offset: *mut off64_t, to: c_int, to_offset: *mut off64_t, len: usize, flags: c_uint) -> isize;
    poll = c"poll" (fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    poll_chk = c"__poll_chk" (fds: *mut pollfd, count: nfds_t, timeout: c_int, room: usize) -> c_int;
    ppoll = c"ppoll" (fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    ppoll_chk = c"__ppoll_chk" (fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: usize) -> c_int;
    select = c"select" (count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect = c"pselect" (count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_ctl = c"epoll_ctl" (set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait = c"epoll_wait" (set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int;
    epoll_pwait = c"epoll_pwait" (set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2 = c"epoll_pwait2" (set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    cleanup_push = c"_pthread_cleanup_push" (handler: *mut Cleanup, routine: Routine, argument: *mut c_void);
    cleanup_pop = c"_pthread_cleanup_pop" (handler: *mut Cleanup, execute: c_int);
    close = c"close" (fd: c_int) -> c_int;
    close_range = c"close_range" (first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom = c"closefrom" (first: c_int);
    fclose = c"fclose" (stream: *mut FILE) -> c_int;
    freopen = c"freopen" (path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    freopen64 = c"freopen64" (path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    dup = c"dup" (fd: c_int) -> c_int;
    dup2 = c"dup2" (old: c_int, new: c_int) -> c_int;
    dup3 = c"dup3" (old: c_int, new: c_int, flags: c_int) -> c_int;
    fcntl = c"fcntl" (fd: c_int, command: c_int; argument: *mut c_void) -> c_int;
    fcntl64 = c"fcntl64" (fd: c_int, command: c_int; argument: *mut c_void) -> c_int;
    ioctl = c"ioctl" (fd: c_int, request: c_ulong; argument: *mut c_void) -> c_int;
}

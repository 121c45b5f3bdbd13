//! Functions of the C library that this library replaces for the program and calls itself.

use crate::argument::{Argument, In, Len, Out};
use crate::waiting::{Cleanup, Routine};
use libc::{
    FILE, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, off64_t, pollfd, sigset_t,
    sockaddr, socklen_t, timespec, timeval,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Result of a function that the C library does not have.
trait FailureValue {
    const FAILED: Self;
}

impl FailureValue for c_int {
    const FAILED: Self = -1;
}

impl FailureValue for isize {
    const FAILED: Self = -1;
}

impl FailureValue for *mut FILE {
    const FAILED: Self = ptr::null_mut();
}

impl FailureValue for () {
    const FAILED: Self = ();
}

/// Function of the C library.
///
/// # Safety
/// `Type` is the type of a function pointer, of the function that the C library has under the name
/// `NAME`. It is safe to call with arguments that were made for it ([`Argument`]), and it may
/// unwind.
unsafe trait NextFunction {
    const NAME: &CStr;
    type Type;

    fn address_cell() -> &'static AtomicUsize;

    /// Returns the C library's function, or `None` if the C library does not have it.
    #[inline]
    fn get() -> Option<Self::Type> {
        let mut address = Self::address_cell().load(Ordering::Relaxed);
        if address == 0 {
            // SAFETY: `NAME` is a static `CStr`, which ends in NUL, and RTLD_NEXT is a handle that
            // dlsym(3) accepts.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, Self::NAME.as_ptr()) }.addr();
            Self::address_cell().store(address, Ordering::Relaxed);
        }
        const { assert!(size_of::<Option<Self::Type>>() == size_of::<usize>()) };
        // SAFETY: `address` is 0, which represents `None`, or that of the function `NAME` of the
        // C library, or of another preloaded library that replaces it, which has the type `Type`,
        // as the trait requires. The sizes are the same, as asserted above. Libraries that are
        // loaded with the program are never unloaded.
        unsafe { mem::transmute_copy::<usize, Option<Self::Type>>(&address) }
    }
}

/// Returns whether the C library exports functions that install and remove handlers for the
/// cancellation of a thread, in addition to the macros of its headers.
pub(crate) fn has_cleanup() -> bool {
    [found::cleanup_push::address_cell(), found::cleanup_pop::address_cell()]
        .iter()
        .all(|found| found.load(Ordering::Relaxed) != 0)
}

/// Expands to the type of a function, given the types of its arguments, of its variadic argument,
/// and of its result.
macro_rules! function {
    (($($type:ty),*) () ()) => { for<'a> extern "C-unwind" fn($($type),*) };
    (($($type:ty),*) () ($result:ty)) => { for<'a> extern "C-unwind" fn($($type),*) -> $result };
    (($($type:ty),*) ($word:ty) ($result:ty)) => { for<'a> extern "C-unwind" fn($($type),*, ...) -> $result };
}

/// Defines functions by their names and types. An argument after a semicolon is that of a variadic
/// function.
macro_rules! functions {
    ($($name:ident = $c:literal ($($argument:ident: $type:ty),* $(; $rest:ident: $word:ty)?) $(-> $result:ty)?;)*) => {
        $(
            /// Calls the C library's function of this name.
            #[allow(clippy::extra_unused_lifetimes, reason = "some functions take integers alone")]
            #[inline]
            pub(crate) fn $name<'a>($($argument: $type),* $(, $rest: $word)?) $(-> $result)? {
                match found::$name::get() {
                    Some(next) => next($($argument),* $(, $rest)?),
                    None => {
                        crate::fail(libc::ENOSYS);
                        FailureValue::FAILED
                    }
                }
            }
        )*

        /// Types that represent the functions, by their names.
        #[expect(non_camel_case_types, reason = "C's names")]
        mod found {
            use super::*;
            $(
                pub(super) struct $name;
                // SAFETY: the name and the type are those of the function in the C library's
                // headers, with transparent [`Argument`]s, which carry the guarantees of the manual
                // page, for pointers and their lengths. Other integers cannot violate memory
                // safety. `extern "C-unwind"` permits a cancelled thread to unwind.
                unsafe impl NextFunction for $name {
                    const NAME: &CStr = $c;
                    type Type = function!(($($type),*) ($($word)?) ($($result)?));

                    fn address_cell() -> &'static AtomicUsize {
                        static FOUND: AtomicUsize = AtomicUsize::new(0);
                        &FOUND
                    }
                }
            )*
        }

        /// Looks up all functions in advance, because a later call may be made in a signal handler
        /// or in the child of a fork.
        pub(crate) fn find_all() {
            $(found::$name::get();)*
        }
    };
}

functions! {
    socket = c"socket" (domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind = c"bind" (fd: c_int, addr: In<'a, sockaddr>, len: Argument<'a, socklen_t>) -> c_int;
    listen = c"listen" (fd: c_int, backlog: c_int) -> c_int;
    accept4 = c"accept4" (fd: c_int, addr: Out<'a, sockaddr>, len: Out<'a, socklen_t>, flags: c_int) -> c_int;
    accept = c"accept" (fd: c_int, addr: Out<'a, sockaddr>, len: Out<'a, socklen_t>) -> c_int;
    connect = c"connect" (fd: c_int, addr: In<'a, sockaddr>, len: Argument<'a, socklen_t>) -> c_int;
    getsockname = c"getsockname" (fd: c_int, addr: Out<'a, sockaddr>, len: Out<'a, socklen_t>) -> c_int;
    getpeername = c"getpeername" (fd: c_int, addr: Out<'a, sockaddr>, len: Out<'a, socklen_t>) -> c_int;
    getsockopt = c"getsockopt" (fd: c_int, level: c_int, name: c_int, value: Out<'a, c_void>, len: Out<'a, socklen_t>) -> c_int;
    setsockopt = c"setsockopt" (fd: c_int, level: c_int, name: c_int, value: In<'a, c_void>, len: Argument<'a, socklen_t>) -> c_int;
    shutdown = c"shutdown" (fd: c_int, how: c_int) -> c_int;
    read = c"read" (fd: c_int, buffer: Out<'a, c_void>, len: Len<'a>) -> isize;
    read_chk = c"__read_chk" (fd: c_int, buffer: Out<'a, c_void>, len: Len<'a>, room: Len<'a>) -> isize;
    readv = c"readv" (fd: c_int, list: In<'a, iovec>, count: Argument<'a, c_int>) -> isize;
    recv = c"recv" (fd: c_int, buffer: Out<'a, c_void>, len: Len<'a>, flags: c_int) -> isize;
    recv_chk = c"__recv_chk" (fd: c_int, buffer: Out<'a, c_void>, len: Len<'a>, room: Len<'a>, flags: c_int) -> isize;
    recvfrom = c"recvfrom" (fd: c_int, buffer: Out<'a, c_void>, len: Len<'a>, flags: c_int, addr: Out<'a, sockaddr>, addr_len: Out<'a, socklen_t>) -> isize;
    recvfrom_chk = c"__recvfrom_chk" (fd: c_int, buffer: Out<'a, c_void>, len: Len<'a>, room: Len<'a>, flags: c_int, addr: Out<'a, sockaddr>, addr_len: Out<'a, socklen_t>) -> isize;
    recvmsg = c"recvmsg" (fd: c_int, message: Out<'a, msghdr>, flags: c_int) -> isize;
    recvmmsg = c"recvmmsg" (fd: c_int, messages: Out<'a, mmsghdr>, count: Argument<'a, c_uint>, flags: c_int, timeout: Out<'a, timespec>) -> c_int;
    write = c"write" (fd: c_int, buffer: In<'a, c_void>, len: Len<'a>) -> isize;
    writev = c"writev" (fd: c_int, list: In<'a, iovec>, count: Argument<'a, c_int>) -> isize;
    send = c"send" (fd: c_int, buffer: In<'a, c_void>, len: Len<'a>, flags: c_int) -> isize;
    sendto = c"sendto" (fd: c_int, buffer: In<'a, c_void>, len: Len<'a>, flags: c_int, addr: In<'a, sockaddr>, addr_len: Argument<'a, socklen_t>) -> isize;
    sendmsg = c"sendmsg" (fd: c_int, message: In<'a, msghdr>, flags: c_int) -> isize;
    sendmmsg = c"sendmmsg" (fd: c_int, messages: Out<'a, mmsghdr>, count: Argument<'a, c_uint>, flags: c_int) -> c_int;
    sendfile = c"sendfile" (to: c_int, file: c_int, offset: Out<'a, off_t>, count: Len<'a>) -> isize;
    sendfile64 = c"sendfile64" (to: c_int, file: c_int, offset: Out<'a, off64_t>, count: Len<'a>) -> isize;
    splice = c"splice" (from: c_int, from_offset: Out<'a, off64_t>, to: c_int, to_offset: Out<'a, off64_t>, len: Len<'a>, flags: c_uint) -> isize;
    poll = c"poll" (fds: Out<'a, pollfd>, count: Argument<'a, nfds_t>, timeout: c_int) -> c_int;
    poll_chk = c"__poll_chk" (fds: Out<'a, pollfd>, count: Argument<'a, nfds_t>, timeout: c_int, room: Len<'a>) -> c_int;
    ppoll = c"ppoll" (fds: Out<'a, pollfd>, count: Argument<'a, nfds_t>, timeout: In<'a, timespec>, mask: In<'a, sigset_t>) -> c_int;
    ppoll_chk = c"__ppoll_chk" (fds: Out<'a, pollfd>, count: Argument<'a, nfds_t>, timeout: In<'a, timespec>, mask: In<'a, sigset_t>, room: Len<'a>) -> c_int;
    select = c"select" (count: Argument<'a, c_int>, read: Out<'a, fd_set>, write: Out<'a, fd_set>, except: Out<'a, fd_set>, timeout: Out<'a, timeval>) -> c_int;
    pselect = c"pselect" (count: Argument<'a, c_int>, read: Out<'a, fd_set>, write: Out<'a, fd_set>, except: Out<'a, fd_set>, timeout: In<'a, timespec>, mask: In<'a, sigset_t>) -> c_int;
    epoll_ctl = c"epoll_ctl" (set: c_int, op: c_int, fd: c_int, event: Out<'a, epoll_event>) -> c_int;
    epoll_wait = c"epoll_wait" (set: c_int, events: Out<'a, epoll_event>, most: Argument<'a, c_int>, timeout: c_int) -> c_int;
    epoll_pwait = c"epoll_pwait" (set: c_int, events: Out<'a, epoll_event>, most: Argument<'a, c_int>, timeout: c_int, mask: In<'_, sigset_t>) -> c_int;
    epoll_pwait2 = c"epoll_pwait2" (set: c_int, events: Out<'a, epoll_event>, most: Argument<'a, c_int>, timeout: In<'_, timespec>, mask: In<'_, sigset_t>) -> c_int;
    cleanup_push = c"_pthread_cleanup_push" (handler: Out<'a, Cleanup>, routine: Argument<'a, Routine>, argument: Out<'a, c_void>);
    cleanup_pop = c"_pthread_cleanup_pop" (handler: Out<'a, Cleanup>, execute: c_int);
    close = c"close" (fd: c_int) -> c_int;
    close_range = c"close_range" (first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom = c"closefrom" (first: c_int);
    fclose = c"fclose" (stream: Out<'a, FILE>) -> c_int;
    freopen = c"freopen" (path: In<'a, c_char>, mode: In<'a, c_char>, stream: Out<'a, FILE>) -> *mut FILE;
    freopen64 = c"freopen64" (path: In<'a, c_char>, mode: In<'a, c_char>, stream: Out<'a, FILE>) -> *mut FILE;
    dup = c"dup" (fd: c_int) -> c_int;
    dup2 = c"dup2" (old: c_int, new: c_int) -> c_int;
    dup3 = c"dup3" (old: c_int, new: c_int, flags: c_int) -> c_int;
    fcntl = c"fcntl" (fd: c_int, command: c_int; argument: Out<'a, c_void>) -> c_int;
    fcntl64 = c"fcntl64" (fd: c_int, command: c_int; argument: Out<'a, c_void>) -> c_int;
    ioctl = c"ioctl" (fd: c_int, request: c_ulong; argument: Out<'a, c_void>) -> c_int;
}

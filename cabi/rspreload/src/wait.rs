//! Waiting for descriptors.

use crate::bits::{is_rsocket, is_set};
use crate::{next, sockets};
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use std::ffi::c_int;
use std::ptr;
use std::slice;

/// A time that may be for ever.
struct Time(Option<timespec>);

impl Time {
    fn of_milliseconds(ms: c_int) -> Self {
        let time = timespec { tv_sec: (ms / 1000).into(), tv_nsec: (ms % 1000 * 1_000_000).into() };
        Self((ms >= 0).then_some(time))
    }

    fn as_ptr(&self) -> *const timespec {
        self.0.as_ref().map_or(ptr::null(), ptr::from_ref)
    }
}

/// Whether the list has an rsocket.
///
/// # Safety
/// `fds` has `count` structures.
unsafe fn has_rsocket(fds: *const pollfd, count: nfds_t) -> bool {
    if fds.is_null() || count == 0 {
        return false;
    }
    // SAFETY: the caller's promise.
    let list = unsafe { slice::from_raw_parts(fds, count as usize) };
    // SAFETY: as above.
    list.iter().any(|fd| is_set(fd.fd)) && unsafe { sockets::uiw_sockets_enter_all(fds, count) } != 0
}

/// # Safety
/// As for the C library's, here and below.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if has_rsocket(fds, count) {
            let time = Time::of_milliseconds(timeout);
            return sockets::uiw_sockets_poll(fds, count, time.as_ptr(), ptr::null());
        }
        next::poll(fds, count, timeout)
    }
}

/// A call of a program that was compiled with checks of its buffers, here and below: where there is no room the C library's function ends the
/// program.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: usize,
) -> c_int {
    if room / size_of::<pollfd>() >= count as usize {
        // SAFETY: the caller's promise.
        return unsafe { poll(fds, count, timeout) };
    }
    // SAFETY: as above.
    unsafe { next::poll_chk(fds, count, timeout, room) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if has_rsocket(fds, count) {
            return sockets::uiw_sockets_poll(fds, count, timeout, mask);
        }
        next::ppoll(fds, count, timeout, mask)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    if room / size_of::<pollfd>() >= count as usize {
        // SAFETY: the caller's promise.
        return unsafe { ppoll(fds, count, timeout, mask) };
    }
    // SAFETY: as above.
    unsafe { next::ppoll_chk(fds, count, timeout, mask, room) }
}

/// Whether a set has an rsocket.
///
/// # Safety
/// Each is NULL or has `count` bits.
unsafe fn sets_have_rsocket(count: c_int, sets: [*mut fd_set; 3]) -> bool {
    let mut any = false;
    for fd in 0..count.min(libc::FD_SETSIZE as c_int) {
        // SAFETY: the caller's promise; a number of the set.
        let is_in = || unsafe { sets.iter().any(|set| !set.is_null() && libc::FD_ISSET(fd, *set)) };
        // Each is used, so each accepted connection becomes an rsocket.
        if is_set(fd) && is_in() && is_rsocket(fd) {
            any = true;
        }
    }
    any
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if !sets_have_rsocket(count, [read, write, except]) {
            return next::select(count, read, write, except, timeout);
        }
        // More microseconds than a second has are taken, as the system takes them.
        let time = timeout.as_ref().map(|time| timespec {
            tv_sec: time.tv_sec + time.tv_usec / 1_000_000,
            tv_nsec: time.tv_usec % 1_000_000 * 1000,
        });
        sockets::uiw_sockets_select(count, read, write, except, Time(time).as_ptr(), ptr::null())
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if !sets_have_rsocket(count, [read, write, except]) {
            return next::pselect(count, read, write, except, timeout, mask);
        }
        sockets::uiw_sockets_select(count, read, write, except, timeout, mask)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if is_set(set) || is_set(fd) {
            let done = sockets::uiw_sockets_epoll_ctl(set, op, fd, event);
            if done != sockets::ORDINARY {
                return done;
            }
        }
        next::epoll_ctl(set, op, fd, event)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if is_set(set) {
            let time = Time::of_milliseconds(timeout);
            return sockets::uiw_sockets_epoll_wait(set, events, most, time.as_ptr(), ptr::null());
        }
        next::epoll_wait(set, events, most, timeout)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if is_set(set) {
            let time = Time::of_milliseconds(timeout);
            return sockets::uiw_sockets_epoll_wait(set, events, most, time.as_ptr(), mask);
        }
        next::epoll_pwait(set, events, most, timeout, mask)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if is_set(set) {
            return sockets::uiw_sockets_epoll_wait(set, events, most, timeout, mask);
        }
        next::epoll_pwait2(set, events, most, timeout, mask)
    }
}

//! Functions of the C library that wait for descriptors: poll(2), select(2) and epoll_wait(2), with
//! their variants, and epoll_ctl(2).

use crate::argument::{Argument, In, Len, Out};
use crate::bits::{is_rsocket, is_set};
use crate::{next, sockets, waiting};
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use std::ffi::c_int;

/// Nanoseconds in a second.
const SECOND: i64 = 1_000_000_000;

fn now() -> timespec {
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // This makes no system call if the C library can read the clock itself.
    // SAFETY: the call writes at most one `timespec` to `now`, a local variable of this type that
    // nothing else uses, and takes no other pointer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now
}

/// Maximum duration of a wait; `None` means no limit.
pub(crate) struct WaitTime(pub(crate) Option<timespec>);

impl WaitTime {
    fn of_milliseconds(ms: c_int) -> Self {
        let time = timespec { tv_sec: (ms / 1000).into(), tv_nsec: (ms % 1000 * 1_000_000).into() };
        Self((ms >= 0).then_some(time))
    }

    fn argument(&self) -> In<'_, timespec> {
        In::from_option(self.0.as_ref())
    }

    /// Returns the time-out for poll(2), rounded up to milliseconds; -1 means no limit.
    fn milliseconds(&self) -> c_int {
        let ms = |time: &timespec| {
            time.tv_sec.saturating_mul(1000).saturating_add((time.tv_nsec + 999_999) / 1_000_000)
        };
        self.0.as_ref().map_or(-1, |time| c_int::try_from(ms(time)).unwrap_or(c_int::MAX))
    }

    /// Returns whether the call does not wait.
    pub(crate) fn is_none(&self) -> bool {
        self.0.is_some_and(|time| time.tv_sec == 0 && time.tv_nsec == 0)
    }

    /// Returns the time at which the wait ends, or `None` if there is no limit or the duration is
    /// invalid. The system call reports an invalid duration.
    pub(crate) fn end(&self) -> Option<timespec> {
        let time = self.0.filter(|time| time.tv_sec >= 0 && (0..SECOND).contains(&time.tv_nsec))?;
        let now = now();
        let nanos = now.tv_nsec + time.tv_nsec;
        Some(timespec {
            tv_sec: now.tv_sec.saturating_add(time.tv_sec + nanos / SECOND),
            tv_nsec: nanos % SECOND,
        })
    }

    /// Returns the remaining time until `end`, or no limit if `end` is `None`.
    pub(crate) fn until(end: Option<timespec>) -> Self {
        let now = now();
        Self(end.map(|end| {
            let (mut seconds, mut nanos) = (end.tv_sec - now.tv_sec, end.tv_nsec - now.tv_nsec);
            if nanos < 0 {
                (seconds, nanos) = (seconds - 1, nanos + SECOND);
            }
            if seconds < 0 {
                timespec { tv_sec: 0, tv_nsec: 0 }
            } else {
                timespec { tv_sec: seconds, tv_nsec: nanos }
            }
        }))
    }
}

/// Returns whether the list contains an rsocket.
fn has_rsocket<'a>(fds: In<'a, pollfd>, count: Argument<'a, nfds_t>) -> bool {
    fds.elements(count).iter().any(|fd| is_set(fd.fd))
        && sockets::uiw_sockets_enter_all(fds, count) != 0
}

#[unsafe(no_mangle)]
extern "C-unwind" fn poll<'a>(
    fds: Out<'a, pollfd>,
    count: Argument<'a, nfds_t>,
    timeout: c_int,
) -> c_int {
    if has_rsocket(fds.as_in(), count) {
        let time = WaitTime::of_milliseconds(timeout);
        return sockets::uiw_sockets_poll(fds, count, time.argument(), In::from_option(None));
    }
    next::poll(fds, count, timeout)
}

/// `poll` of a program that was compiled with checks of its buffers (`_FORTIFY_SOURCE`). The same
/// applies to `__ppoll_chk`. If the array is too short, the C library's function ends the program.
#[unsafe(no_mangle)]
extern "C-unwind" fn __poll_chk<'a>(
    fds: Out<'a, pollfd>,
    count: Argument<'a, nfds_t>,
    timeout: c_int,
    room: Len<'a>,
) -> c_int {
    if room.get() / size_of::<pollfd>() >= count.get() as usize {
        return poll(fds, count, timeout);
    }
    next::poll_chk(fds, count, timeout, room)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn ppoll<'a>(
    fds: Out<'a, pollfd>,
    count: Argument<'a, nfds_t>,
    timeout: In<'a, timespec>,
    mask: In<'a, sigset_t>,
) -> c_int {
    if has_rsocket(fds.as_in(), count) {
        return sockets::uiw_sockets_poll(fds, count, timeout, mask);
    }
    next::ppoll(fds, count, timeout, mask)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __ppoll_chk<'a>(
    fds: Out<'a, pollfd>,
    count: Argument<'a, nfds_t>,
    timeout: In<'a, timespec>,
    mask: In<'a, sigset_t>,
    room: Len<'a>,
) -> c_int {
    if room.get() / size_of::<pollfd>() >= count.get() as usize {
        return ppoll(fds, count, timeout, mask);
    }
    next::ppoll_chk(fds, count, timeout, mask, room)
}

/// Returns whether one of the sets contains an rsocket.
fn sets_have_rsocket<'a>(count: Argument<'a, c_int>, sets: [Out<'a, fd_set>; 3]) -> bool {
    let mut any = false;
    for fd in 0..count.get().min(libc::FD_SETSIZE as c_int) {
        let has = |set: *const fd_set| {
            // SAFETY: a set that is not NULL, as checked, is initialized and has FD_SETSIZE bits,
            // and the program does not change it during the call (select(2)), as [`Argument`]
            // requires. `fd` is from 0 to FD_SETSIZE - 1, the bounds of the loop.
            !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
        };
        let is_in = || sets.iter().any(|set| has(set.get()));
        // Every descriptor is checked, because the check converts an accepted connection to an
        // rsocket.
        if is_set(fd) && is_in() && is_rsocket(fd) {
            any = true;
        }
    }
    any
}

#[unsafe(no_mangle)]
extern "C-unwind" fn select<'a>(
    count: Argument<'a, c_int>,
    read: Out<'a, fd_set>,
    write: Out<'a, fd_set>,
    except: Out<'a, fd_set>,
    timeout: Out<'a, timeval>,
) -> c_int {
    if !sets_have_rsocket(count, [read, write, except]) {
        return next::select(count, read, write, except, timeout);
    }
    // A number of microseconds above one second is accepted, as by the kernel.
    let time = WaitTime(timeout.as_in().as_ref().map(|time| timespec {
        tv_sec: time.tv_sec + time.tv_usec / 1_000_000,
        tv_nsec: time.tv_usec % 1_000_000 * 1000,
    }));
    let end = time.end();
    let ready = sockets::uiw_sockets_select(
        count,
        read,
        write,
        except,
        time.argument(),
        In::from_option(None),
    );
    // Linux stores the remaining time, also after an error (select(2)).
    if let Some(left) = WaitTime::until(end).0 {
        // SAFETY: there is an end, so `timeout` is not NULL and points to a structure. The reference
        // to it above is no longer used.
        let timeout = unsafe { timeout.as_mut() };
        (timeout.tv_sec, timeout.tv_usec) = (left.tv_sec, left.tv_nsec / 1000);
    }
    ready
}

#[unsafe(no_mangle)]
extern "C-unwind" fn pselect<'a>(
    count: Argument<'a, c_int>,
    read: Out<'a, fd_set>,
    write: Out<'a, fd_set>,
    except: Out<'a, fd_set>,
    timeout: In<'a, timespec>,
    mask: In<'a, sigset_t>,
) -> c_int {
    if !sets_have_rsocket(count, [read, write, except]) {
        return next::pselect(count, read, write, except, timeout, mask);
    }
    sockets::uiw_sockets_select(count, read, write, except, timeout, mask)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn epoll_ctl<'a>(
    set: c_int,
    op: c_int,
    fd: c_int,
    event: Out<'a, epoll_event>,
) -> c_int {
    if is_set(set) || is_set(fd) {
        let done = sockets::uiw_sockets_epoll_ctl(set, op, fd, event);
        if done != sockets::ORDINARY {
            return done;
        }
    }
    next::epoll_ctl(set, op, fd, event)
}

/// Waits for events of an epoll set.
///
/// A set without rsockets waits in the system's call, for which `system` is called with the
/// remaining time. If the set gets its first rsocket meanwhile, a marker event ends that call, and
/// the wait continues with the rsockets.
fn wait<'a>(
    set: c_int,
    events: Out<'a, epoll_event>,
    most: Argument<'a, c_int>,
    mut time: WaitTime,
    mask: In<'_, sigset_t>,
    system: impl Fn(&WaitTime) -> c_int,
) -> c_int {
    let end = time.end();
    loop {
        // A call that does not wait need not be woken by a marker, so it is not counted.
        let counted = if time.is_none() { None } else { waiting::begin(set) };
        if counted.is_none() && is_set(set) {
            return sockets::uiw_sockets_epoll_wait(set, events, most, time.argument(), mask);
        }
        let found = match counted {
            Some(count) => waiting::counted(count, || system(&time)),
            None => system(&time),
        };
        // SAFETY: the system has returned `found` for `events`, so it has filled as many elements,
        // no more than the program has room for (epoll_wait(2)). So the count is one that the page
        // permits with that pointer. A negative result becomes 0.
        let filled = unsafe { Argument::new(found.max(0).cast_unsigned()) };
        let had_marker = waiting::take_marker(events, filled);
        let found = found - c_int::from(had_marker);
        if found != 0 || !had_marker {
            return found;
        }
        time = WaitTime::until(end);
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn epoll_wait<'a>(
    set: c_int,
    events: Out<'a, epoll_event>,
    most: Argument<'a, c_int>,
    timeout: c_int,
) -> c_int {
    wait(set, events, most, WaitTime::of_milliseconds(timeout), In::from_option(None), |time| {
        next::epoll_wait(set, events, most, time.milliseconds())
    })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn epoll_pwait<'a>(
    set: c_int,
    events: Out<'a, epoll_event>,
    most: Argument<'a, c_int>,
    timeout: c_int,
    mask: In<'a, sigset_t>,
) -> c_int {
    wait(set, events, most, WaitTime::of_milliseconds(timeout), mask, |time| {
        next::epoll_pwait(set, events, most, time.milliseconds(), mask)
    })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn epoll_pwait2<'a>(
    set: c_int,
    events: Out<'a, epoll_event>,
    most: Argument<'a, c_int>,
    timeout: In<'a, timespec>,
    mask: In<'a, sigset_t>,
) -> c_int {
    wait(set, events, most, WaitTime(timeout.as_ref().copied()), mask, |time| {
        next::epoll_pwait2(set, events, most, time.argument(), mask)
    })
}

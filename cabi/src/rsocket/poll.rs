//! `rpoll` and `rselect`: rsockets and ordinary descriptors in one wait.

use crate::boundary::Result;
use crate::engine;
use crate::errno::Errno;
use crate::rsocket::socket::{Phase, Socket, State};
use crate::rsocket::table::{self, Entry};
use crate::rsocket::wait;
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM, pollfd};
use std::ffi::c_short;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Reported whether or not they were asked for.
const ALWAYS: c_short = POLLERR | POLLHUP;
const READ: c_short = POLLIN | POLLRDNORM;
const WRITE: c_short = POLLOUT | POLLWRNORM;

/// What is ready of a socket, of everything that poll(2) has.
fn ready(state: &State) -> c_short {
    match &state.phase {
        Phase::New(_) => WRITE | POLLHUP,
        Phase::Listening(acceptor) => {
            if acceptor.is_ready() {
                READ
            } else {
                0
            }
        }
        Phase::Connecting(..) | Phase::Accepting(_) => 0,
        Phase::Failed => READ | WRITE | POLLERR | POLLHUP,
        Phase::Closed => POLLERR | POLLHUP,
        Phase::Connected(stream, _) => {
            let mut ready = 0;
            if stream.is_readable() {
                ready |= READ;
            }
            if stream.is_write_closed() || stream.sender.has_room() {
                ready |= WRITE;
            }
            if stream.at_end() {
                ready |= POLLRDHUP;
            }
            // As in TCP, what the peer sent before it closed is read first.
            if stream.is_over() && stream.receiver.readable() == 0 {
                ready |= POLLHUP;
            }
            if stream.failure().is_some() {
                ready |= POLLERR;
            }
            ready
        }
    }
}

/// What is ready of `socket` of the events that a program asks for.
pub(crate) fn look(socket: &Socket, events: c_short) -> c_short {
    socket.look(None, |state| ready(state) & (events | ALWAYS))
}

/// As [`look`]; the task is woken by the next change.
pub(crate) fn poll(socket: &Socket, events: c_short, cx: &mut Context<'_>) -> Poll<c_short> {
    socket.poll(cx, |state| match ready(state) & (events | ALWAYS) {
        0 => Poll::Pending,
        revents => Poll::Ready(revents),
    })
}

/// The sockets of a list, each with its place.
fn sockets(fds: &[pollfd]) -> Vec<(usize, Arc<Socket>)> {
    let of = |(at, fd): (usize, &pollfd)| match table::get(fd.fd) {
        Some(Entry::Socket(socket)) => Some((at, socket)),
        _ => None,
    };
    fds.iter().enumerate().filter_map(of).collect()
}

/// `rpoll`: poll(2) for rsockets and ordinary descriptors. A negative time-out is for ever.
///
/// # Errors
/// EINTR, EMFILE and those of poll(2).
pub(crate) fn poll_all(fds: &mut [pollfd], timeout_ms: i32) -> Result<usize> {
    let deadline = match timeout_ms {
        0.. => Instant::now().checked_add(Duration::from_millis(timeout_ms.unsigned_abs().into())),
        _ => None,
    };
    let sockets = sockets(fds);
    if sockets.is_empty() {
        return wait::poll_system(fds, deadline);
    }
    let mut others: Vec<pollfd> = Vec::new();
    let mut places = Vec::new();
    let mut next = sockets.iter().map(|(at, _)| *at).peekable();
    for (at, fd) in fds.iter_mut().enumerate() {
        fd.revents = 0;
        if next.next_if_eq(&at).is_none() && fd.fd >= 0 {
            others.push(*fd);
            places.push(at);
        }
    }
    let now = Some(Instant::now());
    let mut count = if others.is_empty() { 0 } else { wait::poll_system(&mut others, now)? };
    for (at, socket) in &sockets {
        fds[*at].revents = look(socket, fds[*at].events);
        count += usize::from(fds[*at].revents != 0);
    }
    if timeout_ms == 0
        && let Some((_, socket)) = sockets.first()
    {
        socket.yield_if_fruitless(count > 0);
    }
    if count == 0 && timeout_ms != 0 {
        let any = |cx: &mut Context<'_>| {
            // Every socket registers the waiting thread, so all are asked.
            let ready =
                sockets.iter().filter(|(at, socket)| poll(socket, fds[*at].events, cx).is_ready()).count();
            if ready > 0 { Poll::Ready(()) } else { Poll::Pending }
        };
        let arm = || sockets.iter().for_each(|(_, socket)| socket.arm());
        wait::until_or(Some(&engine::get()?), &mut others, deadline, arm, any)?;
        // Other descriptors may have become ready since.
        count = if others.is_empty() { 0 } else { wait::poll_system(&mut others, now)? };
        for (at, socket) in &sockets {
            fds[*at].revents = look(socket, fds[*at].events);
            count += usize::from(fds[*at].revents != 0);
        }
    }
    for (at, other) in places.iter().zip(&others) {
        fds[*at].revents = other.revents;
    }
    Ok(count)
}

/// The sets of select(2).
pub(crate) struct Sets<'a> {
    pub(crate) read: Option<&'a mut libc::fd_set>,
    pub(crate) write: Option<&'a mut libc::fd_set>,
    pub(crate) except: Option<&'a mut libc::fd_set>,
}

fn contains(set: Option<&libc::fd_set>, fd: i32) -> bool {
    // SAFETY: a number below FD_SETSIZE, which `select` checks.
    set.is_some_and(|set| unsafe { libc::FD_ISSET(fd, set) })
}

/// `rselect`.
///
/// # Errors
/// EINVAL for a number of descriptors that no set has; EBADF; as [`poll_all`].
pub(crate) fn select(count: i32, sets: &mut Sets<'_>, timeout_ms: i32) -> Result<usize> {
    if !(0..=libc::FD_SETSIZE as i32).contains(&count) {
        return Err(Errno::INVAL.because("a number of descriptors that no set has"));
    }
    let mut fds = Vec::new();
    for fd in 0..count {
        let mut events = 0;
        if contains(sets.read.as_deref(), fd) {
            events |= POLLIN;
        }
        if contains(sets.write.as_deref(), fd) {
            events |= POLLOUT;
        }
        if contains(sets.except.as_deref(), fd) {
            events |= libc::POLLPRI;
        }
        if events != 0 {
            fds.push(pollfd { fd, events, revents: 0 });
        }
    }
    poll_all(&mut fds, timeout_ms)?;
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        return Err(Errno(libc::EBADF).because("rselect of a descriptor that is closed"));
    }
    for set in [&mut sets.read, &mut sets.write, &mut sets.except].into_iter().flatten() {
        // SAFETY: a set that the caller lent.
        unsafe { libc::FD_ZERO(*set) };
    }
    let mut ready = 0;
    let mut mark = |set: &mut Option<&mut libc::fd_set>, fd: &pollfd, asked: c_short, found: c_short| {
        if let Some(set) = set
            && fd.events & asked != 0
            && fd.revents & found != 0
        {
            // SAFETY: the number was in a set, so it is below FD_SETSIZE.
            unsafe { libc::FD_SET(fd.fd, *set) };
            ready += 1;
        }
    };
    for fd in &fds {
        mark(&mut sets.read, fd, POLLIN, POLLIN | POLLHUP | POLLERR);
        mark(&mut sets.write, fd, POLLOUT, POLLOUT | POLLERR);
        mark(&mut sets.except, fd, libc::POLLPRI, libc::POLLPRI);
    }
    Ok(ready)
}

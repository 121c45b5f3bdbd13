//! `rpoll` and `rselect`: rsockets and ordinary descriptors in one wait.

use crate::boundary::Result;
use crate::engine;
use crate::errno::Errno;
use crate::rsocket::is_exiting;
use crate::rsocket::preload::fall_back;
use crate::rsocket::socket::{Phase, Socket, State};
use crate::rsocket::table::{self, Entry};
use crate::rsocket::wait::{self, Limit};
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM, pollfd};
use std::ffi::c_short;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The socket is to become one of the kernel. No program sees it; the system has no event of this number.
pub(crate) const FALL_BACK: c_short = 0x4000;
/// Reported whether or not they were asked for.
const ALWAYS: c_short = POLLERR | POLLHUP | FALL_BACK;
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
        Phase::Connecting(..) | Phase::Accepting(_) | Phase::Requested(..) => {
            if state.has_early_room() {
                WRITE
            } else {
                0
            }
        }
        Phase::Refused => FALL_BACK,
        Phase::Gone => READ | WRITE | POLLHUP | POLLRDHUP,
        Phase::Failed => READ | WRITE | POLLERR | POLLHUP,
        Phase::Closed if is_exiting() => 0,
        Phase::Closed => POLLERR | POLLHUP,
        Phase::Connected(stream, _) => {
            let mut ready = 0;
            if stream.is_readable() {
                ready |= READ;
            }
            if stream.is_write_closed() || stream.sender.has_room() && !state.has_early() {
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

/// A list of descriptors, sorted.
struct Sorted {
    /// Each with its place.
    sockets: Vec<(usize, Arc<Socket>)>,
    others: Vec<pollfd>,
    /// Their places.
    places: Vec<usize>,
}

impl Sorted {
    fn new(fds: &[pollfd]) -> Self {
        let sockets = sockets(fds);
        let (mut others, mut places) = (Vec::new(), Vec::new());
        let mut next = sockets.iter().map(|(at, _)| *at).peekable();
        for (at, fd) in fds.iter().enumerate() {
            if next.next_if_eq(&at).is_none() && fd.fd >= 0 {
                others.push(pollfd { revents: 0, ..*fd });
                places.push(at);
            }
        }
        Self { sockets, others, places }
    }

    /// Looks at all of them: how many are ready.
    fn look(&mut self, fds: &mut [pollfd]) -> Result<usize> {
        let now = Limit::within(Duration::ZERO);
        let mut count = if self.others.is_empty() { 0 } else { wait::poll_system(&mut self.others, &now)? };
        fds.iter_mut().for_each(|fd| fd.revents = 0);
        for (at, other) in self.places.iter().zip(&self.others) {
            fds[*at].revents = other.revents;
        }
        for (at, socket) in &self.sockets {
            fds[*at].revents = look(socket, fds[*at].events);
            count += usize::from(fds[*at].revents != 0);
        }
        Ok(count)
    }

    /// Sockets whose peers have no rsockets become those of the kernel. Whether there are any.
    fn fall_back(&self, fds: &[pollfd]) -> bool {
        let mut any = false;
        for (at, socket) in &self.sockets {
            if fds[*at].revents & FALL_BACK != 0 {
                any = true;
                fall_back(socket);
            }
        }
        any
    }
}

/// `rpoll`: poll(2) for rsockets and ordinary descriptors.
///
/// # Errors
/// EINTR, EMFILE and those of poll(2).
pub(crate) fn poll_all(fds: &mut [pollfd], limit: &Limit<'_>) -> Result<usize> {
    loop {
        let mut sorted = Sorted::new(fds);
        if sorted.sockets.is_empty() {
            return wait::poll_system(fds, limit);
        }
        let mut count = sorted.look(fds)?;
        if limit.is_now()
            && let Some((_, socket)) = sorted.sockets.first()
        {
            socket.yield_if_fruitless(count > 0);
        }
        if count == 0 && !limit.is_now() {
            let Sorted { sockets, others, .. } = &mut sorted;
            let any = |cx: &mut Context<'_>| {
                // Every socket registers the waiting thread, so all are asked.
                let ready = sockets
                    .iter()
                    .filter(|(at, socket)| poll(socket, fds[*at].events, cx).is_ready())
                    .count();
                if ready > 0 { Poll::Ready(()) } else { Poll::Pending }
            };
            let arm = || sockets.iter().for_each(|(_, socket)| socket.arm());
            wait::until_or(Some(&engine::get()?), others, limit, arm, any)?;
            // Other descriptors may have become ready since.
            count = sorted.look(fds)?;
        }
        if !sorted.fall_back(fds) {
            return Ok(count);
        }
    }
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
pub(crate) fn select(count: i32, sets: &mut Sets<'_>, limit: &Limit<'_>) -> Result<usize> {
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
    poll_all(&mut fds, limit)?;
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

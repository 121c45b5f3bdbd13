//! `rpoll` and `rselect`: rsockets and ordinary descriptors in one wait.

use crate::any::AnySocket;
use crate::preload::fall_back;
use crate::ready::FALL_BACK;
use crate::table::{self, Entry};
use crate::wait::{self, Limit};
use crate::watchers::WakerPolicy;
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, pollfd};
use std::ffi::c_short;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::engine;
use uiw_cabi_core::errno::Errno;
use uiw_verbs::ShardSet;

/// Returns the sockets in a list, with their indices.
fn sockets(fds: &[pollfd]) -> Vec<(usize, AnySocket)> {
    let of = |(at, fd): (usize, &pollfd)| Some((at, table::get(fd.fd)?.socket()?));
    fds.iter().enumerate().filter_map(of).collect()
}

/// Returns the shards of the sockets' connections.
fn shards(sockets: &[(usize, AnySocket)]) -> ShardSet {
    let mut shards = ShardSet::default();
    sockets.iter().for_each(|(_, socket)| shards.add(socket.shards()));
    shards
}

/// Pause while another thread of the program starts a TCP connection, which takes about this time.
const SOON: Duration = Duration::from_micros(50);

/// List of descriptors, divided into rsockets and others.
struct SortedFds {
    /// Rsockets with their indices in the list.
    sockets: Vec<(usize, AnySocket)>,
    others: Vec<pollfd>,
    /// Indices of the ordinary descriptors in the list.
    places: Vec<usize>,
    /// Indices of rsockets of the parent process, which this process cannot use.
    inherited: Vec<usize>,
}

impl SortedFds {
    fn new(fds: &[pollfd]) -> Self {
        let sockets = sockets(fds);
        let (mut others, mut places, mut inherited) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = sockets.iter().map(|(at, _)| *at).peekable();
        for (at, fd) in fds.iter().enumerate() {
            if next.next_if_eq(&at).is_some() || fd.fd < 0 {
                continue;
            }
            if matches!(table::get(fd.fd), Some(Entry::Inherited(_))) {
                inherited.push(at);
            } else {
                others.push(pollfd { revents: 0, ..*fd });
                places.push(at);
            }
        }
        Self { sockets, others, places, inherited }
    }

    /// Checks all descriptors, and returns the number of ready ones.
    fn check(&mut self, fds: &mut [pollfd]) -> Result<usize> {
        let now = Limit::within(Duration::ZERO);
        let mut count =
            if self.others.is_empty() { 0 } else { wait::poll_system(&mut self.others, &now)? };
        fds.iter_mut().for_each(|fd| fd.revents = 0);
        for (at, other) in self.places.iter().zip(&self.others) {
            fds[*at].revents = other.revents;
        }
        for at in &self.inherited {
            fds[*at].revents = POLLERR | POLLHUP;
        }
        count += self.inherited.len();
        for (at, socket) in &self.sockets {
            fds[*at].revents = socket.ready(fds[*at].events);
            count += usize::from(fds[*at].revents != 0);
        }
        Ok(count)
    }

    /// Converts sockets whose peers have no rsockets back to sockets of the kernel. Returns whether
    /// there are any, and whether this thread has converted all of them.
    fn fall_back(&self, fds: &[pollfd]) -> (bool, bool) {
        let (mut any, mut all_done) = (false, true);
        for (at, socket) in &self.sockets {
            if let AnySocket::Stream(stream) = socket
                && fds[*at].revents & FALL_BACK != 0
            {
                any = true;
                all_done &= fall_back(stream);
            }
        }
        if !all_done {
            // Another thread is about to convert the socket, or the conversion has failed, which
            // the next check detects.
            std::thread::sleep(SOON);
        }
        (any, all_done)
    }
}

/// `rpoll`: poll(2) for rsockets and ordinary descriptors.
///
/// # Errors
/// EINTR, EMFILE and the other errors of poll(2).
pub(crate) fn poll_all(fds: &mut [pollfd], limit: &Limit<'_>) -> Result<usize> {
    loop {
        let mut sorted = SortedFds::new(fds);
        if sorted.sockets.is_empty() {
            return wait::poll_system(fds, limit);
        }
        let mut count = sorted.check(fds)?;
        if limit.is_now()
            && let Some((_, socket)) = sorted.sockets.first()
        {
            socket.yield_if_fruitless(count > 0);
        }
        if count == 0 && !limit.is_now() {
            let SortedFds { sockets, others, .. } = &mut sorted;
            let any = |cx: &mut Context<'_>| {
                // All sockets are checked, because each has to register the waiting thread.
                let ready = sockets
                    .iter()
                    .filter(|(at, socket)| {
                        socket.poll_ready(fds[*at].events, WakerPolicy::Pending, cx).is_ready()
                    })
                    .count();
                if ready > 0 { Poll::Ready(()) } else { Poll::Pending }
            };
            let shards = || shards(sockets);
            let leave =
                |waker: &Waker| sockets.iter().for_each(|(_, socket)| socket.unwatch(waker));
            wait::until_or(Some(&engine::get()?), others, limit, shards, leave, any)?;
            // Other descriptors may have become ready meanwhile.
            count = sorted.check(fds)?;
            if count == 0 && !limit.has_passed() {
                // Another thread has already received the data or accepted the connection.
                continue;
            }
        }
        let (any, all_done) = sorted.fall_back(fds);
        if !any {
            return Ok(count);
        }
        if !all_done && limit.has_passed() {
            // Another thread is starting the TCP connections of these sockets, so they are not
            // ready.
            let theirs = fds.iter_mut().filter(|fd| fd.revents & FALL_BACK != 0);
            return Ok(count - theirs.map(|fd| fd.revents = 0).count());
        }
    }
}

/// Descriptor sets of select(2).
pub(crate) struct Sets<'a> {
    pub(crate) read: Option<&'a mut libc::fd_set>,
    pub(crate) write: Option<&'a mut libc::fd_set>,
    pub(crate) except: Option<&'a mut libc::fd_set>,
}

fn contains(set: Option<&libc::fd_set>, fd: i32) -> bool {
    // SAFETY: `fd` is from 0 to FD_SETSIZE - 1, because `select`, the only caller, passes numbers
    // below its `count`, which it has checked. A set has FD_SETSIZE bits, and `set` is borrowed, so
    // it lives and nothing changes it.
    set.is_some_and(|set| unsafe { libc::FD_ISSET(fd, set) })
}

/// `rselect`: select(2) for rsockets and ordinary descriptors.
///
/// # Errors
/// EINVAL if `count` is negative or exceeds the size of a set; EBADF for a closed descriptor; the
/// errors of [`poll_all`].
pub(crate) fn select(count: i32, sets: &mut Sets<'_>, limit: &Limit<'_>) -> Result<usize> {
    if !(0..=libc::FD_SETSIZE as i32).contains(&count) {
        return Err(Errno::INVAL.because("invalid number of descriptors"));
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
        return Err(Errno(libc::EBADF).because("rselect for a descriptor that is closed"));
    }
    let mut ready = 0;
    // A set contains the numbers that are asked for, and keeps those that are ready.
    let mut mark =
        |set: &mut Option<&mut libc::fd_set>, fd: &pollfd, asked: c_short, found: c_short| {
            if let Some(set) = set
                && fd.events & asked != 0
            {
                if fd.revents & found != 0 {
                    ready += 1;
                    return;
                }
                // SAFETY: `fd.fd` is from 0 to FD_SETSIZE - 1, because the list contains only
                // numbers below `count`, which was checked above, and `poll_all` changes only
                // `revents`. The set is borrowed mutably and has FD_SETSIZE bits.
                unsafe { libc::FD_CLR(fd.fd, *set) };
            }
        };
    for fd in &fds {
        mark(&mut sets.read, fd, POLLIN, POLLIN | POLLHUP | POLLERR);
        mark(&mut sets.write, fd, POLLOUT, POLLOUT | POLLERR);
        mark(&mut sets.except, fd, libc::POLLPRI, libc::POLLPRI);
    }
    Ok(ready)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acceptor;
    use crate::exports::rsocket;
    use std::os::fd::AsRawFd;

    /// The waker of a thread contains a descriptor, which would otherwise stay open until the
    /// socket changes.
    #[test]
    fn waited_thread_not_kept() {
        let fd = rsocket(libc::AF_INET, libc::SOCK_STREAM, 0);
        let socket = table::stream(fd).unwrap();
        acceptor::listen(&socket, 8).unwrap();
        for _ in 0..3 {
            let waits = move || {
                poll_all(
                    &mut [pollfd { fd, events: POLLIN, revents: 0 }],
                    &Limit::of_milliseconds(2),
                )
            };
            assert_eq!(std::thread::spawn(waits).join().unwrap(), Ok(0));
            assert_eq!(socket.watching(), 0);
        }
        table::close(fd).unwrap();
    }

    #[test]
    fn select_changes_only_asked_numbers() {
        let (reader, _writer) = std::io::pipe().unwrap();
        // A pipe whose other end is closed is readable.
        let (ended, _) = std::io::pipe().unwrap();
        let (idle, ready) = (reader.as_raw_fd(), ended.as_raw_fd());
        let beyond = libc::FD_SETSIZE as i32 - 1;
        // SAFETY: an `fd_set` may consist of zeros. The numbers are from 0 to FD_SETSIZE - 1.
        let mut set = unsafe {
            let mut set: libc::fd_set = std::mem::zeroed();
            for fd in [idle, ready, beyond] {
                libc::FD_SET(fd, &raw mut set);
            }
            set
        };
        let count = idle.max(ready) + 1;
        let mut sets = Sets { read: Some(&mut set), write: None, except: None };
        assert_eq!(select(count, &mut sets, &Limit::of_milliseconds(0)), Ok(1));
        assert_eq!([idle, ready, beyond].map(|fd| contains(Some(&set), fd)), [false, true, true]);
    }
}

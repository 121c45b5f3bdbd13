//! `repoll_*`: epoll(7) for rsockets and ordinary descriptors.
//!
//! Ordinary descriptors are in an epoll set of the system, whose descriptor is the one that the program has. Each rsocket has a waker that
//! puts it on a list, so a wait costs as much as there are changes, however many sockets are in the set.

use crate::boundary::Result;
use crate::engine;
use crate::errno::Errno;
use crate::lock::Mutex;
use crate::rsocket::any::AnySocket;
use crate::rsocket::preload::waiting::WAITING;
use crate::rsocket::preload::{fall_back, placeholder};
use crate::rsocket::ready::FALL_BACK;
use crate::rsocket::socket::Socket;
use crate::rsocket::sys;
use crate::rsocket::table::{self, Entry};
use crate::rsocket::wait::{self, Limit};
use libc::{EPOLLET, EPOLLONESHOT, epoll_event};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_short};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use uiw_verbs::ShardSet;

/// How often a set is looked at while it is always ready.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A set.
pub(crate) struct Epoll {
    /// The system's, a duplicate of the program's descriptor.
    fd: OwnedFd,
    /// The number that the program has for it.
    number: RawFd,
    /// The descriptor that wakes threads which wait by the system's call, while it is in the set: see [`WAITING`].
    marker: Mutex<Option<RawFd>>,
    members: Mutex<BTreeMap<RawFd, Arc<Member>>>,
    /// The member that was removed last: programs add a socket anew for each other direction.
    removed: Mutex<Option<Arc<Member>>>,
    /// Members of the system's set that may become rsockets.
    plain: Mutex<BTreeMap<RawFd, Asked>>,
    woken: Arc<Woken>,
    /// The shards of the members' connections, which a thread that waits drives. Those of removed members stay while there are members.
    shards: Mutex<ShardSet>,
}

/// Members that may be ready, and threads that wait for one.
#[derive(Default)]
struct Woken(Mutex<WokenState>);

#[derive(Default)]
struct WokenState {
    members: VecDeque<Weak<Member>>,
    waiting: Vec<Waker>,
}

/// An rsocket in a set.
struct Member {
    fd: RawFd,
    socket: AnySocket,
    event: Mutex<Asked>,
    /// Of a [`MemberWaker`].
    waker: Waker,
    /// The set has the shards of its connection.
    has_shards: AtomicBool,
}

/// What the socket wakes.
struct MemberWaker {
    member: Weak<Member>,
    woken: Arc<Woken>,
}

#[derive(Clone, Copy)]
struct Asked {
    events: u32,
    data: u64,
    /// EPOLLONESHOT has reported it.
    disabled: bool,
}

impl Asked {
    fn new(event: epoll_event) -> Self {
        Self { events: event.events, data: event.u64, disabled: false }
    }
}

impl Member {
    fn new(fd: RawFd, socket: AnySocket, event: Asked, woken: &Arc<Woken>) -> Arc<Self> {
        Arc::new_cyclic(|member| {
            let (member, woken) = (Weak::clone(member), Arc::clone(woken));
            Self {
                fd,
                socket,
                event: Mutex::new(event),
                waker: Arc::new(MemberWaker { member, woken }).into(),
                has_shards: AtomicBool::new(false),
            }
        })
    }

    /// Whether the program still has the descriptor.
    fn is_open(&self) -> bool {
        table::get(self.fd).and_then(Entry::socket).is_some_and(|socket| socket.is(&self.socket))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.socket.unwatch(&self.waker);
    }
}

impl Wake for MemberWaker {
    fn wake(self: Arc<Self>) {
        let waiting = {
            let mut woken = self.woken.0.lock();
            woken.members.push_back(Weak::clone(&self.member));
            std::mem::take(&mut woken.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Epoll {
    /// A set, and the descriptor that the program gets.
    ///
    /// # Errors
    /// EMFILE, EINVAL.
    pub(crate) fn new(flags: c_int) -> Result<(Arc<Self>, OwnedFd)> {
        // SAFETY: makes a descriptor, which has no other owner.
        let program = unsafe {
            match libc::epoll_create1(flags | libc::EPOLL_CLOEXEC) {
                -1 => return Err(Errno::last()),
                fd => OwnedFd::from_raw_fd(fd),
            }
        };
        Ok((Self::of_program(program.as_raw_fd())?, program))
    }

    /// The set that the program has made by the system's call.
    ///
    /// # Errors
    /// EMFILE
    pub(crate) fn of_program(fd: RawFd) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            fd: sys::duplicate(fd)?,
            number: fd,
            marker: Mutex::default(),
            members: Mutex::default(),
            removed: Mutex::default(),
            plain: Mutex::default(),
            woken: Arc::default(),
            shards: Mutex::default(),
        }))
    }

    /// Threads that wait for the set by the system's call return from there. Called when the table has the set.
    pub(crate) fn wake_system(&self) {
        let mut marker = self.marker.lock();
        if marker.is_some() || !WAITING.any(self.number) {
            return;
        }
        let event = epoll_event { events: libc::EPOLLIN as u32, u64: WAITING.marker() };
        let entered = placeholder().and_then(|placeholder| {
            sys::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, placeholder.fd, Some(event))?;
            Ok(placeholder.fd)
        });
        match entered {
            Ok(fd) => *marker = Some(fd),
            Err(error) => {
                tracing::warn!(%error, "threads that wait for an epoll set do not see its rsockets");
            }
        }
    }

    /// Whether the marker is in the set, from where it goes with the last thread.
    fn has_marker(&self) -> bool {
        let mut marker = self.marker.lock();
        if let Some(fd) = *marker
            && !WAITING.any(self.number)
            && sys::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, None).is_ok()
        {
            *marker = None;
        }
        marker.is_some()
    }

    /// epoll_ctl(2).
    ///
    /// # Errors
    /// Its errors.
    pub(crate) fn control(&self, op: c_int, fd: RawFd, event: Option<epoll_event>) -> Result<()> {
        loop {
            if let Some(socket) = table::get(fd).and_then(Entry::socket) {
                if let AnySocket::Stream(stream) = &socket {
                    // It may have become one a moment ago, and its thread may not have come to this set yet.
                    self.becomes_rsocket(fd, stream);
                }
                return self.control_rsocket(op, fd, socket, event);
            }
            if self.control_ordinary(op, fd, event)? {
                return Ok(());
            }
        }
    }

    /// Whether a number is that of an rsocket in the set.
    pub(crate) fn has(&self, fd: RawFd) -> bool {
        self.members.lock().contains_key(&fd)
    }

    fn control_rsocket(
        &self,
        op: c_int,
        fd: RawFd,
        socket: AnySocket,
        event: Option<epoll_event>,
    ) -> Result<()> {
        let member = {
            let mut members = self.members.lock();
            // A number whose socket was closed is another socket's now.
            let known = members.get(&fd).filter(|member| member.socket.is(&socket)).cloned();
            let asked = |event: Option<epoll_event>| event.map(Asked::new).ok_or(Errno(libc::EFAULT));
            match (op, known) {
                (libc::EPOLL_CTL_ADD, Some(_)) => return Err(Errno(libc::EEXIST)),
                (libc::EPOLL_CTL_MOD, Some(member)) => {
                    *member.event.lock() = asked(event)?;
                    member
                }
                (libc::EPOLL_CTL_DEL, Some(_)) => {
                    let removed = std::mem::replace(&mut *self.removed.lock(), members.remove(&fd));
                    // Unlocked: what it watches is dropped.
                    drop(members);
                    drop(removed);
                    return Ok(());
                }
                // In the system's set is one that becomes a socket of the kernel in this moment, and none else.
                (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => {
                    drop(members);
                    return sys::epoll_ctl(self.fd.as_raw_fd(), op, fd, event);
                }
                (libc::EPOLL_CTL_ADD, None) => {
                    let asked = asked(event)?;
                    let same = |member: &mut Arc<Member>| member.fd == fd && member.socket.is(&socket);
                    let member = match self.removed.lock().take_if(same) {
                        Some(member) => {
                            *member.event.lock() = asked;
                            member
                        }
                        None => Member::new(fd, socket, asked, &self.woken),
                    };
                    members.insert(fd, Arc::clone(&member));
                    member
                }
                _ => return Err(Errno::INVAL.because("an operation that epoll_ctl does not have")),
            }
        };
        // Its state is looked at by the next wait.
        member.waker.wake_by_ref();
        Ok(())
    }

    /// Of a descriptor that is no rsocket. False if it has become one, and nothing was done.
    fn control_ordinary(&self, op: c_int, fd: RawFd, event: Option<epoll_event>) -> Result<bool> {
        // A socket that is closed already.
        if op == libc::EPOLL_CTL_DEL && self.members.lock().remove(&fd).is_some() {
            return Ok(true);
        }
        // Locked, so that a socket which becomes an rsocket is in the system's set and the list, or in none.
        let mut plain = self.plain.lock();
        let may_become = match table::get(fd) {
            Some(Entry::Socket(_) | Entry::Datagram(_)) => return Ok(false),
            Some(Entry::Plain(plain)) => plain.may_become(),
            _ => false,
        };
        sys::epoll_ctl(self.fd.as_raw_fd(), op, fd, event)?;
        match (op, event) {
            (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(event)) if may_become => {
                plain.insert(fd, Asked::new(event));
            }
            _ => drop(plain.remove(&fd)),
        }
        Ok(true)
    }

    /// A member that was the system's is an rsocket from now on. Called while the table has the rsocket and the number the socket of the
    /// kernel. More than one thread may come: the first moves the member, and the others find it moved.
    pub(crate) fn becomes_rsocket(&self, fd: RawFd, socket: &Arc<Socket>) {
        let mut plain = self.plain.lock();
        let Some(asked) = plain.remove(&fd) else { return };
        if sys::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, None).is_err() {
            // It is another socket, of the number of one that was closed.
            return;
        }
        let member = Member::new(fd, AnySocket::Stream(Arc::clone(socket)), asked, &self.woken);
        self.members.lock().insert(fd, Arc::clone(&member));
        drop(plain);
        member.waker.wake_by_ref();
    }

    /// An rsocket among the members is a socket of the kernel from now on. Called while the table has the rsocket and the number that socket.
    pub(crate) fn becomes_ordinary(&self, fd: RawFd, socket: &Arc<Socket>) {
        let member = {
            let mut members = self.members.lock();
            match members.get(&fd) {
                Some(member) if member.socket.is_stream(socket) => members.remove(&fd),
                _ => None,
            }
        };
        let Some(member) = member else { return };
        let asked = *member.event.lock();
        let events = if asked.disabled { 0 } else { asked.events };
        // It fails where the program has added the new socket already.
        let event = epoll_event { events, u64: asked.data };
        let _ = sys::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, Some(event));
    }

    /// Reports the rsockets that are ready, of those that were woken; all others have registered their wakers.
    fn collect(&self, events: &mut [epoll_event]) -> usize {
        let candidates = std::mem::take(&mut self.woken.0.lock().members);
        let mut found = 0;
        let mut again = VecDeque::new();
        for candidate in candidates {
            let Some(member) = candidate.upgrade() else { continue };
            if !member.is_open() {
                // As in the system's sets, a descriptor that is closed is in none.
                self.members.lock().retain(|_, known| !Arc::ptr_eq(known, &member));
                continue;
            }
            // Removed meanwhile, or in the list twice.
            let current =
                self.members.lock().get(&member.fd).is_some_and(|known| Arc::ptr_eq(known, &member));
            let asked = *member.event.lock();
            if !current || asked.disabled || again.iter().any(|other: &Weak<Member>| other.ptr_eq(&candidate))
            {
                continue;
            }
            if found == events.len() {
                again.push_back(candidate);
                continue;
            }
            self.note_shards(&member);
            let wanted = (asked.events & 0x3FFF) as c_short;
            let cx = &mut Context::from_waker(&member.waker);
            let Poll::Ready(revents) = member.socket.poll_ready(wanted, cx) else { continue };
            if let AnySocket::Stream(stream) = &member.socket
                && revents & FALL_BACK != 0
            {
                // Its events are the system's now, or will be, by another thread; where it fails the socket wakes its members.
                fall_back(stream);
                continue;
            }
            events[found] = epoll_event { events: u32::from(revents.cast_unsigned()), u64: asked.data };
            found += 1;
            if asked.events & EPOLLONESHOT as u32 != 0 {
                member.event.lock().disabled = true;
            } else if asked.events & EPOLLET as u32 == 0 {
                // Level-triggered: ready until it is found not to be.
                again.push_back(candidate);
            } else if member.socket.watch(cx) {
                member.waker.wake_by_ref();
            }
        }
        self.woken.0.lock().members.extend(again);
        found
    }

    fn ordinary(&self, events: &mut [epoll_event]) -> Result<usize> {
        if events.is_empty() {
            return Ok(0);
        }
        let found = sys::epoll_now(self.fd.as_raw_fd(), events)?;
        let is_marker = |event: &epoll_event| event.u64 == WAITING.marker();
        let Some(at) = events[..found].iter().position(is_marker) else { return Ok(found) };
        events.copy_within(at + 1..found, at);
        Ok(found - 1)
    }

    /// A thread that waits for the set drives the shards of the member, from the first look on that finds it connected.
    fn note_shards(&self, member: &Member) {
        if !member.has_shards.load(Ordering::Relaxed) {
            let shards = member.socket.shards();
            member.has_shards.store(!shards.is_empty(), Ordering::Relaxed);
            self.shards.lock().add(shards);
        }
    }

    /// The shards that a thread which waits for the set drives.
    fn shards(&self) -> ShardSet {
        let mut shards = self.shards.lock();
        if self.members.lock().is_empty() {
            *shards = ShardSet::default();
        }
        *shards
    }

    /// Makes one round of the members' shards.
    fn drive(&self) {
        let shards = self.shards();
        // Connections have an engine.
        if !shards.is_empty()
            && let Ok(device) = engine::get()
        {
            wait::make_round(&device, shards);
        }
    }

    /// epoll_wait(2).
    ///
    /// # Errors
    /// EINTR, EMFILE.
    pub(crate) fn wait(&self, events: &mut [epoll_event], limit: &Limit<'_>) -> Result<usize> {
        // What the thread found in its sleep is served.
        let mut has_driven = false;
        loop {
            let mut found = self.collect(events);
            if found > 0 || limit.is_now() {
                if !has_driven {
                    // Arrivals for the members that are not ready, and what was posted.
                    self.drive();
                }
                if found == 0 {
                    found = self.collect(events);
                }
                found += self.ordinary(&mut events[found..])?;
                return Ok(found);
            }
            // With the marker the set is always ready.
            let (mut others, limit_now) = if self.has_marker() {
                (Vec::new(), limit.at_most(LOOK_EVERY))
            } else {
                let set = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                (vec![set], limit.clone())
            };
            let any = |cx: &mut Context<'_>| {
                let mut woken = self.woken.0.lock();
                if !woken.members.is_empty() {
                    return Poll::Ready(());
                }
                if !woken.waiting.iter().any(|known| known.will_wake(cx.waker())) {
                    woken.waiting.push(cx.waker().clone());
                }
                Poll::Pending
            };
            let device = if self.members.lock().is_empty() { None } else { Some(engine::get()?) };
            let woken = wait::until_or(device.as_ref(), &mut others, &limit_now, || self.shards(), any)?;
            has_driven = true;
            if woken.is_none() {
                // The system's set is ready, or the time is over.
                found = self.collect(events);
                found += self.ordinary(&mut events[found..])?;
                if found > 0 || limit.has_passed() {
                    return Ok(found);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rsocket::exports::new_set;

    /// redis removes and adds a connection with each message.
    #[test]
    fn a_socket_keeps_nothing_of_sets_that_it_is_not_in() {
        let socket = Socket::new(false, new_set());
        let fd = table::add(Entry::Socket(Arc::clone(&socket))).unwrap();
        let event = Some(epoll_event { events: libc::EPOLLIN as u32, u64: 7 });
        let watch = |set: &Epoll| {
            set.control(libc::EPOLL_CTL_ADD, fd, event).unwrap();
            let member = Arc::clone(&set.members.lock()[&fd]);
            assert!(!member.socket.watch(&mut Context::from_waker(&member.waker)));
        };
        let (set, _fd) = Epoll::new(0).unwrap();
        watch(&set);
        assert_eq!(socket.watching(), 1);
        for _ in 0..100 {
            set.control(libc::EPOLL_CTL_DEL, fd, None).unwrap();
            watch(&set);
        }
        for _ in 0..100 {
            watch(&Epoll::new(0).unwrap().0);
        }
        assert_eq!(socket.watching(), 1);
        assert_eq!(
            Arc::strong_count(&set.woken),
            2,
            "the set and its member; the engine has wakers of removed ones"
        );
        drop(set);
        assert_eq!(socket.watching(), 0);
        table::close(fd).unwrap();
    }
}

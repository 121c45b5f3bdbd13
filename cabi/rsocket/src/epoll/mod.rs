//! `repoll_*`: epoll(7) for rsockets and ordinary descriptors.
//!
//! Ordinary descriptors are in an epoll set of the system, which is the program's descriptor. Each
//! rsocket has a waker that adds it to a list. The cost of a wait is therefore proportional to the
//! number of changes, regardless of the number of sockets in the set.

mod member;

use crate::any::AnySocket;
use crate::preload::waiting::WAITING;
use crate::preload::{fall_back, placeholder};
use crate::ready::FALL_BACK;
use crate::socket::Socket;
use crate::sys;
use crate::table::{self, Entry};
use crate::wait::{self, Limit};
use crate::watchers::WakerPolicy;
use libc::{EPOLLET, EPOLLONESHOT, epoll_event};
use member::{Member, Members, RequestedEvents, WokenMembers};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_short};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::engine;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::lock::{Mutex, MutexGuard};
use uiw_verbs::ShardSet;

/// Interval at which a set is checked while the marker makes it always ready.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Message for an unknown operation.
const INVALID_OPERATION: &str = "unknown epoll_ctl operation";

/// Epoll set.
pub(crate) struct Epoll {
    /// Epoll set of the system, as a duplicate of the program's descriptor.
    fd: OwnedFd,
    /// Descriptor number of the program.
    number: RawFd,
    /// Descriptor that wakes threads in the system's wait, while it is in the set: see [`WAITING`].
    marker: Mutex<Option<RawFd>>,
    members: Mutex<Members>,
    /// Member that was removed last. Some programs remove a socket and add it again for each
    /// direction.
    removed: Mutex<Option<Arc<Member>>>,
    /// Members of the system's set that may become rsockets.
    plain: Mutex<BTreeMap<RawFd, RequestedEvents>>,
    woken: Arc<WokenMembers>,
    /// True if the last wait had room for rsockets only. The next one begins with the other
    /// descriptors, so that rsockets that are always ready do not hide them.
    is_full: AtomicBool,
    /// Shards of the members' connections, which waiting threads drive. Shards of removed members
    /// stay as long as there are members.
    shards: Mutex<ShardSet>,
}

impl Epoll {
    /// Creates a set, and returns it with the descriptor for the program.
    ///
    /// # Errors
    /// EMFILE, EINVAL.
    pub(crate) fn new(flags: c_int) -> Result<(Arc<Self>, OwnedFd)> {
        let program = sys::epoll_create(flags)?;
        Ok((Self::with_system_set(program.as_raw_fd())?, program))
    }

    /// Creates a set for an epoll set of the system that the program has created.
    ///
    /// # Errors
    /// EINVAL if the descriptor is not an epoll set; EBADF, EMFILE.
    pub(crate) fn of_program(fd: RawFd) -> Result<Arc<Self>> {
        // A set whose duplicate is followed has the marker as a member, which this call leaves
        // unchanged.
        let event = epoll_event { events: libc::EPOLLIN as u32, u64: WAITING.marker() };
        match sys::epoll_ctl(fd, libc::EPOLL_CTL_MOD, placeholder()?.fd, Some(event)) {
            Ok(()) | Err(Errno(libc::ENOENT)) => Self::with_system_set(fd),
            Err(error) => Err(error),
        }
    }

    fn with_system_set(fd: RawFd) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            fd: sys::duplicate(fd)?,
            number: fd,
            marker: Mutex::default(),
            members: Mutex::default(),
            removed: Mutex::default(),
            plain: Mutex::default(),
            woken: Arc::default(),
            is_full: AtomicBool::new(false),
            shards: Mutex::default(),
        }))
    }

    /// Makes threads that wait for the set with the system's call return. Called when the table
    /// contains the set.
    pub(crate) fn wake_system(&self) {
        let mut marker = self.marker.lock();
        if marker.is_some() || !WAITING.has_waiters(self.number) {
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

    /// Returns whether the marker is in the set. The last waiting thread removes it.
    fn has_marker(&self) -> bool {
        let mut marker = self.marker.lock();
        if let Some(fd) = *marker
            && !WAITING.has_waiters(self.number)
            && sys::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, None).is_ok()
        {
            *marker = None;
        }
        marker.is_some()
    }

    /// Performs epoll_ctl(2).
    ///
    /// # Errors
    /// The errors of epoll_ctl(2).
    pub(crate) fn control(&self, op: c_int, fd: RawFd, event: Option<epoll_event>) -> Result<()> {
        loop {
            if let Some(done) = self.control_member(op, fd, event) {
                return done;
            }
            match table::get(fd).and_then(Entry::socket) {
                // The socket may just have become an rsocket, and the thread that converts it may
                // not have updated this set yet.
                Some(AnySocket::Stream(stream)) if self.becomes_rsocket(fd, &stream) => {}
                Some(socket) => {
                    if let Some(done) = self.control_rsocket(op, fd, socket, event) {
                        return done;
                    }
                }
                None => {
                    if self.control_ordinary(op, fd, event)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Performs epoll_ctl(2) for a member, or for the member that was removed last. Returns `None`
    /// if the number belongs to neither.
    pub(crate) fn control_member(
        &self,
        op: c_int,
        fd: RawFd,
        event: Option<epoll_event>,
    ) -> Option<Result<()>> {
        let mut members = self.members.lock();
        // If the member's socket was closed, its number belongs to another socket now.
        let known = members.get(fd).filter(|member| member.is_open()).map(Arc::clone);
        let (member, before) = match (op, known) {
            (libc::EPOLL_CTL_ADD, Some(_)) => return Some(Err(Errno(libc::EEXIST))),
            (libc::EPOLL_CTL_ADD, None) => {
                event?;
                let member =
                    self.removed.lock().take_if(|member| member.fd == fd && member.is_open())?;
                let before = members.add(&member);
                (member, before)
            }
            (libc::EPOLL_CTL_MOD, Some(member)) => (member, None),
            (libc::EPOLL_CTL_DEL, Some(_)) => {
                let before = std::mem::replace(&mut *self.removed.lock(), members.remove(fd));
                self.forget(members, before);
                return Some(Ok(()));
            }
            (_, Some(_)) => return Some(Err(Errno::INVAL.because(INVALID_OPERATION))),
            (_, None) => return None,
        };
        self.forget(members, before);
        let Some(event) = event else { return Some(Err(Errno(libc::EFAULT))) };
        member.event.lock().change(event);
        // The next wait checks the state of the socket.
        member.waker.wake_by_ref();
        Some(Ok(()))
    }

    /// Adds, changes or removes an rsocket. Returns `None`, without side effects, if another thread
    /// has made it a member.
    fn control_rsocket(
        &self,
        op: c_int,
        fd: RawFd,
        socket: AnySocket,
        event: Option<epoll_event>,
    ) -> Option<Result<()>> {
        let mut members = self.members.lock();
        if members.get(fd).is_some_and(|member| member.socket.is(&socket)) {
            return None;
        }
        match op {
            // The socket is in the system's set only if it is just becoming a socket of the kernel.
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL => {
                drop(members);
                Some(sys::epoll_ctl(self.fd.as_raw_fd(), op, fd, event))
            }
            libc::EPOLL_CTL_ADD => {
                let Some(event) = event else { return Some(Err(Errno(libc::EFAULT))) };
                let member = Member::new(fd, socket, RequestedEvents::new(event), &self.woken);
                let before = members.add(&member);
                self.forget(members, before);
                member.waker.wake_by_ref();
                Some(Ok(()))
            }
            _ => Some(Err(Errno::INVAL.because(INVALID_OPERATION))),
        }
    }

    /// Adds, changes or removes a descriptor that is not an rsocket. Returns false, without side
    /// effects, if it has become one.
    fn control_ordinary(&self, op: c_int, fd: RawFd, event: Option<epoll_event>) -> Result<bool> {
        // The socket is already closed.
        if op == libc::EPOLL_CTL_DEL && self.remove(fd) {
            return Ok(true);
        }
        // The lock ensures that a socket which becomes an rsocket is either in both the system's
        // set and the list, or in none.
        let mut plain = self.plain.lock();
        let may_become = match table::get(fd) {
            Some(Entry::Socket(_) | Entry::Datagram(_)) => return Ok(false),
            Some(Entry::Plain(plain)) => plain.may_become(),
            _ => false,
        };
        sys::epoll_ctl(self.fd.as_raw_fd(), op, fd, event)?;
        match (op, event) {
            (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(event)) if may_become => {
                plain.insert(fd, RequestedEvents::new(event));
            }
            _ => drop(plain.remove(&fd)),
        }
        Ok(true)
    }

    /// Removes a member from the set. Returns whether there was one.
    fn remove(&self, fd: RawFd) -> bool {
        let mut members = self.members.lock();
        let removed = members.remove(fd);
        let is_one = removed.is_some();
        self.forget(members, removed);
        is_one
    }

    /// Unlocks the members, and then drops a member that was removed from them, because what it
    /// watches may be dropped with it.
    fn forget(&self, members: MutexGuard<'_, Members>, removed: Option<Arc<Member>>) {
        let left = members.len();
        drop(members);
        if removed.is_some() {
            drop(removed);
            self.woken.forget_removed(left);
        }
    }

    /// Moves a member of the system's set to the members, because it has become an rsocket. Called
    /// while the table contains the rsocket and the descriptor refers to the kernel's socket.
    /// Several threads may call this. It returns true for the first one, which moves the member,
    /// and false for the others.
    pub(crate) fn becomes_rsocket(&self, fd: RawFd, socket: &Arc<Socket>) -> bool {
        let mut plain = self.plain.lock();
        let Some(asked) = plain.remove(&fd) else { return false };
        if sys::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, None).is_err() {
            // The number belonged to a socket that was closed, and now belongs to another one.
            return false;
        }
        let member = Member::new(fd, AnySocket::Stream(Arc::clone(socket)), asked, &self.woken);
        let mut members = self.members.lock();
        let before = members.add(&member);
        drop(plain);
        self.forget(members, before);
        member.waker.wake_by_ref();
        true
    }

    /// Moves an rsocket among the members to the system's set, because it has become a socket of
    /// the kernel. Called while the table contains the rsocket and the descriptor refers to the
    /// kernel's socket.
    pub(crate) fn becomes_ordinary(&self, fd: RawFd, socket: &Arc<Socket>) {
        let mut members = self.members.lock();
        let is_member = members.get(fd).is_some_and(|member| member.socket.is_stream(socket));
        let Some(member) = is_member.then(|| members.remove(fd)).flatten() else { return };
        let asked = *member.event.lock();
        self.forget(members, Some(member));
        let events = if asked.disabled { 0 } else { asked.events };
        // This fails if the program has already added the new socket.
        let event = epoll_event { events, u64: asked.data };
        let _ = sys::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, Some(event));
    }

    /// Reports the rsockets that are ready. Only those that were woken are checked, because all
    /// others have registered their wakers.
    fn collect(&self, events: &mut [epoll_event]) -> usize {
        let candidates = std::mem::take(&mut self.woken.0.lock().members);
        let mut found = 0;
        // Those that were not checked come first the next time.
        let (mut unchecked, mut again) = (VecDeque::new(), VecDeque::new());
        for member in candidates {
            if found == events.len() {
                unchecked.push_back(member);
                continue;
            }
            member.leave_list();
            if !member.is_open() {
                // A closed descriptor is in no set, as with the system's sets.
                self.remove_member(&member);
                continue;
            }
            let asked = *member.event.lock();
            if !member.is_in_set() || asked.disabled {
                continue;
            }
            self.note_shards(&member);
            let wanted = (asked.events & 0x3FFF) as c_short;
            let is_one_shot = asked.events & EPOLLONESHOT as u32 != 0;
            let edges = asked.events & EPOLLET as u32 != 0 && !is_one_shot;
            let registers = if edges { WakerPolicy::Always } else { WakerPolicy::Pending };
            let cx = &mut Context::from_waker(&member.waker);
            let Poll::Ready(revents) = member.socket.poll_ready(wanted, registers, cx) else {
                continue;
            };
            if let AnySocket::Stream(stream) = &member.socket
                && revents & FALL_BACK != 0
            {
                // The system reports the events now, or will do so after another thread has
                // converted the socket. If the conversion fails, the socket wakes the member, or
                // has already failed.
                if !fall_back(stream)
                    && !matches!(
                        member.socket.poll_ready(wanted, WakerPolicy::Always, cx),
                        Poll::Ready(revents) if revents & FALL_BACK != 0
                    )
                {
                    member.waker.wake_by_ref();
                }
                continue;
            }
            if is_one_shot {
                let mut event = member.event.lock();
                if *event != asked {
                    // Another thread has reported the event, or the program has changed its
                    // request, so the result of this check may not have been requested.
                    let is_asked = !event.disabled;
                    drop(event);
                    if is_asked {
                        member.waker.wake_by_ref();
                    }
                    continue;
                }
                event.disabled = true;
            }
            events[found] =
                epoll_event { events: u32::from(revents.cast_unsigned()), u64: asked.data };
            found += 1;
            if !is_one_shot && !edges && member.enter_list() {
                // In level-triggered mode the member stays in the list until it is found not to be
                // ready.
                again.push_back(member);
            }
        }
        unchecked.append(&mut again);
        self.woken.add(unchecked);
        found
    }

    /// Removes a member whose descriptor was closed from the set.
    fn remove_member(&self, member: &Arc<Member>) {
        let mut members = self.members.lock();
        if members.get(member.fd).is_some_and(|known| Arc::ptr_eq(known, member)) {
            // The caller has another reference.
            members.remove(member.fd);
        }
    }

    /// Takes the events of ordinary descriptors, without the marker of [`WAITING`]. Does not wait.
    fn poll_ordinary(&self, events: &mut [epoll_event]) -> Result<usize> {
        if events.is_empty() {
            return Ok(0);
        }
        let found = sys::epoll_wait(self.fd.as_raw_fd(), events, 0)?;
        let is_marker = |event: &epoll_event| event.u64 == WAITING.marker();
        let Some(at) = events[..found].iter().position(is_marker) else { return Ok(found) };
        events.copy_within(at + 1..found, at);
        Ok(found - 1)
    }

    /// Lets threads that wait for the set drive the shards of the member, from the first check that
    /// finds it connected.
    fn note_shards(&self, member: &Member) {
        if !member.has_shards.load(Ordering::Relaxed) {
            let shards = member.socket.shards();
            member.has_shards.store(!shards.is_empty(), Ordering::Relaxed);
            self.shards.lock().add(shards);
        }
    }

    /// Returns the shards that a thread which waits for the set drives.
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
        // If there are connections, there is an engine.
        if !shards.is_empty()
            && let Ok(device) = engine::get()
        {
            wait::make_round(&device, shards);
        }
    }

    /// Performs epoll_wait(2).
    ///
    /// # Errors
    /// EINTR, EMFILE.
    pub(crate) fn wait(&self, events: &mut [epoll_event], limit: &Limit<'_>) -> Result<usize> {
        if self.is_full.swap(false, Ordering::Relaxed) {
            let found = self.poll_ordinary(events)?;
            if found > 0 {
                self.drive();
                return Ok(found + self.collect(&mut events[found..]));
            }
        }
        // Set after the thread has driven the shards while it slept.
        let mut has_driven = false;
        loop {
            let mut found = self.collect(events);
            if found > 0 || limit.is_now() {
                if !has_driven {
                    // Handles arrivals for the members that are not ready, and posted requests.
                    self.drive();
                }
                if found == 0 {
                    found = self.collect(events);
                }
                self.is_full.store(found == events.len(), Ordering::Relaxed);
                found += self.poll_ordinary(&mut events[found..])?;
                return Ok(found);
            }
            // The marker makes the set always ready.
            let (mut others, limit_now) = if self.has_marker() {
                (Vec::new(), limit.at_most(LOOK_EVERY))
            } else {
                let set =
                    libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
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
            let leave = |waker: &Waker| self.woken.leave(waker);
            let woken = wait::until_or(
                device.as_ref(),
                &mut others,
                &limit_now,
                || self.shards(),
                leave,
                any,
            )
            // This thread may have been woken for a member that it does not check.
            .inspect_err(|_| self.woken.pass_on())?;
            has_driven = true;
            if woken.is_none() {
                // The system's set is ready, or the time has passed.
                found = self.collect(events);
                found += self.poll_ordinary(&mut events[found..])?;
                if found > 0 || limit.has_passed() {
                    return Ok(found);
                }
            }
        }
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        self.woken.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::new_set;
    use std::os::fd::IntoRawFd;
    use std::task::Wake;

    /// redis removes and adds a connection with each message.
    #[test]
    fn socket_keeps_nothing_of_left_sets() {
        let socket = Socket::new(false, new_set());
        let fd = table::add(Entry::Socket(Arc::clone(&socket))).unwrap();
        let event = Some(epoll_event { events: libc::EPOLLIN as u32, u64: 7 });
        let watch = |set: &Epoll| {
            set.control(libc::EPOLL_CTL_ADD, fd, event).unwrap();
            let member = Arc::clone(set.members.lock().get(fd).unwrap());
            let cx = &mut Context::from_waker(&member.waker);
            assert!(member.socket.poll_ready(0, WakerPolicy::Always, cx).is_ready());
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

    /// Returns a set with sockets that are not connected, and therefore writable.
    fn set_of_ready(count: usize) -> (Arc<Epoll>, OwnedFd, Vec<RawFd>) {
        let (set, fd) = Epoll::new(0).unwrap();
        let event = Some(epoll_event { events: libc::EPOLLOUT as u32, u64: 7 });
        let sockets = (0..count).map(|_| {
            let number = table::add(Entry::Socket(Socket::new(false, new_set()))).unwrap();
            set.control(libc::EPOLL_CTL_ADD, number, event).unwrap();
            number
        });
        let sockets = sockets.collect();
        (set, fd, sockets)
    }

    const NO_EVENT: epoll_event = epoll_event { events: 0, u64: 0 };

    #[test]
    fn dropped_set_keeps_no_member() {
        let (set, _fd, sockets) = set_of_ready(2);
        assert_eq!(set.collect(&mut [NO_EVENT; 4]), 2);
        let woken = Arc::clone(&set.woken);
        let waker = set.members.lock().get(sockets[0]).unwrap().waker.clone();
        assert_eq!(woken.0.lock().members.len(), 2, "they are looked at next");
        drop(set);
        assert!(woken.0.lock().members.is_empty());
        waker.wake_by_ref();
        assert!(woken.0.lock().members.is_empty());
        drop(waker);
        assert_eq!(Arc::strong_count(&woken), 1);
        sockets.into_iter().for_each(|number| table::close(number).unwrap());
    }

    #[test]
    fn removed_members_released_without_wait() {
        let (set, _fd, sockets) = set_of_ready(1000);
        for (at, number) in sockets.iter().enumerate() {
            if at % 10 != 0 {
                set.control(libc::EPOLL_CTL_DEL, *number, None).unwrap();
            }
        }
        let listed = set.woken.0.lock().members.len();
        assert!((100..300).contains(&listed), "{listed} of 100 members");
        assert_eq!(set.collect(&mut [NO_EVENT; 1000]), 100);
        sockets.into_iter().for_each(|number| table::close(number).unwrap());
        assert_eq!(set.collect(&mut [NO_EVENT; 1000]), 0);
    }

    #[test]
    fn member_reported_once_after_wake_ups() {
        let (set, _fd, sockets) = set_of_ready(1);
        let member = Arc::clone(set.members.lock().get(sockets[0]).unwrap());
        for _ in 0..3 {
            (0..3).for_each(|_| member.waker.wake_by_ref());
            assert_eq!(set.woken.0.lock().members.len(), 1);
            assert_eq!(set.collect(&mut [NO_EVENT; 4]), 1);
        }
        set.control(libc::EPOLL_CTL_DEL, sockets[0], None).unwrap();
        assert_eq!(set.collect(&mut [NO_EVENT; 4]), 0);
        assert!(set.woken.0.lock().members.is_empty());
        let event = Some(epoll_event { events: libc::EPOLLOUT as u32, u64: 7 });
        set.control(libc::EPOLL_CTL_ADD, sockets[0], event).unwrap();
        assert_eq!(set.collect(&mut [NO_EVENT; 4]), 1);
        table::close(sockets[0]).unwrap();
    }

    #[test]
    fn late_thread_passes_wakeup_on() {
        let (set, _fd, sockets) = set_of_ready(2);
        let woken = [(); 3].map(|()| Arc::<AtomicBool>::default());
        for flag in &woken {
            set.woken.0.lock().waiting.push(Waker::from(Arc::new(WakeFlag(Arc::clone(flag)))));
        }
        let count = || woken.iter().filter(|flag| flag.load(Ordering::Relaxed)).count();
        set.woken.pass_on();
        assert_eq!(count(), 1, "the members are in the list");
        assert_eq!((set.collect(&mut [NO_EVENT; 4]), count()), (2, 2));
        sockets.into_iter().for_each(|number| table::close(number).unwrap());
        assert_eq!(set.collect(&mut [NO_EVENT; 4]), 0);
        set.woken.pass_on();
        assert_eq!(count(), 2, "nothing is left");
    }

    /// Waits four times for one event each, and returns how often the data was 7 and 8.
    fn reports_of_four_waits(set: &Epoll) -> [u32; 2] {
        let mut reported = [0, 0];
        for _ in 0..4 {
            let mut events = [NO_EVENT];
            assert_eq!(set.wait(&mut events, &Limit::within(Duration::ZERO)), Ok(1));
            reported[(events[0].u64 - 7) as usize] += 1;
        }
        reported
    }

    #[test]
    fn ready_sockets_do_not_hide_other_descriptors() {
        let (set, _fd, sockets) = set_of_ready(1);
        let (other, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let event = Some(epoll_event { events: libc::EPOLLOUT as u32, u64: 8 });
        set.control(libc::EPOLL_CTL_ADD, other.as_raw_fd(), event).unwrap();
        assert_eq!(reports_of_four_waits(&set), [2, 2]);
        sockets.into_iter().for_each(|number| table::close(number).unwrap());
    }

    #[test]
    fn ready_members_reported_in_turn() {
        let (set, _fd, sockets) = set_of_ready(2);
        let event = Some(epoll_event { events: libc::EPOLLOUT as u32, u64: 8 });
        set.control(libc::EPOLL_CTL_MOD, sockets[1], event).unwrap();
        assert_eq!(reports_of_four_waits(&set), [2, 2]);
        sockets.into_iter().for_each(|number| table::close(number).unwrap());
    }

    #[test]
    fn one_shot_member_reported_once() {
        let (set, _fd, sockets) = set_of_ready(1);
        let ask = |events: c_int| {
            let event = Some(epoll_event { events: (libc::EPOLLOUT | events) as u32, u64: 7 });
            set.control(libc::EPOLL_CTL_MOD, sockets[0], event).unwrap();
        };
        let Some(AnySocket::Stream(socket)) = table::get(sockets[0]).and_then(Entry::socket) else {
            panic!()
        };
        let member = Arc::clone(set.members.lock().get(sockets[0]).unwrap());
        for flags in [EPOLLONESHOT, EPOLLONESHOT | EPOLLET] {
            ask(flags);
            let before = *member.event.lock();
            ask(flags);
            assert!(*member.event.lock() != before, "it is asked for anew, though for the same");
            assert_eq!(set.collect(&mut [NO_EVENT; 4]), 1);
            assert_eq!(socket.watching(), 0, "a change does not bring it to another thread");
            member.waker.wake_by_ref();
            assert_eq!(set.collect(&mut [NO_EVENT; 4]), 0, "it is not asked for");
        }
        table::close(sockets[0]).unwrap();
    }

    /// Returns whether the set wakes another waiting thread for members with `flags`, if the call
    /// has room for `room` events.
    fn wakes_another(flags: c_int, room: usize) -> bool {
        let (set, _fd, sockets) = set_of_ready(3);
        let event = Some(epoll_event { events: (libc::EPOLLOUT | flags) as u32, u64: 7 });
        for number in &sockets {
            set.control(libc::EPOLL_CTL_MOD, *number, event).unwrap();
        }
        let woken = Arc::<AtomicBool>::default();
        set.woken.0.lock().waiting.push(Waker::from(Arc::new(WakeFlag(Arc::clone(&woken)))));
        assert_eq!(set.collect(&mut vec![NO_EVENT; room]), room);
        let is_woken = woken.load(Ordering::Relaxed);
        sockets.into_iter().for_each(|number| table::close(number).unwrap());
        is_woken
    }

    #[test]
    fn waiting_thread_gets_surplus_events() {
        assert!(!wakes_another(EPOLLET, 3), "nothing is left");
        assert!(wakes_another(EPOLLET, 2));
        assert!(!wakes_another(EPOLLONESHOT, 3), "nothing is left");
    }

    /// A thread that got an event of a listener may still be busy with the connection when the next
    /// one arrives.
    #[test]
    fn waiting_thread_rechecks_reported_member() {
        assert!(wakes_another(0, 3));
    }

    #[test]
    fn edge_member_registered_when_reported() {
        let (set, _fd, sockets) = set_of_ready(1);
        let event = Some(epoll_event { events: (libc::EPOLLOUT | EPOLLET) as u32, u64: 7 });
        set.control(libc::EPOLL_CTL_MOD, sockets[0], event).unwrap();
        let Some(AnySocket::Stream(socket)) = table::get(sockets[0]).and_then(Entry::socket) else {
            panic!()
        };
        assert_eq!((set.collect(&mut [NO_EVENT; 4]), socket.watching()), (1, 1));
        assert_eq!(set.collect(&mut [NO_EVENT; 4]), 0, "once");
        socket.wake(None);
        assert_eq!((set.collect(&mut [NO_EVENT; 4]), socket.watching()), (1, 1));
        table::close(sockets[0]).unwrap();
    }

    #[test]
    fn reused_descriptor_numbers_not_kept() {
        let (set, _fd, sockets) = set_of_ready(1);
        let number = sockets[0];
        let event = Some(epoll_event { events: libc::EPOLLOUT as u32, u64: 7 });
        let mut before = Vec::new();
        for _ in 0..1000 {
            let socket = Socket::new(false, new_set());
            before.push(Arc::downgrade(&socket));
            table::insert(number, Entry::Socket(socket));
            set.control(libc::EPOLL_CTL_ADD, number, event).unwrap();
        }
        let kept = before.iter().filter(|socket| socket.strong_count() > 0).count();
        assert!(kept < 100, "{kept} of 1000");
        assert_eq!(set.collect(&mut [NO_EVENT; 4]), 1);
        table::close(number).unwrap();
    }

    struct WakeFlag(Arc<AtomicBool>);

    impl Wake for WakeFlag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn member_stays_until_own_number_closed() {
        let (set, _fd, sockets) = set_of_ready(1);
        let another = || {
            let number = sys::duplicate(sockets[0]).unwrap().into_raw_fd();
            table::duplicate(sockets[0], number);
            number
        };
        assert_eq!(set.collect(&mut [NO_EVENT; 4]), 1);
        table::close(another()).unwrap();
        assert_eq!(set.collect(&mut [NO_EVENT; 4]), 1);
        let other = another();
        table::close(sockets[0]).unwrap();
        assert_eq!(set.collect(&mut [NO_EVENT; 4]), 0);
        assert!(set.members.lock().is_empty());
        table::close(other).unwrap();
    }
}

//! An rsocket in an epoll set, and the list of members that may be ready.

use crate::any::AnySocket;
use crate::table::{self, Entry};
use libc::epoll_event;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use uiw_cabi_core::lock::Mutex;

/// Number of entries below which the list is never searched for former members.
const FEW: usize = 64;

/// Members that may be ready, and the threads that wait for them.
#[derive(Default)]
pub(super) struct WokenMembers(pub(super) Mutex<WokenState>);

#[derive(Default)]
pub(super) struct WokenState {
    /// Members that may be ready, each at most once.
    pub(super) members: VecDeque<Arc<Member>>,
    pub(super) waiting: Vec<Waker>,
    /// True after the set was closed. It has no list then, because members in it would keep
    /// themselves alive.
    is_closed: bool,
}

impl WokenMembers {
    /// Returns members that this thread has checked to the list, and wakes another thread to check
    /// them too, because this thread may be busy with the events that it got. The woken thread
    /// wakes the next one in the same way, until the list is empty.
    pub(super) fn add(&self, members: VecDeque<Arc<Member>>) {
        if members.is_empty() {
            return;
        }
        let next = {
            let mut woken = self.0.lock();
            woken.members.extend(members);
            woken.waiting.pop()
        };
        next.into_iter().for_each(Waker::wake);
    }

    /// Wakes another thread if there are members to check, because this thread does not check them.
    pub(super) fn pass_on(&self) {
        let next = {
            let mut woken = self.0.lock();
            if woken.members.is_empty() { None } else { woken.waiting.pop() }
        };
        next.into_iter().for_each(Waker::wake);
    }

    /// Removes the waker of a thread that does not wait any more.
    pub(super) fn leave(&self, waker: &Waker) {
        let left: Vec<_> =
            self.0.lock().waiting.extract_if(.., |known| known.will_wake(waker)).collect();
        // The waker is dropped after the lock is released, because it may be the last reference.
        drop(left);
    }

    /// Removes former members of the set from the list, if it is long compared with `count`, the
    /// number of members left. This is for programs that remove members and never wait.
    pub(super) fn forget_removed(&self, count: usize) {
        let mut removed = Vec::new();
        {
            let mut woken = self.0.lock();
            if woken.members.len() < 2 * count + FEW {
                return;
            }
            let members = std::mem::take(&mut woken.members);
            for member in members {
                member.leave_list();
                // The state is checked after the place is released, so a thread that adds the
                // member again either finds the place free or is detected here.
                if !member.is_in_set() {
                    removed.push(member);
                } else if member.enter_list() {
                    woken.members.push_back(member);
                } else {
                    // The thread that has taken the place adds the member.
                    removed.push(member);
                }
            }
        }
        // The members are dropped after the lock is released, together with what they watch.
        drop(removed);
    }

    /// Closes the list, because the set is closed.
    pub(super) fn close(&self) {
        let members = {
            let mut woken = self.0.lock();
            woken.is_closed = true;
            std::mem::take(&mut woken.members)
        };
        // The members are dropped after the lock is released, together with what they watch.
        drop(members);
    }
}

/// Events that the program has requested.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestedEvents {
    pub(super) events: u32,
    pub(super) data: u64,
    /// True after EPOLLONESHOT has reported an event.
    pub(super) disabled: bool,
    /// Number of requests of the program. The result of a check is valid only for the request that
    /// preceded it.
    turn: u32,
}

impl RequestedEvents {
    pub(super) fn new(event: epoll_event) -> Self {
        Self { events: event.events, data: event.u64, disabled: false, turn: 0 }
    }

    /// Stores a new request of the program.
    pub(super) fn change(&mut self, event: epoll_event) {
        *self = Self { turn: self.turn.wrapping_add(1), ..Self::new(event) };
    }
}

/// Rsockets in a set, by their descriptor numbers.
#[derive(Default)]
pub(super) struct Members(BTreeMap<RawFd, Arc<Member>>);

impl Members {
    pub(super) fn get(&self, fd: RawFd) -> Option<&Arc<Member>> {
        self.0.get(&fd)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a member. Returns the previous member with its number, which must be dropped after the
    /// members are unlocked, together with what it watches.
    pub(super) fn add(&mut self, member: &Arc<Member>) -> Option<Arc<Member>> {
        member.is_in_set.store(true, Ordering::Relaxed);
        let before = self.0.insert(member.fd, Arc::clone(member));
        before.inspect(|before| before.is_in_set.store(false, Ordering::Relaxed))
    }

    /// Removes a member, which must be dropped after the members are unlocked, as with
    /// [`Members::add`].
    pub(super) fn remove(&mut self, fd: RawFd) -> Option<Arc<Member>> {
        self.0.remove(&fd).inspect(|member| member.is_in_set.store(false, Ordering::Relaxed))
    }
}

/// Rsocket in a set.
pub(super) struct Member {
    pub(super) fd: RawFd,
    pub(super) socket: AnySocket,
    pub(super) event: Mutex<RequestedEvents>,
    /// Waker for the socket, which wakes `place`.
    pub(super) waker: Waker,
    place: Arc<ListPlace>,
    /// Changed only while [`Members`] is locked.
    is_in_set: AtomicBool,
    /// Count of [`removed`](crate::numbers::Numbers::removed) numbers of the socket when the table
    /// last had it under `fd`, or [`NEVER`] before the first check.
    open_at: AtomicU64,
    /// True if the set contains the shards of the socket's connection.
    pub(super) has_shards: AtomicBool,
}

/// Value that is never a count of removed numbers.
const NEVER: u64 = u64::MAX;

/// Place of a member in the list.
struct ListPlace {
    member: Weak<Member>,
    woken: Arc<WokenMembers>,
    is_taken: AtomicBool,
}

impl Member {
    pub(super) fn new(
        fd: RawFd,
        socket: AnySocket,
        event: RequestedEvents,
        woken: &Arc<WokenMembers>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|member| {
            let (member, woken) = (Weak::clone(member), Arc::clone(woken));
            let place = Arc::new(ListPlace { member, woken, is_taken: AtomicBool::new(false) });
            Self {
                fd,
                socket,
                event: Mutex::new(event),
                waker: Arc::clone(&place).into(),
                place,
                is_in_set: AtomicBool::new(false),
                open_at: AtomicU64::new(NEVER),
                has_shards: AtomicBool::new(false),
            }
        })
    }

    /// Returns whether the program still has the descriptor. The table is consulted only if the
    /// socket has lost a number since the last check.
    pub(super) fn is_open(&self) -> bool {
        // The count is read first, so a number that is removed meanwhile is detected by the next
        // check.
        let removed = u64::from(self.socket.numbers().removed());
        if self.open_at.load(Ordering::Relaxed) == removed {
            return true;
        }
        let is_open = table::get(self.fd)
            .and_then(Entry::socket)
            .is_some_and(|socket| socket.is(&self.socket));
        if is_open {
            self.open_at.store(removed, Ordering::Relaxed);
        }
        is_open
    }

    /// Returns whether the set contains the socket.
    pub(super) fn is_in_set(&self) -> bool {
        self.is_in_set.load(Ordering::Relaxed)
    }

    /// Releases the place of a member that is taken from the list and checked next. A later change
    /// adds it to the list again.
    pub(super) fn leave_list(&self) {
        // The check that follows detects changes that happened before a wake-up which found the
        // place taken.
        self.place.is_taken.swap(false, Ordering::AcqRel);
    }

    /// Takes the place of the member. Returns true if the member was not in the list, and the
    /// caller has to add it.
    pub(super) fn enter_list(&self) -> bool {
        self.place.enter()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.socket.unwatch(&self.waker);
    }
}

impl ListPlace {
    fn enter(&self) -> bool {
        !self.is_taken.swap(true, Ordering::AcqRel)
    }
}

impl Wake for ListPlace {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.enter() {
            return;
        }
        // If the member is not added, it is dropped after the lock is released.
        let Some(member) = self.member.upgrade() else { return };
        let waiting = {
            let mut woken = self.woken.0.lock();
            if woken.is_closed {
                return;
            }
            woken.members.push_back(member);
            std::mem::take(&mut woken.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

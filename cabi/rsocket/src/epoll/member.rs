//! An rsocket in a set, and the list of those that may be ready.

use crate::any::AnySocket;
use crate::table::{self, Entry};
use libc::epoll_event;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use uiw_cabi_core::lock::Mutex;

/// Number of entries of the list that are kept in any case.
const FEW: usize = 64;

/// Members that may be ready, and threads that wait for one.
#[derive(Default)]
pub(super) struct WokenMembers(pub(super) Mutex<WokenState>);

#[derive(Default)]
pub(super) struct WokenState {
    /// Each at most once.
    pub(super) members: VecDeque<Arc<Member>>,
    pub(super) waiting: Vec<Waker>,
    /// The set is gone: it has no list, as members would keep themselves in it.
    is_closed: bool,
}

impl WokenMembers {
    /// Adds members to the list that this thread has looked at. Another thread looks at them, too:
    /// this one may be busy with what it has got. That one wakes the next one in the same way,
    /// until one has taken what is there.
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

    /// Wakes another thread, if there are members to be looked at: this one does not.
    pub(super) fn pass_on(&self) {
        let next = {
            let mut woken = self.0.lock();
            if woken.members.is_empty() { None } else { woken.waiting.pop() }
        };
        next.into_iter().for_each(Waker::wake);
    }

    /// The waker's thread does not wait any more.
    pub(super) fn leave(&self, waker: &Waker) {
        let left: Vec<_> = self.0.lock().waiting.extract_if(.., |known| known.will_wake(waker)).collect();
        // Unlocked: it may be the last reference.
        drop(left);
    }

    /// Members that the set has no more leave a list that has many of them, where `count` are left:
    /// a program may remove members and never wait.
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
                // Looked at behind that: a thread that adds it again finds the place free, or is
                // seen here.
                if !member.is_in_set() {
                    removed.push(member);
                } else if member.enter_list() {
                    woken.members.push_back(member);
                } else {
                    // The thread that has taken the place adds it.
                    removed.push(member);
                }
            }
        }
        // Unlocked: what they watch is dropped with them.
        drop(removed);
    }

    /// The set is gone.
    pub(super) fn close(&self) {
        let members = {
            let mut woken = self.0.lock();
            woken.is_closed = true;
            std::mem::take(&mut woken.members)
        };
        // Unlocked: what they watch is dropped with them.
        drop(members);
    }
}

/// Events that the program has asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestedEvents {
    pub(super) events: u32,
    pub(super) data: u64,
    /// EPOLLONESHOT has reported it.
    pub(super) disabled: bool,
    /// Number of requests of the program: what a look has found is for what was asked for before
    /// it.
    turn: u32,
}

impl RequestedEvents {
    pub(super) fn new(event: epoll_event) -> Self {
        Self { events: event.events, data: event.u64, disabled: false, turn: 0 }
    }

    /// The program asks anew.
    pub(super) fn change(&mut self, event: epoll_event) {
        *self = Self { turn: self.turn.wrapping_add(1), ..Self::new(event) };
    }
}

/// The rsockets in a set, by their numbers.
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

    /// Adds a member. Returns the one that had its number, to be dropped when the members are
    /// unlocked: what it watches is dropped with it.
    pub(super) fn add(&mut self, member: &Arc<Member>) -> Option<Arc<Member>> {
        member.is_in_set.store(true, Ordering::Relaxed);
        let before = self.0.insert(member.fd, Arc::clone(member));
        before.inspect(|before| before.is_in_set.store(false, Ordering::Relaxed))
    }

    /// Removes a member. Returns it, to be dropped as that of [`Members::add`].
    pub(super) fn remove(&mut self, fd: RawFd) -> Option<Arc<Member>> {
        self.0.remove(&fd).inspect(|member| member.is_in_set.store(false, Ordering::Relaxed))
    }
}

/// An rsocket in a set.
pub(super) struct Member {
    pub(super) fd: RawFd,
    pub(super) socket: AnySocket,
    pub(super) event: Mutex<RequestedEvents>,
    /// Waker for the socket: it wakes `place`.
    pub(super) waker: Waker,
    place: Arc<ListPlace>,
    /// Changed with [`Members`].
    is_in_set: AtomicBool,
    /// The number of [`removed`](crate::numbers::Numbers::removed) numbers of the socket when the
    /// table had it under `fd`. [`NEVER`] before the first look.
    open_at: AtomicU64,
    /// The set has the shards of its connection.
    pub(super) has_shards: AtomicBool,
}

/// No number of removed numbers.
const NEVER: u64 = u64::MAX;

/// The place of a member in the list.
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

    /// Returns whether the program still has the descriptor. The table is asked when the socket has
    /// lost a number since the last time.
    pub(super) fn is_open(&self) -> bool {
        // Read first: a number that is removed meanwhile counts at the next look.
        let removed = u64::from(self.socket.numbers().removed());
        if self.open_at.load(Ordering::Relaxed) == removed {
            return true;
        }
        let is_open =
            table::get(self.fd).and_then(Entry::socket).is_some_and(|socket| socket.is(&self.socket));
        if is_open {
            self.open_at.store(removed, Ordering::Relaxed);
        }
        is_open
    }

    /// Returns whether the set has it.
    pub(super) fn is_in_set(&self) -> bool {
        self.is_in_set.load(Ordering::Relaxed)
    }

    /// It is taken from the list, and looked at next: a later change puts it there again.
    pub(super) fn leave_list(&self) {
        // The look sees what changed before a wake-up that found the place taken.
        self.place.is_taken.swap(false, Ordering::AcqRel);
    }

    /// It is to be in the list. True if it is not yet, and the caller adds it.
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
        // Dropped unlocked if it is not added.
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

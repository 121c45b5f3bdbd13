//! `repoll_*`: epoll(7) for rsockets and ordinary descriptors.
//!
//! Ordinary descriptors are in an epoll set of the system, whose descriptor is the one that the program has. Each rsocket has a waker that
//! puts it on a list, so a wait costs as much as there are changes, however many sockets are in the set.

use crate::boundary::Result;
use crate::engine;
use crate::errno::Errno;
use crate::rsocket::socket::Socket;
use crate::rsocket::table::{self, Entry};
use crate::rsocket::{poll, wait};
use libc::{EPOLLET, EPOLLONESHOT, epoll_event};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_short};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// A set.
pub(crate) struct Epoll {
    /// The system's, a duplicate of the program's descriptor.
    fd: OwnedFd,
    members: Mutex<BTreeMap<RawFd, Arc<Member>>>,
    woken: Arc<Woken>,
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
    socket: Arc<Socket>,
    event: Mutex<Asked>,
    woken: Arc<Woken>,
}

#[derive(Clone, Copy)]
struct Asked {
    events: u32,
    data: u64,
    /// EPOLLONESHOT has reported it.
    disabled: bool,
}

impl Member {
    /// Whether the program still has the descriptor.
    fn is_open(&self) -> bool {
        matches!(table::get(self.fd), Some(Entry::Socket(socket)) if Arc::ptr_eq(&socket, &self.socket))
    }
}

impl Wake for Member {
    fn wake(self: Arc<Self>) {
        let waiting = {
            let mut woken = self.woken.0.lock();
            woken.members.push_back(Arc::downgrade(&self));
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
        // SAFETY: makes descriptors, which have no other owner.
        let (own, program) = unsafe {
            let own = match libc::epoll_create1(flags | libc::EPOLL_CLOEXEC) {
                -1 => return Err(Errno::last()),
                fd => OwnedFd::from_raw_fd(fd),
            };
            let program = match libc::fcntl(own.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) {
                -1 => return Err(Errno::last()),
                fd => OwnedFd::from_raw_fd(fd),
            };
            (own, program)
        };
        let set = Self { fd: own, members: Mutex::default(), woken: Arc::default() };
        Ok((Arc::new(set), program))
    }

    /// epoll_ctl(2).
    ///
    /// # Errors
    /// Its errors.
    pub(crate) fn control(&self, op: c_int, fd: RawFd, event: Option<epoll_event>) -> Result<()> {
        let Some(Entry::Socket(socket)) = table::get(fd) else {
            let mut event = event.unwrap_or(epoll_event { events: 0, u64: 0 });
            // A socket that is closed already.
            if op == libc::EPOLL_CTL_DEL && self.members.lock().remove(&fd).is_some() {
                return Ok(());
            }
            // SAFETY: a structure of this function's.
            return match unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd, &raw mut event) } {
                0 => Ok(()),
                _ => Err(Errno::last()),
            };
        };
        if op == libc::EPOLL_CTL_DEL {
            let removed = self.members.lock().remove(&fd);
            return removed.map(drop).ok_or(Errno(libc::ENOENT));
        }
        let event = event.ok_or(Errno(libc::EFAULT))?;
        let asked = Asked { events: event.events, data: event.u64, disabled: false };
        let member = {
            let mut members = self.members.lock();
            // A number whose socket was closed is another socket's now.
            let known = members.get(&fd).filter(|member| Arc::ptr_eq(&member.socket, &socket)).cloned();
            match (op, known) {
                (libc::EPOLL_CTL_ADD, Some(_)) => return Err(Errno(libc::EEXIST)),
                (libc::EPOLL_CTL_MOD, None) => return Err(Errno(libc::ENOENT)),
                (libc::EPOLL_CTL_MOD, Some(member)) => {
                    *member.event.lock() = asked;
                    member
                }
                (libc::EPOLL_CTL_ADD, None) => {
                    let woken = Arc::clone(&self.woken);
                    let member = Arc::new(Member { fd, socket, event: Mutex::new(asked), woken });
                    members.insert(fd, Arc::clone(&member));
                    member
                }
                _ => return Err(Errno::INVAL.because("an operation that epoll_ctl does not have")),
            }
        };
        // Its state is looked at by the next wait.
        Wake::wake(member);
        Ok(())
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
            let waker = Waker::from(Arc::clone(&member));
            let wanted = (asked.events & 0x3FFF) as c_short;
            let Poll::Ready(revents) = poll::poll(&member.socket, wanted, &mut Context::from_waker(&waker))
            else {
                continue;
            };
            events[found] = epoll_event { events: u32::from(revents.cast_unsigned()), u64: asked.data };
            found += 1;
            if asked.events & EPOLLONESHOT as u32 != 0 {
                member.event.lock().disabled = true;
            } else if asked.events & EPOLLET as u32 == 0 {
                // Level-triggered: ready until it is found not to be.
                again.push_back(candidate);
            } else if member.socket.watch(&mut Context::from_waker(&waker)) {
                waker.wake();
            }
        }
        self.woken.0.lock().members.extend(again);
        found
    }

    fn ordinary(&self, events: &mut [epoll_event]) -> Result<usize> {
        if events.is_empty() {
            return Ok(0);
        }
        let most = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
        // SAFETY: that many structures can be written.
        match unsafe { libc::epoll_wait(self.fd.as_raw_fd(), events.as_mut_ptr(), most, 0) } {
            -1 => Err(Errno::last()),
            found => Ok(found as usize),
        }
    }

    /// epoll_wait(2).
    ///
    /// # Errors
    /// EINTR, EMFILE.
    pub(crate) fn wait(&self, events: &mut [epoll_event], timeout_ms: c_int) -> Result<usize> {
        let deadline = match timeout_ms {
            0.. => Instant::now().checked_add(Duration::from_millis(timeout_ms.unsigned_abs().into())),
            _ => None,
        };
        loop {
            let mut found = self.collect(events);
            found += self.ordinary(&mut events[found..])?;
            if found > 0 || timeout_ms == 0 || deadline.is_some_and(|at| Instant::now() >= at) {
                return Ok(found);
            }
            let mut others = vec![libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
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
            let members: Vec<_> = self.members.lock().values().cloned().collect();
            let arm = || members.iter().for_each(|member| member.socket.arm());
            let device = if members.is_empty() { None } else { Some(engine::get()?) };
            wait::until_or(device.as_ref(), &mut others, deadline, arm, any)?;
        }
    }
}

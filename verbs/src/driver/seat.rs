//! Where the leader sleeps: in the stack's own epoll set, with a bell in it.
//!
//! A set that lies in another set or in poll(2) wakes its sleeper by a detour, and says that there is something, but not to whom:
//! a second call asks. What that cost a round trip between two sleepers stands in ARCHITECTURE.md, thresholds.

use crate::driver::park::timespec;
use crate::error::{Error, Result};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What the bell says in the set. No token of a stream has all bits set: its slot's number would be the largest of all.
const BELL: u64 = u64::MAX;
/// Events that are looked at: the bell, and whether there is anything else.
const EVENTS: usize = 2;

/// One thread sleeps here at a time.
pub(crate) struct Seat {
    set: Arc<OwnedFd>,
    bell: OwnedFd,
    rung: AtomicBool,
}

impl Seat {
    /// In `stack`, what a stack waits with; in a set of its own where that is not an epoll set.
    pub(crate) fn new(stack: &Arc<OwnedFd>) -> Result<Self> {
        Self::build(stack).map_err(std::io::Error::from).map_err(Error::io("the leader's epoll set"))
    }

    fn build(stack: &Arc<OwnedFd>) -> rustix::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let add = |set: &OwnedFd, fd: &OwnedFd, what| {
            epoll::add(set, fd, epoll::EventData::new_u64(what), epoll::EventFlags::IN)
        };
        let set = match add(stack, &bell, BELL) {
            Ok(()) => Arc::clone(stack),
            Err(Errno::INVAL) => {
                let own = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                add(&own, &bell, BELL)?;
                add(&own, stack, 0)?;
                Arc::new(own)
            }
            Err(error) => return Err(error),
        };
        Ok(Self { set, bell, rung: AtomicBool::new(false) })
    }

    /// Sleeps until the stack has something, the bell rings, a signal comes, or `timeout` is over, which is rounded up to a
    /// millisecond. True when the stack has something.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) -> bool {
        let timeout = timeout.map(timespec);
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        match epoll::wait(&self.set, &mut events[..], timeout.as_ref()) {
            Ok((ready, _)) => ready.iter().any(|event| event.data.u64() != BELL),
            // EINTR is a wake-up like any other: every caller looks again.
            Err(_) => false,
        }
    }

    /// Wakes who sleeps here.
    pub(crate) fn ring(&self) {
        self.rung.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Silences the bell, once nobody can ring any more: a set whose bell rings for nobody would never be quiet.
    pub(crate) fn silence(&self) {
        if self.rung.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Seat;
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn a_bell_wakes_and_leaves_the_set_quiet() {
        let set = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        let seat = Seat::new(&set).unwrap();
        seat.ring();
        assert!(!seat.sleep(None), "the stack has nothing");
        seat.silence();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&set, PollFlags::IN)], Some(&at_once)), Ok(0));
    }

    #[test]
    fn a_stack_without_an_epoll_set_is_waited_for_too() {
        let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let seat = Seat::new(&fd).unwrap();
        assert!(!seat.sleep(Some(Duration::ZERO)));
        rustix::io::write(&fd, &1u64.to_ne_bytes()).unwrap();
        assert!(seat.sleep(None));
        seat.ring();
        assert!(seat.sleep(None), "the bell does not hide it");
    }
}

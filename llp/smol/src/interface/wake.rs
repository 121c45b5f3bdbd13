//! Descriptor in which a driver sleeps. It covers the descriptor of the link, and an eventfd for
//! events between polls.

use rustix::event::{EventfdFlags, epoll, eventfd};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

pub(super) struct Wake {
    set: Arc<OwnedFd>,
    kick: OwnedFd,
    kicked: bool,
}

impl Wake {
    pub(super) fn new(link: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&set, &kick, data, epoll::EventFlags::IN)?;
        if let Some(link) = link {
            epoll::add(&set, link, data, epoll::EventFlags::IN)?;
        }
        Ok(Self { set: Arc::new(set), kick, kicked: false })
    }

    /// Adds a further descriptor of the link, which is removed when the link closes it. It may
    /// already be watched.
    pub(super) fn watch(&self, link: BorrowedFd<'_>) -> io::Result<()> {
        match epoll::add(&self.set, link, epoll::EventData::new_u64(0), epoll::EventFlags::IN) {
            Err(rustix::io::Errno::EXIST) => Ok(()),
            added => added.map_err(Into::into),
        }
    }

    pub(super) fn set(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.set)
    }

    /// Signals an event. A thread that sleeps, or is about to sleep, polls first.
    pub(super) fn kick(&mut self) {
        if !std::mem::replace(&mut self.kicked, true) {
            let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
        }
    }

    /// Clears the signal, because there are no events except those of the link.
    pub(super) fn unkick(&mut self) {
        if std::mem::replace(&mut self.kicked, false) {
            let _ = rustix::io::read(&self.kick, &mut [0u8; 8]);
        }
    }
}

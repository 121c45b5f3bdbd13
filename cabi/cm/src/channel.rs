//! Event channels, as C holds them.

use crate::id::{Id, Phase};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};
use uiw_cabi_core::abi::rdma_event_channel;
use uiw_cabi_core::abi_cell::AbiCell;
use uiw_cabi_core::boundary::{Result, is_nonblocking};
use uiw_verbs::cm::{CmChannel, ConnHandle};

/// `rdma_event_channel`: C's structure first, the engine's queue behind it.
#[repr(C)]
pub(crate) struct Channel {
    abi: AbiCell<rdma_event_channel>,
    queue: Arc<CmChannel>,
    /// The thread that read it last.
    reader: Mutex<Option<ThreadId>>,
    /// Calls of the engine that make a connection or listener with events here, and whose id is not
    /// routed yet.
    openings: Mutex<u32>,
    /// Notified when one of them ends.
    opened: Condvar,
    /// Ids that accepted a connection, the last ones, the oldest first.
    accepted: Mutex<VecDeque<Weak<Id>>>,
}

/// Number of connections remembered: a peer that connects when its connection before is established
/// has one.
const ACCEPTED: usize = 8;

impl Channel {
    /// A new channel, which C cannot name yet.
    ///
    /// # Errors
    /// EMFILE.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let queue = Arc::new(CmChannel::default());
        let fd = queue.fd()?.as_raw_fd();
        Ok(Arc::new(Self {
            abi: AbiCell::new(rdma_event_channel { fd }),
            queue,
            reader: Mutex::default(),
            openings: Mutex::default(),
            opened: Condvar::new(),
            accepted: Mutex::default(),
        }))
    }

    /// C's pointer.
    pub(crate) fn abi(&self) -> *mut rdma_event_channel {
        self.abi.as_ptr()
    }

    /// The engine's queue.
    pub(crate) fn queue(&self) -> &Arc<CmChannel> {
        &self.queue
    }

    /// This thread reads it.
    pub(crate) fn set_reader(&self) {
        *self.reader.lock() = Some(thread::current().id());
    }

    /// The thread other than this one that is expected to come back and sleep here.
    pub(crate) fn sleeper(&self) -> Option<ThreadId> {
        let fd = self.queue.fd().ok()?.as_raw_fd();
        self.reader.lock().filter(|&reader| reader != thread::current().id() && !is_nonblocking(fd))
    }

    /// The id has accepted a connection, whose events come here.
    pub(crate) fn accepted(&self, id: &Arc<Id>) {
        let mut accepted = self.accepted.lock();
        if accepted.len() == ACCEPTED {
            accepted.pop_front();
        }
        accepted.push_back(Arc::downgrade(id));
    }

    /// Returns the connections accepted last that the program has not seen established.
    pub(crate) fn awaited(&self) -> Vec<ConnHandle> {
        // Ids are locked and dropped outside of the lock.
        let ids: Vec<_> = self.accepted.lock().iter().filter_map(Weak::upgrade).collect();
        let handle = |id: &Arc<Id>| {
            let state = id.lock();
            if matches!(state.phase, Phase::Connecting) { state.handle.clone() } else { None }
        };
        ids.iter().filter_map(handle).collect()
    }

    /// A call of the engine begins that makes a connection or listener.
    pub(crate) fn opening(self: &Arc<Self>) -> Opening {
        *self.openings.lock() += 1;
        Opening(Arc::clone(self))
    }

    /// The lock under which events are taken and matched with their ids.
    pub(crate) fn openings(&self) -> Openings<'_> {
        Openings { channel: self, count: self.openings.lock() }
    }
}

/// A call of the engine that makes a connection or listener, until it is routed or has failed.
pub(crate) struct Opening(Arc<Channel>);

impl Drop for Opening {
    fn drop(&mut self) {
        *self.0.openings.lock() -= 1;
        self.0.opened.notify_all();
    }
}

/// The lock of a channel's openings.
pub(crate) struct Openings<'a> {
    channel: &'a Channel,
    count: MutexGuard<'a, u32>,
}

impl Openings<'_> {
    /// Waits, unlocked meanwhile, until one of the openings has ended. False, at once, when there
    /// is none.
    pub(crate) fn wait(&mut self) -> bool {
        let any = *self.count > 0;
        if any {
            self.channel.opened.wait(&mut self.count);
        }
        any
    }
}

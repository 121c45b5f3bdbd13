//! Event channels that C refers to.

use crate::id::{Id, Phase};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};
use uiw_cabi_core::abi::rdma_event_channel;
use uiw_cabi_core::abi_cell::AbiCell;
use uiw_cabi_core::boundary::{Result, is_nonblocking};
use uiw_cabi_core::lock::{Condvar, Mutex, MutexGuard};
use uiw_verbs::cm::{CmChannel, ConnHandle};

/// `rdma_event_channel`: the structure of C, followed by the engine's event queue.
#[repr(C)]
pub(crate) struct Channel {
    abi: AbiCell<rdma_event_channel>,
    queue: Arc<CmChannel>,
    /// Thread that read the channel last.
    reader: Mutex<Option<ThreadId>>,
    /// Number of calls of the engine that are creating a connection or listener with events in this
    /// channel and whose id is not routed yet.
    unrouted_calls: Mutex<u32>,
    /// Notified when one of these calls ends.
    call_ended: Condvar,
    /// The last [`ACCEPTED`] ids that accepted a connection, oldest first.
    accepted: Mutex<VecDeque<Weak<Id>>>,
}

/// Maximum number of ids in `accepted`. There is only one at a time if a peer opens its next
/// connection as soon as the previous one is established.
const ACCEPTED: usize = 8;

impl Channel {
    /// Creates a channel. C does not know it before it is registered.
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
            unrouted_calls: Mutex::default(),
            call_ended: Condvar::default(),
            accepted: Mutex::default(),
        }))
    }

    /// Returns C's pointer.
    pub(crate) fn abi(&self) -> *mut rdma_event_channel {
        self.abi.as_ptr()
    }

    /// Returns the engine's event queue.
    pub(crate) fn queue(&self) -> &Arc<CmChannel> {
        &self.queue
    }

    /// Records that the calling thread reads the channel.
    pub(crate) fn set_reader(&self) {
        *self.reader.lock() = Some(thread::current().id());
    }

    /// Returns the thread that read the channel last, unless it is the calling thread, or the
    /// program has made the descriptor non-blocking. That thread is expected to read the channel
    /// again and to sleep there.
    pub(crate) fn other_reader(&self) -> Option<ThreadId> {
        let fd = self.queue.fd().ok()?.as_raw_fd();
        self.reader.lock().filter(|&reader| reader != thread::current().id() && !is_nonblocking(fd))
    }

    /// Records that `id` has accepted a connection whose events arrive in this channel.
    pub(crate) fn note_accepted(&self, id: &Arc<Id>) {
        let mut accepted = self.accepted.lock();
        if accepted.len() == ACCEPTED {
            accepted.pop_front();
        }
        accepted.push_back(Arc::downgrade(id));
    }

    /// Returns the recently accepted connections that are not established yet from the program's
    /// point of view.
    pub(crate) fn awaited_connections(&self) -> Vec<ConnHandle> {
        // Ids are locked and dropped after the lock is released.
        let ids: Vec<_> = self.accepted.lock().iter().filter_map(Weak::upgrade).collect();
        let handle = |id: &Arc<Id>| {
            let state = id.lock();
            if matches!(state.phase, Phase::Connecting) { state.handle.clone() } else { None }
        };
        ids.iter().filter_map(handle).collect()
    }

    /// Counts a call of the engine that is about to create a connection or listener.
    pub(crate) fn begin_unrouted_call(self: &Arc<Self>) -> UnroutedCall {
        *self.unrouted_calls.lock() += 1;
        UnroutedCall(Arc::clone(self))
    }

    /// Locks the count of unrouted calls. Events are taken and matched with their ids under this
    /// lock.
    pub(crate) fn lock_unrouted_calls(&self) -> UnroutedCalls<'_> {
        UnroutedCalls { channel: self, count: self.unrouted_calls.lock() }
    }
}

/// Token for a call of the engine that creates a connection or listener. It is dropped when the id
/// is routed or the call has failed.
pub(crate) struct UnroutedCall(Arc<Channel>);

impl Drop for UnroutedCall {
    fn drop(&mut self) {
        *self.0.unrouted_calls.lock() -= 1;
        self.0.call_ended.notify_all();
    }
}

/// Lock of a channel's count of unrouted calls.
pub(crate) struct UnroutedCalls<'a> {
    channel: &'a Channel,
    count: MutexGuard<'a, u32>,
}

impl UnroutedCalls<'_> {
    /// Waits until one of the calls has ended; the lock is released meanwhile. Returns `None`
    /// immediately if there is no such call.
    pub(crate) fn wait(self) -> Option<Self> {
        let Self { channel, count } = self;
        if *count == 0 {
            return None;
        }
        Some(Self { channel, count: channel.call_ended.wait(count) })
    }
}

//! Interface for layers that wait for completions without polling a queue.
//!
//! The safe API in the crate `uiw` is such a layer: it turns completions into futures, and lets the
//! event loop of a runtime drive a device. Everything that it needs beyond the verbs is here.
//!
//! # Calls into the layer
//! | called | by | what the layer does |
//! |---|---|---|
//! | [`CompletionConsumer::complete`] | the thread that serves the connection or posts to it, with locks of the engine held | stores the completion, and adds wakers to the [`Wakes`] that it is given |
//! | a waker from these `Wakes` | the same thread, after it has released every lock of the engine | anything: it may post, poll futures, drop buffers and destroy queue pairs |
//! | [`Linger::end_lingering`] | the thread that drops the last handle of a device, with no lock of the engine held | lets go of the connection |
//! | the waker of a [`ShardTask`] | any thread that posts, or has work for the shard | has the task call [`ShardTask::try_pump`] soon |
//!
//! # Calls into the engine
//! A layer creates a queue without a ring ([`create_consumed_cq`]) and a queue pair that completes
//! there. It posts a request in two steps: [`queue_send`] fixes its place in the send queue, and
//! [`ring`] has it served, which may run wakers. So a layer can hold a lock of its own around the
//! first step to keep requests in order, and release it before the second.
//!
//! # Locks
//! The locks of the engine come before those that a [`CompletionConsumer`] takes. No lock that it
//! takes may be held during a call into the engine, except [`local_error`], whose lock is never
//! held while a consumer is called. A lock that is held only around [`queue_send`] must not be
//! taken by the consumer; any other thread may wait for it, as no code of the application runs
//! meanwhile.
//!
//! # Wake-ups
//! No wake-up is lost: a future registers its waker ([`register_waker`]) under the lock with which
//! the consumer stores the outcome, and looks for the outcome under the same lock before. A waker
//! is called at least once after each completion that it waits for, perhaps before the thread that
//! registered it has returned, and perhaps without a reason.
//!
//! # Lifetimes
//! After a [`Qp`] was dropped nothing completes there any more, though the engine may keep the
//! queue and so its consumer for longer. Objects of a device do not keep its handles: a layer keeps
//! the handle ([`device_of`]) that it drives the device with. On a device with
//! [`Progress::Manual`](crate::Progress::Manual) nobody drives a connection after the last handle
//! is dropped. Therefore a connection that keeps itself alive until its requests have completed
//! registers for that moment ([`end_with_last_handle`]).
//!
//! # Configuration
//! [`connection_options`] gives a configuration type of the layer the setters of
//! [`ConnConfig`](crate::ConnConfig), from the same definition.

pub use crate::connection_options;
pub use crate::cq::CompletionConsumer;
pub use crate::lingering::Linger;
pub use crate::notify::{Wakes, register_waker};
pub use crate::qp::Doorbell;
pub use crate::thread::spawn as spawn_thread;

use crate::cq::Cq;
use crate::device::Device;
use crate::driver::{ActiveTask, Shard};
use crate::error::Result;
use crate::pd::Pd;
use crate::qp::{Qp, QpInit};
use crate::wr::{RecvWr, SendWr, Sge};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

/// Returns a handle of the device that `pd` belongs to.
#[must_use]
pub fn device_of(pd: &Pd) -> Device {
    pd.device().to_handle()
}

/// Creates a completion queue that gives its completions to `consumer`. It is always empty, and
/// does not overflow: the consumer holds at most as many completions as requests were posted.
///
/// # Errors
/// The errors are those of [`Device::create_cq`].
pub fn create_consumed_cq(
    device: &Device,
    depth: u32,
    consumer: Arc<dyn CompletionConsumer>,
) -> Result<Arc<Cq>> {
    device.create_consumed_cq(depth, consumer)
}

/// Allows messages of up to `bytes` bytes that are longer than their receives (see
/// [`take_long_message`]).
#[must_use]
pub fn with_long_messages(init: QpInit, bytes: u32) -> QpInit {
    init.max_message(bytes)
}

/// Takes the message that was received for receive `wr_id` of a queue pair
/// [with long messages](with_long_messages), if it is longer than the receive. It counts against
/// the limit until [`release_long_message`].
#[must_use]
pub fn take_long_message(qp: &Qp, wr_id: u64) -> Option<Vec<u8>> {
    qp.0.long.as_ref()?.take(wr_id)
}

/// Makes room for further messages, after the caller has dropped a message of `len` bytes from
/// [`take_long_message`]. The caller then posts the receive again, which wakes a stream that waits
/// for this room.
pub fn release_long_message(qp: &Qp, len: usize) {
    if let Some(messages) = &qp.0.long {
        messages.release(len);
    }
}

/// Queues a send request, which [`ring`] then has served.
///
/// # Safety
/// The contract is that of [`Qp::post_send`].
///
/// # Errors
/// The errors are those of [`Qp::post_send`].
pub unsafe fn queue_send(qp: &Qp, wr: SendWr<'_>) -> (Result<()>, Doorbell) {
    let (posted, doorbell) = qp.0.queue_send([wr], false);
    (posted.map_err(|refused| refused.error), doorbell)
}

/// Serves the requests that were queued when `doorbell` was returned. It may run wakers, so the
/// caller must hold no lock that they take.
pub fn ring(qp: &Qp, doorbell: Doorbell) {
    doorbell.ring(&qp.0);
}

/// Posts a receive of one element.
///
/// # Safety
/// The contract is that of [`Qp::post_recv`].
///
/// # Errors
/// The errors are those of [`Qp::post_recv`].
pub unsafe fn post_receive(qp: &Qp, wr_id: u64, sge: Sge) -> Result<()> {
    qp.0.post_recv([RecvWr { wr_id, sges: &[sge] }]).map_err(|refused| refused.error)
}

/// Returns a description of the last local error of `qp`: the request or receive, its value and the
/// limit.
#[must_use]
pub fn local_error(qp: &Qp) -> Option<Arc<str>> {
    qp.0.local_error()
}

/// Aborts the connection of `qp` unless it ends within `timeout`. Returns whether there is a
/// connection.
pub fn limit_lifetime(qp: &Qp, timeout: Duration) -> bool {
    crate::qp::limit_lifetime(&qp.0, timeout)
}

/// Restarts [`ConnConfig::close_timeout`](crate::ConnConfig::close_timeout) for a connection that
/// is being closed, because the peer still acknowledges data.
pub fn renew_close_deadline(qp: &Qp) {
    crate::qp::renew_close_deadline(&qp.0);
}

/// Registers a connection whose [`Linger::end_lingering`] is called when the last handle of
/// `device` is dropped. Has an effect only with [`Progress::Manual`](crate::Progress::Manual).
pub fn end_with_last_handle(device: &Device, connection: Weak<dyn Linger>) {
    if let Some(lingering) = device.lingering() {
        lingering.add(connection);
    }
}

/// Role of driving one shard of a device, held by the task of a runtime. While it exists, the
/// background thread of the shard sleeps. A thread that waits in a call of the engine takes over
/// the role until its wait ends.
pub struct ShardTask {
    shard: Arc<Shard>,
    active: ActiveTask,
}

impl std::fmt::Debug for ShardTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardTask").field("shard", &self.shard.index()).finish_non_exhaustive()
    }
}

impl ShardTask {
    /// Takes the role for shard `index`, less than [`Device::shards`]. Returns `None` if another
    /// task or thread has it. `waker` is asked only if the role is free.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn try_new(device: &Device, index: usize, waker: impl FnOnce() -> Waker) -> Option<Self> {
        let shard = Arc::clone(&device.driver().shards()[index]);
        let active = ActiveTask::try_new(&shard, waker)?;
        Some(Self { shard, active })
    }

    /// Returns the descriptor that is readable, edge-triggered, when something has arrived; `None`
    /// if the stack has none.
    #[must_use]
    pub fn wait_fd(&self) -> Option<Arc<OwnedFd>> {
        self.active.set()
    }

    /// Returns the time at which [`ShardTask::try_pump`] is due even if nothing arrives.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.active.timer()
    }

    /// Makes one round that polls the stack, after its descriptor was readable. Returns whether the
    /// stack may have more events, or `None` if another thread drives.
    #[must_use]
    pub fn pump_events(&self) -> Option<bool> {
        self.shard.pump_events()
    }

    /// Releases the role, which is otherwise released on drop.
    pub fn release(&self) {
        self.active.release();
    }

    /// Makes one round, unless another thread drives. Returns the amount of work done.
    pub fn try_pump(&self) -> usize {
        self.shard.try_pump()
    }
}

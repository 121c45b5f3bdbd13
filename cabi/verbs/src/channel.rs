//! Completion channels, through which completion queues announce completions.

use crate::context::{Context, OpenContext};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use uiw_cabi_core::abi::{ibv_comp_channel, ibv_cq};
use uiw_cabi_core::arguments::{Handle, OutPtr, OwnedHandle};
use uiw_cabi_core::boundary::{self, Attempt, Result, is_nonblocking, take_event};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::{Body, Object, ObjectKind};
use uiw_cabi_core::signals;
use uiw_cabi_core::users::{UnacknowledgedEvents, Users};

/// Completion channel that C refers to.
pub struct CompChannel {
    context: Arc<Context>,
    pub(crate) events: Arc<CompEvents>,
    /// Completion queues that use the channel.
    pub users: Users,
}

/// Completion events of a channel, and the queues that can raise them.
pub(crate) struct CompEvents {
    engine: Arc<uiw_verbs::CompChannel>,
    /// C's objects by the engine's queue numbers. Each channel has its own lock, which is held only
    /// for look-ups.
    queues: Mutex<BTreeMap<u32, ArmedQueue>>,
    /// Number of times that queues of the channel were armed. It is approximate if several threads
    /// arm queues.
    arms: AtomicU32,
}

/// Number of armings, from the first one on, at each of which the flags of the descriptor are read.
/// Reading them takes a system call.
const FLAG_READ_FIRST: u32 = 8;
/// After the first armings, the flags are read once per this number of armings.
const FLAG_READ_EVERY: u32 = 64;

/// Completion queue of C, with its count of delivered completion events.
struct ArmedQueue {
    object: *mut ibv_cq,
    events: Arc<UnacknowledgedEvents>,
}

// SAFETY: a value contains an address, which any thread may hold, and a counter that is `Send` and
// `Sync`. Only `ibv_get_cq_event` reads through the address, and explains there why the queue is
// alive.
unsafe impl Send for ArmedQueue {}

impl CompEvents {
    /// Called before a queue is armed. Determines how arrivals wake the program: directly if it has
    /// made the descriptor non-blocking, as programs that sleep in poll(2) do, because these handle
    /// an event of an empty queue. Programs that wait in `ibv_get_cq_event` may assume that an
    /// event implies a completion.
    pub(crate) fn note_arm(&self) {
        let arms = self.arms.load(Ordering::Relaxed);
        self.arms.store(arms.wrapping_add(1), Ordering::Relaxed);
        // Programs set the flag before they sleep for the first time.
        if (arms < FLAG_READ_FIRST || arms.is_multiple_of(FLAG_READ_EVERY))
            && let Ok(fd) = self.engine.fd()
        {
            self.engine.set_direct(is_nonblocking(fd.as_raw_fd()));
        }
    }

    /// Returns the engine's channel.
    pub(crate) fn engine(&self) -> &Arc<uiw_verbs::CompChannel> {
        &self.engine
    }

    /// Registers C's object for the engine's queue `number`. Delivered events are counted in
    /// `events`.
    pub(crate) fn add(&self, number: u32, object: *mut ibv_cq, events: &Arc<UnacknowledgedEvents>) {
        self.queues.lock().insert(number, ArmedQueue { object, events: Arc::clone(events) });
    }

    /// Removes a queue. No event of it is delivered to C afterwards.
    pub(crate) fn remove(&self, queue: &Arc<uiw_verbs::Cq>) {
        self.queues.lock().remove(&queue.num());
        self.engine.forget(queue);
    }

    /// Returns the queue of the oldest event, and counts the event as delivered. May drive the
    /// engine. Events of destroyed queues are skipped.
    fn try_get(&self, has_token: bool) -> Option<*mut ibv_cq> {
        let mut event =
            if has_token { self.engine.pop_with_token() } else { self.engine.try_pop() };
        loop {
            if let Some(cq) = self.deliver(event?.upgrade()) {
                return Some(cq);
            }
            event = self.engine.try_pop();
        }
    }

    /// Counts the event while the table is locked, because a queue is removed from the table before
    /// its destruction waits for delivered events.
    fn deliver(&self, cq: Option<Arc<uiw_verbs::Cq>>) -> Option<*mut ibv_cq> {
        let number = cq?.num();
        let queues = self.queues.lock();
        let queue = queues.get(&number)?;
        queue.events.deliver();
        Some(queue.object)
    }
}

impl Body for CompChannel {
    type Abi = ibv_comp_channel;
    type C = ibv_comp_channel;
    const KIND: ObjectKind = ObjectKind::CompChannel;
}

/// Time for which a waiting thread drives the engine itself. Then it sleeps in `read` on the
/// channel's semaphore and leaves the engine to the background thread. Only this `read` is a
/// cancellation point and can be interrupted by signals.
const DRIVE: Duration = Duration::from_millis(5);

/// `ibv_create_comp_channel`.
pub extern "C" fn ibv_create_comp_channel(
    context: Handle<'_, OpenContext>,
) -> *mut ibv_comp_channel {
    boundary::pointer(|| CompChannel::create(context.get()?))
}

impl CompChannel {
    /// Creates a channel of the context, and returns C's pointer to it.
    ///
    /// # Errors
    /// EMFILE.
    pub fn create(context: &Object<OpenContext>) -> Result<*mut ibv_comp_channel> {
        let engine = Arc::<uiw_verbs::CompChannel>::default();
        engine.set_direct(false);
        let fd = engine.fd()?.as_raw_fd();
        let events =
            Arc::new(CompEvents { engine, queues: Mutex::default(), arms: AtomicU32::new(0) });
        let channel = Self { context: context.share(), events, users: Users::default() };
        Ok(Object::create(ibv_comp_channel { context: context.abi(), fd, refcnt: 0 }, channel))
    }
}

/// `ibv_destroy_comp_channel`: returns EBUSY while a queue uses the channel.
pub extern "C" fn ibv_destroy_comp_channel(channel: OwnedHandle<'_, CompChannel>) -> c_int {
    boundary::code(|| {
        channel.destroy(|channel| channel.users.check_none("completion queues use the channel"))
    })
}

/// `ibv_get_cq_event`: waits for an event unless the program made the descriptor non-blocking.
pub extern "C-unwind" fn ibv_get_cq_event(
    channel: Handle<'_, CompChannel>,
    cq: OutPtr<'_, *mut ibv_cq>,
    cq_context: OutPtr<'_, *mut c_void>,
) -> c_int {
    // SAFETY: `Handle` and `OutPtr` have no destructors, so this frame holds nothing with one. It
    // may unwind, because it is `extern "C-unwind"`. Its caller is C, or a test that cancels no
    // thread.
    let taken = unsafe { take_event(|has_token| attempt(channel, has_token, &cq, &cq_context)) };
    let Some(found) = taken else { return -1 };
    // SAFETY: `found` is alive: `deliver` has counted its event, for whose acknowledgement
    // `ibv_destroy_cq` waits, and the program cannot acknowledge it before this function returns
    // (ibv_get_cq_event(3)). The field is written only on creation, and no reference exists
    // (`AbiCell`).
    let context = unsafe { (*found).cq_context };
    boundary::minus_one(|| cq.write(found).and(cq_context.write(context)))
}

fn attempt(
    channel: Handle<'_, CompChannel>,
    has_token: bool,
    cq: &OutPtr<'_, *mut ibv_cq>,
    cq_context: &OutPtr<'_, *mut c_void>,
) -> Result<Attempt<*mut ibv_cq>> {
    let object = channel.get()?;
    cq.check().and(cq_context.check())?;
    let fd = object.abi.get(|abi| &abi.fd);
    let taken = match object.events.try_get(has_token) {
        None if is_nonblocking(fd) => return Err(Errno::AGAIN),
        None => {
            let held = signals::block_all();
            let found = object.get_driving();
            if found.is_none() && held.interrupts_read() {
                return Err(Errno::INTR);
            }
            found
        }
        some => some,
    };
    match taken {
        Some(found) => Ok(Attempt::Taken(found)),
        None => Ok(Attempt::Sleep(object.events.engine.token_fd()?.as_raw_fd())),
    }
}

impl CompChannel {
    /// Like [`CompEvents::try_get`], but drives the engine for up to [`DRIVE`] until there is an
    /// event.
    fn get_driving(&self) -> Option<*mut ibv_cq> {
        let deadline = Instant::now() + DRIVE;
        loop {
            let event =
                self.context.engine.wait(Some(deadline), |cx| self.events.engine.poll_pop(cx))?;
            if let Some(cq) = self.events.deliver(event.upgrade()) {
                return Some(cq);
            }
        }
    }
}

//! Completion channels: completion queues announce there that something has completed.

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::boundary::{self, Result, is_nonblocking, read_token};
use crate::context::Context;
use crate::errno::Errno;
use crate::object::{Body, Object};
use crate::signals::Held;
use crate::users::{Unacknowledged, Users};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A channel as C holds it.
pub struct CompChannel {
    context: Arc<Context>,
    pub(crate) events: Arc<CompEvents>,
    /// Queues that announce here.
    pub users: Users,
}

/// The completion events of a channel, and the queues that they can be about.
pub(crate) struct CompEvents {
    engine: Arc<uiw_verbs::CompChannel>,
    /// C's objects by the engine's numbers. The lock is the channel's own, and is held for a look-up alone.
    queues: Mutex<BTreeMap<u32, Queue>>,
    /// Armings of its queues. Not exact where several threads arm.
    arms: AtomicU32,
}

/// At so many armings the descriptor's flags are read, which takes a system call,
const FLAG_READ_FIRST: u32 = 8;
/// and then at one of so many.
const FLAG_READ_EVERY: u32 = 64;

/// A queue of C's, with its count of delivered completion events.
struct Queue {
    object: *mut ibv_cq,
    events: Arc<Unacknowledged>,
}

// SAFETY: the pointer is handed to C, and not read through here, except while an event of the queue is delivered: until that is
// acknowledged the queue is not freed.
unsafe impl Send for Queue {}

impl CompEvents {
    /// A queue is about to be armed. Arrivals wake a program directly if it has made the descriptor non-blocking, as one that sleeps in
    /// poll(2) does: it handles an event of a queue that is empty. Programs that wait in `ibv_get_cq_event` may take an event for a
    /// completion.
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

    /// The engine's channel.
    pub(crate) fn engine(&self) -> &Arc<uiw_verbs::CompChannel> {
        &self.engine
    }

    /// Events about the engine's queue `number` are given to C with `object`, and counted in `events`.
    pub(crate) fn add(&self, number: u32, object: *mut ibv_cq, events: &Arc<Unacknowledged>) {
        self.queues.lock().insert(number, Queue { object, events: Arc::clone(events) });
    }

    /// No event about `queue` is given to C from now on.
    pub(crate) fn remove(&self, queue: &Arc<uiw_verbs::Cq>) {
        self.queues.lock().remove(&queue.num());
        self.engine.forget(queue);
    }

    /// The queue of the oldest event, counted as delivered; the engine may be driven for one. Events of destroyed queues are skipped.
    fn try_get(&self, has_token: bool) -> Option<*mut ibv_cq> {
        let mut event = if has_token { self.engine.pop_with_token() } else { self.engine.try_pop() };
        loop {
            if let Some(cq) = self.deliver(event?.upgrade()) {
                return Some(cq);
            }
            event = self.engine.try_pop();
        }
    }

    /// Counted under the lock: a queue leaves the table before its destruction waits for delivered events.
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
    const KIND: u32 = 0x7569_6306;
}

/// How long a waiting thread drives the engine itself before it sleeps in the channel's semaphore and leaves driving to the background
/// thread. Only the read of that is a cancellation point and is ended by signals.
const DRIVE: Duration = Duration::from_millis(5);

/// The result of one attempt to take an event.
enum Attempt {
    Taken,
    Failed,
    Sleep(c_int),
}

/// `ibv_create_comp_channel`.
///
/// # Safety
/// `context` is NULL or one of ours.
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    boundary::pointer(|| {
        // SAFETY: the caller's promise.
        let open = unsafe { Context::get(context) }?;
        let engine = Arc::<uiw_verbs::CompChannel>::default();
        engine.set_direct(false);
        let fd = engine.fd()?.as_raw_fd();
        let events = Arc::new(CompEvents { engine, queues: Mutex::default(), arms: AtomicU32::new(0) });
        let channel = CompChannel { context: Arc::clone(open), events, users: Users::default() };
        Ok(Object::create(ibv_comp_channel { context, fd, refcnt: 0 }, channel))
    })
}

/// `ibv_destroy_comp_channel`; EBUSY while a queue uses it.
///
/// # Safety
/// `channel` is NULL or one of ours, and no thread uses it any more.
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise, here and below.
        let object = unsafe { Object::<CompChannel>::get_any(channel) }?;
        if !object.is_inherited() && object.users.any() {
            return Err(Errno::BUSY.because("completion queues use the channel"));
        }
        // SAFETY: as above.
        unsafe { Object::<CompChannel>::free(channel) };
        Ok(())
    })
}

/// `ibv_get_cq_event`: waits unless the program made the descriptor non-blocking.
///
/// # Safety
/// `channel` is NULL or one of ours and stays while this waits; `cq` and `cq_context` are NULL or writable.
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let mut has_token = false;
    loop {
        // SAFETY: the caller's promise. Nothing here has a destructor, so a thread may be cancelled while it waits.
        unsafe {
            match attempt(channel, has_token, cq, cq_context) {
                Attempt::Taken => return 0,
                Attempt::Failed => return -1,
                Attempt::Sleep(fd) => has_token = read_token(fd),
            }
        }
        if !has_token {
            return -1;
        }
    }
}

/// # Safety
/// As for [`ibv_get_cq_event`].
unsafe fn attempt(
    channel: *mut ibv_comp_channel,
    has_token: bool,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> Attempt {
    let body = || -> Result<Attempt> {
        // SAFETY: the caller's promise, here and below.
        let object = unsafe { Object::<CompChannel>::get(channel) }?;
        if cq.is_null() || cq_context.is_null() {
            return Err(Errno::INVAL.null());
        }
        // SAFETY: as above.
        let fd = unsafe { (*channel).fd };
        let taken = match object.events.try_get(has_token) {
            None if is_nonblocking(fd) => return Err(Errno::AGAIN),
            None => {
                let held = Held::new();
                let found = object.get_driving();
                if found.is_none() && held.interrupts() {
                    return Err(Errno::INTR);
                }
                found
            }
            some => some,
        };
        let Some(found) = taken else {
            return Ok(Attempt::Sleep(object.events.engine.token_fd()?.as_raw_fd()));
        };
        // SAFETY: as above; the queue cannot be destroyed before this event is acknowledged.
        unsafe {
            *cq = found;
            *cq_context = (*found).cq_context;
        }
        Ok(Attempt::Taken)
    };
    boundary::value(Attempt::Failed, || {
        Ok(body().unwrap_or_else(|errno| {
            errno.set();
            Attempt::Failed
        }))
    })
}

impl CompChannel {
    /// As [`CompEvents::try_get`]; drives the engine for [`DRIVE`] while there is none.
    fn get_driving(&self) -> Option<*mut ibv_cq> {
        let deadline = Instant::now() + DRIVE;
        loop {
            let event = self.context.engine.wait(Some(deadline), |cx| self.events.engine.poll_pop(cx))?;
            if let Some(cq) = self.events.deliver(event.upgrade()) {
                return Some(cq);
            }
        }
    }
}

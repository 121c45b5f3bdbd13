//! Completion channels: where completion queues announce that something has completed.

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::boundary::{self, Result, is_nonblocking, read_token};
use crate::context::Context;
use crate::cq::Cq;
use crate::errno::Errno;
use crate::object::{Body, Object};
use crate::signals::Held;
use crate::users::Users;
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A channel as C holds it.
pub struct CompChannel {
    context: Arc<Context>,
    /// The engine's.
    pub engine: Arc<verbs::CompChannel>,
    /// Queues that announce here.
    pub users: Users,
}

impl Body for CompChannel {
    type Abi = ibv_comp_channel;
    const KIND: u32 = 0x7569_6306;
}

/// How long a waiting thread drives the device itself before it sleeps in the descriptor and leaves driving to the background
/// thread. Only the descriptor is a point where a thread can be cancelled and where a signal is seen.
const DRIVE: Duration = Duration::from_millis(5);

/// What a look at the channel came to.
enum Look {
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
        let engine = Arc::<verbs::CompChannel>::default();
        let fd = engine.fd()?.as_raw_fd();
        let channel = CompChannel { context: Arc::clone(open), engine, users: Users::default() };
        Ok(Object::create(ibv_comp_channel { context, fd, refcnt: 0 }, channel))
    })
}

/// `ibv_destroy_comp_channel`; EBUSY while a queue uses it.
///
/// # Safety
/// `channel` is NULL or one of ours, and nobody uses it any more.
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise, here and below.
        let object = unsafe { Object::<CompChannel>::get_any(channel) }?;
        if !object.is_inherited() && object.users.any() {
            return Err(Errno::BUSY);
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
            match look(channel, has_token, cq, cq_context) {
                Look::Taken => return 0,
                Look::Failed => return -1,
                Look::Sleep(fd) => has_token = read_token(fd),
            }
        }
        if !has_token {
            return -1;
        }
    }
}

/// # Safety
/// As for [`ibv_get_cq_event`].
unsafe fn look(
    channel: *mut ibv_comp_channel,
    has_token: bool,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> Look {
    let body = || -> Result<Look> {
        // SAFETY: the caller's promise, here and below.
        let object = unsafe { Object::<CompChannel>::get(channel) }?;
        if cq.is_null() || cq_context.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: as above.
        let fd = unsafe { (*channel).fd };
        let taken = match object.try_get(has_token) {
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
        let Some(found) = taken else { return Ok(Look::Sleep(fd)) };
        // SAFETY: as above; the queue cannot be destroyed before this event is acknowledged.
        unsafe {
            *cq = found;
            *cq_context = (*found).cq_context;
        }
        Ok(Look::Taken)
    };
    boundary::value(Look::Failed, || {
        Ok(body().unwrap_or_else(|errno| {
            errno.set();
            Look::Failed
        }))
    })
}

impl CompChannel {
    /// The queue of the oldest event, counted as delivered. Events of queues that are gone are skipped.
    fn try_get(&self, has_token: bool) -> Option<*mut ibv_cq> {
        let mut event = if has_token { self.engine.pop_with_token() } else { self.engine.try_pop() };
        loop {
            if let Some(cq) = self.deliver(event?.upgrade()) {
                return Some(cq);
            }
            event = self.engine.try_pop();
        }
    }

    fn deliver(&self, cq: Option<Arc<verbs::Cq>>) -> Option<*mut ibv_cq> {
        let numbers = self.context.numbers.lock();
        let abi = *numbers.cqs.get(&cq?.num())?;
        // SAFETY: objects leave `numbers` before they are freed, and the lock is held.
        let object = unsafe { Object::<Cq>::get(abi) }.ok()?;
        object.events.deliver();
        Some(abi.cast())
    }

    fn get_driving(&self) -> Option<*mut ibv_cq> {
        let deadline = Instant::now() + DRIVE;
        loop {
            let event = self.context.engine.wait(Some(deadline), |cx| self.engine.poll_pop(cx))?;
            if let Some(cq) = self.deliver(event.upgrade()) {
                return Some(cq);
            }
        }
    }
}

//! Event channels, and the one wait of the connection manager.

use crate::abi::{rdma_cm_event, rdma_event_channel};
use crate::boundary::{self, Result, is_nonblocking, read_token};
use crate::cm::{event, left_behind, registry};
use crate::errno::Errno;
use crate::process;
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use verbs::cm::CmChannel;

/// `rdma_event_channel`: C's structure in front of the engine's queue.
#[repr(C)]
pub(crate) struct Channel {
    abi: UnsafeCell<rdma_event_channel>,
    queue: Arc<CmChannel>,
    /// Who looked at it last.
    reader: Mutex<Option<ThreadId>>,
}

// SAFETY: C's structure is one number that is written before anybody has it.
unsafe impl Sync for Channel {}
// SAFETY: as above.
unsafe impl Send for Channel {}

impl Channel {
    /// A new channel that C may name.
    pub(crate) fn create() -> Result<Arc<Self>> {
        let queue = Arc::new(CmChannel::default());
        let fd = queue.fd()?.as_raw_fd();
        let channel = Arc::new(Self {
            abi: UnsafeCell::new(rdma_event_channel { fd }),
            queue,
            reader: Mutex::default(),
        });
        process::with(|process| process.cm.add_channel(&channel));
        Ok(channel)
    }

    /// C's pointer.
    pub(crate) fn abi(&self) -> *mut rdma_event_channel {
        self.abi.get()
    }

    /// The engine's queue.
    pub(crate) fn queue(&self) -> &Arc<CmChannel> {
        &self.queue
    }

    /// The thread other than this one that is expected to come back and sleep here.
    fn sleeper(&self) -> Option<ThreadId> {
        let fd = self.queue.fd().ok()?.as_raw_fd();
        self.reader.lock().filter(|&reader| reader != thread::current().id() && !is_nonblocking(fd))
    }
}

/// `rdma_create_event_channel`.
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    boundary::pointer(|| Channel::create().map(|channel| channel.abi()))
}

/// `rdma_destroy_event_channel`. Ids that still use the channel keep its descriptor open until they are destroyed. A thread that
/// sleeps in [`rdma_get_cm_event`] sleeps on, and one that is about to does, too.
///
/// # Safety
/// None: a pointer that is no channel of ours is ignored.
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    boundary::value((), || {
        process::with(|process| {
            if process.cm.forget_inherited(channel) {
                return None;
            }
            let removed = process.cm.remove_channel(channel)?;
            if let Some(reader) = removed.sleeper() {
                process.cm.left_behind.add(channel.addr(), reader);
            }
            Some(removed)
        });
        Ok(())
    });
}

/// `rdma_get_cm_event`.
///
/// # Safety
/// `event` is NULL or writable.
pub unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if event.is_null() {
        Errno::INVAL.set();
        return -1;
    }
    // SAFETY: nothing on this stack frame has a destructor.
    let next = unsafe { wait(channel) };
    if next.is_null() {
        return -1;
    }
    // SAFETY: the caller's promise.
    unsafe { *event = next };
    0
}

/// The channel's next event, or NULL and `errno`. Sleeps unless the descriptor is one that does not block.
///
/// # Safety
/// No caller on the stack up to C holds a value with a destructor: a thread may be cancelled while it sleeps here.
#[inline]
pub(crate) unsafe fn wait(channel: *mut rdma_event_channel) -> *mut rdma_cm_event {
    let mut has_token = false;
    loop {
        match next(channel, has_token) {
            Next::Event(event) => return event,
            Next::Failed => return ptr::null_mut(),
            // SAFETY: the caller's promise, and nothing here has a destructor either.
            Next::Sleep(fd) => match unsafe { read_token(fd) } {
                true => has_token = true,
                false if is_gone(channel) => has_token = false,
                false => return ptr::null_mut(),
            },
            Next::SleepForever => {
                // SAFETY: as above.
                unsafe { left_behind::sleep() };
                return ptr::null_mut();
            }
        }
    }
}

/// Whether the channel was destroyed, and its descriptor closed, between the look and the sleep that has just failed.
fn is_gone(channel: *mut rdma_event_channel) -> bool {
    let closed = Errno::last() == Errno(libc::EBADF);
    closed && boundary::value(false, || Ok(registry::channel(channel).is_err()))
}

/// One look at a channel. Plain values only: they are held while the thread may be cancelled.
#[derive(Clone, Copy)]
enum Next {
    Event(*mut rdma_cm_event),
    Sleep(c_int),
    /// The channel is gone, and this thread would have slept in it.
    SleepForever,
    Failed,
}

fn next(channel: *mut rdma_event_channel, has_token: bool) -> Next {
    let mut next = Next::Failed;
    boundary::minus_one(|| {
        let reader = thread::current().id();
        let channel = registry::channel(channel).inspect_err(|_| {
            if process::with(|process| process.cm.left_behind.contains(channel.addr(), reader)) {
                next = Next::SleepForever;
            }
        })?;
        *channel.reader.lock() = Some(reader);
        next = Next::Sleep(channel.queue.fd()?.as_raw_fd());
        let mut popped = if has_token { channel.queue.pop_with_token() } else { channel.queue.try_pop() };
        while let Some(raw) = popped {
            // An event of an id that is being destroyed is nobody's.
            if let Some(event) = event::deliver(raw) {
                next = Next::Event(event);
                return Ok(());
            }
            popped = channel.queue.try_pop();
        }
        Ok(())
    });
    next
}

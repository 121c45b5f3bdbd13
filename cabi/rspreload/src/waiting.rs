//! Waits for epoll sets by the system's call, until a set has rsockets: `uiw_cabi::rsocket::preload::waiting` says how they end then.

use crate::bits::is_set;
use crate::{next, sockets};
use libc::epoll_event;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};

static COUNTS: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
static LEN: AtomicUsize = AtomicUsize::new(1);

/// Asks `libibverbs.so.1` where the counts are.
pub(crate) fn find() {
    let mut len = 0;
    // SAFETY: a number that can be written.
    let counts = unsafe { sockets::uiw_sockets_waiting(&raw mut len) };
    LEN.store(len, Ordering::Relaxed);
    COUNTS.store(counts.cast_mut().cast(), Ordering::Release);
}

/// The count of a set, where the set may be waited for by the system's call.
pub(crate) fn begin(set: c_int) -> Option<&'static AtomicU32> {
    /// Calls that come before this library is initialized are counted here.
    static EARLY: AtomicU32 = AtomicU32::new(0);
    let counts = COUNTS.load(Ordering::Acquire);
    let count = if counts.is_null() {
        &EARLY
    } else {
        // SAFETY: so many counts are there, for ever, and each is only changed by atomic instructions.
        unsafe { &*counts.add(set as u32 as usize % LEN.load(Ordering::Relaxed)) }
    };
    count.fetch_add(1, Ordering::AcqRel);
    // Either this thread sees that the set has rsockets, or that which adds the first sees the count.
    fence(Ordering::SeqCst);
    if is_set(set) {
        end(count);
        return None;
    }
    Some(count)
}

fn end(count: &AtomicU32) {
    count.fetch_sub(1, Ordering::AcqRel);
}

/// What the C library keeps of a handler of pthread_cleanup_push(3), in the frame that has pushed it.
#[repr(C)]
pub(crate) struct Cleanup {
    routine: Option<Routine>,
    argument: *mut c_void,
    cancel_type: c_int,
    before: *mut Self,
}

/// Such a handler.
pub(crate) type Routine = unsafe extern "C" fn(*mut c_void);

/// # Safety
/// A count.
unsafe extern "C" fn leave(count: *mut c_void) {
    // SAFETY: the caller's promise.
    end(unsafe { &*count.cast::<AtomicU32>() });
}

/// Waits by `system`, counted until then, or until the thread is cancelled or jumps out of the wait: no destructor may run then.
pub(crate) fn counted(count: &'static AtomicU32, system: impl FnOnce() -> c_int) -> c_int {
    let mut handler =
        Cleanup { routine: None, argument: ptr::null_mut(), cancel_type: 0, before: ptr::null_mut() };
    let has_handlers = next::has_cleanup();
    if has_handlers {
        // SAFETY: it is in this frame, and is taken back below unless the frame is left by force, where the C library calls it.
        unsafe { next::cleanup_push(&raw mut handler, leave, ptr::from_ref(count).cast_mut().cast()) };
    }
    let found = system();
    if has_handlers {
        // SAFETY: as above; it is not called.
        unsafe { next::cleanup_pop(&raw mut handler, 0) };
    }
    end(count);
    found
}

/// Takes the event out that is not the program's. Whether it was there, and how many events are left.
///
/// # Safety
/// `events` has `found` structures.
pub(crate) unsafe fn without_marker(events: *mut epoll_event, found: c_int) -> (bool, c_int) {
    let marker = COUNTS.load(Ordering::Acquire).addr() as u64;
    for at in 0..usize::try_from(found).unwrap_or(0) {
        // SAFETY: the caller's promise, here and below.
        unsafe {
            if (*events.add(at)).u64 == marker {
                ptr::copy(events.add(at + 1), events.add(at), found as usize - at - 1);
                return (true, found - 1);
            }
        }
    }
    (false, found)
}

//! Waits for epoll sets with the system's call, as long as a set has no rsockets.
//! `uiw_cabi_rsocket::preload::waiting` describes how such a wait ends when the set gets its first
//! rsocket.

use crate::argument::{Argument, Out};
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
    let counts = sockets::uiw_sockets_waiting(&mut len);
    LEN.store(len, Ordering::Relaxed);
    COUNTS.store(counts.cast_mut().cast(), Ordering::Release);
}

/// Counts a wait for a set with the system's call, and returns the count. Returns `None` if the set
/// has rsockets, because the system's call must not be used then.
pub(crate) fn begin(set: c_int) -> Option<&'static AtomicU32> {
    /// Calls that come before this library is initialized are counted here.
    static EARLY: AtomicU32 = AtomicU32::new(0);
    let counts = COUNTS.load(Ordering::Acquire);
    let count = if counts.is_null() {
        &EARLY
    } else {
        // SAFETY: the index is less than `LEN`, the number of counts that `uiw_sockets_waiting` has
        // returned with the pointer, which `find` stores last. The counts are a static of
        // `libibverbs.so.1`, which lives as long as this library. They are aligned `AtomicU32`s,
        // which it changes only atomically.
        unsafe { &*counts.add(set as u32 as usize % LEN.load(Ordering::Relaxed)) }
    };
    count.fetch_add(1, Ordering::AcqRel);
    // Either this thread sees that the set has rsockets, or the thread that adds the first one sees
    // the count.
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

/// Record that the C library keeps of a handler of pthread_cleanup_push(3), in the frame that has
/// pushed it.
#[repr(C)]
pub(crate) struct Cleanup {
    routine: Option<Routine>,
    argument: *mut c_void,
    cancel_type: c_int,
    before: *mut Self,
}

/// Handler of pthread_cleanup_push(3).
pub(crate) type Routine = unsafe extern "C" fn(*mut c_void);

/// Handler that ends the count of a wait.
///
/// # Safety
/// `count` points to an `AtomicU32` that is never freed.
unsafe extern "C" fn leave(count: *mut c_void) {
    // SAFETY: `count` points to an aligned `AtomicU32` that is never freed, as the caller ensures:
    // the C library passes what `counted` has given to `cleanup_push`, which was made from a
    // `&'static AtomicU32`.
    end(unsafe { &*count.cast::<AtomicU32>() });
}

/// Calls `system`, which waits, and subtracts the wait from `count` afterwards. If the thread is
/// cancelled or jumps out of the wait, a handler that is registered with the C library does this,
/// because this frame must not hold a value with a destructor.
pub(crate) fn counted(count: &'static AtomicU32, system: impl FnOnce() -> c_int) -> c_int {
    let mut handler = Cleanup {
        routine: None,
        argument: ptr::null_mut(),
        cancel_type: 0,
        before: ptr::null_mut(),
    };
    let has_handlers = next::has_cleanup();
    if has_handlers {
        let count = ptr::from_ref(count).cast_mut().cast();
        // SAFETY: `handler` has the layout of the C library's record and stays in this frame,
        // unused, until it is popped below: `system`, a function of the C library, does not panic.
        // If the thread is cancelled or jumps out of the frame, the C library takes it out and
        // calls `leave` with the count, which is static, as `leave` requires.
        unsafe {
            next::cleanup_push(Out::new(&raw mut handler), Argument::new(leave), Out::new(count));
        };
    }
    let found = system();
    if has_handlers {
        // SAFETY: `handler` is the record that was pushed above. `system`, a function of the C
        // library, and signal handlers during it pop all that they push (pthread_cleanup_push(3)).
        // So it is the last record of this thread, as the function requires.
        next::cleanup_pop(unsafe { Out::new(&raw mut handler) }, 0);
    }
    end(count);
    found
}

/// Removes this library's own event, which wakes a wait, if it is among the events. The later
/// events move up.
pub(crate) fn take_marker<'a>(events: Out<'a, epoll_event>, found: Argument<'a, u32>) -> bool {
    let marker = COUNTS.load(Ordering::Acquire).addr() as u64;
    // Before `find` there is no marker, and 0 may be the data of an event of the program.
    let is_marker = |event: &epoll_event| marker != 0 && event.u64 == marker;
    let Some(at) = events.as_in().elements(found).iter().position(is_marker) else { return false };
    for at in at as u32..found.get() - 1 {
        let (to, from) = (events.element(at, found), events.element(at + 1, found));
        // SAFETY: `at + 1` is less than `found`, so both are elements that the system has filled
        // (`Argument`), read and written at any alignment. The program does not use them during the
        // call, as `Argument` requires, and no reference to them exists any more: the iterator over
        // the elements above has ended.
        unsafe { to.get().write_unaligned(from.get().read_unaligned()) };
    }
    true
}

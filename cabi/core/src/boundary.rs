//! Guards for exported functions. The body of every exported function runs in one of these guards,
//! which stop panics and map errors to C's conventions.
//!
//! The two libraries report failures in three ways: with the error number as the result, with -1
//! and `errno`, or with NULL and `errno`.

use crate::errno::Errno;
use crate::log;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use uiw_verbs::ProgressHooks;

/// Result of the body of an exported function.
pub type Result<T> = std::result::Result<T, Errno>;

#[inline]
fn guarded<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let _uncancelled = CancelGuard::new();
    caught(body)
}

/// Fast version of the guard, for functions that are called with every message. Disabling
/// cancellation takes two calls of the C library, which would cost more than the message, so only
/// the engine's own work is protected from cancellation ([`PROGRESS_HOOKS`]). The rest makes no
/// system call through the C library, unless the log is enabled.
#[inline]
fn guarded_fast<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    if log::is_on() { guarded(body) } else { caught(body) }
}

/// Hooks that disable cancellation of a program's thread while it does the engine's work.
pub(crate) const PROGRESS_HOOKS: ProgressHooks =
    ProgressHooks { enter: uncancelled, leave: as_before };

#[inline]
fn uncancelled() -> i32 {
    let mut before = 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, Some(&mut before));
    before
}

#[inline]
fn as_before(before: i32) {
    pthread_setcancelstate(before, None);
}

/// Guard that disables cancellation of this thread. Otherwise, if `pthread_cancel` took effect in
/// one of the engine's system calls, the thread would unwind from inside the C library through
/// functions that hold locks, and Rust would abort the process. A cancellation that is requested
/// meanwhile takes effect at the next wait.
struct CancelGuard(c_int);

impl CancelGuard {
    #[inline]
    fn new() -> Self {
        Self(uncancelled())
    }
}

impl Drop for CancelGuard {
    #[inline]
    fn drop(&mut self) {
        as_before(self.0);
    }
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

// A thread may always change its own state.
unsafe extern "C" {
    safe fn pthread_setcancelstate(state: c_int, before: Option<&mut c_int>) -> c_int;
}

fn caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    // State that a panic leaves incomplete is protected by locks that do not poison. The caller
    // gets an error.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        tracing::error!("a panic was stopped before it reached C");
        Err(Errno::IO)
    })
}

/// Runs the body of a function that returns 0 or an error number.
pub fn code(body: impl FnOnce() -> Result<()>) -> c_int {
    code_of(guarded(body))
}

/// Like [`code`], for functions that are called with every message.
pub fn code_fast(body: impl FnOnce() -> Result<()>) -> c_int {
    code_of(guarded_fast(body))
}

#[inline]
fn code_of(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            errno.0
        }
    }
}

/// Runs the body of a function that returns 0, or -1 with `errno`.
pub fn minus_one(body: impl FnOnce() -> Result<()>) -> c_int {
    number(|| body().map(|()| 0))
}

/// Runs the body of a function that returns a number or a count of bytes, or -1 with `errno`.
pub fn number<T: From<i8>>(body: impl FnOnce() -> Result<T>) -> T {
    guarded(body).unwrap_or_else(|errno| {
        errno.set();
        (-1).into()
    })
}

/// Runs the body of a function that returns an object, or NULL with `errno`.
pub fn pointer<T>(body: impl FnOnce() -> Result<*mut T>) -> *mut T {
    guarded(body).unwrap_or_else(|errno| {
        errno.set();
        ptr::null_mut()
    })
}

/// Like [`value`], for functions that are called with every message.
pub fn value_fast<T>(fallback: T, body: impl FnOnce() -> Result<T>) -> T {
    guarded_fast(body).unwrap_or(fallback)
}

/// Runs the body of a function that returns `fallback` if the body fails. `errno` stays unchanged.
pub fn value<T>(fallback: T, body: impl FnOnce() -> Result<T>) -> T {
    guarded(body).unwrap_or(fallback)
}

/// Takes one token of an event descriptor. Sleeps until there is one, unless the descriptor is
/// non-blocking. Returns false, with `errno`, if that failed.
///
/// The function behaves like `read` in C: signals interrupt or restart it as the program has
/// requested, and it is a cancellation point. A thread that is cancelled here (with
/// `pthread_cancel`, as rping does) unwinds from inside the C library through this function and its
/// callers, so none of them may hold a value with a destructor.
///
/// # Safety
/// Each function on the stack between this one and C may unwind, because it is a Rust function or
/// `extern "C-unwind"`, and holds no value with a destructor during this call.
#[inline]
pub unsafe fn read_token(fd: c_int) -> bool {
    unsafe extern "C-unwind" {
        fn read(fd: c_int, buffer: *mut c_void, len: usize) -> isize;
    }
    let mut token = [0u8; 8];
    // SAFETY: `read` writes at most eight bytes to the local buffer, which has eight, and an
    // invalid descriptor gives an error. A cancelled thread unwinds through this function, which
    // may unwind and holds only plain values, and through its callers, which hold no value with a
    // destructor and may unwind, as the caller ensures.
    unsafe { read(fd, (&raw mut token).cast(), token.len()) == 8 }
}

/// Outcome of an attempt to take an event.
pub enum Attempt<T> {
    /// An event was taken.
    Taken(T),
    /// There is no event. The thread has to sleep at this descriptor.
    Sleep(c_int),
}

/// Calls `attempt` until it takes an event, and sleeps between the attempts. The argument of
/// `attempt` is true if a token was taken. Returns `None`, with `errno`, if an attempt or the wait
/// fails.
///
/// # Safety
/// The requirements are those of [`read_token`], which is called from here.
#[inline]
pub unsafe fn take_event<T>(attempt: impl Fn(bool) -> Result<Attempt<T>> + Copy) -> Option<T> {
    let mut has_token = false;
    loop {
        match guarded(|| attempt(has_token)) {
            Ok(Attempt::Taken(event)) => return Some(event),
            // SAFETY: this frame may unwind and holds only plain values here: `attempt` is `Copy`,
            // so it has no destructor, and no event was taken. The callers ensure the same for
            // every frame between this one and C.
            Ok(Attempt::Sleep(fd)) => has_token = unsafe { read_token(fd) },
            Err(errno) => {
                errno.set();
                return None;
            }
        }
        if !has_token {
            return None;
        }
    }
}

/// Returns whether the program made `fd` non-blocking.
#[inline]
pub fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: F_GETFL takes no further argument and accesses no memory. An invalid descriptor gives
    // an error.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_become_errors() {
        assert_eq!(code(|| panic!("on purpose")), libc::EIO);
        assert_eq!(minus_one(|| panic!("on purpose")), -1);
        assert_eq!(Errno::last(), Errno::IO);
        assert!(pointer::<u8>(|| panic!("on purpose")).is_null());
        assert_eq!(value(7, || panic!("on purpose")), 7);
    }

    #[test]
    fn errors_follow_function_convention() {
        assert_eq!(code(|| Err(Errno::BUSY)), libc::EBUSY);
        assert_eq!(minus_one(|| Err(Errno::INVAL)), -1);
        assert_eq!(Errno::last(), Errno::INVAL);
        assert_eq!(number(|| Ok(5)), 5);
    }
}

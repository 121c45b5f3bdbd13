//! Signals during a wait that is more than one system call.
//!
//! A program may rely on a signal to end its wait, as it ends a `read`: with EINTR, unless its handler restarts calls. A signal that came
//! while the thread drives the engine would be handled there, unnoticed, and the `read` behind it would sleep without end. So signals are
//! blocked meanwhile, and the signals that are pending afterwards decide.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

/// Raised by the thread's own instructions: these are not blocked.
const OWN_FAULTS: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// Signals have numbers from 1 to this one.
const LAST: c_int = 64;

/// While it lives the calling thread handles no signals.
pub(crate) struct Held {
    before: libc::sigset_t,
}

impl Held {
    pub(crate) fn new() -> Self {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: sets that can be written, filled before they are read; a thread may always change its own mask. An all-zero set is
        // the empty one, should the call fail.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for signal in OWN_FAULTS {
                libc::sigdelset(all.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self { before: before.assume_init() }
        }
    }

    /// Whether a signal waits that would end a `read` with EINTR.
    pub(crate) fn interrupts(&self) -> bool {
        let mut pending = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: a set that can be written.
        if unsafe { libc::sigpending(pending.as_mut_ptr()) } != 0 {
            return false;
        }
        // SAFETY: filled by the call.
        let pending = unsafe { pending.assume_init() };
        (1..=LAST).any(|signal| {
            // SAFETY: two sets, and a number that is a signal's or answered with an error.
            let comes = unsafe {
                libc::sigismember(&raw const pending, signal) == 1
                    && libc::sigismember(&raw const self.before, signal) == 0
            };
            comes && ends_calls(signal)
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: the set that was there before. Handlers of what waits run inside this call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

/// Whether the program has a handler for `signal` that does not restart calls.
fn ends_calls(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only, into a structure that can be written.
    if unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: filled by the call.
    let action = unsafe { action.assume_init() };
    !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) && action.sa_flags & libc::SA_RESTART == 0
}

//! Signals during a wait that is more than one system call.
//!
//! A program may rely on a signal to end its wait, as it ends a `read`: with EINTR, unless its
//! handler restarts calls. A signal that came while the thread drives the engine would be handled
//! there, unnoticed, and the `read` behind it would sleep without end. So signals are blocked
//! meanwhile, and the signals that are pending afterwards decide.

use crate::abi::zeroed;
use std::ffi::c_int;
use std::ptr;

/// Raised by the thread's own instructions: these are not blocked.
const OWN_FAULTS: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// Signals have numbers from 1 to this one.
const LAST: c_int = 64;

/// A set of no signals.
pub fn no_signals() -> libc::sigset_t {
    zeroed()
}

/// Every signal but these.
fn all_but(signals: &[c_int]) -> libc::sigset_t {
    let mut all = no_signals();
    // SAFETY: there is room for a set.
    unsafe { libc::sigfillset(&raw mut all) };
    without(all, signals)
}

/// The set without these.
pub fn without(set: libc::sigset_t, signals: &[c_int]) -> libc::sigset_t {
    let mut set = set;
    for signal in signals {
        // SAFETY: the set is a local one; a number that is no signal's is answered with an error.
        unsafe { libc::sigdelset(&raw mut set, *signal) };
    }
    set
}

fn contains(set: &libc::sigset_t, signal: c_int) -> bool {
    // SAFETY: the set is borrowed; a number that is no signal's is answered with an error.
    unsafe { libc::sigismember(set, signal) == 1 }
}

/// Changes the calling thread's mask, and returns what it was. Handlers of signals that waited may
/// run inside.
pub fn change_mask(how: c_int, set: &libc::sigset_t) -> libc::sigset_t {
    let mut before = no_signals();
    // SAFETY: the sets are there; a thread may always change its own mask.
    unsafe { libc::pthread_sigmask(how, set, &raw mut before) };
    before
}

/// Guard during which the calling thread handles no signals.
pub struct SignalGuard {
    before: libc::sigset_t,
}

/// Blocks the signals of the calling thread.
#[must_use]
pub fn block_all() -> SignalGuard {
    SignalGuard { before: change_mask(libc::SIG_SETMASK, &all_but(&OWN_FAULTS)) }
}

impl SignalGuard {
    /// Returns whether a signal waits that would end a `read` with EINTR.
    pub fn interrupts(&self) -> bool {
        let mut pending = no_signals();
        // SAFETY: there is room for a set.
        unsafe { libc::sigpending(&raw mut pending) };
        (1..=LAST)
            .any(|signal| contains(&pending, signal) && !contains(&self.before, signal) && ends_calls(signal))
    }
}

impl Drop for SignalGuard {
    fn drop(&mut self) {
        change_mask(libc::SIG_SETMASK, &self.before);
    }
}

/// Returns whether the program has a handler for `signal` that does not restart calls.
fn ends_calls(signal: c_int) -> bool {
    let mut action: libc::sigaction = zeroed();
    // SAFETY: there is room for the action, and none is set.
    let known = unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) } == 0;
    known
        && !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
        && action.sa_flags & libc::SA_RESTART == 0
}

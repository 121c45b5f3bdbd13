//! Signals during a wait that consists of more than one system call.
//!
//! A program may rely on a signal to end its wait in the way it ends a `read`: with EINTR, unless
//! its handler restarts calls. A signal that arrives while the thread drives the engine would be
//! handled there, unnoticed, and the following `read` would sleep forever. Signals are therefore
//! blocked while the thread drives the engine, and the signals that are pending afterwards decide
//! whether the wait ends.

use crate::abi::zeroed;
use std::ffi::c_int;
use std::ptr;

/// Signals that the thread's own instructions raise. These are not blocked, even if the thread has
/// blocked them, because the kernel ends the process if a fault raises a blocked signal. SIGABRT is
/// none of them: abort(3) unblocks it.
const OWN_FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Highest signal number. The lowest one is 1.
const LAST: c_int = 64;
/// Size of the kernel's signal set in bytes. It is the first part of C's larger one.
const KERNEL_SET_SIZE: usize = LAST as usize / 8;

/// Returns the empty set of signals.
pub fn no_signals() -> libc::sigset_t {
    zeroed()
}

/// Returns the set of all signals except `signals`.
fn all_but(signals: &[c_int]) -> libc::sigset_t {
    let mut all = no_signals();
    // SAFETY: the call writes a set to `all`, a local variable of this type.
    unsafe { libc::sigfillset(&raw mut all) };
    without(all, signals)
}

/// Returns `set` without `signals`.
pub fn without(mut set: libc::sigset_t, signals: &[c_int]) -> libc::sigset_t {
    for signal in signals {
        // SAFETY: the call changes the local variable `set`, which is initialized. An invalid
        // signal number gives an error.
        unsafe { libc::sigdelset(&raw mut set, *signal) };
    }
    set
}

fn contains(set: &libc::sigset_t, signal: c_int) -> bool {
    // SAFETY: the call reads `set`, which is borrowed and initialized. An invalid signal number
    // gives an error.
    unsafe { libc::sigismember(set, signal) == 1 }
}

/// Changes the calling thread's signal mask, and returns the previous one. Handlers of pending
/// signals may run inside this call.
pub fn change_mask(how: c_int, set: &libc::sigset_t) -> libc::sigset_t {
    let mut before = no_signals();
    // The system call, because `pthread_sigmask` of libibverbs never blocks the signals of faults.
    // SAFETY: the call reads the kernel's part of `set`, which is borrowed, and writes that part of
    // the local variable `before`, which is initialized. It changes only the mask of this thread. A
    // handler of a pending signal may run here, as it may at any other time.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, set, &raw mut before, KERNEL_SET_SIZE) };
    before
}

/// Guard that blocks the signals of the calling thread.
pub struct SignalGuard {
    before: libc::sigset_t,
}

/// Blocks the signals of the calling thread, except for `OWN_FAULTS`, until the guard is dropped.
#[must_use]
pub fn block_all() -> SignalGuard {
    SignalGuard { before: change_mask(libc::SIG_SETMASK, &all_but(&OWN_FAULTS)) }
}

/// Like [`block_all`], but also blocks `OWN_FAULTS`, for code that cannot cause a fault.
#[must_use]
pub fn block_even_faults() -> SignalGuard {
    SignalGuard { before: change_mask(libc::SIG_SETMASK, &all_but(&[])) }
}

impl SignalGuard {
    /// Returns whether a signal is pending that would end a `read` with EINTR: its handler does not
    /// restart calls.
    pub fn interrupts_read(&self) -> bool {
        self.has_pending(|flags| flags & libc::SA_RESTART == 0)
    }

    /// Returns whether a signal is pending that would end a `poll`, or a call with a time-out, with
    /// EINTR: it has a handler.
    pub fn interrupts_poll(&self) -> bool {
        self.has_pending(|_| true)
    }

    /// Returns whether a signal is pending whose handler has flags that `ends` accepts.
    fn has_pending(&self, ends: fn(c_int) -> bool) -> bool {
        let mut pending = no_signals();
        // SAFETY: the call writes a set to `pending`, a local variable of this type.
        unsafe { libc::sigpending(&raw mut pending) };
        (1..=LAST).any(|signal| {
            contains(&pending, signal)
                && !contains(&self.before, signal)
                && handler_flags(signal).is_some_and(ends)
        })
    }
}

impl Drop for SignalGuard {
    fn drop(&mut self) {
        change_mask(libc::SIG_SETMASK, &self.before);
    }
}

/// Returns the flags of the program's handler for `signal`, if it has one.
fn handler_flags(signal: c_int) -> Option<c_int> {
    let mut action: libc::sigaction = zeroed();
    // SAFETY: the call writes an action to `action`, a local variable of this type. The pointer to
    // a new action is NULL, so no handler is set. An invalid signal number gives an error.
    let known = unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) } == 0;
    let is_handled = known && !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    is_handled.then_some(action.sa_flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether the calling thread blocks the signal.
    fn is_blocked(signal: c_int) -> bool {
        contains(&change_mask(libc::SIG_BLOCK, &no_signals()), signal)
    }

    #[test]
    fn restarting_handler_interrupts_poll_only() {
        extern "C" fn handle(_: c_int) {}
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = handle as extern "C" fn(c_int) as usize;
        for (flags, interrupts_read) in [(libc::SA_RESTART, false), (0, true)] {
            action.sa_flags = flags;
            let held = block_all();
            assert!(!held.interrupts_poll());
            // SAFETY: the first call reads `action`, a local variable, whose handler does nothing;
            // no other test uses the signal. The others take integers.
            unsafe {
                assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, ptr::null_mut()), 0);
                assert_eq!(libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2), 0);
            }
            assert!(held.interrupts_poll());
            assert_eq!(held.interrupts_read(), interrupts_read);
        }
    }

    #[test]
    fn abort_blocked_faults_unblocked() {
        let faults_blocked = block_even_faults();
        assert!(is_blocked(libc::SIGSEGV) && is_blocked(libc::SIGABRT));
        let faults_unblocked = block_all();
        assert!(!is_blocked(libc::SIGSEGV) && is_blocked(libc::SIGABRT));
        drop(faults_unblocked);
        assert!(is_blocked(libc::SIGSEGV));
        drop(faults_blocked);
        assert!(!is_blocked(libc::SIGSEGV) && !is_blocked(libc::SIGABRT));
    }
}

//! Dispositions of signals that this process has inherited, and origins of signals.

/// Signal number and origin of a signal.
pub use libc::siginfo_t as SignalInfo;

/// Returns whether the kernel has sent the signal, for example because of a key of the terminal,
/// and not a process.
#[must_use]
pub fn is_of_kernel(info: &SignalInfo) -> bool {
    info.si_code == libc::SI_KERNEL
}

/// Returns whether the signal is ignored, as nohup(1) and shells arrange it for the programs that
/// they start.
#[must_use]
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: a `sigaction` of zeros is valid.
    let mut found: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the disposition is only read, and `found` is valid for writes.
    let done = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut found) };
    done == 0 && found.sa_sigaction == libc::SIG_IGN
}

/// Restores the default disposition of SIGCHLD. If it is ignored, the exit codes of children are
/// lost.
pub fn keep_children() {
    // SAFETY: the default disposition runs no code of this process.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

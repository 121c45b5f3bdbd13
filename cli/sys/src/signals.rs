//! Dispositions of signals that this process has inherited.

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

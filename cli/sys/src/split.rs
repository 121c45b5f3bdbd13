//! A second process that goes on from where this one is: `uiw run` has one that outlives it.

use std::io;
use std::num::NonZeroI32;

/// Identifies one of the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessSide {
    /// The original process, with the number of its new child.
    Parent(NonZeroI32),
    /// The new process.
    Child,
}

/// Makes a copy of this process, which must have one thread: what another one does is not copied,
/// and the locks that it holds stay taken.
///
/// # Errors
/// `ResourceBusy` where it has more; the system's.
pub fn split() -> io::Result<ProcessSide> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, "the process has more than one thread"));
    }
    // SAFETY: the only thread goes on in both processes, so nothing of the copy is left in the
    // middle of a change.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        child => Ok(NonZeroI32::new(child).map_or(ProcessSide::Child, ProcessSide::Parent)),
    }
}

/// Result of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// By itself, with this code.
    Exit(i32),
    /// By this signal.
    Signal(i32),
}

/// Does `what` in a copy of this process, which must have one thread. The code that it gives, from
/// 0 to 255, is that of the copy, which ends with it.
///
/// # Errors
/// The errors are those of [`split`].
pub fn in_child(what: impl FnOnce() -> i32) -> io::Result<Outcome> {
    match split()? {
        ProcessSide::Parent(child) => {
            let mut status = 0;
            loop {
                // SAFETY: there is room for the status.
                if unsafe { libc::waitpid(child.get(), &raw mut status, 0) } != -1 {
                    break;
                }
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            Ok(match libc::WIFSIGNALED(status) {
                true => Outcome::Signal(libc::WTERMSIG(status)),
                false => Outcome::Exit(libc::WEXITSTATUS(status)),
            })
        }
        ProcessSide::Child => {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the limit is there to be read. The copy has one thread, and ends here without
            // handlers of its parent.
            unsafe {
                libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
                libc::_exit(what());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process of one thread, which tests have not: by a fork of this thread alone.
    fn alone(what: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the copy makes system calls and ends; the allocator's locks are the C library's,
        // which a fork holds.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(what());
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
        }
    }

    #[test]
    fn exit_status_of_copy_known() {
        assert_eq!(alone(|| i32::from(in_child(|| 7).ok() != Some(Outcome::Exit(7)))), 0);
        // SAFETY: a signal to the copy.
        let raise = || unsafe { libc::raise(libc::SIGSYS) };
        let killed = || in_child(raise).ok();
        assert_eq!(alone(|| i32::from(killed() != Some(Outcome::Signal(libc::SIGSYS)))), 0);
    }
}

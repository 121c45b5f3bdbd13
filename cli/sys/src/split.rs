//! Creation of a second process that continues where this one is. `uiw run` waits for its program
//! in such a process.

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

/// Creates a copy of this process, which must have one thread: other threads are not copied, and
/// the locks that they hold would stay locked in the copy.
///
/// # Errors
/// Returns `ResourceBusy` if the process has several threads, or OS errors.
pub fn split() -> io::Result<ProcessSide> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "the process has more than one thread",
        ));
    }
    // SAFETY: the process has only one thread, which continues in both processes, so no data of the
    // copy is left in the middle of a change.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        child => Ok(NonZeroI32::new(child).map_or(ProcessSide::Child, ProcessSide::Parent)),
    }
}

/// Way in which a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The process ended by itself, with this exit code.
    Exit(i32),
    /// This signal ended the process.
    Signal(i32),
}

/// Calls `what` in a copy of this process, which must have one thread. The copy ends with the
/// returned code, which must be from 0 to 255.
///
/// # Errors
/// Returns the errors of [`split`].
pub fn in_child(what: impl FnOnce() -> i32) -> io::Result<Outcome> {
    match split()? {
        ProcessSide::Parent(child) => {
            let mut status = 0;
            loop {
                // SAFETY: `status` is valid for writes.
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
            // SAFETY: `none` is valid for reads. The copy has one thread, and ends here without
            // running the exit handlers of its parent.
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
            if libc::WIFSIGNALED(status) {
                128 + libc::WTERMSIG(status)
            } else {
                libc::WEXITSTATUS(status)
            }
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

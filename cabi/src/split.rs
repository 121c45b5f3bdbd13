//! A second process that goes on from where this one is: `uiw run` has one that outlives it, and one that serves files.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::num::NonZeroI32;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr;

/// Which of the two processes this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that was there; the number is that of its new child.
    Parent(NonZeroI32),
    /// The new one.
    Child,
}

/// Makes a copy of this process, which must have one thread: what another one does is not copied, and the locks that it holds stay taken.
///
/// # Errors
/// `ResourceBusy` where it has more; the system's.
pub fn split() -> io::Result<Side> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, "the process has more than one thread"));
    }
    // SAFETY: the only thread goes on in both processes, so nothing of the copy is left in the middle of a change.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        child => Ok(NonZeroI32::new(child).map_or(Side::Child, Side::Parent)),
    }
}

/// How a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// By itself, with this code.
    Exit(i32),
    /// By this signal.
    Signal(i32),
}

/// Does `what` in a copy of this process, which must have one thread. The code that it gives, from 0 to 255, is that of the copy, which ends with it.
///
/// # Errors
/// As [`split`].
pub fn in_child(what: impl FnOnce() -> i32) -> io::Result<Outcome> {
    match split()? {
        Side::Parent(child) => {
            let mut status = 0;
            loop {
                // SAFETY: a child of this process, and room for its status.
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
        Side::Child => {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: a limit of this process, which ends without handlers of its parent.
            unsafe {
                libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
                libc::_exit(what());
            }
        }
    }
}

/// One end of a pair of connected sockets, and in which process.
#[derive(Debug)]
pub enum End {
    /// In the one that was there.
    Here(OwnedFd),
    /// In the new one.
    There(OwnedFd),
}

/// As [`split`], for a process that is no child of this one, and has none of its descriptors: it serves this process, or the program that it
/// becomes, and ends by itself. The caller has no descriptors that it closes in the new one.
///
/// # Errors
/// As [`split`].
pub fn split_off() -> io::Result<End> {
    let (here, there) = UnixStream::pair()?;
    match split()? {
        Side::Parent(child) => {
            // SAFETY: a child of this process, whose exit code is not asked for.
            unsafe { libc::waitpid(child.get(), ptr::null_mut(), 0) };
            Ok(End::Here(here.into()))
        }
        Side::Child => {
            if !matches!(split(), Ok(Side::Child)) {
                // SAFETY: ends the process, which has nothing to give back.
                unsafe { libc::_exit(0) };
            }
            std::mem::forget(here);
            leave(&there)?;
            Ok(End::There(there.into()))
        }
    }
}

/// Leaves the terminal and the descriptors of the parent to it, but for `keep`.
fn leave(keep: &UnixStream) -> io::Result<()> {
    let null = ManuallyDrop::new(File::options().read(true).write(true).open("/dev/null")?);
    let keep = keep.as_raw_fd().cast_unsigned();
    // SAFETY: standard descriptors become those of the null device. Every other one is closed, and has no owner in this process that is
    // dropped.
    unsafe {
        libc::setsid();
        for standard in 0..3 {
            libc::dup2(null.as_raw_fd(), standard);
        }
        if keep > 3 {
            close_range(3, keep - 1);
        }
        close_range(keep + 1, libc::c_uint::MAX);
    }
    Ok(())
}

/// Closes the descriptors from `first` to `last`.
///
/// # Safety
/// None of them has an owner that uses it.
unsafe fn close_range(first: libc::c_uint, last: libc::c_uint) {
    // SAFETY: the caller's promise.
    if unsafe { libc::close_range(first, last, 0) } == 0 {
        return;
    }
    // Before Linux 5.9, and where a filter refuses it. What is listed is collected first, as the list has a descriptor too.
    let listed: Vec<libc::c_uint> = match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => {
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
        }
        Err(_) => (first..=last.min(MOST_DESCRIPTORS)).collect(),
    };
    for number in listed.into_iter().filter(|number| (first..=last).contains(number)) {
        // SAFETY: the caller's promise; a number without a descriptor is an error.
        unsafe { libc::close(number.cast_signed()) };
    }
}

/// So many numbers are looked at where they are not listed.
const MOST_DESCRIPTORS: libc::c_uint = 65_536;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    /// A process of one thread, which tests have not: by a fork of this thread alone.
    fn alone(what: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the copy makes system calls and ends; the allocator's locks are the C library's, which a fork holds.
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
    fn what_a_copy_says_is_known() {
        assert_eq!(alone(|| i32::from(in_child(|| 7).ok() != Some(Outcome::Exit(7)))), 0);
        // SAFETY: a signal to the copy.
        let raise = || unsafe { libc::raise(libc::SIGSYS) };
        let killed = || in_child(raise).ok();
        assert_eq!(alone(|| i32::from(killed() != Some(Outcome::Signal(libc::SIGSYS)))), 0);
    }

    #[test]
    fn descriptors_are_closed_with_and_without_the_call() {
        let file = File::open("/dev/null").unwrap();
        let number = file.as_raw_fd().cast_unsigned();
        // SAFETY: in the copy, which uses none.
        let is_open =
            |number: libc::c_uint| unsafe { libc::fcntl(number.cast_signed(), libc::F_GETFD) } != -1;
        let close = |refused: bool| {
            alone(|| {
                // SAFETY: as above.
                unsafe {
                    let other = libc::fcntl(file.as_fd().as_raw_fd(), libc::F_DUPFD, 500).cast_unsigned();
                    if refused {
                        crate::calls::tests::refuse(libc::SYS_close_range, libc::ENOSYS);
                    }
                    close_range(other, libc::c_uint::MAX);
                    i32::from(is_open(other) || !is_open(number))
                }
            })
        };
        assert_eq!([close(false), close(true)], [0, 0]);
    }
}

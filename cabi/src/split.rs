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
            libc::close_range(3, keep - 1, 0);
        }
        libc::close_range(keep + 1, libc::c_uint::MAX, 0);
    }
    Ok(())
}

//! A second process that goes on from where this one is: `uiw run` has one that outlives it, and one that serves files.

use std::io;
use std::num::NonZeroI32;

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

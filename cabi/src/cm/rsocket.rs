//! rsockets: the names are there, and say that the rest is not.

use crate::errno::Errno;

/// -1 and ENOSYS, whatever the arguments: in C's calling convention a function may leave them unread.
pub extern "C" fn refused() -> isize {
    Errno::NOSYS.set();
    -1
}

/// As [`refused`], for `riomap`, which returns an offset.
pub extern "C" fn refused_offset() -> i64 {
    Errno::NOSYS.set();
    -1
}

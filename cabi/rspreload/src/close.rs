//! Closing and duplicating descriptors.

use crate::argument::{In, Out};
use crate::bits::is_set;
use crate::{errno, fail, next, sockets};
use libc::FILE;
use std::ffi::{c_char, c_int, c_uint};

#[unsafe(no_mangle)]
extern "C-unwind" fn close(fd: c_int) -> c_int {
    if is_set(fd) {
        sockets::uiw_sockets_closing(fd);
    }
    next::close(fd)
}

/// Reports that the C library is about to close the number of `stream`, which it does without
/// calling the `close` of this library.
fn closing(stream: Out<'_, FILE>) {
    let before = errno();
    // SAFETY: fclose(3) and freopen(3) require a stream that is open until the call closes it, and
    // all callers are these functions, which call this first. fileno(3) locks the stream itself
    // where it has to, and returns -1 for a stream without a number.
    let fd = unsafe { libc::fileno(stream.get()) };
    if is_set(fd) {
        sockets::uiw_sockets_closing(fd);
    }
    fail(before);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn fclose(stream: Out<'_, FILE>) -> c_int {
    closing(stream);
    next::fclose(stream)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn freopen<'a>(
    path: In<'a, c_char>,
    mode: In<'a, c_char>,
    stream: Out<'a, FILE>,
) -> *mut FILE {
    closing(stream);
    next::freopen(path, mode, stream)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn freopen64<'a>(
    path: In<'a, c_char>,
    mode: In<'a, c_char>,
    stream: Out<'a, FILE>,
) -> *mut FILE {
    closing(stream);
    next::freopen64(path, mode, stream)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // With CLOSE_RANGE_CLOEXEC, no descriptor is closed. CLOSE_RANGE_UNSHARE is for threads with a
    // descriptor table of their own, which rsockets do not support.
    const CLOSE_RANGE_CLOEXEC: c_int = 4;
    if flags & CLOSE_RANGE_CLOEXEC == 0 && first <= last {
        sockets::uiw_sockets_close_range(first, last);
    }
    next::close_range(first, last, flags)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn closefrom(first: c_int) {
    sockets::uiw_sockets_close_range(first.max(0).cast_unsigned(), c_uint::MAX);
    next::closefrom(first);
}

/// Records that `new` is a duplicate of `old`, and returns `new`.
pub(crate) fn duplicated(old: c_int, new: c_int) -> c_int {
    if new >= 0 && (is_set(old) || is_set(new)) {
        sockets::uiw_sockets_duplicated(old, new);
    }
    new
}

#[unsafe(no_mangle)]
extern "C-unwind" fn dup(fd: c_int) -> c_int {
    duplicated(fd, next::dup(fd))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    duplicated(old, next::dup2(old, new))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    duplicated(old, next::dup3(old, new, flags))
}

//! Functions of the C library that programs find here first: those that change mappings, and those that change or block the
//! handlers of faults.
//! They have no version, as a loader takes such a name for every version of it.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use uiw_cabi::{c_library, fault_handler, mapping};

/// The C library's function of this name; 0 where there is none.
fn next(found: &AtomicUsize, name: &std::ffi::CStr) -> usize {
    match found.load(Ordering::Relaxed) {
        0 => {
            let address = c_library::function(name);
            found.store(address, Ordering::Relaxed);
            address
        }
        address => address,
    }
}

/// The next function of a name and its type. The C library has them all.
macro_rules! next {
    ($name:literal as $type:ty) => {{
        static FOUND: AtomicUsize = AtomicUsize::new(0);
        // SAFETY: the C library's function of this name has this type; where there is none (0), `None` is that.
        unsafe { std::mem::transmute::<usize, Option<$type>>(next(&FOUND, $name)) }
    }};
}

fn absent() -> c_int {
    // SAFETY: `errno` of this thread.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

/// # Safety
/// As for the C library's, here and below.
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(addr: *mut c_void, len: usize) -> c_int {
    mapping::discard(addr.addr(), len);
    let next = next!(c"munmap" as unsafe extern "C" fn(*mut c_void, usize) -> c_int);
    // SAFETY: the caller's promise.
    next.map_or_else(absent, |next| unsafe { next(addr, len) })
}

type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, libc::off_t) -> *mut c_void;

fn about_to_map(addr: *mut c_void, len: usize, flags: c_int) {
    if flags & libc::MAP_FIXED != 0 {
        mapping::discard(addr.addr(), len);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    about_to_map(addr, len, flags);
    let next = next!(c"mmap" as Mmap);
    let failed = || absent() as isize as *mut c_void;
    // SAFETY: the caller's promise.
    next.map_or_else(failed, |next| unsafe { next(addr, len, protection, flags, fd, offset) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: the caller's promise; on these processors offsets have 64 bits either way.
    unsafe { mmap(addr, len, protection, flags, fd, offset) }
}

/// The fifth argument is there with some flags only; in the calling conventions of these processors it is in a register either way.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    type Mremap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;
    let Some(next) = next!(c"mremap" as Mremap) else { return absent() as isize as *mut c_void };
    if new_len < old_len {
        mapping::discard(old.addr() + new_len, old_len - new_len);
    }
    let is_chosen = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
    if flags & libc::MREMAP_MAYMOVE != 0 {
        if !is_chosen {
            // What can stay where it is stays registered.
            // SAFETY: the caller's promise, with less freedom.
            let stayed = unsafe { next(old, old_len, new_len, 0, ptr::null_mut()) };
            if stayed != libc::MAP_FAILED {
                return stayed;
            }
        }
        mapping::discard(old.addr(), old_len);
        if flags & libc::MREMAP_FIXED != 0 {
            mapping::discard(new.addr(), new_len);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { next(old, old_len, new_len, flags, new) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    if matches!(
        advice,
        libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE | libc::MADV_DONTNEED_LOCKED
    ) {
        mapping::discard(addr.addr(), len);
    }
    let next = next!(c"madvise" as unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int);
    // SAFETY: the caller's promise.
    next.map_or_else(absent, |next| unsafe { next(addr, len, advice) })
}

fn about_to_protect(addr: *mut c_void, len: usize, protection: c_int, key: c_int) {
    const ALL: c_int = libc::PROT_READ | libc::PROT_WRITE;
    // Every thread has other rights by the keys; 0 and -1 are none.
    if protection & ALL != ALL || key > 0 {
        mapping::protect(addr.addr(), len);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(addr: *mut c_void, len: usize, protection: c_int) -> c_int {
    about_to_protect(addr, len, protection, 0);
    let next = next!(c"mprotect" as unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int);
    // SAFETY: the caller's promise.
    next.map_or_else(absent, |next| unsafe { next(addr, len, protection) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pkey_mprotect(addr: *mut c_void, len: usize, protection: c_int, key: c_int) -> c_int {
    about_to_protect(addr, len, protection, key);
    let next = next!(c"pkey_mprotect" as unsafe extern "C" fn(*mut c_void, usize, c_int, c_int) -> c_int);
    // SAFETY: the caller's promise.
    next.map_or_else(absent, |next| unsafe { next(addr, len, protection, key) })
}

/// The end of the heap is about to become `end`.
fn about_to_shrink(end: *mut c_void) {
    let now = next!(c"sbrk" as unsafe extern "C" fn(isize) -> *mut c_void);
    // SAFETY: asks for the present end.
    let Some(now) = now.map(|sbrk| unsafe { sbrk(0) }) else { return };
    // The page that the end is in stays.
    let first = end.addr().next_multiple_of(mapping::page_size());
    mapping::discard(first, now.addr().saturating_sub(first));
}

#[unsafe(no_mangle)]
unsafe extern "C" fn brk(end: *mut c_void) -> c_int {
    about_to_shrink(end);
    let next = next!(c"brk" as unsafe extern "C" fn(*mut c_void) -> c_int);
    // SAFETY: the caller's promise.
    next.map_or_else(absent, |next| unsafe { next(end) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sbrk(increment: isize) -> *mut c_void {
    let Some(next) = next!(c"sbrk" as unsafe extern "C" fn(isize) -> *mut c_void) else {
        return absent() as isize as *mut c_void;
    };
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if increment < 0 {
            about_to_shrink(next(0).wrapping_byte_offset(increment));
        }
        next(increment)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { fault_handler::sigaction(signal, new, old) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn signal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: the caller's promise.
    unsafe { fault_handler::signal(number, handler) }
}

type Mask = unsafe extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    let next = next!(c"pthread_sigmask" as Mask);
    // SAFETY: the caller's promise.
    next.map_or(libc::ENOSYS, |next| unsafe { fault_handler::mask(next, how, set, old) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigprocmask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    let next = next!(c"sigprocmask" as Mask);
    // SAFETY: the caller's promise.
    next.map_or_else(absent, |next| unsafe { fault_handler::mask(next, how, set, old) })
}

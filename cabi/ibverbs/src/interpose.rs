//! Functions that replace those of the C library in the program: the ones that change mappings, and
//! the ones that change or block the handlers of faults. They have no symbol version, because the
//! loader then uses them for every version that a program requests.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::AtomicUsize;
use uiw_cabi_core::arguments::{InPtr, OutPtr};
use uiw_cabi_core::c_library::{NextFunction, PassedValue};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_verbs::{fault_handler, mapping};

/// Declares functions of the C library by their names and types.
macro_rules! next {
    ($($name:ident = $c:literal ($($type:ty),*) -> $result:ty;)*) => {
        /// Functions of the C library by their names.
        #[expect(non_camel_case_types, reason = "C's names")]
        mod next {
            use super::*;
            $(
                pub(super) struct $name;
                // SAFETY: the name and the type are those of the declaration in the C library's
                // header, except that `mremap` is variadic there, with its last argument in the
                // same register. `PassedValue`s and the pointers of `arguments` carry the
                // guarantees of the manual page; integers need none.
                unsafe impl NextFunction for $name {
                    const NAME: &CStr = $c;
                    type Type = for<'a> extern "C" fn($($type),*) -> $result;

                    fn address_cell() -> &'static AtomicUsize {
                        static FOUND: AtomicUsize = AtomicUsize::new(0);
                        &FOUND
                    }
                }
            )*
        }
    };
}

next! {
    munmap = c"munmap" (Address<'a>, Len<'a>) -> c_int;
    mmap = c"mmap" (Address<'a>, Len<'a>, c_int, Flags<'a>, c_int, libc::off_t) -> *mut c_void;
    mremap = c"mremap" (Address<'a>, Len<'a>, Len<'a>, Flags<'a>, Address<'a>) -> *mut c_void;
    madvise = c"madvise" (Address<'a>, Len<'a>, Flags<'a>) -> c_int;
    mprotect = c"mprotect" (Address<'a>, Len<'a>, Flags<'a>) -> c_int;
    pkey_mprotect = c"pkey_mprotect" (Address<'a>, Len<'a>, Flags<'a>, c_int) -> c_int;
    brk = c"brk" (Address<'a>) -> c_int;
    sbrk = c"sbrk" (PassedValue<'a, isize>) -> *mut c_void;
    signal = c"signal" (c_int, PassedValue<'a, libc::sighandler_t>) -> libc::sighandler_t;
    pthread_sigmask = c"pthread_sigmask" (c_int, InPtr<'a, libc::sigset_t>, OutPtr<'a, libc::sigset_t>) -> c_int;
    sigprocmask = c"sigprocmask" (c_int, InPtr<'a, libc::sigset_t>, OutPtr<'a, libc::sigset_t>) -> c_int;
}

type Address<'a> = PassedValue<'a, *mut c_void>;
type Len<'a> = PassedValue<'a, usize>;
/// Protection, advice or flags of a mapping call.
type Flags<'a> = PassedValue<'a, c_int>;

/// Returns the result for a function that the C library does not have: -1, with ENOSYS.
fn absent() -> c_int {
    Errno::NOSYS.set();
    -1
}

/// Like [`absent`], for functions that return an address.
fn no_address() -> *mut c_void {
    absent();
    libc::MAP_FAILED
}

#[unsafe(no_mangle)]
extern "C" fn munmap<'a>(addr: Address<'a>, len: Len<'a>) -> c_int {
    mapping::discard(addr.get().addr(), len.get());
    next::munmap::get().map_or_else(absent, |next| next(addr, len))
}

#[unsafe(no_mangle)]
extern "C" fn mmap<'a>(
    addr: Address<'a>,
    len: Len<'a>,
    protection: c_int,
    flags: Flags<'a>,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    if flags.get() & libc::MAP_FIXED != 0 {
        mapping::discard(addr.get().addr(), len.get());
    }
    next::mmap::get().map_or_else(no_address, |next| next(addr, len, protection, flags, fd, offset))
}

/// `mmap64`, which is the same as [`mmap`], because offsets have 64 bits on the supported
/// processors.
#[unsafe(no_mangle)]
extern "C" fn mmap64<'a>(
    addr: Address<'a>,
    len: Len<'a>,
    protection: c_int,
    flags: Flags<'a>,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    mmap(addr, len, protection, flags, fd, offset)
}

/// `mremap`. The program passes the fifth argument only with some flags. In the calling conventions
/// of the supported processors, a register holds it in either case.
#[unsafe(no_mangle)]
extern "C" fn mremap<'a>(
    old: Address<'a>,
    old_len: Len<'a>,
    new_len: Len<'a>,
    flags: Flags<'a>,
    new: Address<'a>,
) -> *mut c_void {
    let Some(next) = next::mremap::get() else { return no_address() };
    // The kernel rounds both lengths up to whole pages.
    let whole_pages =
        |len: usize| len.checked_next_multiple_of(mapping::page_size()).unwrap_or(len);
    let (from, len, to) =
        (old.get().addr(), whole_pages(old_len.get()), whole_pages(new_len.get()));
    if to < len {
        mapping::discard(from.saturating_add(to), len - to);
    }
    let is_chosen = flags.get() & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
    if flags.get() & libc::MREMAP_MAYMOVE != 0 {
        if !is_chosen {
            // A mapping that can be resized in place stays registered.
            // SAFETY: the program passes a mapping that mremap(2) may resize or move with the flag
            // MREMAP_MAYMOVE. Without flags the page permits less: the mapping keeps its address,
            // is resized or left as it is, and the fifth argument is not used.
            let (in_place, nowhere) =
                unsafe { (PassedValue::new(0), PassedValue::new(ptr::null_mut())) };
            let stayed = next(old, old_len, new_len, in_place, nowhere);
            if stayed != libc::MAP_FAILED {
                return stayed;
            }
        }
        mapping::discard(from, len);
        if flags.get() & libc::MREMAP_FIXED != 0 {
            mapping::discard(new.get().addr(), to);
        }
    }
    next(old, old_len, new_len, flags, new)
}

#[unsafe(no_mangle)]
extern "C" fn madvise<'a>(addr: Address<'a>, len: Len<'a>, advice: Flags<'a>) -> c_int {
    if matches!(
        advice.get(),
        libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE | libc::MADV_DONTNEED_LOCKED
    ) {
        mapping::discard(addr.get().addr(), len.get());
    }
    next::madvise::get().map_or_else(absent, |next| next(addr, len, advice))
}

fn about_to_protect(addr: Address<'_>, len: Len<'_>, protection: Flags<'_>, key: c_int) {
    const ALL: c_int = libc::PROT_READ | libc::PROT_WRITE;
    // With a protection key, threads have different rights. The values 0 and -1 mean that there is
    // no such key.
    if protection.get() & ALL != ALL || key > 0 {
        mapping::protect(addr.get().addr(), len.get());
    }
}

#[unsafe(no_mangle)]
extern "C" fn mprotect<'a>(addr: Address<'a>, len: Len<'a>, protection: Flags<'a>) -> c_int {
    about_to_protect(addr, len, protection, 0);
    next::mprotect::get().map_or_else(absent, |next| next(addr, len, protection))
}

#[unsafe(no_mangle)]
extern "C" fn pkey_mprotect<'a>(
    addr: Address<'a>,
    len: Len<'a>,
    protection: Flags<'a>,
    key: c_int,
) -> c_int {
    about_to_protect(addr, len, protection, key);
    next::pkey_mprotect::get().map_or_else(absent, |next| next(addr, len, protection, key))
}

/// Returns the end of the heap.
fn end_of_heap() -> *mut c_void {
    // SAFETY: with an increment of 0, sbrk(2) only returns the end of the heap and changes nothing.
    next::sbrk::get().map_or_else(no_address, |sbrk| sbrk(unsafe { PassedValue::new(0) }))
}

/// Removes the pages of the heap after `end` from registered regions, because `end` is about to
/// become the end of the heap.
fn about_to_shrink(end: usize) {
    let now = end_of_heap();
    if now != libc::MAP_FAILED {
        // The page that contains the new end remains.
        let first = end.next_multiple_of(mapping::page_size());
        mapping::discard(first, now.addr().saturating_sub(first));
    }
}

#[unsafe(no_mangle)]
extern "C" fn brk(end: Address<'_>) -> c_int {
    about_to_shrink(end.get().addr());
    next::brk::get().map_or_else(absent, |next| next(end))
}

#[unsafe(no_mangle)]
extern "C" fn sbrk(increment: PassedValue<'_, isize>) -> *mut c_void {
    if increment.get() < 0 {
        about_to_shrink(end_of_heap().addr().wrapping_add_signed(increment.get()));
    }
    next::sbrk::get().map_or_else(no_address, |next| next(increment))
}

#[unsafe(no_mangle)]
extern "C" fn sigaction(
    signal: c_int,
    new: InPtr<'_, libc::sigaction>,
    old: OutPtr<'_, libc::sigaction>,
) -> c_int {
    fault_handler::sigaction(signal, new, old)
}

#[unsafe(no_mangle)]
extern "C" fn signal(
    number: c_int,
    handler: PassedValue<'_, libc::sighandler_t>,
) -> libc::sighandler_t {
    match next::signal::get() {
        Some(next) if !fault_handler::is_handled(number) => next(number, handler),
        _ => fault_handler::signal(number, handler),
    }
}

#[unsafe(no_mangle)]
extern "C" fn pthread_sigmask<'a>(
    how: c_int,
    set: InPtr<'a, libc::sigset_t>,
    old: OutPtr<'a, libc::sigset_t>,
) -> c_int {
    next::pthread_sigmask::get()
        .map_or(libc::ENOSYS, |next| fault_handler::mask(next, how, set, old))
}

#[unsafe(no_mangle)]
extern "C" fn sigprocmask<'a>(
    how: c_int,
    set: InPtr<'a, libc::sigset_t>,
    old: OutPtr<'a, libc::sigset_t>,
) -> c_int {
    next::sigprocmask::get().map_or_else(absent, |next| fault_handler::mask(next, how, set, old))
}

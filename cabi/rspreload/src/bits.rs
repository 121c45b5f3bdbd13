//! Which descriptors are the library's concern.

use crate::sockets;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

static BITS: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Asks `libibverbs.so.1` where the bits are.
pub(crate) fn find() {
    let mut count = 0;
    let bits = sockets::uiw_sockets_bits(&mut count);
    COUNT.store(count, Ordering::Relaxed);
    BITS.store(bits.cast_mut().cast(), Ordering::Release);
}

/// Returns whether the bit of a descriptor is set.
#[inline]
pub(crate) fn is_set(fd: c_int) -> bool {
    let bits = BITS.load(Ordering::Acquire);
    let at = fd as u32 as usize;
    if bits.is_null() || at >= COUNT.load(Ordering::Relaxed) {
        return false;
    }
    // SAFETY: `at` is less than `COUNT`, the number of bits that `uiw_sockets_bits` has returned
    // with the pointer, which `find` stores last. So the word is one of those of `libibverbs.so.1`,
    // a static that lives as long as this library. They are aligned `AtomicU64`s, which it changes
    // only atomically.
    let word = unsafe { &*bits.add(at / 64) };
    word.load(Ordering::Acquire) >> (at % 64) & 1 == 1
}

/// The C library's function or the rsockets': an accepted connection becomes an rsocket before its
/// first use.
#[inline]
pub(crate) fn is_rsocket(fd: c_int) -> bool {
    is_set(fd) && sockets::uiw_sockets_enter(fd) == sockets::RSOCKET
}

/// Like [`is_rsocket`], without a change of an accepted connection.
#[inline]
pub(crate) fn is_rsocket_already(fd: c_int) -> bool {
    is_set(fd) && sockets::uiw_sockets_kind(fd) == sockets::RSOCKET && is_rsocket(fd)
}

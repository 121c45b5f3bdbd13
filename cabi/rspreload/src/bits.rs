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
    // SAFETY: a number that can be written.
    let bits = unsafe { sockets::uiw_sockets_bits(&raw mut count) };
    COUNT.store(count, Ordering::Relaxed);
    BITS.store(bits.cast_mut().cast(), Ordering::Release);
}

/// Whether the bit of a descriptor is set.
#[inline]
pub(crate) fn is_set(fd: c_int) -> bool {
    let bits = BITS.load(Ordering::Acquire);
    let at = fd as u32 as usize;
    if bits.is_null() || at >= COUNT.load(Ordering::Relaxed) {
        return false;
    }
    // SAFETY: so many bits are there, for ever, and each 64-bit word is only changed by atomic instructions.
    let word = unsafe { &*bits.add(at / 64) };
    word.load(Ordering::Acquire) >> (at % 64) & 1 == 1
}

/// The C library's function or the rsockets': an accepted connection becomes an rsocket before its first use.
#[inline]
pub(crate) fn is_rsocket(fd: c_int) -> bool {
    // SAFETY: a number.
    is_set(fd) && unsafe { sockets::uiw_sockets_enter(fd) } == sockets::RSOCKET
}

/// As [`is_rsocket`], without a change of an accepted connection.
#[inline]
pub(crate) fn is_rsocket_already(fd: c_int) -> bool {
    // SAFETY: a number.
    is_set(fd) && unsafe { sockets::uiw_sockets_kind(fd) } == sockets::RSOCKET && is_rsocket(fd)
}

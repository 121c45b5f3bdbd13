//! Copies between private bytes and shared memory, by relaxed atomic accesses to naturally aligned
//! words. On x86-64 Linux, all but short copies use the routines of [`recover`], which are faster
//! (`examples/copy_speed.rs`).
//!
//! In RDMA, a program (or another stream) may legally access the memory while it is copied. Such a
//! race must not be undefined behaviour here. Words are aligned on the shared side, so that a
//! naturally aligned field of 2, 4 or 8 bytes is never torn; the private side is accessed
//! unaligned. The last word is stored with release ordering after all others, so a thread that
//! reads it with acquire ordering also sees the rest.
//!
//! The C++ memory model does not define atomic accesses of different sizes to the same bytes. On
//! all supported processors they behave as cache coherence suggests. Miri rejects them, so under
//! Miri each word is accessed byte by byte; everything else (bounds, order, races with non-atomic
//! accesses) is checked.

use core::sync::atomic::{
    AtomicU8,
    Ordering::{self, Relaxed, Release},
};
#[cfg(not(miri))]
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use crate::recover;

const WORD: usize = 8;
/// Copies of whole aligned words that are shorter than this number of bytes are inlined.
const SMALL: usize = 128;

/// Copies exclusive memory like `memcpy`.
///
/// # Safety
/// The requirements of [`core::ptr::copy_nonoverlapping`] apply.
#[inline]
pub(crate) unsafe fn plain(dst: *mut u8, src: *const u8, len: usize) {
    if recover::IS_ASSEMBLY && len > SMALL {
        // SAFETY: the caller guarantees what `copy_nonoverlapping` requires.
        let is_whole = unsafe { recover::copy(dst, src, len) };
        debug_assert!(is_whole);
        return;
    }
    // SAFETY: the caller guarantees what `copy_nonoverlapping` requires.
    unsafe { dst.copy_from_nonoverlapping(src, len) }
}

/// Stores one aligned piece of 1, 2, 4 or 8 bytes.
///
/// # Safety
/// `src` is readable and `dst` writable for `size` bytes, `dst` is aligned to `size` bytes, and all
/// concurrent accesses to `dst` are atomic.
#[inline(always)]
unsafe fn store_piece(dst: *mut u8, src: *const u8, size: usize, order: Ordering) {
    debug_assert!(dst.addr().is_multiple_of(size));
    #[cfg(miri)]
    for at in 0..size {
        // SAFETY: `at` is less than `size`, for which the caller guarantees both sides.
        unsafe { AtomicU8::from_ptr(dst.add(at)).store(src.add(at).read(), order) }
    }
    #[cfg(not(miri))]
    // SAFETY: the caller guarantees both ranges, the alignment of `dst`, and that all concurrent
    // accesses to it are atomic.
    unsafe {
        match size {
            1 => AtomicU8::from_ptr(dst).store(src.read(), order),
            2 => AtomicU16::from_ptr(dst.cast()).store(src.cast::<u16>().read_unaligned(), order),
            4 => AtomicU32::from_ptr(dst.cast()).store(src.cast::<u32>().read_unaligned(), order),
            _ => AtomicU64::from_ptr(dst.cast()).store(src.cast::<u64>().read_unaligned(), order),
        }
    }
}

/// Loads one aligned piece of 1, 2, 4 or 8 bytes.
///
/// # Safety
/// `src` is readable and `dst` writable for `size` bytes, `src` is aligned to `size` bytes, and all
/// concurrent writes to `src` are atomic.
#[inline(always)]
unsafe fn load_piece(dst: *mut u8, src: *const u8, size: usize) {
    let src = src.cast_mut();
    debug_assert!(src.addr().is_multiple_of(size));
    #[cfg(miri)]
    for at in 0..size {
        // SAFETY: `at` is less than `size`, for which the caller guarantees both sides.
        unsafe { dst.add(at).write(AtomicU8::from_ptr(src.add(at)).load(Relaxed)) }
    }
    #[cfg(not(miri))]
    // SAFETY: the caller guarantees both ranges, the alignment of `src`, and that all concurrent
    // writes to it are atomic.
    unsafe {
        match size {
            1 => dst.write(AtomicU8::from_ptr(src).load(Relaxed)),
            2 => dst.cast::<u16>().write_unaligned(AtomicU16::from_ptr(src.cast()).load(Relaxed)),
            4 => dst.cast::<u32>().write_unaligned(AtomicU32::from_ptr(src.cast()).load(Relaxed)),
            _ => dst.cast::<u64>().write_unaligned(AtomicU64::from_ptr(src.cast()).load(Relaxed)),
        }
    }
}

/// Returns the size of the largest aligned piece at address `at` that is not longer than `left`,
/// which is not 0.
#[inline(always)]
fn piece(at: usize, left: usize) -> usize {
    let aligned = 1 << at.trailing_zeros().min(3);
    let fits = 1 << left.ilog2().min(3);
    if aligned < fits { aligned } else { fits }
}

/// Copies private bytes into shared memory; the last aligned piece becomes visible last.
///
/// # Safety
/// `src` is readable and not written meanwhile, `dst` is writable, both for `len` bytes, and they
/// do not overlap. Every other access to `dst` meanwhile is atomic (or is the kernel, a device or
/// another process).
#[inline(always)]
pub(crate) unsafe fn store(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller guarantees both ranges. In the first branch `dst` is aligned, and `bulk`
    // is a multiple of eight, as `store_loop` and the last word require.
    unsafe {
        // Short messages of whole words are frequent, so they are copied without a call.
        if len > 0 && len < SMALL && (dst.addr() | len).is_multiple_of(WORD) {
            let bulk = len - WORD;
            store_loop(dst, src, bulk);
            store_piece(dst.add(bulk), src.add(bulk), WORD, Release);
        } else if recover::IS_ASSEMBLY {
            let is_whole = recover::store(dst, src, len);
            debug_assert!(is_whole);
        } else {
            store_any(dst, src, len);
        }
    }
}

/// Form of [`store`] for any alignment and length.
///
/// # Safety
/// The requirements of [`store`] apply.
unsafe fn store_any(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    // SAFETY: every access lies in `at..len` of the ranges that the caller guarantees, and `piece`
    // returns only aligned sizes.
    unsafe {
        while at < len && !dst.addr().wrapping_add(at).is_multiple_of(WORD) {
            let size = piece(dst.addr() + at, len - at);
            let order = if at + size == len { Release } else { Relaxed };
            store_piece(dst.add(at), src.add(at), size, order);
            at += size;
        }
        if at == len {
            return;
        }
        // At least one byte remains after the bulk, so that its last piece is stored with release
        // ordering.
        let bulk = (len - at - 1) / WORD * WORD;
        store_loop(dst.add(at), src.add(at), bulk);
        at += bulk;
        while at < len {
            let size = piece(dst.addr() + at, len - at);
            let order = if at + size == len { Release } else { Relaxed };
            store_piece(dst.add(at), src.add(at), size, order);
            at += size;
        }
    }
}

/// Copies shared memory into private bytes.
///
/// # Safety
/// `src` is readable, `dst` is writable and not shared, both for `len` bytes, and they do not
/// overlap. A thread that writes `src` meanwhile does so atomically (or is the kernel, a device or
/// another process).
#[inline(always)]
pub(crate) unsafe fn load(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller guarantees both ranges. In the first branch `src` is aligned and `len` is
    // a multiple of eight, as `load_loop` requires.
    unsafe {
        // Short messages of whole words are frequent, so they are copied without a call.
        if len < SMALL && (src.addr() | len).is_multiple_of(WORD) {
            load_loop(dst, src, len);
        } else if recover::IS_ASSEMBLY {
            let is_whole = recover::load(dst, src, len);
            debug_assert!(is_whole);
        } else {
            load_any(dst, src, len);
        }
    }
}

/// Form of [`load`] for any alignment and length.
///
/// # Safety
/// The requirements of [`load`] apply.
unsafe fn load_any(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    // SAFETY: every access lies in `at..len` of the ranges that the caller guarantees, and `piece`
    // returns only aligned sizes.
    unsafe {
        while at < len && !src.addr().wrapping_add(at).is_multiple_of(WORD) {
            let size = piece(src.addr() + at, len - at);
            load_piece(dst.add(at), src.add(at), size);
            at += size;
        }
        let bulk = (len - at) / WORD * WORD;
        load_loop(dst.add(at), src.add(at), bulk);
        at += bulk;
        while at < len {
            let size = piece(src.addr() + at, len - at);
            load_piece(dst.add(at), src.add(at), size);
            at += size;
        }
    }
}

/// Copies whole words into shared memory.
///
/// # Safety
/// The requirements of [`store`] apply. `len` is a multiple of eight, and `dst` is aligned to eight
/// bytes.
#[inline(always)]
unsafe fn store_loop(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    // SAFETY: each access is to one word inside of `len`, which is a multiple of eight. The caller
    // guarantees the ranges and the alignment.
    unsafe {
        while at + 4 * WORD <= len {
            store_piece(dst.add(at), src.add(at), WORD, Relaxed);
            store_piece(dst.add(at + 8), src.add(at + 8), WORD, Relaxed);
            store_piece(dst.add(at + 16), src.add(at + 16), WORD, Relaxed);
            store_piece(dst.add(at + 24), src.add(at + 24), WORD, Relaxed);
            at += 4 * WORD;
        }
        while at < len {
            store_piece(dst.add(at), src.add(at), WORD, Relaxed);
            at += WORD;
        }
    }
}

/// Copies whole words out of shared memory.
///
/// # Safety
/// The requirements of [`load`] apply. `len` is a multiple of eight, and `src` is aligned to eight
/// bytes.
#[inline(always)]
unsafe fn load_loop(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    // SAFETY: each access is to one word inside of `len`, which is a multiple of eight. The caller
    // guarantees the ranges and the alignment.
    unsafe {
        while at + 4 * WORD <= len {
            load_piece(dst.add(at), src.add(at), WORD);
            load_piece(dst.add(at + 8), src.add(at + 8), WORD);
            load_piece(dst.add(at + 16), src.add(at + 16), WORD);
            load_piece(dst.add(at + 24), src.add(at + 24), WORD);
            at += 4 * WORD;
        }
        while at < len {
            load_piece(dst.add(at), src.add(at), WORD);
            at += WORD;
        }
    }
}

/// Safe wrappers of the individual copy functions, for `examples/copy_speed.rs`.
#[doc(hidden)]
pub mod bench {
    /// Copies into shared memory.
    pub fn shared(dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len());
        // SAFETY: both are slices of the same length, and they do not overlap.
        unsafe { super::store(dst.as_mut_ptr(), src.as_ptr(), src.len()) }
    }

    /// Copies out of shared memory.
    pub fn shared_load(dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len());
        // SAFETY: both are slices of the same length, and they do not overlap.
        unsafe { super::load(dst.as_mut_ptr(), src.as_ptr(), src.len()) }
    }

    /// Copies exclusive memory.
    pub fn plain(dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len());
        // SAFETY: both are slices of the same length, and they do not overlap.
        unsafe { super::plain(dst.as_mut_ptr(), src.as_ptr(), src.len()) }
    }

    /// Copies by words only. The length must be a multiple of eight, and `dst` aligned.
    pub fn words(dst: &mut [u8], src: &[u8]) {
        assert!(
            dst.len() == src.len()
                && src.len().is_multiple_of(8)
                && dst.as_ptr().addr().is_multiple_of(8)
        );
        // SAFETY: the assertion has checked the lengths and the alignment, and slices do not
        // overlap.
        unsafe { super::store_loop(dst.as_mut_ptr(), src.as_ptr(), src.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recover;

    type Copy = unsafe fn(*mut u8, *const u8, usize);

    /// Tests all alignments of both sides, with lengths around the limits of the branches.
    #[test]
    fn copies_exactly() {
        let lens = (0..80).chain([
            248, 255, 256, 264, 511, 512, 1000, 1023, 1024, 1025, 1031, 1032, 1033, 1040, 1041,
            4097,
        ]);
        let source: Vec<u8> = (0..5000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        // Miri is slow, so it checks a part of them.
        let (step, turns) = if cfg!(miri) { (5, 4) } else { (1, 1) };
        for len in lens.step_by(step) {
            for from in (0..9).step_by(turns) {
                for to in (0..9).step_by(turns) {
                    for copy in [store as Copy, store_any, load, load_any] {
                        let mut got = vec![0xAAu8; len + 24];
                        // SAFETY: both ranges lie in their vectors.
                        unsafe { copy(got.as_mut_ptr().add(to), source.as_ptr().add(from), len) };
                        assert_eq!(
                            &got[to..to + len],
                            &source[from..from + len],
                            "len {len} from {from} to {to}"
                        );
                        assert!(got[..to].iter().chain(&got[to + len..]).all(|&o| o == 0xAA));
                    }
                }
            }
        }
    }

    /// Tests destinations a few bytes behind the source modulo the page size, which are copied
    /// without `rep movsb`.
    #[test]
    fn aliased_places_copy_exactly() {
        let source: Vec<u8> = (0..12_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let mut target = vec![0u8; 16_000];
        recover::prepare();
        // SAFETY: as for the copies that they call.
        let copies: [Copy; 6] = unsafe {
            [
                plain,
                store,
                load,
                |dst, src, len| assert!(recover::copy(dst, src, len)),
                |dst, src, len| assert!(recover::store(dst, src, len)),
                |dst, src, len| assert!(recover::load(dst, src, len)),
            ]
        };
        let lens: &[usize] =
            if cfg!(miri) { &[1025] } else { &[1023, 1024, 1025, 2047, 4096, 5001] };
        for &len in lens {
            for distance in [0, 1, 8, 16, 31, 32, 63, 64, 4095] {
                for from in [0, 1, 8] {
                    let src = source[from..].as_ptr();
                    let to = 64
                        + (src.addr() + distance).wrapping_sub(target.as_ptr().addr() + 64) % 4096;
                    for (which, copy) in copies.iter().enumerate() {
                        target.fill(0xAA);
                        // SAFETY: both ranges lie in their vectors.
                        unsafe { copy(target.as_mut_ptr().add(to), src, len) };
                        let what = format!("copy {which}, {len} bytes, {distance} behind {from}");
                        assert_eq!(&target[to..to + len], &source[from..from + len], "{what}");
                        assert!(
                            target[..to]
                                .iter()
                                .chain(&target[to + len..])
                                .all(|&byte| byte == 0xAA)
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn pieces_are_aligned_and_fit() {
        for at in 0..32usize {
            for left in 1..40usize {
                let size = piece(at, left);
                assert!(size <= left && at.is_multiple_of(size) && matches!(size, 1 | 2 | 4 | 8));
                assert!(
                    size == 8 || !at.is_multiple_of(size * 2) || size * 2 > left,
                    "not the largest"
                );
            }
        }
    }

    /// A thread that sees the last byte of a copy sees all of it.
    #[test]
    fn last_bytes_last() {
        use std::sync::atomic::{AtomicU8, Ordering::Acquire};
        const LEN: usize = 777;
        const ROUNDS: u8 = if cfg!(miri) { 3 } else { 100 };
        let shared: Vec<AtomicU8> = (0..LEN).map(|_| AtomicU8::new(0)).collect();
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut torn = 0;
                for round in 1..=ROUNDS {
                    while shared[LEN - 1].load(Acquire) != round {
                        std::thread::yield_now();
                    }
                    torn += shared.iter().filter(|o| o.load(Relaxed) != round).count();
                    shared[1].store(0, Release);
                }
                torn
            });
            for round in 1..=ROUNDS {
                let source = [round; LEN];
                // SAFETY: `shared` is LEN bytes, and its other accesses are atomic.
                unsafe { store(shared.as_ptr().cast_mut().cast(), source.as_ptr(), LEN) };
                while shared[1].load(Acquire) != 0 {
                    std::thread::yield_now();
                }
            }
            assert_eq!(watcher.join().unwrap(), 0);
        });
    }
}

//! Copies between private bytes and shared memory: relaxed atomic accesses of naturally aligned
//! words.
//!
//! A race with the program (or with another stream that writes to the same place) is legal in RDMA
//! and must not be undefined behaviour here. Words are aligned on the shared side, so that a
//! naturally aligned field of 2, 4 or 8 bytes is never seen torn; the private side is read and
//! written unaligned. The last word is stored with release ordering after all others: a thread that
//! sees it sees the rest.
//!
//! Accesses of different sizes to the same bytes are outside of the letter of the C++ memory model;
//! every target of ours gives them the meaning that the caches give them. Miri checks the letter of
//! the rules: under it alone, the last step of each access goes byte by byte, so that it checks
//! everything else (bounds, order, races with accesses that are not atomic).

use core::sync::atomic::{
    AtomicU8,
    Ordering::{self, Relaxed, Release},
};
#[cfg(not(miri))]
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// Length from which copies on x86-64 use `rep movsb`. `examples/copy_speed.rs` on an AMD EPYC (Zen
/// 5, fsrm), GB/s:
///
/// | bytes | memcpy | words | rep movsb | store as it is |
/// |---|---|---|---|---|
/// | 64 | 47 | 28 | 14 | 17 |
/// | 512 | 159 | 56 | 41 | 50 |
/// | 1024 | 169 | 42 | 85 | 70 |
/// | 4096 | 152 | 66 | 148 | 153 |
/// | 65,536 | 134 | 60 | 136 | 133 |
/// | 1,048,576 | 62 | 37 | 74 | 48 to 70 |
///
/// The last column is older than the path of its own that few aligned words have ([`SMALL`]).
///
/// Only where the processor says that it is fast ("ermsb"): others, and emulators, move byte by
/// byte (1 MiB Writes in an emulated Nehalem: 175 MB/s).
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STRING_FROM: usize = 1024;

/// Returns whether a copy of `len` bytes is one for [`string_move`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn is_for_string(dst: *const u8, src: *const u8, len: usize) -> bool {
    len >= STRING_FROM && !is_aliased(dst, src) && std::arch::is_x86_feature_detected!("ermsb")
}

/// Pages in which [`is_aliased`] compares.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) const PAGE: usize = 4096;
/// Distances below this one are aliased; 32 on Zen 3, with a cache line to be safe with others.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) const ALIASED: usize = 64;

/// Returns whether the low address bits of `dst` are a few more than those of `src`: there
/// `rep movsb` waits for its own stores (AMD Zen 3 and 4; glibc has it as bug 30994). On an AMD
/// EPYC (Zen 3) `rep movsb` copies 1.6 GB/s then instead of 33, words 12 to 17, `memcpy` in parts
/// 24.
///
/// An FPDU that is built at the start of a page, with a payload from the start of another one, is
/// enough: the header moves the payload by 16 or 20 bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn is_aliased(dst: *const u8, src: *const u8) -> bool {
    let distance = dst.addr().wrapping_sub(src.addr()) % PAGE;
    distance != 0 && distance < ALIASED
}

/// `memcpy`, also where the C library's uses `rep movsb`: aliased copies are made in parts for
/// which it does not.
///
/// # Safety
/// As for [`core::ptr::copy_nonoverlapping`].
#[inline]
pub(crate) unsafe fn plain(dst: *mut u8, src: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len > STRING_FROM && is_aliased(dst, src) {
        let mut at = 0;
        while at < len {
            let part = STRING_FROM.min(len - at);
            // SAFETY: the caller's promise; `at + part` is at most `len`.
            unsafe { dst.add(at).copy_from_nonoverlapping(src.add(at), part) };
            at += part;
        }
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { dst.copy_from_nonoverlapping(src, len) }
}

const WORD: usize = 8;
/// Aligned words of fewer bytes are copied without a call.
const SMALL: usize = 256;

/// Stores one aligned piece of 1, 2, 4 or 8 bytes.
///
/// # Safety
/// `src` is readable and `dst` writable for `size` bytes, and `dst` is a multiple of `size`.
#[inline(always)]
unsafe fn store_piece(dst: *mut u8, src: *const u8, size: usize, order: Ordering) {
    debug_assert!(dst.addr().is_multiple_of(size));
    #[cfg(miri)]
    for at in 0..size {
        // SAFETY: as below; `at` is inside of the piece.
        unsafe { AtomicU8::from_ptr(dst.add(at)).store(src.add(at).read(), order) }
    }
    #[cfg(not(miri))]
    // SAFETY: the caller vouches for both ranges and for the alignment; all other accesses to `dst`
    // are atomic.
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
/// `src` is readable and `dst` writable for `size` bytes, and `src` is a multiple of `size`.
#[inline(always)]
unsafe fn load_piece(dst: *mut u8, src: *const u8, size: usize) {
    let src = src.cast_mut();
    debug_assert!(src.addr().is_multiple_of(size));
    #[cfg(miri)]
    for at in 0..size {
        // SAFETY: as below; `at` is inside of the piece.
        unsafe { dst.add(at).write(AtomicU8::from_ptr(src.add(at)).load(Relaxed)) }
    }
    #[cfg(not(miri))]
    // SAFETY: the caller vouches for both ranges and for the alignment; all other accesses to `src`
    // are atomic.
    unsafe {
        match size {
            1 => dst.write(AtomicU8::from_ptr(src).load(Relaxed)),
            2 => dst.cast::<u16>().write_unaligned(AtomicU16::from_ptr(src.cast()).load(Relaxed)),
            4 => dst.cast::<u32>().write_unaligned(AtomicU32::from_ptr(src.cast()).load(Relaxed)),
            _ => dst.cast::<u64>().write_unaligned(AtomicU64::from_ptr(src.cast()).load(Relaxed)),
        }
    }
}

/// Largest aligned piece at address `at` that is not longer than `left` (which is not 0).
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
    // SAFETY: the caller's promise; `dst` is aligned for `store_loop` and the last word, and `bulk`
    // a multiple of its words.
    unsafe {
        // Messages of few words, which are many: without a call.
        if len > 0 && len < SMALL && (dst.addr() | len).is_multiple_of(WORD) {
            let bulk = len - WORD;
            store_loop(dst, src, bulk);
            store_piece(dst.add(bulk), src.add(bulk), WORD, Release);
        } else {
            store_any(dst, src, len);
        }
    }
}

/// # Safety
/// As for [`store`].
#[inline]
unsafe fn store_any(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    // SAFETY: every access below lies in `at..len`, and the pieces are aligned by construction.
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
        // What follows the bulk is at least one word or a ragged edge: the piece that is published
        // last.
        let bulk = (len - at - 1) / WORD * WORD;
        store_words(dst.add(at), src.add(at), bulk);
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
    // SAFETY: the caller's promise; `src` is aligned for `load_loop`, and `len` a multiple of its
    // words.
    unsafe {
        // Messages of few words, which are many: without a call.
        if len < SMALL && (src.addr() | len).is_multiple_of(WORD) {
            load_loop(dst, src, len);
        } else {
            load_any(dst, src, len);
        }
    }
}

/// # Safety
/// As for [`load`].
#[inline]
unsafe fn load_any(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    // SAFETY: every access below lies in `at..len`, and the pieces are aligned by construction.
    unsafe {
        while at < len && !src.addr().wrapping_add(at).is_multiple_of(WORD) {
            let size = piece(src.addr() + at, len - at);
            load_piece(dst.add(at), src.add(at), size);
            at += size;
        }
        let bulk = (len - at) / WORD * WORD;
        load_words(dst.add(at), src.add(at), bulk);
        at += bulk;
        while at < len {
            let size = piece(src.addr() + at, len - at);
            load_piece(dst.add(at), src.add(at), size);
            at += size;
        }
    }
}

/// `len` is a multiple of eight, `dst` is aligned.
///
/// # Safety
/// As for [`store`].
#[inline(always)]
unsafe fn store_words(dst: *mut u8, src: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if is_for_string(dst, src, len) {
        // SAFETY: the caller's promise.
        return unsafe { string_move(dst, src, len) };
    }
    // SAFETY: the caller's promise; word after word inside of `len`.
    unsafe { store_loop(dst, src, len) }
}

/// `len` is a multiple of eight, `src` is aligned.
///
/// # Safety
/// As for [`load`].
#[inline(always)]
unsafe fn load_words(dst: *mut u8, src: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if is_for_string(dst, src, len) {
        // SAFETY: the caller's promise.
        return unsafe { string_move(dst, src, len) };
    }
    // SAFETY: the caller's promise; word after word inside of `len`.
    unsafe { load_loop(dst, src, len) }
}

/// # Safety
/// As for [`store_words`].
#[inline(always)]
unsafe fn store_loop(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    // SAFETY: the caller's promise; word after word inside of `len`.
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

/// # Safety
/// As for [`load_words`].
#[inline(always)]
unsafe fn load_loop(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    // SAFETY: the caller's promise; word after word inside of `len`.
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

/// The processor's own copy. The compiler does not look into it, so it is as racy as a device's DMA
/// and no more: its stores may come in any order, but none comes after the stores that follow it
/// (Intel SDM volume 1, 7.3.9.3).
///
/// # Safety
/// As for [`store`] or [`load`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn string_move(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: reads `len` bytes at `src`, writes `len` at `dst`, which the caller vouches for. The
    // direction flag is clear by the calling convention.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") dst => _,
            inout("rsi") src => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Each way of copying by itself, for `examples/copy_speed.rs`.
#[doc(hidden)]
pub mod bench {
    /// The shared copy as it is used.
    pub fn shared(dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len());
        // SAFETY: two slices of one length.
        unsafe { super::store(dst.as_mut_ptr(), src.as_ptr(), src.len()) }
    }

    /// The shared copy the other way as it is used.
    pub fn shared_load(dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len());
        // SAFETY: two slices of one length.
        unsafe { super::load(dst.as_mut_ptr(), src.as_ptr(), src.len()) }
    }

    /// The copy of exclusive memory as it is used.
    pub fn plain(dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len());
        // SAFETY: two slices of one length.
        unsafe { super::plain(dst.as_mut_ptr(), src.as_ptr(), src.len()) }
    }

    /// Only words. The length must be a multiple of eight, `dst` aligned.
    pub fn words(dst: &mut [u8], src: &[u8]) {
        assert!(
            dst.len() == src.len() && src.len().is_multiple_of(8) && dst.as_ptr().addr().is_multiple_of(8)
        );
        // SAFETY: two slices of one length, a multiple of eight, the destination aligned.
        unsafe { super::store_loop(dst.as_mut_ptr(), src.as_ptr(), src.len()) }
    }

    /// Only `rep movsb`.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    pub fn string(dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len());
        // SAFETY: two slices of one length.
        unsafe { super::string_move(dst.as_mut_ptr(), src.as_ptr(), src.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recover;

    type Copy = unsafe fn(*mut u8, *const u8, usize);

    /// Every alignment of both sides, every length around the edges: the right bytes and no others.
    #[test]
    fn copies_exactly() {
        let lens = (0..80).chain([
            248, 255, 256, 264, 511, 512, 1000, 1023, 1024, 1025, 1031, 1032, 1033, 1040, 1041, 4097,
        ]);
        let source: Vec<u8> = (0..5000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        // Miri takes a part.
        let (step, turns) = if cfg!(miri) { (5, 4) } else { (1, 1) };
        for len in lens.step_by(step) {
            for from in (0..9).step_by(turns) {
                for to in (0..9).step_by(turns) {
                    let mut stored = vec![0xAAu8; len + 24];
                    let mut loaded = vec![0xAAu8; len + 24];
                    // SAFETY: both ranges lie in their vectors.
                    unsafe {
                        store(stored.as_mut_ptr().add(to), source.as_ptr().add(from), len);
                        load(loaded.as_mut_ptr().add(to), source.as_ptr().add(from), len);
                    }
                    for got in [&stored, &loaded] {
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

    /// Processors without a fast string copy use words for long copies, too.
    #[test]
    fn words_copy_exactly() {
        let source: Vec<u8> = (0..5000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for len in [0, 8, 24, 32, 40, 1024, 4096] {
            let mut aligned = vec![0u64; 600];
            let at = aligned.as_mut_ptr().cast::<u8>();
            let mut loaded = vec![0xAAu8; len + 1];
            // SAFETY: `len` is a multiple of eight within all three; `at` is aligned.
            let stored = unsafe {
                store_loop(at, source.as_ptr().add(1), len);
                load_loop(loaded.as_mut_ptr().add(1), at, len);
                std::slice::from_raw_parts(at, len)
            };
            assert_eq!(stored, &source[1..=len]);
            assert_eq!(&loaded[1..], stored);
        }
    }

    /// Destinations a few bytes behind the source modulo the page size, and their neighbours.
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
        let lens: &[usize] = if cfg!(miri) { &[1025] } else { &[1023, 1024, 1025, 2047, 4096, 5001] };
        for &len in lens {
            for distance in [0, 1, 8, 16, 31, 32, 63, 64, 4095] {
                for from in [0, 1, 8] {
                    let src = source[from..].as_ptr();
                    let to = 64 + (src.addr() + distance).wrapping_sub(target.as_ptr().addr() + 64) % 4096;
                    #[cfg(all(target_arch = "x86_64", not(miri)))]
                    assert_eq!(is_aliased(target[to..].as_ptr(), src), (1..ALIASED).contains(&distance));
                    for (which, copy) in copies.iter().enumerate() {
                        target.fill(0xAA);
                        // SAFETY: both ranges lie in their vectors.
                        unsafe { copy(target.as_mut_ptr().add(to), src, len) };
                        let what = format!("copy {which}, {len} bytes, {distance} behind {from}");
                        assert_eq!(&target[to..to + len], &source[from..from + len], "{what}");
                        assert!(target[..to].iter().chain(&target[to + len..]).all(|&byte| byte == 0xAA));
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
                assert!(size == 8 || !at.is_multiple_of(size * 2) || size * 2 > left, "not the largest");
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

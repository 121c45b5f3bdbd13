//! Copies that return an error if memory is not accessible, instead of ending the process: a
//! program may unmap registered bytes, or truncate the file behind them.
//!
//! The routines are written in assembly, have no stack frame, and lie between two symbols. A
//! handler of SIGSEGV and SIGBUS passes the context of the signal to [`recover`]. If the
//! instruction pointer was between these symbols, the routine returns "gone" to its caller. All
//! other faults are left to the handler that was installed before.
//!
//! On systems other than x86-64 Linux, and under Miri, the ordinary copies are used, and faults are
//! not recovered.

use crate::MemoryGone;
use std::sync::OnceLock;
use uiw_crc32c::Crc32c;
use uiw_ddp::STag;

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#[macro_use]
mod load_crc;

/// Like [`crate::copy::store`], but returns false if a byte of `dst` is not accessible; bytes
/// before it may have been written.
///
/// # Safety
/// The requirements of [`crate::copy::store`] apply, except that `dst` need not be accessible.
#[inline(always)]
pub(crate) unsafe fn store(dst: *mut u8, src: *const u8, len: usize) -> bool {
    // SAFETY: the caller guarantees `src`; a fault on `dst` makes the routine return.
    unsafe { arch::uiw_recover_store(dst, src, len) == 0 }
}

/// Like [`crate::copy::load`], but returns false if a byte of `src` is not accessible.
///
/// # Safety
/// The requirements of [`crate::copy::load`] apply, except that `src` need not be accessible.
#[inline(always)]
pub(crate) unsafe fn load(dst: *mut u8, src: *const u8, len: usize) -> bool {
    // SAFETY: the caller guarantees `dst`; a fault on `src` makes the routine return.
    unsafe { arch::uiw_recover_load(dst, src, len) == 0 }
}

/// Copies exclusive memory like `memcpy`, but returns false if a byte is not accessible.
///
/// # Safety
/// The ranges do not overlap. One of them is private and accessible. The other one need not be
/// accessible, and there is no conflicting access to it.
#[inline(always)]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> bool {
    // SAFETY: the caller guarantees the private range; a fault on the other one makes the routine
    // return.
    unsafe { arch::uiw_recover_copy(dst, src, len) == 0 }
}

/// Routine that copies like [`load`] and continues the CRC32C in `register` over the copied bytes. It
/// returns 0, or 1 after a fault.
pub(crate) type LoadCrc =
    unsafe extern "C" fn(dst: *mut u8, src: *const u8, len: usize, register: *mut u32) -> u32;

/// Returns the fastest routine that this processor supports.
#[inline]
fn fastest_load_crc() -> Option<LoadCrc> {
    static FASTEST: OnceLock<Option<LoadCrc>> = OnceLock::new();
    *FASTEST.get_or_init(|| arch::load_crc_routines().next())
}

/// Returns whether the processor can copy bytes and compute their CRC in one pass
/// ([`crate::PinnedSpan::copy_to_vec_with_crc`]).
#[inline]
#[must_use]
pub fn copies_with_crc() -> bool {
    fastest_load_crc().is_some()
}

/// Like [`load`], but continues a CRC32C over the copied bytes. Returns `None` if the processor has
/// no instructions that do both in one pass; then nothing was copied.
///
/// # Safety
/// The requirements of [`load`] apply.
#[inline]
pub(crate) unsafe fn load_crc(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    crc: &mut Crc32c,
) -> Option<bool> {
    let routine = fastest_load_crc()?;
    let mut register = crc.register();
    // SAFETY: the caller guarantees `dst`; a fault on `src` makes the routine return. `register` is
    // a local variable.
    let found = unsafe { routine(dst, src, len, &raw mut register) } == 0;
    *crc = Crc32c::from_register(register);
    Some(found)
}

/// Atomically replaces the value of `cell` by the result of `f` for the old value, and returns the
/// old value. See [`crate::PinnedSpan::atomic_u64`].
///
/// # Safety
/// `cell` is aligned, and all other accesses to it are atomic. It need not be accessible.
pub(crate) unsafe fn update(
    cell: *mut u64,
    stag: STag,
    mut f: impl FnMut(u64) -> u64,
) -> Result<u64, MemoryGone> {
    let mut old = 0u64;
    // SAFETY: `old` has eight bytes; the caller guarantees that concurrent writes to `cell` are
    // atomic.
    if !unsafe { load((&raw mut old).cast(), cell.cast(), 8) } {
        return Err(MemoryGone { stag });
    }
    loop {
        // SAFETY: the caller guarantees that `cell` is aligned and accessed only atomically.
        match unsafe { exchange(cell, old, f(old)) } {
            Some(Ok(())) => return Ok(old),
            Some(Err(found)) => old = found,
            None => return Err(MemoryGone { stag }),
        }
    }
}

/// Stores `new` in `cell` if its value is `old`; otherwise returns its value as an error. Returns
/// `None` if `cell` is not accessible.
///
/// # Safety
/// The requirements of [`update`] apply.
unsafe fn exchange(cell: *mut u64, old: u64, new: u64) -> Option<Result<(), u64>> {
    let mut found = old;
    // SAFETY: `found` is a local variable; the caller guarantees that `cell` is aligned and
    // accessed only atomically.
    match unsafe { arch::uiw_recover_exchange(cell, &raw mut found, new) } {
        0 => Some(Ok(())),
        1 => None,
        _ => Some(Err(found)),
    }
}

/// Returns whether the page that contains `address` can be read and, if `write` is set, written.
/// Does not change the contents of the page.
///
/// A signal handler that calls [`recover`] must be installed.
pub fn is_accessible(address: usize, write: bool) -> bool {
    let cell = (address & !7) as *mut u64;
    let mut old = 0u64;
    // SAFETY: the cell is aligned and need not be accessible. The exchange is atomic and stores the
    // value that the cell already has.
    unsafe {
        load((&raw mut old).cast(), cell.cast(), 8)
            && (!write
                || loop {
                    match exchange(cell, old, old) {
                        Some(Ok(())) => break true,
                        Some(Err(found)) => old = found,
                        None => break false,
                    }
                })
    }
}

/// True if the routines are in assembly.
pub(crate) const IS_ASSEMBLY: bool =
    cfg!(all(target_arch = "x86_64", target_os = "linux", not(miri)));

/// Selects the fastest instructions of this processor for long copies.
pub(crate) fn prepare() {
    arch::prepare();
}

/// Handles SIGSEGV or SIGBUS, called by a signal handler that was installed with SA_SIGINFO.
///
/// If a routine of this module caused the signal, the routine returns "gone" once the handler has
/// returned. Returns false if other code caused the signal.
///
/// It is async-signal-safe, because it accesses only the context.
///
/// # Safety
/// `context` is the third argument of the signal handler.
pub unsafe fn recover(context: *mut libc::c_void) -> bool {
    // SAFETY: the caller guarantees that `context` is the one of this signal.
    unsafe { arch::recover(context) }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod arch {
    use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    unsafe extern "C" {
        pub(super) fn uiw_recover_store(dst: *mut u8, src: *const u8, len: usize) -> u32;
        pub(super) fn uiw_recover_load(dst: *mut u8, src: *const u8, len: usize) -> u32;
        pub(super) fn uiw_recover_copy(dst: *mut u8, src: *const u8, len: usize) -> u32;
        pub(super) fn uiw_recover_exchange(cell: *mut u64, old: *mut u64, new: u64) -> u32;
        fn uiw_recover_load_crc_64(
            dst: *mut u8,
            src: *const u8,
            len: usize,
            register: *mut u32,
        ) -> u32;
        fn uiw_recover_load_crc_32(
            dst: *mut u8,
            src: *const u8,
            len: usize,
            register: *mut u32,
        ) -> u32;
        fn uiw_recover_begin();
        fn uiw_recover_end();
        fn uiw_recover_gone();
    }

    /// Minimum length in bytes of copies for which `rep movsb` may be used.
    const STRING_MIN: usize = 1024;
    /// Copies whose destination follows the source by less than this number of bytes, modulo
    /// [`PAGE`], do not use `rep movsb`: on AMD Zen 3 and Zen 4, the instruction then waits for its
    /// own stores and is many times slower (glibc bug 30994). It is a common case: an FPDU that is
    /// built at the start of a page, with a payload that was at the start of another page, has its
    /// payload 16 or 20 bytes further. Zen 3 is slow below 32; a whole cache line is assumed, to be
    /// safe on other processors.
    const ALIASED: usize = 64;
    /// Modulus, in bytes, with which these addresses are compared.
    const PAGE: usize = 4096;

    /// Longest copy that does not use `rep movsb`. [`prepare`] sets it on processors that report
    /// the instruction as fast ("ermsb"). Other processors, and emulators, move one byte at a time.
    ///
    /// The compiler does not see the accesses of this instruction and of vectors, so races with
    /// them have the same effect as with the DMA of a device. The stores of `rep movsb` may become
    /// visible in any order, but before all later stores (Intel SDM volume 1, 7.3.9.3).
    static STRING_ABOVE: AtomicUsize = AtomicUsize::new(usize::MAX);
    /// Longest copy that uses no vectors of 32 bytes. [`prepare`] sets it on processors with AVX,
    /// to the number of bytes that a step of the routines copies.
    static AVX_ABOVE: AtomicUsize = AtomicUsize::new(usize::MAX);

    pub(super) fn prepare() {
        if std::arch::is_x86_feature_detected!("ermsb") {
            STRING_ABOVE.store(STRING_MIN - 1, Relaxed);
        }
        if std::arch::is_x86_feature_detected!("avx") {
            AVX_ABOVE.store(128, Relaxed);
        }
    }

    /// Returns the routines that this processor supports, the fastest one first.
    pub(super) fn load_crc_routines() -> impl Iterator<Item = super::LoadCrc> {
        let folds = std::arch::is_x86_feature_detected!("vpclmulqdq")
            && std::arch::is_x86_feature_detected!("sse4.2");
        let wide = folds && std::arch::is_x86_feature_detected!("avx512f");
        let narrow = folds && std::arch::is_x86_feature_detected!("avx2");
        let wide = wide.then_some(uiw_recover_load_crc_64 as super::LoadCrc);
        wide.into_iter().chain(narrow.then_some(uiw_recover_load_crc_32 as super::LoadCrc))
    }

    pub(super) unsafe fn recover(context: *mut libc::c_void) -> bool {
        // SAFETY: the kernel made the structure for this thread's signal, and nothing else accesses
        // it while the handler runs.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let at = registers[libc::REG_RIP as usize] as usize;
        let is_ours = (uiw_recover_begin as *const () as usize
            ..uiw_recover_end as *const () as usize)
            .contains(&at);
        if is_ours {
            // No routine moves the stack pointer, so it points to the return address.
            registers[libc::REG_RIP as usize] = uiw_recover_gone as *const () as usize as i64;
        }
        is_ours
    }

    /// Defines a routine that copies by vectors of 32 or 16 bytes, then by words, in ascending
    /// order, and then the remaining bytes. The words are aligned on the side whose low address
    /// byte is in the register `$side`. Processors access a vector in whole aligned words.
    /// The second entry, `_any`, aligns no words.
    #[rustfmt::skip] // A routine reads line by line.
    macro_rules! words {
        ($name:literal, $side:literal) => {
            concat!(
                ".globl ", $name, "\n.hidden ", $name, "\n.type ", $name, ",@function\n.p2align 5\n",
                $name, ":\n",
                "mov rcx, rdx\n",
                "test ", $side, ", 7\n",
                "jnz 10f\n",
                $name, "_any: 2: cmp rcx, 64\n",
                "jbe 40f\n",
                "cmp rcx, [rip + {string_above}]\n",
                "ja 14f\n",
                // Vectors copy all but the last 1 to 64 bytes: the last word is stored last.
                "30: cmp rcx, [rip + {avx_above}]\njbe 3f\n",
                "31: vmovdqu ymm0, [rsi]\nvmovdqu ymm1, [rsi + 32]\nvmovdqu ymm2, [rsi + 64]\nvmovdqu ymm3, [rsi + 96]\n",
                "vmovdqu [rdi], ymm0\nvmovdqu [rdi + 32], ymm1\nvmovdqu [rdi + 64], ymm2\nvmovdqu [rdi + 96], ymm3\n",
                "sub rsi, -128\nsub rdi, -128\nadd rcx, -128\ncmp rcx, 128\nja 31b\n",
                "vzeroupper\ncmp rcx, 64\njbe 40f\n",
                "3: movups xmm0, [rsi]\nmovups xmm1, [rsi + 16]\nmovups xmm2, [rsi + 32]\nmovups xmm3, [rsi + 48]\n",
                "movups [rdi], xmm0\nmovups [rdi + 16], xmm1\nmovups [rdi + 32], xmm2\nmovups [rdi + 48], xmm3\n",
                "add rsi, 64\nadd rdi, 64\nsub rcx, 64\ncmp rcx, 64\nja 3b\n",
                "40: cmp rcx, 32\njb 4f\n",
                "41: mov rax, [rsi]\nmov r8, [rsi + 8]\nmov r9, [rsi + 16]\nmov r10, [rsi + 24]\n",
                "mov [rdi], rax\nmov [rdi + 8], r8\nmov [rdi + 16], r9\nmov [rdi + 24], r10\n",
                "add rsi, 32\nadd rdi, 32\nsub rcx, 32\ncmp rcx, 32\njae 41b\n",
                "4: cmp rcx, 8\n",
                "jb 6f\n",
                "5: mov rax, [rsi]\nmov [rdi], rax\nadd rsi, 8\nadd rdi, 8\nsub rcx, 8\ncmp rcx, 8\njae 5b\n",
                "6: test cl, 4\njz 7f\nmov eax, [rsi]\nmov [rdi], eax\nadd rsi, 4\nadd rdi, 4\n",
                "7: test cl, 2\njz 8f\nmovzx eax, word ptr [rsi]\nmov [rdi], ax\nadd rsi, 2\nadd rdi, 2\n",
                "8: test cl, 1\njz 9f\nmovzx eax, byte ptr [rsi]\nmov [rdi], al\n",
                "9: xor eax, eax\nret\n",
                // The bytes before the first aligned word.
                "10: test rcx, rcx\njz 9b\n",
                "test ", $side, ", 1\njz 11f\nmovzx eax, byte ptr [rsi]\nmov [rdi], al\n",
                "inc rsi\ninc rdi\ndec rcx\n",
                "11: test ", $side, ", 2\njz 12f\ncmp rcx, 2\njb 8b\n",
                "movzx eax, word ptr [rsi]\nmov [rdi], ax\nadd rsi, 2\nadd rdi, 2\nsub rcx, 2\n",
                "12: test ", $side, ", 4\njz 2b\ncmp rcx, 4\njb 7b\n",
                "mov eax, [rsi]\nmov [rdi], eax\nadd rsi, 4\nadd rdi, 4\nsub rcx, 4\njmp 2b\n",
                // Vectors make aliased copies, for which `rep movsb` is slow (`ALIASED`).
                "14: mov r8, rdi\nsub r8, rsi\ndec r8\nand r8, {page} - 1\ncmp r8, {aliased} - 1\njb 30b\n",
                // The string instruction copies all but the last one to eight bytes, which are
                // stored after all others.
                "mov r8, rcx\nlea rcx, [rcx - 1]\nand rcx, -8\nsub r8, rcx\nrep movsb\nmov rcx, r8\njmp 4b\n",
                ".size ", $name, ", . - ", $name, "\n",
            )
        };
    }

    core::arch::global_asm!(
        ".pushsection .text.uiw_recover,\"ax\",@progbits",
        ".hidden uiw_recover_begin",
        ".globl uiw_recover_begin",
        "uiw_recover_begin:",
        words!("uiw_recover_store", "dil"),
        words!("uiw_recover_load", "sil"),
        load_crc!("uiw_recover_load_crc_64", zmm, "64", "{factors_64}"),
        load_crc!("uiw_recover_load_crc_32", ymm, "32", "{factors_32}"),
        // Copies with any alignment. Pieces of short copies may overlap.
        ".globl uiw_recover_copy",
        ".hidden uiw_recover_copy",
        ".type uiw_recover_copy,@function",
        ".p2align 5",
        "uiw_recover_copy:",
        "cmp rdx, 16",
        "jb 20f",
        "cmp rdx, 32",
        "ja 21f",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + rdx - 16], xmm1",
        "xor eax, eax",
        "ret",
        "21: cmp rdx, 64",
        "ja 22f",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + rdx - 32]",
        "movups xmm3, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + rdx - 32], xmm2",
        "movups [rdi + rdx - 16], xmm3",
        "xor eax, eax",
        "ret",
        "22: mov rcx, rdx",
        "jmp uiw_recover_store_any",
        // Fewer than 16 bytes.
        "20: cmp edx, 8",
        "jb 25f",
        "mov rax, [rsi]",
        "mov rcx, [rsi + rdx - 8]",
        "mov [rdi], rax",
        "mov [rdi + rdx - 8], rcx",
        "xor eax, eax",
        "ret",
        "25: cmp edx, 4",
        "jb 26f",
        "mov eax, [rsi]",
        "mov ecx, [rsi + rdx - 4]",
        "mov [rdi], eax",
        "mov [rdi + rdx - 4], ecx",
        "xor eax, eax",
        "ret",
        "26: test edx, edx",
        "jz 28f",
        "27: movzx eax, byte ptr [rsi]",
        "mov [rdi], al",
        "inc rsi",
        "inc rdi",
        "dec edx",
        "jnz 27b",
        "28: xor eax, eax",
        "ret",
        ".size uiw_recover_copy, . - uiw_recover_copy",
        ".globl uiw_recover_exchange",
        ".hidden uiw_recover_exchange",
        ".type uiw_recover_exchange,@function",
        ".p2align 5",
        "uiw_recover_exchange:",
        "mov rax, [rsi]",
        "lock cmpxchg [rdi], rdx",
        "jne 30f",
        "xor eax, eax",
        "ret",
        "30: mov [rsi], rax",
        "mov eax, 2",
        "ret",
        ".size uiw_recover_exchange, . - uiw_recover_exchange",
        ".hidden uiw_recover_end",
        ".globl uiw_recover_end",
        "uiw_recover_end:",
        // After a fault, `recover` makes the routine continue here, and the routine returns 1.
        ".hidden uiw_recover_gone",
        ".globl uiw_recover_gone",
        "uiw_recover_gone:",
        "mov eax, 1",
        "ret",
        ".popsection",
        string_above = sym STRING_ABOVE,
        avx_above = sym AVX_ABOVE,
        factors_64 = sym super::load_crc::FACTORS_64,
        factors_32 = sym super::load_crc::FACTORS_32,
        page = const PAGE,
        aliased = const ALIASED,
    );
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
mod arch {
    use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

    pub(super) unsafe fn uiw_recover_store(dst: *mut u8, src: *const u8, len: usize) -> u32 {
        // SAFETY: the caller guarantees both ranges. Faults are not recovered on this system, so an
        // inaccessible byte ends the process.
        unsafe { crate::copy::store(dst, src, len) };
        0
    }

    pub(super) unsafe fn uiw_recover_load(dst: *mut u8, src: *const u8, len: usize) -> u32 {
        // SAFETY: as for `uiw_recover_store`.
        unsafe { crate::copy::load(dst, src, len) };
        0
    }

    pub(super) unsafe fn uiw_recover_copy(dst: *mut u8, src: *const u8, len: usize) -> u32 {
        // SAFETY: as for `uiw_recover_store`.
        unsafe { crate::copy::plain(dst, src, len) };
        0
    }

    pub(super) unsafe fn uiw_recover_exchange(cell: *mut u64, old: *mut u64, new: u64) -> u32 {
        // SAFETY: the caller guarantees that `cell` is aligned and accessed only atomically, and
        // that `old` is a variable of its own.
        unsafe {
            match AtomicU64::from_ptr(cell).compare_exchange(*old, new, SeqCst, SeqCst) {
                Ok(_) => 0,
                Err(found) => {
                    *old = found;
                    2
                }
            }
        }
    }

    pub(super) fn load_crc_routines() -> impl Iterator<Item = super::LoadCrc> {
        std::iter::empty()
    }

    pub(super) fn prepare() {}

    pub(super) unsafe fn recover(_: *mut libc::c_void) -> bool {
        false
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Tests that exactly the right bytes are copied, for all alignments of both sides and lengths
    /// around the limits of the branches.
    #[test]
    fn copies_exactly() {
        for string in [false, true] {
            if string {
                prepare();
            }
            let lens = (0..140)
                .chain([511, 512, 1000, 1023, 1024, 1025, 1031, 1032, 1033, 1040, 1041, 4097]);
            let source: Vec<u8> = (0..5000u32).map(|i| (i * 7 + i / 251) as u8).collect();
            for len in lens {
                for from in 0..9 {
                    for to in 0..9 {
                        for how in [store, load, copy] {
                            let mut got = vec![0xAAu8; len + 24];
                            // SAFETY: both ranges lie in their vectors.
                            assert!(unsafe {
                                how(got.as_mut_ptr().add(to), source.as_ptr().add(from), len)
                            });
                            assert_eq!(
                                &got[to..to + len],
                                &source[from..from + len],
                                "{len}: {from} to {to}"
                            );
                            assert!(got[..to].iter().chain(&got[to + len..]).all(|&o| o == 0xAA));
                        }
                    }
                }
            }
        }
    }

    /// Tests all routines that the processor supports, for all alignments, lengths around the limits
    /// of the branches, and CRCs of one part and of two.
    #[test]
    fn copies_with_crc() {
        let lens = (0..140).chain([255, 256, 257, 300, 319, 320, 511, 512, 575, 1000, 1424, 4097]);
        let source: Vec<u8> = (0..5000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for len in lens {
            for (from, to) in (0..9).flat_map(|from| (0..9).map(move |to| (from, to))) {
                let bytes = &source[from..from + len];
                for start in [Crc32c::new(), Crc32c::new().update(b"header")] {
                    for routine in arch::load_crc_routines() {
                        let mut got = vec![0xAAu8; len + 24];
                        let mut register = start.register();
                        // SAFETY: both ranges lie in their vectors.
                        let code = unsafe {
                            routine(
                                got.as_mut_ptr().add(to),
                                bytes.as_ptr(),
                                len,
                                &raw mut register,
                            )
                        };
                        assert_eq!(code, 0);
                        let crc = Crc32c::from_register(register);
                        assert_eq!(crc, start.update(bytes), "{len}: {from} to {to}");
                        assert_eq!(&got[to..to + len], bytes, "{len}: {from} to {to}");
                        assert!(got[..to].iter().chain(&got[to + len..]).all(|&o| o == 0xAA));
                    }
                }
            }
        }
    }

    #[test]
    fn updates_are_atomic() {
        let cell = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        // SAFETY: a cell that is accessed atomically alone.
                        unsafe { update(cell.as_ptr(), STag(1), |old| old + 1) }.unwrap();
                    }
                });
            }
        });
        assert_eq!(cell.into_inner(), 40_000);
    }

    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
    pub(crate) mod faults {
        use super::*;
        use std::sync::Once;

        extern "C" fn handler(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
            // SAFETY: the context of this signal.
            if !unsafe { recover(context) } {
                std::process::abort();
            }
        }

        /// Installs a handler as programs have it.
        pub(crate) fn install() {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                // SAFETY: a handler that touches its own context alone; a structure of zeros but
                // for what is set.
                unsafe {
                    let mut action: libc::sigaction = std::mem::zeroed();
                    action.sa_sigaction = handler as *const () as usize;
                    action.sa_flags = libc::SA_SIGINFO;
                    for signal in [libc::SIGSEGV, libc::SIGBUS] {
                        assert_eq!(
                            libc::sigaction(signal, &raw const action, std::ptr::null_mut()),
                            0
                        );
                    }
                }
                prepare();
            });
        }

        /// Maps two pages, and sets the protection of the second one.
        fn pages(protection: libc::c_int) -> *mut u8 {
            install();
            let both = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping, whose second page nothing uses yet.
            unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let at = libc::mmap(std::ptr::null_mut(), 8192, both, flags, -1, 0);
                assert_ne!(at, libc::MAP_FAILED);
                assert_eq!(libc::mprotect(at.byte_add(4096), 4096, protection), 0);
                at.cast()
            }
        }

        #[test]
        fn missing_memory_is_error() {
            let at = pages(libc::PROT_NONE);
            let mut private = vec![7u8; 5000];
            let mut register = 0;
            for len in [1, 3, 8, 15, 17, 40, 64, 100, 600, 1500, 4000] {
                for beyond in [1, len / 2 + 1, len] {
                    let start = at.wrapping_add(4096 + beyond - len);
                    // SAFETY: the private side is there; the other one need not be.
                    unsafe {
                        assert!(!store(start, private.as_ptr(), len), "{len} {beyond}");
                        assert!(!load(private.as_mut_ptr(), start, len));
                        for routine in arch::load_crc_routines() {
                            assert_eq!(
                                routine(private.as_mut_ptr(), start, len, &raw mut register),
                                1
                            );
                        }
                        assert!(!copy(start, private.as_ptr(), len));
                        assert!(!copy(private.as_mut_ptr(), start, len));
                    }
                }
            }
            let cell = at.wrapping_add(4096).cast();
            // SAFETY: aligned, and need not be there.
            assert!(unsafe { update(cell, STag(1), |old| old + 1) }.is_err());
            assert!(is_accessible(at.addr(), true) && !is_accessible(at.addr() + 4096, false));
        }

        #[test]
        fn write_to_read_only_memory_fails() {
            let at = pages(libc::PROT_READ);
            let second = at.wrapping_add(4096);
            let mut private = [7u8; 64];
            // SAFETY: as above.
            unsafe {
                assert!(load(private.as_mut_ptr(), second, 64));
                assert!(
                    !store(second, private.as_ptr(), 64) && !copy(second, private.as_ptr(), 64)
                );
                assert!(update(second.cast(), STag(1), |old| old).is_err());
            }
            assert!(is_accessible(second.addr(), false) && !is_accessible(second.addr(), true));
        }
    }
}

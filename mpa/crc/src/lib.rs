//! CRC32C by `crc32q` and `pclmulqdq` together, for x86-64 processors without AVX-512.
//!
//! `crc32q` has a latency of three cycles, and `pclmulqdq` runs on another execution unit. The
//! input is therefore cut into blocks of four streams: three are advanced by `crc32q`, and the
//! fourth is folded by `pclmulqdq`. The four results are joined at the end of a block. With
//! AVX-512, folding alone is faster for long inputs.
#![no_std]
#[cfg(any(test, feature = "std"))]
extern crate std;

#[cfg(all(target_arch = "x86_64", feature = "std"))]
mod x86;

/// Continues a CRC32C over `bytes`, if this crate is the fastest known way on this processor.
///
/// `register` is the reflected register without the final inversion: all ones before the first
/// byte. Returns the register after the last byte, or `None` if another implementation is faster.
#[inline]
#[must_use]
pub fn extend_if_fastest(register: u32, bytes: &[u8]) -> Option<u32> {
    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    return x86::extend_if_fastest(register, bytes);
    #[cfg(not(all(target_arch = "x86_64", feature = "std")))]
    {
        let _ = (register, bytes);
        None
    }
}

/// Like [`extend_if_fastest`], but returns `None` only if the processor lacks an instruction that
/// is needed.
#[inline]
#[must_use]
pub fn extend(register: u32, bytes: &[u8]) -> Option<u32> {
    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    return x86::extend(register, bytes);
    #[cfg(not(all(target_arch = "x86_64", feature = "std")))]
    {
        let _ = (register, bytes);
        None
    }
}

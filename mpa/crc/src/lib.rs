//! CRC32C by `crc32q` and `pclmulqdq` together, for x86-64 processors without AVX-512.
//!
//! `crc32q` has a latency of three cycles, and `pclmulqdq` runs on another execution unit. The
//! input is therefore cut into blocks of four streams: three are advanced by `crc32q`, and the
//! fourth is folded by `pclmulqdq`. The four results are joined at the end of a block. With
//! AVX-512, folding alone is faster.
#![no_std]
#[cfg(any(test, feature = "std"))]
extern crate std;

#[cfg(all(target_arch = "x86_64", feature = "std"))]
mod x86;

/// Returns whether [`extend`] works on this processor and is the fastest known way.
#[inline]
#[must_use]
pub fn is_preferred() -> bool {
    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    return x86::is_available() && !std::is_x86_feature_detected!("avx512vl");
    #[cfg(not(all(target_arch = "x86_64", feature = "std")))]
    return false;
}

/// Continues a CRC32C over `bytes`.
///
/// `register` is the reflected register without the final inversion: all ones before the first
/// byte. Returns the register after the last byte, or `None` if the processor lacks an instruction
/// that is needed.
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

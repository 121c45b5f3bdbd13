//! CRC32C of MPA (RFC 5044 section 4.4, which refers to the digests of iSCSI).
//!
//! With `std`, the implementation depends on the processor: vectors of 64 bytes with AVX-512 and
//! VPCLMULQDQ, otherwise `crc32q` and `pclmulqdq` together on x86-64, and `crc-fast` elsewhere.
//! Without `std` it is the table of `crc`.
#![no_std]
#[cfg(any(test, feature = "std"))]
extern crate std;

pub mod factors;
#[cfg(all(target_arch = "x86_64", feature = "std"))]
mod x86;

/// State of a CRC32C (Castagnoli) that is computed piece by piece.
///
/// It is a plain value, which [`update`](Self::update) takes and returns. So a caller can keep the
/// CRC of a common prefix and continue it with different bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Crc32c {
    /// Register in reflected form, before the final exclusive-or.
    register: u32,
}

/// Initial value of the register, with which it is also combined by exclusive-or at the end.
const ALL_ONES: u32 = 0xFFFF_FFFF;

impl Crc32c {
    /// Creates the CRC of zero bytes.
    pub const fn new() -> Self {
        Self { register: ALL_ONES }
    }

    /// Continues the CRC with `bytes`.
    #[inline]
    pub fn update(self, bytes: &[u8]) -> Self {
        Self { register: engine::extend(self.register, bytes) }
    }

    /// Returns the CRC as a number.
    #[must_use]
    pub const fn finish(self) -> u32 {
        self.register ^ ALL_ONES
    }

    /// Returns the bytes of the CRC field of an FPDU: least significant byte first (RFC 5044 Figure
    /// 5).
    #[must_use]
    pub const fn finish_wire(self) -> [u8; 4] {
        self.finish().to_le_bytes()
    }

    /// Creates a CRC from the reflected register without the final inversion, which is all ones
    /// before the first byte.
    pub const fn from_register(register: u32) -> Self {
        Self { register }
    }

    /// Returns the register (see [`from_register`](Self::from_register)).
    #[must_use]
    pub const fn register(self) -> u32 {
        self.register
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the CRC32C of `bytes`. This is fast for short inputs as well.
///
/// ```
/// assert_eq!(uiw_crc32c::crc32c(b"123456789"), 0xE306_9283);
/// ```
#[inline]
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    Crc32c::new().update(bytes).finish()
}

#[cfg(feature = "std")]
mod engine {
    use super::ALL_ONES;
    use crc_fast::{CrcAlgorithm, Digest};

    #[inline]
    pub(super) fn extend(register: u32, bytes: &[u8]) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if let Some(register) = crate::x86::extend(register, bytes) {
            return register;
        }
        extend_portable(register, bytes)
    }

    fn extend_portable(register: u32, bytes: &[u8]) -> u32 {
        // The one-shot function is faster for short inputs, and most FPDUs are one piece.
        if register == ALL_ONES {
            return crc_fast::crc32_iscsi(bytes) ^ ALL_ONES;
        }
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(register));
        digest.update(bytes);
        digest.get_state() as u32
    }
}

#[cfg(not(feature = "std"))]
mod engine {
    use super::ALL_ONES;
    use crc::{CRC_32_ISCSI, Crc, Table};

    static CASTAGNOLI: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

    pub(super) fn extend(register: u32, bytes: &[u8]) -> u32 {
        // `digest_with_initial` takes the register unreflected and reflects it itself.
        let mut digest = CASTAGNOLI.digest_with_initial(register.reverse_bits());
        digest.update(bytes);
        digest.finalize() ^ ALL_ONES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// RFC 3720 B.4 (the text RFC 5044 4.4 refers to): input, CRC field as sent.
    // [test:RFC5044-4.4-12]
    #[test]
    fn iscsi_examples() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        let examples: [(&[u8], [u8; 4]); 5] = [
            (&[0; 32], [0xAA, 0x36, 0x91, 0x8A]),
            (&[0xFF; 32], [0x43, 0xAB, 0xA8, 0x62]),
            (&ascending, [0x4E, 0x79, 0xDD, 0x46]),
            (&descending, [0x5C, 0xDB, 0x3F, 0x11]),
            (&[], [0, 0, 0, 0]),
        ];
        for (bytes, field) in examples {
            assert_eq!(Crc32c::new().update(bytes).finish_wire(), field);
            assert_eq!(crc32c(bytes).to_le_bytes(), field);
        }
    }

    /// The definition, bit by bit.
    fn by_definition(bytes: &[u8]) -> u32 {
        let mut register = ALL_ONES;
        for byte in bytes {
            register ^= u32::from(*byte);
            for _ in 0..8 {
                register =
                    if register & 1 == 1 { register >> 1 ^ 0x82F6_3B78 } else { register >> 1 };
            }
        }
        !register
    }

    // [test:RFC5044-4.4-12]
    #[test]
    fn crc_is_independent_of_cuts() {
        let bytes: Vec<u8> = (0..700u32).map(|n| (n * 7 % 251) as u8).collect();
        for len in [0, 1, 2, 3, 4, 15, 16, 17, 44, 63, 64, 65, 127, 128, 129, 255, 256, 257, 700] {
            let whole = by_definition(&bytes[..len]);
            assert_eq!(crc32c(&bytes[..len]), whole, "{len} bytes");
            for cut in 0..=len {
                let (head, tail) = bytes[..len].split_at(cut);
                assert_eq!(
                    Crc32c::new().update(head).update(tail).finish(),
                    whole,
                    "{len} bytes cut at {cut}"
                );
            }
        }
    }
}

//! The implementations for x86-64.
//!
//! `crc32q` has a latency of three cycles, and `pclmulqdq` runs on another execution unit. Without
//! AVX-512, the input is therefore cut into blocks of four streams: three are advanced by `crc32q`,
//! and the fourth is folded by `pclmulqdq`. The four results are joined at the end of a block.

use core::arch::x86_64::{
    __m128i, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64, _mm_cvtsi128_si64,
    _mm_extract_epi64, _mm_set_epi64x, _mm_setzero_si128, _mm_xor_si128,
};
use core::sync::atomic::{AtomicU8, Ordering};

use crate::factors::{self, power};

mod wide;

/// Bytes that a step takes from each of the three streams of `crc32q`.
const SCALAR_STEP: usize = 8 * WORDS;
/// Words of eight bytes per stream and step.
const WORDS: usize = 4;
/// Bytes that a step folds.
const VECTOR_STEP: usize = 16 * LANES;
/// Number of vectors of 16 bytes that a step folds.
const LANES: usize = 2;
/// Bytes of all four streams in a step.
const STEP: usize = 3 * SCALAR_STEP + VECTOR_STEP;
/// Longest block, in steps: it stays in the first-level cache.
const MAX_STEPS: usize = 64;

/// Factors that move the registers of the three streams to the end of a block. The index is the
/// number of steps of the block.
///
/// The product of two reflected 32-bit polynomials is short of one factor x, and `crc32q`
/// multiplies by x^32: both are taken off the exponent.
const SHIFTS: [[u32; 3]; MAX_STEPS + 1] = {
    let mut shifts = [[0; 3]; MAX_STEPS + 1];
    let mut steps = 1;
    while steps <= MAX_STEPS {
        let mut stream = 0;
        while stream < 3 {
            let behind = steps * ((2 - stream) * SCALAR_STEP + VECTOR_STEP);
            shifts[steps][stream] = power(8 * behind - 33);
            stream += 1;
        }
        steps += 1;
    }
    shifts
};

/// Which instructions the processor has: a number of [`Level`], or 0 before they were detected.
static LEVEL: AtomicU8 = AtomicU8::new(0);

/// Implementations, by the instructions that they need.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Level {
    None = 1,
    /// SSE 4.2 and PCLMULQDQ.
    Scalar,
    /// The same, AVX-512 and VPCLMULQDQ.
    Wide,
}

#[cold]
fn detect() -> u8 {
    let has_scalar =
        std::is_x86_feature_detected!("sse4.2") && std::is_x86_feature_detected!("pclmulqdq");
    let has_wide =
        std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("vpclmulqdq");
    let level = match (has_scalar, has_wide) {
        (true, true) => Level::Wide,
        (true, false) => Level::Scalar,
        (false, _) => Level::None,
    } as u8;
    LEVEL.store(level, Ordering::Relaxed);
    level
}

/// Continues over `bytes`. Returns `None` if the processor lacks an instruction that is needed.
#[inline]
pub(crate) fn extend(register: u32, bytes: &[u8]) -> Option<u32> {
    let level = match LEVEL.load(Ordering::Relaxed) {
        0 => detect(),
        level => level,
    };
    if level == Level::None as u8 {
        return None;
    }
    // SAFETY: the functions need SSE 4.2 and PCLMULQDQ, which `detect` has found, and `wide` needs
    // the features of its level.
    Some(unsafe {
        match bytes.len() {
            ..=STEP => extend_words(u64::from(register), bytes),
            wide::MIN.. if level == Level::Wide as u8 => wide::extend(register, bytes),
            _ => extend_scalar(register, bytes),
        }
    })
}

#[target_feature(enable = "sse4.2,pclmulqdq")]
fn extend_scalar(mut register: u32, mut bytes: &[u8]) -> u32 {
    // A single step is not worth the combination.
    while bytes.len() > STEP {
        let steps = (bytes.len() / STEP).min(MAX_STEPS);
        let (block, rest) = bytes.split_at(steps * STEP);
        register = block_of_steps(register, block, steps);
        bytes = rest;
    }
    extend_words(u64::from(register), bytes)
}

/// Continues by `crc32q` alone.
#[target_feature(enable = "sse4.2")]
fn extend_words(mut register: u64, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks();
    for word in words {
        register = _mm_crc32_u64(register, u64::from_le_bytes(*word));
    }
    let (half, rest) = rest.as_chunks();
    if let [half] = half {
        register = _mm_crc32_u32(register as u32, u32::from_le_bytes(*half)).into();
    }
    rest.iter().fold(register as u32, |register, byte| _mm_crc32_u8(register, *byte))
}

/// Returns the register after the 16 bytes of a vector, to which everything before them was folded.
#[target_feature(enable = "sse4.2")]
fn reduce(folded: __m128i) -> u64 {
    let register = _mm_crc32_u64(0, _mm_cvtsi128_si64(folded) as u64);
    _mm_crc32_u64(register, _mm_extract_epi64::<1>(folded) as u64)
}

/// Continues over one block, which has the three streams of `crc32q` one after the other, then the
/// folded one.
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn block_of_steps(register: u32, block: &[u8], steps: usize) -> u32 {
    let (scalars, vectors) = block.split_at(3 * steps * SCALAR_STEP);
    let (first, scalars) = scalars.split_at(steps * SCALAR_STEP);
    let (second, third) = scalars.split_at(steps * SCALAR_STEP);
    let streams = first
        .as_chunks::<SCALAR_STEP>()
        .0
        .iter()
        .zip(second.as_chunks::<SCALAR_STEP>().0)
        .zip(third.as_chunks::<SCALAR_STEP>().0)
        .zip(vectors.as_chunks::<VECTOR_STEP>().0);
    let mut registers = [u64::from(register), 0, 0];
    let mut lanes = [_mm_setzero_si128(); LANES];
    for (((first, second), third), vectors) in streams {
        for (lane, vector) in lanes.iter_mut().zip(vectors.as_chunks::<16>().0) {
            *lane = _mm_xor_si128(fold::<VECTOR_STEP>(*lane), load(vector));
        }
        for index in 0..WORDS {
            registers[0] = _mm_crc32_u64(registers[0], word(first, index));
            registers[1] = _mm_crc32_u64(registers[1], word(second, index));
            registers[2] = _mm_crc32_u64(registers[2], word(third, index));
        }
    }
    combine(registers, lanes, &SHIFTS[steps])
}

/// Returns the register at the end of a block, computed from those of its four streams.
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn combine(registers: [u64; 3], lanes: [__m128i; LANES], shifts: &[u32; 3]) -> u32 {
    let mut shifted = _mm_setzero_si128();
    for (register, shift) in registers.iter().zip(shifts) {
        let factors = _mm_set_epi64x(i64::from(*shift), *register as i64);
        shifted = _mm_xor_si128(shifted, _mm_clmulepi64_si128::<0x10>(factors, factors));
    }
    let mut folded = lanes[0];
    for lane in &lanes[1..] {
        folded = _mm_xor_si128(fold::<16>(folded), *lane);
    }
    (reduce(folded) ^ _mm_crc32_u64(0, _mm_cvtsi128_si64(shifted) as u64)) as u32
}

/// Multiplies a vector by x^(8 * BYTES), without reducing the product to 32 bits.
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn fold<const BYTES: usize>(vector: __m128i) -> __m128i {
    let [early, late] = const { factors::fold(BYTES) };
    let factors = _mm_set_epi64x(late, early);
    _mm_xor_si128(
        _mm_clmulepi64_si128::<0x00>(vector, factors),
        _mm_clmulepi64_si128::<0x11>(vector, factors),
    )
}

#[target_feature(enable = "sse4.2")]
fn load(bytes: &[u8; 16]) -> __m128i {
    let wide = u128::from_le_bytes(*bytes);
    _mm_set_epi64x((wide >> 64) as i64, wide as i64)
}

#[inline(always)]
fn word(bytes: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(bytes.as_chunks().0[index])
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use crc::{CRC_32_ISCSI, Crc, Table};
    use proptest::prelude::*;

    use super::*;

    static TABLE: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

    /// Compares all implementations that the processor supports with the table.
    fn check(bytes: &[u8], cut: usize) {
        let (first, second) = bytes.split_at(cut);
        let level = detect();
        let mut implementations: Vec<fn(u32, &[u8]) -> u32> = Vec::new();
        if level != Level::None as u8 {
            // SAFETY: the features were detected.
            implementations.push(|register, bytes| unsafe { extend_scalar(register, bytes) });
            implementations.push(|register, bytes| extend(register, bytes).unwrap());
        }
        for extend in implementations {
            let end = extend(extend(!0, first), second);
            assert_eq!(!end, TABLE.checksum(bytes), "{} bytes, cut at {cut}", bytes.len());
        }
    }

    #[test]
    fn lengths_agree_with_table() {
        let bytes: Vec<u8> = (0..3 * MAX_STEPS * STEP).map(|n| (n * n % 251) as u8).collect();
        for len in
            (0..6 * STEP).chain((1..=3 * MAX_STEPS).map(|n| n * STEP)).chain([bytes.len() - 1])
        {
            check(&bytes[..len], 0);
            check(&bytes[..len], len / 3);
        }
    }

    proptest! {
        #[test]
        fn random_bytes_agree_with_table(bytes in prop::collection::vec(any::<u8>(), 0..3 * STEP), cut in 0..3 * STEP) {
            check(&bytes, cut.min(bytes.len()));
        }
    }
}

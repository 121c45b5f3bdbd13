//! The implementation for x86-64.

use core::arch::x86_64::{
    __m128i, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u64, _mm_cvtsi128_si64, _mm_extract_epi64,
    _mm_set_epi64x, _mm_setzero_si128, _mm_xor_si128,
};
use core::sync::atomic::{AtomicUsize, Ordering};

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

/// Returns the product of two polynomials modulo the Castagnoli polynomial; bit 31 is the
/// coefficient of x^0.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        if a >> bit & 1 == 1 {
            product ^= b;
        }
        b = b >> 1 ^ (0x82F6_3B78 & (b & 1).wrapping_neg());
    }
    product
}

/// Returns x^n modulo the Castagnoli polynomial.
const fn power(mut n: usize) -> u32 {
    let (mut result, mut square) = (1 << 31, 1 << 30);
    while n > 0 {
        if n & 1 == 1 {
            result = multiply(result, square);
        }
        square = multiply(square, square);
        n >>= 1;
    }
    result
}

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

/// Returns the factors that move a vector ahead by `bytes`: for its second and its first half.
///
/// The low half of a vector holds the earlier bytes, so it is 64 bits further from the end.
/// Products of reflected polynomials are short of one factor x, which is taken off the exponents.
const fn fold_factors(bytes: usize) -> (i64, i64) {
    let late = (power(8 * bytes - 1) as i64) << 32;
    let early = (power(8 * bytes + 63) as i64) << 32;
    (late, early)
}

/// Longest input for which this implementation is as fast as folding with AVX-512.
const MAX_BESIDE_AVX512: usize = 256;

/// Longest input for [`extend_if_fastest`] on this processor, or [`UNKNOWN`] before the processor's
/// features were detected.
static MAX_LEN: AtomicUsize = AtomicUsize::new(UNKNOWN);
/// No input has this length, because an allocation has at most `isize::MAX` bytes.
const UNKNOWN: usize = usize::MAX;

#[cold]
fn detect_max_len() -> usize {
    let max_len = match is_available() {
        true if std::is_x86_feature_detected!("avx512vl") => MAX_BESIDE_AVX512,
        true => UNKNOWN - 1,
        false => 0,
    };
    MAX_LEN.store(max_len, Ordering::Relaxed);
    max_len
}

fn is_available() -> bool {
    std::is_x86_feature_detected!("sse4.2") && std::is_x86_feature_detected!("pclmulqdq")
}

#[inline]
pub(crate) fn extend_if_fastest(register: u32, bytes: &[u8]) -> Option<u32> {
    let max_len = match MAX_LEN.load(Ordering::Relaxed) {
        UNKNOWN => detect_max_len(),
        max_len => max_len,
    };
    if bytes.is_empty() {
        return Some(register);
    }
    // SAFETY: the function needs SSE 4.2 and PCLMULQDQ. `detect_max_len` has found both, because
    // the result is 0 otherwise.
    (bytes.len() <= max_len).then(|| unsafe { extend_detected(register, bytes) })
}

#[inline]
pub(crate) fn extend(register: u32, bytes: &[u8]) -> Option<u32> {
    // SAFETY: the function needs SSE 4.2 and PCLMULQDQ, and `is_available` has detected both.
    is_available().then(|| unsafe { extend_detected(register, bytes) })
}

#[target_feature(enable = "sse4.2,pclmulqdq")]
fn extend_detected(mut register: u32, mut bytes: &[u8]) -> u32 {
    // A single step is not worth the combination.
    while bytes.len() > STEP {
        let steps = (bytes.len() / STEP).min(MAX_STEPS);
        let (block, rest) = bytes.split_at(steps * STEP);
        register = block_of_steps(register, block, steps);
        bytes = rest;
    }
    let (words, rest) = bytes.as_chunks();
    let mut wide = u64::from(register);
    for word in words {
        wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
    }
    rest.iter().fold(wide as u32, |register, byte| _mm_crc32_u8(register, *byte))
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
    let vector = _mm_crc32_u64(0, _mm_cvtsi128_si64(folded) as u64);
    let vector = _mm_crc32_u64(vector, _mm_extract_epi64::<1>(folded) as u64);
    (vector ^ _mm_crc32_u64(0, _mm_cvtsi128_si64(shifted) as u64)) as u32
}

/// Multiplies a vector by x^(8 * BYTES), without reducing the product to 32 bits.
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn fold<const BYTES: usize>(vector: __m128i) -> __m128i {
    let (late, early) = const { fold_factors(BYTES) };
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

    fn check(bytes: &[u8], cut: usize) {
        let (first, second) = bytes.split_at(cut);
        let Some(register) = extend(!0, first) else { return };
        let end = extend(register, second).unwrap();
        assert_eq!(!end, TABLE.checksum(bytes), "{} bytes, cut at {cut}", bytes.len());
        assert_eq!(extend_if_fastest(!0, first).unwrap_or(register), register);
        assert_eq!(extend_if_fastest(register, second).unwrap_or(end), end);
    }

    #[test]
    fn lengths_agree_with_table() {
        let bytes: Vec<u8> = (0..3 * MAX_STEPS * STEP).map(|n| (n * n % 251) as u8).collect();
        for len in (0..6 * STEP).chain((1..=3 * MAX_STEPS).map(|n| n * STEP)).chain([bytes.len() - 1]) {
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

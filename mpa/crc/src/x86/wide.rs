//! Folding of vectors of 64 bytes.

use core::arch::x86_64::{
    __m128i, __m512i, _mm_cvtsi32_si128, _mm_xor_si128, _mm256_castsi256_si128,
    _mm256_extracti128_si256, _mm256_xor_si256, _mm512_castsi512_si256, _mm512_clmulepi64_epi128,
    _mm512_extracti32x4_epi32, _mm512_extracti64x4_epi64, _mm512_loadu_si512, _mm512_set_epi64,
    _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};

use super::{extend_words, reduce};
use crate::factors;

/// Bytes of a vector.
const VECTOR: usize = 64;
/// Number of vectors that are folded independently.
const LANES: usize = 4;
/// Bytes of a step.
const STEP: usize = VECTOR * LANES;
/// Minimum length of an input.
pub(super) const MIN: usize = STEP;

/// Continues over at least [`MIN`] bytes.
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,vpclmulqdq")]
pub(super) fn extend(register: u32, bytes: &[u8]) -> u32 {
    let (vectors, rest) = bytes.as_chunks::<VECTOR>();
    let (steps, vectors) = vectors.as_chunks::<LANES>();
    let Some((first, steps)) = steps.split_first() else {
        return extend_words(u64::from(register), bytes);
    };
    let mut lanes = [vector(&first[0]), vector(&first[1]), vector(&first[2]), vector(&first[3])];
    let register = _mm_cvtsi32_si128(register.cast_signed());
    lanes[0] = _mm512_xor_si512(lanes[0], _mm512_zextsi128_si512(register));
    let factors = four(const { [factors::fold(STEP); 4] });
    for step in steps {
        for (lane, next) in lanes.iter_mut().zip(step) {
            *lane = fold(*lane, factors, vector(next));
        }
    }
    let factors = four(const { [factors::fold(VECTOR); 4] });
    let mut folded = lanes[0];
    for lane in &lanes[1..] {
        folded = fold(folded, factors, *lane);
    }
    for next in vectors {
        folded = fold(folded, factors, vector(next));
    }
    extend_words(reduce(join(folded)), rest)
}

/// Moves each part of 16 bytes ahead by the bytes that `factors` stand for, and adds `next`.
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(folded: __m512i, factors: __m512i, next: __m512i) -> __m512i {
    let early = _mm512_clmulepi64_epi128::<0x00>(folded, factors);
    let late = _mm512_clmulepi64_epi128::<0x11>(folded, factors);
    // The exclusive-or of all three.
    _mm512_ternarylogic_epi64::<0x96>(early, late, next)
}

/// Folds the four parts of 16 bytes.
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn join(folded: __m512i) -> __m128i {
    let factors = four(const { [factors::fold(48), factors::fold(32), factors::fold(16), [0; 2]] });
    let last = _mm512_extracti32x4_epi32::<3>(folded);
    let moved = fold(folded, factors, _mm512_zextsi128_si512(last));
    let halves =
        _mm256_xor_si256(_mm512_castsi512_si256(moved), _mm512_extracti64x4_epi64::<1>(moved));
    _mm_xor_si128(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves))
}

#[target_feature(enable = "avx512f")]
fn vector(bytes: &[u8; VECTOR]) -> __m512i {
    // SAFETY: the intrinsic reads 64 bytes of any alignment, which is the length of the array.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
fn four(parts: [[i64; 2]; 4]) -> __m512i {
    let [[a, b], [c, d], [e, f], [g, h]] = parts;
    _mm512_set_epi64(h, g, f, e, d, c, b, a)
}

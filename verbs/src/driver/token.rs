//! The parts of a token: from the lowest bit the key of the slot (26 bits), the number of the shard
//! (6 bits), and the generation of the slot (32 bits).

use super::SHARD_SHIFT;
use uiw_llp::Token;

/// Composes a token.
#[inline]
pub(super) fn token(key: usize, shard: usize, generation: u32) -> Token {
    Token(key as u64 | (shard as u64) << SHARD_SHIFT | u64::from(generation) << 32)
}

/// Returns the key of the slot.
#[inline]
pub(super) fn key_of(token: Token) -> usize {
    (token.0 as u32 & ((1 << SHARD_SHIFT) - 1)) as usize
}

/// Returns the generation of the slot.
#[inline]
pub(super) fn generation_of(token: Token) -> u32 {
    (token.0 >> 32) as u32
}

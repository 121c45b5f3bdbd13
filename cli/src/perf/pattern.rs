//! Bytes of validated messages: a function of the message's number.

/// Fills `out` with the bytes of message `seq`.
pub(crate) fn fill(seq: u64, out: &mut [u8]) {
    let mut state = seq.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
    for word in out.chunks_mut(8) {
        // xorshift64*: cheap, and no two neighbouring words or messages are alike.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let bytes = state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
}

/// The `len` bytes of message `seq`.
pub(crate) fn message(seq: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    fill(seq, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_differ_and_lengths_are_prefixes() {
        assert_ne!(message(0, 64), message(1, 64));
        assert_eq!(message(7, 13), message(7, 64)[..13]);
        assert!(message(u64::MAX, 9).iter().any(|&byte| byte != 0));
    }
}

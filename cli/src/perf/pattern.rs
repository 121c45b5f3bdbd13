//! Bytes of validated messages: a function of the message's number.

/// Bytes of a part that [`parts`] generates at a time.
const PART: usize = 64 << 10;

/// Generator of the bytes of a message.
struct PatternWords(u64);

impl PatternWords {
    fn new(seq: u64) -> Self {
        Self(seq.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    /// Fills `out` with the next bytes. Only the last part of a message may have a length that is
    /// not a multiple of 8.
    fn fill(&mut self, out: &mut [u8]) {
        let mut state = self.0;
        for word in out.chunks_mut(8) {
            // xorshift64*: cheap, and no two neighbouring words or messages are alike.
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            let bytes = state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes();
            word.copy_from_slice(&bytes[..word.len()]);
        }
        self.0 = state;
    }
}

/// Fills `out` with the bytes of message `seq`.
pub(crate) fn fill(seq: u64, out: &mut [u8]) {
    PatternWords::new(seq).fill(out);
}

/// Calls `each` with every part of the `len` bytes of message `seq` and its offset, until it
/// returns false. Returns whether `each` always returned true. Memory is used for one part only, so
/// a peer cannot make this end allocate long messages.
pub(crate) fn parts<E>(
    seq: u64,
    len: usize,
    mut each: impl FnMut(usize, &[u8]) -> Result<bool, E>,
) -> Result<bool, E> {
    let (mut words, mut part) = (PatternWords::new(seq), vec![0; PART.min(len)]);
    for offset in (0..len).step_by(PART) {
        let part = &mut part[..PART.min(len - offset)];
        words.fill(part);
        if !each(offset, part)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the `len` bytes of message `seq`.
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
        let (mut whole, len) = (Vec::new(), 2 * PART + 13);
        let all = parts(7, len, |offset, part| {
            assert_eq!(offset, whole.len());
            whole.extend_from_slice(part);
            Ok::<_, ()>(true)
        });
        assert_eq!((all, whole), (Ok(true), message(7, len)));
        assert!(message(u64::MAX, 9).iter().any(|&byte| byte != 0));
    }
}

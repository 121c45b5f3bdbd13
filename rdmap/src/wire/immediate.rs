//! Immediate Data (RFC 7306 section 6.3): eight bytes, which are the payload of the message.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                                                               |
//! +                         Immediate Data                        +
//! |                                                               |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```

use super::{FormatError, check_len};
use crate::Opcode;

/// Eight bytes for the peer's ULP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ImmediateData(pub [u8; Self::LEN]);

impl ImmediateData {
    /// Length on the wire in bytes.
    pub const LEN: usize = 8;

    /// Decodes the bytes after the DDP header.
    ///
    /// # Errors
    /// Returns a [`FormatError`] if there are not exactly eight bytes, which the receiver must
    /// check (RFC 7306 section 6.3).
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        check_len(Opcode::Immediate, bytes).map(|bytes| Self(*bytes))
    }

    /// Encodes the data.
    #[must_use]
    pub const fn emit(&self) -> [u8; Self::LEN] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [test:RFC7306-6.3-06]
    #[test]
    fn exactly_eight_bytes() {
        let data = ImmediateData([1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ImmediateData::parse(&data.emit()), Ok(data));
        for len in (0..20).filter(|len| *len != 8) {
            let error = ImmediateData::parse(&[0; 20][..len]);
            assert_eq!(
                error,
                Err(FormatError::Length { message: Opcode::Immediate, len, needed: 8 })
            );
        }
    }
}

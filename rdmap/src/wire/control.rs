//! RDMAP control byte, which DDP carries as the first byte of RsvdULP (RFC 5040 section 4.1,
//! Figure 3).
//!
//! ```text
//!  0 1 2 3 4 5 6 7
//! +-+-+-+-+-+-+-+-+
//! |RV |Rsv|OpCode |
//! +-+-+-+-+-+-+-+-+
//! ```

use super::VERSION;
use crate::Opcode;

/// Control byte, with all fields as they are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Control {
    /// RV: 1 according to RFC 5040.
    pub version: u8,
    /// Rsv, two bits: sent as zero and ignored, except for [`SOLICITED`](Self::SOLICITED) in an
    /// [`Opcode::SendImm`].
    pub rsv: u8,
    /// Raw opcode, four bits. See [`Opcode::from_raw`].
    pub opcode: u8,
}

impl Control {
    /// Bit of `rsv` that makes an [`Opcode::SendImm`] solicited. Ends that have agreed on this
    /// message have also agreed on this bit.
    pub const SOLICITED: u8 = 0b01;

    /// Creates the control byte of a message.
    #[must_use]
    pub const fn new(opcode: Opcode) -> Self {
        Self { version: VERSION, rsv: 0, opcode: opcode.raw() }
    }

    /// Decodes the byte.
    #[inline]
    #[must_use]
    pub const fn parse(byte: u8) -> Self {
        Self { version: byte >> 6, rsv: byte >> 4 & 0b11, opcode: byte & 0x0F }
    }

    /// Encodes the byte.
    #[inline]
    #[must_use]
    pub const fn emit(self) -> u8 {
        self.version << 6 | (self.rsv & 0b11) << 4 | self.opcode & 0x0F
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [test:RFC5040-4.1-02] [test:RFC5040-4.1-09] [test:RFC5040-4.1-10] [test:RFC5040-4.1-11]
    // [test:RFC7306-4.1-02]
    #[test]
    fn header_bits_at_offsets() {
        assert_eq!(Control::new(Opcode::SendSeInvalidate).emit(), 0x46);
        assert_eq!(Control::parse(0x46), Control { version: 1, rsv: 0, opcode: 6 });
        assert_eq!(Control::parse(0xBF), Control { version: 2, rsv: 3, opcode: 15 });
        for byte in 0..=255 {
            assert_eq!(Control::parse(byte).emit(), byte);
        }
    }
}

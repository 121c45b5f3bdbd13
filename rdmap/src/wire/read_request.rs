//! RDMA Read Request Header (RFC 5040 section 4.4, Figure 6).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                     Data Sink STag (SinkSTag)                 |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                                                               |
//! +                  Data Sink Tagged Offset (SinkTO)             +
//! |                                                               |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                  RDMA Read Message Size (RDMARDSZ)            |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                     Data Source STag (SrcSTag)                |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                                                               |
//! +                  Data Source Tagged Offset (SrcTO)            +
//! |                                                               |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```

use uiw_ddp::STag;

use super::{FormatError, check_len, u32_at, u64_at};
use crate::Opcode;

/// Source, sink and length of an RDMA Read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadRequest {
    /// STag of the requester's buffer. The responder copies it to the Response without interpreting
    /// it.
    pub sink_stag: STag,
    /// Offset in the requester's buffer at which the Response starts.
    pub sink_to: u64,
    /// Number of bytes to read. If it is 0, source STag and TO must not be validated.
    pub len: u32,
    /// STag of the responder's buffer.
    pub source_stag: STag,
    /// Offset in the responder's buffer.
    pub source_to: u64,
}

impl ReadRequest {
    /// Length on the wire in bytes.
    pub const LEN: usize = 28;

    /// Decodes the bytes after the DDP header.
    ///
    /// # Errors
    /// Returns a [`FormatError`] if there are not exactly 28 bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        check_len(Opcode::ReadRequest, bytes).map(Self::from_bytes)
    }

    #[inline]
    pub(super) fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            sink_stag: STag(u32_at(bytes, 0)),
            sink_to: u64_at(bytes, 4),
            len: u32_at(bytes, 12),
            source_stag: STag(u32_at(bytes, 16)),
            source_to: u64_at(bytes, 20),
        }
    }

    /// Encodes the request.
    #[inline]
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.sink_stag.0.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.sink_to.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.source_stag.0.to_be_bytes());
        bytes[20..].copy_from_slice(&self.source_to.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [test:RFC5040-4.4-01]
    #[test]
    fn bytes_at_offsets() {
        let bytes: [u8; 28] = core::array::from_fn(|n| n as u8 + 1);
        let request = ReadRequest {
            sink_stag: STag(0x0102_0304),
            sink_to: 0x0506_0708_090A_0B0C,
            len: 0x0D0E_0F10,
            source_stag: STag(0x1112_1314),
            source_to: 0x1516_1718_191A_1B1C,
        };
        assert_eq!(ReadRequest::parse(&bytes), Ok(request));
        assert_eq!(request.emit(), bytes);
    }

    #[test]
    fn other_lengths_rejected() {
        for len in (0..40).filter(|len| *len != 28) {
            let error = ReadRequest::parse(&[0; 40][..len]);
            assert_eq!(
                error,
                Err(FormatError::Length { message: Opcode::ReadRequest, len, needed: 28 })
            );
        }
    }
}

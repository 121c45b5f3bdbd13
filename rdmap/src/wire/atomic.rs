//! Atomic Operation Request and Response Headers (RFC 7306 section 5.2, Figures 4 and 6).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                      Reserved (Not Used)              |AOpCode|
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                       Request Identifier                      |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                          Remote STag                          |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                  Remote Tagged Offset (64 bits)               |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                   Add or Swap Data (64 bits)                  |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                   Add or Swap Mask (64 bits)                  |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                     Compare Data (64 bits)                    |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                     Compare Mask (64 bits)                    |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//!
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                    Original Request Identifier                |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |               Original Remote Data Value (64 bits)            |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```

use uiw_ddp::STag;

use super::{FormatError, check_len, u32_at, u64_at};
use crate::Opcode;

/// Kind of atomic operation. An implementation that supports one kind has to support both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AtomicOp {
    /// Adds a number, separately for each field of the mask.
    FetchAdd = 0,
    /// Compares and, if the values are equal, swaps. Each of the two steps has a mask.
    CmpSwap = 2,
}

/// Request for an atomic operation on 64 bits of the responder's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicRequest {
    /// Operation to perform.
    pub op: AtomicOp,
    /// Identifier that the requester chooses and the Response repeats.
    pub request_id: u32,
    /// STag of the responder's buffer.
    pub stag: STag,
    /// Offset in the responder's buffer. The address that it refers to must be 64-bit aligned.
    pub to: u64,
    /// Number to add, or value to swap in.
    pub data: u64,
    /// FetchAdd: highest bit of each field, or 0 for one field of 64 bits. CmpSwap: bits to
    /// replace.
    pub mask: u64,
    /// CmpSwap: expected value. FetchAdd: sent as zero and ignored.
    pub compare: u64,
    /// CmpSwap: bits to compare. FetchAdd: sent as all ones and ignored.
    pub compare_mask: u64,
}

impl AtomicRequest {
    /// Length on the wire in bytes.
    pub const LEN: usize = 52;

    /// Returns the request of a FetchAdd.
    #[must_use]
    pub const fn fetch_add(request_id: u32, stag: STag, to: u64, data: u64, mask: u64) -> Self {
        let op = AtomicOp::FetchAdd;
        Self { op, request_id, stag, to, data, mask, compare: 0, compare_mask: u64::MAX }
    }

    /// Decodes the bytes after the DDP header. The reserved bits are ignored.
    ///
    /// # Errors
    /// Returns a [`FormatError`] if there are not exactly 52 bytes, or the kind of operation is
    /// unknown.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes: &[u8; Self::LEN] = check_len(Opcode::AtomicRequest, bytes)?;
        let op = match bytes[3] & 0x0F {
            0 => AtomicOp::FetchAdd,
            2 => AtomicOp::CmpSwap,
            code => return Err(FormatError::AtomicCode { code }),
        };
        Ok(Self {
            op,
            request_id: u32_at(bytes, 4),
            stag: STag(u32_at(bytes, 8)),
            to: u64_at(bytes, 12),
            data: u64_at(bytes, 20),
            mask: u64_at(bytes, 28),
            compare: u64_at(bytes, 36),
            compare_mask: u64_at(bytes, 44),
        })
    }

    /// Encodes the request. Compare Data and Compare Mask of a FetchAdd have the values that the
    /// RFC requires.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let (compare, compare_mask) = match self.op {
            AtomicOp::FetchAdd => (0, u64::MAX),
            AtomicOp::CmpSwap => (self.compare, self.compare_mask),
        };
        let mut bytes = [0; Self::LEN];
        bytes[3] = self.op as u8;
        bytes[4..8].copy_from_slice(&self.request_id.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.stag.0.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.to.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.data.to_be_bytes());
        bytes[28..36].copy_from_slice(&self.mask.to_be_bytes());
        bytes[36..44].copy_from_slice(&compare.to_be_bytes());
        bytes[44..].copy_from_slice(&compare_mask.to_be_bytes());
        bytes
    }

    /// Returns the new value of memory that contained `old` (RFC 7306 sections 5.1.1 and 5.1.2).
    /// `old` and the fields of the request are in the responder's byte order.
    #[must_use]
    pub const fn apply(&self, old: u64) -> u64 {
        match self.op {
            // The highest bit of each field is left out of the addition, so that no carry leaves
            // its field. The highest bits are then added without carry.
            AtomicOp::FetchAdd => {
                let below = (old & !self.mask).wrapping_add(self.data & !self.mask);
                below ^ ((old ^ self.data) & self.mask)
            }
            AtomicOp::CmpSwap if (self.compare ^ old) & self.compare_mask == 0 => {
                old & !self.mask | self.data & self.mask
            }
            AtomicOp::CmpSwap => old,
        }
    }
}

/// Value of the responder's memory before an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicResponse {
    /// Identifier copied from the Request.
    pub request_id: u32,
    /// Value before the operation, which is returned even if the operation did not change it.
    pub original: u64,
}

impl AtomicResponse {
    /// Length on the wire in bytes, as in RFC 7306 Figure 6. Section 4 mentions 32 bytes.
    pub const LEN: usize = 12;

    /// Decodes the bytes after the DDP header.
    ///
    /// # Errors
    /// Returns a [`FormatError`] if there are not exactly 12 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes: &[u8; Self::LEN] = check_len(Opcode::AtomicResponse, bytes)?;
        Ok(Self { request_id: u32_at(bytes, 0), original: u64_at(bytes, 4) })
    }

    /// Encodes the response.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.request_id.to_be_bytes());
        bytes[4..].copy_from_slice(&self.original.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: AtomicRequest = AtomicRequest {
        op: AtomicOp::CmpSwap,
        request_id: 0x0506_0708,
        stag: STag(0x090A_0B0C),
        to: 0x0D0E_0F10_1112_1314,
        data: 0x1516_1718_191A_1B1C,
        mask: 0x1D1E_1F20_2122_2324,
        compare: 0x2526_2728_292A_2B2C,
        compare_mask: 0x2D2E_2F30_3132_3334,
    };

    fn bytes() -> [u8; 52] {
        let mut bytes = core::array::from_fn(|n| n as u8 + 1);
        bytes[..4].copy_from_slice(&[0, 0, 0, 2]);
        bytes
    }

    #[test]
    fn request_bytes_at_offsets() {
        assert_eq!(AtomicRequest::parse(&bytes()), Ok(REQUEST));
        assert_eq!(REQUEST.emit(), bytes());
        let mut reserved = bytes();
        reserved[..4].copy_from_slice(&[0xFF, 0xFF, 0xFF, 0xF2]);
        assert_eq!(AtomicRequest::parse(&reserved), Ok(REQUEST), "reserved bits are ignored");
        for len in (0..60).filter(|len| *len != 52) {
            let error = AtomicRequest::parse(&[0; 60][..len]);
            assert_eq!(
                error,
                Err(FormatError::Length { message: Opcode::AtomicRequest, len, needed: 52 })
            );
        }
    }

    #[test]
    fn fetch_add_compares_nothing() {
        let request = AtomicRequest { op: AtomicOp::FetchAdd, ..REQUEST }.emit();
        assert_eq!(request[3], 0);
        assert_eq!((&request[36..44], &request[44..]), (&[0; 8][..], &[0xFF; 8][..]));
    }

    // [test:RFC7306-5.2.1-01] [test:RFC7306-5.2.1-08] [test:RFC7306-5-03]
    #[test]
    fn other_atomic_operations_rejected() {
        for code in 0..16 {
            let mut bytes = bytes();
            bytes[3] = code;
            match AtomicRequest::parse(&bytes) {
                Ok(request) => assert_eq!(request.op as u8, code),
                Err(error) => {
                    assert!(code != 0 && code != 2);
                    assert_eq!(error, FormatError::AtomicCode { code });
                }
            }
        }
    }

    #[test]
    fn response_bytes_at_offsets() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        let response = AtomicResponse { request_id: 0x0102_0304, original: 0x0506_0708_090A_0B0C };
        assert_eq!(AtomicResponse::parse(&bytes), Ok(response));
        assert_eq!(response.emit(), bytes);
        for len in (0..40).filter(|len| *len != 12) {
            assert!(AtomicResponse::parse(&[0; 40][..len]).is_err());
        }
    }
}

//! Tagged DDP header (RFC 5041 section 4.2, Figure 4).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!                                 +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//!                                 |T|L| Rsvd  |DV |   RsvdULP     |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                              STag                             |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                                                               |
//! +                               TO                              +
//! |                                                               |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```

use super::{L, control_byte};
use crate::STag;

/// Header of a segment for a Tagged Buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tagged {
    /// L: this is the last segment of its message.
    pub last: bool,
    /// RsvdULP, carried for the ULP; the same in all segments of a message.
    pub rsvd_ulp: u8,
    /// STag of the Tagged Buffer for the payload. It must not be checked if the segment has no
    /// payload.
    pub stag: STag,
    /// Tagged Offset of the payload's first byte. It must not be checked if the segment has no
    /// payload.
    pub to: u64,
}

impl Tagged {
    /// Length on the wire in bytes.
    pub const LEN: usize = 14;

    #[inline]
    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [control, rsvd_ulp, s0, s1, s2, s3, to @ ..] = *bytes;
        Self {
            last: control & L != 0,
            rsvd_ulp,
            stag: STag(u32::from_be_bytes([s0, s1, s2, s3])),
            to: u64::from_be_bytes(to),
        }
    }

    /// Encodes the header.
    #[inline]
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = control_byte(true, self.last);
        bytes[1] = self.rsvd_ulp;
        bytes[2..6].copy_from_slice(&self.stag.0.to_be_bytes());
        bytes[6..].copy_from_slice(&self.to.to_be_bytes());
        bytes
    }
}

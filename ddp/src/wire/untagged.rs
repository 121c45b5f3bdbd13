//! Untagged DDP header (RFC 5041 section 4.3, Figure 5).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!                                 +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//!                                 |T|L| Rsvd  |DV | RsvdULP[0:7]  |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                         RsvdULP[8:39]                         |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                               QN                              |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                              MSN                              |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                              MO                               |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```

use super::{L, control_byte};

/// Header of a segment for an Untagged Buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Untagged {
    /// L: this is the last segment of its message.
    pub last: bool,
    /// RsvdULP\[0:7\], carried for the ULP; the same in all segments of a message.
    pub rsvd_ulp: u8,
    /// RsvdULP\[8:39\], carried for the ULP; the same in all segments of a message.
    pub rsvd_ulp32: u32,
    /// Queue Number.
    pub qn: u32,
    /// Message Sequence Number: 1 for the first message of a queue, incremented for each message. 0
    /// follows 0xFFFFFFFF.
    pub msn: u32,
    /// Message Offset of the payload's first byte.
    pub mo: u32,
}

impl Untagged {
    /// Length on the wire in bytes.
    pub const LEN: usize = 18;

    #[inline]
    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Self {
            last: bytes[0] & L != 0,
            rsvd_ulp: bytes[1],
            rsvd_ulp32: word(2),
            qn: word(6),
            msn: word(10),
            mo: word(14),
        }
    }

    /// Encodes the header.
    #[inline]
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = control_byte(false, self.last);
        bytes[1] = self.rsvd_ulp;
        bytes[2..6].copy_from_slice(&self.rsvd_ulp32.to_be_bytes());
        bytes[6..10].copy_from_slice(&self.qn.to_be_bytes());
        bytes[10..14].copy_from_slice(&self.msn.to_be_bytes());
        bytes[14..].copy_from_slice(&self.mo.to_be_bytes());
        bytes
    }
}

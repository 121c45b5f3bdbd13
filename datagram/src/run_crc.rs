//! CRCs of datagrams whose headers differ only in the MSN.

use crate::header::MSN;
use crate::{CRC_LEN, crc};

/// Maximum length in bytes of datagrams for which skipping the part before the MSN makes the CRC
/// faster.
const LONGEST: usize = 512;

/// Computes the CRCs of datagrams that have the same length and whose headers differ only in the
/// MSN.
///
/// A CRC is an affine function of the bits. So for messages with the same length and the same first
/// bytes, the exclusive-or of the CRC of all bytes and the CRC of the remaining bytes is a
/// constant. It is computed once, after which only the remaining bytes of each datagram are read.
#[derive(Clone, Copy, Debug)]
pub struct RunCrc {
    /// Exclusive-or of the CRC of a datagram and the CRC of its part from the MSN on. `None` if the
    /// datagrams are so long that their complete CRCs are computed.
    difference: Option<u32>,
}

impl RunCrc {
    /// Prepares the CRCs of datagrams that have the same length and header as `bytes`, a datagram
    /// without its CRC field.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let rest = bytes.get(MSN..).filter(|_| bytes.len() <= LONGEST);
        let number = |field| u32::from_le_bytes(field);
        Self { difference: rest.map(|rest| number(crc(bytes)) ^ number(crc(rest))) }
    }

    /// Returns the CRC field of a datagram. It is wrong if the length differs from that of the
    /// prepared datagram, or the header differs in more than the MSN.
    #[inline]
    #[must_use]
    pub fn crc(&self, bytes: &[u8]) -> [u8; CRC_LEN] {
        match (self.difference, bytes.get(MSN..)) {
            (Some(difference), Some(rest)) => {
                (u32::from_le_bytes(crc(rest)) ^ difference).to_le_bytes()
            }
            _ => crc(bytes),
        }
    }
}

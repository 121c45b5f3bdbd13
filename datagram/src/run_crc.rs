//! CRCs of datagrams whose headers differ in the MSN alone.

use crate::header::MSN;
use crate::{CRC_LEN, crc};

/// Bytes of the longest datagrams for which the part in front of the MSN is worth leaving out.
const LONGEST: usize = 512;

/// The CRCs of datagrams of one length whose headers differ in the MSN alone.
///
/// A CRC is an affine function of the bits: of messages that have the same first bytes and one
/// length, the exclusive-or of the CRC of the whole and the CRC of the rest is the same. So the
/// first bytes are read once.
#[derive(Clone, Copy, Debug)]
pub struct RunCrc {
    /// The CRC of a datagram and that of its part from the MSN on, as one number. `None`: whole
    /// datagrams are read.
    difference: Option<u32>,
}

impl RunCrc {
    /// Prepares the CRCs of datagrams that have the length and header of `bytes`, which excludes
    /// the CRC field.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let rest = bytes.get(MSN..).filter(|_| bytes.len() <= LONGEST);
        let number = |field| u32::from_le_bytes(field);
        Self { difference: rest.map(|rest| number(crc(bytes)) ^ number(crc(rest))) }
    }

    /// The CRC field behind a datagram. It is another one if the length is not the common one, or
    /// the header differs in more than the MSN.
    #[inline]
    #[must_use]
    pub fn crc(&self, bytes: &[u8]) -> [u8; CRC_LEN] {
        match (self.difference, bytes.get(MSN..)) {
            (Some(difference), Some(rest)) => (u32::from_le_bytes(crc(rest)) ^ difference).to_le_bytes(),
            _ => crc(bytes),
        }
    }
}

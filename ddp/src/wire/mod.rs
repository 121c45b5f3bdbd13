//! DDP headers (RFC 5041 section 4).
//!
//! Both kinds of header begin with the DDP control byte:
//!
//! ```text
//!  0 1 2 3 4 5 6 7
//! +-+-+-+-+-+-+-+-+
//! |T|L| Rsvd  |DV |
//! +-+-+-+-+-+-+-+-+
//! ```
//!
//! T: tagged; L: last segment of its message; Rsvd: sent as zero, not checked; DV: version, 1.

mod tagged;
mod untagged;

pub use tagged::Tagged;
pub use untagged::Untagged;

/// Version of DDP in RFC 5041.
pub const VERSION: u8 = 1;

/// Bit T of the DDP control byte, which is set in tagged segments.
pub const T: u8 = 0x80;
const L: u8 = 0x40;
const DV: u8 = 0x03;

/// Header of a DDP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Header {
    /// T = 1: STag and TO state the destination of the payload.
    Tagged(Tagged),
    /// T = 0: the destination is the receive buffer of the message with this queue and MSN.
    Untagged(Untagged),
}

impl Header {
    /// Length in bytes of the longest header.
    pub const MAX_LEN: usize = Untagged::LEN;

    /// Decodes the header at the front of `segment`, and returns it with its length in bytes. The
    /// payload follows the header.
    ///
    /// # Errors
    /// Returns a [`HeaderError`] if the version is not 1 or the segment ends within the header.
    #[inline]
    pub fn parse(segment: &[u8]) -> Result<(Self, usize), HeaderError> {
        let Some(&control) = segment.first() else {
            return Err(HeaderError::TooShort { len: 0, needed: Tagged::LEN });
        };
        let (tagged, version) = (control & T != 0, control & DV);
        if version != VERSION {
            return Err(HeaderError::Version { tagged, version });
        }
        let too_short = |needed| HeaderError::TooShort { len: segment.len(), needed };
        if tagged {
            let bytes = segment.first_chunk().ok_or(too_short(Tagged::LEN))?;
            Ok((Self::Tagged(Tagged::parse(bytes)), Tagged::LEN))
        } else {
            let bytes = segment.first_chunk().ok_or(too_short(Untagged::LEN))?;
            Ok((Self::Untagged(Untagged::parse(bytes)), Untagged::LEN))
        }
    }

    /// Writes the header to the front of `out` and returns its length in bytes.
    ///
    /// # Panics
    /// Panics if `out` is shorter than [`len`](Self::len).
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        match self {
            Self::Tagged(header) => out[..Tagged::LEN].copy_from_slice(&header.emit()),
            Self::Untagged(header) => out[..Untagged::LEN].copy_from_slice(&header.emit()),
        }
        self.len()
    }

    /// Returns `prefix`, for example the length field of MPA, followed by the header, and the
    /// length of both in bytes. The bytes after them are zero.
    ///
    /// The bytes are stored as words of eight and four bytes. A CRC reads such words right after
    /// this, and a processor would delay the read of a word that several stores have written.
    #[inline]
    #[must_use]
    pub fn emit_after(&self, prefix: [u8; 2]) -> ([u8; 2 + Self::MAX_LEN], usize) {
        let [first, second] = prefix;
        let control = control_byte(matches!(self, Self::Tagged(_)), self.last());
        let front = u32::from_be_bytes([first, second, control, self.rsvd_ulp()]);
        let words = |low: u32, word: u64, last: u32| {
            let mut bytes = [0; 2 + Self::MAX_LEN];
            let front = u64::from(front) << 32 | u64::from(low);
            bytes[..8].copy_from_slice(&front.to_be_bytes());
            bytes[8..16].copy_from_slice(&word.to_be_bytes());
            bytes[16..].copy_from_slice(&last.to_be_bytes());
            (bytes, prefix.len() + self.len())
        };
        match self {
            Self::Tagged(header) => words(header.stag.0, header.to, 0),
            Self::Untagged(Untagged { rsvd_ulp32, qn, msn, mo, .. }) => {
                words(*rsvd_ulp32, u64::from(*qn) << 32 | u64::from(*msn), *mo)
            }
        }
    }

    /// Returns the length on the wire in bytes: 14 or 18.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        match self {
            Self::Tagged(_) => Tagged::LEN,
            Self::Untagged(_) => Untagged::LEN,
        }
    }

    /// Returns the flag L: whether this is the last segment of its message.
    #[inline]
    #[must_use]
    pub const fn last(&self) -> bool {
        match self {
            Self::Tagged(header) => header.last,
            Self::Untagged(header) => header.last,
        }
    }

    /// Returns the first byte that DDP carries for its ULP. Both kinds of header have it at the
    /// same place.
    #[inline]
    #[must_use]
    pub const fn rsvd_ulp(&self) -> u8 {
        match self {
            Self::Tagged(header) => header.rsvd_ulp,
            Self::Untagged(header) => header.rsvd_ulp,
        }
    }
}

impl From<Tagged> for Header {
    fn from(header: Tagged) -> Self {
        Self::Tagged(header)
    }
}

impl From<Untagged> for Header {
    fn from(header: Untagged) -> Self {
        Self::Untagged(header)
    }
}

/// Reason why bytes are not a DDP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The segment ends within its header. RFC 5041 has no code for that.
    #[error("DDP segment of {len} bytes, its header takes {needed}")]
    TooShort {
        /// Length of the segment in bytes.
        len: usize,
        /// Length of the header in bytes.
        needed: usize,
    },
    /// DV is not 1 (RFC 5041 section 7.2: code 4 of type 1, or code 6 of type 2).
    #[error("DDP version {version}")]
    Version {
        /// T of the segment.
        tagged: bool,
        /// Value of the DV field.
        version: u8,
    },
}

/// Encodes the DDP control byte.
const fn control_byte(tagged: bool, last: bool) -> u8 {
    (if tagged { T } else { 0 }) | (if last { L } else { 0 }) | VERSION
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::STag;

    const WRITE: [u8; 14] =
        [0xC1, 0x40, 0x12, 0x34, 0xA5, 0x01, 0, 0, 0x7F, 0xFF, 0, 0, 0x10, 0x08];
    const SEND: [u8; 18] =
        [0x41, 0x44, 0xA, 0xB, 0xC, 0xD, 0, 0, 0, 2, 0x80, 0, 0, 1, 0xFF, 0xFF, 0xFF, 0xFC];

    // [test:RFC5041-4.2-01] [test:RFC5041-4.1-01] [test:RFC5041-4.1-11]
    #[test]
    fn tagged_bytes() {
        let header =
            Tagged { last: true, rsvd_ulp: 0x40, stag: STag(0x1234_A501), to: 0x7FFF_0000_1008 };
        assert_eq!(Header::parse(&WRITE), Ok((header.into(), 14)));
        assert_eq!(header.emit(), WRITE);
        assert_eq!(Tagged { last: false, ..header }.emit()[0], 0x81);
    }

    // [test:RFC5041-4.3-01] [test:RFC5041-4.1-02] [test:RFC5041-4.1-11]
    #[test]
    fn untagged_bytes() {
        let header = Untagged {
            last: true,
            rsvd_ulp: 0x44,
            rsvd_ulp32: 0x0A0B_0C0D,
            qn: 2,
            msn: 0x8000_0001,
            mo: 0xFFFF_FFFC,
        };
        assert_eq!(Header::parse(&SEND), Ok((header.into(), 18)));
        assert_eq!(header.emit(), SEND);
        assert_eq!(Untagged { last: false, ..header }.emit()[0], 0x01);
    }

    /// Fields that DDP carries for its ULP come out unchanged: RsvdULP of both kinds, STag, queue.
    // [test:RFC5041-4.2-03] [test:RFC5041-4.2-08] [test:RFC5041-4.3-03] [test:RFC5041-5.4-07]
    #[test]
    fn ulp_fields_pass_unchanged() {
        for byte in 0..=255u8 {
            for last in [false, true] {
                let (word, rsvd_ulp) = ((u32::from(byte) * 0x0101_0101) ^ 0x00FF_5A00, byte);
                let tagged = Header::Tagged(Tagged { last, rsvd_ulp, stag: STag(word), to: 5 });
                let untagged = Header::Untagged(Untagged {
                    last,
                    rsvd_ulp,
                    rsvd_ulp32: word,
                    qn: 3,
                    msn: 4,
                    mo: 5,
                });
                for header in [tagged, untagged] {
                    let mut bytes = [0; Header::MAX_LEN];
                    let len = header.emit(&mut bytes);
                    assert_eq!(Header::parse(&bytes[..len]), Ok((header, len)));
                    let (after, both) = header.emit_after([7, 9]);
                    assert_eq!(after[..both], [&[7, 9], &bytes[..len]].concat());
                    assert!(after[both..].iter().all(|byte| *byte == 0));
                    assert_eq!((header.last(), header.rsvd_ulp()), (last, byte));
                }
            }
        }
    }

    #[test]
    fn emit_writes_to_buffer_start() {
        let mut out = [0xEE; 20];
        let (header, len) = Header::parse(&WRITE).unwrap();
        assert_eq!(header.emit(&mut out), len);
        assert_eq!((&out[..14], &out[14..]), (&WRITE[..], &[0xEE; 6][..]));
    }

    // [test:RFC5041-4.1-10]
    #[test]
    fn reserved_bits_ignored_and_sent_zero() {
        for bytes in [&WRITE[..], &SEND[..]] {
            let mut set = [0; 18];
            let set = &mut set[..bytes.len()];
            set.copy_from_slice(bytes);
            set[0] |= 0x3C;
            assert_eq!(Header::parse(set), Header::parse(bytes));
        }
        assert_eq!((control_byte(true, true), control_byte(false, false)), (0xC1, 0x01));
    }

    // [test:RFC5041-4.1-12] [test:RFC5041-6.2.2-04]
    #[test]
    fn other_versions_rejected() {
        for version in [0, 2, 3] {
            for (bytes, tagged) in [(&WRITE[..], true), (&SEND[..], false)] {
                let mut other = [0; 18];
                other[..bytes.len()].copy_from_slice(bytes);
                other[0] = other[0] & !DV | version;
                assert_eq!(Header::parse(&other), Err(HeaderError::Version { tagged, version }));
            }
        }
    }

    #[test]
    fn truncated_headers_rejected() {
        for bytes in [&WRITE[..], &SEND[..]] {
            for len in 0..bytes.len() {
                let needed = if len == 0 { Tagged::LEN } else { bytes.len() };
                assert_eq!(
                    Header::parse(&bytes[..len]),
                    Err(HeaderError::TooShort { len, needed })
                );
            }
        }
    }
}

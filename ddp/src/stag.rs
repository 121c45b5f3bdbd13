//! Steering Tags.

use core::fmt;

/// Steering Tag, which identifies a Tagged Buffer (RFC 5041 section 4.2).
///
/// On the wire it has 32 bits without structure. The verbs divide it into an index of 24 bits,
/// which the device chooses, and a key of 8 bits, which the application may choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct STag(pub u32);

impl STag {
    /// Combines an index, of which the low 24 bits are used, and a key.
    #[must_use]
    pub const fn from_parts(index: u32, key: u8) -> Self {
        Self(index << 8 | key as u32)
    }

    /// Returns the index: the upper 24 bits.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }

    /// Returns the key: the lower 8 bits.
    #[must_use]
    pub const fn key(self) -> u8 {
        self.0 as u8
    }
}

impl fmt::Display for STag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_stag() {
        let stag = STag::from_parts(0x12_3456, 0x78);
        assert_eq!((stag, stag.index(), stag.key()), (STag(0x1234_5678), 0x12_3456, 0x78));
        assert_eq!(STag::from_parts(0xFF00_0001, 2), STag(0x102), "an index has 24 bits");
    }
}

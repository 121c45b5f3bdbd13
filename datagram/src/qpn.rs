//! Queue pair numbers.

use core::fmt;

/// Queue pair number of 24 bits: a UDP port, and the index among the queue pairs that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// Destination number of multicast messages.
    pub const MULTICAST: Self = Self(0x00FF_FFFF);

    /// Combines a port and an index.
    #[must_use]
    pub const fn new(port: u16, index: u8) -> Self {
        Self((port as u32) << 8 | index as u32)
    }

    /// Returns the number in the lower 24 bits. The other bits are reserved and not checked.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw & 0x00FF_FFFF)
    }

    /// Returns the number as an integer.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Returns the UDP port.
    #[must_use]
    pub const fn port(self) -> u16 {
        (self.0 >> 8) as u16
    }

    /// Returns the index among the queue pairs of the port.
    #[must_use]
    pub const fn index(self) -> u8 {
        self.0 as u8
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

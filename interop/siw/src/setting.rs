//! Settings of the wire and the driver.

use crate::net::Family;
use std::fmt;

/// Settings of the wire and the driver for a run of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Setting {
    /// True if CRCs are used. siw never requests them, so uiw does.
    pub crc: bool,
    /// IPv4 or IPv6.
    pub family: Family,
    /// MTU of the interfaces.
    pub mtu: u32,
    /// True for the tunable driver with `try_gso` and the profile `siw-gso` of uiw; otherwise the
    /// stock driver is used.
    pub gso: bool,
}

impl Setting {
    /// The usual setting.
    pub const USUAL: Self = Self { crc: true, family: Family::V4, mtu: 1500, gso: false };
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let crc = if self.crc { "CRC" } else { "no CRC" };
        let driver = if self.gso { "large FPDUs" } else { "stock" };
        let family = if self.family == Family::V4 { "IPv4" } else { "IPv6" };
        write!(f, "{crc}, {family}, MTU {}, {driver}", self.mtu)
    }
}

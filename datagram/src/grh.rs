//! Global Route Header (IBTA volume 1, section 8.3), which precedes a received payload.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  IPVer: 6 | Traffic Class |             Flow Label            |
//! |            PayLen         |   NxtHdr: 0x1B  |     HopLmt      |
//! |                        SGID (16 bytes)                        |
//! |                        DGID (16 bytes)                        |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```

use core::net::{IpAddr, Ipv6Addr};

/// Global Route Header, with the addresses of a datagram as GIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grh {
    /// Length of the payload in bytes.
    pub len: u16,
    /// Address of the sender.
    pub source: IpAddr,
    /// Address to which the datagram was sent: an address of the receiver or of a multicast group.
    pub destination: IpAddr,
}

/// Value of NxtHdr, which stands for the IBA transport.
const NEXT_HEADER: u8 = 0x1B;
/// First byte of the header, with IPVer in the upper four bits.
const IP_VERSION: u8 = 0x60;

impl Grh {
    /// Length of the header in bytes.
    pub const LEN: usize = 40;

    /// Encodes the header.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = IP_VERSION;
        bytes[4..6].copy_from_slice(&self.len.to_be_bytes());
        bytes[6] = NEXT_HEADER;
        bytes[7] = 1;
        bytes[8..24].copy_from_slice(&to_gid(self.source));
        bytes[24..].copy_from_slice(&to_gid(self.destination));
        bytes
    }

    /// Decodes the header. Returns `None` if `bytes` is not a Global Route Header.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        if bytes[0] & 0xF0 != IP_VERSION || bytes[6] != NEXT_HEADER {
            return None;
        }
        let address =
            |at: usize| Ipv6Addr::from(core::array::from_fn(|i| bytes[at + i])).to_canonical();
        Some(Self {
            len: u16::from_be_bytes([bytes[4], bytes[5]]),
            source: address(8),
            destination: address(24),
        })
    }
}

/// Returns the GID of an address: the IPv6 address, or the IPv4-mapped IPv6 address of an IPv4
/// address.
fn to_gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

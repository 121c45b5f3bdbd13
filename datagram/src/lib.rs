//! Datagrams between uiw peers: one untagged DDP message in a UDP datagram, SIDR, and the Global
//! Route Header in front of a received payload. **No I/O, no clock, no unsafe code**; `no_std`.
//! `docs/datagrams.md` is the format's definition.
//!
//! ```
//! use uiw_datagram::{Header, Qpn};
//!
//! let header = Header {
//!     epoch: 7,
//!     destination: Qpn::new(4000, 1),
//!     source: Qpn::new(4001, 0),
//!     qkey: 0x1111_1111,
//!     msn: 1,
//!     solicited: false,
//!     immediate: None,
//! };
//! let mut datagram = header.emit().to_vec();
//! datagram.extend_from_slice(b"payload");
//! datagram.extend_from_slice(&uiw_datagram::crc(&datagram));
//! let (parsed, payload) = Header::parse(&datagram)?;
//! parsed.check_source(4001)?;
//! assert_eq!((parsed, payload), (header, &b"payload"[..]));
//! # Ok::<(), uiw_datagram::DatagramError>(())
//! ```

#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod error;
mod grh;
mod header;
mod qpn;
mod run_crc;
pub mod sidr;

pub use error::DatagramError;
pub use grh::Grh;
pub use header::{Header, Kind};
pub use qpn::Qpn;
pub use run_crc::RunCrc;

/// The version of the format.
pub const VERSION: u8 = 1;

/// The UDP port of every multicast message.
pub const MULTICAST_PORT: u16 = 5041;

/// Bytes of the longest payload.
pub const MAX_PAYLOAD: usize = 4096;

/// Bytes of a CRC32C, at the end of every datagram.
pub const CRC_LEN: usize = 4;

/// Bytes of a message that are not payload.
pub const OVERHEAD: usize = Header::LEN + CRC_LEN;

/// Bytes of the headers of UDP and IPv6, the longer of the two versions.
const UDP_AND_IP: usize = 8 + 40;

/// The CRC field behind `bytes`.
#[must_use]
pub fn crc(bytes: &[u8]) -> [u8; CRC_LEN] {
    uiw_mpa::Crc32c::new().update(bytes).finish_wire()
}

/// Bytes of the longest payload on a network device with this MTU: an MTU of the IBTA. `None`: not
/// even the smallest one fits.
#[must_use]
pub fn max_payload(mtu: usize) -> Option<usize> {
    [4096, 2048, 1024, 512, 256].into_iter().find(|payload| payload + OVERHEAD + UDP_AND_IP <= mtu)
}

/// Checks the CRC at the end of `datagram`, and returns the bytes before it.
///
/// # Errors
/// [`DatagramError::Crc`], [`DatagramError::TooShort`].
#[inline]
pub fn check_crc(datagram: &[u8]) -> Result<&[u8], DatagramError> {
    let (bytes, field) =
        datagram.split_last_chunk::<CRC_LEN>().ok_or(DatagramError::TooShort { len: datagram.len() })?;
    let (computed, found) = (u32::from_le_bytes(crc(bytes)), u32::from_le_bytes(*field));
    if computed != found {
        return Err(DatagramError::Crc { computed, found });
    }
    Ok(bytes)
}

/// The big-endian 32 bits at `at`.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

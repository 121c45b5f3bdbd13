//! Datagrams between uiw peers: untagged DDP messages, each in one UDP datagram; SIDR; and the
//! Global Route Header before a received payload. **No I/O, no clock, no unsafe code**; `no_std`.
//!
//! `docs/datagrams.md` defines the format.
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

/// Version of the format.
pub const VERSION: u8 = 1;

/// UDP destination port of all multicast messages.
pub const MULTICAST_PORT: u16 = 5041;

/// Maximum length of a payload in bytes.
pub const MAX_PAYLOAD: usize = 4096;

/// Length in bytes of the CRC32C at the end of each datagram.
pub const CRC_LEN: usize = 4;

/// Length in bytes of the header and the CRC of a message.
pub const OVERHEAD: usize = Header::LEN + CRC_LEN;

/// Length in bytes of the headers of UDP and IPv6, which is longer than IPv4.
const UDP_AND_IP: usize = 8 + 40;

/// Returns the CRC field that follows `bytes`.
#[must_use]
pub fn crc(bytes: &[u8]) -> [u8; CRC_LEN] {
    uiw_mpa::Crc32c::new().update(bytes).finish_wire()
}

/// Returns the maximum payload length in bytes on a network device with this MTU. It is one of the
/// MTUs that the IBTA defines; `None` if not even the smallest of them fits.
#[must_use]
pub fn max_payload(mtu: usize) -> Option<usize> {
    [4096, 2048, 1024, 512, 256].into_iter().find(|payload| payload + OVERHEAD + UDP_AND_IP <= mtu)
}

/// Checks the CRC at the end of `datagram`, and returns the bytes before it.
///
/// # Errors
/// [`DatagramError::Crc`] if the CRC does not match, and [`DatagramError::TooShort`] if there is
/// none.
#[inline]
pub fn check_crc(datagram: &[u8]) -> Result<&[u8], DatagramError> {
    let (bytes, field) = datagram
        .split_last_chunk::<CRC_LEN>()
        .ok_or(DatagramError::TooShort { len: datagram.len() })?;
    let (computed, found) = (u32::from_le_bytes(crc(bytes)), u32::from_le_bytes(*field));
    if computed != found {
        return Err(DatagramError::Crc { computed, found });
    }
    Ok(bytes)
}

/// Returns the big-endian 32-bit integer at offset `at`.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

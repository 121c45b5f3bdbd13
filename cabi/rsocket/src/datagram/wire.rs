//! The two headers of datagram rsockets, in the format of rdma-core's `rsocket.c`.
//!
//! ```text
//!   in front of a packet over UDP (16 or 28 bytes)      in front of a UD message (8 or 24 bytes)
//!    0 tag: 0x55 four times                              0 version: 4 or 6
//!    4 version: 4 or 6                                   1 length of the header
//!    5 operation: 0 data, 7 control                      2 port of the sender's socket
//!    6 length of the header                              4 version 4: its IPv4 address
//!    7 0                                                   version 6: flow label, 0
//!    8 number of the sender's UD queue pair              8 version 6: its IPv6 address
//!   12 address of the sender's device: IPv4 or IPv6
//! ```
//!
//! All numbers are big-endian. Of the address after the queue pair number, only the version is
//! used, because the UDP packet itself names the address of the sender.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Maximum size in bytes of a message of either kind with its header. This is the size of
/// rdma-core's buffers.
pub const MAX_MESSAGE: usize = 2048;
/// Tag of packets over UDP.
const TAG: [u8; 4] = [0x55; 4];
const DATA: u8 = 0;
const CONTROL: u8 = 7;

/// Header in wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    bytes: [u8; ExchangeHeader::MAX_LEN],
    len: usize,
}

impl Bytes {
    fn new(parts: &[&[u8]]) -> Self {
        let (mut bytes, mut len) = ([0; ExchangeHeader::MAX_LEN], 0);
        for part in parts {
            bytes[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        }
        Self { bytes, len }
    }

    /// Returns the bytes of the header.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

fn octets(address: &IpAddr) -> ([u8; 16], usize) {
    let mut bytes = [0; 16];
    match address {
        IpAddr::V4(v4) => {
            bytes[..4].copy_from_slice(&v4.octets());
            (bytes, 4)
        }
        IpAddr::V6(v6) => (v6.octets(), 16),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(*bytes.first_chunk::<4>()?)),
        16 => Some(IpAddr::from(*bytes.first_chunk::<16>()?)),
        _ => None,
    }
}

fn version(address: &IpAddr) -> u8 {
    if address.is_ipv4() { 4 } else { 6 }
}

/// Operation of a packet over UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A message of the program follows. It is answered with [`Operation::Control`].
    Data,
    /// The packet consists only of the header, which contains the number of the queue pair.
    Control,
}

/// Header of packets over UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeHeader {
    /// Operation of the packet.
    pub operation: Operation,
    /// Number of the sender's UD queue pair (24 bits).
    pub qpn: u32,
    /// Address of the sender's device.
    pub address: IpAddr,
}

impl ExchangeHeader {
    /// Maximum size in bytes.
    pub const MAX_LEN: usize = 28;

    /// Returns the size in bytes of a header with an address of the same version as `address`.
    pub const fn len_for(address: &IpAddr) -> usize {
        if address.is_ipv4() { 16 } else { Self::MAX_LEN }
    }

    /// Returns the header in wire format.
    pub fn emit(&self) -> Bytes {
        let operation = match self.operation {
            Operation::Data => DATA,
            Operation::Control => CONTROL,
        };
        let len = Self::len_for(&self.address) as u8;
        let head = [version(&self.address), operation, len, 0];
        let (bytes, count) = octets(&self.address);
        Bytes::new(&[&TAG, &head, &(self.qpn & 0xFF_FFFF).to_be_bytes(), &bytes[..count]])
    }

    /// Parses the header at the beginning of a UDP packet. Returns it with the message that
    /// follows.
    ///
    /// # Errors
    /// [`WireError`] if the packet does not begin with a valid header.
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let short = WireError::Short { len: packet.len() };
        let fixed = packet.first_chunk::<12>().ok_or(short)?;
        let [tag @ .., version, operation, len, _, q3, q2, q1, q0] = *fixed;
        if tag != TAG {
            return Err(WireError::Tag(u32::from_be_bytes(tag)));
        }
        if !matches!((version, len), (4, 16) | (6, 28)) {
            return Err(WireError::Version { version, len });
        }
        let (header, message) = packet.split_at_checked(len.into()).ok_or(short)?;
        let operation = match operation {
            DATA => Operation::Data,
            CONTROL => Operation::Control,
            other => return Err(WireError::Operation(other)),
        };
        let address = address(&header[12..]).ok_or(short)?;
        let qpn = u32::from_be_bytes([q3, q2, q1, q0]) & 0xFF_FFFF;
        Ok((Self { operation, qpn, address }, message))
    }
}

/// Header of UD messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHeader {
    /// Address of the sender's socket.
    pub from: SocketAddr,
}

impl MessageHeader {
    /// Returns the size in bytes of a header with an address of the same version as `address`.
    pub const fn len_for(address: &IpAddr) -> usize {
        if address.is_ipv4() { 8 } else { 24 }
    }

    /// Returns the header in wire format, with the flow label 0.
    pub fn emit(&self) -> Bytes {
        let ip = self.from.ip();
        let head = [version(&ip), Self::len_for(&ip) as u8];
        let label: &[u8] = if ip.is_ipv4() { &[] } else { &[0; 4] };
        let (bytes, count) = octets(&ip);
        Bytes::new(&[&head, &self.from.port().to_be_bytes(), label, &bytes[..count]])
    }

    /// Parses the header at the beginning of the payload of a UD message. Returns it with the
    /// message that follows.
    ///
    /// # Errors
    /// [`WireError`] if the payload does not begin with a valid header.
    pub fn parse(payload: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let short = WireError::Short { len: payload.len() };
        let [version, len, p1, p0] = *payload.first_chunk::<4>().ok_or(short)?;
        let label = match (version, len) {
            (4, 8) => 0,
            (6, 24) => 4,
            _ => return Err(WireError::Version { version, len }),
        };
        let (header, message) = payload.split_at_checked(len.into()).ok_or(short)?;
        let ip = address(&header[4 + label..]).ok_or(short)?;
        Ok((Self { from: SocketAddr::new(ip, u16::from_be_bytes([p1, p0])) }, message))
    }
}

/// Error for bytes that are not a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The packet is shorter than the header.
    Short {
        /// Size of the packet in bytes.
        len: usize,
    },
    /// The tag is wrong.
    Tag(u32),
    /// The version is neither 4 nor 6, or the length does not match the version.
    Version {
        /// The version.
        version: u8,
        /// The length of the header.
        len: u8,
    },
    /// The operation is neither data nor control.
    Operation(u8),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { len } => write!(f, "{len} bytes are fewer than the header has"),
            Self::Tag(tag) => write!(f, "tag {tag:#x}, expected 0x55555555"),
            Self::Version { version, len } => {
                write!(f, "version {version} with a header of {len} bytes")
            }
            Self::Operation(operation) => {
                write!(f, "operation {operation} is neither data nor control")
            }
        }
    }
}

impl std::error::Error for WireError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Bytes that rdma-core writes.
    #[test]
    fn headers_match_rdma_core() {
        let data =
            ExchangeHeader { operation: Operation::Data, qpn: 0x12_3456, address: ip("10.0.0.1") };
        let bytes = [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0x12, 0x34, 0x56, 10, 0, 0, 1];
        assert_eq!(data.emit().as_slice(), bytes);
        let control =
            ExchangeHeader { operation: Operation::Control, qpn: 7, address: ip("fd00::2") };
        let mut bytes = vec![0x55, 0x55, 0x55, 0x55, 6, 7, 28, 0, 0, 0, 0, 7, 0xFD];
        bytes.resize(27, 0);
        bytes.push(2);
        assert_eq!(control.emit().as_slice(), bytes);
        let from = MessageHeader { from: "10.0.0.1:258".parse().unwrap() };
        assert_eq!(from.emit().as_slice(), [4, 8, 1, 2, 10, 0, 0, 1]);
        let from = MessageHeader { from: "[fd00::2]:258".parse().unwrap() };
        let mut bytes = vec![6, 24, 1, 2, 0, 0, 0, 0, 0xFD];
        bytes.resize(23, 0);
        bytes.push(2);
        assert_eq!(from.emit().as_slice(), bytes);
    }

    #[test]
    fn headers_survive_round_trip() {
        for address in [ip("10.0.0.1"), ip("fd00::2")] {
            for operation in [Operation::Data, Operation::Control] {
                let header = ExchangeHeader { operation, qpn: 0xAB_CDEF, address };
                let mut packet = header.emit().as_slice().to_vec();
                packet.extend_from_slice(b"text");
                assert_eq!(ExchangeHeader::parse(&packet), Ok((header, &b"text"[..])));
                let len = packet.len() - 4;
                for len in 0..len {
                    assert_eq!(
                        ExchangeHeader::parse(&packet[..len]),
                        Err(WireError::Short { len })
                    );
                }
            }
            let header = MessageHeader { from: SocketAddr::new(address, 7174) };
            let mut payload = header.emit().as_slice().to_vec();
            payload.extend_from_slice(b"text");
            assert_eq!(MessageHeader::parse(&payload), Ok((header, &b"text"[..])));
            for len in 0..payload.len() - 4 {
                assert_eq!(MessageHeader::parse(&payload[..len]), Err(WireError::Short { len }));
            }
        }
    }

    #[test]
    fn invalid_header_named() {
        let good =
            ExchangeHeader { operation: Operation::Data, qpn: 1, address: ip("10.0.0.1") }.emit();
        let changed = |at: usize, value: u8| {
            let mut bytes = good.as_slice().to_vec();
            bytes[at] = value;
            ExchangeHeader::parse(&bytes).unwrap_err()
        };
        assert_eq!(changed(3, 0), WireError::Tag(0x5555_5500));
        assert_eq!(changed(4, 6), WireError::Version { version: 6, len: 16 });
        assert_eq!(changed(6, 15), WireError::Version { version: 4, len: 15 });
        assert_eq!(changed(5, 1), WireError::Operation(1));
        for bytes in [[4, 24, 0, 0], [6, 8, 0, 0], [0, 0, 0, 0]] {
            let [version, len, ..] = bytes;
            let error = WireError::Version { version, len };
            assert_eq!(MessageHeader::parse(&[&bytes[..], &[0; 40]].concat()), Err(error));
        }
    }
}

//! Errors of datagrams that violate the format.

use crate::{MAX_PAYLOAD, Qpn, VERSION, sidr};

/// Reason for dropping a datagram: one variant per violated rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    /// The datagram ends within its headers or its CRC.
    #[error("datagram of {len} bytes, which is shorter than its headers")]
    TooShort {
        /// Bytes of the datagram.
        len: usize,
    },
    /// The payload is longer than the largest MTU.
    #[error("payload of {len} bytes, {MAX_PAYLOAD} are the most")]
    TooLong {
        /// Bytes of the payload.
        len: usize,
    },
    /// The version is not 1.
    #[error("version {version} instead of {VERSION}")]
    Version {
        /// The version.
        version: u8,
    },
    /// The kind is not the expected one.
    #[error("kind {kind} instead of {expected}")]
    Kind {
        /// Kind of the datagram.
        kind: u8,
        /// Kind that was expected.
        expected: u8,
    },
    /// The CRC does not match.
    #[error("CRC {found:#010x}, computed {computed:#010x}")]
    Crc {
        /// CRC computed over the bytes.
        computed: u32,
        /// CRC in the datagram.
        found: u32,
    },
    /// The source QPN has no port.
    #[error("source QPN {qpn} has no port")]
    SourceQpn {
        /// The number.
        qpn: Qpn,
    },
    /// The destination QPN has no port.
    #[error("destination QPN {qpn} has no port")]
    DestinationQpn {
        /// The number.
        qpn: Qpn,
    },
    /// The UDP source port is not that of the source QPN.
    #[error("UDP source port {port} with source QPN {qpn}")]
    SourcePort {
        /// The UDP source port.
        port: u16,
        /// The number.
        qpn: Qpn,
    },
    /// The DDP header is illegal.
    #[error(transparent)]
    Ddp(#[from] uiw_ddp::HeaderError),
    /// The DDP header is tagged.
    #[error("tagged DDP segment")]
    Tagged,
    /// L is not set, although every message is a single segment.
    #[error("DDP segment without L")]
    NotLast,
    /// QN is not 0.
    #[error("DDP queue {qn} instead of 0")]
    Queue {
        /// The queue.
        qn: u32,
    },
    /// MO is not 0.
    #[error("DDP message offset {mo} instead of 0")]
    MessageOffset {
        /// The offset.
        mo: u32,
    },
    /// The version of RDMAP is not 1.
    #[error("RDMAP version {version}")]
    RdmapVersion {
        /// The version.
        version: u8,
    },
    /// The opcode is not one of the Sends that datagrams can carry.
    #[error("RDMAP opcode {opcode}, which is no Send that a datagram carries")]
    Opcode {
        /// The raw opcode.
        opcode: u8,
    },
    /// The length of a SIDR message is not [`sidr::LEN`].
    #[error("SIDR message of {len} bytes instead of {}", sidr::LEN)]
    SidrLength {
        /// Bytes of the datagram.
        len: usize,
    },
    /// The private data of a SIDR message is too long.
    #[error("SIDR message with {len} bytes of private data, {max} are the most")]
    PrivateData {
        /// Length of the private data in bytes.
        len: usize,
        /// Maximum length in bytes.
        max: usize,
    },
    /// The status of a SIDR reply is not defined, or that of a request is not 0.
    #[error("SIDR status {status}")]
    SidrStatus {
        /// The status.
        status: u8,
    },
}

//! Findings of the decoder, which [`super::output`] prints as text or as JSON.

use std::net::SocketAddr;

use serde::Serialize;

/// A finding, with its place and time.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Time in nanoseconds since 1970, if the capture has it.
    #[serde(serialize_with = "seconds")]
    pub time: Option<u64>,
    /// Number of the packet that completed the finding, counted from 1.
    pub packet: u64,
    /// Number of the iWARP connection, counted from 1 in the order of startup frames; 0 for a
    /// datagram.
    pub connection: u32,
    /// Sender.
    pub from: SocketAddr,
    /// Receiver.
    pub to: SocketAddr,
    /// Kind and contents of the finding.
    #[serde(flatten)]
    pub event: Event,
}

/// Serializes a time as decimal seconds with nine digits. It is a string because a JSON number
/// would lose the last digits.
fn seconds<S: serde::Serializer>(time: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => serializer.collect_str(&format_args!(
            "{}.{:09}",
            time / 1_000_000_000,
            time % 1_000_000_000
        )),
        None => serializer.serialize_none(),
    }
}

/// Serializes a 64-bit number as a string `0x..`.
fn hex<S: serde::Serializer>(number: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match number {
        Some(number) => serializer.collect_str(&format_args!("{number:#x}")),
        None => serializer.serialize_none(),
    }
}

/// Maximum number of bytes of private data that are shown as text.
const MAX_SHOWN: usize = 64;

/// Maximum number of bytes of private data (RFC 5044 section 7.1.1). A frame with more is an error.
const MAX_PRIVATE_DATA: usize = 512;

/// Returns private data as hexadecimal digits, at most [`MAX_PRIVATE_DATA`] bytes of it.
pub(super) fn hex_digits(bytes: &[u8]) -> String {
    bytes.iter().take(MAX_PRIVATE_DATA).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a space and the first bytes of private data as escaped text in quotes, or an empty
/// string if there is no private data.
pub(super) fn quoted(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(MAX_SHOWN)];
    let rest = if shown.len() < bytes.len() { ".." } else { "" };
    if bytes.is_empty() { String::new() } else { format!(" \"{}\"{rest}", shown.escape_ascii()) }
}

/// One finding. In JSON the field `type` names the variant.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// An MPA Request or Reply Frame.
    Startup(Startup),
    /// Mode of Full Operation, known once both startup frames were seen.
    Negotiated(Negotiated),
    /// A complete FPDU.
    Fpdu(Fpdu),
    /// A complete RDMAP message.
    Message(Message),
    /// A datagram between uiw peers.
    Datagram(Box<Datagram>),
    /// A departure from an RFC.
    Departure(Departure),
    /// Bytes of the TCP stream that are not in the capture.
    Missing {
        /// Number of bytes of the direction before the missing ones, counted from the startup frame
        /// of the direction.
        position: u64,
        /// Number of missing bytes.
        bytes: u64,
    },
    /// The length of the FPDU that begins here is not in the capture, so the boundaries of the
    /// following FPDUs are lost.
    Lost {
        /// Number of bytes of Full Operation before that FPDU.
        position: u64,
    },
    /// The boundaries were found again, at an FPDU that was recognised by its headers and its CRC.
    Resumed {
        /// Number of bytes of Full Operation before the FPDU. If the startup frame was not
        /// captured, number of bytes of the direction before the FPDU.
        position: u64,
        /// Number of bytes before the FPDU that were not decoded, including missing ones.
        skipped: u64,
    },
    /// The direction cannot be decoded any further.
    NotFollowed {
        /// Number of bytes of the direction before this point, counted from its startup frame.
        position: u64,
        /// Reason why it cannot be decoded.
        why: String,
    },
    /// The connection continues as raw TCP, as with `uiw perf --compare`.
    RawTcp,
    /// TCP statistics at the end of a direction.
    Tcp {
        /// Number of bytes that were captured more than once.
        repeated_bytes: u64,
        /// Number of segments with such bytes.
        retransmissions: u64,
    },
    /// The direction ends in the middle of a part.
    Closed {
        /// Name of the incomplete part.
        what: String,
    },
}

/// An MPA startup frame.
#[derive(Clone, Debug, Serialize)]
pub struct Startup {
    /// `request` or `reply`.
    pub frame: &'static str,
    /// Rev: the revision of MPA.
    pub revision: u8,
    /// M: the sender requires Markers in the FPDUs that it receives.
    pub markers: bool,
    /// C: the sender asks for CRCs.
    pub crc: bool,
    /// R: the connection is rejected.
    pub reject: bool,
    /// S: the frame contains IRD, ORD and the model (RFC 6581).
    pub enhanced: bool,
    /// Res: the reserved bits, of which siw uses 0x08.
    pub reserved: u8,
    /// A, if S = 1: the peer-to-peer model.
    pub peer_to_peer: Option<bool>,
    /// B, if S = 1: a zero-length Send as RTR.
    pub rtr_send: Option<bool>,
    /// C, if S = 1: a zero-length RDMA Write as RTR.
    pub rtr_write: Option<bool>,
    /// D, if S = 1: a zero-length RDMA Read as RTR.
    pub rtr_read: Option<bool>,
    /// IRD, if S = 1.
    pub ird: Option<u16>,
    /// ORD, if S = 1.
    pub ord: Option<u16>,
    /// Number of bytes of Private Data, without the enhanced data.
    pub private_data_length: usize,
    /// Private data as hexadecimal digits.
    pub private_data: String,
    /// Description in one line.
    #[serde(skip)]
    pub text: String,
}

/// Joint meaning of the two startup frames.
#[derive(Clone, Debug, Serialize)]
pub struct Negotiated {
    /// CRCs are in use, in both directions.
    pub crc: bool,
    /// The initiator's FPDUs hold Markers.
    pub markers_from_initiator: bool,
    /// The responder's FPDUs hold Markers.
    pub markers_from_responder: bool,
    /// The kinds of RTR that both ends offered; empty without the peer-to-peer model.
    pub rtr: Vec<&'static str>,
}

/// Result of checking an FPDU's CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Crc {
    /// It matches.
    Good,
    /// It does not match.
    Bad,
    /// CRCs are not in use on this connection.
    Off,
    /// Bytes of the FPDU are not in the capture.
    Unknown,
}

/// An FPDU and the DDP segment in it.
#[derive(Clone, Debug, Serialize)]
pub struct Fpdu {
    /// Number of bytes of Full Operation before the FPDU.
    pub position: u64,
    /// ULPDU_Length: the length of the DDP segment in bytes.
    pub ulpdu_length: u16,
    /// Number of Markers in the FPDU.
    pub markers: u16,
    /// Result of checking the CRC.
    pub crc: Crc,
    /// The CRC field as a number.
    pub crc_field: u32,
    /// Header of the segment, or `None` if it cannot be read.
    #[serde(flatten)]
    pub segment: Option<Segment>,
}

/// A DDP segment's header with the RDMAP control byte.
#[derive(Clone, Debug, Serialize)]
pub struct Segment {
    /// T: the segment is tagged.
    pub tagged: bool,
    /// L: the segment is the last one of its message.
    pub last: bool,
    /// The RDMAP OpCode, as a number.
    pub opcode: u8,
    /// Name of the OpCode.
    pub name: &'static str,
    /// STag of the destination, in a tagged segment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stag: Option<u32>,
    /// TO, in a tagged segment. In JSON this is a string such as `0x7f10`, because readers round
    /// numbers above 2^53.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "hex")]
    pub tagged_offset: Option<u64>,
    /// QN (the number of the queue), in an untagged segment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qn: Option<u32>,
    /// MSN, in an untagged segment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub msn: Option<u32>,
    /// MO in bytes, in an untagged segment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mo: Option<u32>,
    /// Number of bytes after the DDP header.
    pub payload_length: usize,
}

/// An RDMAP message, assembled from its segments.
#[derive(Clone, Debug, Serialize)]
pub struct Message {
    /// Name of the OpCode.
    pub name: &'static str,
    /// The OpCode, as a number.
    pub opcode: u8,
    /// Number of bytes after the DDP headers of all segments.
    pub length: u64,
    /// Number of DDP segments.
    pub segments: u64,
    /// Description of the RDMAP header of the message.
    pub details: String,
    /// Meaning of a Terminate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminate: Option<Terminate>,
}

/// A Terminate with the numbers of the RFC, even if siw has sent them in another layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Terminate {
    /// 0 RDMAP, 1 DDP, 2 LLP.
    pub layer: u8,
    /// Error Type.
    pub etype: u8,
    /// Error Code.
    pub code: u8,
    /// Meaning of the codes.
    pub reason: String,
    /// `rfc`, `siw` (nibbles swapped) or `ambiguous`.
    pub layout: &'static str,
}

/// Behaviour that an RFC does not allow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Departure {
    /// Section of the rule, such as `RFC 5041 5.3`.
    pub rule: &'static str,
    /// Description of the violation.
    pub what: String,
}

/// A datagram between uiw peers: a message, or a SIDR request or reply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Datagram {
    /// Name of the message.
    pub name: &'static str,
    /// Number of bytes of payload.
    pub length: usize,
    /// Epoch of a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u32>,
    /// Destination of a message, or the queue pair that a SIDR reply names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_qpn: Option<u32>,
    /// Source of a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_qpn: Option<u32>,
    /// Q_Key of a message, or of the queue pair that a reply names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qkey: Option<u32>,
    /// MSN of a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub msn: Option<u32>,
    /// Immediate of a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub immediate: Option<u32>,
    /// Description of the MSN of a message that is not the next one of its epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// SIDR transaction, in JSON a string such as `0x7f10`.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "hex")]
    pub transaction: Option<u64>,
    /// Number of bytes of SIDR private data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_data_length: Option<usize>,
    /// Private data as hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_data: Option<String>,
    /// Private data as text.
    #[serde(skip)]
    pub(super) private_text: String,
}

impl Datagram {
    pub(super) fn new(name: &'static str, length: usize) -> Self {
        Self { name, length, ..Self::default() }
    }
}

impl Event {
    pub(super) fn departure(rule: &'static str, what: impl Into<String>) -> Self {
        Self::Departure(Departure { rule, what: what.into() })
    }
}

//! The service that a client of `uiw serve` requests in the private data of its MPA Request. A peer
//! that names no service uses another implementation, and is served according to its first message
//! (`serve::foreign`).

use crate::shared::args::PeerConfig;
use crate::shared::qp_setup::WaitMode;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fmt;

const PING: &[u8] = b"uiw-ping/1 ";
const PERF: &[u8] = b"uiw-perf/1 ";
const RAW: &[u8] = b"uiw-raw/2 ";
const SLICE: &[u8] = b"uiw-slice/1 ";
const CP: &[u8] = b"uiw-cp/1 ";

/// Service that a client requests.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Service {
    /// Echo and memory for Writes and Reads.
    Ping(PingOrder),
    /// One measurement.
    Perf(PerfOrder),
    /// Comparison with raw TCP. The connection lasts as long as the comparison.
    Comparison,
    /// One raw TCP connection of a comparison, which uses MPA up to the Reply.
    RawTcp(RawTcpOrder),
    /// One connection of a transfer of files.
    Cp(CpOrder),
    /// The peer is not a `uiw` client.
    Foreign,
    /// A service of another version of `uiw`.
    Unknown(String),
}

/// The order of `uiw ping`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PingOrder {
    /// Maximum size of a message, in bytes.
    pub(crate) size: u32,
    #[serde(rename = "wishes")]
    pub(crate) peer_options: PeerConfig,
}

/// The order of `uiw perf`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PerfOrder {
    pub(crate) op: PerfOp,
    /// Bytes of a message.
    pub(crate) size: u32,
    /// Messages that the memory for Writes and Reads holds side by side.
    pub(crate) slots: u32,
    /// Messages under way at a time.
    pub(crate) depth: u32,
    /// Ping-pong: every message is answered by one of its kind.
    pub(crate) latency: bool,
    /// Mode in which the server waits for completions of a ping-pong.
    pub(crate) wait: WaitMode,
    pub(crate) validate: bool,
    /// Tagged offset and STag of the client's memory, for the answers to Writes or for the messages
    /// that the server posts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) back: Option<(u64, u32)>,
    /// If present, the server posts and the client answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) opposite: Option<OppositeTraffic>,
    #[serde(rename = "wishes")]
    pub(crate) peer_options: PeerConfig,
}

/// Settings of messages that the server posts instead of the client.
///
/// The server begins when the client sends [`OppositeTraffic::GO`], and ends after its last message
/// or when the client sends [`OppositeTraffic::STOP`]. In between it does not answer empty Sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OppositeTraffic {
    pub(crate) chain: u32,
    pub(crate) signal_every: u32,
    /// Number of messages, or `None` to continue until stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) iterations: Option<u64>,
}

impl OppositeTraffic {
    pub(crate) const GO: u8 = 1;
    pub(crate) const STOP: u8 = 2;
}

/// Operation of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PerfOp {
    /// RDMA Write
    Write,
    /// RDMA Write with immediate
    WriteImm,
    /// RDMA Read
    Read,
    /// Send
    Send,
    /// Atomic FetchAdd on eight bytes
    #[value(alias = "atomic")]
    FetchAdd,
    /// Atomic CmpSwap on eight bytes
    CmpSwap,
}

impl PerfOp {
    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CmpSwap)
    }

    /// Returns whether each message uses a receive of the peer.
    pub(crate) fn takes_receives(self) -> bool {
        matches!(self, Self::Send | Self::WriteImm)
    }
}

impl fmt::Display for PerfOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Read => "read",
            Self::Send => "send",
            Self::FetchAdd => "fetch-add",
            Self::CmpSwap => "cmp-swap",
        })
    }
}

/// The order of `uiw cp` (see `uiw_copy::protocol`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CpOrder {
    pub(crate) share: String,
    /// Random number that all connections of one client have in common.
    pub(crate) token: u64,
    /// True if files go to the server.
    pub(crate) push: bool,
    /// True if the client accepts heartbeats ([`uiw_copy::protocol::Reply::Working`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) pulse: bool,
    pub(crate) slots: u16,
    /// Tagged offset and STag of the client's slots.
    pub(crate) at: (u64, u32),
    #[serde(rename = "options")]
    pub(crate) peer_options: PeerConfig,
}

/// The server's private data in its Reply to `uiw cp`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CpReply {
    /// Tagged offset and STag of the server's slots, if files go to the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<(u64, u32)>,
    /// True if the server sends the requested heartbeats. A server of an earlier version may be
    /// silent for as long as it works on a request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) pulse: bool,
    /// Revision of the protocol ([`uiw_copy::protocol::REVISION`]), 0 if the server does not name
    /// one.
    #[serde(default)]
    pub(crate) revision: u8,
}

/// The server's private data in its Reply to a perf client.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PerfReply {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) len: u64,
}

/// The server's private data in its Reply to a client that requests a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ComparisonReply {
    /// Number by which the raw TCP connections name their comparison.
    pub(crate) token: u64,
}

/// Order of a raw TCP connection. MPA is not used after the server's Reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RawTcpOrder {
    pub(crate) token: u64,
    pub(crate) kind: RawTcpMode,
    /// Size of a write or message, in bytes.
    pub(crate) buffer: u32,
    /// Size in bytes of the memory that successive writes send from and reads store into. It is
    /// that of the messages with which raw TCP is compared; otherwise the processor caches would
    /// favor one of the two.
    pub(crate) memory: u32,
    /// Time for which the server writes, in milliseconds.
    pub(crate) millis: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) congestion: Option<String>,
}

/// Traffic of a raw TCP connection: which end sends, and how it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RawTcpMode {
    /// The client writes until it is done.
    ToServer,
    /// The server writes for a time.
    ToClient,
    /// Messages there and back; both ends poll.
    PingPongSpin,
    /// Messages there and back; both ends block.
    PingPongBlock,
}

/// Statistics with which the server answers an empty Send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stats {
    /// Processor time of the server process in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// Number of messages received, or posted if the server posts.
    pub(crate) messages: u64,
    /// Number of messages with wrong bytes.
    pub(crate) wrong: u64,
}

impl Service {
    /// Returns the service that a Request with this private data asks for.
    pub(crate) fn from_private_data(private_data: &[u8]) -> Self {
        if private_data.starts_with(RAW) {
            return Self::Comparison;
        }
        let known = parse(private_data, PING)
            .map(Self::Ping)
            .or_else(|| parse(private_data, PERF).map(Self::Perf));
        let known = known.or_else(|| parse(private_data, CP).map(Self::Cp));
        match known.or_else(|| parse(private_data, SLICE).map(Self::RawTcp)) {
            Some(service) => service,
            None if private_data.starts_with(b"uiw-") => {
                let end = private_data
                    .iter()
                    .position(|&byte| byte == b' ')
                    .unwrap_or(private_data.len());
                Self::Unknown(private_data[..end].escape_ascii().to_string())
            }
            None => Self::Foreign,
        }
    }

    /// Returns the name of the service for the log.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Ping(_) => "ping",
            Self::Perf(_) => "perf",
            Self::Comparison => "comparison with raw TCP",
            Self::RawTcp(_) => "raw TCP",
            Self::Cp(_) => "cp",
            Self::Foreign => "rping or echo",
            Self::Unknown(name) => name,
        }
    }

    /// Returns the private data that requests the service.
    pub(crate) fn private_data(&self) -> Vec<u8> {
        match self {
            Self::Ping(order) => with_json(PING, order),
            Self::Perf(order) => with_json(PERF, order),
            Self::Comparison => RAW.to_vec(),
            Self::RawTcp(order) => with_json(SLICE, order),
            Self::Cp(order) => with_json(CP, order),
            Self::Foreign | Self::Unknown(_) => Vec::new(),
        }
    }
}

fn parse<T: DeserializeOwned>(private_data: &[u8], tag: &[u8]) -> Option<T> {
    serde_json::from_slice(private_data.strip_prefix(tag)?).ok()
}

fn with_json(tag: &[u8], order: &impl Serialize) -> Vec<u8> {
    let mut out = tag.to_vec();
    // The orders contain only plain numbers and strings, so writing them to memory cannot fail.
    let _ = serde_json::to_writer(&mut out, order);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn perf() -> PerfOrder {
        PerfOrder {
            op: PerfOp::WriteImm,
            size: u32::MAX,
            slots: u32::MAX,
            depth: u32::MAX,
            latency: false,
            wait: WaitMode::Spin,
            validate: false,
            back: Some((u64::MAX, u32::MAX)),
            opposite: Some(OppositeTraffic {
                chain: u32::MAX,
                signal_every: u32::MAX,
                iterations: Some(u64::MAX),
            }),
            peer_options: PeerConfig {
                congestion: Some("a-long-congestion".into()),
                ..PeerConfig::default()
            },
        }
    }

    #[test]
    fn decoder_recognises_raw_tcp() {
        assert!(SLICE.starts_with(uiw_decode::RAW_TCP));
    }

    #[test]
    fn orders_fit_private_data() {
        let orders = [
            Service::Ping(PingOrder { size: 9, peer_options: PeerConfig::default() }),
            Service::Perf(perf()),
            Service::Comparison,
            Service::RawTcp(RawTcpOrder {
                token: u64::MAX,
                kind: RawTcpMode::PingPongSpin,
                buffer: u32::MAX,
                memory: u32::MAX,
                millis: u32::MAX,
                congestion: Some("a-long-congestion".into()),
            }),
            Service::Cp(CpOrder {
                share: "s".repeat(64),
                token: u64::MAX,
                push: false,
                pulse: true,
                slots: u16::MAX,
                at: (u64::MAX, u32::MAX),
                peer_options: perf().peer_options,
            }),
        ];
        for order in orders {
            let private_data = order.private_data();
            assert!(private_data.len() <= 508, "{} bytes", private_data.len());
            assert_eq!(Service::from_private_data(&private_data), order);
        }
    }

    #[test]
    fn foreign_and_unknown_private_data() {
        assert_eq!(Service::from_private_data(b""), Service::Foreign);
        assert_eq!(Service::from_private_data(b"hello"), Service::Foreign);
        assert_eq!(
            Service::from_private_data(b"uiw-perf/2 {}"),
            Service::Unknown("uiw-perf/2".into())
        );
        assert_eq!(
            Service::from_private_data(b"uiw-raw/1 "),
            Service::Unknown("uiw-raw/1".into()),
            "by a port of its own"
        );
        assert_eq!(
            Service::from_private_data(b"uiw-slice/1 {}"),
            Service::Unknown("uiw-slice/1".into())
        );
        assert_eq!(
            Service::from_private_data(b"uiw-ping/1 garbage"),
            Service::Unknown("uiw-ping/1".into())
        );
    }
}

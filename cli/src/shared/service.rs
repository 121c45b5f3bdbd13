//! The service that a client of `uiw serve` requests in the private data of its MPA Request. A peer
//! without it is of another implementation, and is served by its first message (`serve::foreign`).

use crate::shared::args::PeerConfig;
use crate::shared::qp_setup::Wait;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fmt;

const PING: &[u8] = b"uiw-ping/1 ";
const PERF: &[u8] = b"uiw-perf/1 ";
const RAW: &[u8] = b"uiw-raw/2 ";
const SLICE: &[u8] = b"uiw-slice/1 ";
const CP: &[u8] = b"uiw-cp/1 ";

/// What a client asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Service {
    /// Echo and memory for Writes and Reads.
    Ping(PingOrder),
    /// One measurement.
    Perf(PerfOrder),
    /// Raw TCP beside the measurements: stands as long as the comparison runs.
    Raw,
    /// One connection of raw TCP, which is iWARP's up to the Reply.
    Slice(SliceOrder),
    /// One connection of a transfer of files.
    Cp(CpOrder),
    /// The peer is not a `uiw` client.
    Foreign,
    /// One of ours, of a version that this program does not understand.
    Unknown(String),
}

/// The order of `uiw ping`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PingOrder {
    /// Longest message.
    pub(crate) size: u32,
    #[serde(rename = "wishes")]
    pub(crate) peer_options: PeerConfig,
}

/// The order of `uiw perf`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PerfOrder {
    pub(crate) op: Op,
    /// Bytes of a message.
    pub(crate) size: u32,
    /// Messages that the memory for Writes and Reads holds side by side.
    pub(crate) slots: u32,
    /// Messages under way at a time.
    pub(crate) depth: u32,
    /// Ping-pong: every message is answered by one of its kind.
    pub(crate) latency: bool,
    /// How to wait for completions of a ping-pong.
    pub(crate) wait: Wait,
    pub(crate) validate: bool,
    /// The client's memory, for the answers to Writes or what the server posts: tagged offset and
    /// STag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) back: Option<(u64, u32)>,
    /// The server posts, and the client answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) opposite: Option<OppositeTraffic>,
    #[serde(rename = "wishes")]
    pub(crate) peer_options: PeerConfig,
}

/// The data that the server needs to post what a client does otherwise.
///
/// It begins when the client sends [`Opposite::GO`], and ends behind its last message or when the
/// client sends [`OppositeTraffic::STOP`]. In between an empty Send is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OppositeTraffic {
    pub(crate) chain: u32,
    pub(crate) signal_every: u32,
    /// Messages; none = until it is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) iterations: Option<u64>,
}

impl OppositeTraffic {
    pub(crate) const GO: u8 = 1;
    pub(crate) const STOP: u8 = 2;
}

/// What a measurement is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
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

impl Op {
    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CmpSwap)
    }

    /// Returns whether the peer's receives are used up.
    pub(crate) fn takes_receives(self) -> bool {
        matches!(self, Self::Send | Self::WriteImm)
    }
}

impl fmt::Display for Op {
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

/// The order of `uiw cp`: `uiw_copy::protocol`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CpOrder {
    pub(crate) share: String,
    /// Common to the connections of one client.
    pub(crate) token: u64,
    /// Whether files go to the server.
    pub(crate) push: bool,
    /// Whether the client takes signs of life: [`uiw_copy::protocol::Reply::Working`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) pulse: bool,
    pub(crate) slots: u16,
    /// The client's slots: tagged offset and STag.
    pub(crate) at: (u64, u32),
    #[serde(rename = "options")]
    pub(crate) peer_options: PeerConfig,
}

/// The server's private data in its Reply to `uiw cp`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CpReply {
    /// The server's slots, where files go to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<(u64, u32)>,
    /// True if it gives the signs of life that were asked for. An earlier server may be silent for
    /// as long as it works.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) pulse: bool,
    /// Revision of the protocol: [`uiw_copy::protocol::REVISION`]. An earlier server names none.
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

/// The server's private data in its Reply to a client that requests raw TCP.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RawReply {
    /// By which the comparison's connections of raw TCP name it.
    pub(crate) token: u64,
}

/// What a connection of raw TCP does. Behind the server's Reply there is no MPA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SliceOrder {
    pub(crate) token: u64,
    pub(crate) kind: SliceKind,
    /// Bytes of one write, or of a message.
    pub(crate) buffer: u32,
    /// Bytes of memory that the writes come from, one behind the other, and the reads go to: as
    /// much as the messages of a measurement beside it, or the caches would serve one of the two
    /// better.
    pub(crate) memory: u32,
    /// How long the server writes.
    pub(crate) millis: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) congestion: Option<String>,
}

/// Which end sends on a connection of raw TCP, and how it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SliceKind {
    /// The client writes until it is done.
    ToServer,
    /// The server writes for a time.
    ToClient,
    /// Messages there and back; both ends poll.
    PingPongSpin,
    /// Messages there and back; both ends block.
    PingPongBlock,
}

/// What the server answers to an empty Send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stats {
    /// Processor time of its process so far.
    pub(crate) cpu_ns: u64,
    /// Messages received, or posted where the server posts.
    pub(crate) messages: u64,
    /// Messages whose bytes were wrong.
    pub(crate) wrong: u64,
}

impl Service {
    /// What a Request with this private data asks for.
    pub(crate) fn of(private_data: &[u8]) -> Self {
        if private_data.starts_with(RAW) {
            return Self::Raw;
        }
        let known =
            parse(private_data, PING).map(Self::Ping).or_else(|| parse(private_data, PERF).map(Self::Perf));
        let known = known.or_else(|| parse(private_data, CP).map(Self::Cp));
        match known.or_else(|| parse(private_data, SLICE).map(Self::Slice)) {
            Some(service) => service,
            None if private_data.starts_with(b"uiw-") => {
                let end = private_data.iter().position(|&byte| byte == b' ').unwrap_or(private_data.len());
                Self::Unknown(private_data[..end].escape_ascii().to_string())
            }
            None => Self::Foreign,
        }
    }

    /// Returns the name, for a log.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Ping(_) => "ping",
            Self::Perf(_) => "perf",
            Self::Raw => "comparison with raw TCP",
            Self::Slice(_) => "raw TCP",
            Self::Cp(_) => "cp",
            Self::Foreign => "rping or echo",
            Self::Unknown(name) => name,
        }
    }

    /// The private data that asks for it.
    pub(crate) fn private_data(&self) -> Vec<u8> {
        match self {
            Self::Ping(order) => with_json(PING, order),
            Self::Perf(order) => with_json(PERF, order),
            Self::Raw => RAW.to_vec(),
            Self::Slice(order) => with_json(SLICE, order),
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
    // Plain numbers and words: writing them to memory cannot fail.
    let _ = serde_json::to_writer(&mut out, order);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn perf() -> PerfOrder {
        PerfOrder {
            op: Op::WriteImm,
            size: u32::MAX,
            slots: u32::MAX,
            depth: u32::MAX,
            latency: false,
            wait: Wait::Spin,
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
            Service::Raw,
            Service::Slice(SliceOrder {
                token: u64::MAX,
                kind: SliceKind::PingPongSpin,
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
            assert_eq!(Service::of(&private_data), order);
        }
    }

    #[test]
    fn foreign_and_unknown_private_data() {
        assert_eq!(Service::of(b""), Service::Foreign);
        assert_eq!(Service::of(b"hello"), Service::Foreign);
        assert_eq!(Service::of(b"uiw-perf/2 {}"), Service::Unknown("uiw-perf/2".into()));
        assert_eq!(Service::of(b"uiw-raw/1 "), Service::Unknown("uiw-raw/1".into()), "by a port of its own");
        assert_eq!(Service::of(b"uiw-slice/1 {}"), Service::Unknown("uiw-slice/1".into()));
        assert_eq!(Service::of(b"uiw-ping/1 garbage"), Service::Unknown("uiw-ping/1".into()));
    }
}

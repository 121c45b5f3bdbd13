//! Arguments that several commands share.

use crate::fail::{Failure, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::str::FromStr;
use uiw_cabi::settings::{self, DeadAfter};
use uiw_verbs::{CapabilityExchange, ConnOptions, FpduSize, PeerProfile, Revision, RtrKinds, StableTx};

/// rping's port, and so the one of `uiw serve`.
pub(crate) const DEFAULT_PORT: u16 = 7174;

/// A switch with words for both positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Switch {
    /// On
    On,
    /// Off
    Off,
}

impl Switch {
    pub(crate) fn is_on(self) -> bool {
        self == Self::On
    }
}

/// How large FPDUs are: `auto`, `segment`, `large` or a MULPDU in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Fpdu(pub(crate) FpduSize);

impl FromStr for Fpdu {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Ok(Self(match text {
            "auto" => FpduSize::Auto,
            "segment" => FpduSize::Segment,
            "large" => FpduSize::Large,
            number => match number.parse() {
                Ok(size) if (uiw_mpa::MIN_MULPDU..=uiw_mpa::MAX_ULPDU).contains(&usize::from(size)) => {
                    FpduSize::Fixed(size)
                }
                _ => return Err("expected auto, segment, large or 128 to 64768 bytes".to_owned()),
            },
        }))
    }
}

impl TryFrom<String> for Fpdu {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<Fpdu> for String {
    fn from(fpdu: Fpdu) -> Self {
        fpdu.to_string()
    }
}

impl fmt::Display for Fpdu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            FpduSize::Auto => f.write_str("auto"),
            FpduSize::Segment => f.write_str("segment"),
            FpduSize::Large => f.write_str("large"),
            FpduSize::Fixed(size) => write!(f, "{size}"),
        }
    }
}

/// A peer that requires more than the RFCs say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Peer {
    /// The Linux siw driver with try_gso: lets it send FPDUs larger than a TCP segment, by its private flag
    SiwGso,
}

/// Options of a connection. What is not given is as the environment has it, else the default.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConnArgs {
    /// CRC32C on every FPDU [default: on]
    #[arg(long, value_name = "on|off")]
    crc: Option<Switch>,
    /// Ask for Markers, both ways where the peer is `uiw serve`
    #[arg(long)]
    markers: bool,
    /// FPDU size: auto (large between our own), segment, large, or a MULPDU in bytes [default: auto]
    #[arg(long, value_name = "SIZE")]
    fpdu: Option<Fpdu>,
    /// Depart from the RFCs as this peer requires
    #[arg(long, value_name = "PROFILE")]
    peer: Option<Peer>,
    /// Copy every source before its CRC is computed
    #[arg(long)]
    stable_tx: bool,
    /// Congestion control of TCP, such as cubic or bbr; auto is bbr where the round trip exceeds 5 ms and the system has it
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Bytes of a TCP segment at most, for paths that lose larger packets without a message
    #[arg(long, value_name = "BYTES", value_parser = segment)]
    mss: Option<u16>,
    /// After how long without any acknowledgement the peer is dead, such as 20s or 5m; 0 is the system's time
    /// [default: 15m; of `uiw serve` 60s]
    #[arg(long, value_name = "TIME")]
    dead_after: Option<DeadAfter>,
    /// Reads and atomics that this end may have outstanding, at most as many as the peer takes [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=MAX_DEPTH))]
    ord: Option<u16>,
    /// Reads and atomics that the peer may have outstanding here [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=MAX_DEPTH))]
    ird: Option<u16>,
    #[command(flatten)]
    startup: StartupArgs,
}

/// What Linux takes.
const MSS: std::ops::RangeInclusive<u16> = 88..=32_767;

/// The largest IRD and ORD that RFC 6581 can express.
const MAX_DEPTH: i64 = 0x3FFE;

/// How a connection is set up (docs/nics.md).
#[derive(Clone, Debug, Default, clap::Args)]
struct StartupArgs {
    /// Highest MPA revision: 1 is RFC 5044, 2 is RFC 6581 [default: 2]
    #[arg(long, value_name = "1|2", value_parser = clap::value_parser!(u8).range(1..=2))]
    revision: Option<u8>,
    /// Connect once more at revision 1 when the peer closes on revision 2 [default: on]
    #[arg(long, value_name = "on|off")]
    fallback: Option<Switch>,
    /// Ask for the peer-to-peer model; at revision 1 send an RTR message unasked [default: on]
    #[arg(long, value_name = "on|off")]
    peer_to_peer: Option<Switch>,
    /// RTR messages offered: write, read, send, separated by commas [default: all]
    #[arg(long, value_name = "KINDS", value_parser = settings::rtr_kinds)]
    rtr: Option<RtrKinds>,
    /// The capability exchange between uiw peers; off: every peer is a foreign one, assume: every peer has RFC 7306 [default: on]
    #[arg(long, value_name = "on|off|assume", value_parser = settings::capability_exchange)]
    capabilities: Option<CapabilityExchange>,
}

impl ConnArgs {
    /// These, and what the environment has for the others.
    pub(crate) fn peer_options(&self) -> PeerOptions {
        let set = crate::env::settings();
        let startup = &self.startup;
        let is_on = |switch: Option<Switch>, otherwise: bool| switch.map_or(otherwise, Switch::is_on);
        PeerOptions {
            crc: is_on(self.crc, set.conn.crc),
            markers: self.markers || set.conn.markers,
            fpdu: self.fpdu.unwrap_or(Fpdu(set.conn.fpdu)),
            peer: self.peer,
            stable_tx: self.stable_tx || set.stable_tx.is_some_and(|whose| whose != StableTx::Off),
            congestion: self.congestion.clone().or_else(|| set.conn.stream.congestion.clone()),
            own: OwnOptions {
                dead_after: self.dead_after.or(set.dead_after),
                ord: self.ord.or(set.ord),
                ird: self.ird.or(set.ird),
                mss: self.mss.or(set.conn.stream.max_segment),
                startup: Startup {
                    revision: match startup.revision {
                        Some(1) => Revision::One,
                        Some(_) => Revision::Two,
                        None => set.conn.revision,
                    },
                    fallback: is_on(startup.fallback, set.conn.fallback),
                    peer_to_peer: is_on(startup.peer_to_peer, set.conn.peer_to_peer),
                    rtr: startup.rtr.unwrap_or(set.conn.rtr),
                    capabilities: startup.capabilities.unwrap_or(set.conn.capabilities),
                },
                acknowledged: set.acknowledged.unwrap_or(false),
            },
        }
    }
}

/// Options of one end alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnOptions {
    pub(crate) dead_after: Option<DeadAfter>,
    pub(crate) ord: Option<u16>,
    pub(crate) ird: Option<u16>,
    pub(crate) mss: Option<u16>,
    pub(crate) startup: Startup,
    pub(crate) acknowledged: bool,
}

/// How one end sets up connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Startup {
    pub(crate) revision: Revision,
    pub(crate) fallback: bool,
    pub(crate) peer_to_peer: bool,
    pub(crate) rtr: RtrKinds,
    pub(crate) capabilities: CapabilityExchange,
}

impl Default for Startup {
    fn default() -> Self {
        let ConnOptions { revision, fallback, peer_to_peer, rtr, capabilities, .. } = ConnOptions::default();
        Self { revision, fallback, peer_to_peer, rtr, capabilities }
    }
}

/// Options of a connection as they are sent to the other end, which uses the same in its direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PeerOptions {
    pub(crate) crc: bool,
    pub(crate) markers: bool,
    pub(crate) fpdu: Fpdu,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<Peer>,
    pub(crate) stable_tx: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) congestion: Option<String>,
    #[serde(skip)]
    pub(crate) own: OwnOptions,
}

impl Default for PeerOptions {
    fn default() -> Self {
        Self {
            crc: true,
            markers: false,
            fpdu: Fpdu::default(),
            peer: None,
            stable_tx: false,
            congestion: None,
            own: OwnOptions::default(),
        }
    }
}

impl PeerOptions {
    pub(crate) fn options(&self) -> ConnOptions {
        let startup = self.own.startup;
        let mut options = ConnOptions::default()
            .crc(self.crc)
            .markers(self.markers)
            .fpdu(self.fpdu.0)
            .stable_tx(if self.stable_tx { StableTx::On } else { StableTx::Off })
            .profile(match self.peer {
                Some(Peer::SiwGso) => PeerProfile::SiwGso,
                None => PeerProfile::Rfc,
            })
            .revision(startup.revision)
            .fallback(startup.fallback)
            .peer_to_peer(startup.peer_to_peer)
            .rtr(startup.rtr)
            .capabilities(startup.capabilities)
            .acknowledged(self.own.acknowledged);
        options.stream.congestion.clone_from(&self.congestion);
        if let Some(DeadAfter(time)) = self.own.dead_after {
            options.stream.dead_after = time;
        }
        options.ord = self.own.ord.unwrap_or(options.ord);
        options.ird = self.own.ird.unwrap_or(options.ird);
        options.stream.max_segment = self.own.mss;
        options
    }

    /// The peer's, with what this end has for itself.
    pub(crate) fn at(&self, own: OwnOptions) -> Self {
        Self { own, ..self.clone() }
    }
}

/// A number of bytes: `4096`, `64K`, `8M`, `2G`.
pub(crate) fn large_bytes(text: &str) -> std::result::Result<u64, String> {
    let (digits, unit) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let number: u64 = digits.parse().map_err(|_| "expected bytes, such as 4096, 64K, 8M or 2G".to_owned())?;
    number.checked_mul(unit).ok_or_else(|| "too many bytes to count".to_owned())
}

/// A number of bytes that a message or an option of 32 bits may have.
pub(crate) fn bytes(text: &str) -> std::result::Result<u32, String> {
    u32::try_from(large_bytes(text)?).map_err(|_| "at most 4095M".to_owned())
}

/// A size of TCP segments.
fn segment(text: &str) -> std::result::Result<u16, String> {
    let size = large_bytes(text)?;
    let size = u16::try_from(size).ok().filter(|size| MSS.contains(size));
    size.ok_or_else(|| format!("expected bytes from {} to {}", MSS.start(), MSS.end()))
}

/// The least [`receive_memory`]: what one read of a socket may bring.
const MIN_RECEIVE_MEMORY: u32 = 256 << 10;

/// The size of a receive memory budget. With less than one read takes, no connection would be read.
pub(crate) fn receive_memory(text: &str) -> std::result::Result<u32, String> {
    let size = bytes(text)?;
    if size < MIN_RECEIVE_MEMORY {
        Err("at least 256K: less than one read takes".to_owned())
    } else {
        Ok(size)
    }
}

/// A number and a unit of time, in seconds: `500us`, `5ms`, `0.1s`, `2m`, `1h`.
pub(crate) fn time(text: &str) -> Option<f64> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.')?);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    digits.parse::<f64>().ok().map(|number| number * seconds)
}

/// Seconds, possibly broken, or a time with its unit.
pub(crate) fn seconds(text: &str) -> std::result::Result<f64, String> {
    match text.parse().ok().or_else(|| time(text)) {
        Some(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds between 0 and 86400, or a time such as 500us, 5ms or 2m".to_owned()),
    }
}

/// Seconds of a measurement: not 0.
pub(crate) fn some_seconds(text: &str) -> std::result::Result<f64, String> {
    seconds(text)
        .ok()
        .filter(|seconds| *seconds > 0.0)
        .ok_or_else(|| "expected seconds above 0, up to 86400, or a time such as 500us, 5ms or 2m".to_owned())
}

/// An address with or without a port: `ADDR:PORT`, `[ADDR]:PORT`, `[ADDR%INTERFACE]:PORT`, `ADDR`.
fn numeric(text: &str, port: u16) -> Option<SocketAddr> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address);
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, port));
    }
    let (address, rest) = text.split_once('%')?;
    let address = address.trim_start_matches('[').parse::<Ipv6Addr>().ok()?;
    let (interface, port) = match rest.split_once("]:") {
        Some((interface, digits)) => (interface, digits.parse().ok()?),
        None => (rest.trim_end_matches(']'), port),
    };
    let number = || Some(uiw_llp::Interface::find(interface).ok()?.index);
    let scope = interface.parse().ok().or_else(number)?;
    Some(SocketAddrV6::new(address, port, 0, scope).into())
}

/// The address of `HOST[:PORT]`.
pub(crate) fn resolve(host: &str, port: u16) -> Result<SocketAddr> {
    if let Some(address) = numeric(host, port) {
        return Ok(address);
    }
    let (name, port) = match host.rsplit_once(':') {
        None => (host, port),
        Some((name, digits)) => match digits.parse() {
            Ok(port) => (name, port),
            Err(_) => {
                return Err(Failure::usage(host, "the port is no number up to 65535", "write HOST:PORT"));
            }
        },
    };
    let unknown = |why: &dyn fmt::Display| {
        Failure::new(crate::fail::Exit::Unreachable, host, why, "check the name, or use an address")
    };
    let mut addresses = (name, port).to_socket_addrs().map_err(|error| unknown(&error))?;
    addresses.next().ok_or_else(|| unknown(&"the name has no address"))
}

/// The address of `--listen`: `ADDR:PORT`, `NAME:PORT` (of several addresses the first one of IPv4), `ADDR`, `:PORT` (all addresses) or `PORT`
/// (this machine only).
pub(crate) fn listen(text: &str) -> std::result::Result<SocketAddr, String> {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    if let Some(address) = numeric(text, DEFAULT_PORT) {
        return Ok(address);
    }
    if let Some(port) = text.strip_prefix(':').and_then(|digits| digits.parse().ok()) {
        return Ok(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port));
    }
    if let Ok(port) = text.parse() {
        return Ok(SocketAddr::new(loopback, port));
    }
    let rule = "expected ADDR:PORT, NAME:PORT, ADDR, :PORT (all addresses) or PORT (this machine only)";
    let named = text.rsplit_once(':').and_then(|(name, digits)| Some((name, digits.parse::<u16>().ok()?)));
    let named = named.filter(|(name, _)| !name.contains([':', '[', '%'])).ok_or(rule)?;
    let addresses = named.to_socket_addrs().map_err(|error| error.to_string())?.collect::<Vec<_>>();
    let first = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    first.copied().ok_or_else(|| "the name has no address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_units() {
        assert_eq!(bytes("12"), Ok(12));
        assert_eq!(bytes("64k"), Ok(65_536));
        assert_eq!(bytes("8M"), Ok(8 << 20));
        assert!(bytes("8G").is_err() && bytes("").is_err() && bytes("5000M").is_err());
    }

    #[test]
    fn times_take_units() {
        for (text, expected) in
            [("1.5", 1.5), ("250us", 250e-6), ("5ms", 5e-3), ("0.5s", 0.5), ("2m", 120.0), ("1h", 3600.0)]
        {
            assert!((seconds(text).unwrap() - expected).abs() < 1e-12, "{text}");
        }
        for wrong in ["", "s", "1d", "-1", "-1s", "25h", "1 s", "nan", "inf", "1e9", "1.2.3s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert!(some_seconds("0ms").is_err());
    }

    #[test]
    fn segments_are_sizes() {
        assert_eq!(segment("1K"), Ok(1024));
        assert_eq!(segment("1300"), Ok(1300));
        assert!(segment("1").is_err() && segment("70000").is_err() && segment("64K").is_err());
    }

    #[test]
    fn receive_memory_holds_at_least_one_read() {
        assert_eq!(receive_memory("256K"), Ok(256 << 10));
        assert_eq!(receive_memory("4095M"), Ok(4095 << 20));
        assert_eq!(receive_memory("255K"), Err("at least 256K: less than one read takes".to_owned()));
        assert!(receive_memory("lots").unwrap_err().starts_with("expected bytes"));
    }

    #[test]
    fn addresses_with_and_without_port() {
        assert_eq!(resolve("127.0.0.1", 5).unwrap(), "127.0.0.1:5".parse().unwrap());
        assert_eq!(resolve("[::1]:6", 5).unwrap(), "[::1]:6".parse().unwrap());
        assert_eq!(resolve("::1", 5).unwrap(), "[::1]:5".parse().unwrap());
        assert_eq!(resolve("localhost:99999", 5).unwrap_err().exit, crate::fail::Exit::Usage);
        assert_eq!(listen(":7"), Ok("[::]:7".parse().unwrap()));
        assert_eq!(listen("7"), Ok("127.0.0.1:7".parse().unwrap()));
        assert_eq!(listen("localhost:7"), Ok("127.0.0.1:7".parse().unwrap()));
        for wrong in ["no", "no:", "1:2:3", "[::1]:x", "[fe80::1%nonsuch]:7", "localhost:99999"] {
            assert!(listen(wrong).is_err(), "{wrong}");
        }
        let lo: u32 = std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap().trim().parse().unwrap();
        let local = |port| Ok(SocketAddrV6::new("fe80::1".parse().unwrap(), port, 0, lo).into());
        assert_eq!(listen("[fe80::1%lo]:7"), local(7));
        assert_eq!(listen(&format!("[fe80::1%{lo}]:7")), local(7));
        assert_eq!(resolve("fe80::1%lo", 5).ok(), local(5).ok());
        assert_eq!(resolve("[fe80::1%lo]", 5).ok(), local(5).ok());
    }

    #[test]
    fn fpdu_sizes() {
        assert_eq!("1424".parse(), Ok(Fpdu(FpduSize::Fixed(1424))));
        assert!("127".parse::<Fpdu>().is_err() && "65000".parse::<Fpdu>().is_err());
        for text in ["auto", "segment", "large", "128"] {
            assert_eq!(text.parse::<Fpdu>().unwrap().to_string(), text);
        }
    }
}

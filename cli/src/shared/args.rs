//! Arguments that several commands share.

use crate::shared::fail::{Failure, Result};
use clap::{Arg, ArgMatches, Command, FromArgMatches};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use uiw::raw::{ConnConfig, FpduSize, PeerProfile, StableTx};
use uiw_cabi_core::settings::{Settings, VARIABLES, Variable};

/// Default port of `uiw serve`, which is that of rping.
pub(crate) const DEFAULT_PORT: u16 = 7174;

/// Connection options of the command line. They are defined by the environment variables of the
/// libraries, which set the default of each option.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnArgs {
    given: Vec<(&'static Variable, String)>,
}

/// Returns the variables that have a command line option, with the name of the option.
fn conn_variables() -> impl Iterator<Item = (&'static str, &'static Variable)> {
    VARIABLES.iter().filter_map(|variable| Some((variable.option?, variable)))
}

impl clap::Args for ConnArgs {
    fn augment_args(command: Command) -> Command {
        conn_variables().fold(command, |command, (option, variable)| {
            let check =
                |text: &str| variable.set(&mut Settings::default(), text).map(|()| text.to_owned());
            let (first, rest) = variable.what.split_at(1);
            let help = format!(
                "{}{rest}: {} [env: {}]",
                first.to_uppercase(),
                variable.values,
                variable.name
            );
            let arg =
                Arg::new(option).long(option).value_name("VALUE").help(help).value_parser(check);
            command.arg(arg)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ConnArgs {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        let given = conn_variables().filter_map(|(option, variable)| {
            Some((variable, matches.get_one::<String>(option)?.clone()))
        });
        Ok(Self { given: given.collect() })
    }

    fn update_from_arg_matches(
        &mut self,
        matches: &ArgMatches,
    ) -> std::result::Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ConnArgs {
    /// Returns the settings: options of the command line, and environment variables for the others.
    pub(crate) fn settings(&self) -> Settings {
        let mut settings = crate::shared::env::settings().clone();
        for (variable, value) in &self.given {
            // The value was checked when the command line was parsed.
            let _ = variable.set(&mut settings, value);
        }
        settings
    }

    pub(crate) fn peer_options(&self) -> PeerConfig {
        PeerConfig::new(self.settings().connection())
    }
}

/// Options of a connection, as sent to the other end, which uses the same ones in its direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PeerConfig {
    pub(crate) crc: bool,
    pub(crate) markers: bool,
    #[serde(with = "text")]
    pub(crate) fpdu: FpduSize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<PeerQuirk>,
    pub(crate) stable_tx: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) congestion: Option<String>,
    /// All options of this end, which are not sent.
    #[serde(skip)]
    pub(crate) own: ConnConfig,
}

/// A peer with requirements beyond those of the RFCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PeerQuirk {
    SiwGso,
}

/// Serializes a value as its text.
mod text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::fmt::Display;
    use std::str::FromStr;

    pub(super) fn serialize<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

impl Default for PeerConfig {
    fn default() -> Self {
        Self::new(ConnConfig::default())
    }
}

impl PeerConfig {
    pub(crate) fn new(own: ConnConfig) -> Self {
        Self {
            crc: own.crc,
            markers: own.markers,
            fpdu: own.fpdu,
            peer: (own.profile == PeerProfile::SiwGso).then_some(PeerQuirk::SiwGso),
            stable_tx: own.stable_tx != StableTx::Off,
            congestion: own.stream.congestion.clone(),
            own,
        }
    }

    pub(crate) fn options(&self) -> ConnConfig {
        let mut options = self.own.clone();
        (options.crc, options.markers, options.fpdu) = (self.crc, self.markers, self.fpdu);
        options.profile =
            self.peer.map_or(PeerProfile::Rfc, |PeerQuirk::SiwGso| PeerProfile::SiwGso);
        options.stable_tx = if self.stable_tx { StableTx::On } else { StableTx::Off };
        options.stream.congestion.clone_from(&self.congestion);
        options
    }

    /// Returns the options of the peer, combined with the options of this end that are not sent.
    pub(crate) fn at(&self, own: &ConnConfig) -> Self {
        Self { own: own.clone(), ..self.clone() }
    }
}

/// Parses a number of bytes: `4096`, `64K`, `8M`, `2G`.
pub(crate) fn large_bytes(text: &str) -> std::result::Result<u64, String> {
    let (digits, unit) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let number: u64 =
        digits.parse().map_err(|_| "expected bytes, such as 4096, 64K, 8M or 2G".to_owned())?;
    number.checked_mul(unit).ok_or_else(|| "too many bytes to count".to_owned())
}

/// Parses a number of bytes that fits into 32 bits.
pub(crate) fn bytes(text: &str) -> std::result::Result<u32, String> {
    u32::try_from(large_bytes(text)?).map_err(|_| "at most 4095M".to_owned())
}

/// Minimum of [`receive_memory`]: the bytes that one read of a socket may return.
const MIN_RECEIVE_MEMORY: u32 = 256 << 10;

/// Parses the size of a receive memory budget. With a smaller budget than one read needs, no
/// connection could be read.
pub(crate) fn receive_memory(text: &str) -> std::result::Result<u32, String> {
    let size = bytes(text)?;
    if size < MIN_RECEIVE_MEMORY {
        Err("at least 256K: less than one read takes".to_owned())
    } else {
        Ok(size)
    }
}

/// Parses a time with a unit, such as `500us`, `5ms`, `0.1s`, `2m` or `1h`. Returns seconds.
pub(crate) fn parse_time(text: &str) -> Option<f64> {
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

/// Parses seconds, possibly with a fraction, or a time with a unit.
pub(crate) fn seconds(text: &str) -> std::result::Result<f64, String> {
    match text.parse().ok().or_else(|| parse_time(text)) {
        Some(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => {
            Err("expected seconds between 0 and 86400, or a time such as 500us, 5ms or 2m"
                .to_owned())
        }
    }
}

/// Like [`seconds`], but rejects 0.
pub(crate) fn positive_seconds(text: &str) -> std::result::Result<f64, String> {
    seconds(text).ok().filter(|seconds| *seconds > 0.0).ok_or_else(|| {
        "expected seconds above 0, up to 86400, or a time such as 500us, 5ms or 2m".to_owned()
    })
}

/// Parses an address with or without a port: `ADDR:PORT`, `[ADDR]:PORT`, `[ADDR%INTERFACE]:PORT`,
/// `ADDR`.
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

/// Resolves `HOST[:PORT]`.
pub(crate) fn resolve(host: &str, port: u16) -> Result<SocketAddr> {
    if let Some(address) = numeric(host, port) {
        return Ok(address);
    }
    let (name, port) = match host.rsplit_once(':') {
        None => (host, port),
        Some((name, digits)) => match digits.parse() {
            Ok(port) => (name, port),
            Err(_) => {
                return Err(Failure::usage(
                    host,
                    "the port is no number up to 65535",
                    "write HOST:PORT",
                ));
            }
        },
    };
    let unknown = |why: &dyn fmt::Display| {
        Failure::new(
            crate::shared::fail::Exit::Unreachable,
            host,
            why,
            "check the name, or use an address",
        )
    };
    let mut addresses = (name, port).to_socket_addrs().map_err(|error| unknown(&error))?;
    addresses.next().ok_or_else(|| unknown(&"the name has no address"))
}

/// Parses the address of `--listen`: `ADDR:PORT`, `NAME:PORT` (prefers the first IPv4 address of
/// the name), `ADDR`, `:PORT` (all addresses) or `PORT` (this machine only).
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
    let rule =
        "expected ADDR:PORT, NAME:PORT, ADDR, :PORT (all addresses) or PORT (this machine only)";
    let named =
        text.rsplit_once(':').and_then(|(name, digits)| Some((name, digits.parse::<u16>().ok()?)));
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
        for (text, expected) in [
            ("1.5", 1.5),
            ("250us", 250e-6),
            ("5ms", 5e-3),
            ("0.5s", 0.5),
            ("2m", 120.0),
            ("1h", 3600.0),
        ] {
            assert!((seconds(text).unwrap() - expected).abs() < 1e-12, "{text}");
        }
        for wrong in ["", "s", "1d", "-1", "-1s", "25h", "1 s", "nan", "inf", "1e9", "1.2.3s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert!(positive_seconds("0ms").is_err());
    }

    #[test]
    fn receive_memory_holds_one_read() {
        assert_eq!(receive_memory("256K"), Ok(256 << 10));
        assert_eq!(receive_memory("4095M"), Ok(4095 << 20));
        assert_eq!(
            receive_memory("255K"),
            Err("at least 256K: less than one read takes".to_owned())
        );
        assert!(receive_memory("lots").unwrap_err().starts_with("expected bytes"));
    }

    #[test]
    fn addresses_with_and_without_port() {
        assert_eq!(resolve("127.0.0.1", 5).unwrap(), "127.0.0.1:5".parse().unwrap());
        assert_eq!(resolve("[::1]:6", 5).unwrap(), "[::1]:6".parse().unwrap());
        assert_eq!(resolve("::1", 5).unwrap(), "[::1]:5".parse().unwrap());
        assert_eq!(
            resolve("localhost:99999", 5).unwrap_err().exit,
            crate::shared::fail::Exit::Usage
        );
        assert_eq!(listen(":7"), Ok("[::]:7".parse().unwrap()));
        assert_eq!(listen("7"), Ok("127.0.0.1:7".parse().unwrap()));
        assert_eq!(listen("localhost:7"), Ok("127.0.0.1:7".parse().unwrap()));
        for wrong in ["no", "no:", "1:2:3", "[::1]:x", "[fe80::1%nonsuch]:7", "localhost:99999"] {
            assert!(listen(wrong).is_err(), "{wrong}");
        }
        let lo: u32 =
            std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap().trim().parse().unwrap();
        let local = |port| Ok(SocketAddrV6::new("fe80::1".parse().unwrap(), port, 0, lo).into());
        assert_eq!(listen("[fe80::1%lo]:7"), local(7));
        assert_eq!(listen(&format!("[fe80::1%{lo}]:7")), local(7));
        assert_eq!(resolve("fe80::1%lo", 5).ok(), local(5).ok());
        assert_eq!(resolve("[fe80::1%lo]", 5).ok(), local(5).ok());
    }
}

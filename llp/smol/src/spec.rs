//! Stacks by name: the values of `--llp` and `UIW_LLP`.

use crate::capability::{self, Capability};
use crate::packet::PacketLink;
use crate::xdp::{XdpLink, XdpMode};
use crate::{ConfigError, SmolConfig, SmolStack};
use std::io;
use std::net::IpAddr;
use std::str::FromStr;
use uiw_llp::TransportStack;
use uiw_llp::size;
use uiw_llp::tcp::TcpStack;

/// Specification of a stack that can be opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Spec {
    /// `tcp`: the kernel's TCP.
    #[default]
    Tcp,
    /// `mptcp`: the kernel's Multipath TCP.
    Mptcp,
    /// `packet:IFACE,ip=ADDR/PREFIX[,gw=ADDR][,mac=MAC][,buffer=BYTES]`: smoltcp over AF_PACKET.
    Packet {
        /// Name of the interface.
        interface: String,
        /// Addresses and buffer size of the interface.
        config: SmolConfig,
    },
    /// `xdp:IFACE,ip=ADDR/PREFIX[,mode=auto|zerocopy|native|generic]` and the keys of `packet`:
    /// smoltcp over AF_XDP.
    Xdp {
        /// Name of the interface.
        interface: String,
        /// Addresses and buffer size of the interface.
        config: SmolConfig,
        /// Mode of AF_XDP.
        mode: XdpMode,
    },
}

/// Error in the name of a stack.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// There is no such stack.
    #[error(
        "`{name}` is no stack: expected tcp, mptcp, packet:IFACE,ip=ADDR/PREFIX or xdp:IFACE,ip=ADDR/PREFIX"
    )]
    Kind {
        /// Given name.
        name: String,
    },
    /// The name of the interface is missing.
    #[error("`{kind}:` needs an interface first: {kind}:IFACE,ip=ADDR/PREFIX")]
    InterfaceMissing {
        /// Name of the stack.
        kind: String,
    },
    /// The address is missing.
    #[error("`{kind}:{interface}` needs an address of its own, not the kernel's: ip=ADDR/PREFIX")]
    AddressMissing {
        /// Name of the stack.
        kind: String,
        /// Name of the interface.
        interface: String,
    },
    /// There is no such key.
    #[error("`{key}` is no key: expected ip, gw, mac, buffer; for xdp also mode")]
    Key {
        /// Given key.
        key: String,
    },
    /// The value is invalid.
    #[error("{key}={value}: expected {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// Given value.
        value: String,
        /// Accepted values.
        expected: &'static str,
    },
    /// The values are valid, but no host can have them.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "tcp" if rest.is_empty() => Ok(Self::Tcp),
            "mptcp" if rest.is_empty() => Ok(Self::Mptcp),
            "packet" => {
                let (interface, config, _) = parse(kind, rest)?;
                Ok(Self::Packet { interface, config })
            }
            "xdp" => {
                let (interface, config, mode) = parse(kind, rest)?;
                Ok(Self::Xdp { interface, config, mode })
            }
            _ => Err(SpecError::Kind { name: text.to_owned() }),
        }
    }
}

fn parse(kind: &str, rest: &str) -> Result<(String, SmolConfig, XdpMode), SpecError> {
    let mut words = rest.split(',');
    let interface = match words.next() {
        Some(name) if !name.is_empty() && !name.contains('=') => name.to_owned(),
        _ => return Err(SpecError::InterfaceMissing { kind: kind.to_owned() }),
    };
    let (mut addresses, mut gateways, mut mac, mut buffer) = (Vec::new(), Vec::new(), None, None);
    let mut mode = XdpMode::Auto;
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let wrong = |key, expected| SpecError::Value { key, value: value.to_owned(), expected };
        match key {
            "ip" => {
                addresses
                    .push(prefixed(value).ok_or(wrong("ip", "ADDR/PREFIX, such as 10.1.0.2/24"))?);
            }
            "gw" => gateways.push(value.parse().map_err(|_| wrong("gw", "an address"))?),
            "mac" => {
                mac = Some(
                    hardware(value).ok_or(wrong("mac", "six bytes, such as 02:00:00:00:00:01"))?,
                );
            }
            "buffer" => {
                buffer = Some(
                    bytes(value).ok_or(wrong("buffer", "bytes between 4K and 1G, such as 4M"))?,
                );
            }
            "mode" if kind == "xdp" => {
                mode = value
                    .parse()
                    .map_err(|()| wrong("mode", "auto, zerocopy, native or generic"))?;
            }
            _ => return Err(SpecError::Key { key: key.to_owned() }),
        }
    }
    let Some((first, prefix)) = addresses.first().copied() else {
        return Err(SpecError::AddressMissing { kind: kind.to_owned(), interface });
    };
    let mut config = SmolConfig::new(first, prefix);
    config.addresses = addresses;
    config.gateways = gateways;
    config.mac = mac.unwrap_or(config.mac);
    config.buffer = buffer.unwrap_or(config.buffer);
    config.check()?;
    Ok((interface, config, mode))
}

fn prefixed(text: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let prefix: u8 = prefix.parse().ok()?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    (prefix <= longest).then_some((address, prefix))
}

fn hardware(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut words = text.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(words.next()?, 16).ok()?;
    }
    words.next().is_none().then_some(mac)
}

fn bytes(text: &str) -> Option<usize> {
    let bytes = size(text).and_then(|bytes| usize::try_from(bytes).ok())?;
    SmolConfig::BUFFERS.contains(&bytes).then_some(bytes)
}

/// Replaces a `PermissionDenied` error by one that names the missing capabilities.
fn denied(error: io::Error, needed: &[Capability]) -> io::Error {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return error;
    }
    io::Error::new(io::ErrorKind::PermissionDenied, capability::refusal(needed).0)
}

impl Spec {
    /// Returns the capabilities that the stack needs.
    #[must_use]
    pub fn capabilities(&self) -> &'static [Capability] {
        match self {
            Self::Tcp | Self::Mptcp => &[],
            Self::Packet { .. } => &Capability::PACKET,
            Self::Xdp { .. } => &Capability::XDP,
        }
    }

    /// Returns the interface and the addresses of a TCP in this process, or `None` for the kernel's
    /// TCP.
    #[must_use]
    pub fn own(&self) -> Option<(&str, &SmolConfig)> {
        match self {
            Self::Tcp | Self::Mptcp => None,
            Self::Packet { interface, config } | Self::Xdp { interface, config, .. } => {
                Some((interface, config))
            }
        }
    }

    /// Opens the stack.
    ///
    /// # Errors
    /// Returns the errors of [`TcpStack::new`], [`TcpStack::multipath`], [`PacketLink::open`],
    /// [`XdpLink::open`] and [`SmolStack::new`]. `PermissionDenied` names the capability that is
    /// missing.
    pub fn open(&self) -> io::Result<Box<dyn TransportStack>> {
        match self {
            Self::Tcp => Ok(Box::new(TcpStack::new()?)),
            Self::Mptcp => Ok(Box::new(TcpStack::multipath()?)),
            Self::Packet { interface, config } => {
                let link = PacketLink::open(interface, config)
                    .map_err(|error| denied(error, &Capability::PACKET))?;
                Ok(Box::new(SmolStack::new(link, config)?))
            }
            Self::Xdp { interface, config, mode } => {
                let link = XdpLink::open(interface, *mode, config)
                    .map_err(|error| denied(error, &Capability::XDP))?;
                Ok(Box::new(SmolStack::new(link, config)?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_stacks() {
        assert_eq!("tcp".parse(), Ok(Spec::Tcp));
        assert_eq!("mptcp".parse(), Ok(Spec::Mptcp));
        let text =
            "packet:eth0,ip=10.1.0.2/24,ip=fd00::2/64,gw=10.1.0.1,mac=02:00:00:00:00:0a,buffer=4M";
        let Ok(Spec::Packet { interface, config }) = text.parse() else { panic!("{text}") };
        assert_eq!(interface, "eth0");
        assert_eq!(config.mac, [2, 0, 0, 0, 0, 10]);
        assert_eq!(config.addresses.len(), 2);
        assert_eq!(config.gateways, ["10.1.0.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(config.buffer, 4 << 20);
    }

    #[test]
    fn each_mistake_is_named() {
        let wrong = |text: &str| text.parse::<Spec>().unwrap_err().to_string();
        assert!(wrong("packet:eth0,ip=10.0.0.1/8,mode=native").contains("`mode` is no key"));
        assert!(wrong("xdp:eth0,ip=10.0.0.1/8,mode=fast").contains("mode=fast"));
        assert!(wrong("quic").contains("`quic` is no stack"));
        assert!(wrong("packet:ip=10.0.0.1/8").contains("needs an interface"));
        assert!(wrong("packet:eth0").contains("needs an address"));
        assert!(wrong("packet:eth0,ip=10.0.0.1/33").contains("ip=10.0.0.1/33"));
        assert!(wrong("packet:eth0,ip=10.0.0.1/8,mac=1:2").contains("mac=1:2"));
        assert!(wrong("packet:eth0,ip=10.0.0.1/8,buffer=1").contains("buffer=1"));
        assert!(wrong("packet:eth0,colour=red").contains("`colour` is no key"));
        assert!(
            wrong("packet:eth0,ip=255.255.255.255/24")
                .contains("ip=255.255.255.255/24 is not the address")
        );
        assert!(
            wrong("packet:eth0,ip=10.0.0.1/8,mac=01:00:00:00:00:00")
                .contains("mac=01:00:00:00:00:00")
        );
        assert!(
            wrong("packet:eth0,ip=10.0.0.1/8,gw=11.0.0.1").contains("gw=11.0.0.1 is in no network")
        );
    }
}

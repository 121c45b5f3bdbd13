//! Addresses of an interface, and rules for them.

use std::net::IpAddr;

/// Addresses and buffer size of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmolConfig {
    /// MAC address. It must be unicast, and different from that of the kernel's interface.
    pub mac: [u8; 6],
    /// IP addresses with their prefix lengths. They must not be used by the kernel or by another
    /// host on the wire. Only conflicts within this host are detected, because there is no
    /// duplicate address detection on the wire.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Default routes, at most one for each address family.
    pub gateways: Vec<IpAddr>,
    /// Size in bytes of a connection's receive buffer and of its send buffer, unless the options of
    /// a stream specify other sizes. To fill a path, a buffer needs at least the product of
    /// bandwidth and delay.
    pub buffer: usize,
}

/// Error in a [`SmolConfig`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The MAC address is a group address or zero.
    #[error("mac={}: a host has a unicast address, such as 02:00:00:00:00:01", colons(mac))]
    Mac {
        /// Given address.
        mac: [u8; 6],
    },
    /// The address cannot belong to a host on this network.
    #[error("ip={address}/{prefix} is not the address of a host in a network")]
    Address {
        /// Given address.
        address: IpAddr,
        /// Prefix length.
        prefix: u8,
    },
    /// An address occurs twice.
    #[error("ip={address} is given twice")]
    AddressTwice {
        /// Given address.
        address: IpAddr,
    },
    /// The gateway is in none of the networks.
    #[error("gw={gateway} is in no network of ip=: a gateway must be a neighbour")]
    GatewayFar {
        /// Given address.
        gateway: IpAddr,
    },
    /// There is more than one default route for an address family.
    #[error("gw={gateway} is a second gateway of its family: give one for IPv4 and one for IPv6")]
    GatewayTwice {
        /// Given address.
        gateway: IpAddr,
    },
    /// The buffer size is not supported by smoltcp.
    #[error("buffer={bytes}: expected bytes between 4K and 1G, such as 4M")]
    Buffer {
        /// Given number of bytes.
        bytes: usize,
    },
}

impl SmolConfig {
    /// Default size of each buffer in bytes, which is sufficient for 10 Gbit/s at 0.8 ms.
    pub const BUFFER: usize = 1 << 20;
    /// Permitted sizes of a buffer in bytes. No window can be larger (RFC 7323 section 2.3).
    pub const BUFFERS: std::ops::RangeInclusive<usize> = 4096..=1 << 30;

    /// Returns a configuration with one address and a MAC address derived from it. The MAC address
    /// contains an IPv4 address completely, and a 32-bit hash of an IPv6 address, so hosts with
    /// different addresses normally have different MAC addresses. The caches of neighbours remain
    /// correct if another process uses the IP address later.
    #[must_use]
    pub fn new(address: IpAddr, prefix: u8) -> Self {
        let [a, b, c, d] = match address {
            IpAddr::V4(v4) => v4.octets(),
            // FNV-1a over the whole address.
            IpAddr::V6(v6) => v6
                .octets()
                .iter()
                .fold(0x811C_9DC5, |hash: u32, byte| {
                    (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
                })
                .to_be_bytes(),
        };
        // Locally administered unicast addresses (IEEE 802), different for the two address
        // families.
        let first = if address.is_ipv4() { 0x02 } else { 0x06 };
        let mac = [first, 0x75, a, b, c, d];
        Self { mac, addresses: vec![(address, prefix)], gateways: Vec::new(), buffer: Self::BUFFER }
    }

    /// Checks that a host can have this configuration.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mac = self.mac;
        if mac[0] & 1 == 1 || mac == [0; 6] {
            return Err(ConfigError::Mac { mac });
        }
        for (n, (address, prefix)) in self.addresses.iter().copied().enumerate() {
            if !is_host(address, prefix) {
                return Err(ConfigError::Address { address, prefix });
            }
            if self.addresses[..n].iter().any(|(other, _)| *other == address) {
                return Err(ConfigError::AddressTwice { address });
            }
        }
        for (n, gateway) in self.gateways.iter().copied().enumerate() {
            if self.gateways[..n].iter().any(|other| other.is_ipv4() == gateway.is_ipv4()) {
                return Err(ConfigError::GatewayTwice { gateway });
            }
            if !self.is_neighbour(gateway) {
                return Err(ConfigError::GatewayFar { gateway });
            }
        }
        if !Self::BUFFERS.contains(&self.buffer) {
            return Err(ConfigError::Buffer { bytes: self.buffer });
        }
        Ok(())
    }

    /// Returns whether another host in one of our networks can have this address. Link-local
    /// addresses are accepted for IPv6, because routers are usually known by them.
    fn is_neighbour(&self, other: IpAddr) -> bool {
        let link_local = matches!(other, IpAddr::V6(v6) if v6.is_unicast_link_local());
        self.addresses.iter().any(|(address, prefix)| {
            let near = address.is_ipv4() == other.is_ipv4()
                && network(*address, *prefix).0 == network(other, *prefix).0
                && is_host(other, *prefix);
            *address != other && (near || link_local && address.is_ipv6())
        })
    }
}

/// Returns whether a host can have this address.
fn is_host(address: IpAddr, prefix: u8) -> bool {
    let width = if address.is_ipv4() { 32 } else { 128 };
    if prefix > width || address.is_unspecified() || address.is_multicast() || address.is_loopback()
    {
        return false;
    }
    let (_, host, ones) = network(address, prefix);
    // Networks of two hosts have no other addresses (RFC 3021, RFC 6164).
    let named = width - prefix < 2;
    match address {
        IpAddr::V4(v4) => !v4.is_broadcast() && (named || host != 0 && host != ones),
        // Excludes the anycast address of routers (RFC 4291 section 2.6.1).
        IpAddr::V6(v6) => v6.to_ipv4_mapped().is_none() && (named || host != 0),
    }
}

/// Returns the network part and the host part of an address, and a host part of ones.
fn network(address: IpAddr, prefix: u8) -> (u128, u128, u128) {
    let (bits, width) = match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()), 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    };
    let all = u128::MAX >> (128 - width);
    let ones = all.checked_shr(u32::from(prefix)).unwrap_or(0);
    (bits & !ones, bits & ones, ones)
}

pub(crate) fn colons(mac: &[u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(addresses: &[&str], gateways: &[&str]) -> Result<(), ConfigError> {
        let split = |text: &str| {
            let (address, prefix) = text.split_once('/').unwrap();
            (address.parse().unwrap(), prefix.parse().unwrap())
        };
        let mut config = SmolConfig::new("10.1.0.2".parse().unwrap(), 24);
        config.addresses = addresses.iter().map(|text| split(text)).collect();
        config.gateways = gateways.iter().map(|text| text.parse().unwrap()).collect();
        config.check()
    }

    #[test]
    fn addresses_of_hosts() {
        for right in [
            "10.1.0.2/24",
            "10.1.0.255/16",
            "10.1.0.2/0",
            "10.1.0.0/31",
            "10.1.0.1/32",
            "fd00::1/64",
            "fe80::1/10",
            "fd00::/127",
            "fd00::/128",
        ] {
            assert_eq!(of(&[right], &[]), Ok(()), "{right}");
        }
        for wrong in [
            "0.0.0.0/24",
            "255.255.255.255/24",
            "255.255.255.255/32",
            "224.0.0.1/24",
            "127.0.0.1/8",
            "10.1.0.0/24",
            "10.1.0.255/24",
            "10.1.0.1/33",
            "::/64",
            "::1/128",
            "ff02::1/64",
            "fd00::/64",
            "::ffff:10.1.0.2/120",
            "fd00::1/129",
        ] {
            assert!(matches!(of(&[wrong], &[]), Err(ConfigError::Address { .. })), "{wrong}");
        }
        assert!(matches!(
            of(&["10.1.0.2/24", "10.1.0.2/16"], &[]),
            Err(ConfigError::AddressTwice { .. })
        ));
    }

    #[test]
    fn gateways_are_neighbours() {
        let both = ["10.1.0.2/24", "fd00::2/64"];
        for right in [&["10.1.0.1"][..], &["10.1.0.1", "fd00::1"], &["fe80::1"]] {
            assert_eq!(of(&both, right), Ok(()), "{right:?}");
        }
        for wrong in ["10.1.1.1", "10.1.0.2", "10.1.0.255", "0.0.0.0", "fd01::1", "ff02::2"] {
            assert!(matches!(of(&both, &[wrong]), Err(ConfigError::GatewayFar { .. })), "{wrong}");
        }
        assert!(matches!(of(&both[..1], &["fe80::1"]), Err(ConfigError::GatewayFar { .. })));
        let two = of(&both, &["10.1.0.1", "10.1.0.3"]);
        assert!(matches!(two, Err(ConfigError::GatewayTwice { .. })));
    }

    #[test]
    fn macs_and_buffers_of_hosts() {
        let base = SmolConfig::new("10.1.0.2".parse().unwrap(), 24);
        for mac in [[0; 6], [0xFF; 6], [1, 0, 0, 0, 0, 1]] {
            assert_eq!(SmolConfig { mac, ..base.clone() }.check(), Err(ConfigError::Mac { mac }));
        }
        for bytes in [0, 4095, (1 << 30) + 1] {
            let config = SmolConfig { buffer: bytes, ..base.clone() };
            assert_eq!(config.check(), Err(ConfigError::Buffer { bytes }));
        }
    }
}

//! Network devices of this host. The kernel reports them by netlink or, if a sandbox refuses
//! netlink, by ioctl(2).

use super::link;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use uiw_cabi_core::denied;
use uiw_cabi_core::settings::Settings;
use uiw_llp::{Interface, InterfaceAddresses};
use uiw_smol::SmolConfig;

/// Network device with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetDev {
    /// Name of the network interface.
    pub name: String,
    /// Interface index of the kernel.
    pub index: u32,
    /// True if the device is up and has a carrier.
    pub running: bool,
    /// True if it is the loopback device.
    pub loopback: bool,
    /// MAC address, if the device has one.
    pub mac: Option<[u8; 6]>,
    /// Size of the longest packet, in bytes.
    pub mtu: u32,
    /// Speed in megabits per second; `None` if the device is virtual or its speed is unknown.
    pub mbps: Option<u32>,
    /// Addresses with their prefix lengths, in the order of [`InterfaceAddresses`].
    pub addresses: Vec<(IpAddr, u8)>,
}

impl NetDev {
    /// Returns the address of entry `index` of the GID table.
    pub fn address(&self, index: usize) -> Option<IpAddr> {
        self.addresses.get(index).map(|(address, _)| *address)
    }

    /// Returns whether the device has the address. Every address 127.x.y.z belongs to the loopback
    /// device.
    pub fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == address)
            || self.loopback && address.is_loopback() && address.is_ipv4()
    }

    /// Returns the socket address of `ip` at this device. Link-local addresses contain the index of
    /// their device.
    pub fn socket_address(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                SocketAddrV6::new(v6, port, 0, self.index).into()
            }
            ip => SocketAddr::new(ip, port),
        }
    }

    /// Returns the scope of an address: the index of the device if the address is valid only
    /// together with it, and 0 otherwise.
    pub fn scope_id(&self, ip: IpAddr) -> u32 {
        match ip {
            IpAddr::V6(v6) if v6.is_unicast_link_local() || v6.is_multicast() => self.index,
            _ => 0,
        }
    }

    /// Returns the node GUID, big-endian: the EUI-64 of the MAC address, or a locally administered
    /// one for devices without a MAC address.
    pub fn guid(&self) -> u64 {
        let [a, b, c, d, e, f] = self.mac.unwrap_or_else(|| {
            let [_, _, high, low] = self.index.to_be_bytes();
            [0x02, b'u', b'i', b'w', high, low]
        });
        u64::from_ne_bytes([a ^ 2, b, c, 0xFF, 0xFE, d, e, f])
    }
}

/// Returns the network devices that this process uses.
pub fn all() -> io::Result<Vec<NetDev>> {
    // `Settings::get` has already reported invalid values.
    let llp = Settings::get().map(|settings| settings.llp.clone()).unwrap_or_default();
    all_on(&llp).inspect_err(|error| denied::report("looking for network devices", error))
}

/// Returns all network devices that have an IP address, with the loopback device last. If the TCP
/// runs in this process, returns only its interface.
///
/// # Errors
/// OS errors.
pub fn all_on(llp: &uiw_smol::Spec) -> io::Result<Vec<NetDev>> {
    if let Some((name, config)) = llp.own() {
        return in_process_netdev(name, config).map(|netdev| vec![netdev]);
    }
    let mut devices: Vec<NetDev> = InterfaceAddresses::all()?.into_iter().map(new).collect();
    devices.sort_by_key(|device| (device.loopback, device.index));
    Ok(devices)
}

/// Returns the interface of a TCP in this process, with the addresses of that TCP.
fn in_process_netdev(name: &str, config: &SmolConfig) -> io::Result<NetDev> {
    Interface::find(name).map(|interface| NetDev {
        name: name.to_owned(),
        index: interface.index,
        running: interface.is_up,
        loopback: false,
        mac: Some(config.mac),
        mtu: u32::try_from(interface.mtu).unwrap_or(1500),
        mbps: link::mbps(name),
        addresses: config.addresses.clone(),
    })
}

fn new(interface: InterfaceAddresses) -> NetDev {
    let InterfaceAddresses { name, index, is_running, is_loopback, mac, addresses } = interface;
    let (mtu, mbps) = (link::mtu(&name).unwrap_or(1500), link::mbps(&name));
    NetDev { name, index, running: is_running, loopback: is_loopback, mac, mtu, mbps, addresses }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn loopback_is_there_and_last() {
        let devices = all().unwrap();
        let lo = devices.last().expect("this machine has a loopback device");
        assert!(lo.loopback, "{devices:?}");
        assert!(lo.addresses.contains(&(Ipv4Addr::LOCALHOST.into(), 8)), "{lo:?}");
        assert_ne!(lo.index, 0);
        assert!(lo.mtu >= 1280);
    }
}

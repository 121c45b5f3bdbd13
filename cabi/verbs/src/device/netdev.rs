//! The network devices of this machine, as the kernel reports them: by netlink, or where a sandbox
//! refuses that, by ioctl(2).

use super::link;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use uiw_cabi_core::denied;
use uiw_cabi_core::settings::Settings;
use uiw_llp::{Interface, InterfaceAddresses};
use uiw_smol::SmolConfig;

/// A network device with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetDev {
    /// Name.
    pub name: String,
    /// The kernel's index.
    pub index: u32,
    /// True if the device is up and has a carrier.
    pub running: bool,
    /// True if it is the loopback device.
    pub loopback: bool,
    /// MAC address, if the device has one.
    pub mac: Option<[u8; 6]>,
    /// Bytes of the longest packet.
    pub mtu: u32,
    /// Speed in megabit a second; `None` if the device is virtual or its speed is unknown.
    pub mbps: Option<u32>,
    /// Addresses, each with the length of its prefix, in the order of [`InterfaceAddresses`].
    pub addresses: Vec<(IpAddr, u8)>,
}

impl NetDev {
    /// The address of entry `index` of its GID table.
    pub fn address(&self, index: usize) -> Option<IpAddr> {
        self.addresses.get(index).map(|(address, _)| *address)
    }

    /// Returns whether an address is the device's: every address 127.x.y.z is one of the loopback
    /// device.
    pub fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == address)
            || self.loopback && address.is_loopback() && address.is_ipv4()
    }

    /// The socket address of `ip` at this device: link-local addresses need the index of their
    /// device.
    pub fn socket_address(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, port, 0, self.index).into(),
            ip => SocketAddr::new(ip, port),
        }
    }

    /// Node GUID, big-endian: the EUI-64 of the MAC address; a locally administered one for devices
    /// without.
    pub fn guid(&self) -> u64 {
        let [a, b, c, d, e, f] = self.mac.unwrap_or_else(|| {
            let [_, _, high, low] = self.index.to_be_bytes();
            [0x02, b'u', b'i', b'w', high, low]
        });
        u64::from_ne_bytes([a ^ 2, b, c, 0xFF, 0xFE, d, e, f])
    }
}

/// The devices of this process.
pub fn all() -> io::Result<Vec<NetDev>> {
    // `Settings::get` has reported bad values.
    let llp = Settings::get().map(|settings| settings.llp.clone()).unwrap_or_default();
    all_on(&llp).inspect_err(|error| denied::report("looking for network devices", error))
}

/// Every network device that has an IP address, loopback last; with a TCP in this process, the
/// interface that it runs on alone.
///
/// # Errors
/// The system's.
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

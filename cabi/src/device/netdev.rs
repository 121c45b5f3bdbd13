//! The network devices of this machine, by `getifaddrs`: no files, so it works in every container.

use super::link;
use crate::settings::Settings;
use std::ffi::{CStr, c_int};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr;
use uiw_llp::Interface;
use uiw_llp::smol::SmolConfig;

/// A network device with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetDev {
    /// Its name.
    pub name: String,
    /// The kernel's index.
    pub index: u32,
    /// Whether it is up and has a carrier.
    pub running: bool,
    /// Whether it is the loopback device.
    pub loopback: bool,
    /// Its MAC address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// Bytes of the longest packet.
    pub mtu: u32,
    /// Its speed in megabit a second; `None` where it is virtual or its speed is unknown.
    pub mbps: Option<u32>,
    /// Its addresses, each with the length of its prefix, in the kernel's order.
    pub addresses: Vec<(IpAddr, u8)>,
}

impl NetDev {
    /// The address of entry `index` of its GID table.
    #[must_use]
    pub fn address(&self, index: usize) -> Option<IpAddr> {
        self.addresses.get(index).map(|(address, _)| *address)
    }

    /// Whether an address is the device's: every address 127.x.y.z is one of the loopback device.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == address)
            || self.loopback && address.is_loopback() && address.is_ipv4()
    }

    /// The socket address of `ip` at this device: link-local addresses need the index of their device.
    #[must_use]
    pub fn socket_address(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, port, 0, self.index).into(),
            ip => SocketAddr::new(ip, port),
        }
    }

    /// Node GUID, big-endian: the EUI-64 of the MAC address; a locally administered one for devices without.
    #[must_use]
    pub fn guid(&self) -> u64 {
        let [a, b, c, d, e, f] = self.mac.unwrap_or_else(|| {
            let [_, _, high, low] = self.index.to_be_bytes();
            [0x02, b'u', b'i', b'w', high, low]
        });
        u64::from_ne_bytes([a ^ 2, b, c, 0xFF, 0xFE, d, e, f])
    }
}

/// The devices of this process.
pub(crate) fn all() -> io::Result<Vec<NetDev>> {
    // `Settings::get` has reported bad values.
    all_on(&Settings::get().map(|settings| settings.llp.clone()).unwrap_or_default())
}

/// Every network device that has an IP address, loopback last; with a TCP in this process, the interface that it runs on alone.
///
/// # Errors
/// The system's.
pub fn all_on(llp: &uiw_llp::Spec) -> io::Result<Vec<NetDev>> {
    if let Some((name, config)) = llp.own() {
        return own(name, config).map(|netdev| vec![netdev]);
    }
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: fills `list` with a chain that is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut devices: Vec<NetDev> = Vec::new();
    let mut at = list;
    while !at.is_null() {
        // SAFETY: an element of the chain, which lives until `freeifaddrs`.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        // SAFETY: the kernel's name, with its NUL.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        let place = devices.iter().position(|device| device.name == name).unwrap_or_else(|| {
            devices.push(new(name, entry.ifa_flags as c_int));
            devices.len() - 1
        });
        // SAFETY: the chain's addresses have the lengths of their families.
        unsafe { note(&mut devices[place], entry) };
    }
    // SAFETY: the chain that `getifaddrs` made; nothing points into it any more.
    unsafe { libc::freeifaddrs(list) };
    devices.retain(|device| !device.addresses.is_empty());
    devices.sort_by_key(|device| (device.loopback, device.index));
    Ok(devices)
}

/// The interface of a TCP in this process, with the addresses of that TCP.
fn own(name: &str, config: &SmolConfig) -> io::Result<NetDev> {
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

fn new(name: String, flags: c_int) -> NetDev {
    let (mtu, mbps) = (link::mtu(&name).unwrap_or(1500), link::mbps(&name));
    let index = std::ffi::CString::new(name.as_str()).map_or(0, |name| {
        // SAFETY: reads a name with its NUL.
        unsafe { libc::if_nametoindex(name.as_ptr()) }
    });
    NetDev {
        name,
        index,
        running: flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0,
        loopback: flags & libc::IFF_LOOPBACK != 0,
        mac: None,
        mtu,
        mbps,
        addresses: Vec::new(),
    }
}

/// Adds the content of one element of the chain.
///
/// # Safety
/// The element's addresses are NULL, or have the lengths of their families.
unsafe fn note(device: &mut NetDev, entry: &libc::ifaddrs) {
    if entry.ifa_addr.is_null() {
        return;
    }
    // SAFETY: the caller's promise, for every cast below.
    unsafe {
        match c_int::from((*entry.ifa_addr).sa_family) {
            libc::AF_INET => {
                let address = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned().sin_addr.s_addr;
                let mask = entry.ifa_netmask.cast::<libc::sockaddr_in>();
                let prefix =
                    if mask.is_null() { 32 } else { mask.read_unaligned().sin_addr.s_addr.count_ones() };
                let address = Ipv4Addr::from_bits(u32::from_be(address));
                if !address.is_unspecified() {
                    device.addresses.push((address.into(), u8::try_from(prefix).unwrap_or(32)));
                }
            }
            libc::AF_INET6 => {
                let address = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned().sin6_addr.s6_addr;
                let mask = entry.ifa_netmask.cast::<libc::sockaddr_in6>();
                let prefix = if mask.is_null() {
                    128
                } else {
                    u128::from_be_bytes(mask.read_unaligned().sin6_addr.s6_addr).count_ones()
                };
                let address = Ipv6Addr::from(address);
                if !address.is_unspecified() {
                    device.addresses.push((address.into(), u8::try_from(prefix).unwrap_or(128)));
                }
            }
            libc::AF_PACKET => {
                let link = entry.ifa_addr.cast::<libc::sockaddr_ll>().read_unaligned();
                let mac: [u8; 6] = std::array::from_fn(|i| link.sll_addr[i]);
                if link.sll_halen == 6 && mac != [0; 6] {
                    device.mac = Some(mac);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

//! Queries about network devices for links of Ethernet frames.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use uiw_llp::interface::{Interface, InterfaceAddresses, check, index_of, mtu_by, request, socket};
use uiw_llp::netlink::{self, attribute};

/// Checks that the interface is up and carries Ethernet frames. Returns its MAC address.
///
/// # Errors
/// `NotFound` if the interface does not exist, `NetworkDown` if it is down, and `Unsupported` if
/// its frames have no Ethernet headers (tun, WireGuard, tunnels). All other errors are OS errors.
pub(crate) fn ethernet_address(name: &str) -> io::Result<[u8; 6]> {
    if !Interface::find(name)?.is_up {
        return Err(io::Error::new(
            io::ErrorKind::NetworkDown,
            format!("interface `{name}` is down"),
        ));
    }
    let mut request = request(name);
    // SAFETY: the request is readable and writable, and its name ends with a zero.
    check(unsafe { libc::ioctl(socket()?.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) })?;
    // SAFETY: SIOCGIFHWADDR fills this member.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    if ![libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&address.sa_family) {
        let why = format!("interface `{name}` carries no Ethernet frames");
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address.sa_data) {
        // `c_char` is signed only on some processors.
        [*to] = from.to_ne_bytes();
    }
    Ok(mac)
}

/// Returns the kernel's IP addresses in this network namespace.
pub(crate) fn kernel_addresses() -> io::Result<Vec<IpAddr>> {
    let all = InterfaceAddresses::all()?;
    Ok(all.iter().flat_map(|interface| &interface.addresses).map(|(address, _)| *address).collect())
}

/// Returns the maximum size of an IP packet on the interface, in bytes.
pub(crate) fn mtu_of(name: &str) -> io::Result<usize> {
    mtu_by(&socket()?, name)
}

/// Numbers of queues of an interface that are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queues {
    /// Number of receive queues, at least one.
    pub(crate) rx: u32,
    /// Number of transmit queues, at least one.
    pub(crate) tx: u32,
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct EthtoolChannels {
    command: u32,
    /// Maximum numbers of queues for receiving, for sending, for other purposes, and combined.
    most: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    both: u32,
}

impl Queues {
    /// Returns the queues of the interface with this name, as reported by its driver. If the driver
    /// does not report them, returns the number with which the interface was created.
    ///
    /// # Errors
    /// Returns OS errors.
    pub(crate) fn query(name: &str) -> io::Result<Self> {
        const ETHTOOL_GCHANNELS: u32 = 0x3C;
        let mut channels =
            EthtoolChannels { command: ETHTOOL_GCHANNELS, ..EthtoolChannels::default() };
        let mut request = request(name);
        request.ifr_ifru.ifru_data = (&raw mut channels).cast();
        // SAFETY: the name in the request ends with a zero, and its data is the structure that this
        // command fills.
        let asked = check(unsafe {
            libc::ioctl(socket()?.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request)
        });
        if asked.is_ok() {
            let EthtoolChannels { rx, tx, both, .. } = channels;
            return Ok(Self {
                rx: rx.saturating_add(both).max(1),
                tx: tx.saturating_add(both).max(1),
            });
        }
        let link = link(name)?;
        let count = |which| {
            let value = attribute(&link, which).and_then(|value| value.first_chunk::<4>());
            value.map_or(1, |value| u32::from_ne_bytes(*value)).max(1)
        };
        Ok(Self { rx: count(libc::IFLA_NUM_RX_QUEUES), tx: count(libc::IFLA_NUM_TX_QUEUES) })
    }
}

/// Returns whether the interface has no hardware: it is the loopback interface, or the kernel
/// reports a kind but no parent device, as for a veth or a bridge.
///
/// # Errors
/// Returns OS errors.
pub(crate) fn is_virtual(name: &str) -> io::Result<bool> {
    const IFLA_PARENT_DEV_NAME: u16 = 56;
    const IFLA_INFO_KIND: u16 = 1;
    let link = link(name)?;
    let info = attribute(&link, libc::IFLA_LINKINFO).unwrap_or_default();
    let has_kind = attribute(info, IFLA_INFO_KIND).is_some()
        && attribute(&link, IFLA_PARENT_DEV_NAME).is_none();
    Ok(has_kind || Interface::find(name)?.is_loopback)
}

/// Returns the attributes that rtnetlink(7) reports for an interface.
fn link(name: &str) -> io::Result<Vec<u8>> {
    // `struct ifinfomsg` consists of family, padding and type, followed by the index.
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index_of(name)?.to_ne_bytes());
    // Without a protocol number the protocol is NETLINK_ROUTE.
    netlink::query(None, libc::RTM_GETLINK, &header, None, header.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn loopback_interface_carries_frames() {
        let lo =
            Interface::all().unwrap().into_iter().find(|interface| interface.is_loopback).unwrap();
        if lo.is_up {
            assert_eq!(ethernet_address(&lo.name).unwrap(), [0; 6]);
            assert!(kernel_addresses().unwrap().contains(&Ipv4Addr::LOCALHOST.into()));
        }
    }
}

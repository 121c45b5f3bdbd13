//! Addresses of network interfaces. They are queried by netlink or, if netlink sockets cannot be
//! created, by ioctl(2): systemd's `RestrictAddressFamilies=` and the profiles of container
//! runtimes refuse `AF_NETLINK`.

use super::{check, index_of, request};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::ffi::{CStr, c_int};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};

/// Network interface with all its IP addresses. It has at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddresses {
    /// Name.
    pub name: String,
    /// Interface index of the kernel.
    pub index: u32,
    /// True if the interface is up and has a carrier.
    pub is_running: bool,
    /// True if it is the loopback interface.
    pub is_loopback: bool,
    /// MAC address, if the interface has one.
    pub mac: Option<[u8; 6]>,
    /// Addresses with their prefix lengths: first those of IPv4, then those of IPv6.
    pub addresses: Vec<(IpAddr, u8)>,
}

impl InterfaceAddresses {
    /// Returns all interfaces of this network namespace that have an address.
    ///
    /// # Errors
    /// Returns OS errors if neither netlink nor ioctl(2) is available.
    pub fn all() -> io::Result<Vec<Self>> {
        match Self::by_netlink() {
            Ok(all) => Ok(all),
            Err(error) => {
                tracing::debug!(%error, "netlink is not available: addresses are queried with ioctl");
                Self::by_ioctl()
            }
        }
    }

    fn new(name: &str, flags: c_int) -> Self {
        Self {
            name: name.to_owned(),
            // If the interface has disappeared meanwhile, it has no index.
            index: index_of(name).unwrap_or(0),
            is_running: flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0,
            is_loopback: flags & libc::IFF_LOOPBACK != 0,
            mac: None,
            addresses: Vec::new(),
        }
    }

    fn add(&mut self, address: IpAddr, prefix: u8) {
        if !address.is_unspecified() {
            self.addresses.push((address, prefix));
        }
    }

    /// Returns the addresses that getifaddrs(3) reports.
    fn by_netlink() -> io::Result<Vec<Self>> {
        let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
        // SAFETY: the call stores a chain in `list`, which is freed below.
        check(unsafe { libc::getifaddrs(&raw mut list) })?;
        let mut all: Vec<Self> = Vec::new();
        let mut at = list;
        while !at.is_null() {
            // SAFETY: this is an element of the chain, which lives until `freeifaddrs`.
            let entry = unsafe { &*at };
            at = entry.ifa_next;
            // SAFETY: the kernel's name ends with a zero.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy();
            let place = place_of(&mut all, &name, || entry.ifa_flags as c_int);
            // SAFETY: the addresses in the chain have the lengths of their families.
            unsafe { all[place].note(entry) };
        }
        // SAFETY: `getifaddrs` has created the chain, and nothing refers to it any more.
        unsafe { libc::freeifaddrs(list) };
        all.retain(|interface| !interface.addresses.is_empty());
        Ok(all)
    }

    /// Adds the content of one element of the chain.
    ///
    /// # Safety
    /// The addresses of the element are NULL or have the lengths of their families.
    unsafe fn note(&mut self, entry: &libc::ifaddrs) {
        if entry.ifa_addr.is_null() {
            return;
        }
        // SAFETY: the caller ensures the length of the address, for every cast below.
        unsafe {
            match c_int::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let address =
                        entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned().sin_addr;
                    let mask = entry.ifa_netmask.cast::<libc::sockaddr_in>();
                    let prefix = if mask.is_null() {
                        32
                    } else {
                        ones_v4(mask.read_unaligned().sin_addr.s_addr)
                    };
                    self.add(Ipv4Addr::from(address.s_addr.to_ne_bytes()).into(), prefix);
                }
                libc::AF_INET6 => {
                    let address =
                        entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned().sin6_addr;
                    let mask = entry.ifa_netmask.cast::<libc::sockaddr_in6>();
                    let prefix = if mask.is_null() {
                        128
                    } else {
                        u128::from_be_bytes(mask.read_unaligned().sin6_addr.s6_addr).count_ones()
                    };
                    self.add(
                        Ipv6Addr::from(address.s6_addr).into(),
                        u8::try_from(prefix).unwrap_or(128),
                    );
                }
                libc::AF_PACKET => {
                    let link = entry.ifa_addr.cast::<libc::sockaddr_ll>().read_unaligned();
                    let mac: [u8; 6] = std::array::from_fn(|i| link.sll_addr[i]);
                    if link.sll_halen == 6 && mac != [0; 6] {
                        self.mac = Some(mac);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the addresses without netlink: SIOCGIFCONF reports those of IPv4, and a file in
    /// /proc contains those of IPv6.
    fn by_ioctl() -> io::Result<Vec<Self>> {
        let socket = socket()?;
        let mut all: Vec<Self> = Vec::new();
        for mut entry in configured(&socket)? {
            let name = name_of(&entry);
            // SAFETY: SIOCGIFCONF fills this member.
            let address = unsafe { v4_of(&entry.ifr_ifru.ifru_addr) };
            // The request still contains the address, which identifies one of several addresses of
            // an interface.
            // SAFETY: the request is readable and writable, and its name ends with a zero.
            let is_known =
                unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFNETMASK, &raw mut entry) }
                    == 0;
            let prefix = if is_known {
                // SAFETY: SIOCGIFNETMASK fills this member.
                ones_v4(unsafe { v4_of(&entry.ifr_ifru.ifru_netmask) })
            } else {
                32
            };
            let place = place_of(&mut all, &name, || flags(&socket, &name));
            all[place].add(Ipv4Addr::from(address.to_ne_bytes()).into(), prefix);
        }
        for (name, address, prefix) in v6_addresses() {
            let place = place_of(&mut all, &name, || flags(&socket, &name));
            all[place].add(address.into(), prefix);
        }
        for interface in &mut all {
            interface.mac = mac(&socket, &interface.name);
        }
        all.retain(|interface| !interface.addresses.is_empty());
        all.sort_by_key(|interface| interface.index);
        Ok(all)
    }
}

/// Returns the names of interfaces without netlink: those in /proc or, if it contains none, those
/// that have an address.
pub(super) fn names() -> io::Result<Vec<String>> {
    let names = names_in(&of_proc("dev"));
    if !names.is_empty() {
        return Ok(names);
    }
    Ok(InterfaceAddresses::by_ioctl()?.into_iter().map(|interface| interface.name).collect())
}

/// Returns the names in `/proc/net/dev`, which begins with two header lines.
fn names_in(text: &str) -> Vec<String> {
    text.lines()
        .skip(2)
        .filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()))
        .collect()
}

/// Returns the place of an interface in `all`. The name may be the label of an IPv4 address, which
/// consists of the name of its interface and a suffix, as `eth0:1`.
fn place_of(
    all: &mut Vec<InterfaceAddresses>,
    label: &str,
    flags: impl FnOnce() -> c_int,
) -> usize {
    let name = label.split_once(':').map_or(label, |(name, _)| name);
    all.iter().position(|interface| interface.name == name).unwrap_or_else(|| {
        all.push(InterfaceAddresses::new(name, flags()));
        all.len() - 1
    })
}

/// Reads a file of this thread's network namespace. Returns an empty text if it does not exist, as
/// with a kernel without IPv6.
fn of_proc(file: &str) -> String {
    let places = ["/proc/thread-self/net", "/proc/self/net", "/proc/net"];
    places
        .iter()
        .find_map(|place| fs::read_to_string(format!("{place}/{file}")).ok())
        .unwrap_or_default()
}

/// Returns the IPv6 addresses with the names of their interfaces: global ones first, as in the
/// kernel's own list.
fn v6_addresses() -> Vec<(String, Ipv6Addr, u8)> {
    let text = of_proc("if_inet6");
    let mut found: Vec<_> = text.lines().filter_map(v6_address).collect();
    found.sort_by_key(|(_, address, _)| address.is_unicast_link_local());
    found
}

/// Parses a line of `/proc/net/if_inet6`: address, then index, prefix length, scope and flags in
/// hexadecimal, and the name.
fn v6_address(line: &str) -> Option<(String, Ipv6Addr, u8)> {
    let mut words = line.split_whitespace();
    let address = u128::from_str_radix(words.next()?, 16).ok()?;
    let prefix = u8::from_str_radix(words.nth(1)?, 16).ok()?;
    Some((words.nth(2)?.to_owned(), Ipv6Addr::from_bits(address), prefix))
}

fn ones_v4(mask: u32) -> u8 {
    u8::try_from(mask.count_ones()).unwrap_or(32)
}

/// Returns the address of a `sockaddr` of AF_INET, in network byte order.
fn v4_of(address: &libc::sockaddr) -> u32 {
    // The address follows the port.
    let [_, _, a, b, c, d, ..] = address.sa_data;
    // `c_char` is signed only on some processors.
    u32::from_ne_bytes([a, b, c, d].map(|byte| byte.to_ne_bytes()[0]))
}

fn name_of(entry: &libc::ifreq) -> String {
    let bytes =
        entry.ifr_name.iter().take_while(|byte| **byte != 0).map(|byte| byte.to_ne_bytes()[0]);
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

fn flags(socket: &OwnedFd, name: &str) -> c_int {
    let mut request = request(name);
    // SAFETY: the request is readable and writable, and its name ends with a zero; SIOCGIFFLAGS
    // fills the member.
    unsafe {
        match libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) {
            0 => c_int::from(request.ifr_ifru.ifru_flags),
            _ => 0,
        }
    }
}

/// Returns the MAC address of an Ethernet interface. The length of other hardware addresses is not
/// known here.
fn mac(socket: &OwnedFd, name: &str) -> Option<[u8; 6]> {
    let mut request = request(name);
    // SAFETY: the request is readable and writable, and its name ends with a zero; SIOCGIFHWADDR
    // fills the member.
    let address = unsafe {
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request)).ok()?;
        request.ifr_ifru.ifru_hwaddr
    };
    let [a, b, c, d, e, f, ..] = address.sa_data;
    let mac = [a, b, c, d, e, f].map(|byte| byte.to_ne_bytes()[0]);
    (address.sa_family == libc::ARPHRD_ETHER && mac != [0; 6]).then_some(mac)
}

/// Returns all IPv4 addresses, from SIOCGIFCONF.
fn configured(socket: &OwnedFd) -> io::Result<Vec<libc::ifreq>> {
    let mut room = 64;
    loop {
        let mut entries = vec![request(""); room];
        let bytes = size_of_val(entries.as_slice());
        let mut list = libc::ifconf {
            ifc_len: c_int::try_from(bytes).unwrap_or(c_int::MAX),
            ifc_ifcu: libc::__c_anonymous_ifc_ifcu { ifcu_req: entries.as_mut_ptr() },
        };
        // SAFETY: the list refers to memory of the size that it contains, which the kernel fills
        // with whole entries.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFCONF, &raw mut list) })?;
        let count = usize::try_from(list.ifc_len).unwrap_or(0) / size_of::<libc::ifreq>();
        if count < room {
            entries.truncate(count);
            return Ok(entries);
        }
        // There may be more addresses.
        room *= 4;
    }
}

/// Creates an IPv4 socket, because only IPv4 answers queries about addresses.
fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use super::super::Interface;
    use super::*;
    use std::process::Command;
    use uiw_interop::stock::Network;

    /// Sorts the addresses, because their order within a family is irrelevant.
    fn sorted(mut all: Vec<InterfaceAddresses>) -> Vec<InterfaceAddresses> {
        for interface in &mut all {
            interface.addresses.sort();
        }
        all.sort_by_key(|interface| interface.index);
        all
    }

    #[test]
    fn both_ways_give_the_same() {
        let [one, other] = [InterfaceAddresses::by_netlink, InterfaceAddresses::by_ioctl]
            .map(|ask| ask().unwrap());
        assert_eq!(sorted(one), sorted(other));
        let mut own: Vec<_> =
            Interface::all().unwrap().into_iter().map(|interface| interface.name).collect();
        let mut others = names().unwrap();
        own.sort();
        others.sort();
        assert_eq!(own, others);
    }

    #[test]
    fn addresses_of_both_families_found() {
        let Some(network) = Network::veth() else { return };
        for address in ["10.77.9.1/30", "10.77.0.9/24", "fd77::1/64", "fd78::1/112"] {
            let mut command = Command::new("ip");
            command.args(["address", "add", address, "dev", "veth0"]);
            assert!(network.server(command).status().unwrap().success());
        }
        let [one, other] = network.inside_server(|| {
            [InterfaceAddresses::by_netlink, InterfaceAddresses::by_ioctl].map(|ask| ask().unwrap())
        });
        let veth = other.iter().find(|interface| interface.name == "veth0").unwrap();
        assert!(veth.is_running && veth.mac.is_some(), "{veth:?}");
        for (address, prefix) in
            [("10.77.9.1", 30), ("10.77.0.9", 24), ("fd77::1", 64), ("fd78::1", 112)]
        {
            assert!(
                veth.addresses.contains(&(address.parse().unwrap(), prefix)),
                "{address}: {veth:?}"
            );
        }
        // A link-local address comes after the global ones, as in the kernel's list.
        assert!(
            veth.addresses.last().is_some_and(|(last, _)| last.to_string().starts_with("fe80:")),
            "{veth:?}"
        );
        assert_eq!(sorted(one), sorted(other));
    }

    #[test]
    fn lines_of_proc() {
        let line = "fe800000000000000000000000000001 0a 40 20 80     veth0";
        assert_eq!(v6_address(line), Some(("veth0".to_owned(), "fe80::1".parse().unwrap(), 64)));
        assert_eq!(v6_address("fe80"), None);
        let dev = "Inter-| Receive\n face |bytes\n    lo: 1 2\n eth0:9 8\n";
        assert_eq!(names_in(dev), ["lo", "eth0"]);
    }
}

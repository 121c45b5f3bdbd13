//! Changes of network interfaces and their addresses, as announced by rtnetlink(7).

use crate::netlink::{self, NetlinkMessage, attribute, text};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrAny, SocketFlags, SocketType, bind, recvfrom, socket_with,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Time between two attempts to read the state of all interfaces.
const PAUSE: Duration = Duration::from_secs(1);

/// Multicast groups of linux/rtnetlink.h.
const RTMGRP_LINK: u32 = 0x1;
const RTMGRP_IPV4_IFADDR: u32 = 0x10;
const RTMGRP_IPV6_IFADDR: u32 = 0x100;
/// Message types. The kernel announces changes with `RTM_NEWLINK`, `RTM_DELLINK`, `RTM_NEWADDR` and
/// `RTM_DELADDR`. It answers `RTM_GETLINK` with `RTM_NEWLINK`, and `RTM_GETADDR` with
/// `RTM_NEWADDR`.
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
/// Size in bytes of `struct ifinfomsg`, which precedes the attributes of an interface.
const LINK_HEADER: usize = 16;
/// Size in bytes of `struct ifaddrmsg`, which precedes the attributes of an address.
const ADDRESS_HEADER: usize = 8;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFA_ADDRESS: u16 = 1;
/// The interface's own address, if `IFA_ADDRESS` is that of the peer.
const IFA_LOCAL: u16 = 2;
/// `IFF_UP` and `IFF_RUNNING`: the interface is administratively up and has a carrier.
const RUNNING: u32 = 0x41;

/// Change of a network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InterfaceChange {
    /// The interface came up and has a carrier.
    Up,
    /// The interface went down or lost its carrier.
    Down,
    /// Addresses were added or removed.
    Addresses,
    /// The hardware address has changed.
    HardwareAddress,
    /// The interface is gone or was renamed.
    Removed,
}

/// Subscription to changes of all network interfaces in the network namespace of the thread that
/// created it.
#[derive(Debug)]
pub struct InterfaceMonitor {
    socket: OwnedFd,
    known: Links,
    buffer: Vec<u8>,
}

/// Interfaces by the kernel's index.
type Links = BTreeMap<u32, LinkState>;

/// State of an interface, as far as its changes are reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LinkState {
    name: String,
    is_running: bool,
    hardware_address: Vec<u8>,
    addresses: BTreeSet<(IpAddr, u8)>,
}

impl InterfaceMonitor {
    /// Subscribes to changes. Every later change is reported.
    ///
    /// # Errors
    /// Returns OS errors: there is no netlink, or a sandbox refuses it.
    pub fn new() -> io::Result<Self> {
        // The protocol NETLINK_ROUTE has the number 0, which is the default.
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        // The state is read after the subscription. A change in between is announced as well, and
        // applying it again has no effect.
        Ok(Self { socket, known: all()?, buffer: vec![0; netlink::BUFFER] })
    }

    /// Returns the socket in which [`InterfaceMonitor::wait`] sleeps. The child of a fork may close
    /// its copy.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sleeps until something has changed. Returns the changes in order, each with the name of its
    /// interface.
    ///
    /// # Errors
    /// Returns OS errors.
    pub fn wait(&mut self) -> io::Result<Vec<(String, InterfaceChange)>> {
        let mut changes = Vec::new();
        while changes.is_empty() {
            match recvfrom(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((_, len, Some(from))) if is_kernel(&from) => {
                    let bytes = self.buffer.get(..len).unwrap_or_default();
                    for message in netlink::messages(bytes) {
                        apply(&mut self.known, &message, &mut changes);
                    }
                }
                Ok((_, _, Some(from))) if from.address_family() == AddressFamily::NETLINK => {}
                Ok(_) => {
                    return Err(io::Error::other(
                        "the descriptor of the netlink socket is another file now",
                    ));
                }
                Err(Errno::INTR) => {}
                // Announcements were lost, so the whole state is read again. The error overtakes
                // older announcements, which must not be applied to the newer state.
                Err(Errno::NOBUFS) => {
                    self.discard_announcements();
                    let now = eventually(all, || std::thread::sleep(PAUSE));
                    let before = std::mem::replace(&mut self.known, now);
                    compare_links(&before, &self.known, &mut changes);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(changes)
    }

    fn discard_announcements(&mut self) {
        while let Ok((_, _, Some(_))) | Err(Errno::NOBUFS | Errno::INTR) =
            recvfrom(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT)
        {}
    }
}

/// Returns whether the kernel sent the message. Any process may send messages to a socket of the
/// same user.
fn is_kernel(from: &SocketAddrAny) -> bool {
    SocketAddrNetlink::try_from(from.clone()).is_ok_and(|from| from.pid() == 0)
}

/// Calls `read` until it succeeds. Memory or descriptors may be scarce for a while, most likely
/// when announcements are lost.
fn eventually(mut read: impl FnMut() -> io::Result<Links>, mut pause: impl FnMut()) -> Links {
    loop {
        match read() {
            Ok(links) => return links,
            Err(error) => {
                tracing::debug!(%error, "the state of network interfaces cannot be read and will be read again later");
                pause();
            }
        }
    }
}

/// Reads the state of every interface.
fn all() -> io::Result<Links> {
    let mut links = Links::new();
    for (kind, header) in [(RTM_GETLINK, LINK_HEADER), (RTM_GETADDR, ADDRESS_HEADER)] {
        netlink::dump(kind, &vec![0; header], |message| {
            apply(&mut links, message, &mut Vec::new());
        })?;
    }
    Ok(links)
}

/// Applies a message of the kernel to the state.
fn apply(
    links: &mut Links,
    message: &NetlinkMessage<'_>,
    changes: &mut Vec<(String, InterfaceChange)>,
) {
    let (family, index) = (message.body.first().copied(), message.number(4));
    match message.kind {
        // Bridges also announce their ports, with another family.
        RTM_NEWLINK if family == Some(0) => update_link(links, index, changes, |link| {
            let attributes = message.body.get(LINK_HEADER..)?;
            if let Some(name) = attribute(attributes, IFLA_IFNAME) {
                link.name = text(name);
            }
            if let Some(address) = attribute(attributes, IFLA_ADDRESS) {
                link.hardware_address = address.to_vec();
            }
            link.is_running = message.number(8)? & RUNNING == RUNNING;
            Some(())
        }),
        RTM_DELLINK if family == Some(0) => {
            if let Some(link) = index.and_then(|index| links.remove(&index)) {
                changes.push((link.name, InterfaceChange::Removed));
            }
        }
        RTM_NEWADDR | RTM_DELADDR if index.is_some_and(|index| links.contains_key(&index)) => {
            update_link(links, index, changes, |link| {
                let address = address(message.body)?;
                if message.kind == RTM_NEWADDR {
                    link.addresses.insert(address);
                } else {
                    link.addresses.remove(&address);
                }
                Some(())
            });
        }
        _ => {}
    }
}

/// Applies a message to the state of interface `index`, and appends the resulting changes. If the
/// message is too short, only the changes before its end are applied.
fn update_link(
    links: &mut Links,
    index: Option<u32>,
    changes: &mut Vec<(String, InterfaceChange)>,
    change: impl FnOnce(&mut LinkState) -> Option<()>,
) {
    let Some(index) = index else { return };
    let before = links.get(&index).cloned();
    let link = links.entry(index).or_default();
    let _ = change(link);
    if let Some(before) = before {
        compare_link(&before, link, changes);
    }
}

fn compare_links(before: &Links, now: &Links, changes: &mut Vec<(String, InterfaceChange)>) {
    for (index, link) in before {
        match now.get(index) {
            Some(now) => compare_link(link, now, changes),
            None => changes.push((link.name.clone(), InterfaceChange::Removed)),
        }
    }
}

/// Appends the changes between two states of an interface.
fn compare_link(before: &LinkState, now: &LinkState, changes: &mut Vec<(String, InterfaceChange)>) {
    if before.name != now.name {
        changes.push((before.name.clone(), InterfaceChange::Removed));
        return;
    }
    let mut report = |is_so: bool, change| {
        if is_so {
            changes.push((now.name.clone(), change));
        }
    };
    report(before.is_running && !now.is_running, InterfaceChange::Down);
    report(before.hardware_address != now.hardware_address, InterfaceChange::HardwareAddress);
    report(before.addresses != now.addresses, InterfaceChange::Addresses);
    report(!before.is_running && now.is_running, InterfaceChange::Up);
}

/// Returns the address in a message, with its prefix length.
fn address(body: &[u8]) -> Option<(IpAddr, u8)> {
    let attributes = body.get(ADDRESS_HEADER..)?;
    let bytes = attribute(attributes, IFA_LOCAL).or_else(|| attribute(attributes, IFA_ADDRESS))?;
    let address = match bytes.len() {
        4 => Ipv4Addr::from(*bytes.first_chunk::<4>()?).into(),
        16 => Ipv6Addr::from(*bytes.first_chunk::<16>()?).into(),
        _ => return None,
    };
    Some((address, *body.get(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt;
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::Duration;
    use uiw_interop::stock::Network;

    /// Returns a message with its header, the fixed part of its body, and attributes.
    fn message(kind: u16, fixed: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 16];
        bytes.extend(fixed);
        for (name, value) in attributes {
            bytes.extend(((4 + value.len()) as u16).to_ne_bytes());
            bytes.extend(name.to_ne_bytes());
            bytes.extend(*value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes
    }

    fn link(kind: u16, family: u8, flags: u32, name: &str, mac: u8) -> Vec<u8> {
        let mut fixed = vec![family, 0, 0, 0];
        fixed.extend(7u32.to_ne_bytes());
        fixed.extend(flags.to_ne_bytes());
        fixed.extend([0; 4]);
        message(
            kind,
            &fixed,
            &[(IFLA_ADDRESS, &[mac; 6]), (IFLA_IFNAME, format!("{name}\0").as_bytes())],
        )
    }

    fn address_of(kind: u16, index: u32, last: u8) -> Vec<u8> {
        let mut fixed = vec![2, 24, 0, 0];
        fixed.extend(index.to_ne_bytes());
        message(kind, &fixed, &[(IFA_ADDRESS, &[10, 0, 0, 254]), (IFA_LOCAL, &[10, 0, 0, last])])
    }

    fn changes(links: &mut Links, bytes: &[u8]) -> Vec<InterfaceChange> {
        let mut changes = Vec::new();
        netlink::messages(bytes).for_each(|message| apply(links, &message, &mut changes));
        assert!(changes.iter().all(|(name, _)| name == "e0"), "{changes:?}");
        changes.into_iter().map(|(_, change)| change).collect()
    }

    #[test]
    fn changes_reported_once() {
        use InterfaceChange::*;
        let mut links = Links::new();
        let mut see = |bytes: Vec<u8>| changes(&mut links, &bytes);
        assert_eq!(see(link(RTM_NEWLINK, 0, RUNNING, "e0", 1)), []);
        assert_eq!(see(address_of(RTM_NEWADDR, 7, 1)), [Addresses]);
        // The same message announces the renewal of lifetimes.
        assert_eq!(see(address_of(RTM_NEWADDR, 7, 1)), []);
        assert_eq!(
            see([address_of(RTM_NEWADDR, 7, 2), address_of(RTM_DELADDR, 7, 1)].concat()),
            [Addresses; 2]
        );
        assert_eq!(see(address_of(RTM_DELADDR, 7, 1)), []);
        assert_eq!(see(link(RTM_NEWLINK, 0, 1, "e0", 1)), [Down]);
        assert_eq!(see(link(RTM_NEWLINK, 0, 1, "e0", 1)), []);
        assert_eq!(see(link(RTM_NEWLINK, 0, RUNNING | 8, "e0", 2)), [HardwareAddress, Up]);
        let flap = [link(RTM_NEWLINK, 0, 0, "e0", 2), link(RTM_NEWLINK, 0, RUNNING, "e0", 2)];
        assert_eq!(see(flap.concat()), [Down, Up]);
        // The interface leaves a bridge, and another interface gets an address.
        assert_eq!(see(link(RTM_DELLINK, 7, RUNNING, "e0", 2)), []);
        assert_eq!(see(address_of(RTM_NEWADDR, 9, 5)), []);
        assert_eq!(see(link(RTM_DELLINK, 0, 0, "e0", 2)), [Removed]);
        assert_eq!(see(link(RTM_DELLINK, 0, 0, "e0", 2)), []);
    }

    #[test]
    fn renamed_interface_is_removed() {
        let mut links = Links::new();
        assert_eq!(changes(&mut links, &link(RTM_NEWLINK, 0, RUNNING, "e0", 1)), []);
        assert_eq!(
            changes(&mut links, &link(RTM_NEWLINK, 0, RUNNING, "e1", 1)),
            [InterfaceChange::Removed]
        );
    }

    #[test]
    fn lost_announcements_found_by_comparison() {
        let (mut before, mut now) = (Links::new(), Links::new());
        changes(&mut before, &link(RTM_NEWLINK, 0, RUNNING, "e0", 1));
        changes(&mut now, &link(RTM_NEWLINK, 0, 0, "e0", 1));
        let mut found = Vec::new();
        compare_links(&before, &now, &mut found);
        compare_links(&now, &Links::new(), &mut found);
        let expected = [InterfaceChange::Down, InterfaceChange::Removed]
            .map(|change| ("e0".to_owned(), change));
        assert_eq!(found, expected);
    }

    #[test]
    fn failed_reads_repeated() {
        let mut results = vec![
            Ok(Links::from([(7, LinkState::default())])),
            Err(Errno::NOBUFS),
            Err(Errno::MFILE),
        ];
        let mut pauses = 0;
        let read = || Ok(results.pop().unwrap()?);
        assert_eq!(eventually(read, || pauses += 1).len(), 1);
        assert_eq!((pauses, results.len()), (2, 0));
    }

    #[test]
    fn cut_messages_are_harmless() {
        for whole in [link(RTM_NEWLINK, 0, RUNNING, "e0", 1), address_of(RTM_NEWADDR, 7, 1)] {
            for len in 0..whole.len() {
                let mut cut = whole[..len].to_vec();
                if len >= 4 {
                    cut[..4].copy_from_slice(&(len as u32).to_ne_bytes());
                }
                let mut links =
                    Links::from([(7, LinkState { name: "e0".to_owned(), ..LinkState::default() })]);
                netlink::messages(&cut)
                    .for_each(|message| apply(&mut links, &message, &mut Vec::new()));
            }
        }
    }

    #[test]
    fn overtaken_announcements_discarded() {
        let Some(network) = Network::veth() else { return };
        network.inside_server(|| {
            let ip = |args: &str| {
                let status = Command::new("ip").args(args.split(' ')).status().unwrap();
                assert!(status.success(), "{args}");
            };
            ip("link set lo up");
            let mut monitor = InterfaceMonitor::new().unwrap();
            sockopt::set_socket_recv_buffer_size(&monitor.socket, 1).unwrap();
            // Otherwise the test would not end if the announcement is lost.
            let limit = Some(Duration::from_secs(20));
            sockopt::set_socket_timeout(&monitor.socket, sockopt::Timeout::Recv, limit).unwrap();
            for _ in 0..10 {
                ip("link set lo down");
                ip("link set lo up");
            }
            ip("link set lo down");
            let mut next = || loop {
                let changes = monitor.wait().unwrap();
                let of_loopback = changes.into_iter().find(|(name, _)| name == "lo");
                if let Some((_, change)) = of_loopback {
                    return change;
                }
            };
            assert_eq!(next(), InterfaceChange::Down);
            ip("address add 10.9.9.9/32 dev lo");
            assert_eq!(next(), InterfaceChange::Addresses);
        });
    }

    #[test]
    fn changes_of_namespace_reported() {
        let Some(network) = Network::veth() else { return };
        let ip = |args: &[&str]| {
            let mut command = Command::new("ip");
            command.args(args);
            assert!(network.server(command).status().unwrap().success(), "{args:?}");
        };
        let mut monitor = network.inside_server(InterfaceMonitor::new).unwrap();
        let (sender, receiver) = mpsc::channel();
        let _ = std::thread::spawn(move || {
            while let Ok(changes) = monitor.wait() {
                for change in changes {
                    if sender.send(change).is_err() {
                        return;
                    }
                }
            }
        });
        let await_change = |expected| {
            let mut others = Vec::new();
            loop {
                let (name, change) =
                    receiver.recv_timeout(Duration::from_secs(60)).expect("a change");
                assert_eq!(name, "veth0");
                if change == expected {
                    return others;
                }
                others.push(change);
            }
        };
        ip(&["address", "add", "10.9.9.9/24", "dev", "veth0"]);
        await_change(InterfaceChange::Addresses);
        ip(&["link", "set", "veth0", "address", "02:00:00:00:00:07"]);
        await_change(InterfaceChange::HardwareAddress);
        ip(&["link", "set", "veth0", "down"]);
        await_change(InterfaceChange::Down);
        ip(&["link", "set", "veth0", "up"]);
        await_change(InterfaceChange::Up);
        ip(&["link", "delete", "veth0"]);
        let before = await_change(InterfaceChange::Removed);
        assert!(before.contains(&InterfaceChange::Down), "{before:?}");
    }
}

//! Performs every operation between all pairs of stacks, and verifies every byte.

use crate::exchange;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use uiw::{Device, DeviceConfig, Listener, Pd};
use uiw_interop::stock::Network;
use uiw_smol::Spec;

/// Stack at one end of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stack {
    Kernel,
    Packet,
    Xdp,
}

const STACKS: [Stack; 3] = [Stack::Kernel, Stack::Packet, Stack::Xdp];

/// Properties of the link between the namespaces.
#[derive(Clone, Copy, Debug)]
struct LinkShape {
    mtu: u32,
    /// Whether the kernel leaves checksums and segmentation to the virtual network card.
    offload: bool,
}

impl Stack {
    /// Returns the value for `--llp`; a user-space stack gets the addresses 10.77.0.`host` and
    /// fd77::`host`.
    pub(crate) fn spec(self, host: u8) -> String {
        let addresses = format!("veth0,ip=10.77.0.{host}/24,ip=fd77::{host}/64");
        match self {
            Self::Kernel => "tcp".to_owned(),
            Self::Packet => format!("packet:{addresses}"),
            Self::Xdp => format!("xdp:{addresses}"),
        }
    }

    /// Returns the IPv4 and IPv6 addresses of a server on this stack.
    pub(crate) fn addresses(self) -> [&'static str; 2] {
        match self {
            Self::Kernel => ["10.77.0.1", "fd77::1"],
            Self::Packet | Self::Xdp => ["10.77.0.11", "fd77::11"],
        }
    }
}

pub(crate) fn at(network: &Network, server: bool, program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(args);
    said_by(if server { network.server(command) } else { network.client(command) })
}

/// Like [`at`], but runs the program in the namespace between the two ends.
pub(crate) fn at_middle(network: &Network, program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(args);
    said_by(network.middle(command))
}

fn said_by(mut command: Command) -> String {
    let output = command.output().expect("the command starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Creates two connected namespaces, or returns `None` if namespaces are not available.
pub(crate) fn network_of(mtu: u32, offload: bool) -> Option<Network> {
    network(LinkShape { mtu, offload })
}

fn network(link: LinkShape) -> Option<Network> {
    let network = Network::veth()?;
    let ethtool = if link.offload { None } else { Some(uiw_interop::require("ethtool")?) };
    for (server, address) in [(true, "fd77::1/64"), (false, "fd77::2/64")] {
        let mtu = link.mtu.to_string();
        at(&network, server, "ip", &["link", "set", "veth0", "mtu", &mtu]);
        at(&network, server, "ip", &["address", "add", address, "dev", "veth0", "nodad"]);
        if let Some(ethtool) = &ethtool {
            let off = ["-K", "veth0", "tx", "off", "gso", "off", "tso", "off", "gro", "off"];
            at(&network, server, &ethtool.to_string_lossy(), &off);
        }
    }
    Some(network)
}

/// Runs one server on `stack` and clients on every stack over both IP versions, with `count`
/// simultaneous connections for each pair.
fn serve_all(link: LinkShape, stack: Stack, count: usize) {
    let Some(network) = network(link) else { return };
    let (tx, rx) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            network.inside_server(move || {
                let (device, pd) = open(&stack.spec(11));
                // One listener on the wildcard address serves both IP versions.
                let any = "[::]:0".parse().expect("an address");
                let listener = Listener::bind(&pd, any, &exchange::settings()).expect("a listener");
                tx.send(listener.local_addr().port()).expect("the client listens");
                for _ in 0..STACKS.len() * 2 {
                    exchange::serve(&device, &pd, &listener, count);
                }
            });
        });
        network.inside_client(move || {
            let port = rx.recv().expect("the server listens");
            for client in STACKS {
                let (device, pd) = open(&client.spec(12));
                for address in stack.addresses() {
                    println!("{client:?} to {stack:?} at {address}, {link:?}");
                    let to = SocketAddr::new(address.parse().expect("an address"), port);
                    exchange::call(&device, &pd, to, count);
                }
                device.wait_idle(Duration::from_secs(10));
            }
        });
    });
}

/// Performs every operation between one server and one client, whose stacks are given by name, at
/// each of the server's addresses. Calls `meanwhile` while both stacks exist.
pub(crate) fn exchange_between(
    network: &Network,
    [server, client]: [&str; 2],
    addresses: &[&str],
    meanwhile: impl Fn() + Sync,
) {
    let (tx, rx) = mpsc::channel();
    let meanwhile = &meanwhile;
    thread::scope(|scope| {
        scope.spawn(|| {
            network.inside_server(move || {
                let (device, pd) = open(server);
                let any = "[::]:0".parse().expect("an address");
                let listener = Listener::bind(&pd, any, &exchange::settings()).expect("a listener");
                tx.send(listener.local_addr().port()).expect("the client listens");
                addresses.iter().for_each(|_| exchange::serve(&device, &pd, &listener, 1));
            });
        });
        network.inside_client(move || {
            let port = rx.recv().expect("the server listens");
            let (device, pd) = open(client);
            meanwhile();
            for address in addresses {
                println!("{client} to {server} at {address}");
                exchange::call(
                    &device,
                    &pd,
                    SocketAddr::new(address.parse().expect("an address"), port),
                    1,
                );
            }
            device.wait_idle(Duration::from_secs(10));
        });
    });
}

pub(crate) fn open(spec: &str) -> (Device, Pd) {
    let spec: Spec = spec.parse().expect("a stack");
    let device = Device::with_stack(spec.open().expect("the stack"), DeviceConfig::default());
    let device = device.expect("a device");
    let pd = device.alloc_pd().expect("a protection domain");
    (device, pd)
}

#[test]
fn operations_at_mtu_1500_with_offloads() {
    for stack in STACKS {
        serve_all(LinkShape { mtu: 1500, offload: true }, stack, 1);
    }
}

#[test]
fn operations_at_mtu_1500_without_offloads() {
    for stack in STACKS {
        serve_all(LinkShape { mtu: 1500, offload: false }, stack, 1);
    }
}

#[test]
fn operations_at_mtu_9000_with_offloads() {
    for stack in STACKS {
        serve_all(LinkShape { mtu: 9000, offload: true }, stack, 1);
    }
}

#[test]
fn operations_at_mtu_9000_without_offloads() {
    for stack in STACKS {
        serve_all(LinkShape { mtu: 9000, offload: false }, stack, 1);
    }
}

#[test]
fn operations_on_two_hundred_connections() {
    for stack in STACKS {
        serve_all(LinkShape { mtu: 1500, offload: true }, stack, 200);
    }
}

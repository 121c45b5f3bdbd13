//! Every operation between every two stacks, verified octet for octet.

use interop::stock::{Network, Running, uiw};
use std::process::Command;

/// A stack at one end of the cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stack {
    Kernel,
    Packet,
    Xdp,
}

const STACKS: [Stack; 3] = [Stack::Kernel, Stack::Packet, Stack::Xdp];

/// What `uiw perf` is asked for: each way of moving octets, from less than a segment to many.
const OPERATIONS: [&[&str]; 6] = [
    &["--op", "write", "--size", "100000"],
    &["--op", "read", "--size", "100000"],
    &["--op", "send", "--size", "30000"],
    &["--op", "send", "--size", "1"],
    &["--op", "write-imm", "--size", "5000"],
    &["--op", "fetch-add"],
];

/// How the namespaces differ from the plain ones.
#[derive(Clone, Copy)]
struct Link {
    mtu: u32,
    /// The kernel leaves checksums and segmentation to the "card".
    offload: bool,
}

impl Stack {
    /// Its name for `--llp`; 10.77.0.`host` and fd77::`host` are its own addresses.
    pub(crate) fn spec(self, host: u8) -> String {
        let addresses = format!("veth0,ip=10.77.0.{host}/24,ip=fd77::{host}/64");
        match self {
            Self::Kernel => "tcp".to_owned(),
            Self::Packet => format!("packet:{addresses}"),
            Self::Xdp => format!("xdp:{addresses}"),
        }
    }

    /// The server's addresses: those of the kernel's interface, or its own.
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
    let mut command = if server { network.server(command) } else { network.client(command) };
    let output = command.output().expect("the command starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Two namespaces, or nothing where they cannot be had.
fn network(link: Link) -> Option<Network> {
    let network = Network::veth()?;
    let ethtool = if link.offload { None } else { Some(interop::require("ethtool")?) };
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

/// One server on `stack`, and clients on every stack, over both versions of IP.
fn serve_all(link: Link, stack: Stack, operations: &[&[&str]]) {
    let Some(network) = network(link) else { return };
    let port = interop::stock::free_port().to_string();
    // The wildcard: one server for both versions.
    let listen = format!("[::]:{port}");
    let mut command = Command::new(uiw());
    command.args(["--llp", &stack.spec(11), "serve", "--listen", &listen]);
    let mut server = Running::start(network.server(command));
    server.wait_saying("listening on");
    for client in STACKS {
        for address in stack.addresses() {
            for operation in operations {
                let to = if address.contains(':') {
                    format!("[{address}]:{port}")
                } else {
                    format!("{address}:{port}")
                };
                let spec = client.spec(12);
                let mut args = vec!["--llp", &spec, "perf", &to, "--validate", "--seconds", "20"];
                args.extend(["--iterations", "40"]);
                args.extend(*operation);
                let mut command = Command::new(uiw());
                command.args(&args);
                let output = network.client(command).output().expect("uiw starts");
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(
                    output.status.success(),
                    "{client:?} to {stack:?} at {address}, {operation:?}: {said}{}",
                    server.said()
                );
            }
        }
    }
    let _ = server.stop();
}

const PLAIN: Link = Link { mtu: 1500, offload: true };

#[test]
fn clients_of_a_server_on_the_kernels_tcp() {
    serve_all(PLAIN, Stack::Kernel, &OPERATIONS);
}

#[test]
fn clients_of_a_server_on_af_packet() {
    serve_all(PLAIN, Stack::Packet, &OPERATIONS);
}

#[test]
fn clients_of_a_server_on_af_xdp() {
    serve_all(PLAIN, Stack::Xdp, &OPERATIONS);
}

#[test]
fn jumbo_frames() {
    for stack in STACKS {
        serve_all(Link { mtu: 9000, offload: true }, stack, &OPERATIONS[..3]);
    }
}

#[test]
fn without_the_kernels_offloads() {
    for stack in STACKS {
        serve_all(Link { mtu: 1500, offload: false }, stack, &OPERATIONS[..3]);
    }
}

#[test]
fn two_hundred_connections_at_once() {
    for stack in [Stack::Packet, Stack::Xdp] {
        let operation: &[&str] = &["--op", "write", "--size", "2000", "--connections", "200"];
        serve_all(PLAIN, stack, &[operation]);
    }
}

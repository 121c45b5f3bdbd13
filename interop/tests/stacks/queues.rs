//! Tests AF_XDP on interfaces with several queues.

use crate::pairings::{Stack, at};
use std::process::Command;
use uiw_interop::stock::{Network, Running, uiw};

/// Number of connections. A hash assigns each of them to a queue; the probability that all get the
/// same one is 2^-31.
const CONNECTIONS: &str = "32";
const QUEUES: u32 = 2;

/// Returns the number of frames that each receive queue of an end has passed to our sockets.
fn redirected(network: &Network, server: bool) -> Vec<u64> {
    let said = at(network, server, "ethtool", &["-S", "veth0"]);
    let of = |queue: u32| {
        let name = format!("rx_queue_{queue}_xdp_redirect:");
        let line = said.lines().find_map(|line| line.trim().strip_prefix(&name));
        line.unwrap_or_else(|| panic!("no {name} in {said}")).trim().parse().expect("a number")
    };
    (0..QUEUES).map(of).collect()
}

/// Runs `uiw perf` from `client` to a server over AF_XDP; both ends validate every byte.
fn measure(network: &Network, client: Stack) {
    let port = uiw_interop::stock::free_port();
    let mut command = Command::new(uiw());
    let server = Stack::Xdp;
    command.args(["--llp", &server.spec(11), "serve", "--listen", &format!("[::]:{port}")]);
    let mut serving = Running::start(network.server(command));
    serving.wait_saying("listening on");
    for address in server.addresses() {
        let to = if address.contains(':') {
            format!("[{address}]:{port}")
        } else {
            format!("{address}:{port}")
        };
        let mut command = Command::new(uiw());
        command.args(["--llp", &client.spec(12), "perf", &to, "--validate", "--seconds", "20"]);
        command.args(["--bidirectional", "--size", "20000", "--iterations", "20"]);
        command.args(["--connections", CONNECTIONS]);
        let output = network.client(command).output().expect("uiw starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{client:?} to {address}: {said}{}", serving.said());
    }
    let _ = serving.stop();
}

/// A veth keeps the queue number: frames sent on the second queue of one end arrive on the second
/// queue of the other.
#[test]
fn flows_spread_over_queues() {
    if uiw_interop::require("ethtool").is_none() {
        return;
    }
    let Some(network) = Network::veth_of(QUEUES) else { return };
    for server in [true, false] {
        let address = if server { "fd77::1/64" } else { "fd77::2/64" };
        at(&network, server, "ip", &["address", "add", address, "dev", "veth0", "nodad"]);
    }
    let before = [true, false].map(|server| redirected(&network, server));
    measure(&network, Stack::Xdp);
    for (server, before) in [true, false].into_iter().zip(before) {
        let after = redirected(&network, server);
        // More frames than address resolution alone would cause.
        let served = after.iter().zip(&before).all(|(after, before)| after - before > 100);
        assert!(served, "queues of the server ({server}): {before:?}, {after:?}");
    }
    // The server's program also serves clients on the other stacks.
    measure(&network, Stack::Kernel);
    measure(&network, Stack::Packet);
}

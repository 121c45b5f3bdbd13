//! TCP of our own across a router: the kernel of a third namespace forwards between the client's network and the server's.

use crate::pairings::{at_middle, exchange_between};
use std::process::Command;
use uiw_interop::stock::{Network, uiw};

/// The third namespace with an address in both networks, of both versions, and forwarding.
fn routed() -> Option<Network> {
    let network = Network::path()?;
    for (interface, number) in [("server", 77), ("client", 78)] {
        // Of a router's questions for neighbours the sender is link-local (RFC 4861 section 7.2.2).
        for address in
            [format!("10.{number}.0.254/24"), format!("fd{number}::fe/64"), "fe80::fe/64".to_owned()]
        {
            let flags: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
            at_middle(&network, "ip", &[&["address", "add", &address, "dev", interface], flags].concat());
        }
    }
    for knob in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
        at_middle(&network, "sysctl", &["-q", "-w", knob]);
    }
    Some(network)
}

/// A stack in network `number` with the router as its gateway.
fn spec(kind: &str, number: u8, host: u8) -> String {
    let ip = format!("ip=10.{number}.0.{host}/24,ip=fd{number}::{host}/64");
    format!("{kind}:veth0,{ip},gw=10.{number}.0.254,gw=fd{number}::fe")
}

#[test]
fn every_operation_across_a_gateway() {
    if uiw_interop::require("sysctl").is_none() {
        return;
    }
    for (server, client) in [("packet", "packet"), ("xdp", "xdp"), ("packet", "xdp"), ("xdp", "packet")] {
        let Some(network) = routed() else { return };
        let specs = [spec(server, 77, 11), spec(client, 78, 12)];
        let before = forwarded(&network);
        exchange_between(&network, [&specs[0], &specs[1]], &["10.77.0.11", "fd77::11"], || {});
        let after = forwarded(&network);
        assert!(
            after[0] > before[0] + 20 && after[1] > before[1] + 20,
            "{before:?}, {after:?}: frames of the router"
        );
    }
}

/// Packets that the router has forwarded: of IPv4, and of IPv6.
fn forwarded(network: &Network) -> [u64; 2] {
    let of_v4 = at_middle(network, "cat", &["/proc/net/snmp"]);
    let mut lines = of_v4.lines().filter_map(|line| line.strip_prefix("Ip:")).map(str::split_whitespace);
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let v4 = names.zip(values).find(|(name, _)| *name == "ForwDatagrams").expect("a counter").1;
    let of_v6 = at_middle(network, "cat", &["/proc/net/snmp6"]);
    let v6 = of_v6.lines().find_map(|line| line.strip_prefix("Ip6OutForwDatagrams")).expect("a counter");
    [v4, v6].map(|count| count.trim().parse().expect("a number"))
}

/// No host has the gateway's address: the connection attempt ends, and the error names the gateway.
#[test]
fn a_gateway_address_without_a_host() {
    let Some(network) = Network::veth() else { return };
    for (kind, version) in [("packet", 4), ("xdp", 4), ("packet", 6)] {
        let (gateway, to) =
            if version == 4 { ("10.77.0.99", "10.78.0.1") } else { ("fd77::99", "[fd78::1]") };
        let mut command = Command::new(uiw());
        let spec = format!("{kind}:veth0,ip=10.77.0.12/24,ip=fd77::12/64,gw={gateway}");
        command.args(["--llp", &spec, "ping", to]);
        let output = network.client(command).output().expect("uiw starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(3), 2), "{said}");
        assert!(said.contains(&format!("the gateway {gateway} does not answer")), "{said}");
    }
}

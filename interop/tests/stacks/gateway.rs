//! Runs the user-space TCP across a router: the kernel of a third namespace forwards between the
//! client's network and the server's network.

use crate::datagram_peer::End;
use crate::pairings::{at, at_middle, exchange_between, open};
use std::net::IpAddr;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;
use uiw::raw::{AddressHandle, SendFlags};
use uiw_interop::stock::{Network, uiw};

/// Configures the third namespace as a router with an IPv4 and an IPv6 address in both networks.
fn routed() -> Option<Network> {
    let network = Network::path()?;
    for (interface, number) in [("server", 77), ("client", 78)] {
        // A router sends its neighbour solicitations from a link-local address (RFC 4861 section
        // 7.2.2).
        for address in [
            format!("10.{number}.0.254/24"),
            format!("fd{number}::fe/64"),
            "fe80::fe/64".to_owned(),
        ] {
            let flags: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
            at_middle(
                &network,
                "ip",
                &[&["address", "add", &address, "dev", interface], flags].concat(),
            );
        }
    }
    for knob in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
        at_middle(&network, "sysctl", &["-q", "-w", knob]);
    }
    Some(network)
}

/// Returns the spec of a stack in network `number` with the router as its gateway.
fn spec(kind: &str, number: u8, host: u8) -> String {
    let ip = format!("ip=10.{number}.0.{host}/24,ip=fd{number}::{host}/64");
    format!("{kind}:veth0,{ip},gw=10.{number}.0.254,gw=fd{number}::fe")
}

#[test]
fn every_operation_across_a_gateway() {
    if uiw_interop::require("sysctl").is_none() {
        return;
    }
    for (server, client) in
        [("packet", "packet"), ("xdp", "xdp"), ("packet", "xdp"), ("xdp", "packet")]
    {
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

/// A router decrements the hop limit of an address handle and drops packets whose limit is used up.
/// Messages without an explicit limit pass.
#[test]
fn hop_limit_passes_routers() {
    if uiw_interop::require("sysctl").is_none() {
        return;
    }
    let Some(network) = routed() else { return };
    let ip = |args: &[&str]| at(&network, false, "ip", args);
    // The client uses the kernel's stack here, so its address must be removed from the server's
    // network.
    ip(&["address", "flush", "dev", "veth0", "scope", "global"]);
    ip(&["address", "add", "10.78.0.1/24", "dev", "veth0"]);
    ip(&["address", "add", "fd78::1/64", "dev", "veth0", "nodad"]);
    ip(&["route", "add", "10.77.0.0/24", "via", "10.78.0.254"]);
    ip(&["route", "add", "fd77::/64", "via", "fd78::fe"]);
    let senders = [("tcp".to_owned(), 1), (spec("packet", 78, 12), 12), (spec("xdp", 78, 12), 12)];
    for ((sender, host), version_6) in
        senders.iter().flat_map(|sender| [(sender, false), (sender, true)])
    {
        let [own, peer] = match version_6 {
            false => [format!("10.78.0.{host}"), "10.77.0.11".to_owned()],
            true => [format!("fd78::{host}"), "fd77::11".to_owned()],
        };
        let [own, peer] = [own, peer].map(|address| address.parse::<IpAddr>().expect("an address"));
        let (receiver_is, receiver) = channel();
        let (next, may_send) = channel();
        let network = &network;
        thread::scope(|scope| {
            scope.spawn(move || {
                network.inside_server(move || {
                    let end = End::on(open(&spec("packet", 77, 11)).0, peer, 1024);
                    receiver_is.send(end.qp.num()).expect("the sender");
                    for expected in [&b"two hops"[..], b"as many as the system has"] {
                        end.receive();
                        next.send(()).expect("the sender");
                        assert_eq!(end.message().1, expected);
                    }
                });
            });
            network.inside_client(move || {
                let end = End::on(open(sender).0, own, 1024);
                let to = receiver.recv().expect("the receiver");
                let way = AddressHandle::new(own, peer, 0);
                may_send.recv().expect("the receiver");
                end.send_to(way.with_hop_limit(1), to, b"one hop", None, SendFlags::empty());
                end.send_to(way.with_hop_limit(2), to, b"two hops", None, SendFlags::empty());
                may_send.recv().expect("the receiver");
                end.send_to(way, to, b"as many as the system has", None, SendFlags::empty());
                // Messages that wait for neighbour resolution are lost if the end is closed, so it
                // stays open.
                let _ = may_send.recv();
            });
        });
    }
}

/// Returns the number of packets that the router has forwarded, for IPv4 and IPv6.
fn forwarded(network: &Network) -> [u64; 2] {
    let of_v4 = at_middle(network, "cat", &["/proc/net/snmp"]);
    let mut lines =
        of_v4.lines().filter_map(|line| line.strip_prefix("Ip:")).map(str::split_whitespace);
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let v4 = names.zip(values).find(|(name, _)| *name == "ForwDatagrams").expect("a counter").1;
    let of_v6 = at_middle(network, "cat", &["/proc/net/snmp6"]);
    let v6 =
        of_v6.lines().find_map(|line| line.strip_prefix("Ip6OutForwDatagrams")).expect("a counter");
    [v4, v6].map(|count| count.trim().parse().expect("a number"))
}

/// No host has the gateway's address: the connection attempt fails, and the error names the
/// gateway.
#[test]
fn gateway_address_without_host() {
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

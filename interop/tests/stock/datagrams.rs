//! Stock programs that use unreliable datagrams: ibverbs-utils, perftest, rdmacm-utils.

use crate::pair::pair;
use std::process::Command;
use uiw_interop::stock::{Ended, Libraries, Network, Running, User, free_port, ordinary};

/// An end of a network.
type At = fn(&Network, Command) -> Command;

fn pingpong(network: &Network, user: User, persona: &str, args: &[&str]) {
    let args = [&["-n", "500", "-s", "1024"], args].concat();
    let Some(ends) = pair(network, user, persona, "ibv_ud_pingpong", &args) else { return };
    for end in ends {
        assert_eq!(end.well().count("500 iters in"), 1, "{persona} {args:?}: {end:?}");
    }
}

#[test]
fn pingpong_by_gid_and_lid() {
    for args in [&["-g", "0"][..], &["-g", "0", "-e"]] {
        pingpong(&Network::Loopback, User::Same, "roce", args);
    }
    pingpong(&Network::Loopback, User::Same, "ib", &[]);
}

#[test]
fn pingpong_between_namespaces() {
    let (Some(user), Some(network)) = (ordinary(), Network::veth()) else { return };
    pingpong(&network, user, "roce", &["-g", "0"]);
    pingpong(&network, User::Same, "ib", &[]);
}

#[test]
fn an_iwarp_device_has_none_unless_asked() {
    let Some(_) = uiw_interop::require("ibv_ud_pingpong") else { return };
    let port = free_port();
    let libraries = Libraries::get();
    let command = || {
        let mut command = libraries.command(User::Same, "ibv_ud_pingpong");
        command.args(["-d", "uiw_lo", "-g", "0", "-s", "1024", "-p", &port.to_string()]);
        command
    };
    let ended = Running::start(command()).end();
    assert_eq!((ended.code, ended.count("Couldn't create QP")), (1, 1), "{ended:?}");
    let mut asked = command();
    asked.env("UIW_UD", "on");
    asked.arg("-e");
    let mut server = Running::start(asked);
    server.wait_listening(port);
    assert_eq!(server.stop().code, 128 + 9);
}

/// perftest's Sends, one program after the other.
#[test]
fn perftest_sends() {
    let cases: &[(&str, &[&str])] = &[
        ("ib_send_bw", &["-n", "500"]),
        ("ib_send_bw", &["-n", "500", "-s", "64", "-l", "5"]),
        ("ib_send_bw", &["-n", "200", "-s", "64", "-I", "64"]),
        ("ib_send_lat", &["-n", "200"]),
        ("ib_send_lat", &["-n", "200", "-e", "-s", "512"]),
    ];
    for persona in ["roce", "ib"] {
        for (program, args) in cases {
            let args = [&["-c", "UD", "-F"], *args].concat();
            let Some(ends) = pair(&Network::Loopback, User::Same, persona, program, &args) else { return };
            assert!(ends.iter().all(|end| end.code == 0), "{persona} {program} {args:?}: {ends:?}");
        }
    }
}

#[test]
fn perftest_between_namespaces_as_an_ordinary_user() {
    let (Some(user), Some(network)) = (ordinary(), Network::veth()) else { return };
    for program in ["ib_send_lat", "ib_send_bw"] {
        let args = ["-c", "UD", "-F", "-n", "200", "-s", "512"];
        let Some(ends) = pair(&network, user, "roce", program, &args) else { return };
        assert!(ends.iter().all(|end| end.code == 0), "{program}: {ends:?}");
    }
}

/// libfabric's endpoint FI_EP_DGRAM of its verbs provider: `fi_pingpong`, the one program of fabtests that Debian has.
#[test]
fn libfabric_dgram_endpoints_exchange_messages() {
    let Some(_) = uiw_interop::require("fi_pingpong") else { return };
    let libraries = Libraries::get();
    for size in ["64", "1024"] {
        let port = free_port();
        let command = |port_option: &str| {
            let mut command = libraries.command(User::Same, "fi_pingpong");
            command.args(["-p", "verbs", "-e", "dgram", "-d", "uiw_lo-dgram", "-I", "500", "-c", "-S", size]);
            command.args([port_option, &port.to_string()]).env("UIW_PERSONA", "roce");
            command
        };
        let mut server = Running::start(command("-B"));
        server.wait_listening(port);
        let mut client = command("-P");
        client.arg("127.0.0.1");
        for end in [Running::start(client).end(), server.end()] {
            // Sent and acknowledged, with their contents compared.
            assert_eq!(end.well().count("=500"), 1, "{end:?}");
        }
    }
}

/// The two ends of one of rdmacm-utils.
fn by_rdma_cm(network: &Network, program: &str, server: &[&str], client: &[&str]) -> Option<[Ended; 2]> {
    uiw_interop::require(program)?;
    let libraries = Libraries::get();
    let command = |args: &[&str]| {
        let mut command = libraries.command(User::Same, "stdbuf");
        command.args(["-oL", program]).args(args).env("UIW_PERSONA", "roce");
        command
    };
    let mut server = Running::start(network.server(command(server)));
    server.wait_saying("starting server");
    let client = Running::start(network.client(command(client))).end();
    Some([server.end(), client])
}

/// Its port cannot be chosen: each end has a namespace of its own.
#[test]
fn udaddy_resolves_queue_pairs_and_exchanges_messages() {
    let Some(network) = Network::veth() else { return };
    let address = network.server_address().to_string();
    // Port spaces UDP and IPOIB.
    for space in ["0x0111", "0x0002"] {
        let common = ["-c", "5", "-C", "20", "-S", "500", "-p", space];
        let client = [&common[..], &["-s", &address]].concat();
        let Some(ends) = by_rdma_cm(&network, "udaddy", &common, &client) else { return };
        for end in ends {
            assert_eq!(end.well().count("return status 0"), 1, "{end:?}");
        }
    }
}

/// On loopback, and between namespaces over both versions of IP. Linux has no route to IPv6 groups on loopback.
#[test]
fn mckey_sends_to_a_group() {
    let Some(_) = uiw_interop::require("mckey") else { return };
    let Some(veth) = Network::veth() else { return };
    for (at, address) in [(Network::server as At, "fd77::1/64"), (Network::client, "fd77::2/64")] {
        let mut command = Command::new("ip");
        command.args(["address", "add", address, "dev", "veth0", "nodad"]);
        let output = at(&veth, command).output().expect("ip");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let libraries = Libraries::get();
    let plain = ["10.77.0.1", "10.77.0.2"];
    for (network, group, [of_server, of_client]) in [
        (&Network::Loopback, "239.77.0.1", ["127.0.0.1"; 2]),
        (&veth, "239.77.0.1", plain),
        (&veth, "ff15::77:1", ["fd77::1", "fd77::2"]),
    ] {
        let command = |args: &[&str], own: &str| {
            let mut command = libraries.command(User::Same, "stdbuf");
            command.args(["-oL", "mckey", "-m", group, "-b", own]).args(args).env("UIW_PERSONA", "roce");
            command
        };
        let mut server = Running::start(network.server(command(&[], of_server)));
        server.wait_saying("receiving data transfers");
        let client = Running::start(network.client(command(&["-s"], of_client))).end();
        for end in [server.end(), client] {
            assert_eq!(end.well().count("return status 0"), 1, "{end:?}");
        }
    }
}

#[test]
fn every_datagram_of_a_capture_is_decoded() {
    let Some(_) = uiw_interop::require("ibv_ud_pingpong") else { return };
    let libraries = Libraries::get();
    let file = libraries.folder().join("datagrams.pcapng");
    let port = free_port();
    let command = || {
        let mut command = libraries.command(User::Same, "ibv_ud_pingpong");
        command.args(["-d", "uiw_lo", "-g", "0", "-s", "1024", "-n", "100", "-p", &port.to_string()]);
        command.env("UIW_PERSONA", "roce");
        command
    };
    let mut server = Running::start(command());
    server.wait_listening(port);
    let mut client = command();
    client.arg("127.0.0.1").env("UIW_PCAP", &file);
    Running::start(client).end().well();
    server.end().well();
    let mut lines = Vec::new();
    let capture = std::fs::File::open(&file).unwrap();
    let summary =
        uiw_cli::decode::decode(capture, &mut |record| lines.push(format!("{:?}", record.event))).unwrap();
    // Each end sends 100 messages and receives as many.
    assert_eq!((summary.packets, summary.datagrams, summary.departures), (200, 200, 0), "{summary}");
    assert!(summary.followed());
    assert!(
        lines.iter().all(|line| line.contains("length: 1024") && line.contains("order: None")),
        "{lines:?}"
    );
}

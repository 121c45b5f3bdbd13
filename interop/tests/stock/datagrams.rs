//! Runs stock programs that use unreliable datagrams: ibverbs-utils, perftest and rdmacm-utils.

use crate::pair::pair;
use crate::wire::Capture;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use uiw_decode::{Datagram, Event, Summary, decode};
use uiw_interop::stock::{Libraries, Network, ProcessEnd, Running, User, free_port, ordinary};

/// Function that runs a command at one end of a network.
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
fn iwarp_device_has_datagrams_on_request() {
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

/// Runs perftest's Send tests one after the other.
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
            let Some(ends) = pair(&Network::Loopback, User::Same, persona, program, &args) else {
                return;
            };
            assert!(ends.iter().all(|end| end.code == 0), "{persona} {program} {args:?}: {ends:?}");
        }
    }
}

#[test]
fn perftest_between_namespaces_as_user() {
    let (Some(user), Some(network)) = (ordinary(), Network::veth()) else { return };
    for program in ["ib_send_lat", "ib_send_bw"] {
        let args = ["-c", "UD", "-F", "-n", "200", "-s", "512"];
        let Some(ends) = pair(&network, user, "roce", program, &args) else { return };
        assert!(ends.iter().all(|end| end.code == 0), "{program}: {ends:?}");
    }
}

/// Tests the endpoint type FI_EP_DGRAM of libfabric's verbs provider with `fi_pingpong`, the only
/// program of fabtests that Debian packages.
#[test]
fn libfabric_dgram_endpoints_exchange_messages() {
    let Some(_) = uiw_interop::require("fi_pingpong") else { return };
    let libraries = Libraries::get();
    for size in ["64", "1024"] {
        let port = free_port();
        let command = |port_option: &str| {
            let mut command = libraries.command(User::Same, "fi_pingpong");
            command.args([
                "-p",
                "verbs",
                "-e",
                "dgram",
                "-d",
                "uiw_lo-dgram",
                "-I",
                "500",
                "-c",
                "-S",
                size,
            ]);
            command.args([port_option, &port.to_string()]).env("UIW_PERSONA", "roce");
            command
        };
        let mut server = Running::start(command("-B"));
        server.wait_listening(port);
        let mut client = command("-P");
        client.arg("127.0.0.1");
        for end in [Running::start(client).end(), server.end()] {
            // All messages were sent and acknowledged, and their contents were compared.
            assert_eq!(end.well().count("=500"), 1, "{end:?}");
        }
    }
}

/// Runs both ends of udaddy. If `capture` is given, the datagrams of the server's end are written
/// to this file.
fn udaddy(network: &Network, args: &[&str], capture: Option<&Path>) -> Option<[ProcessEnd; 2]> {
    uiw_interop::require("udaddy")?;
    let address = network.server_address().to_string();
    let to_server = [args, &["-s", &address]].concat();
    let libraries = Libraries::get();
    let command = |args: &[&str]| {
        let mut command = libraries.command(User::Same, "stdbuf");
        command.args(["-oL", "udaddy"]).args(args).env("UIW_PERSONA", "roce");
        command
    };
    let mut server = command(args);
    if let Some(file) = capture {
        server.env("UIW_PCAP", file);
    }
    let mut server = Running::start(network.server(server));
    server.wait_saying("starting server");
    let client = Running::start(network.client(command(&to_server))).end();
    Some([server.end(), client])
}

/// Runs mckey as a member of `group` and as a sender. If `capture` is given, the datagrams of the
/// member are written to this file.
fn mckey(
    network: &Network,
    group: &str,
    [member, sender]: [&str; 2],
    capture: Option<&Path>,
) -> [ProcessEnd; 2] {
    let libraries = Libraries::get();
    let command = |args: &[&str], own: &str| {
        let mut command = libraries.command(User::Same, "stdbuf");
        command
            .args(["-oL", "mckey", "-m", group, "-b", own])
            .args(args)
            .env("UIW_PERSONA", "roce");
        command
    };
    let mut member = command(&[], member);
    if let Some(file) = capture {
        member.env("UIW_PCAP", file);
    }
    let mut member = Running::start(network.server(member));
    member.wait_saying("receiving data transfers");
    let sender = Running::start(network.client(command(&["-s"], sender))).end();
    [member.end(), sender]
}

/// Adds an IPv6 address at both ends.
fn add_v6(network: &Network) {
    for (at, address) in [(Network::server as At, "fd77::1/64"), (Network::client, "fd77::2/64")] {
        let mut command = Command::new("ip");
        command.args(["address", "add", address, "dev", "veth0", "nodad"]);
        let output = at(network, command).output().expect("ip");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// udaddy cannot choose its port, so each end runs in a namespace of its own.
#[test]
fn udaddy_exchanges_messages() {
    let Some(network) = Network::veth() else { return };
    // These are the port spaces UDP and IPOIB.
    for space in ["0x0111", "0x0002"] {
        let common = ["-c", "5", "-C", "20", "-S", "500", "-p", space];
        let Some(ends) = udaddy(&network, &common, None) else { return };
        for end in ends {
            assert_eq!(end.well().count("return status 0"), 1, "{end:?}");
        }
    }
}

/// Runs on loopback with IPv4, and between namespaces with both IP versions: Linux has no route to
/// IPv6 groups on loopback.
#[test]
fn mckey_sends_to_a_group() {
    let Some(_) = uiw_interop::require("mckey") else { return };
    let Some(veth) = Network::veth() else { return };
    add_v6(&veth);
    let plain = ["10.77.0.1", "10.77.0.2"];
    for (network, group, own) in [
        (&Network::Loopback, "239.77.0.1", ["127.0.0.1"; 2]),
        (&veth, "239.77.0.1", plain),
        (&veth, "ff15::77:1", ["fd77::1", "fd77::2"]),
    ] {
        for end in mckey(network, group, own, None) {
            assert_eq!(end.well().count("return status 0"), 1, "{end:?}");
        }
    }
}

/// The program sets the hop limit of an address handle: `ibv_ud_pingpong` uses 1, perftest 255.
/// Address handles from rdma_cm events have the default for a host or a group, and those from
/// completions have 255, as in libibverbs.
#[test]
fn datagrams_have_hop_limit_of_handle() {
    let (Some(network), Some(_)) = (Network::veth(), uiw_interop::require("mckey")) else { return };
    let libraries = Libraries::get();
    let (one, own) = (["-c", "1", "-C", "3", "-S", "100"], ["10.77.0.1", "10.77.0.2"]);
    let by_pair =
        |program: &str, args: &[&str]| pair(&network, User::Same, "roce", program, args).is_some();
    let programs: [(&dyn Fn() -> bool, &[u8]); 4] = [
        (&|| by_pair("ibv_ud_pingpong", &["-g", "0", "-n", "5", "-s", "100"]), &[1]),
        (&|| by_pair("ib_send_lat", &["-c", "UD", "-F", "-n", "5", "-s", "100"]), &[255]),
        // The server answers with the address handle made from a completion.
        (
            &|| {
                let ends = udaddy(&network, &one, None);
                for end in ends.iter().flatten() {
                    end.well();
                }
                ends.is_some()
            },
            &[64, 255],
        ),
        (
            &|| {
                for end in mckey(&network, "239.77.0.1", own, None) {
                    end.well();
                }
                true
            },
            &[1],
        ),
    ];
    for (run, expected) in programs {
        let Some(capture) = Capture::of_ends(&libraries, &network) else { return };
        if !run() {
            // One of the programs is not installed, and `require` has recorded that.
            continue;
        }
        assert_eq!(capture.end().hop_limits(), expected);
    }
}

#[test]
fn captured_datagrams_decoded() {
    let Some(_) = uiw_interop::require("ibv_ud_pingpong") else { return };
    let libraries = Libraries::get();
    let file = libraries.folder().join("datagrams.pcapng");
    let port = free_port();
    let command = || {
        let mut command = libraries.command(User::Same, "ibv_ud_pingpong");
        command.args([
            "-d",
            "uiw_lo",
            "-g",
            "0",
            "-s",
            "1024",
            "-n",
            "100",
            "-p",
            &port.to_string(),
        ]);
        command.env("UIW_PERSONA", "roce");
        command
    };
    let mut server = Running::start(command());
    server.wait_listening(port);
    let mut client = command();
    client.arg("127.0.0.1").env("UIW_PCAP", &file);
    Running::start(client).end().well();
    server.end().well();
    let (found, summary) = decoded(&file);
    let lines: Vec<_> = found.iter().map(|datagram| format!("{datagram:?}")).collect();
    // Each end sends 100 messages and receives 100.
    assert_eq!(
        (summary.packets, summary.datagrams, summary.departures),
        (200, 200, 0),
        "{summary}"
    );
    assert!(
        lines.iter().all(|line| line.contains("length: 1024") && line.contains("order: None")),
        "{lines:?}"
    );
}

/// Returns the datagrams of a capture that contains nothing else.
fn decoded(file: &Path) -> (Vec<Datagram>, Summary) {
    let mut found = Vec::new();
    let summary = decode(File::open(file).unwrap(), &mut |record| match &record.event {
        Event::Datagram(datagram) => found.push((**datagram).clone()),
        other => panic!("{other:?}"),
    });
    let summary = summary.unwrap();
    assert!(summary.followed(), "{summary}");
    (found, summary)
}

/// Each connection of udaddy makes a SIDR request. Afterwards messages are exchanged between the
/// queue pairs named by the SIDR messages.
#[test]
fn sidr_of_a_capture_is_decoded() {
    const CONNECTIONS: usize = 3;
    const MESSAGES: usize = 10;
    let Some(network) = Network::veth() else { return };
    let libraries = Libraries::get();
    let file = libraries.folder().join("sidr.pcapng");
    let args = ["-c", &CONNECTIONS.to_string(), "-C", &MESSAGES.to_string(), "-S", "100"];
    let Some(ends) = udaddy(&network, &args, Some(&file)) else { return };
    for end in &ends {
        end.well();
    }
    let (found, summary) = decoded(&file);
    assert_eq!(summary.departures, 0, "{summary}");
    let named =
        |name: &str| found.iter().filter(|datagram| datagram.name == name).collect::<Vec<_>>();
    // A request that is not answered within 250 ms is repeated, so duplicates are removed.
    let requests: BTreeSet<_> =
        named("SIDR request").iter().map(|datagram| datagram.transaction).collect();
    let replies: BTreeMap<_, _> =
        named("SIDR reply").iter().map(|datagram| (datagram.transaction, *datagram)).collect();
    assert_eq!((requests.len(), replies.len()), (CONNECTIONS, CONNECTIONS));
    assert!(replies.keys().all(|transaction| requests.contains(transaction)));
    for reply in replies.values() {
        let of_messages = |number: fn(&Datagram) -> Option<u32>| {
            let other = |datagram: &&Datagram| {
                number(datagram) == reply.destination_qpn && datagram.msn.is_some()
            };
            found.iter().filter(other).collect::<Vec<_>>()
        };
        let (received, sent) = (
            of_messages(|message| message.destination_qpn),
            of_messages(|message| message.source_qpn),
        );
        assert_eq!((received.len(), sent.len()), (MESSAGES, MESSAGES), "{reply:?}");
        // udaddy uses the Q_Key from the event.
        assert!(
            received.iter().all(|message| message.qkey == reply.qkey && message.length == 100),
            "{received:?}"
        );
    }
}

#[test]
fn captured_group_messages_decoded() {
    let (Some(network), Some(_)) = (Network::veth(), uiw_interop::require("mckey")) else { return };
    add_v6(&network);
    for (group, own) in
        [("239.77.0.1", ["10.77.0.1", "10.77.0.2"]), ("ff15::77:1", ["fd77::1", "fd77::2"])]
    {
        let libraries = Libraries::get();
        let file = libraries.folder().join("group.pcapng");
        for end in mckey(&network, group, own, Some(&file)) {
            end.well();
        }
        let (found, summary) = decoded(&file);
        // mckey sends 10 messages by default.
        assert_eq!((summary.packets, found.len(), summary.departures), (10, 10, 0), "{summary}");
        for (message, msn) in found.iter().zip(1..) {
            let Datagram { destination_qpn, qkey, order, .. } = message;
            assert_eq!(
                (message.msn, *destination_qpn, *qkey),
                (Some(msn), Some(0xFF_FFFF), Some(0x0123_4567))
            );
            assert_eq!((message.length, order), (100, &None), "{message:?}");
        }
    }
}

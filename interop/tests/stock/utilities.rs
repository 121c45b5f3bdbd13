//! Tests Debian's ibverbs-utils, which show devices and connect queue pairs out of band.

use crate::pair::pair;
use std::process::Command;
use uiw_interop::stock::{self, Libraries, Network, Running, User, free_port, ordinary};

#[test]
fn devices_are_listed_and_described() {
    let Some(_) = uiw_interop::require("ibv_devinfo") else { return };
    let libraries = Libraries::get();
    let listed = Running::start(libraries.command(User::Same, "ibv_devices")).end();
    assert_eq!(listed.well().count("uiw_lo"), 1);
    let mut command = libraries.command(User::Same, "ibv_devinfo");
    command.args(["-v", "-d", "uiw_lo"]);
    let described = Running::start(command).end();
    described.well();
    for line in [
        "transport:\t\t\tiWARP (1)",
        "state:\t\t\tPORT_ACTIVE (4)",
        "link_layer:\t\tEthernet",
        "0000:ffff:7f00:0001",
    ] {
        assert_eq!(described.count(line), 1, "{line}: {described:?}");
    }
}

#[test]
fn personas_show_what_they_say() {
    let Some(_) = uiw_interop::require("ibv_devinfo") else { return };
    let libraries = Libraries::get();
    for (persona, transport, layer, lid) in [
        ("iwarp", "transport:\t\t\tiWARP (1)", "link_layer:\t\tEthernet", "port_lid:\t\t0"),
        ("roce", "transport:\t\t\tInfiniBand (0)", "link_layer:\t\tEthernet", "port_lid:\t\t0"),
        ("ib", "transport:\t\t\tInfiniBand (0)", "link_layer:\t\tInfiniBand", "port_lid:\t\t1"),
    ] {
        let mut command = libraries.command(User::Same, "ibv_devinfo");
        command.args(["-d", "uiw_lo"]).env("UIW_PERSONA", persona);
        let described = Running::start(command).end();
        described.well();
        for text in [transport, layer, lid] {
            assert_eq!(described.count(text), 1, "{persona}: {described:?}");
        }
    }
}

#[test]
fn bad_setting_named_in_one_line() {
    let Some(_) = uiw_interop::require("ibv_devinfo") else { return };
    let libraries = Libraries::get();
    let mut command = libraries.command(User::Same, "ibv_devices");
    command.env("UIW_CRC", "perhaps");
    let ended = Running::start(command).end();
    assert_ne!(ended.code, 0);
    assert_eq!(ended.count("uiw: UIW_CRC=perhaps: expected on or off"), 1, "{ended:?}");
}

/// libibumad reads only sysfs, and gives up at the first missing file.
#[test]
fn ibstat_describes_the_port_from_sysfs() {
    let Some(_) = uiw_interop::require("ibstat") else { return };
    let libraries = Libraries::get();
    for (persona, layer, rate) in [("roce", "Ethernet", "100"), ("ib", "InfiniBand", "100")] {
        let mut command = libraries.command(User::Same, stock::uiw());
        command.args(["run", "--sysfs", "--persona", persona, "--", "ibstat", "uiw_lo", "1"]);
        command.env("UIW_LIB", libraries.folder());
        let described = Running::start(command).end();
        if described.count("cannot make /sys/class/infiniband") > 0 {
            uiw_interop::skip("mount namespaces");
            return;
        }
        described.well();
        for line in ["State: Active", &format!("Rate: {rate}"), &format!("Link layer: {layer}")] {
            assert_eq!(described.count(line), 1, "{line}: {described:?}");
        }
    }
}

#[test]
fn asynchronous_events_can_be_watched() {
    let Some(_) = uiw_interop::require("ibv_asyncwatch") else { return };
    let libraries = Libraries::get();
    let mut command = libraries.command(User::Same, "stdbuf");
    command.args(["-o0", "ibv_asyncwatch"]);
    let mut watch = Running::start(command);
    watch.wait_saying("async event FD");
    assert_eq!(watch.stop().code, 128 + 9);
}

/// Runs both ends of one of the pingpong programs.
fn pingpong(network: &Network, user: User, persona: &str, program: &str, args: &[&str]) {
    let args = [&["-n", "500"], args].concat();
    let Some(ends) = pair(network, user, persona, program, &args) else { return };
    // With the output of both, because the end that fails is not always the one at fault.
    let have_ended_well = ends.iter().all(|end| end.code == 0 && end.count("500 iters in") == 1);
    assert!(have_ended_well, "{program}: {ends:?}");
}

#[test]
fn pingpong_by_gid() {
    for args in
        [&["-g", "0"][..], &["-g", "0", "-e"], &["-g", "0", "-s", "300000"], &["-g", "0", "-t"]]
    {
        pingpong(&Network::Loopback, User::Same, "iwarp", "ibv_rc_pingpong", args);
    }
    pingpong(&Network::Loopback, User::Same, "roce", "ibv_rc_pingpong", &["-g", "0", "-N"]);
}

/// With events and timestamps, the program fails if an event comes without a completion. It cannot
/// rule this out itself: it arms the queue before it polls, so a completion that arrives in between
/// is polled and has an event as well. This is rare, so one of a few runs has to succeed.
#[test]
fn pingpong_with_events_and_timestamps() {
    const TRIES: usize = 4;
    let args = ["-n", "500", "-g", "0", "-e", "-t"];
    for _ in 0..TRIES {
        let Some(ends) = pair(&Network::Loopback, User::Same, "iwarp", "ibv_rc_pingpong", &args)
        else {
            return;
        };
        if ends.iter().any(|end| end.count("poll CQ failed 2") > 0) {
            continue;
        }
        for end in ends {
            assert_eq!(end.well().count("500 iters in"), 1, "{end:?}");
        }
        return;
    }
    panic!("{TRIES} runs had an event without a completion");
}

#[test]
fn pingpong_by_lid() {
    pingpong(&Network::Loopback, User::Same, "ib", "ibv_rc_pingpong", &[]);
    if let Some(network) = Network::veth() {
        pingpong(&network, User::Same, "ib", "ibv_rc_pingpong", &[]);
    }
}

#[test]
fn unreliable_pingpong() {
    pingpong(&Network::Loopback, User::Same, "roce", "ibv_uc_pingpong", &["-g", "0"]);
    pingpong(&Network::Loopback, User::Same, "roce", "ibv_uc_pingpong", &["-g", "0", "-e"]);
    pingpong(&Network::Loopback, User::Same, "ib", "ibv_uc_pingpong", &[]);
    if let Some(network) = Network::veth() {
        pingpong(&network, User::Same, "roce", "ibv_uc_pingpong", &["-g", "0", "-s", "300000"]);
    }
}

#[test]
fn pingpong_with_a_shared_receive_queue() {
    // The program uses sixteen queue pairs per side.
    pingpong(&Network::Loopback, User::Same, "iwarp", "ibv_srq_pingpong", &["-g", "0"]);
    pingpong(&Network::Loopback, User::Same, "roce", "ibv_srq_pingpong", &["-g", "0", "-e"]);
}

#[test]
fn pingpong_between_namespaces_as_user() {
    let (Some(user), Some(network)) = (ordinary(), Network::veth()) else { return };
    for program in ["ibv_rc_pingpong", "ibv_srq_pingpong"] {
        pingpong(&network, User::Same, "iwarp", program, &["-g", "0"]);
        pingpong(&network, user, "roce", program, &["-g", "0"]);
    }
}

#[test]
fn queue_pair_ports_as_configured() {
    let Some(_) = uiw_interop::require("ibv_rc_pingpong") else { return };
    let libraries = Libraries::get();
    let port = free_port();
    let [low, high] = [free_port(), free_port()];
    let command = |own: u16| {
        let mut command = libraries.command(User::Same, "ibv_rc_pingpong");
        command.args(["-d", "uiw_lo", "-g", "0", "-p", &port.to_string(), "-n", "5"]);
        command.env("UIW_QP_PORTS", format!("{own}-{own}"));
        command
    };
    let mut server = Running::start(command(low));
    server.wait_listening(port);
    let mut client = command(high);
    client.arg("127.0.0.1");
    let client = Running::start(client).end();
    client.well();
    server.end().well();
    for own in [low, high] {
        assert_eq!(client.count(&format!("QPN 0x{:06x}", u32::from(own) << 8)), 1, "{client:?}");
    }
}

/// The end with the smaller queue pair number connects, but a firewall drops its packets. The other
/// end's attempt succeeds. The firewall is tested in front of the server and in front of the
/// client.
#[test]
fn other_end_connects_behind_firewall() {
    let (Some(_), Some(nft)) =
        (uiw_interop::require("ibv_rc_pingpong"), uiw_interop::require("nft"))
    else {
        return;
    };
    for server_calls in [true, false] {
        let Some(network) = Network::veth() else { return };
        let libraries = Libraries::get();
        let port = free_port();
        let [low, high] = [(7100, 7109), (7200, 7209)];
        let (server_ports, client_ports) = if server_calls { (low, high) } else { (high, low) };
        // The firewall is in front of the end with the larger number.
        let walled =
            |command| if server_calls { network.client(command) } else { network.server(command) };
        let mut wall = Command::new(&nft);
        wall.arg(format!(
            "table inet wall {{\n chain input {{\n type filter hook input priority 0;\n tcp dport {}-{} counter drop\n }}\n}}\n",
            high.0, high.1
        ));
        let built = walled(wall).output().unwrap();
        if !built.status.success() {
            uiw_interop::skip(&format!(
                "nftables: {}",
                String::from_utf8_lossy(&built.stderr).trim()
            ));
            return;
        }
        let command = |(first, last): (u16, u16)| {
            let mut command = libraries.command(User::Same, "ibv_rc_pingpong");
            command.args(["-d", "uiw_veth0", "-g", "0", "-p", &port.to_string(), "-n", "500"]);
            command.env("UIW_QP_PORTS", format!("{first}-{last}"));
            command
        };
        let mut server = Running::start(network.server(command(server_ports)));
        server.wait_listening(port);
        let mut client = command(client_ports);
        client.arg(network.server_address().to_string());
        let client = Running::start(network.client(client)).end();
        client.well();
        server.end().well();
        // The firewall has dropped packets.
        let mut look = Command::new(&nft);
        look.args(["list", "table", "inet", "wall"]);
        let said = String::from_utf8(walled(look).output().unwrap().stdout).unwrap();
        assert!(said.contains("packets") && !said.contains("packets 0 "), "{said}");
    }
}

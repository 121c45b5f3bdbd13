//! Runs stock programs on the C libraries with a user-space TCP (`UIW_LLP`), against each other and
//! against the kernel's TCP.

use crate::pairings::Stack;
use serde_json::{Value, json};
use std::process::Command;
use uiw_interop::stock::{Libraries, Network, ProcessEnd, Running, User, uiw};

/// Returns a command that runs `program` on `stack`, with addresses for `host`.
fn at(libraries: &Libraries, stack: Stack, host: u8, program: &str, args: &[&str]) -> Command {
    let mut command = libraries.command(User::Same, program);
    command.args(args).env("UIW_LLP", stack.spec(host));
    command
}

/// Runs a server that listens on `port` and a client, and returns how both ended.
fn pair(
    server: Stack,
    client: Stack,
    program: &str,
    port: u16,
    args: [&[&str]; 2],
) -> Option<[ProcessEnd; 2]> {
    uiw_interop::require(program)?;
    let network = Network::veth()?;
    let libraries = Libraries::get();
    let mut command = at(&libraries, server, 11, program, args[0]);
    // A user-space listener appears in no kernel table, so the log is used to detect it.
    command.env("UIW_LOG", "uiw_smol=debug");
    let mut there = Running::start(network.server(command));
    if server == Stack::Kernel {
        there.wait_listening(port);
    } else {
        there.wait_saying(" listening");
    }
    let address = server.addresses()[0];
    let of_client: Vec<_> =
        args[1].iter().map(|word| if *word == "ADDRESS" { address } else { word }).collect();
    let here =
        Running::start(network.client(at(&libraries, client, 12, program, &of_client))).end();
    Some([there.end(), here])
}

/// The client of rping reports its result in its output, not by its exit code.
fn rping(server: Stack, client: Stack) {
    let of_server = ["-s", "-V", "-C", "200", "-S", "40000", "-p", "7999"];
    let of_client = ["-c", "-a", "ADDRESS", "-V", "-C", "200", "-S", "40000", "-p", "7999"];
    let Some([there, here]) = pair(server, client, "rping", 7999, [&of_server, &of_client]) else {
        return;
    };
    there.well();
    let wrong = ["failed", "mismatch", "wait for"].map(|word| here.count(word));
    assert_eq!((here.code, wrong), (0, [0; 3]), "{client:?} to {server:?}: {there:?} {here:?}");
}

#[test]
fn rping_between_two_of_af_packet() {
    rping(Stack::Packet, Stack::Packet);
}

#[test]
fn rping_between_two_of_af_xdp() {
    rping(Stack::Xdp, Stack::Xdp);
}

#[test]
fn rping_between_kernel_and_smoltcp() {
    rping(Stack::Kernel, Stack::Packet);
    rping(Stack::Packet, Stack::Kernel);
    rping(Stack::Kernel, Stack::Xdp);
    rping(Stack::Xdp, Stack::Kernel);
}

#[test]
fn rping_between_af_packet_and_af_xdp() {
    rping(Stack::Packet, Stack::Xdp);
}

/// Measures the bandwidth of Writes with perftest; rdma_cm makes the connection.
#[test]
fn ib_write_bw_over_af_packet_and_af_xdp() {
    for (server, client) in [(Stack::Packet, Stack::Xdp), (Stack::Xdp, Stack::Kernel)] {
        let args = ["-R", "-p", "7998", "-s", "65536", "-n", "500", "--report_gbits"];
        let of_client = [&args[..], &["ADDRESS"]].concat();
        let Some([there, here]) = pair(server, client, "ib_write_bw", 7998, [&args, &of_client])
        else {
            return;
        };
        there.well();
        assert!(here.well().said.contains(" 65536 "), "{client:?} to {server:?}: {here:?}");
    }
}

/// The device is the interface, and its GIDs are the stack's own addresses.
#[test]
fn device_has_own_addresses() {
    let Some(program) = uiw_interop::require("ibv_devinfo") else { return };
    let Some(network) = Network::veth() else { return };
    let libraries = Libraries::get();
    let command = at(&libraries, Stack::Packet, 11, &program.to_string_lossy(), &["-v"]);
    let said = Running::start(network.client(command)).end().well().said.clone();
    let gids: Vec<_> = said.lines().filter(|line| line.contains("GID[")).collect();
    assert!(said.contains("uiw_veth0") && gids.len() == 2, "{said}");
    assert!(
        gids[0].contains("ffff:0a4d:000b")
            && gids[1].contains("fd77:0000")
            && gids[1].contains(":0011"),
        "{said}"
    );
}

/// `uiw devices` shows the devices that programs would see, for every way to select the TCP.
#[test]
fn device_as_programs_see_it() {
    let Some(network) = Network::veth() else { return };
    let spec = Stack::Packet.spec(11);
    let shown = |args: &[&str], variable: &str| {
        let mut command = Command::new(uiw());
        command.args(args).args(["devices", "--json"]).env("UIW_LLP", variable);
        let ended = Running::start(network.client(command)).end();
        let objects: Vec<Value> =
            ended.well().said.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
        let gids = |object: &Value| (object["netdev"].clone(), object["gids"].clone());
        objects.iter().map(gids).collect::<Vec<_>>()
    };
    let own = [(json!("veth0"), json!(["10.77.0.11", "fd77::11"]))];
    assert_eq!(shown(&["--llp", &spec], ""), own);
    assert_eq!(shown(&[], &spec), own);
    let kernels = shown(&["--llp", "tcp"], &spec);
    assert!(kernels.iter().any(|(_, gids)| gids.to_string().contains("10.77.0.2")), "{kernels:?}");
    let mut command = Command::new(uiw());
    command.arg("devices").env("UIW_LLP", "packet:veth0");
    let ended = Running::start(network.client(command)).end();
    assert_eq!((ended.code, ended.said.lines().count()), (2, 2), "{}", ended.said);
    assert!(ended.said.contains("UIW_LLP=packet:veth0: expected tcp"), "{}", ended.said);
}

/// An unavailable stack causes one line on stderr and an error number.
#[test]
fn missing_interface_for_programs() {
    let Some(program) = uiw_interop::require("rping") else { return };
    let Some(network) = Network::veth() else { return };
    let libraries = Libraries::get();
    for (llp, says) in [
        ("packet:veth9,ip=10.77.0.11/24", "there is no interface `veth9`"),
        ("packet:veth0", "UIW_LLP=packet:veth0: expected tcp, mptcp, packet:IFACE"),
        (
            "xdp:veth0,ip=10.77.0.11",
            "UIW_LLP=xdp:veth0,ip=10.77.0.11: expected tcp, mptcp, packet:IFACE",
        ),
    ] {
        let mut command = libraries.command(User::Same, &program);
        command.args(["-s", "-p", "7999", "-C", "1"]).env("UIW_LLP", llp);
        let ended = Running::start(network.server(command)).end();
        assert!(ended.code != 0 && ended.count(says) == 1, "{ended:?}");
        let line = ended.said.lines().find(|line| line.contains(says)).expect("a line");
        assert!(line.ends_with("see `uiw doctor`"), "{line}");
    }
}

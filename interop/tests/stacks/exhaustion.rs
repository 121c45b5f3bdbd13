//! Uses up the AF_XDP frames of a server that has connections.

use crate::pairings::{Stack, at};
use rustix::process::Signal;
use std::net::UdpSocket;
use std::process::Command;
use uiw_interop::stock::{Network, Running, uiw};

/// Returns the number of frames that the server's interface dropped because our memory had no free
/// frame.
fn dropped(network: &Network) -> u64 {
    let said = at(network, true, "ethtool", &["-S", "veth0"]);
    let line = said.lines().find_map(|line| line.trim().strip_prefix("rx_queue_0_drops:"));
    line.unwrap_or_else(|| panic!("no drops in {said}")).trim().parse().expect("a number")
}

/// The stopped server is flooded until every frame of its memory is used. After it continues, its
/// connection carries every byte correctly, and new connections can be made.
#[test]
fn unread_frame_flood_survived() {
    if uiw_interop::require("ethtool").is_none() {
        return;
    }
    let Some(network) = Network::veth() else { return };
    let port = uiw_interop::stock::free_port();
    let address = Stack::Xdp.addresses()[0];
    let mut command = Command::new(uiw());
    command.args([
        "--llp",
        &Stack::Xdp.spec(11),
        "serve",
        "--listen",
        &format!("{address}:{port}"),
    ]);
    let mut server = Running::start(network.server(command));
    server.wait_saying("listening on");
    let client = |seconds: &str| {
        let mut command = Command::new(uiw());
        command.args(["perf", &format!("{address}:{port}"), "--validate", "--bidirectional"]);
        command.args(["--size", "20000", "--seconds", seconds]);
        Running::start(network.client(command))
    };
    let measured = client("4");
    // The client's kernel knows the server's MAC address once a connection exists.
    while !at(&network, false, "ip", &["neighbour", "show", address]).contains("lladdr") {
        std::thread::yield_now();
    }
    let socket = network.inside_client(|| UdpSocket::bind("10.77.0.2:0")).expect("a socket there");
    for _ in 0..2 {
        server.signal(Signal::STOP);
        let before = dropped(&network);
        let mut floods = 0;
        while dropped(&network) == before {
            floods += 1;
            assert!(floods < 1000, "frames of the server's never run out");
            for _ in 0..256 {
                // The client may be out of buffers for a moment, so errors are ignored.
                let _ = socket.send_to(&[0x5A; 100], (address, 9));
            }
        }
        server.signal(Signal::CONT);
        let other = client("0.5").end();
        assert_eq!(other.code, 0, "{}{}", other.said, server.said());
    }
    let ended = measured.end();
    assert_eq!(ended.code, 0, "{}{}", ended.said, server.said());
    let _ = server.stop();
}

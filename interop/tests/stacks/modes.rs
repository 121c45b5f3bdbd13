//! Tests the modes of AF_XDP, each selected by name.

use crate::pairings::{Stack, at, exchange_between, network_of};
use std::process::Command;
use uiw_interop::stock::uiw;

/// Returns the value of `--llp` that selects a mode.
fn spec(mode: &str, host: u8) -> String {
    format!("{},mode={mode}", Stack::Xdp.spec(host))
}

/// Performs every operation between two ends in `mode`, and checks that `ip link` shows the program
/// of the server as attached in the way `shown`.
fn both_ends(mode: &str, shown: &str) {
    for mtu in [1500, 9000] {
        let Some(network) = network_of(mtu, true) else { return };
        exchange_between(
            &network,
            [&spec(mode, 11), &spec(mode, 12)],
            &Stack::Xdp.addresses(),
            || {
                let said = at(&network, true, "ip", &["link", "show", "dev", "veth0"]);
                // The driver's mode is shown as `xdp/id:` or `prog/xdp`; the generic mode, which
                // runs before the network stack, as `xdpgeneric`.
                assert!(said.contains(shown), "mode={mode}, MTU {mtu}: {said}");
                assert_eq!(
                    said.contains("xdpgeneric"),
                    mode == "generic",
                    "mode={mode}, MTU {mtu}: {said}"
                );
            },
        );
    }
}

#[test]
fn every_operation_in_mode_native() {
    both_ends("native", "xdp");
}

#[test]
fn every_operation_in_mode_generic() {
    both_ends("generic", "xdpgeneric");
}

/// If the driver lacks a mode, one line names the mode and a hint names an alternative.
#[test]
fn mode_missing_in_driver() {
    let Some(network) = network_of(1500, true) else { return };
    // The driver of a bridge runs no programs, and the driver of a veth does not support zero-copy.
    at(&network, true, "ip", &["link", "add", "br0", "type", "bridge"]);
    at(&network, true, "ip", &["link", "set", "br0", "up"]);
    let serve = |interface: &str, mode: &str| {
        let mut command = Command::new(uiw());
        let spec = format!("xdp:{interface},ip=10.77.0.11/24,mode={mode}");
        command.args(["--llp", &spec, "serve", "--listen", "10.77.0.11:0"]);
        network.server(command)
    };
    for (interface, mode) in [("br0", "native"), ("br0", "zerocopy"), ("veth0", "zerocopy")] {
        let output = serve(interface, mode).output().expect("uiw starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 2), "{said}");
        let says = format!("AF_XDP on {interface}: the interface's driver has no mode={mode}");
        assert!(said.contains(&says) && said.contains("try mode=generic"), "{said}");
    }
}

//! Tests the Rust crate ibverbs (jonhoo/rust-ibverbs): `cargo xtask interop rust-ibverbs` builds
//! its example and a program written for these tests, and runs these tests.

use crate::bindings::{Programs, exchange, on_two_hosts};
use crate::proof::{Proof, options};
use crate::reported::{isolated, number, report, run};
use uiw_interop::stock::{Hosts, Libraries, Network, Running, free_port};

/// Number of payload bytes that the test program sends in each direction.
const PAYLOAD: u64 = 6_995_168;

/// Returns the directory with the programs. If it is not set, returns `None` and counts the test as
/// skipped.
#[track_caller]
fn programs() -> Option<Programs> {
    Programs::given("UIW_RUST_IBVERBS", "rust-ibverbs: cargo xtask interop rust-ibverbs")
}

/// Like [`programs`], but also returns two hosts and the libraries.
#[track_caller]
fn programs_on_two_hosts() -> Option<(Programs, Network, Libraries)> {
    on_two_hosts(programs()?)
}

#[test]
fn messages_are_sent_back_and_compared() {
    let Some((programs, network, libraries)) = programs_on_two_hosts() else { return };
    let peer = programs.path("uiw-rust-ibverbs-peer");
    let address = network.server_address().to_string();
    for persona in ["iwarp", "roce", "ib"] {
        let port = free_port();
        let number_of_port = port.to_string();
        let server: &[&str] = &[&peer, "server", &number_of_port];
        let client: &[&str] = &[&peer, "client", &address, &number_of_port];
        for end in exchange(&libraries, &network, persona, port, [server, client]) {
            let said =
                format!("uiw_veth0: 256 messages of {PAYLOAD} bytes in each direction are equal");
            assert_eq!(end.well().count(&said), 1, "{end:?}");
            let report = report(&end);
            let moved = (number(&report, "bytes_sent"), number(&report, "bytes_received"));
            assert_eq!(moved, (PAYLOAD, PAYLOAD), "{report}");
        }
    }
}

#[test]
fn report_counters_and_capture_agree() {
    let Some((programs, network, libraries)) = programs_on_two_hosts() else { return };
    let Some(proof) = Proof::begin(&libraries, &network) else { return };
    let peer = programs.path("uiw-rust-ibverbs-peer");
    let (port, address) = (free_port(), network.server_address().to_string());
    let number = port.to_string();
    let server = isolated(&libraries, &["--require"], &[&peer, "server", &number]);
    let mut server = Running::start(network.server(server));
    server.wait_listening(port);
    let client =
        Running::start(proof.client(&options("iwarp"), &[&peer, "client", &address, &number]))
            .end();
    server.end().well();
    // Other TCP traffic consists of the endpoints and two bytes in each direction.
    proof.holds(&client, 2 * PAYLOAD, Some(port), 200);
}

/// In the example of rust-ibverbs, a queue pair connected to itself sends a number, which is
/// compared. The example uses the first device and the second of its GIDs.
#[test]
fn example_verifies_own_message() {
    let (Some(programs), Some(hosts)) = (programs(), Hosts::new(1)) else { return };
    let libraries = Libraries::get();
    let program = programs.path("loopback");
    let (host, _) = hosts.places().next().expect("a host");
    for persona in ["iwarp", "roce", "ib"] {
        let command = run(&libraries, &["--json", "--persona", persona], &[&program]);
        let ended = Running::start(hosts.at(host, command)).end();
        for line in ["sent", "received"] {
            assert_eq!(
                ended.well().said.lines().filter(|said| *said == line).count(),
                1,
                "{ended:?}"
            );
        }
        let report = report(&ended);
        for way in ["sent", "received"] {
            assert_eq!(report["within_processes"]["send"][way]["bytes"], 8, "{report}");
        }
    }
}

//! Tests libfabric's verbs provider as packaged by Debian. No device is named, and an address only
//! where a program needs one.

use crate::proof::{Proof, options};
use crate::reported::{is_reliable, report, run};
use uiw_interop::stock::{Libraries, Network, Running, free_port};

/// Runs `fi_info` with the attributes that Open MPI requests, in a network namespace with a real
/// device.
fn fi_info(
    libraries: &Libraries,
    network: &Network,
    loopback: &str,
) -> uiw_interop::stock::ProcessEnd {
    let mut command = run(libraries, &[], &["fi_info", "-p", "verbs;ofi_rxm", "-t", "FI_EP_RDM"]);
    command.env("UIW_LOOPBACK", loopback);
    Running::start(network.server(command)).end()
}

/// Without an address, libfabric binds an id to localhost and asks for the id's device.
#[test]
fn devices_are_found_without_an_address() {
    let Some(_) = uiw_interop::require("fi_info") else { return };
    let Some(network) = Network::veth() else { return };
    let libraries = Libraries::get();
    let found = fi_info(&libraries, &network, "");
    assert!(found.well().count("domain: uiw_veth0") > 0 && found.count("uiw_lo") == 0, "{found:?}");
    // If a loopback device exists, libfabric takes it as the only device and does not offer it.
    let none = fi_info(&libraries, &network, "own");
    assert_eq!(none.count("uiw_"), 0, "{none:?}");
}

/// Maximum number of bytes that the ends of `fi_pingpong` exchange over TCP: addresses, and the
/// signals to continue.
const OWN_BYTES: u64 = 4 << 10;

/// The server is not given an address; both ends compare every message.
fn pingpong(provider: &str, endpoint: &str, persona: &str) {
    let Some(_) = uiw_interop::require("fi_pingpong") else { return };
    let Some(network) = Network::veth() else { return };
    let libraries = Libraries::get();
    let Some(proof) = Proof::begin(&libraries, &network) else { return };
    let port = free_port();
    let (number, address) = (port.to_string(), network.server_address().to_string());
    let program = ["fi_pingpong", "-p", provider, "-e", endpoint, "-I", "300", "-S", "65536", "-c"];
    let options = options(persona);
    let server = run(&libraries, &options, &[&program[..], &["-B", &number]].concat());
    let mut server = Running::start(network.server(server));
    server.wait_listening(port);
    let client = proof.client(&options, &[&program[..], &["-P", &number, &address]].concat());
    let ends = [Running::start(client).end(), server.end()];
    // Each message is sent in both directions.
    let payload = 2 * 300 * 65_536;
    for end in &ends {
        assert_eq!(end.well().count("=300"), 1, "{end:?}");
        is_reliable(&report(end), payload);
    }
    proof.holds(&ends[0], payload, Some(port), OWN_BYTES);
}

#[test]
fn pingpong_of_connected_endpoints() {
    for persona in ["iwarp", "roce"] {
        pingpong("verbs", "msg", persona);
    }
}

#[test]
fn pingpong_of_endpoints_without_connections() {
    for persona in ["iwarp", "roce"] {
        pingpong("verbs;ofi_rxm", "rdm", persona);
    }
}

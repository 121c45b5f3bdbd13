//! Tests the Rust crate sideway: `cargo xtask interop sideway` builds its examples, its tests and a
//! program written for these tests, and runs these tests.

use crate::bindings::{Programs, exchange, on_two_hosts};
use crate::proof::{Proof, options};
use crate::reported::{isolated, number, report, run};
use uiw_interop::stock::{Libraries, Network, Running, free_port};

/// Payload of the test program in bytes: the memory that is written and read back in each round,
/// the lengths of its messages, and its atomic operations.
const PAYLOAD: u64 = 8 << 20;
const MESSAGES: [u64; 2] = [5 + 8, 16 + 8];
const ATOMICS: u64 = 8 * 24;

/// Returns the directory with sideway's programs. If it is not set, returns `None` and counts the
/// test as skipped.
#[track_caller]
fn programs() -> Option<Programs> {
    Programs::given("UIW_SIDEWAY", "sideway: cargo xtask interop sideway")
}

/// Like [`programs`], but also returns two hosts and the libraries.
#[track_caller]
fn programs_on_two_hosts() -> Option<(Programs, Network, Libraries)> {
    on_two_hosts(programs()?)
}

/// Uses rdma_cm, Writes with immediate data, Reads and atomic operations, with both kinds of queue
/// pairs and completion queues.
#[test]
fn server_memory_written_and_read_back() {
    let Some((programs, network, libraries)) = programs_on_two_hosts() else { return };
    let peer = programs.path("uiw-sideway-peer");
    let address = network.server_address().to_string();
    for persona in ["iwarp", "roce", "ib"] {
        for kind in ["basic", "extended"] {
            let port = free_port();
            let number_of_port = port.to_string();
            let server: &[&str] = &[&peer, "server", &number_of_port, kind];
            let client: &[&str] = &[&peer, "client", &address, &number_of_port, kind];
            let [server, client] = exchange(&libraries, &network, persona, port, [server, client]);
            let said = "8 writes and reads of 1048576 bytes and 24 atomic operations are equal";
            assert_eq!(client.well().count(said), 1, "{client:?}\n{server:?}");
            let said = "8 writes of 1048576 bytes and a counter are equal";
            assert_eq!(server.well().count(said), 1, "{client:?}\n{server:?}");
            let [server, client] = [server, client].map(|end| report(&end));
            for (end, own, peers) in [
                (&client, "bytes_sent", "bytes_received"),
                (&server, "bytes_received", "bytes_sent"),
            ] {
                assert_eq!(number(end, own), PAYLOAD + MESSAGES[0], "{end}");
                assert_eq!(number(end, peers), PAYLOAD + MESSAGES[1] + ATOMICS, "{end}");
            }
        }
    }
}

#[test]
fn report_counters_and_capture_agree() {
    let Some((programs, network, libraries)) = programs_on_two_hosts() else { return };
    let Some(proof) = Proof::begin(&libraries, &network) else { return };
    let peer = programs.path("uiw-sideway-peer");
    let (port, address) = (free_port(), network.server_address().to_string());
    let number = port.to_string();
    let server = isolated(&libraries, &["--require"], &[&peer, "server", &number, "extended"]);
    let mut server = Running::start(network.server(server));
    server.wait_listening(port);
    let client = proof.client(&options("iwarp"), &[&peer, "client", &address, &number, "extended"]);
    let client = Running::start(client).end();
    server.end().well();
    proof.holds(&client, 2 * PAYLOAD, None, 0);
}

/// Runs the ping-pong examples of sideway, whose queue pairs are connected out of band.
#[test]
fn ping_pongs_run() {
    let Some((programs, network, libraries)) = programs_on_two_hosts() else { return };
    let address = network.server_address().to_string();
    for persona in ["iwarp", "roce", "ib"] {
        for name in ["rc_pingpong", "rc_pingpong_split"] {
            let program = programs.path(name);
            let port = free_port();
            let number_of_port = port.to_string();
            let common: &[&str] =
                &[&program, "-p", &number_of_port, "-s", "5000", "-n", "1000", "-m", "4096"];
            let client = [common, &[&address]].concat();
            for end in exchange(&libraries, &network, persona, port, [common, &client]) {
                assert_eq!(end.well().count("10000000 bytes in "), 1, "{end:?}");
                let report = report(&end);
                let moved = (number(&report, "bytes_sent"), number(&report, "bytes_received"));
                assert_eq!(moved, (5_000_000, 5_000_000), "{report}");
            }
        }
    }
}

/// cmtime opens 100 connections at once without payload; both ends modify the state of their queue
/// pairs themselves.
#[test]
fn cmtime_connects() {
    let Some((programs, network, libraries)) = programs_on_two_hosts() else { return };
    let program = programs.path("cmtime");
    let address = network.server_address().to_string();
    for persona in ["iwarp", "roce", "ib"] {
        let port = free_port();
        let number_of_port = port.to_string();
        let common = [program.as_str(), "-p", &number_of_port, "-c", "100"];
        let options = ["--json", "--persona", persona];
        let mut server = Running::start(network.server(isolated(&libraries, &options, &common)));
        server.wait_listening(port);
        let client = isolated(&libraries, &options, &[&common[..], &["-s", &address]].concat());
        let client = Running::start(network.client(client)).end();
        assert_eq!(client.well().count("Disconnect"), 1, "{client:?}");
        for end in [server.end(), client] {
            let report = report(end.well());
            let made = (number(&report, "connections"), number(&report, "queue_pairs_created"));
            assert_eq!(made, (100, 100), "{report}");
        }
    }
}

#[test]
fn device_and_gid_lists_show_uiw() {
    let (Some(programs), Some(network)) = (programs(), Network::veth()) else { return };
    let libraries = Libraries::get();
    let address = network.client_address().to_string();
    for persona in ["iwarp", "roce", "ib"] {
        for (name, options, shown) in
            [("ibv_devinfo", &[][..], "uiw_veth0"), ("show_gids", &["--sysfs"], address.as_str())]
        {
            let program = programs.path(name);
            let options = [&["--persona", persona], options].concat();
            let ended =
                Running::start(network.client(run(&libraries, &options, &[&program]))).end();
            assert!(ended.well().count(shown) >= 1, "{ended:?}");
        }
    }
}

/// Runs the tests of sideway, each of which opens every device and connects queue pairs to
/// themselves. `test_iterations` is left out, because it invents devices and asks libibverbs for
/// their names.
#[test]
fn own_tests_pass() {
    let Some((programs, network, libraries)) = programs_on_two_hosts() else { return };
    for persona in ["roce", "ib"] {
        for name in
            ["test_atomic", "test_cq", "test_mr_and_cq", "test_post_send", "test_qp", "sideway"]
        {
            let program = programs.path(name);
            let options = ["--sysfs", "--persona", persona];
            let words = [program.as_str(), "--skip", "test_iterations"];
            let ended = Running::start(network.client(run(&libraries, &options, &words))).end();
            assert_eq!(ended.well().count("test result: ok"), 1, "{ended:?}");
        }
    }
}

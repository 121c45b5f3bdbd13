//! Tests Valkey with RDMA, which no distribution packages: `cargo xtask interop valkey` builds a
//! checkout of Valkey and one of its client library libvalkey, names both by variables, and runs
//! these tests.

use crate::bindings::{Programs, on_two_hosts};
use crate::proof::{Proof, options};
use crate::reported::{isolated, number, report};
use std::path::{Path, PathBuf};
use std::process::Command;
use uiw_interop::stock::{Libraries, Running, compile, free_port};

/// Number of payload bytes that the test client sets and reads again.
const VALUES: u64 = 3
    * (1 + 64
        + 4095
        + 4096
        + 65_536
        + 1_000_003
        + (1 << 20)
        + (1 << 20)
        + 1
        + (8 << 20)
        + (32 << 20));

/// Returns the checkout of Valkey. If it is not set, returns `None` and counts the test as skipped.
#[track_caller]
fn valkey() -> Option<Programs> {
    Programs::given("UIW_VALKEY", "Valkey with RDMA: cargo xtask interop valkey")
}

/// Returns the command of a server that listens only over RDMA.
fn server(
    libraries: &Libraries,
    valkey: &Programs,
    persona: &str,
    address: &str,
    port: u16,
) -> Command {
    let [program, module] =
        ["src/valkey-server", "src/valkey-rdma.so"].map(|name| valkey.path(name));
    let bind = format!("bind={address}");
    let listen = format!("port={port}");
    let folder = libraries.folder().to_str().expect("a path of text");
    // Each persona has its own file, so a server does not load the data of an earlier one.
    let file = format!("{persona}.rdb");
    // The clients are on another host and have no password.
    let own = [
        "--port",
        "0",
        "--protected-mode",
        "no",
        "--save",
        "",
        "--appendonly",
        "no",
        "--dir",
        folder,
        "--dbfilename",
        &file,
    ];
    let words = [&[&program[..]], &own[..], &["--loadmodule", &module, &listen, &bind]].concat();
    isolated(libraries, &["--require", "--json", "--persona", persona], &words)
}

/// Compiles the test client. Without libvalkey or a compiler, returns `None` and counts the test as
/// skipped.
#[track_caller]
fn client(libraries: &Libraries) -> Option<PathBuf> {
    let libvalkey =
        Programs::given("UIW_LIBVALKEY", "libvalkey with RDMA: cargo xtask interop valkey")?;
    let include = format!("-I{}", libvalkey.folder().join("include").display());
    let archives = ["lib/libvalkey_rdma.a", "lib/libvalkey.a"].map(|name| libvalkey.path(name));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c/valkey_values.c");
    compile(
        libraries,
        &source,
        &["-O2", "-Wall", "-Wextra", "-Werror", &include, &archives[0], &archives[1]],
    )
}

/// Valkey's own client runs four threads with PING, SET and GET of values of 1,023 letters, which
/// it compares, and a BGSAVE among them.
#[test]
fn own_client_passes_between_hosts() {
    let Some((valkey, network, libraries)) = valkey().and_then(on_two_hosts) else { return };
    let address = network.server_address().to_string();
    for persona in ["iwarp", "roce", "ib"] {
        let port = free_port();
        let server = server(&libraries, &valkey, persona, &address, port);
        let mut server = Running::start(network.server(server));
        server.wait_listening(port);
        let program = valkey.path("tests/rdma/rdma-test");
        let port = port.to_string();
        let words = [&program[..], "--thread", "4", "-h", &address, "-p", &port];
        let client = isolated(&libraries, &["--require", "--json", "--persona", persona], &words);
        let client = Running::start(network.client(client)).end();
        client.well();
        drop(server.stop());
    }
}

#[test]
fn values_up_to_32_mib_equal() {
    let Some((valkey, network, libraries)) = valkey().and_then(on_two_hosts) else { return };
    let Some(client) = client(&libraries) else { return };
    let client = client.to_str().expect("a path of text");
    let address = network.server_address().to_string();
    for persona in ["iwarp", "roce", "ib"] {
        let port = free_port();
        let server = server(&libraries, &valkey, persona, &address, port);
        let mut server = Running::start(network.server(server));
        server.wait_listening(port);
        let words = [client, &address, &port.to_string()];
        let client = isolated(&libraries, &["--require", "--json", "--persona", persona], &words);
        let client = Running::start(network.client(client)).end();
        let said = format!("30 values, {VALUES} bytes, are equal");
        assert_eq!(client.well().count(&said), 1, "{client:?}");
        let report = report(&client);
        for way in ["bytes_sent", "bytes_received"] {
            assert!(number(&report, way) >= VALUES, "{report}");
        }
        drop(server.stop());
    }
}

#[test]
fn report_counters_and_capture_agree() {
    let Some((valkey, network, libraries)) = valkey().and_then(on_two_hosts) else { return };
    let Some(client) = client(&libraries) else { return };
    let Some(proof) = Proof::begin(&libraries, &network) else { return };
    let (port, address) = (free_port(), network.server_address().to_string());
    let mut server =
        Running::start(network.server(server(&libraries, &valkey, "iwarp", &address, port)));
    server.wait_listening(port);
    let words = [client.to_str().expect("a path of text"), &address, &port.to_string()];
    let client = Running::start(proof.client(&options("iwarp"), &words)).end();
    drop(server.stop());
    proof.holds(&client, 2 * VALUES, None, 0);
}

//! Runs the examples of "the geek in the corner" (C, tarickb/the-geek-in-the-corner). They are not
//! packaged, so a variable names a checkout whose programs have been built.

use crate::bindings::{Programs, on_two_hosts};
use crate::proof::{Proof, options};
use crate::reported::{isolated, number, report};
use std::fs;
use std::process::Command;
use uiw_interop::stock::{Libraries, Network, Running, noise};

/// Variable that names the checkout.
const CHECKOUT: &str = "UIW_GEEK_IN_THE_CORNER";
/// Fixed port of the file transfer server, which runs on a host of its own here.
const FILES_PORT: u16 = 12345;
const PERSONAS: [&str; 3] = ["iwarp", "roce", "ib"];

/// Returns the checkout. If it is not set, returns `None` and counts the test as skipped.
#[track_caller]
fn programs() -> Option<Programs> {
    Programs::given(CHECKOUT, "the-geek-in-the-corner's programs (UIW_GEEK_IN_THE_CORNER)")
}

/// Like [`programs`], but also returns two hosts and the libraries.
#[track_caller]
fn programs_on_two_hosts() -> Option<(Programs, Network, Libraries)> {
    uiw_interop::require("stdbuf")?;
    on_two_hosts(programs()?)
}

/// Returns a command whose output is flushed line by line.
fn line_by_line(libraries: &Libraries, persona: &str, program: &[&str]) -> Command {
    let options = ["--require", "--json", "--persona", persona];
    isolated(libraries, &options, &[&["stdbuf", "-oL"], program].concat())
}

/// Returns the number after `listening on port `.
fn port_of(server: &mut Running) -> String {
    server.wait_saying("listening on port ");
    let said = server.said();
    let port = said.split_once("listening on port ").and_then(|(_, rest)| rest.split('.').next());
    port.expect("a port").to_owned()
}

/// Example 01: each end sends a message of 1024 bytes and prints the message that it received.
///
/// A thread of the server prints the message when it gets the completion, and another thread frees
/// the connection when the client disconnects. If the second thread is faster, the server prints
/// nothing. The server therefore has to print the message of at least one of several clients.
#[test]
fn client_and_server_exchange_messages() {
    let Some((programs, network, libraries)) = programs_on_two_hosts() else { return };
    let of = |name: &str| programs.path(&format!("01_basic-client-server/{name}"));
    let address = network.server_address().to_string();
    for persona in PERSONAS {
        let server = line_by_line(&libraries, persona, &[&of("server")]);
        let mut server = Running::start(network.server(server));
        let port = port_of(&mut server);
        for _ in 0..5 {
            let client = line_by_line(&libraries, persona, &[&of("client"), &address, &port]);
            let client = Running::start(network.client(client)).end();
            let said = "received message: message from passive/server side with pid ";
            assert_eq!(client.well().count(said), 1, "{client:?}");
            let report = report(&client);
            let moved = (number(&report, "bytes_sent"), number(&report, "bytes_received"));
            assert_eq!(moved, (1024, 1024), "{report}");
        }
        server.wait_saying("received message: message from active/client side with pid ");
        // The server never exits by itself.
        let server = server.stop();
        assert_eq!(server.count("IBV_WC_SUCCESS"), 0, "{server:?}");
    }
}

/// Example 02: each end writes its message to the other's memory, or reads it from there, and
/// prints the message that it finds.
///
/// A thread of the program prints the message when it gets the completion, and another thread frees
/// the connection when the other end disconnects. If the second thread is faster, the program
/// prints nothing. Therefore at least one of several runs has to print the message, and every run
/// has to end without an error and without a failed completion.
#[test]
fn messages_are_written_and_read() {
    let Some((programs, network, libraries)) = programs_on_two_hosts() else { return };
    let of = |name: &str| programs.path(&format!("02_read-write/{name}"));
    let address = network.server_address().to_string();
    for persona in PERSONAS {
        for mode in ["write", "read"] {
            let mut said = [0, 0];
            for _ in 0..5 {
                let server = line_by_line(&libraries, persona, &[&of("rdma-server"), mode]);
                let mut server = Running::start(network.server(server));
                let port = port_of(&mut server);
                let client =
                    line_by_line(&libraries, persona, &[&of("rdma-client"), mode, &address, &port]);
                let client = Running::start(network.client(client)).end();
                server.wait_saying("peer disconnected.");
                let server = server.stop();
                client.well();
                for ((end, other), said) in
                    [(&client, "passive/server"), (&server, "active/client")]
                        .into_iter()
                        .zip(&mut said)
                {
                    assert_eq!(end.count("IBV_WC_SUCCESS"), 0, "{end:?}");
                    *said +=
                        end.count(&format!("remote buffer: message from {other} side with pid "));
                }
                let report = report(&client);
                let moved = &report["with_others"][mode];
                for way in ["sent", "received"] {
                    assert_eq!(moved[way]["bytes"], 1024, "{report}");
                }
            }
            assert!(said.iter().all(|said| *said > 0), "{persona} {mode}: {said:?} of 5");
        }
    }
}

/// Example 03: files from zero bytes to several chunks of 10 MiB, each chunk sent by a Write with
/// immediate data, arrive unchanged at the server.
#[test]
fn files_identical_at_server() {
    let Some((programs, network, libraries)) = programs_on_two_hosts() else { return };
    let of = |name: &str| programs.path(&format!("03_file-transfer/rdma-file-transfer/{name}"));
    let address = network.server_address().to_string();
    for persona in PERSONAS {
        let [from, to] =
            ["from", "to"].map(|end| libraries.folder().join(format!("{persona}-{end}")));
        fs::create_dir(&from).unwrap();
        fs::create_dir(&to).unwrap();
        let mut server = line_by_line(&libraries, persona, &[&of("server")]);
        server.current_dir(&to);
        let mut server = Running::start(network.server(server));
        server.wait_listening(FILES_PORT);
        for len in [0, 1, 10 << 20, (25 << 20) + 7] {
            let name = format!("file-{len}");
            let bytes = noise(len);
            fs::write(from.join(&name), &bytes).unwrap();
            let file = from.join(&name);
            let client = line_by_line(
                &libraries,
                persona,
                &[&of("client"), &address, file.to_str().unwrap()],
            );
            let client = Running::start(network.client(client)).end();
            assert_eq!(client.well().count("received DONE, disconnecting"), 1, "{client:?}");
            server.wait_saying(&format!("finished transferring {name}\n"));
            assert!(fs::read(to.join(&name)).unwrap() == bytes, "{persona}: {name} differs");
            // The client sends the file name first, including its NUL.
            let report = report(&client);
            let written = (len + name.len() + 1) as u64;
            assert_eq!(report["with_others"]["write"]["sent"]["bytes"], written, "{report}");
        }
        drop(server.stop());
    }
}

#[test]
fn report_counters_and_capture_agree() {
    let Some((programs, network, libraries)) = programs_on_two_hosts() else { return };
    let Some(proof) = Proof::begin(&libraries, &network) else { return };
    let of = |name: &str| programs.path(&format!("03_file-transfer/rdma-file-transfer/{name}"));
    let [file, to] = ["file", "to"].map(|name| libraries.folder().join(name));
    let bytes = noise(25 << 20);
    fs::write(&file, &bytes).unwrap();
    fs::create_dir(&to).unwrap();
    let mut server = line_by_line(&libraries, "iwarp", &[&of("server")]);
    server.current_dir(&to);
    let mut server = Running::start(network.server(server));
    server.wait_listening(FILES_PORT);
    let address = network.server_address().to_string();
    let client =
        proof.client(&options("iwarp"), &[&of("client"), &address, file.to_str().unwrap()]);
    let client = Running::start(client).end();
    server.wait_saying("finished transferring file\n");
    drop(server.stop());
    assert!(fs::read(to.join("file")).unwrap() == bytes, "the file differs");
    proof.holds(&client, bytes.len() as u64, None, 0);
}

//! Tests UCX as packaged by Debian, without settings: between two hosts that share only a network,
//! it transfers its bytes over uiw's RC queue pairs.

use crate::lossy::LossyPath;
use crate::proof::Proof;
use crate::reported::{is_reliable, isolated, number, reliable, report, unreliable};
use crate::wire::Capture;
use serde_json::Value;
use std::path::{Path, PathBuf};
use uiw_interop::stock::{Libraries, Network, ProcessEnd, Running, compile, free_port};

/// Maximum number of bytes that the ends of `ucx_perftest` exchange over TCP: addresses, the start
/// of a test, and results.
const OWN_BYTES: u64 = 16 << 10;

/// Runs both ends of `ucx_perftest`, which exchange addresses over a TCP port. Returns the ended
/// processes and the port.
fn perftest(
    libraries: &Libraries,
    network: &Network,
    options: &[&str],
    test: &[&str],
) -> ([ProcessEnd; 2], u16) {
    let (port, address) = (free_port(), network.server_address().to_string());
    let number = port.to_string();
    let program = ["ucx_perftest", "-p", &number];
    let mut server = Running::start(network.server(isolated(libraries, options, &program)));
    server.wait_listening(port);
    let client = [&program[..], test, &[&address]].concat();
    let client = Running::start(network.client(isolated(libraries, options, &client))).end();
    ([server.end(), client], port)
}

/// Tests of `ucx_perftest` with the bytes per message and the number of messages.
const TESTS: &[(&str, u64, u64)] = &[
    ("tag_lat", 8, 5_000),
    ("tag_lat", 8_192, 1_000),
    ("tag_bw", 65_536, 2_000),
    ("tag_bw", 1 << 20, 100),
    ("ucp_put_lat", 8, 5_000),
    ("ucp_put_bw", 65_536, 2_000),
    ("ucp_get", 8, 5_000),
    ("ucp_get", 65_536, 2_000),
    ("ucp_am_lat", 1_024, 2_000),
    ("ucp_am_bw", 65_536, 2_000),
];

fn exchanges_addresses(persona: &str) {
    let Some(_) = uiw_interop::require("ucx_perftest") else { return };
    let (Some(_), Some(network)) = (uiw_interop::require("unshare"), Network::veth()) else {
        return;
    };
    let libraries = Libraries::get();
    let Some(capture) = Capture::of_ends(&libraries, &network) else { return };
    let options = ["--require", "--json", "--sysfs", "--persona", persona];
    let (mut counted, mut ports) = (0, Vec::new());
    for (test, size, count) in TESTS {
        let args = ["-t", test, "-s", &size.to_string(), "-n", &count.to_string(), "-w", "10"];
        let (ends, port) = perftest(&libraries, &network, &options, &args);
        for end in &ends {
            assert_eq!(end.well().count("ERROR"), 0, "{end:?}");
            is_reliable(&report(end), size * count);
        }
        counted += reliable(&report(&ends[1]));
        ports.push(port);
    }
    let passed = capture.end();
    let alone =
        passed.is_uiws_but_for(|end| ports.contains(&end.port()), OWN_BYTES * TESTS.len() as u64);
    assert_eq!(alone, Ok(()));
    // The bytes of uiw's connections in the capture include all bytes that the queue pairs count.
    let moved = passed.uiws_tcp();
    assert!(counted <= moved && passed.uiws_datagrams() > 0, "{counted} in {moved} bytes");
}

#[test]
fn perftest_rc_roce() {
    exchanges_addresses("roce");
}

#[test]
fn perftest_rc_ib() {
    exchanges_addresses("ib");
}

/// UCT's own tests, which use only the transport without the protocols above it, with the message
/// size and the number of messages. `get` has no short form.
const TRANSPORT_TESTS: &[(&str, &[&str], u64, u64)] = &[
    ("am_lat", &["-D", "short"], 8, 2_000),
    ("am_lat", &["-D", "bcopy"], 4_096, 2_000),
    ("am_bw", &["-D", "zcopy"], 4_096, 2_000),
    ("put_lat", &["-D", "short"], 8, 200),
    ("put_bw", &["-D", "short"], 8, 2_000),
    ("put_bw", &["-D", "zcopy"], 65_536, 500),
    ("get", &["-D", "bcopy"], 4_096, 1_000),
    ("get", &["-D", "zcopy"], 65_536, 500),
    ("fadd", &[], 8, 200),
    ("cswap", &[], 8, 200),
];

#[test]
fn transport_perftest_rc() {
    let Some(_) = uiw_interop::require("ucx_perftest") else { return };
    let (Some(_), Some(network)) = (uiw_interop::require("unshare"), Network::veth()) else {
        return;
    };
    let libraries = Libraries::get();
    let options = ["--require", "--json", "--persona", "roce"];
    for (test, layout, size, count) in TRANSPORT_TESTS {
        let Some(proof) = Proof::begin(&libraries, &network) else { return };
        let (size_text, count_text) = (size.to_string(), count.to_string());
        let common = [
            "-t",
            test,
            "-d",
            "uiw_veth0:1",
            "-x",
            "rc_verbs",
            "-s",
            &size_text,
            "-n",
            &count_text,
        ];
        let test = [&common[..], layout, &["-w", "10"]].concat();
        let (port, address) = (free_port(), network.server_address().to_string());
        let number = port.to_string();
        let program = ["ucx_perftest", "-p", &number];
        let server = isolated(&libraries, &[&options[..], &["--sysfs"]].concat(), &program);
        let mut server = Running::start(network.server(server));
        server.wait_listening(port);
        let client = proof.client(&options, &[&program[..], &test, &[&address]].concat());
        let ends = [Running::start(client).end(), server.end()];
        for end in &ends {
            assert_eq!(end.well().count("ERROR"), 0, "{end:?}");
            let report = report(end);
            assert!(reliable(&report) >= size * count, "{report}");
            // Only RC queue pairs were named, so no datagrams were used.
            assert_eq!(unreliable(&report), 0, "{report}");
        }
        proof.holds(&ends[0], size * count, Some(port), OWN_BYTES);
    }
}

/// Runs `io_demo`, which connects by rdma_cm and compares every byte. Returns the client's exit
/// code and report, and whether only uiw's traffic passed. Without dumpcap, returns `None`.
#[track_caller]
fn io_demo(
    libraries: &Libraries,
    network: &Network,
    options: &[&str],
    api: &[&str],
) -> Option<(ProcessEnd, Result<(), String>)> {
    let capture = Capture::of_ends(libraries, network)?;
    let (port, address) = (free_port(), network.server_address().to_string());
    let number = port.to_string();
    let common = [&["io_demo", "-p", &number, "-q", "-d", "1000:200000"], api].concat();
    let mut server = Running::start(network.server(isolated(libraries, options, &common)));
    server.wait_listening(port);
    let requests = ["-o", "read,write", "-i", "1000", &address];
    let ended = Running::start(network.client(isolated(
        libraries,
        options,
        &[&common[..], &requests].concat(),
    )))
    .end();
    // The server never exits by itself.
    let server = server.stop();
    assert_eq!(server.count("Assertion") + server.count("ERROR"), 0, "{server:?}");
    Some((ended, capture.end().is_uiws_but_for(|_| false, 0)))
}

fn connects_by_rdma_cm(persona: &str) {
    let Some(_) = uiw_interop::require("io_demo") else { return };
    let (Some(_), Some(network)) = (uiw_interop::require("unshare"), Network::veth()) else {
        return;
    };
    let libraries = Libraries::get();
    // UCX listens on the same port number over TCP.
    let options =
        ["--require", "--json", "--sysfs", "--port-offset", "-5000", "--persona", persona];
    for api in [&[][..], &["-A"]] {
        let Some((ended, alone)) = io_demo(&libraries, &network, &options, api) else { return };
        assert_eq!(alone, Ok(()), "{ended:?}");
        assert_eq!(ended.well().count("Client exit with status 'OK'"), 1, "{ended:?}");
        // The client transfers a thousand messages of 100,500 bytes on average.
        is_reliable(&report(&ended), 90_000_000);
    }
}

#[test]
fn io_demo_rdma_cm_roce() {
    connects_by_rdma_cm("roce");
}

#[test]
fn io_demo_rdma_cm_ib() {
    connects_by_rdma_cm("ib");
}

/// Without device nodes UCX finds no device. It succeeds on TCP, and the report and the capture
/// show this.
#[test]
fn hidden_devices_are_noticed() {
    let Some(_) = uiw_interop::require("ucx_perftest") else { return };
    let (Some(_), Some(network)) = (uiw_interop::require("unshare"), Network::veth()) else {
        return;
    };
    let libraries = Libraries::get();
    let options = ["--require", "--json", "--port-offset", "-5000", "--persona", "roce"];
    let test = ["-t", "tag_bw", "-s", "65536", "-n", "100"];
    let Some(capture) = Capture::of_ends(&libraries, &network) else { return };
    let (ends, port) = perftest(&libraries, &network, &options, &test);
    let alone = capture.end().is_uiws_but_for(|end| end.port() == port, OWN_BYTES);
    assert!(
        alone.is_err_and(|said| said.contains(" bytes between ")),
        "the capture shows TCP of UCX's own"
    );
    for end in ends {
        let report = report(&end);
        assert_eq!(
            (end.code, number(&report, "exit_code"), reliable(&report)),
            (125, 0, 0),
            "{end:?}"
        );
    }
    let Some((ended, alone)) = io_demo(&libraries, &network, &options, &[]) else { return };
    assert_eq!((ended.code, number(&report(&ended), "exit_code")), (125, 0), "{ended:?}");
    assert!(
        alone.is_err_and(|said| said.contains(" bytes between ")),
        "the capture shows TCP of UCX's own"
    );
}

/// Compiles a program of `tests/stock/c` that uses UCX's API. Without the headers, returns `None`
/// and counts the test as skipped.
fn program(libraries: &Libraries, name: &str) -> Option<PathBuf> {
    if !Path::new("/usr/include/ucp/api/ucp.h").exists() {
        uiw_interop::skip("libucx-dev");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c").join(name);
    compile(libraries, &source, &["-O2", "-Wall", "-Wextra", "-Werror", "-lucp", "-lucs"])
}

/// Way in which the ends of `ucx_memory` find each other.
enum WireUp {
    RdmaCm,
    /// Through files that contain the addresses of their workers.
    Addresses,
}

/// Number of bytes that `ucx_memory` puts, and that it gets: twice the sum of all lengths.
const PUT: u64 = 2
    * (1 + 7
        + 8
        + 63
        + 64
        + 255
        + 1_024
        + 4_095
        + 4_096
        + 8_191
        + 65_536
        + 65_537
        + 100_000
        + (1 << 20)
        + (1 << 20)
        + 13
        + (3 << 20));

/// One end puts data into the memory of the other one and gets data from it, in lengths from one
/// byte to 3 MiB. Both ends compare every byte, including those between the places.
fn puts_and_gets(persona: &str, wire_up: WireUp) {
    let (Some(_), Some(network)) = (uiw_interop::require("unshare"), Network::veth()) else {
        return;
    };
    let libraries = Libraries::get();
    let Some(program) = program(&libraries, "ucx_memory.c") else { return };
    let program = program.to_str().expect("a path of text");
    let (port, address) = (free_port().to_string(), network.server_address().to_string());
    // This directory belongs to this test only.
    let files = libraries.folder().to_str().expect("a path of text");
    let (owner, user) = match wire_up {
        WireUp::RdmaCm => (vec![program, &port], vec![program, &port, &address]),
        WireUp::Addresses => (vec![program, files, "owner"], vec![program, files, "user"]),
    };
    let Some(proof) = Proof::begin(&libraries, &network) else { return };
    let options = ["--require", "--json", "--port-offset", "-5000", "--persona", persona];
    let owner = isolated(&libraries, &[&options[..], &["--sysfs"]].concat(), &owner);
    let mut server = Running::start(network.server(owner));
    server.wait_saying("listening");
    let client = Running::start(proof.client(&options, &user)).end();
    let server = server.end();
    for (end, verb) in [(&server, "put"), (&client, "got")] {
        assert_eq!(
            end.well().count(&format!("verified {PUT} bytes that were {verb}")),
            1,
            "{end:?}"
        );
        is_reliable(&report(end), 2 * PUT);
    }
    proof.holds(&client, 2 * PUT, None, 0);
}

#[test]
fn put_get_rdma_cm_roce() {
    puts_and_gets("roce", WireUp::RdmaCm);
}

#[test]
fn put_get_rdma_cm_ib() {
    puts_and_gets("ib", WireUp::RdmaCm);
}

#[test]
fn put_get_exchanged_addresses_roce() {
    puts_and_gets("roce", WireUp::Addresses);
}

#[test]
fn put_get_exchanged_addresses_ib() {
    puts_and_gets("ib", WireUp::Addresses);
}

/// Pair of programs that use UCX's API and connect by rdma_cm; the listening end sends first.
struct UcxTransfer<'a> {
    persona: &'a str,
    /// Transports that UCX may use; `None` leaves the choice to UCX.
    transports: Option<&'a str>,
    mebibytes: u32,
    /// Pauses of the connecting end in milliseconds, until it has received the first message.
    pause: u32,
}

impl UcxTransfer<'_> {
    /// Returns the reports of both ends, the server's first, after both have printed the same hash.
    /// If a program is missing, returns `None` and counts the test as skipped.
    #[track_caller]
    fn run(&self, network: &Network) -> Option<[Value; 2]> {
        uiw_interop::require("unshare")?;
        uiw_interop::require("dumpcap")?;
        let libraries = Libraries::get();
        let program = program(&libraries, "ucx.c")?;
        let program = program.to_str().expect("a path of text");
        let options =
            ["--require", "--json", "--sysfs", "--port-offset", "-5000", "--persona", self.persona];
        let port = free_port().to_string();
        let command = |args: &[&str]| {
            let mut command = isolated(&libraries, &options, &[&[program], args].concat());
            if let Some(transports) = self.transports {
                command.env("UCX_TLS", transports);
            }
            command
        };
        let capture = Capture::of_ends(&libraries, network)?;
        let mut server = Running::start(network.server(command(&[&port])));
        server.wait_saying("listening");
        let (address, mebibytes) =
            (network.server_address().to_string(), self.mebibytes.to_string());
        let client = command(&[&port, &address, &mebibytes, &self.pause.to_string()]);
        let client = Running::start(network.client(client)).end();
        let server = server.end();
        let hash_of = |end: &ProcessEnd, verb: &str| {
            let text = format!("{verb} {mebibytes} MiB, hash ");
            let line = end.well().said.lines().find_map(|line| line.strip_prefix(&text));
            line.unwrap_or_else(|| panic!("{end:?}")).to_owned()
        };
        assert_eq!(hash_of(&client, "sent"), hash_of(&server, "received"));
        assert_eq!(capture.end().is_uiws_but_for(|_| false, 0), Ok(()));
        Some([server, client].map(|end| report(&end)))
    }
}

/// UCX fails an assertion if the listening end sends before the connecting end has called
/// `rdma_establish`.
#[test]
fn listener_may_speak_first() {
    for persona in ["roce", "ib"] {
        for transports in [Some("ud_verbs,self"), None] {
            let Some(network) = Network::veth() else { return };
            let transfer = UcxTransfer { persona, transports, mebibytes: 4, pause: 100 };
            let Some(reports) = transfer.run(&network) else { return };
            for report in reports {
                match transports {
                    Some(_) => assert!(
                        unreliable(&report) >= 4 << 20 && reliable(&report) == 0,
                        "{report}"
                    ),
                    None => is_reliable(&report, 4 << 20),
                }
            }
        }
    }
}

/// UCX uses only datagrams on a path that loses, duplicates and reorders them.
#[test]
fn rdma_cm_datagrams_survive_lossy_path() {
    let Some(network) = Network::path() else { return };
    let wan = LossyPath::start(&network);
    let transfer =
        UcxTransfer { persona: "roce", transports: Some("ud_verbs,self"), mebibytes: 16, pause: 0 };
    let Some(reports) = transfer.run(&network) else { return };
    for report in &reports {
        assert!(unreliable(report) >= 16 << 20 && reliable(report) == 0, "{report}");
    }
    wan.has_lost_datagrams(&reports);
}

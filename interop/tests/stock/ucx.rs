//! UCX as Debian has it, without a setting of its own: between two hosts that share a network alone, its bytes are on our RC queue pairs.

use crate::lossy::LossyPath;
use crate::reported::{is_reliable, isolated, number, reliable, report, unreliable};
use serde_json::Value;
use std::fs;
use std::path::Path;
use uiw_interop::stock::{Ended, Libraries, Network, Running, compile, free_port};

/// Bytes that went through the client's interface so far, both directions, all headers included.
fn on_the_wire(network: &Network) -> u64 {
    let table =
        network.inside_client(|| fs::read_to_string("/proc/thread-self/net/dev")).expect("its interfaces");
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix("veth0:")).expect("veth0");
    let number = |at| line.split_whitespace().nth(at).and_then(|word| word.parse::<u64>().ok());
    number(0).zip(number(8)).map(|(received, sent)| received + sent).expect("numbers")
}

/// Both ends of `ucx_perftest`, which exchange addresses over TCP: what they said.
fn perftest(libraries: &Libraries, network: &Network, options: &[&str], test: &[&str]) -> [Ended; 2] {
    let (port, address) = (free_port(), network.server_address().to_string());
    let number = port.to_string();
    let program = ["ucx_perftest", "-p", &number];
    let mut server = Running::start(network.server(isolated(libraries, options, &program)));
    server.wait_listening(port);
    let client = [&program[..], test, &[&address]].concat();
    let client = Running::start(network.client(isolated(libraries, options, &client))).end();
    [server.end(), client]
}

/// `ucx_perftest`'s tests with the bytes that a message has and how often it is sent.
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
    let (Some(_), Some(network)) = (uiw_interop::require("unshare"), Network::veth()) else { return };
    let libraries = Libraries::get();
    let options = ["--require", "--json", "--sysfs", "--persona", persona];
    for (test, size, count) in TESTS {
        let before = on_the_wire(&network);
        let args = ["-t", test, "-s", &size.to_string(), "-n", &count.to_string(), "-w", "10"];
        let ends = perftest(&libraries, &network, &options, &args);
        for end in &ends {
            assert_eq!(end.well().count("ERROR"), 0, "{end:?}");
            is_reliable(&report(end), size * count);
        }
        let moved = on_the_wire(&network) - before;
        let counted = reliable(&report(&ends[1]));
        // Larger messages leave little to headers: what the kernel counts has no room for payload on another transport.
        if *size >= 65_536 {
            assert!(counted as f64 >= 0.9 * moved as f64, "{test}: {counted} of {moved} bytes on the wire");
        }
    }
}

#[test]
fn perftest_is_on_rc_queue_pairs_of_persona_roce() {
    exchanges_addresses("roce");
}

#[test]
fn perftest_is_on_rc_queue_pairs_of_persona_ib() {
    exchanges_addresses("ib");
}

/// `io_demo`, which connects by rdma_cm and compares every byte: a client's exit code and report.
fn io_demo(libraries: &Libraries, network: &Network, options: &[&str], api: &[&str]) -> Ended {
    let (port, address) = (free_port(), network.server_address().to_string());
    let number = port.to_string();
    let common = [&["io_demo", "-p", &number, "-q", "-d", "1000:200000"], api].concat();
    let mut server = Running::start(network.server(isolated(libraries, options, &common)));
    server.wait_listening(port);
    let requests = ["-o", "read,write", "-i", "1000", &address];
    let ended =
        Running::start(network.client(isolated(libraries, options, &[&common[..], &requests].concat())))
            .end();
    // It never ends by itself.
    let server = server.stop();
    assert_eq!(server.count("Assertion") + server.count("ERROR"), 0, "{server:?}");
    ended
}

fn connects_by_rdma_cm(persona: &str) {
    let Some(_) = uiw_interop::require("io_demo") else { return };
    let (Some(_), Some(network)) = (uiw_interop::require("unshare"), Network::veth()) else { return };
    let libraries = Libraries::get();
    // UCX listens on the same number over TCP.
    let options = ["--require", "--json", "--sysfs", "--port-offset", "-5000", "--persona", persona];
    for api in [&[][..], &["-A"]] {
        let ended = io_demo(&libraries, &network, &options, api);
        assert_eq!(ended.well().count("Client exit with status 'OK'"), 1, "{ended:?}");
        // A thousand messages of 100,500 bytes on average.
        is_reliable(&report(&ended), 90_000_000);
    }
}

#[test]
fn io_demo_connects_by_rdma_cm_on_persona_roce() {
    connects_by_rdma_cm("roce");
}

#[test]
fn io_demo_connects_by_rdma_cm_on_persona_ib() {
    connects_by_rdma_cm("ib");
}

/// Without device nodes UCX finds no device: it succeeds on TCP, and the report says so.
#[test]
fn hidden_devices_are_noticed() {
    let Some(_) = uiw_interop::require("ucx_perftest") else { return };
    let (Some(_), Some(network)) = (uiw_interop::require("unshare"), Network::veth()) else { return };
    let libraries = Libraries::get();
    let options = ["--require", "--json", "--port-offset", "-5000", "--persona", "roce"];
    for end in perftest(&libraries, &network, &options, &["-t", "tag_bw", "-s", "65536", "-n", "100"]) {
        let report = report(&end);
        assert_eq!((end.code, number(&report, "exit_code"), reliable(&report)), (125, 0, 0), "{end:?}");
    }
    let ended = io_demo(&libraries, &network, &options, &[]);
    assert_eq!((ended.code, number(&report(&ended), "exit_code")), (125, 0), "{ended:?}");
}

/// A pair of programs that UCX's API is used by, which connect by rdma_cm; the one that listens speaks first.
struct Transfer<'a> {
    persona: &'a str,
    /// Transports that UCX may use: UCX's own choice where there are none.
    transports: Option<&'a str>,
    mebibytes: u32,
    /// Milliseconds for which the one that connects does nothing at a time, until it hears of the other one.
    pause: u32,
}

impl Transfer<'_> {
    /// The ends' reports, the server's first, when both have said the same hash. Nothing where a program is missing; the test is noted as
    /// skipped then.
    #[track_caller]
    fn run(&self, network: &Network) -> Option<[Value; 2]> {
        uiw_interop::require("unshare")?;
        if !Path::new("/usr/include/ucp/api/ucp.h").exists() {
            uiw_interop::skip("libucx-dev");
            return None;
        }
        let libraries = Libraries::get();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c/ucx.c");
        let flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-lucp", "-lucs"];
        let program = compile(&libraries, &source, &flags)?;
        let program = program.to_str().expect("a path of text");
        let options = ["--require", "--json", "--sysfs", "--port-offset", "-5000", "--persona", self.persona];
        let port = free_port().to_string();
        let command = |args: &[&str]| {
            let mut command = isolated(&libraries, &options, &[&[program], args].concat());
            if let Some(transports) = self.transports {
                command.env("UCX_TLS", transports);
            }
            command
        };
        let mut server = Running::start(network.server(command(&[&port])));
        server.wait_saying("listening");
        let (address, mebibytes) = (network.server_address().to_string(), self.mebibytes.to_string());
        let client = command(&[&port, &address, &mebibytes, &self.pause.to_string()]);
        let client = Running::start(network.client(client)).end();
        let server = server.end();
        let hash_of = |end: &Ended, verb: &str| {
            let text = format!("{verb} {mebibytes} MiB, hash ");
            let line = end.well().said.lines().find_map(|line| line.strip_prefix(&text));
            line.unwrap_or_else(|| panic!("{end:?}")).to_owned()
        };
        assert_eq!(hash_of(&client, "sent"), hash_of(&server, "received"));
        Some([server, client].map(|end| report(&end)))
    }
}

/// UCX fails an assertion when the one that listens sends before the one that connects has called `rdma_establish`.
#[test]
fn the_one_that_listens_may_speak_first() {
    for persona in ["roce", "ib"] {
        for transports in [Some("ud_verbs,self"), None] {
            let Some(network) = Network::veth() else { return };
            let transfer = Transfer { persona, transports, mebibytes: 4, pause: 100 };
            let Some(reports) = transfer.run(&network) else { return };
            for report in reports {
                match transports {
                    Some(_) => assert!(unreliable(&report) >= 4 << 20 && reliable(&report) == 0, "{report}"),
                    None => is_reliable(&report, 4 << 20),
                }
            }
        }
    }
}

/// Datagrams alone on a path that loses, doubles and reorders.
#[test]
fn datagrams_of_rdma_cm_survive_a_lossy_path() {
    let Some(network) = Network::path() else { return };
    let wan = LossyPath::start(&network);
    let transfer = Transfer { persona: "roce", transports: Some("ud_verbs,self"), mebibytes: 16, pause: 0 };
    let Some(reports) = transfer.run(&network) else { return };
    for report in &reports {
        assert!(unreliable(report) >= 16 << 20 && reliable(report) == 0, "{report}");
    }
    wan.has_lost_datagrams(&reports);
}

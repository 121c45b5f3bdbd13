//! Tests the Python wheel of Mooncake: `cargo xtask interop mooncake` installs it and runs these
//! tests.

use crate::reported::{is_reliable, isolated, number, reliable, report};
use crate::wire::{Capture, Passed};
use std::path::{Path, PathBuf};
use uiw_interop::stock::{Hosts, Libraries, Network, ProcessEnd, Running, User, free_port};

/// Variable that names a Python interpreter with the wheel.
const PYTHON: &str = "UIW_MOONCAKE_PYTHON";

/// Returns the Python interpreter with the wheel and the script of the programs. If the wheel is
/// missing, returns `None` and counts the test as skipped.
#[track_caller]
fn wheel() -> Option<(String, String)> {
    let Ok(python) = std::env::var(PYTHON) else {
        uiw_interop::skip("Mooncake's wheel: cargo xtask interop mooncake");
        return None;
    };
    uiw_interop::require("unshare")?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/mooncake_peer.py");
    Some((python, script.to_str().expect("a path of text").to_owned()))
}

/// Options of `uiw run`: only the device nodes and the RoCE device that Mooncake looks for.
const OPTIONS: [&str; 5] = ["--require", "--json", "--sysfs", "--persona", "roce"];

/// Like [`OPTIONS`], but without the device nodes.
const HIDDEN: [&str; 4] = ["--require", "--json", "--persona", "roce"];

/// The exit code of a program that was killed.
const KILLED: i32 = 128 + 9;

/// Programs of a test after they have ended.
struct EndedPrograms {
    ends: Vec<ProcessEnd>,
    passed: Passed,
    /// Ports used by the programs and the master to meet.
    ports: Vec<u16>,
}

impl EndedPrograms {
    /// Returns an error if bytes passed that are neither uiw's nor messages between the programs
    /// and their wheels, or if the latter exceed `limit` bytes.
    fn is_uiws(&self, limit: u64) -> Result<(), String> {
        let ports = || self.ports.iter().copied().chain(self.ends.iter().map(control_port));
        self.passed.is_uiws_but_for(|end| ports().any(|port| port == end.port()), limit)
    }

    /// Asserts that each program succeeded on TCP alone, except for one that was killed if there
    /// are readers, and that the reports and the capture show this.
    #[track_caller]
    fn are_on_tcp(&self, limit: u64) {
        let said = self.is_uiws(limit).expect_err("the capture shows TCP of Mooncake's own");
        assert!(said.contains(" bytes between "), "{said}");
        for end in &self.ends {
            let report = report(end);
            // The exit code of a failed program has priority over the code for a missing transfer.
            let code = if number(&report, "exit_code") == 0 { 125 } else { KILLED };
            assert_eq!((end.code, reliable(&report)), (code, 0), "{end:?}");
        }
    }
}

/// Returns the port on which the wheel of a program answers other wheels over TCP. The wheel
/// chooses the port and logs it.
fn control_port(ended: &ProcessEnd) -> u16 {
    let lines =
        ended.said.lines().filter(|line| line.contains("using P2P handshake, listening on "));
    let mut ports = lines.filter_map(|line| line.rsplit(':').next()?.trim().parse().ok());
    ports.next().unwrap_or_else(|| panic!("{ended:?}"))
}

/// Number of bytes that the initiator writes and reads.
const PAYLOAD: u64 = 2 * 8 * (8 << 20);

/// Upper limit of the bytes exchanged between the engines and the programs: memory locations,
/// addresses of queue pairs, and signals to continue.
const OWN_BYTES: u64 = 16 << 10;

/// Runs engines on two hosts under `uiw run` with `options`: one writes to the other's memory and
/// reads from it, and both compare the data. If something is missing, returns `None` and counts the
/// test as skipped.
#[track_caller]
fn engines(options: &[&str]) -> Option<EndedPrograms> {
    let (python, script) = wheel()?;
    let network = Network::veth()?;
    let libraries = Libraries::get();
    let number = free_port();
    let (port, own, other) = (
        number.to_string(),
        network.server_address().to_string(),
        network.client_address().to_string(),
    );
    let capture = Capture::of_ends(&libraries, &network)?;
    let target = isolated(&libraries, options, &[&python, &script, "target", &own, &port]);
    let target = Running::start(network.server(target));
    let initiator =
        isolated(&libraries, options, &[&python, &script, "initiator", &other, &own, &port]);
    let initiator = Running::start(network.client(initiator)).end();
    assert_eq!(
        initiator.count("8 writes and reads of 8388608 bytes are equal"),
        1,
        "{initiator:?}\n{:?}",
        target.said()
    );
    Some(EndedPrograms {
        ends: vec![target.end(), initiator],
        passed: capture.end(),
        ports: vec![number],
    })
}

#[test]
fn transfer_engine_writes_and_reads() {
    let Some(engines) = engines(&OPTIONS) else { return };
    for end in &engines.ends {
        is_reliable(&report(end.well()), PAYLOAD);
    }
    assert_eq!(engines.is_uiws(OWN_BYTES), Ok(()));
    // The FPDUs have 64,000 bytes, so their headers and CRCs are far less than the permitted
    // difference of 1 % between the counters of the queue pairs and the capture.
    let (counted, moved) = (reliable(&report(&engines.ends[1])), engines.passed.uiws_tcp());
    assert!(counted <= moved && moved - counted <= counted / 100, "{counted} in {moved} bytes");
}

/// Without device nodes the wheel finds no device and succeeds on TCP.
#[test]
fn hidden_devices_of_engines_are_noticed() {
    let Some(engines) = engines(&HIDDEN) else { return };
    engines.are_on_tcp(OWN_BYTES);
}

/// Runs a store of three programs on hosts of their own, the writer first; two of them read each
/// object. One program is killed: the objects held by the others can still be read, and new objects
/// can be stored. If something is missing, returns `None` and counts the test as skipped.
#[track_caller]
fn store(options: &[&str]) -> Option<EndedPrograms> {
    let (python, script) = wheel()?;
    let hosts = Hosts::new(3)?;
    let libraries = Libraries::get();
    let port = free_port();
    let mut master =
        libraries.command(User::Same, PathBuf::from(&python).with_file_name("mooncake_master"));
    master.args([
        &format!("--rpc_port={port}"),
        &format!("--metrics_port={}", free_port()),
        // Soon after a program has ended, its memory is no longer allocated.
        "--client_ttl=5",
    ]);
    let mut master = Running::start(hosts.at_switch(master));
    master.wait_listening(port);
    let capture = Capture::of_hosts(&libraries, &hosts)?;
    let master_address = format!("{}:{port}", hosts.switch_address());
    let places: Vec<_> = hosts.places().map(|(address, _)| address).collect();
    let meeting = free_port();
    let number = meeting.to_string();
    let texts: Vec<_> = places.iter().map(ToString::to_string).collect();
    let start = |host: usize, role: &[&str]| {
        let words = [
            &[python.as_str(), &script, role[0], &texts[host], &master_address],
            &role[1..],
            &[&number],
        ];
        Running::start(hosts.at(places[host], isolated(&libraries, options, &words.concat())))
    };
    let writer = start(0, &["writer"]);
    let readers = [1, 2].map(|host| start(host, &["reader", &texts[0]]));
    let writer = writer.end();
    let readers = readers.map(Running::end);
    assert_eq!(writer.count("1000 objects are equal"), 1, "{writer:?}\n{readers:?}");
    let killed = readers.iter().filter(|reader| reader.code == KILLED).count();
    assert_eq!(killed, 1, "{readers:?}");
    let ends = [writer].into_iter().chain(readers).collect();
    Some(EndedPrograms { ends, passed: capture.end(), ports: vec![port, meeting] })
}

/// Objects are 33 KiB on average, and about two of three are in another program's memory.
const STORED: u64 = 16 << 20;

/// Upper limit of the bytes exchanged between the programs of a store, their wheels and the master:
/// a few hundred bytes per object, independent of its size.
const STORE_BYTES: u64 = 4 << 20;

#[test]
fn store_outlives_killed_program() {
    let Some(store) = store(&OPTIONS) else { return };
    store.ends[0].well();
    for end in &store.ends {
        is_reliable(&report(end), STORED);
    }
    assert_eq!(store.is_uiws(STORE_BYTES), Ok(()));
    // Two programs count each byte, and the capture contains it twice.
    let counted = store.ends.iter().map(|end| reliable(&report(end))).sum::<u64>();
    let moved = store.passed.uiws_tcp();
    assert!(counted <= moved, "{counted} in {moved} bytes");
}

/// Like [`hidden_devices_of_engines_are_noticed`].
#[test]
fn hidden_devices_of_store_noticed() {
    let Some(store) = store(&HIDDEN) else { return };
    store.are_on_tcp(STORE_BYTES);
}

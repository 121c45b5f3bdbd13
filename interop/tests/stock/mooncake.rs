//! Mooncake's wheel: `cargo xtask interop mooncake` installs it and runs this.

use crate::reported::{is_reliable, isolated, number, reliable, report};
use crate::wire::{Capture, Passed};
use std::path::{Path, PathBuf};
use uiw_interop::stock::{Hosts, Libraries, Network, ProcessEnd, Running, User, free_port};

/// Names a Python that has the wheel.
const PYTHON: &str = "UIW_MOONCAKE_PYTHON";

/// The Python that has the wheel, and the programs' script. Nothing where the wheel is missing; the
/// test is noted as skipped then.
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

/// Without a setting for uiw but the device nodes and the RoCE device that Mooncake looks for.
const OPTIONS: [&str; 5] = ["--require", "--json", "--sysfs", "--persona", "roce"];

/// Without the device nodes.
const HIDDEN: [&str; 4] = ["--require", "--json", "--persona", "roce"];

/// The exit code of a program that was killed.
const KILLED: i32 = 128 + 9;

/// Programs that have ended.
struct EndedPrograms {
    ends: Vec<ProcessEnd>,
    passed: Passed,
    /// The ports at which the programs and the master meet.
    ports: Vec<u16>,
}

impl EndedPrograms {
    /// Asserts that no other bytes passed than uiw's, and at most `limit` bytes that the programs
    /// and their wheels say to each other.
    fn is_uiws(&self, limit: u64) -> Result<(), String> {
        let ports = || self.ports.iter().copied().chain(self.ends.iter().map(control_port));
        self.passed.is_uiws_but_for(|end| ports().any(|port| port == end.port()), limit)
    }

    /// Each has succeeded on TCP alone, but for one that was killed where there are readers; the
    /// reports and the capture say so.
    #[track_caller]
    fn are_on_tcp(&self, limit: u64) {
        let said = self.is_uiws(limit).expect_err("the capture shows TCP of Mooncake's own");
        assert!(said.contains(" bytes between "), "{said}");
        for end in &self.ends {
            let report = report(end);
            // The exit code of a program that failed wins.
            let code = if number(&report, "exit_code") == 0 { 125 } else { KILLED };
            assert_eq!((end.code, reliable(&report)), (code, 0), "{end:?}");
        }
    }
}

/// The port, of its own choice, at which the wheel of a program answers those of others over TCP.
/// It logs it.
fn control_port(ended: &ProcessEnd) -> u16 {
    let lines = ended.said.lines().filter(|line| line.contains("using P2P handshake, listening on "));
    let mut ports = lines.filter_map(|line| line.rsplit(':').next()?.trim().parse().ok());
    ports.next().unwrap_or_else(|| panic!("{ended:?}"))
}

/// Written and read by the initiator.
const PAYLOAD: u64 = 2 * 8 * (8 << 20);

/// Upper bound of the bytes between the engines and the programs: places of memory, addresses of
/// queue pairs, and when to go on.
const OWN_BYTES: u64 = 16 << 10;

/// Engines on two hosts, under `uiw run` with `options`: one writes to the other's memory and reads
/// from it, and both compare. Nothing where something is missing; the test is noted as skipped
/// then.
#[track_caller]
fn engines(options: &[&str]) -> Option<EndedPrograms> {
    let (python, script) = wheel()?;
    let network = Network::veth()?;
    let libraries = Libraries::get();
    let number = free_port();
    let (port, own, other) =
        (number.to_string(), network.server_address().to_string(), network.client_address().to_string());
    let capture = Capture::of_ends(&libraries, &network)?;
    let target = isolated(&libraries, options, &[&python, &script, "target", &own, &port]);
    let target = Running::start(network.server(target));
    let initiator = isolated(&libraries, options, &[&python, &script, "initiator", &other, &own, &port]);
    let initiator = Running::start(network.client(initiator)).end();
    assert_eq!(
        initiator.count("8 writes and reads of 8388608 bytes are equal"),
        1,
        "{initiator:?}\n{:?}",
        target.said()
    );
    Some(EndedPrograms { ends: vec![target.end(), initiator], passed: capture.end(), ports: vec![number] })
}

#[test]
fn transfer_engine_writes_and_reads() {
    let Some(engines) = engines(&OPTIONS) else { return };
    for end in &engines.ends {
        is_reliable(&report(end.well()), PAYLOAD);
    }
    assert_eq!(engines.is_uiws(OWN_BYTES), Ok(()));
    // FPDUs of 64,000 bytes: their headers and CRCs are far less than the 1 % by which the queue
    // pairs' count and the capture may differ.
    let (counted, moved) = (reliable(&report(&engines.ends[1])), engines.passed.uiws_tcp());
    assert!(counted <= moved && moved - counted <= counted / 100, "{counted} in {moved} bytes");
}

/// Without device nodes the wheel finds no device: it succeeds on TCP.
#[test]
fn hidden_devices_of_engines_are_noticed() {
    let Some(engines) = engines(&HIDDEN) else { return };
    engines.are_on_tcp(OWN_BYTES);
}

/// A store of three programs on hosts of their own, the writer first: each object is read by two of
/// them. One is killed; what the others hold is still read, and objects are stored. Nothing where
/// something is missing; the test is noted as skipped then.
#[track_caller]
fn store(options: &[&str]) -> Option<EndedPrograms> {
    let (python, script) = wheel()?;
    let hosts = Hosts::new(3)?;
    let libraries = Libraries::get();
    let port = free_port();
    let mut master = libraries.command(User::Same, PathBuf::from(&python).with_file_name("mooncake_master"));
    master.args([
        &format!("--rpc_port={port}"),
        &format!("--metrics_port={}", free_port()),
        // Soon after the end of a program its memory is given out no more.
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
        let words =
            [&[python.as_str(), &script, role[0], &texts[host], &master_address], &role[1..], &[&number]];
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

/// About two of three objects of 33 KiB on average are in another program's memory.
const STORED: u64 = 16 << 20;

/// Upper bound of the bytes between the programs of a store, their wheels and the master: a few
/// hundred bytes for each object, whatever its size.
const STORE_BYTES: u64 = 4 << 20;

#[test]
fn store_outlives_killed_program() {
    let Some(store) = store(&OPTIONS) else { return };
    store.ends[0].well();
    for end in &store.ends {
        is_reliable(&report(end), STORED);
    }
    assert_eq!(store.is_uiws(STORE_BYTES), Ok(()));
    // Each byte is counted by two programs, and is in the capture twice.
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

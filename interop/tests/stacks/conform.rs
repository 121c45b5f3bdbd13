//! Tests `uiw conform`: it must find each requirement that a scripted peer in Python violates, and
//! must not report a violation of uiw's own listener on any path.

use crate::pairings::Stack;
use crate::path::Path as WanPath;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use uiw_interop::stock::{Running, free_port, uiw};

/// Number of requirements violated in a normal run of the tests, and how many of them must be
/// found.
const DRAWN: usize = 30;
const FOUND: usize = 27;
/// Number of scripted peers that run at the same time.
const AT_A_TIME: usize = 3;
/// Number of runs against uiw itself on each path.
const RUNS: u32 = 2;
/// Environment variable, set by `cargo xtask interop conform`, that selects the complete run: every
/// requirement is violated and must be found, and uiw is tested [`RUNS_OF_WHOLE`] times per path.
const WHOLE: &str = "INTEROP_CONFORM_WHOLE";
const RUNS_OF_WHOLE: u32 = 50;

/// Exit code and verdicts of one run of `uiw conform`.
struct RunVerdicts {
    code: i32,
    said: String,
    /// Verdict and explanation for each requirement.
    of: BTreeMap<String, (String, String)>,
}

impl RunVerdicts {
    fn with(&self, verdict: &str) -> BTreeSet<&str> {
        self.of
            .iter()
            .filter(|(_, (found, _))| found == verdict)
            .map(|(id, _)| id.as_str())
            .collect()
    }

    fn broken(&self) -> String {
        let broken = self.of.iter().filter(|(_, (found, _))| found == "broken");
        broken.map(|(id, (_, what))| format!("{id}: {what}\n")).collect()
    }
}

/// Runs the command until it exits and parses its verdicts.
fn conform(command: Command) -> RunVerdicts {
    let ended = Running::start(command).end();
    let mut of = BTreeMap::new();
    for line in ended.said.lines().filter(|line| line.starts_with('{')) {
        let object: Value = serde_json::from_str(line).expect("JSON");
        if object["type"] == "requirement" {
            let text = |name: &str| object[name].as_str().expect("a text").to_owned();
            let what = format!("{}{}", object["findings"], object["reason"]);
            of.insert(text("id"), (text("verdict"), what));
        }
    }
    RunVerdicts { code: ended.code, said: ended.said, of }
}

fn asking(address: &str, options: &[&str]) -> Command {
    let mut command = Command::new(uiw());
    command.args(["conform", address, "--partner", "--json"]).args(options);
    command
}

fn peer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/conform_peer.py")
}

/// Runs `uiw conform` against the scripted peer, which violates requirement `breaks` if one is
/// given.
fn scripted(python: &Path, breaks: Option<&str>) -> RunVerdicts {
    let mut command = Command::new(python);
    command.arg(peer()).args(breaks);
    let mut running = Running::start(command);
    running.wait_saying("port ");
    let port = running.said().split_whitespace().nth(1).expect("a port").to_owned();
    // A violation may run into the time limit. A short limit can only hide findings, never invent
    // them.
    let stall = if breaks.is_some() { "2" } else { "20" };
    let verdicts =
        conform(asking(&format!("127.0.0.1:{port}"), &["--stall", stall, "--jobs", "8"]));
    let _ = running.stop();
    verdicts
}

/// Returns the requirements that can be tested from outside according to the table.
fn judged_by_the_table() -> BTreeSet<String> {
    let rows = uiw_requirements::TABLE
        .lines()
        .filter(|row| row.ends_with("\talone") || row.ends_with("\tpartner"));
    rows.map(|row| row.split('\t').next().expect("an id").to_owned()).collect()
}

/// Returns the tested commit or, without git, the source text of the scripted peer.
fn commit() -> String {
    let git =
        Command::new("git").args(["-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "HEAD"]).output();
    match git {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => fs::read_to_string(peer()).expect("the peer"),
    }
}

/// Computes the FNV-1a hash of `text`.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    })
}

/// Returns the violated requirements that `uiw conform` did not find.
fn missed(python: &Path, ids: &[String]) -> Vec<String> {
    let next = Mutex::new(ids.iter());
    let missed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let Some(id) = next.lock().expect("no thread panics").next() else { return };
                    let verdicts = scripted(python, Some(id));
                    if !verdicts.with("broken").contains(id.as_str()) {
                        let found = verdicts.of.get(id).cloned().unwrap_or_default();
                        let others = verdicts.with("broken");
                        let line = format!("{id} is {found:?}; broken: {others:?}");
                        missed.lock().expect("no thread panics").push(line);
                    }
                }
            });
        }
    });
    missed.into_inner().expect("no thread panics")
}

#[test]
fn conforming_peer_has_no_violations() {
    let Some(python) = uiw_interop::require("python3") else { return };
    let verdicts = scripted(&python, None);
    assert_eq!((verdicts.code, verdicts.broken().as_str()), (0, ""), "{}", verdicts.said);
    let table = judged_by_the_table();
    assert!(table.len() >= 120);
    let kept = verdicts.with("kept");
    assert!(kept.iter().all(|id| table.contains(*id)), "judged, and not marked so in the table");
    // These four cases require a listener that asks for Markers.
    let not_judged: Vec<_> = table.iter().filter(|id| !kept.contains(id.as_str())).collect();
    assert_eq!(not_judged, ["RFC5044-4.2-03b", "RFC5044-4.3-06", "RFC5044-4.3-11", "RFC5044-8-04"]);
}

#[test]
fn scripted_peer_breaks_judged_requirements() {
    let Some(python) = uiw_interop::require("python3") else { return };
    let mut command = Command::new(python);
    command.arg(peer()).arg("--list");
    let ended = Running::start(command).end();
    let list: BTreeSet<String> = ended.said.lines().map(str::to_owned).collect();
    assert_eq!(list, judged_by_the_table());
}

fn is_whole() -> bool {
    std::env::var_os(WHOLE).is_some()
}

/// Hashing the commit selects the requirements, so each commit tests others; the complete run tests
/// all of them.
#[test]
fn broken_requirements_found() {
    let Some(python) = uiw_interop::require("python3") else { return };
    let commit = commit();
    let mut ids: Vec<String> = judged_by_the_table().into_iter().collect();
    let mut least = ids.len();
    if !is_whole() {
        ids.sort_by_key(|id| hash(&format!("{commit} {id}")));
        ids.truncate(DRAWN);
        least = FOUND;
    }
    let missed = missed(&python, &ids);
    assert!(ids.len() - missed.len() >= least, "not found:\n{}", missed.join("\n"));
}

fn runs() -> u32 {
    if is_whole() { RUNS_OF_WHOLE } else { RUNS }
}

/// Runs uiw's own listener, which is the partner under test.
fn partner(address: &str, number: u32) -> Command {
    let mut command = Command::new(uiw());
    command.args(["siwtest", "--listen", address]);
    // Every second partner asks for Markers and leaves the choice of CRCs to the other end.
    if number % 2 == 1 {
        command.args(["--markers", "on", "--crc", "off"]);
    }
    command
}

fn assert_not_accused(number: u32, verdicts: &RunVerdicts, listener: &str) {
    assert_eq!(
        (verdicts.code, verdicts.broken().as_str()),
        (0, ""),
        "run {number}: {}\n{listener}",
        verdicts.said
    );
    let least = if number % 2 == 1 { 200 } else { 190 };
    assert!(verdicts.with("kept").len() >= least, "run {number}: {}\n{listener}", verdicts.said);
}

#[test]
fn uiw_conforms_with_any_segments() {
    for number in 0..runs() {
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = partner(&address, number);
        let (send, receive) = (7 + number * 13 % 200, 5 + number * 29 % 300);
        command.env(
            "UIW_FAULT",
            format!("send-split={send},recv-split={receive},would-block=7,seed={number}"),
        );
        let mut listener = Running::start(command);
        listener.wait_saying("listening on");
        let verdicts = conform(asking(&address, &["--jobs", "4"]));
        assert_not_accused(number, &verdicts, &listener.said());
        let _ = listener.stop();
    }
}

#[test]
fn uiw_conforms_over_lossy_path() {
    for number in 0..runs() {
        let seed = (number + 1).to_string();
        let rough = [
            "--delay",
            "3ms",
            "--jitter",
            "2ms",
            "--loss",
            "1%",
            "--burst",
            "2",
            "--reorder",
            "1%",
            "--duplicate",
            "1%",
            "--seed",
            &seed,
        ];
        let Some(path) = WanPath::new(&rough) else { return };
        let address = format!("{}:{}", Stack::Kernel.addresses()[0], free_port());
        let mut listener = Running::start(path.network.server(partner(&address, number)));
        listener.wait_saying("listening on");
        let asking = asking(&address, &["--jobs", "16", "--stall", "20"]);
        let verdicts = conform(path.network.client(asking));
        assert_not_accused(number, &verdicts, &listener.said());
        let _ = listener.stop();
        let ways = path.end();
        let lost: u64 = ways.iter().map(|way| way["lost"].as_u64().expect("a count")).sum();
        assert!(lost > 0, "{ways:?}");
    }
}

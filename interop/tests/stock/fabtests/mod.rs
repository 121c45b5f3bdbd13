//! Runs libfabric's fabtests, which no distribution packages: `cargo xtask interop fabtests` builds
//! them, installs them in a directory that a variable names, and runs these tests. The tests that
//! `runfabtests.sh` runs one after the other are run here on two hosts, and the data is compared
//! wherever a program supports it.

mod known;
mod outcome;
mod runner;
mod sets;

use crate::bindings::{Programs, on_two_hosts};
use crate::proof::{Proof, options};
use crate::reported::isolated;
use outcome::Outcome;
use runner::Runner;
use sets::{Endpoint, Kind};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use uiw_interop::stock::Running;

/// Returns the directory in which the programs are installed. If it is not set, returns `None` and
/// counts the test as skipped.
#[track_caller]
fn programs() -> Option<Programs> {
    Programs::given("UIW_FABTESTS", "fabtests: cargo xtask interop fabtests")
}

/// Asserts that every test for an endpoint has its known outcome, or passes if no outcome is
/// listed.
#[track_caller]
fn set(endpoint: Endpoint, persona: &'static str) {
    let Some((programs, network, libraries)) = programs().and_then(on_two_hosts) else { return };
    let script = std::fs::read_to_string(programs.path("bin/runfabtests.sh")).expect("the script");
    let runner = Runner::new(programs.folder(), network, libraries, endpoint, persona);
    let mut table = OutcomeTable::new(endpoint, persona);
    for (kind, test) in sets::tests(&script, endpoint) {
        let (outcome, more) = run(&runner, kind, &test);
        table.add(&test, &outcome, &more);
    }
    for configuration in endpoint.configurations() {
        let (outcome, cases) = runner.cases(configuration);
        table.add(&format!("fi_ubertest {configuration}"), &outcome, &cases.to_string());
    }
    table.end();
}

/// Number of attempts for a test above `ofi_rxm`.
///
/// On the peer's shutdown `ofi_rxm` closes a connection before it has polled the message that
/// preceded the shutdown. One end then finishes, and the other one waits for its last message
/// forever. This happens on busy machines, and not always in the same test.
const RUNS: usize = 3;

/// Runs a test and returns its outcome with an additional remark.
fn run(runner: &Runner, kind: Kind, test: &str) -> (Outcome, String) {
    let mut runs = 1;
    loop {
        let outcome = runner.run(kind, test);
        if runs == RUNS
            || !matches!(outcome, Outcome::OneEnd(_))
            || !runner.endpoint().is_above_rxm(test)
        {
            let more = if runs > 1 {
                format!("run {runs}: rxm lost the last message before")
            } else {
                String::new()
            };
            return (outcome, more);
        }
        runs += 1;
    }
}

/// Table of the outcomes of the tests for an endpoint.
struct OutcomeTable {
    endpoint: Endpoint,
    persona: &'static str,
    lines: String,
    counts: BTreeMap<&'static str, usize>,
    surprises: Vec<String>,
}

impl OutcomeTable {
    fn new(endpoint: Endpoint, persona: &'static str) -> Self {
        let (lines, counts, surprises) = Default::default();
        Self { endpoint, persona, lines, counts, surprises }
    }

    fn add(&mut self, test: &str, outcome: &Outcome, more: &str) {
        let known = known::of(self.endpoint, self.persona, test);
        let reason = known.map_or(more, |known| known.reason);
        let word = outcome.word();
        let _ = writeln!(self.lines, "{test:60} {word:12} {reason}");
        *self.counts.entry(word).or_default() += 1;
        if let Some(surprise) = known::surprise(known, outcome) {
            let said =
                if let Outcome::Fail(said) | Outcome::OneEnd(said) = outcome { said } else { "" };
            self.surprises.push(format!("{test}: {word}, where {surprise}\n{said}"));
        }
    }

    /// Prints the table, and panics if an outcome was not expected.
    #[track_caller]
    fn end(self) {
        let Self { endpoint, persona, lines, counts, surprises } = self;
        println!("fabtests, {endpoint:?}, persona {persona}: {counts:?}\n{lines}");
        assert!(surprises.is_empty(), "{endpoint:?}, persona {persona}:\n{}", surprises.join("\n"));
    }
}

#[test]
fn connected_endpoints_of_persona_iwarp() {
    set(Endpoint::Msg, "iwarp");
}

#[test]
fn connected_endpoints_of_persona_roce() {
    set(Endpoint::Msg, "roce");
}

#[test]
fn endpoints_without_connections_of_persona_iwarp() {
    set(Endpoint::Rxm, "iwarp");
}

#[test]
fn endpoints_without_connections_of_persona_roce() {
    set(Endpoint::Rxm, "roce");
}

#[test]
fn datagram_endpoints_of_persona_roce() {
    set(Endpoint::Dgram, "roce");
}

/// Exchanges messages of 64 KiB in both directions and compares them; above `ofi_rxm` they are
/// transferred by Reads.
#[test]
fn report_counters_and_capture_agree() {
    const SIZE: u64 = 65_536;
    const ROUND_TRIPS: u64 = 200;
    let Some((programs, network, libraries)) = programs().and_then(on_two_hosts) else { return };
    let addresses =
        [network.server_address(), network.client_address()].map(|address| address.to_string());
    for (endpoint, program) in
        [(Endpoint::Msg, "bin/fi_msg_pingpong"), (Endpoint::Rxm, "bin/fi_rdm_tagged_pingpong")]
    {
        let Some(proof) = Proof::begin(&libraries, &network) else { return };
        let (program, count, size) =
            (programs.path(program), ROUND_TRIPS.to_string(), SIZE.to_string());
        let words: &[&str] =
            &[&program, "-v", "-I", &count, "-S", &size, "-p", endpoint.provider(), "-s"];
        let server = [words, &[&addresses[0]]].concat();
        let client = [words, &[&addresses[1], &addresses[0]]].concat();
        let server = isolated(&libraries, &["--require"], &server);
        let mut server = Running::start(network.server(server));
        server.wait_listening(9228);
        let client = Running::start(proof.client(&options("iwarp"), &client)).end();
        server.end().well();
        proof.holds(&client, 2 * ROUND_TRIPS * SIZE, None, 0);
    }
}

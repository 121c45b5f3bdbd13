//! libfabric's fabtests, which no package has: `cargo xtask interop fabtests` builds and installs
//! them in a folder that a variable names, and runs this. What `runfabtests.sh` runs one after
//! another runs here on two hosts, with the data compared wherever a program can do it.

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

/// The folder where the programs are installed. Nothing without it; the test is noted as skipped
/// then.
#[track_caller]
fn programs() -> Option<Programs> {
    Programs::given("UIW_FABTESTS", "fabtests: cargo xtask interop fabtests")
}

/// Every test for an endpoint has the outcome that is known of it, which is that it passes if
/// nothing is.
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

/// Runs of a test above `ofi_rxm`, which closes a connection on the peer's shutdown before it has
/// polled the message in front of it: one end is through then, and the other waits for its last
/// message for ever. That takes a busy machine, and not the same test each time.
const RUNS: usize = 3;

/// The outcome of a test, and what is to say of it.
fn run(runner: &Runner, kind: Kind, test: &str) -> (Outcome, String) {
    let mut runs = 1;
    loop {
        let outcome = runner.run(kind, test);
        if runs == RUNS || !matches!(outcome, Outcome::OneEnd(_)) || !runner.endpoint().is_above_rxm(test) {
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

/// The outcomes of the tests for an endpoint.
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
            let said = if let Outcome::Fail(said) | Outcome::OneEnd(said) = outcome { said } else { "" };
            self.surprises.push(format!("{test}: {word}, where {surprise}\n{said}"));
        }
    }

    /// Prints it.
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

/// Round trips of messages of 64 KiB, compared; above `ofi_rxm` they are Reads.
#[test]
fn report_counters_and_capture_agree() {
    const SIZE: u64 = 65_536;
    const ROUND_TRIPS: u64 = 200;
    let Some((programs, network, libraries)) = programs().and_then(on_two_hosts) else { return };
    let addresses = [network.server_address(), network.client_address()].map(|address| address.to_string());
    for (endpoint, program) in
        [(Endpoint::Msg, "bin/fi_msg_pingpong"), (Endpoint::Rxm, "bin/fi_rdm_tagged_pingpong")]
    {
        let Some(proof) = Proof::begin(&libraries, &network) else { return };
        let (program, count, size) = (programs.path(program), ROUND_TRIPS.to_string(), SIZE.to_string());
        let words: &[&str] = &[&program, "-v", "-I", &count, "-S", &size, "-p", endpoint.provider(), "-s"];
        let server = [words, &[&addresses[0]]].concat();
        let client = [words, &[&addresses[1], &addresses[0]]].concat();
        let server = isolated(&libraries, &["--require"], &server);
        let mut server = Running::start(network.server(server));
        server.wait_listening(9228);
        let client = Running::start(proof.client(&options("iwarp"), &client)).end();
        server.end().is_well();
        proof.holds(&client, 2 * ROUND_TRIPS * SIZE, None, 0);
    }
}

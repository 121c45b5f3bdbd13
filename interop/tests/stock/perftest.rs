//! Runs every test of Debian's perftest that a reliable connection supports, connected by rdma_cm
//! (`-R`) and out of band.

use crate::pair::pair;
use uiw_interop::stock::{Libraries, Network, ProcessEnd, Running, User, free_port, ordinary};

/// Program and its options in addition to `-d`, `-p` and `-F`.
type Case<'a> = (&'a str, &'a [&'a str]);

/// Runs the cases one after the other and asserts that every program exits with 0.
fn all(network: &Network, user: User, persona: &str, cases: &[Case<'_>]) {
    for case @ (program, args) in cases {
        let args = [&["-F"], *args].concat();
        let Some([server, client]) = pair(network, user, persona, program, &args) else { return };
        assert!(server.code == 0 && client.code == 0, "{persona} {case:?}: {server:?} {client:?}");
    }
}

const BANDWIDTH: &[Case<'_>] = &[
    ("ib_write_bw", &["-n", "500"]),
    ("ib_write_bw", &["-a", "-n", "20"]),
    ("ib_write_bw", &["-q", "4", "-n", "200"]),
    ("ib_write_bw", &["-l", "8", "-n", "800", "-s", "64"]),
    ("ib_write_bw", &["-b", "-n", "200"]),
    ("ib_write_bw", &["-I", "200", "-s", "64", "-n", "500"]),
    ("ib_read_bw", &["-n", "200"]),
    ("ib_read_bw", &["-a", "-n", "10"]),
    ("ib_read_bw", &["-q", "4", "-n", "50"]),
    ("ib_read_bw", &["-b", "-n", "50"]),
    ("ib_read_bw", &["-e", "-n", "100"]),
    ("ib_send_bw", &["-n", "500"]),
    ("ib_send_bw", &["-a", "-n", "20"]),
    ("ib_send_bw", &["-q", "4", "-n", "200"]),
    ("ib_send_bw", &["-b", "-n", "200"]),
    ("ib_send_bw", &["--use-srq", "-n", "200"]),
    ("ib_send_bw", &["-I", "200", "-s", "64", "-n", "500"]),
    ("ib_atomic_bw", &["-n", "200"]),
    ("ib_atomic_bw", &["-A", "FETCH_AND_ADD", "-q", "4", "-n", "50"]),
    ("ib_atomic_bw", &["-e", "-n", "100"]),
];

/// Cases that hang on iWARP devices.
///
/// On an iWARP device perftest counts the receives and waits for a completion when it runs out of
/// them. With events and completions that do not wait for the peer, it waits forever. On other
/// devices it does not wait.
const SENDS_BY_EVENTS: &[Case<'_>] = &[
    ("ib_send_bw", &["-e", "-n", "200"]),
    ("ib_send_bw", &["-e", "--use-srq", "-q", "2", "-n", "200"]),
];

const LATENCY: &[Case<'_>] = &[
    ("ib_write_lat", &["-n", "50"]),
    ("ib_read_lat", &["-n", "100"]),
    ("ib_read_lat", &["-e", "-n", "100"]),
    ("ib_send_lat", &["-n", "100"]),
    ("ib_send_lat", &["-a", "-n", "10"]),
    ("ib_send_lat", &["-e", "-n", "100"]),
    ("ib_send_lat", &["-I", "200", "-n", "100"]),
    ("ib_atomic_lat", &["-n", "100"]),
];

/// Returns the same cases with `-R`.
fn by_rdma_cm(cases: &[Case<'_>]) -> Vec<(String, Vec<String>)> {
    let args = |args: &[&str]| ["-R"].iter().chain(args).map(ToString::to_string).collect();
    cases.iter().map(|(program, options)| ((*program).to_owned(), args(options))).collect()
}

fn all_by_rdma_cm(network: &Network, user: User, persona: &str, cases: &[Case<'_>]) {
    for (program, args) in by_rdma_cm(cases) {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        all(network, user, persona, &[(&program, &args)]);
    }
}

#[test]
fn bandwidth_out_of_band() {
    all(&Network::Loopback, User::Same, "roce", BANDWIDTH);
    all(&Network::Loopback, User::Same, "roce", SENDS_BY_EVENTS);
}

#[test]
fn bandwidth_by_rdma_cm() {
    all_by_rdma_cm(&Network::Loopback, User::Same, "iwarp", BANDWIDTH);
    all_by_rdma_cm(&Network::Loopback, User::Same, "roce", SENDS_BY_EVENTS);
}

#[test]
fn latency_out_of_band() {
    all(&Network::Loopback, User::Same, "roce", LATENCY);
}

#[test]
fn latency_by_rdma_cm() {
    all_by_rdma_cm(&Network::Loopback, User::Same, "iwarp", LATENCY);
}

const UNRELIABLE: &[Case<'_>] = &[
    ("ib_write_bw", &["-c", "UC", "-n", "500"]),
    ("ib_write_bw", &["-c", "UC", "-a", "-n", "20"]),
    ("ib_write_lat", &["-c", "UC", "-n", "50"]),
    ("ib_send_bw", &["-c", "UC", "-n", "500"]),
    ("ib_send_bw", &["-c", "UC", "-b", "-n", "200"]),
    ("ib_send_bw", &["-c", "UC", "-s", "64", "-n", "5000"]),
    ("ib_send_lat", &["-c", "UC", "-n", "100"]),
];

#[test]
fn unreliable_connections() {
    for persona in ["roce", "ib"] {
        all(&Network::Loopback, User::Same, persona, UNRELIABLE);
    }
    let Some(network) = Network::veth() else { return };
    all(&network, User::Same, "roce", UNRELIABLE);
}

/// `ib_write_lat` waits by reading its memory without making a call, so arriving data has to wake
/// the background thread.
///
/// The background thread compares processor times while the program runs. On a busy machine a run
/// may end before the comparison has a result, so the test makes several runs.
#[test]
fn programs_that_poll_memory_are_recognised() {
    const RUNS: usize = 8;
    let Some(_) = uiw_interop::require("ib_write_lat") else { return };
    let libraries = Libraries::get();
    for persona in ["iwarp", "roce"] {
        let found = (0..RUNS).any(|_| {
            write_latency(&libraries, persona)
                .iter()
                .any(|end| end.said.contains("polls_memory=true"))
        });
        assert!(found, "{persona}: no end was recognised in {RUNS} runs");
    }
}

/// Runs both ends of an `ib_write_lat` that succeeds, and returns them with their debug output.
fn write_latency(libraries: &Libraries, persona: &str) -> [ProcessEnd; 2] {
    let port = free_port();
    let command = || {
        let mut command = libraries.command(User::Same, "ib_write_lat");
        command.args(["-R", "-F", "-n", "5000", "-d", "uiw_lo", "-p", &port.to_string()]);
        command.env("UIW_PERSONA", persona).env("UIW_LOG", "uiw_verbs=debug");
        command
    };
    let mut server = Running::start(command());
    server.wait_listening(port);
    let mut client = command();
    client.arg("127.0.0.1");
    let ends = [Running::start(client).end(), server.end()];
    assert!(ends.iter().all(|end| end.code == 0), "{persona}: {ends:?}");
    ends
}

#[test]
fn between_namespaces_as_an_ordinary_user() {
    let (Some(user), Some(network)) = (ordinary(), Network::veth()) else { return };
    let few: &[Case<'_>] = &[
        ("ib_write_bw", &["-n", "200"]),
        ("ib_read_bw", &["-n", "50"]),
        ("ib_send_bw", &["-n", "200"]),
        ("ib_atomic_lat", &["-n", "50"]),
    ];
    all(&network, user, "roce", few);
    all(&network, user, "ib", few);
    all_by_rdma_cm(&network, user, "iwarp", few);
    all_by_rdma_cm(&network, User::Same, "iwarp", few);
}

//! Runs other programs in sandboxes: perftest, whose report shows the transferred bytes, and a
//! server and a client of TCP sockets, which transfer a file that is compared.

use super::filters::Sandboxes;
use super::{REFUSED, SandboxedPair, everything_succeeds, says};
use crate::reported::{number, parsed};
use crate::sockets::connections;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use uiw_interop::stock::{Libraries, Running, free_port, noise, uiw};

/// Perftest with 100 Writes of 64 KiB, connected out of band and by rdma_cm.
const WRITES: [SandboxedPair; 2] = [
    writes("roce", &["-F", "-d", "uiw_lo", "-n", "100"]),
    writes("iwarp", &["-R", "-F", "-n", "100"]),
];
const WRITTEN: u64 = 100 * 65_536;

const fn writes(persona: &'static str, args: &'static [&'static str]) -> SandboxedPair {
    SandboxedPair { program: "ib_write_bw", server: args, client: args, persona, complaints: &[] }
}

/// Sandboxes that refuse AF_UNIX; the first one refuses AF_NETLINK as well, the second one permits
/// it.
const WITHOUT_UNIX: [&str; 2] = ["families=2,10", "families=2,10,16"];

/// Returns the command that runs a program under `uiw run` in a sandbox with a report.
fn reported(
    sandboxes: &Sandboxes<'_>,
    rules: &[String],
    options: &[&str],
    program: &[&str],
) -> Command {
    let run = [uiw().to_str().expect("a path of text"), "run", "--require", "--json"];
    let mut command = sandboxes.command(rules, &[&run, options, &["--"], program].concat());
    command.env("UIW_LIB", sandboxes.libraries.folder()).env_remove("UIW_COUNTERS");
    command.env_remove("LD_LIBRARY_PATH");
    command
}

/// Returns the rules of the strictest systemd service, with an unprivileged user if this process can
/// switch to one.
fn strictest(sandboxes: &Sandboxes<'_>) -> Vec<String> {
    let user = rustix::process::geteuid().is_root().then(|| "user=65534".to_owned());
    user.into_iter().chain(sandboxes.hardened()).collect()
}

#[test]
fn perftest_writes_in_a_hardened_service() {
    let Some(_) = uiw_interop::require(WRITES[0].program) else { return };
    let libraries = Libraries::get();
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    let rules = strictest(&sandboxes);
    for exchange in &WRITES {
        let run = |program: &[&str]| reported(&sandboxes, &rules, &[], program);
        let port = free_port();
        let mut server = Running::start(exchange.server(port, run));
        server.wait_listening(port);
        let client = Running::start(exchange.client(port, run)).end();
        let server = server.end();
        let [client, server] = [client, server].map(|ended| parsed(&ended.well().said));
        for (report, way) in [(&client, "sent"), (&server, "received")] {
            let written = report["with_others"]["write"][way]["bytes"].as_u64();
            assert!(written >= Some(WRITTEN), "{report}");
        }
    }
}

/// Transfers a file from Python's server to curl over rsockets, both in a sandbox of `rules`, and
/// compares it.
#[track_caller]
fn file_over_rsockets(rules: impl FnOnce(&Sandboxes<'_>) -> Vec<String>) {
    let (Some(_), Some(_)) = (uiw_interop::require("python3"), uiw_interop::require("curl")) else {
        return;
    };
    let libraries = Libraries::get();
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    let rules = rules(&sandboxes);
    let run = |program: &[&str]| {
        reported(&sandboxes, &rules, &["--sockets", "--port-offset", "0"], program)
    };
    let (folder, file) = (libraries.folder().join("http"), noise(3_000_000));
    fs::create_dir(&folder).expect("a folder");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("a folder for others");
    fs::write(folder.join("file"), &file).expect("a file");
    let (port, directory) = (free_port(), folder.display().to_string());
    let text = port.to_string();
    let mut server = Running::start(run(&[
        "/usr/bin/python3",
        "-m",
        "http.server",
        "-b",
        "127.0.0.1",
        "-d",
        &directory,
        &text,
    ]));
    server.wait_listening(port);
    let url = format!("http://127.0.0.1:{port}/file");
    // Another user writes to this file.
    let got = libraries.folder().join("got");
    fs::write(&got, "").expect("a file");
    fs::set_permissions(&got, fs::Permissions::from_mode(0o666)).expect("a file for others");
    let client = Running::start(run(&["curl", "-s", "-o", &got.display().to_string(), &url])).end();
    client.well();
    assert!(fs::read(got).expect("the file") == file, "the file differs");
    let server = server.interrupt();
    let [client, server] = [&client, server.well()].map(|ended| parsed(&ended.said));
    for (report, way, role) in
        [(&client, "bytes_received", "connected"), (&server, "bytes_sent", "accepted")]
    {
        assert!(number(report, way) >= file.len() as u64, "{report}");
        assert_eq!(
            (connections(report, "rsocket", role), connections(report, "tcp", role)),
            (1, 0),
            "{report}"
        );
    }
}

#[test]
fn rsockets_in_hardened_service() {
    file_over_rsockets(strictest);
}

/// systemd's rule for AF_UNIX does not cover socketpair. The test refuses it as well, except for
/// programs that use sockets.
#[test]
fn unix_sockets_are_not_needed() {
    for families in WITHOUT_UNIX {
        everything_succeeds(|sandboxes| vec![families.to_owned(), no_pairs(sandboxes)]);
        file_over_rsockets(|_| vec![families.to_owned()]);
    }
}

fn no_pairs(sandboxes: &Sandboxes<'_>) -> String {
    sandboxes.refuse(Errno::PERM, "socketpair")
}

/// Programs that need socket pairs report an error and do not fall back to TCP.
#[test]
fn refused_pairs_of_sockets_are_named() {
    let Some(_) = uiw_interop::require("curl") else { return };
    let libraries = Libraries::get();
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    let rules = [no_pairs(&sandboxes)];
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let url = format!("http://127.0.0.1:{port}/");
    let uiw = uiw().to_str().expect("a path of text");
    let program = ["--sockets", "--port-offset", "0", "--", "curl", "-s", &url];
    let ended = |options: &[&str]| {
        let mut command = sandboxes.command(&rules, &[&[uiw, "run"], options, &program].concat());
        command
            .env("UIW_LIB", libraries.folder())
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("UIW_COUNTERS");
        Running::start(command).end_within(REFUSED).expect("it ends")
    };
    let curl = ended(&[]);
    assert_ne!(curl.code, 0, "{curl:?}");
    says(&curl, "socketpair", "uiw doctor");
    let reported = ended(&["--require"]);
    assert_eq!((reported.code, reported.count("socketpair")), (1, 1), "{reported:?}");
    assert!(reported.count("uiw doctor") > 0, "{reported:?}");
    listener.set_nonblocking(true).expect("a socket");
    assert!(listener.accept().is_err(), "curl has connected over TCP");
}

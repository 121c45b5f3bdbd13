//! Runs the stacks over a long, narrow, lossy path: `uiw wan` emulates it between the namespaces.

use crate::pairings::Stack;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use uiw_interop::stock::{Network, Running, uiw};

/// Two namespaces connected by an emulator.
pub(crate) struct Path {
    pub(crate) network: Network,
    wan: Running,
}

impl Path {
    /// Returns `None` if namespaces are not available.
    pub(crate) fn new(options: &[&str]) -> Option<Self> {
        let network = Network::path()?;
        let mut command = Command::new(uiw());
        command.args(["wan", "server", "client", "--json"]).args(options);
        let mut wan = Running::start(network.middle(command));
        wan.wait_saying("carrying");
        Some(Self { network, wan })
    }

    /// Stops the emulator and returns its statistics of the frames towards the client and towards
    /// the server.
    pub(crate) fn end(self) -> [Value; 2] {
        let ended = self.wan.interrupt();
        ended.well();
        let last: Value =
            serde_json::from_str(ended.said.lines().last().expect("statistics")).expect("JSON");
        let way = |n: usize| {
            let way = last["ways"][n].clone();
            assert_eq!(way["missed"], 0, "the emulator keeps up: {last}");
            assert_eq!(way["unknown"], 0, "{last}");
            way
        };
        [way(0), way(1)]
    }
}

/// Performs all operations of a client on stack `client` with a server on stack `server`, and
/// verifies every byte.
fn soak(client: Stack, server: Stack, path: &[&str]) {
    const OPERATIONS: [&[&str]; 5] = [
        &["--op", "write", "--size", "30000"],
        &["--op", "read", "--size", "30000"],
        &["--op", "send", "--size", "10000"],
        &["--op", "write-imm", "--size", "3000"],
        &["--op", "fetch-add"],
    ];
    let Some(path) = Path::new(path) else { return };
    let network = &path.network;
    let port = uiw_interop::stock::free_port();
    let address = server.addresses()[0];
    let mut command = Command::new(uiw());
    command.args(["--llp", &server.spec(11), "serve", "--listen", &format!("{address}:{port}")]);
    let mut serve = Running::start(network.server(command));
    serve.wait_saying("listening on");
    for operation in OPERATIONS {
        let mut command = Command::new(uiw());
        command.args(["--llp", &client.spec(12), "perf", &format!("{address}:{port}")]);
        command.args(["--validate", "--seconds", "60", "--iterations", "30"]).args(operation);
        let ended = Running::start(network.client(command)).end();
        assert_eq!(
            ended.code,
            0,
            "{client:?} to {server:?}, {operation:?}: {}{}",
            ended.said,
            serve.said()
        );
    }
    let _ = serve.stop();
    let ways = path.end();
    let sum = |what: &str| ways.iter().map(|way| way[what].as_u64().expect("a count")).sum::<u64>();
    assert!(sum("lost") > 0 && sum("duplicated") > 0 && sum("reordered") > 0, "{ways:?}");
}

/// Emulator options that lose, duplicate and reorder frames in both directions.
const ROUGH: [&str; 14] = [
    "--delay",
    "1ms",
    "--jitter",
    "500us",
    "--loss",
    "1%",
    "--burst",
    "2",
    "--reorder",
    "2%",
    "--duplicate",
    "2%",
    "--seed",
    "11",
];

#[test]
fn rough_path_between_kernels() {
    soak(Stack::Kernel, Stack::Kernel, &ROUGH);
}

#[test]
fn rough_path_over_af_packet() {
    soak(Stack::Packet, Stack::Packet, &ROUGH);
}

#[test]
fn rough_path_over_af_xdp() {
    soak(Stack::Xdp, Stack::Xdp, &ROUGH);
}

#[test]
fn rough_path_between_kernel_and_smoltcp() {
    soak(Stack::Kernel, Stack::Packet, &ROUGH);
    soak(Stack::Xdp, Stack::Kernel, &ROUGH);
}

/// Damaged frames count as lost, because the TCP checksum or the CRC detects the damage.
#[test]
fn damaging_path() {
    let rough =
        ["--damage", "1%", "--duplicate", "1%", "--reorder", "1%", "--loss", "0.3%", "--seed", "3"];
    soak(Stack::Packet, Stack::Kernel, &rough);
}

/// The path silently drops packets of more than 1,300 bytes in both directions. smoltcp recovers on
/// its own.
#[test]
fn path_mtu_black_hole() {
    for (client, server) in
        [(Stack::Packet, Stack::Packet), (Stack::Xdp, Stack::Packet), (Stack::Packet, Stack::Xdp)]
    {
        let Some(path) = Path::new(&["--delay", "1ms", "--max-packet", "1300"]) else { return };
        let port = uiw_interop::stock::free_port();
        let address = server.addresses()[0];
        let mut command = Command::new(uiw());
        command.args([
            "--llp",
            &server.spec(11),
            "serve",
            "--listen",
            &format!("{address}:{port}"),
        ]);
        let mut serve = Running::start(path.network.server(command));
        serve.wait_saying("listening on");
        for operation in ["write", "read", "send"] {
            let mut command = Command::new(uiw());
            command.args([
                "--llp",
                &client.spec(12),
                "perf",
                &format!("{address}:{port}"),
                "--op",
                operation,
            ]);
            command.args([
                "--size",
                "100000",
                "--validate",
                "--seconds",
                "60",
                "--iterations",
                "50",
            ]);
            let ended = Running::start(path.network.client(command)).end();
            assert_eq!(
                ended.code,
                0,
                "{client:?} to {server:?}, {operation}: {}{}",
                ended.said,
                serve.said()
            );
        }
        let _ = serve.stop();
        let ways = path.end();
        assert!(ways.iter().all(|way| way["too_long"].as_u64() > Some(0)), "{ways:?}");
    }
}

/// Directory that is removed when dropped.
struct TestFolder(PathBuf);

impl TestFolder {
    /// Creates a directory with the keys of two ends that accept each other, and the `--tls` files
    /// that name these keys.
    fn with_keys() -> Self {
        let folder = std::env::temp_dir().join(format!("uiw-path-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a folder");
        let keys = "for end in server client; do \"$0\" key new $end.pem > $end.pub; done
            \"$0\" key pin clients \"$(cat client.pub)\" client && \"$0\" key pin servers \"$(cat server.pub)\" server
            for end in server client; do printf 'mode raw\nkey %s.pem\n' $end > $end.conf; done
            echo 'pinned clients' >> server.conf; echo 'pinned servers' >> client.conf";
        let made = Command::new("sh").args(["-ec", keys]).arg(uiw()).current_dir(&folder).output();
        assert!(made.as_ref().is_ok_and(|made| made.status.success()), "{made:?}");
        Self(folder)
    }

    fn name(&self, file: &str) -> String {
        self.0.join(file).display().to_string()
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Upper limit for a download; a connection on which nothing arrives is given up after 20 s.
const DOWNLOAD: Duration = Duration::from_secs(40);

/// The kernels at both ends do not probe the path MTU, and the path drops long packets. `uiw cp`
/// reconnects by itself with shorter segments. In clear text the connection stalls; with TLS
/// already the first handshake message is too long.
#[test]
fn copies_through_path_mtu_black_hole() {
    let folder = TestFolder::with_keys();
    let bytes: Vec<u8> =
        (0..3u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(folder.0.join("source"), &bytes).expect("a file");
    for (name, has_tls) in [("clear", false), ("tls", true)] {
        let Some(path) = Path::new(&["--delay", "1ms", "--max-packet", "1300"]) else { return };
        let network = &path.network;
        let off = || {
            let mut command = Command::new("sh");
            command.args(["-c", "echo 0 > /proc/sys/net/ipv4/tcp_mtu_probing"]);
            command
        };
        Running::start(network.server(off())).end().well();
        Running::start(network.client(off())).end().well();
        let protected = |conf: &str| {
            if has_tls {
                vec!["--tls".to_owned(), folder.name(conf)]
            } else {
                vec!["--clear".to_owned()]
            }
        };
        let mut command = Command::new(uiw());
        command.args(["serve", "--listen", "10.77.0.1:7174", "--share"]);
        command.arg(format!("files={}:rw", folder.0.display())).args(protected("server.conf"));
        let mut serve = Running::start(network.server(command));
        serve.wait_saying("listening on");
        let mut command = Command::new(uiw());
        command.args(["cp", &folder.name("source"), &format!("10.77.0.1:files/{name}")]);
        command.args(protected("client.conf"));
        let ended = Running::start(network.client(command)).end();
        assert_eq!(ended.code, 0, "{name}: {}{}", ended.said, serve.said());
        let copy = std::fs::read(folder.0.join(name));
        assert!(copy.is_ok_and(|copy| copy == bytes), "{name}");
        // During a download this end sends nothing that needs an acknowledgement, so only the
        // missing data reveals the problem.
        let (got, begun) = (folder.name(&format!("got-{name}")), Instant::now());
        let mut command = Command::new(uiw());
        command.args(["cp", "10.77.0.1:files/source", &got]).args(protected("client.conf"));
        let ended = Running::start(network.client(command)).end();
        let took = begun.elapsed();
        assert_eq!(ended.code, 0, "{name}: {}{}", ended.said, serve.said());
        assert!(std::fs::read(got).is_ok_and(|copy| copy == bytes), "{name}");
        assert!(took < DOWNLOAD, "{name}: {took:?}");
        println!("{name}: downloaded in {took:?}");
        let _ = serve.stop();
        let ways = path.end();
        assert!(ways.iter().any(|way| way["too_long"].as_u64() > Some(0)), "{ways:?}");
    }
}

#[test]
fn emulator_with_real_time_priority() {
    let Some(path) = Path::new(&["--delay", "1ms", "--realtime"]) else { return };
    let mut command = Command::new(uiw());
    command.args(["serve", "--listen", "10.77.0.1:7174"]);
    let mut server = Running::start(path.network.server(command));
    server.wait_saying("listening on");
    let mut command = Command::new(uiw());
    command.args(["ping", "10.77.0.1", "-c", "3"]);
    Running::start(path.network.client(command)).end().well();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", path.wan.id())).expect("it runs");
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    // proc(5): field 41 is the scheduling policy, and the first field after the name is field 3.
    // The value 1 is SCHED_FIFO.
    assert_eq!(behind_name.split_whitespace().nth(41 - 3), Some("1"), "{stat}");
    let _ = server.stop();
    let _ = path.end();
}

/// The share of lost frames and the delay match the requested values.
#[test]
fn path_matches_settings() {
    let Some(path) = Path::new(&["--delay", "3ms", "--loss", "2%", "--seed", "5"]) else { return };
    let mut command = Command::new(uiw());
    command.args(["serve", "--listen", "10.77.0.1:7174"]);
    let mut server = Running::start(path.network.server(command));
    server.wait_saying("listening on");
    let mut command = Command::new(uiw());
    command.args([
        "perf",
        "10.77.0.1",
        "--op",
        "send",
        "--size",
        "64",
        "--latency",
        "--wait",
        "--json",
    ]);
    command.args(["--iterations", "400", "--seconds", "60"]);
    let ended = Running::start(path.network.client(command)).end();
    let line = ended.well().said.lines().find(|line| line.starts_with('{')).expect("a result");
    let result: Value = serde_json::from_str(line).expect("JSON");
    let least = result["round_trip_us"]["min"].as_f64().expect("a number");
    assert!(least >= 5990.0, "3 ms there and 3 ms back: {result}");
    let _ = server.stop();
    let ways = path.end();
    let sum =
        |what: &str| ways.iter().map(|way| way[what].as_f64().expect("a number")).sum::<f64>();
    let share = sum("lost") / sum("frames");
    // The tolerance is four standard deviations for about 1000 frames.
    assert!(sum("frames") > 600.0 && (share - 0.02).abs() < 0.02, "{ways:?}");
    assert!(
        ways.iter().all(|way| way["way_us_mean"].as_f64().is_some_and(|mean| mean >= 3000.0)),
        "{ways:?}"
    );
}

#[test]
fn paths_that_cannot_be() {
    let fails = |args: &[&str], code: i32, says: &str| {
        let output = Command::new(uiw()).arg("wan").args(args).output().expect("uiw starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert_eq!(said.lines().count(), 2, "{said}");
        assert!(said.contains(says), "{said}");
    };
    fails(&["a", "b", "--loss", "1"], 2, "percent");
    fails(&["a", "b", "--rate", "99999999999Gbit"], 2, "'99999999999Gbit'");
    fails(&["a", "b", "--rate", "99999999999Gbit"], 2, "1kbit to 1000Gbit");
    fails(&["a", "b", "--delay", "1000000s"], 2, "up to a minute");
    fails(&["a", "b", "--burst", "x"], 2, "1 at least");
    fails(&["a", "b", "--queue", "1T"], 2, "2000 to 64G");
    fails(&["uiw-none0", "uiw-none1", "--queue", "1G"], 1, "uiw-none0");
    fails(&["a", "b", "--llp", "tcp"], 2, "makes no connections");
    fails(&["a", "b", "--delay", "5"], 2, "5ms");
    fails(&["a", "b", "--rate", "fast"], 2, "1Gbit");
    fails(&["a", "b", "--loss", "90%", "--burst", "2"], 2, "runs of 2");
    fails(&["a", "a"], 2, "two ends");
    fails(&["uiw-none0", "uiw-none1"], 1, "uiw-none0");
}

#[test]
fn interface_of_path_removed() {
    let Some(path) = Path::new(&["--delay", "1ms"]) else { return };
    let mut command = Command::new("ip");
    command.args(["link", "delete", "veth0"]);
    assert!(path.network.client(command).status().expect("ip starts").success());
    let ended = path.wan.end();
    assert_eq!(ended.code, 1, "{}", ended.said);
    assert!(ended.said.contains("`client` is gone or down"), "{}", ended.said);
}

//! The program as a person runs it: what it prints where, and its exit codes.

mod common;

use common::{Server, text, uiw};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Lines};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use uiw::blocking::{Connection, Listener};
use uiw::{ConnectionConfig, Device};

/// Returns whether this is one line `error: ..` and one line `hint: ..`.
fn is_error_and_hint(text: &str) -> bool {
    let [error, hint] = text.lines().collect::<Vec<_>>()[..] else { return false };
    error.starts_with("error: ") && hint.starts_with("hint: ")
}

/// An error and a hint on standard error, and this exit code.
fn fails(args: &[&str], code: i32, says: &str) {
    let output = uiw(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
    assert!(is_error_and_hint(&error), "{args:?}: {error}");
    assert!(error.contains(says), "{args:?}: {error}");
    assert!(output.stdout.is_empty(), "{args:?}: {}", text(&output.stdout));
}

/// A file of some bytes, gone when dropped.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, bytes: usize) -> Self {
        let path = std::env::temp_dir().join(format!("uiw-{}-{name}", std::process::id()));
        std::fs::write(&path, (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<_>>())
            .unwrap();
        Self(path)
    }

    fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The objects of an NDJSON output.
fn objects(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// `median`, `q1` and `q3` of a comparison, in order of size.
fn quartiles(value: &Value) -> [f64; 3] {
    let [q1, median, q3] = ["q1", "median", "q3"].map(|name| value[name].as_f64().unwrap());
    assert!(q1 > 0.0 && q1 <= median && median <= q3, "{value}");
    [q1, median, q3]
}

#[test]
fn argument_that_is_not_utf8_is_usage_error() {
    use std::os::unix::ffi::OsStrExt as _;
    let word = std::ffi::OsStr::from_bytes(b"caf\xe9");
    let output = Command::new(env!("CARGO_BIN_EXE_uiw")).arg(word).output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(is_error_and_hint(&error), "{error}");
}

#[test]
fn demo_verifies_every_line() {
    let file = TempFile::new("demo", 300_000);
    let output = uiw(&["demo", "--json", "--seconds", "0.02", file.name()]);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let lines = objects(&output);
    let last = lines.last().unwrap();
    assert_eq!((&last["type"], &last["all"]), (&"summary".into(), &true.into()));
    assert_eq!(lines.len(), 20, "19 lines and the summary");
    assert!(lines.iter().all(|line| line["verified"] != false), "{lines:?}");
    assert!(output.stderr.is_empty(), "no progress unless standard error is a terminal");
}

#[test]
fn missing_file_reported_with_hint() {
    fails(&["demo", "/nonexistent/file"], 2, "/nonexistent/file");
    fails(&["decode", "/nonexistent/file"], 2, "/nonexistent/file");
}

#[test]
fn wrong_arguments_reported_with_hint() {
    fails(&["ping", "127.0.0.1:1", "--size", "elephants"], 2, "elephants");
    fails(&["perf", "127.0.0.1:1", "--op", "levitate"], 2, "levitate");
    fails(&["levitate"], 2, "levitate");
}

#[test]
fn refused_connection_exits_with_3() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let peer = format!("127.0.0.1:{port}");
    fails(&["ping", &peer], 3, "connection refused");
    fails(&["perf", &peer, "--seconds", "1"], 3, "connection refused");
}

#[test]
fn foreign_peer_exits_with_3() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = listener.local_addr().unwrap().to_string();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        stream
    });
    fails(&["ping", &peer], 3, &peer);
    drop(thread.join());
}

#[test]
fn serve_answers_ping_rping_and_perf() {
    let server = Server::start();
    let address = server.address.as_str();
    for args in [
        &["ping", address, "--count", "3", "--interval", "0"][..],
        &["ping", address, "--count", "3", "--interval", "0", "--op", "write", "--size", "100000"],
        &["ping", address, "--count", "3", "--interval", "0", "--op", "read"],
        &["ping", address, "--count", "3", "--interval", "0", "--rping", "--size", "60000"],
        &["perf", address, "--seconds", "1", "--size", "64K", "--validate"],
        &["perf", address, "--seconds", "1", "--op", "send", "--size", "1K", "--validate"],
        &["perf", address, "--seconds", "1", "--op", "send", "--latency", "--validate"],
        &["perf", address, "--seconds", "1", "--op", "read", "--latency", "--validate"],
        &["perf", address, "--seconds", "1", "--op", "read", "--size", "1K"],
        &["perf", address, "--seconds", "1", "--op", "fetch-add"],
        &["perf", address, "--seconds", "1", "--op", "write-imm", "--size", "4K"],
        &["perf", address, "--seconds", "1", "--bidirectional"],
    ] {
        let output = uiw(args);
        assert!(
            output.status.success(),
            "{args:?}: {}{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        assert!(!output.stdout.is_empty(), "{args:?}");
    }
}

/// In this line of the demo the peer flips a bit: at the receiver, or in what is Read.
fn demo_notices(line: usize) {
    let file = TempFile::new(&format!("corrupt-{line}"), 300_000);
    let output =
        uiw(&["demo", "--json", "--seconds", "0", "--corrupt", &line.to_string(), file.name()]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let error = text(&output.stderr);
    assert!(is_error_and_hint(&error) && error.contains("byte 150000 differs"), "{error}");
    for object in
        text(&output.stdout).lines().map(|line| serde_json::from_str::<Value>(line).unwrap())
    {
        if object["type"] == "line" {
            assert_eq!(object["verified"], object["line"] != line, "{object}");
        }
    }
}

#[test]
fn demo_notices_flipped_bit_in_send() {
    demo_notices(1);
}

#[test]
fn demo_notices_flipped_bit_in_read() {
    demo_notices(8);
}

#[test]
fn json_results_parse() {
    let server = Server::start();
    let address = server.address.as_str();
    let ping = objects(&uiw(&["ping", address, "--json", "--count", "3"]));
    let last = ping.last().unwrap();
    assert_eq!((ping.len(), &last["rounds"], &last["verified"]), (4, &3.into(), &true.into()));
    assert!(last["us"]["min"].as_f64().unwrap() <= last["us"]["p99"].as_f64().unwrap());

    let args = [
        "perf",
        address,
        "--json",
        "--iterations",
        "2000",
        "--size",
        "4K",
        "--crc",
        "off",
        "--connections",
        "3",
    ];
    let perf = objects(&uiw(&args));
    let result = &perf[0];
    assert_eq!((&result["type"], &result["mode"]), (&"result".into(), &"throughput".into()));
    assert_eq!((&result["messages"], &result["bytes"]), (&6000.into(), &(6000 * 4096).into()));
    assert_eq!((&result["crc"], &result["uiw_peer"]), (&false.into(), &true.into()));
    for field in ["bytes_per_second", "emss", "path_mtu", "fpdu_bytes", "cores", "seconds"] {
        assert!(result[field].as_f64().is_some_and(|number| number > 0.0), "{field}: {result}");
    }
    assert!(result["kernel"].is_string() && result["congestion"].is_string(), "{result}");

    for extra in [
        &["--op", "send"][..],
        &["--op", "send", "--wait"],
        &["--op", "write"],
        &["--op", "cmp-swap"],
    ] {
        let args = [
            &["perf", address, "--json", "--latency", "--iterations", "100", "--size", "8"],
            extra,
        ]
        .concat();
        let perf = objects(&uiw(&args));
        let times = &perf[0]["round_trip_us"];
        assert_eq!(perf[0]["messages"], 100, "{args:?}");
        assert!(times["p50"].as_f64().unwrap() <= times["p99_9"].as_f64().unwrap(), "{times}");
    }
}

/// Each end posts on connections of its own, as much as it was asked for, whatever its chains and
/// signals are.
#[test]
fn both_directions_are_counted_and_validated() {
    let server = Server::start();
    for op in ["write", "read"] {
        for more in
            [&["--connections", "3"][..], &["--validate", "--chain", "5", "--signal-every", "7"]]
        {
            let args = ["perf", &server.address, "--json", "-b", "--op", op, "--size", "3K"];
            let args = [&args[..], &["--iterations", "1001"], more].concat();
            let result = &objects(&uiw(&args))[0];
            let each = if more[0] == "--connections" { 3003 } else { 1001 };
            assert_eq!(
                result["messages_by"],
                serde_json::json!({"client": each, "server": each}),
                "{args:?}"
            );
            assert_eq!(result["bytes"], 2 * each * 3072, "{args:?}");
        }
    }
    // Until the time is over, where no number was given; a number that is too large does not keep
    // it beyond that.
    for more in [&[][..], &["--iterations", "1000000000"]] {
        let args = ["perf", &server.address, "--json", "-b", "--seconds", "0.3"];
        let result = &objects(&uiw(&[&args[..], more].concat()))[0];
        let by = |who: &str| result["messages_by"][who].as_u64().unwrap();
        assert!(by("client") > 0 && by("server") > 0, "{result}");
    }
}

/// The unsignaled messages behind the last completion leave no room for a whole chain.
#[test]
fn perf_chains_of_whole_depth_complete() {
    let server = Server::start();
    for shape in [&["--chain", "30"][..], &["--depth", "4", "--chain", "3", "--signal-every", "4"]]
    {
        for direction in [&[][..], &["--bidirectional"]] {
            let args = [
                &["perf", &server.address, "--json", "--iterations", "100", "--size", "64K"],
                shape,
                direction,
            ];
            let messages = &objects(&uiw(&args.concat()))[0]["messages"];
            assert_eq!(*messages, 100 * (1 + direction.len()), "{args:?}");
        }
    }
}

/// The intervals add up to the result: their messages, one after the other
/// in time.
#[test]
fn intervals_add_up() {
    let server = Server::start();
    let of = |args: &[&str]| {
        objects(&uiw(&[&["perf", &server.address, "--seconds", "0.6"], args].concat()))
    };
    let sum = |intervals: &[Value]| -> u64 {
        let mut time = 0.0;
        for interval in intervals {
            assert_eq!(
                (&interval["type"], interval["from"].as_f64()),
                (&"interval".into(), Some(time))
            );
            time = interval["to"].as_f64().unwrap();
        }
        intervals.iter().map(|interval| interval["messages"].as_u64().unwrap()).sum()
    };
    for args in [
        &["-i", "0.2"][..],
        // Messages that all end before the first interval does are one as well.
        &["-i", "10", "--iterations", "3"],
        &["-i", "0.2", "--latency", "--size", "8"],
    ] {
        let [result] = &of(&[&["--json"], args].concat())[..] else { panic!() };
        assert_eq!(result["type"], "result");
        let intervals = result["intervals"].as_array().unwrap();
        assert_eq!(Some(sum(intervals)), result["messages"].as_u64(), "{result}");
        assert!(!args.contains(&"10") || (intervals.len(), sum(intervals)) == (1, 3), "{result}");
    }
}

#[test]
fn comparisons_have_ratio_and_noise() {
    for extra in [
        &["--op", "write"][..],
        &["--op", "read"],
        &["--latency", "--op", "send", "--size", "8"],
        &["--bidirectional", "--op", "write"],
    ] {
        let output = uiw(&[&["perf", "--compare", "--json", "--slices", "3"], extra].concat());
        let objects = objects(&output);
        assert_eq!(objects.len(), 1);
        quartiles(&objects[0]["ratio"]);
        quartiles(&objects[0]["noise"]);
        assert_eq!(objects[0]["slices"], 3);
    }
}

#[test]
fn every_size_is_validated() {
    let server = Server::start();
    for size in (1..=23).map(|power| 1u64 << power) {
        let args = ["perf", &server.address, "--json", "--iterations", "3", "--validate", "--size"];
        let result = &objects(&uiw(&[&args[..], &[&size.to_string()]].concat()))[0];
        assert_eq!(result["size"], size);
    }
}

#[test]
fn wrong_answers_of_ping_pong_counted() {
    let pd = Device::open().unwrap().alloc_pd().unwrap();
    let settings = ConnectionConfig::default().private_data(r#"{"addr":0,"rkey":0,"len":64}"#);
    let listener = Listener::bind(&pd, "127.0.0.1:0".parse().unwrap(), &settings).unwrap();
    let address = listener.local_addr().to_string();
    std::thread::spawn(move || {
        let connection = listener.accept().unwrap();
        let mut messages = 0;
        while let Ok(Some(message)) = connection.recv() {
            if message.is_empty() {
                let stats = format!(r#"{{"cpu_ns":0,"messages":{messages},"wrong":0}}"#);
                connection.send_copy(stats.as_bytes()).unwrap();
                continue;
            }
            messages += 1;
            let mut answer = message.to_vec();
            answer[63] ^= u8::from(messages == 2);
            connection.send_copy(&answer).unwrap();
        }
    });
    let ping_pong = ["--latency", "--op", "send", "--size", "64", "--iterations", "3"];
    let args = [&["perf", &address, "--validate"], &ping_pong[..]].concat();
    let output = uiw(&args);
    let error = text(&output.stderr);
    assert!(error.contains("1 of 3 messages had wrong bytes"), "{error}");
}

#[test]
fn wrong_measurements_are_2() {
    for (args, says) in [
        (&["--size", "0"][..], "bytes"),
        (&["--depth", "100000"], "under way"),
        (&["-b", "--op", "send"], "Writes and Reads"),
        (&["--chain", "9", "--depth", "8"], "chain"),
        (&["--fpdu", "12"], "128"),
        (&["--latency", "--connections", "2"], "one connection"),
        (&["--latency", "--wait"], "sleeper"),
        (&["--interval", "0"], "above 0"),
        (&["--pcap", "file,snap=1"], "at least 96"),
    ] {
        fails(&[&["perf", "127.0.0.1:1"], args].concat(), 2, says);
    }
    fails(&["perf"], 2, "HOST");
    fails(&["ping", "127.0.0.1:70000"], 2, "port");
    fails(&["serve", "--listen", "nowhere:x"], 2, "nowhere");
    fails(&["serve", "--receive-memory", "1K"], 2, "at least 256K");
}

#[test]
fn taken_port_exits_with_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    fails(&["serve", "--listen", &taken.local_addr().unwrap().to_string()], 1, "--listen");
}

#[test]
fn lost_peer_exits_with_4() {
    let server = Server::start();
    let ping = Command::new(env!("CARGO_BIN_EXE_uiw"))
        .args(["ping", &server.address, "--count", "0", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut ping = ping.unwrap();
    let mut rounds = BufReader::new(ping.stdout.take().unwrap()).lines();
    rounds.next().unwrap().unwrap();
    // Its TCP is reset, as that of a process that crashed.
    server.signal(Signal::KILL);
    let _ = rounds.map_while(Result::ok).count();
    let output = ping.wait_with_output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{error}");
    assert!(is_error_and_hint(&error), "{error}");
}

#[test]
fn serve_ends_orderly_and_warns_once() {
    let server = Server::with(&["--listen", "0.0.0.0:0"]);
    let port = server.address.rsplit_once(':').unwrap().1.to_owned();
    let pings: Vec<_> = (0..8)
        .map(|_| {
            let args = ["ping", &format!("127.0.0.1:{port}"), "--count", "0", "--json"];
            let mut ping = Command::new(env!("CARGO_BIN_EXE_uiw"));
            ping.args(args)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut outputs = Vec::new();
    for mut ping in pings {
        let mut rounds = BufReader::new(ping.stdout.take().unwrap()).lines();
        rounds.next().unwrap().unwrap();
        outputs.push((ping, rounds));
    }
    server.signal(Signal::INT);
    for (mut ping, rounds) in outputs {
        let _ = rounds.map_while(Result::ok).count();
        assert_eq!(ping.wait().unwrap().code(), Some(4), "the server closed on it");
    }
    let error = server.finish();
    assert_eq!(error.matches("not encrypted").count(), 1, "{error}");
}

#[test]
fn serve_limits_addresses_and_logs() {
    let server = Server::with(&["--listen", "127.0.0.1:0", "--per-address", "2"]);
    let mut echoes: Vec<_> = (0..2).map(|_| echo(&server)).collect();
    let refused = uiw(&["ping", &server.address]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    // A place is free once the server has seen the end.
    drop(echoes.pop());
    let deadline = Instant::now() + Duration::from_secs(30);
    while !uiw(&["ping", &server.address]).status.success() {
        assert!(
            Instant::now() < deadline,
            "the place of a connection that has ended is given to another one"
        );
    }
    drop(echoes);
    let log = server.log();
    assert!(
        log.contains("2 connections of its address") && log.contains("peer=127.0.0.1:"),
        "{log}"
    );
    assert!(log.contains("service=\"ping\""), "{log}");
    assert!(!log.contains('\x1b'), "no colours in a pipe: {log}");
}

#[test]
fn serve_closes_idle_connections() {
    let server = Server::with(&["--listen", "127.0.0.1:0", "--idle-timeout", "2s"]);
    let silent = echo(&server);
    let busy = echo(&server);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let talk = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                busy.send_copy(b"still here").unwrap();
                assert_eq!(busy.recv().unwrap().as_deref(), Some(&b"still here"[..]));
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        // Nothing comes but the end.
        assert!(!matches!(silent.recv(), Ok(Some(_))));
        done.store(true, Ordering::Relaxed);
        talk.join().expect("a connection that is used stays");
    });
    drop((busy, silent));
    let log = server.log();
    assert_eq!(log.matches("idle connection closed").count(), 1, "{log}");
}

/// A connection to a server, which has echoed a message.
fn echo(server: &Server) -> Connection {
    let pd = Device::open().unwrap().alloc_pd().unwrap();
    let address = server.address.parse().unwrap();
    let connection = Connection::connect(&pd, address, &ConnectionConfig::default()).unwrap();
    connection.send_copy(b"first").unwrap();
    assert_eq!(connection.recv().unwrap().as_deref(), Some(&b"first"[..]));
    connection
}

/// Starts `uiw ping` without an end. Returns it after its first round, with its further output.
fn endless_ping(server: &Server, options: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uiw"));
    command.args(["ping", &server.address, "--count", "0", "--json"]).args(options);
    let mut ping = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(ping.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    (ping, lines)
}

#[test]
fn ping_prints_summary_on_signal() {
    let server = Server::start();
    let (mut ping, lines) = endless_ping(&server, &["--interval", "0.001"]);
    kill_process(Pid::from_child(&ping), Signal::TERM).unwrap();
    let last: Value = serde_json::from_str(&lines.map_while(Result::ok).last().unwrap()).unwrap();
    assert_eq!(last["type"], "summary");
    assert_eq!(ping.wait().unwrap().code(), Some(0));
}

#[test]
fn ping_prints_summary_if_server_ends() {
    let server = Server::start();
    let (mut ping, lines) = endless_ping(&server, &[]);
    server.signal(Signal::KILL);
    assert!(lines.map_while(Result::ok).last().unwrap().contains("summary"));
    assert_eq!(ping.wait().unwrap().code(), Some(4));
}

#[test]
fn ping_of_stopped_server_ends_on_signal() {
    // All of them wait at the same time for the server to close.
    let pings = [&["--op", "send"][..], &["--op", "read"], &["--rping"]].map(|op| {
        let server = Server::start();
        let (ping, lines) = endless_ping(&server, op);
        server.signal(Signal::STOP);
        kill_process(Pid::from_child(&ping), Signal::TERM).unwrap();
        (op, server, ping, lines)
    });
    for (op, _server, mut ping, lines) in pings {
        assert!(lines.map_while(Result::ok).last().unwrap().contains("summary"), "{op:?}");
        assert_eq!(ping.wait().unwrap().code(), Some(0), "{op:?}");
    }
}

#[test]
fn capture_of_run_decoded() {
    let server = Server::start();
    let capture = TempFile::new("run.pcapng", 0);
    let args = [
        "ping",
        &server.address,
        "--count",
        "4",
        "--op",
        "write",
        "--size",
        "70000",
        "--pcap",
        capture.name(),
    ];
    assert!(uiw(&args).status.success());
    let decoded = uiw(&["decode", "--json", capture.name()]);
    let writes =
        objects(&decoded).iter().filter(|object| object.to_string().contains("RDMA Write")).count();
    assert!(writes >= 4, "{}", text(&decoded.stdout));
}

#[test]
fn foreign_peers_are_echoed() {
    let server = Server::start();
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let settings =
        |private_data: &[u8]| ConnectionConfig::default().private_data(private_data.to_vec());
    let peer = server.address.parse().unwrap();
    let connection = Connection::connect(&pd, peer, &settings(b"somebody else's")).unwrap();
    // Sixteen bytes that describe no buffer are no rping.
    for message in [&[0u8; 16][..], b"hello", &[7; 10_000]] {
        connection.send_copy(message).unwrap();
        assert_eq!(&*connection.recv().unwrap().unwrap(), message);
    }
    connection.disconnect().unwrap();
    let unknown = Connection::connect(&pd, peer, &settings(b"uiw-perf/99 {}"));
    let unknown = unknown.unwrap_err();
    assert!(matches!(unknown.kind(), uiw::ErrorKind::Rejected { .. }), "{unknown:?}");
}

/// `uiw serve` at an address: what it says on standard error before it is ended.
fn warnings_of(address: &str, log: Option<&str>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uiw"));
    command.args(["serve", "--until-stdin-ends", "--listen", address]).env_remove("UIW_LOG");
    if let Some(log) = log {
        command.env("UIW_LOG", log);
    }
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stderr)
}

/// A server that listens beyond this machine warns of cleartext in its log.
#[test]
fn reachable_listener_warns_about_encryption() {
    let warnings = warnings_of("0.0.0.0:0", None);
    assert_eq!(
        (warnings.lines().count(), warnings.matches("the wire is not encrypted").count()),
        (1, 1),
        "{warnings}"
    );
    let warnings = warnings_of("0.0.0.0:0", Some("warn"));
    assert_eq!(
        warnings
            .lines()
            .filter(|line| line.contains("WARN") && line.contains("not encrypted"))
            .count(),
        1,
        "{warnings}"
    );
    assert_eq!(warnings_of("0.0.0.0:0", Some("off")), "");
    assert_eq!(warnings_of("127.0.0.1:0", Some("warn")), "");
    assert_eq!(warnings_of("[::1]:0", Some("warn")), "");
}

/// What would be ignored is refused, and what is given to a program reaches it.
#[test]
fn options_heeded_or_refused() {
    for args in [
        &["--llp", "tcp", "doctor"][..],
        &["--llp", "tcp", "env"],
        &["--llp", "tcp", "wan", "a", "b"],
        &["--llp", "tcp", "decode", "file"],
        &["--llp", "tcp", "demo"],
    ] {
        fails(args, 2, "--llp tcp: ");
    }
    // Help lists what is heeded, and no more.
    for (command, lists) in [
        ("wan", [false, false]),
        ("decode", [false, false]),
        ("doctor", [true, true]),
        ("env", [false, false]),
        ("devices", [true, false]),
        ("demo", [false, true]),
        ("serve", [true, true]),
    ] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_uiw")).args([command, "--help"]).output().unwrap();
        let help = text(&output.stdout);
        let listed = ["--llp", "--pcap"]
            .map(|option| help.lines().any(|l| l.trim_start().starts_with(option)));
        assert_eq!((output.status.code(), listed), (Some(0), lists), "{command}: {help}");
    }
    let capture = std::env::temp_dir().join(format!("uiw-{}-none.pcapng", std::process::id()));
    fails(&["--pcap", capture.to_str().unwrap(), "wan", "a", "b"], 2, "makes no connections");
    assert!(!capture.exists(), "a capture that nothing would be written to");
    fails(
        &["--llp", "quic", "serve"],
        2,
        "or xdp:IFACE,ip=ADDR/PREFIX\nhint: see `uiw serve --help`",
    );
    fails(
        &["run", "rping", "-v"],
        2,
        "found\nhint: `--` goes in front of the program, as in `uiw run -- PROGRAM`;",
    );

    let folder = std::env::temp_dir().join(format!("uiw-{}-lib", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        std::fs::write(folder.join(library), b"").unwrap();
    }
    let spec = "packet:eth0,ip=10.1.0.2/24,gw=10.1.0.1";
    let output = Command::new(env!("CARGO_BIN_EXE_uiw"))
        .args(["--llp", spec, "run", "--", "sh", "-c", "echo $UIW_LLP"])
        .env("UIW_LIB", &folder)
        .env("UIW_LLP", "tcp")
        .output()
        .unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(text(&output.stdout).trim(), spec, "{}", text(&output.stderr));
}

#[test]
fn unwritable_results_are_error() {
    for arguments in [&["env"][..], &["devices"], &["doctor", "--json"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output =
            Command::new(env!("CARGO_BIN_EXE_uiw")).args(arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            error.contains("cannot write the results: No space left"),
            "{arguments:?}: {error}"
        );
    }
}

#[test]
fn piped_log_has_no_colours() {
    let output = Command::new(env!("CARGO_BIN_EXE_uiw"))
        .args(["ping", "127.0.0.1:1"])
        .env("UIW_LOG", "debug")
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("DEBUG") && !log.contains('\u{1b}'), "{log}");
}

#[test]
fn zero_duration_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_uiw"))
        .args(["perf", "127.0.0.1", "--seconds", "0"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("above 0"));
}

#[test]
fn empty_variable_counts_as_absent() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uiw"));
    let command =
        command.args(["ping", "127.0.0.1:1"]).env("UIW_IRD", "").env("UIW_DEAD_AFTER", "");
    assert_eq!(command.output().unwrap().status.code(), Some(3), "only the connection fails");
    let wrong = command.env("UIW_IRD", "many").output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}

/// A service manager sends SIGHUP to reload; only SIGTERM ends a service.
#[test]
fn service_without_tls_survives_hangup() {
    let server = Server::start();
    server.signal(Signal::HUP);
    // The signal is handled by a thread: by the second ping it was.
    for _ in 0..2 {
        assert!(uiw(&["ping", &server.address, "--count", "20"]).status.success());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Standard error on a device that is full.
fn without_errors(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uiw"));
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    command.args(args).stdin(Stdio::null()).stderr(full);
    command
}

#[test]
fn unwritable_errors_keep_exit_code() {
    let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (args, code) in
        [(&["ping", &refused, "-vvv"][..], 3), (&["ping", "127.0.0.1:1", "--size", "0"], 2)]
    {
        let status = without_errors(args).stdout(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{args:?}");
    }
}

#[test]
fn server_with_unwritable_log_serves() {
    let mut server = without_errors(&["serve", "--listen", "127.0.0.1:0", "-vvv"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("listening on ").unwrap().trim();
    for _ in 0..3 {
        // A peer that does not speak iWARP is logged.
        let mut junk = std::net::TcpStream::connect(address).unwrap();
        std::io::Write::write_all(&mut junk, &[b'x'; 100]).unwrap();
        let _ = std::io::Read::read(&mut junk, &mut [0; 9]);
        let output = uiw(&["ping", address, "-c", "2", "--json"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

/// What is only printed ends with its reader.
#[test]
fn endless_ping_ends_with_reader() {
    let server = Server::start();
    let mut ping = Command::new(env!("CARGO_BIN_EXE_uiw"));
    ping.args(["ping", &server.address, "-c", "0", "-i", "0.01"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut ping = ping.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(ping.stdout.take().unwrap()).read_line(&mut line).unwrap();
    // The pipe is closed.
    assert_eq!(ping.wait().unwrap().code(), Some(0), "{line}");
}

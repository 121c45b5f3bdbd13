//! The program as a person runs it: what it prints where, and its exit codes.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

fn uiw(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uiw")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

/// One line on standard error, and this exit code.
fn fails(args: &[&str], code: i32, says: &str) {
    let output = uiw(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
    assert_eq!(error.lines().count(), 1, "{args:?}: {error}");
    assert!(error.starts_with("uiw: ") && error.contains(says), "{args:?}: {error}");
    assert!(output.stdout.is_empty(), "{args:?}: {}", text(&output.stdout));
}

/// A file of some octets, gone when dropped.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, octets: usize) -> Self {
        let path = std::env::temp_dir().join(format!("uiw-{}-{name}", std::process::id()));
        std::fs::write(&path, (0..octets).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<_>>()).unwrap();
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

/// `uiw serve` on a free port, ended when dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_uiw"))
            .args(["serve", "--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:"));
        let address =
            address.unwrap_or_else(|| panic!("no address in {line:?}")).trim_end_matches([',', ':']);
        Self { child, address: address.to_owned() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn demo_verifies_every_line() {
    let file = TempFile::new("demo", 300_000);
    let output = uiw(&["demo", "--json", file.name()]);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let lines: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() >= 14, "{} lines", lines.len());
    assert!(lines.iter().all(|line| line["verified"] != false), "{lines:?}");
    assert!(output.stderr.is_empty(), "no progress unless standard error is a terminal");
}

#[test]
fn a_file_that_is_not_there_is_told_in_one_line() {
    fails(&["demo", "/nonexistent/file"], 2, "/nonexistent/file");
    fails(&["decode", "/nonexistent/file"], 2, "/nonexistent/file");
}

#[test]
fn wrong_arguments_are_told_in_one_line() {
    fails(&["ping", "127.0.0.1:1", "--size", "elephants"], 2, "elephants");
    fails(&["perf", "127.0.0.1:1", "--op", "levitate"], 2, "levitate");
    fails(&["levitate"], 2, "levitate");
}

#[test]
fn nobody_there_is_3() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let peer = format!("127.0.0.1:{port}");
    fails(&["ping", &peer], 3, "nobody listens");
    fails(&["perf", &peer, "--seconds", "1"], 3, "nobody listens");
}

#[test]
fn a_peer_that_speaks_something_else_is_3() {
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
        &["perf", address, "--seconds", "1", "--op", "read", "--size", "1K"],
        &["perf", address, "--seconds", "1", "--op", "fetch-add"],
        &["perf", address, "--seconds", "1", "--op", "write-imm", "--size", "4K"],
    ] {
        let output = uiw(args);
        assert!(output.status.success(), "{args:?}: {}{}", text(&output.stdout), text(&output.stderr));
        assert!(!output.stdout.is_empty(), "{args:?}");
    }
}

//! Tests that each example runs and prints the expected text.

use std::path::PathBuf;
use std::process::Command;

/// Runs an example, which Cargo builds in the folder next to the tests.
fn example(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.join("examples").join(name)
}

fn runs(name: &str, says: &str) {
    let output = Command::new(example(name)).output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{name}: {out}{}", String::from_utf8_lossy(&output.stderr));
    assert!(out.contains(says), "{name} does not say {says:?}: {out}");
}

#[test]
fn send_recv() {
    runs("send_recv", "client got \"and good day to you\"");
}

#[test]
fn write() {
    runs("write", "the server saw them: true");
}

#[test]
fn read() {
    runs("read", "the counter was 0, now is 5");
}

#[test]
fn pingpong() {
    runs("pingpong", "10000 round trips");
}

#[test]
fn async_echo() {
    runs("async_echo", "three came back");
}

#[test]
fn rpc() {
    runs("rpc", "three became THREE");
}

#[test]
fn http() {
    runs("http", "GET /large: 200 OK, 1000000 bytes");
    runs("http", "POST /echo: 200 OK, \"good day\"");
    runs("http", "GET /elsewhere: 404 Not Found, 0 bytes");
}

#[test]
fn key_value() {
    runs("key_value", "planet: Some(\"Neptune\"), moons: Some(\"16\"), rings: None");
}

#[test]
fn file_transfer() {
    runs("file_transfer", "sent 5000000 bytes, received 5000000, the same: true");
}

#[test]
fn ninep_bridge() {
    runs("ninep_bridge", "19 bytes went through cat, the same: true");
}

const EMBEDDED: &str = "initiator: received [\"welcome\"], the peer terminated the stream: \
     DDP: tagged buffer: base or bounds violation (1/1/0x01)";

#[test]
fn embed_stream() {
    runs("embed_stream", EMBEDDED);
}

#[test]
fn embed_smoltcp() {
    runs("embed_smoltcp", EMBEDDED);
}

/// The first program in the README is the same as the example.
#[test]
fn readme_shows_send_recv() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("../README.md")).unwrap();
    let example = std::fs::read_to_string(root.join("send_recv.rs")).unwrap();
    let body = &example[example.find("use std::error::Error;").unwrap()..];
    assert!(readme.contains(body), "README.md and examples/send_recv.rs have parted");
}

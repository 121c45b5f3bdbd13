//! Runs `uiw siwtest --raw` against a responder in Python that shares no code with uiw.

use std::path::Path;
use std::process::Command;
use uiw_interop::stock::{ProcessEnd, Running, uiw};

/// Runs the requests and returns the results of both ends.
fn exchange(python: &Path, requests: &[&str]) -> [ProcessEnd; 2] {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/raw_responder.py");
    let mut responder = Command::new(python);
    responder.arg(script);
    let mut responder = Running::start(responder);
    responder.wait_saying("port ");
    let port = responder.said().split_whitespace().nth(1).expect("a port").to_owned();
    let mut initiator = Command::new(uiw());
    initiator.args(["siwtest", &format!("127.0.0.1:{port}"), "--raw"]).args(requests);
    initiator.args(["--rtr", "write", "--timeout", "3"]);
    [Running::start(initiator).end(), responder.end()]
}

/// Returns the bytes 0 to `count` - 1 in hexadecimal.
fn bytes(count: u8) -> String {
    (0..count).map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn single_requests_reach_foreign_responder() {
    let Some(python) = uiw_interop::require("python3") else { return };
    let requests = [
        "send:48",
        "recv",
        "write:0x1234:0x1010:40",
        "read:0x1234:0x1008:48",
        "read:7:7:0",
        "send:0",
        "recv",
    ];
    let [ours, theirs] = exchange(&python, &requests);
    assert_eq!(ours.code, 0, "{ours:?}\n{theirs:?}");
    let reversed: String = (0..48u8).rev().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(ours.count(&format!("received 48 bytes: {reversed}")), 1, "{ours:?}");
    assert_eq!(ours.count("received 0 bytes: "), 1, "{ours:?}");
    // The eight bytes before the written range are unchanged.
    let read = format!("done read:0x1234:0x1008:48: {}{}", "00".repeat(8), bytes(40));
    assert_eq!(ours.count(&read), 1, "{ours:?}");
    assert_eq!(theirs.count(&format!("send {}", bytes(48))), 1, "{theirs:?}");
    assert_eq!((theirs.count("end: 0 of 2 bytes"), theirs.code), (1, 0), "{theirs:?}");
}

#[test]
fn missing_message_is_error() {
    let Some(python) = uiw_interop::require("python3") else { return };
    let [ours, theirs] = exchange(&python, &["recv"]);
    assert_eq!(
        (ours.code, ours.count("recv has not completed in time")),
        (4, 1),
        "{ours:?} {theirs:?}"
    );
}

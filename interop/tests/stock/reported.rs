//! Runs programs under `uiw run` and reads its report of the transferred data.

use serde_json::Value;
use std::process::Command;
use uiw_interop::stock::{Libraries, ProcessEnd, User, uiw};

/// Returns a command that runs `program` under `uiw run` with `options`.
pub(crate) fn run(libraries: &Libraries, options: &[&str], program: &[&str]) -> Command {
    around(libraries, &[], options, program)
}

/// Like [`run`], but with PID, IPC and UTS namespaces of its own and in the network namespace of
/// the caller, so that only the network connects both ends. All processes are killed together with
/// the command.
pub(crate) fn isolated(libraries: &Libraries, options: &[&str], program: &[&str]) -> Command {
    let unshare =
        ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "--uts", "--"];
    around(libraries, &unshare, options, program)
}

fn around(libraries: &Libraries, outside: &[&str], options: &[&str], program: &[&str]) -> Command {
    let uiw = uiw().to_str().expect("a path of text");
    let words = [outside, &[uiw, "run"], options, &["--"], program].concat();
    let mut command = libraries.command(User::Same, words[0]);
    command
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("UIW_COUNTERS")
        .env("UIW_LIB", libraries.folder());
    command.args(&words[1..]);
    command
}

/// Parses the report written with `--json`.
pub(crate) fn report(ended: &ProcessEnd) -> Value {
    parsed(&ended.said)
}

/// Parses a report that is surrounded by other lines.
pub(crate) fn parsed(said: &str) -> Value {
    let line = said.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("{said}"));
    serde_json::from_str(line).unwrap()
}

pub(crate) fn number(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("{name} of {report}"))
}

/// Returns the payload of all operations on RC queue pairs in both directions, in bytes.
pub(crate) fn reliable(report: &Value) -> u64 {
    number(report, "bytes_sent") + number(report, "bytes_received")
}

/// Returns the payload of datagrams in both directions, in bytes.
pub(crate) fn unreliable(report: &Value) -> u64 {
    let moved = &report["datagrams"]["with_others"];
    number(&moved["sent"], "bytes") + number(&moved["received"], "bytes")
}

/// Returns the number of datagrams in the direction `way`, "sent" or "received".
pub(crate) fn unreliable_messages(report: &Value, way: &str) -> u64 {
    number(&report["datagrams"]["with_others"][way], "messages")
}

/// Asserts that at least `payload` bytes were transferred, and 95 % of all bytes on RC queue pairs.
#[track_caller]
pub(crate) fn is_reliable(report: &Value, payload: u64) {
    let (rc, ud) = (reliable(report), unreliable(report));
    assert!(rc >= payload, "{rc} of {payload}: {report}");
    assert!(rc as f64 >= 0.95 * (rc + ud) as f64, "{rc} and {ud}: {report}");
}

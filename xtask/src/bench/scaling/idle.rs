//! Bytes moved by a thread that polls the queue of an idle queue pair, counted by strace from that thread's system calls.

use super::super::programs;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

pub(super) const PROGRAM: &str = "idle";

/// Calls that move a stream's bytes, and the one that begins and ends the phase that counts.
const CALLS: &str = "trace=sendmsg,sendto,sendmmsg,recvmsg,recvfrom,recvmmsg,readv,writev,getppid";
const MARK: &str = "getppid";

/// The program under strace, without the program's arguments.
pub(super) fn command(program: &Path, libraries: &Path, folder: &Path) -> Command {
    let mut command = programs::command("strace".as_ref(), libraries);
    command.args(["--follow-forks", "--string-limit=0", "-e", CALLS, "-e", "verbose=none", "--output"]);
    command.arg(folder.join("strace.out")).arg(program);
    command
}

/// The program's output, with `bytes` that its polling thread moved.
pub(super) fn with_bytes(mut output: Value, folder: &Path) -> Result<Value, String> {
    let out = folder.join("strace.out");
    let trace = fs::read_to_string(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let thread = output["thread"].as_u64().ok_or_else(|| format!("no thread in {output}"))?;
    output["bytes"] = json!(bytes(&trace, thread)?);
    Ok(output)
}

/// Bytes that a thread's calls moved between its two marks.
fn bytes(trace: &str, thread: u64) -> Result<u64, String> {
    let mut marks = 0;
    let mut moved = 0;
    for line in trace.lines() {
        let Some((number, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        if number.parse() != Ok(thread) {
            continue;
        }
        if call.contains(MARK) {
            // The second line of an interrupted call marks nothing.
            marks += u32::from(call.starts_with(MARK));
        } else if marks == 1 {
            // A call during which another thread makes one has two lines; the second has the result.
            let result = call.rsplit_once("= ").and_then(|(_, result)| result.split(' ').next());
            moved += result.and_then(|result| result.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    if marks == 2 {
        Ok(moved)
    } else {
        Err(format!("strace saw {marks} marks of thread {thread} instead of 2"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
7 sendmsg(3, 0x7ffe, 0) = 1000
7 getppid( <unfinished ...>
8 sendto(9, \"\"..., 64, 0, NULL, 0) = 64
7 <... getppid resumed>) = 1
7 sendto(9, \"\"..., 64, 0, NULL, 0 <unfinished ...>
8 recvfrom(9, \"\"..., 64, 0, NULL, NULL) = 64
7 <... sendto resumed>) = 40
7 recvfrom(9, \"\"..., 64, 0, NULL, NULL) = 24
7 recvfrom(9, 0x1, 64, 0, NULL, NULL) = -1 EAGAIN (Resource temporarily unavailable)
7     getppid() = 1
7 sendmsg(3, 0x7ffe, 0) = 1000
8 +++ exited with 0 +++
";

    #[test]
    fn only_the_thread_between_its_marks_counts() {
        assert_eq!(bytes(TRACE, 7), Ok(64));
        assert!(bytes(TRACE, 8).is_err());
        assert!(bytes(&TRACE.replace("7     getppid() = 1\n", ""), 7).is_err());
    }
}

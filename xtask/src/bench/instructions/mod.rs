//! Counts instructions, locked instructions and system calls of a round under callgrind, and
//! compares them with the committed figures. The counts are stable even on a busy machine.
//!
//! The figures are the difference between a long and a short run of `rounds`, so that the startup
//! of the program does not count. `rounds` is an example of `uiw-verbs`, or `programs/rounds.c` for
//! the cases of the C libraries, whose names begin with `c-`. Instructions of the kernel are not
//! counted. A string instruction counts once for each byte that it copies, and valgrind does not
//! support wide vectors, so the figures of large messages show changes but do not predict time.

mod figures;

use super::programs::{self, Lab, clean_command, output, require_programs};
use super::{RatioLine, TableRow};
use figures::Cost;
pub(super) use figures::HEAD;
use std::fs;
use std::process::Command;
use uiw_siw::{Error, Result};

/// Maximum number of times that a case is counted if it exceeds a limit. The smallest count is
/// used, because background threads and the load of the machine increase a count.
const TRIES: usize = 3;

/// Cases, each with the number of rounds of its short run. The long run has twice as many.
const CASES: [(&str, u32); 24] = [
    ("send-64-ping-pong", 5000),
    ("write-64", 100),
    ("write-64-chain", 100),
    ("send-64", 100),
    ("send-64-chain", 100),
    ("read-64", 100),
    ("fetch-add", 100),
    ("write-64000", 40),
    ("write-1M", 100),
    ("write-1M-small-fpdus", 100),
    ("write-1M-markers", 100),
    ("read-1M", 100),
    ("c-send-64-ping-pong", 5000),
    ("c-send-64", 100),
    ("c-send-64-chain", 100),
    ("c-send-64-inline-ping-pong", 5000),
    ("c-send-64-inline", 100),
    ("c-send-64-inline-chain", 100),
    ("c-send-64-srq-ping-pong", 5000),
    ("c-send-64-srq", 100),
    ("c-send-64-srq-chain", 100),
    ("c-ack-send-64-ping-pong", 5000),
    ("c-ack-send-64", 100),
    ("c-ack-write-64", 100),
];

pub(super) fn rows() -> Vec<TableRow> {
    CASES
        .into_iter()
        .map(|(case, rounds)| TableRow::new(case, None, move |lab| measure(lab, case, rounds)))
        .collect()
}

fn measure(lab: &Lab, case: &str, rounds: u32) -> Result<Vec<RatioLine>> {
    let is_c = case.starts_with("c-");
    require_programs(&[("valgrind", "valgrind")])?;
    let program = match is_c {
        true => programs::command_with_libraries(&lab.c_program("rounds")?, &lab.libraries()?),
        false => clean_command(lab.example("uiw-verbs", "rounds", "")?),
    };
    let count = || count(lab, &program, case, rounds);
    if lab.options.tsv {
        let counts = (0..TRIES).map(|_| count()).collect::<Result<Vec<_>>>()?;
        println!("{}", figures::line(case, &counts));
        return Ok(Vec::new());
    }
    let mut cost = count()?;
    let compared = |cost: Cost| figures::lines(figures::committed(case).unwrap_or([cost; 2]), cost, is_c);
    for _ in 1..TRIES {
        if compared(cost).iter().all(|line| line.verdict().0 == Some(true)) {
            break;
        }
        let again = count()?;
        cost = [0, 1, 2].map(|at| cost[at].min(again[at]));
    }
    Ok(compared(cost))
}

/// Counts the cost of one round of a program.
fn count(lab: &Lab, command: &Command, case: &str, rounds: u32) -> Result<Cost> {
    let mut runs = Vec::new();
    for times in [1, 2] {
        runs.push(profile(lab, command, &[case, &(times * rounds).to_string()])?);
    }
    Ok([0, 1, 2].map(|at| (runs[1][at] - runs[0][at]) / f64::from(rounds)))
}

/// Runs a program under callgrind. Only its first thread is counted, because the work of the C
/// libraries' background thread depends on time.
fn profile(lab: &Lab, program: &Command, args: &[&str]) -> Result<Cost> {
    let out = lab.folder.join("callgrind.out");
    let mut command = clean_command("valgrind");
    command.args([
        "--tool=callgrind",
        "--collect-systime=yes",
        "--collect-bus=yes",
        "--separate-threads=yes",
    ]);
    command.arg(format!("--callgrind-out-file={}", out.display()));
    command.arg(program.get_program()).args(args);
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    output(&command)?;
    // callgrind writes one file for each thread; the first thread has number 1.
    let dump = fs::read_to_string(out.with_extension("out-01")).unwrap_or_default();
    summary(&dump).ok_or_else(|| Error::Failed("callgrind counted nothing".to_owned()))
}

/// Returns the sums of a dump (<https://valgrind.org/docs/manual/cl-format.html>). A "global bus
/// event" is a locked instruction.
fn summary(dump: &str) -> Option<Cost> {
    let words = |name: &str| dump.lines().find_map(|line| line.strip_prefix(name)).map(str::split_whitespace);
    let events: Vec<&str> = words("events: ")?.collect();
    let sums: Vec<f64> = words("summary: ")?.map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
    let sum = |name: &str| sums.get(events.iter().position(|event| *event == name)?).copied();
    Some([sum("Ir")?, sum("Ge")?, sum("sysCount")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_dump_read() {
        let dump =
            "version: 1\nevents: Ir Ge sysCount sysTime\nsummary: 17 2 3 40\n\nob=/lib/libc.so.6\n0x40 5\n";
        assert_eq!(summary(dump), Some([17.0, 2.0, 3.0]));
        assert_eq!(summary(&dump.replace("Ge", "Xe")), None);
        assert_eq!(summary(""), None);
    }
}

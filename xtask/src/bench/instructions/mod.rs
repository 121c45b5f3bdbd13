//! Counts instructions, locked instructions and system calls of a round under callgrind, and
//! compares them with the committed figures. The counts are stable even on a busy machine. Also
//! measures the processor time of a round without callgrind, which has no committed figure.
//!
//! The figures are the difference between a long and a short run of `rounds`, so that the startup
//! of the program does not count. `rounds` is an example of `uiw-verbs`, or `programs/rounds.c` for
//! the cases of the C libraries, whose names begin with `c-`. Instructions of the kernel are not
//! counted. A string instruction counts once for each byte that it copies, and valgrind does not
//! support wide vectors, so the figures of large messages show changes but do not predict time.

mod figures;

use super::programs::{self, ExampleProgram, Lab, clean_command, output, require_programs};
use super::{RatioLine, TableRow};
pub(super) use figures::HEAD;
use figures::{Cost, ThreadCost};
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
        false => clean_command(lab.example(ExampleProgram::Rounds)?),
    };
    let count = || count(lab, &program, case, rounds);
    if lab.options.tsv {
        let counts = (0..TRIES).map(|_| count()).collect::<Result<Vec<_>>>()?;
        println!("{}", figures::line(case, &counts));
        return Ok(Vec::new());
    }
    let mut cost = count()?;
    let compared = |cost: Cost| {
        let before = figures::committed(case).unwrap_or((cost, [cost[0], cost[1], cost[2]]));
        figures::lines(before, cost, is_c)
    };
    for _ in 1..TRIES {
        if compared(cost).iter().all(|line| line.verdict().0 == Some(true)) {
            break;
        }
        let again = count()?;
        cost = [0, 1, 2, 3].map(|at| cost[at].min(again[at]));
    }
    let mut lines = compared(cost);
    lines[0].note +=
        &format!(", {:.0} ns of processor time", processor_time(&program, case, rounds)?);
    Ok(lines)
}

/// Counts the cost of one round of a program.
fn count(lab: &Lab, command: &Command, case: &str, rounds: u32) -> Result<Cost> {
    let mut runs = Vec::new();
    for times in [1, 2] {
        runs.push(profile(lab, command, &[case, &(times * rounds).to_string()])?);
    }
    Ok([0, 1, 2, 3].map(|at| (runs[1][at] - runs[0][at]) / f64::from(rounds)))
}

/// Runs a program under callgrind. The cost of the first thread is counted separately, because the
/// work of the C libraries' background thread depends on time.
fn profile(lab: &Lab, program: &Command, args: &[&str]) -> Result<Cost> {
    let folder = lab.fresh_folder("callgrind")?;
    let mut command = clean_command("valgrind");
    command.args(["--tool=callgrind", "--collect-systime=yes"]);
    command.args(["--collect-bus=yes", "--separate-threads=yes"]);
    command.arg(format!("--callgrind-out-file={}", folder.join("out").display()));
    run_under(command, program, args)?;
    // callgrind writes one file for each thread; the first thread has number 1.
    let dump = |number| fs::read_to_string(folder.join(format!("out-{number:02}"))).ok();
    let threads: Vec<_> = (1..).map_while(|number| summary(&dump(number)?)).collect();
    let &[instructions, locked, calls] =
        threads.first().ok_or_else(|| Error::Failed("callgrind counted nothing".to_owned()))?;
    Ok([instructions, locked, calls, threads.iter().map(|thread| thread[0]).sum()])
}

/// Runs a program and its arguments as the arguments of another command, in the environment of both.
fn run_under(mut command: Command, program: &Command, args: &[&str]) -> Result<()> {
    command.arg(program.get_program()).args(args);
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    output(&command).map(|_| ())
}

/// Minimum processor time of the rounds that are measured, in seconds.
const MEASURED: f64 = 1.0;

/// Measures the user and system time of a round in nanoseconds, for all threads together.
fn processor_time(program: &Command, case: &str, rounds: u32) -> Result<f64> {
    let time = |rounds: u32| {
        let before = children_time()?;
        run_under(clean_command("env"), program, &[case, &rounds.to_string()])?;
        Ok::<_, Error>(children_time()? - before)
    };
    let short = time(rounds)?;
    let mut more = rounds;
    loop {
        more *= 4;
        let took = time(rounds + more)? - short;
        if took >= MEASURED {
            return Ok(took / f64::from(more) * 1e9);
        }
    }
}

/// Returns the processor time in seconds of the child processes that have ended.
fn children_time() -> Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    ended_time(&stat).ok_or_else(|| Error::Failed("/proc/self/stat cannot be read".to_owned()))
}

/// Reads the fields cutime and cstime of `/proc/self/stat` (proc_pid_stat(5)), which count in
/// hundredths of a second. The third field is the first one after the name in parentheses.
fn ended_time(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(13).map(str::parse::<f64>);
    Some((fields.next()?.ok()? + fields.next()?.ok()?) / 100.0)
}

/// Returns the sums of a dump (<https://valgrind.org/docs/manual/cl-format.html>). A "global bus
/// event" is a locked instruction.
fn summary(dump: &str) -> Option<ThreadCost> {
    let words = |name: &str| {
        dump.lines().find_map(|line| line.strip_prefix(name)).map(str::split_whitespace)
    };
    let events: Vec<&str> = words("events: ")?.collect();
    let sums: Vec<f64> =
        words("summary: ")?.map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
    let sum = |name: &str| sums.get(events.iter().position(|event| *event == name)?).copied();
    Some([sum("Ir")?, sum("Ge")?, sum("sysCount")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_dump_read() {
        let dump = "version: 1\nevents: Ir Ge sysCount sysTime\nsummary: 17 2 3 40\n\nob=/lib/libc.so.6\n0x40 5\n";
        assert_eq!(summary(dump), Some([17.0, 2.0, 3.0]));
        assert_eq!(summary(&dump.replace("Ge", "Xe")), None);
        assert_eq!(summary(""), None);
    }

    #[test]
    fn time_of_children_read() {
        let stat = "7 (a) b) R 1 7 7 0 -1 4194304 97 301 0 0 11 12 150 25 20 0 1 0 5 6 7\n";
        assert_eq!(ended_time(stat), Some(1.75));
        assert_eq!(ended_time("7 (a) R 1"), None);
    }
}

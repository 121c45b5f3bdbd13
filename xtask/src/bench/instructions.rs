//! `cargo xtask bench instructions`: instructions a round under callgrind, beside the committed figures.
//!
//! The difference of a long and a short run of `rounds` (an example of `uiw-verbs`), so that starting up does not count. Kernel
//! instructions are not counted. Octets copied by one string instruction count one each, and valgrind has no wide vectors: the
//! figures of large messages tell of changes, not of time.

use std::process::{Command, ExitCode};

/// The committed figures: case and instructions a round.
const COMMITTED: &str = include_str!("instructions.tsv");
/// A figure counts as more when it is so many times the committed one.
const MORE: f64 = 1.02;

/// Case, and rounds of the short run; the long one has twice as many.
const CASES: &[(&str, u64)] = &[
    ("send-64-ping-pong", 5000),
    ("write-64", 100),
    ("write-64-chain", 100),
    ("send-64", 100),
    ("send-64-chain", 100),
    ("read-64", 100),
    ("fetch-add", 100),
    ("write-64000", 40),
    ("write-1M", 40),
    ("write-1M-small-fpdus", 40),
    ("write-1M-markers", 40),
    ("read-1M", 40),
];

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "\
Prints a line a case: instructions a round of both ends together, the committed figure, and their ratio. Exit code 1 when a case
takes 2 % more than committed. Needs valgrind.")]
pub(crate) struct Options {
    /// Only cases whose name contains this
    #[arg(long, value_name = "SUBSTR")]
    only: Option<String>,
    /// Lines for the file of committed figures
    #[arg(long)]
    tsv: bool,
}

/// Counts.
pub(crate) fn run(options: &Options) -> ExitCode {
    let rounds = match build() {
        Ok(rounds) => rounds,
        Err(why) => {
            eprintln!("xtask: {why}");
            return ExitCode::FAILURE;
        }
    };
    let mut fine = true;
    for (case, count) in CASES {
        if options.only.as_ref().is_some_and(|only| !case.contains(only.as_str())) {
            continue;
        }
        let figure = counted(&rounds, case, *count).and_then(|short| {
            let long = counted(&rounds, case, 2 * count)?;
            Ok((long - short) / *count as f64)
        });
        match figure {
            Ok(now) if options.tsv => println!("{case}\t{now:.0}"),
            Ok(now) => fine &= compare(case, now),
            Err(why) => {
                eprintln!("xtask: {case}: {why}");
                fine = false;
            }
        }
    }
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Builds the example and says where it is.
fn build() -> Result<String, String> {
    let output = Command::new(env!("CARGO"))
        .args(["build", "--release", "-p", "uiw-verbs", "--example", "rounds", "--message-format", "json"])
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    let lines = String::from_utf8_lossy(&output.stdout);
    let artifacts = lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let found =
        artifacts.filter_map(|artifact| artifact["executable"].as_str().map(str::to_owned)).next_back();
    found.ok_or_else(|| "building the example `rounds` failed".to_owned())
}

/// Instructions of one run.
fn counted(rounds: &str, case: &str, count: u64) -> Result<f64, String> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", rounds, case, &count.to_string()])
        .output()
        .map_err(|error| format!("valgrind: {error}; on Debian `apt-get install valgrind`"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(said.lines().last().unwrap_or("the run failed").to_owned());
    }
    let line = said.lines().find_map(|line| line.split_once("Collected :"));
    let number = line.and_then(|(_, number)| number.trim().parse().ok());
    number.ok_or_else(|| "callgrind says no count".to_owned())
}

/// Prints a figure beside the committed one. False when it is more.
fn compare(case: &str, now: f64) -> bool {
    let committed =
        COMMITTED.lines().find_map(|line| line.split_once('\t').filter(|(name, _)| *name == case));
    let Some(before) = committed.and_then(|(_, figure)| figure.parse::<f64>().ok()) else {
        println!("{case:24} {now:12.0} (no committed figure)");
        return true;
    };
    let ratio = now / before;
    let more = ratio > MORE;
    let word = if more { "  more" } else { "" };
    println!("{case:24} {now:12.0} committed {before:12.0}  {ratio:.3}{word}");
    !more
}

//! `cargo xtask bench instructions`: instructions, locked instructions and system calls of a round under callgrind, beside the
//! committed figures.
//!
//! The difference of a long and a short run of `rounds` (an example of `uiw-verbs`, and `programs/rounds.c` for the C libraries), so
//! that starting up does not count. Kernel instructions are not counted. Bytes copied by one string instruction count one each, and
//! valgrind has no wide vectors: the figures of large messages show changes, not time.

mod callgrind;
mod figures;
mod locked;

use super::programs::{self, Scratch};
use figures::{Committed, Cost};
use locked::Objects;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "\
Prints a line a case: instructions, locked instructions and system calls a round of both ends together, each beside the committed figure
and that of commit 02b5a5a. Cases that begin with `c-` go through the C libraries. Exit code 1 when a case takes 1 % more instructions than
committed, 3 % more than 02b5a5a, or a locked instruction or a system call more than either. Needs valgrind, binutils, a C compiler
and librdmacm-dev.")]
pub(crate) struct Options {
    /// Only cases whose name contains this
    #[arg(long, value_name = "SUBSTR")]
    only: Option<String>,
    /// Print the file of committed figures, with those of 02b5a5a as they are
    #[arg(long)]
    tsv: bool,
}

/// Counts of a case that exceeds a gate, of which the least is taken: background threads and the machine's load add to a count.
const TRIES: usize = 3;

/// A program and a case of it.
struct Case {
    name: &'static str,
    /// Rounds of the short run; the long one has twice as many.
    rounds: u64,
}

const fn case(name: &'static str, rounds: u64) -> Case {
    Case { name, rounds }
}

const CASES: &[Case] = &[
    case("send-64-ping-pong", 5000),
    case("write-64", 100),
    case("write-64-chain", 100),
    case("send-64", 100),
    case("send-64-chain", 100),
    case("read-64", 100),
    case("fetch-add", 100),
    case("write-64000", 40),
    case("write-1M", 100),
    case("write-1M-small-fpdus", 100),
    case("write-1M-markers", 100),
    case("read-1M", 100),
    case("c-send-64-ping-pong", 5000),
    case("c-send-64", 100),
    case("c-send-64-chain", 100),
    case("c-send-64-inline-ping-pong", 5000),
    case("c-send-64-inline", 100),
    case("c-send-64-inline-chain", 100),
    case("c-send-64-srq-ping-pong", 5000),
    case("c-send-64-srq", 100),
    case("c-send-64-srq-chain", 100),
    case("c-ack-send-64-ping-pong", 5000),
    case("c-ack-send-64", 100),
    case("c-ack-write-64", 100),
];

impl Case {
    fn is_c(&self) -> bool {
        self.name.starts_with("c-")
    }
}

/// Counts.
pub(crate) fn run(options: &Options) -> ExitCode {
    let cases = match super::chosen(CASES, |case| case.name.to_owned(), options.only.as_deref(), false) {
        Ok(cases) => cases,
        Err(exit) => return exit,
    };
    match measure(&cases, options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(cases: &[&Case], options: &Options) -> Result<bool, String> {
    let mut bench = Bench::new(cases)?;
    if options.tsv {
        println!("{}", figures::HEAD);
    } else {
        println!("{:28} {:<30}  {:<26}  system calls", "case", "instructions", "locked");
    }
    let mut fine = true;
    for case in cases {
        let done = match options.tsv {
            true => bench.median(case).map(|cost| println!("{}", figures::line(case.name, &cost))),
            false => bench.count(case).map(|cost| fine &= compare(case, &cost)),
        };
        if let Err(why) = done {
            eprintln!("xtask: {}: {why}", case.name);
            fine = false;
        }
    }
    Ok(fine)
}

/// The programs.
struct Bench {
    scratch: Scratch,
    /// The example of `uiw-verbs`.
    rust: PathBuf,
    /// The C program, and the libraries it runs with.
    c: Option<(PathBuf, PathBuf)>,
    objects: Objects,
}

impl Bench {
    fn new(cases: &[&Case]) -> Result<Self, String> {
        let scratch = Scratch::new()?;
        let target = crate::workspace::target()?;
        let example = ["-p", "uiw-verbs", "--example", "rounds"];
        programs::cargo_build(&crate::workspace::root(), &target, &example)?;
        let c = match cases.iter().any(|case| case.is_c()) {
            true => Some((scratch.compile("rounds")?, scratch.libraries()?)),
            false => None,
        };
        let rust = target.join("release/examples/rounds");
        Ok(Self { scratch, rust, c, objects: Objects::default() })
    }

    /// The cost of a round, counted again while it exceeds a gate.
    fn count(&mut self, case: &Case) -> Result<Cost, String> {
        let mut cost = self.once(case)?;
        let committed = Committed::of(case.name);
        for _ in 1..TRIES {
            if committed.is_none_or(|committed| committed.exceeded(&cost, case.is_c()).is_empty()) {
                break;
            }
            cost = cost.least(self.once(case)?);
        }
        Ok(cost)
    }

    /// The figures to be committed.
    fn median(&mut self, case: &Case) -> Result<Cost, String> {
        Ok(Cost::median([self.once(case)?, self.once(case)?, self.once(case)?]))
    }

    fn once(&mut self, case: &Case) -> Result<Cost, String> {
        let mut runs = [[0; 3]; 2];
        for (times, run) in (1..).zip(&mut runs) {
            let mut command = match &self.c {
                Some((program, libraries)) if case.is_c() => programs::command(program, libraries),
                _ => Command::new(&self.rust),
            };
            command.args([case.name, &(times * case.rounds).to_string()]);
            let profile = callgrind::profile(&command, self.scratch.folder())?;
            *run = [profile.instructions, self.objects.locked(&profile)?, profile.system_calls];
        }
        let [short, long] = runs;
        let a_round = |of: usize| (long[of] as f64 - short[of] as f64) / case.rounds as f64;
        Ok(Cost { instructions: a_round(0), locked: a_round(1), system_calls: a_round(2) })
    }
}

/// Prints a case beside its committed figures. False when it is more.
fn compare(case: &Case, now: &Cost) -> bool {
    let name = case.name;
    let Some(committed) = Committed::of(name) else {
        let Cost { instructions, locked, system_calls } = now;
        println!("{name:28} {instructions:9.0} {locked:9.1} {system_calls:7.1} (no committed figures)");
        return true;
    };
    let Committed { own, base } = committed;
    let instructions = format!(
        "{:9.0} ({:.3}, {:.3})",
        now.instructions,
        now.instructions / own.instructions,
        now.instructions / base.instructions
    );
    let locked = format!("{:8.1} ({:.1}, {:.1})", now.locked, own.locked, base.locked);
    let calls = format!("{:7.1} ({:.1}, {:.1})", now.system_calls, own.system_calls, base.system_calls);
    let exceeded = committed.exceeded(now, case.is_c());
    println!("{name:28} {instructions:<30}  {locked:<26}  {calls:<22}  {}", exceeded.join(", "));
    exceeded.is_empty()
}

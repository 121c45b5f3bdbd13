//! Slices: one run of a program for a fixed time, and the figures that it prints. The programs of a row alternate.

use super::super::programs::{self, Scratch};
use super::baseline::Baseline;
use super::{idle, others};
use crate::process::{self, End};
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A row: the programs that alternate, and the ratios that are checked.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) variants: Vec<Variant>,
    pub(super) checks: Vec<Check>,
}

/// One program.
pub(super) struct Variant {
    pub(super) program: Program,
    pub(super) engine: Engine,
    /// Arguments; `SECONDS` stands for the length of the slice.
    pub(super) args: String,
    /// The device has one shard (`UIW_SHARDS`).
    pub(super) one_shard: bool,
    /// How many times the usual length its slice is.
    pub(super) longer: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Program {
    /// The example `threads` of `uiw-verbs`.
    Rust,
    /// One of `programs/`.
    C(&'static str),
    /// `programs/idle.c` under strace.
    Idle,
}

/// The engine that a program runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// This workspace's.
    Own,
    /// That of 02b5a5a.
    Base,
}

/// A figure of one variant, divided by that of another if `over` names one.
pub(super) struct Check {
    pub(super) what: &'static str,
    /// Its name in the programs' output.
    pub(super) figure: &'static str,
    pub(super) of: usize,
    pub(super) over: Option<usize>,
    pub(super) bar: Option<Bar>,
}

/// The bar of a ratio or a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bar {
    AtLeast(f64),
    AtMost(f64),
    /// At least the other's, within the noise of the run.
    NoLess,
}

/// One round of a row.
pub(super) struct Round {
    /// The output of each variant.
    pub(super) outputs: Vec<Value>,
    /// The share of the processors' time that other work had between the slices.
    pub(super) others: f64,
}

/// The programs of both engines.
pub(super) struct Programs {
    rust: PathBuf,
    c: HashMap<&'static str, PathBuf>,
    libraries: PathBuf,
    base: Option<Baseline>,
    folder: PathBuf,
}

/// Time for connecting and ending, beside twice the slice itself; a program that takes longer is killed.
const MARGIN: Duration = Duration::from_secs(60);

impl Programs {
    /// Builds what these rows need.
    pub(super) fn build(scratch: &Scratch, rows: &[Row], base: Option<Baseline>) -> Result<Self, String> {
        let target = crate::workspace::target()?;
        let example = ["-p", "uiw-verbs", "--example", "threads"];
        programs::cargo_build(&crate::workspace::root(), &target, &example)?;
        let mut c = HashMap::new();
        for variant in rows.iter().flat_map(|row| &row.variants) {
            let name = match variant.program {
                Program::Rust => continue,
                Program::C(name) => name,
                Program::Idle => idle::PROGRAM,
            };
            if !c.contains_key(name) {
                c.insert(name, scratch.compile(name)?);
            }
        }
        let libraries = scratch.libraries()?;
        let folder = scratch.folder().to_owned();
        Ok(Self { rust: target.join("release/examples/threads"), c, libraries, base, folder })
    }

    fn command(&self, variant: &Variant, seconds: f64) -> Result<Command, String> {
        let (rust, libraries): (&Path, &Path) = match (&self.base, variant.engine) {
            (_, Engine::Own) => (&self.rust, &self.libraries),
            (Some(base), Engine::Base) => (&base.threads, &base.libraries),
            (None, Engine::Base) => return Err("the base engine was not built".to_owned()),
        };
        let c = |name| self.c.get(name).ok_or_else(|| format!("{name} was not compiled"));
        let mut command = match variant.program {
            Program::Rust => programs::command(rust, libraries),
            Program::C(name) => programs::command(c(name)?, libraries),
            Program::Idle => idle::command(c(idle::PROGRAM)?, libraries, &self.folder),
        };
        let seconds = (seconds * variant.longer).to_string();
        command
            .args(variant.args.split_whitespace().map(|arg| if arg == "SECONDS" { &seconds } else { arg }));
        if variant.one_shard {
            command.env("UIW_SHARDS", "1");
        }
        Ok(command)
    }

    /// Runs one slice and returns the JSON object that it printed.
    fn slice(&self, variant: &Variant, seconds: f64) -> Result<Value, String> {
        let mut command = self.command(variant, seconds)?;
        let deadline = Instant::now() + MARGIN + Duration::from_secs_f64(2.0 * seconds * variant.longer);
        let mut last = String::new();
        let end = process::run_lines(&mut command, deadline, |line| line.clone_into(&mut last));
        match end.map_err(|error| format!("{command:?}: {error}"))? {
            End::Success => {}
            End::Failure(why) => return Err(format!("{command:?}: {why}")),
            End::TimedOut => return Err(format!("{command:?}: did not end")),
        }
        let value = serde_json::from_str(&last).map_err(|_| format!("{command:?} printed {last:?}"))?;
        match variant.program {
            Program::Idle => idle::with_bytes(value, &self.folder),
            _ => Ok(value),
        }
    }
}

impl Row {
    /// Runs all rounds. The order of the variants rotates, so that each is first equally often.
    pub(super) fn run(&self, programs: &Programs, rounds: usize, seconds: f64) -> Result<Vec<Round>, String> {
        let count = self.variants.len();
        let round = |number: usize| {
            let mut round = Round { outputs: vec![Value::Null; count], others: 0.0 };
            for step in 0..count {
                let turn = (number + step) % count;
                round.others += others::share()? / count as f64;
                round.outputs[turn] = programs.slice(&self.variants[turn], seconds)?;
            }
            Ok(round)
        };
        (0..rounds).map(round).collect()
    }
}

impl Check {
    /// The ratio, or the figure, of each round.
    pub(super) fn values(&self, rounds: &[Round]) -> Result<Vec<f64>, String> {
        let over = |round: &Round| match self.over {
            Some(other) => Ok(self.figure_of(round, self.of)? / self.figure_of(round, other)?),
            None => self.figure_of(round, self.of),
        };
        rounds.iter().map(over).collect()
    }

    pub(super) fn figure_of(&self, round: &Round, variant: usize) -> Result<f64, String> {
        let output = &round.outputs[variant];
        output[self.figure].as_f64().ok_or_else(|| format!("no {} in {output}", self.figure))
    }
}

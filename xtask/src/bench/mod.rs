//! `cargo xtask bench`: measurements beside their bars.

mod hostile;
mod speed;

use std::process::ExitCode;

/// What is measured.
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    /// Our wire beside raw TCP on this machine, row by row, each against its bar
    Speed(speed::Options),
    /// A server among peers that mean it no good: what it serves the others, and what it keeps
    Hostile(hostile::Options),
}

/// Runs a benchmark.
pub(crate) fn run(bench: &Bench) -> ExitCode {
    match bench {
        Bench::Speed(options) => speed::run(options),
        Bench::Hostile(options) => hostile::run(options),
    }
}

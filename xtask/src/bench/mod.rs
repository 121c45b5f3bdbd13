//! `cargo xtask bench`: measurements beside their bars.

mod speed;
mod stacks;

use std::process::ExitCode;

/// What is measured.
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    /// Our wire beside raw TCP on this machine, row by row, each against its bar
    Speed(speed::Options),
    /// smoltcp over AF_XDP and AF_PACKET beside bare smoltcp and the kernel's TCP
    Stacks(stacks::Options),
}

/// Runs a benchmark.
pub(crate) fn run(bench: &Bench) -> ExitCode {
    match bench {
        Bench::Speed(options) => speed::run(options),
        Bench::Stacks(options) => stacks::run(options),
    }
}

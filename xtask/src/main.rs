//! Chores of the workspace: `cargo xtask --help`.

mod install;
mod packages;
mod process;
mod report;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Chores of the workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Run every check and every test; the last line on stdout is `N passed, N failed, N skipped`.
    Test(test::Options),
    /// Install the program and the two C libraries into a folder.
    Install(install::Options),
}

fn main() -> ExitCode {
    match Cli::parse().chore {
        Chore::Test(options) => test::run(&options),
        Chore::Install(options) => install::run(&options),
    }
}

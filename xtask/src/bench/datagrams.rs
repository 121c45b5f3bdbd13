//! `cargo xtask bench datagrams`: the example `datagrams` of `uiw-verbs`.

use std::process::{Command, ExitCode};

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "\
Prints medians and ranges of both stacks and of the ratios, and whether each bar is reached or MISSED. Exit code 1 when one is missed.")]
pub(crate) struct Options {
    /// Rounds; each has both stacks, in alternating order
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
}

/// Measures.
pub(crate) fn run(options: &Options) -> ExitCode {
    let status = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--release", "-p", "uiw-verbs", "--example", "datagrams", "--"])
        .arg(options.rounds.to_string())
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: cargo: {error}");
            ExitCode::FAILURE
        }
    }
}

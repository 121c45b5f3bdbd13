//! `cargo xtask bench tls`: the example `tls` of `uiw-verbs`.

use std::process::{Command, ExitCode};

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "Prints the median ratio with its range. The bar is 0.9.")]
pub(crate) struct Options {
    /// Pairs of slices of 0.3 s
    #[arg(long, default_value_t = 15)]
    slices: u32,
}

/// Measures.
pub(crate) fn run(options: &Options) -> ExitCode {
    let status = Command::new(env!("CARGO"))
        .args([
            "run",
            "--quiet",
            "--release",
            "-p",
            "uiw-verbs",
            "--features",
            "tls",
            "--example",
            "tls",
            "--",
        ])
        .arg(options.slices.to_string())
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            eprintln!("xtask: tls: {status}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("xtask: cargo: {error}");
            ExitCode::FAILURE
        }
    }
}

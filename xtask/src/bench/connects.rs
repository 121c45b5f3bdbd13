//! `cargo xtask bench connects`: the example `connects` of `uiw-verbs`.

use std::process::{Command, ExitCode};

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "Prints the median ratio with its quartiles and the noise. The bar is 0.5.")]
pub(crate) struct Options {
    /// Alternating slices of half a second
    #[arg(long, default_value_t = 31)]
    slices: u32,
}

/// Measures.
pub(crate) fn run(options: &Options) -> ExitCode {
    let status = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--release", "-p", "uiw-verbs", "--example", "connects", "--"])
        .arg(options.slices.to_string())
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            eprintln!("xtask: connects: {status}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("xtask: cargo: {error}");
            ExitCode::FAILURE
        }
    }
}

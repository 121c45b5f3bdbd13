//! Benchmarks that are examples of `uiw-verbs`.

use std::process::{Command, ExitCode};

/// Runs an example, built for release with these features, and with these arguments.
pub(super) fn run(name: &str, features: &str, args: &[u32]) -> ExitCode {
    let mut command = Command::new(env!("CARGO"));
    command.args([
        "run",
        "--quiet",
        "--release",
        "-p",
        "uiw-verbs",
        "--features",
        features,
        "--example",
        name,
    ]);
    command.arg("--").args(args.iter().map(u32::to_string));
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            eprintln!("xtask: {name}: {status}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("xtask: cargo: {error}");
            ExitCode::FAILURE
        }
    }
}

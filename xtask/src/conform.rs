//! `cargo xtask interop conform`: the tests of `uiw conform` in full, which take ten minutes.

use std::process::ExitCode;

/// Runs them.
pub(crate) fn run() -> ExitCode {
    let mut cargo = crate::workspace::cargo();
    cargo.args(["test", "-p", "uiw-interop", "--test", "stacks", "--", "conform::"]);
    match cargo.env("INTEROP_CONFORM_WHOLE", "1").status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: cannot run cargo: {error}");
            ExitCode::FAILURE
        }
    }
}

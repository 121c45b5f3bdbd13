//! `cargo xtask interop conform`: the tests of `uiw conform` in full, which take ten minutes.

use std::io;

/// Runs them.
pub(crate) fn run() -> io::Result<bool> {
    let mut cargo = crate::workspace::cargo();
    cargo.args(["test", "-p", "uiw-interop", "--test", "stacks", "--", "conform::"]);
    Ok(cargo.env("INTEROP_CONFORM_WHOLE", "1").status()?.success())
}

//! `cargo xtask interop conform`: runs all tests of `uiw conform`, which takes ten minutes.

use std::io;

/// Runs the tests.
pub(crate) fn run() -> io::Result<bool> {
    let mut cargo = crate::workspace::cargo();
    cargo.args(["test", "-p", "uiw-interop", "--test", "stacks", "--", "conform::"]);
    crate::workspace::run_tests(cargo.env("INTEROP_CONFORM_WHOLE", "1"))
}

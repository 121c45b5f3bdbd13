//! Test oracles for uiw that share no code with it: RFC-derived vectors, captures of the Linux siw
//! driver, tshark.
//!
//! What they are, where their data comes from and how to add one: `interop/README.md`.

pub mod stock;
pub mod tshark;

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::panic::Location;
use std::path::{Path, PathBuf};

/// Names the file to which a test that cannot run appends a line; set by `cargo xtask test`.
pub const SKIP_LOG: &str = "INTEROP_SKIP_LOG";

/// A program that the calling test needs, or a note that the test did not run.
///
/// ```
/// let Some(shell) = uiw_interop::require("sh") else { return };
/// assert!(shell.is_absolute());
/// ```
#[must_use = "without the program the test must return"]
#[track_caller]
pub fn require(program: &str) -> Option<PathBuf> {
    let found = find(program);
    if found.is_none() {
        skip(program);
    }
    found
}

/// Says that the calling test does not run for want of `capability`. The test must return then.
///
/// libtest has no such verdict and counts the test as passed. The note goes to the file that
/// [`SKIP_LOG`] names, where `cargo xtask test` finds it and counts the test as skipped; the line
/// on standard output is for a reader of the output.
#[track_caller]
pub fn skip(capability: &str) {
    let line = format!("{}: {capability}\n", current_test());
    print!("SKIPPED: {line}");
    if let Some(log) = env::var_os(SKIP_LOG) {
        let file = OpenOptions::new().create(true).append(true).open(&log);
        // One write: lines of tests that run at the same time do not mix.
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            panic!("cannot note the skipped test in {}: {error}", Path::new(&log).display());
        }
    }
}

/// A file below `interop/data`.
pub fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(path)
}

/// libtest names a test's thread after the test, unless it runs one test at a time.
#[track_caller]
fn current_test() -> String {
    match std::thread::current().name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => {
            let place = Location::caller();
            format!("test at {}:{}", place.file(), place.line())
        }
    }
}

fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path).chain(system).map(|folder| folder.join(program)).find(|file| file.is_file())
}

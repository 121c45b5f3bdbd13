//! Test oracles for uiw that share no code with it: RFC-derived vectors, captures of the Linux siw
//! driver, tshark.
//!
//! `interop/README.md` describes them, the origin of their data, and how to add one.

pub mod stock;
pub mod tshark;

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::panic::Location;
use std::path::{Path, PathBuf};

/// Environment variable with the file to which a test that cannot run appends a line. Set by `cargo
/// xtask test`.
pub const SKIP_LOG: &str = "INTEROP_SKIP_LOG";

/// Returns the path of a program that the calling test needs. If it is not installed, records that
/// the test was skipped and returns `None`.
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

/// Records that the calling test is skipped because `capability` is missing. The test must then
/// return.
///
/// libtest cannot report skipped tests, and counts the test as passed. The record is appended to
/// the file that [`SKIP_LOG`] names, so that `cargo xtask test` counts the test as skipped. It is
/// also printed for a reader of the output.
#[track_caller]
pub fn skip(capability: &str) {
    skip_test(&current_test(), capability);
}

/// Like [`skip`], for the test with this name.
pub fn skip_test(test: &str, capability: &str) {
    let line = format!("{test}: {capability}\n");
    print!("SKIPPED: {line}");
    if let Some(log) = env::var_os(SKIP_LOG) {
        let file = OpenOptions::new().create(true).append(true).open(&log);
        // The line is written by a single call, so that lines of concurrent tests do not mix.
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            panic!("cannot note the skipped test in {}: {error}", Path::new(&log).display());
        }
    }
}

/// Returns the path of a file below `interop/data`.
pub fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(path)
}

/// Returns the name of the calling test, or its source location if the thread does not have the
/// name. libtest names threads after their tests, unless it runs only one test at a time.
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

/// Returns the path of a program, or `None` if it is not installed.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(system)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

//! Tests the course of `docs/learn.md`: its check accepts each reference solution, and names the
//! missing part of each unsolved exercise.

use std::path::Path;
use std::process::Command;
use uiw_interop::stock::{Libraries, Running, compile, uiw};

/// Exercises with the first task that the check names for the unsolved version.
const EXERCISES: [(&str, &str); 5] = [
    ("1-messages", "GAP 2"),
    ("2-memory", "GAP 1"),
    ("3-channel", "GAP 2"),
    ("4-wrong-key", "GAP 1"),
    ("5-multicast", "GAP 1"),
];

#[test]
fn exercises_checked_as_documented() {
    let Some(_) = uiw_interop::require("python3") else { return };
    let libraries = Libraries::get();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/learn");
    for (number, (name, task)) in (1..).zip(EXERCISES) {
        for (source, says) in [(format!("{name}.c"), task), (format!("solutions/{name}.c"), "PASS")]
        {
            let flags = ["-Wall", "-Wextra", "-Werror"];
            let Some(program) = compile(&libraries, &folder.join(&source), &flags) else { return };
            let mut check = Command::new("python3");
            check.arg(folder.join("check.py")).arg(number.to_string()).arg(program);
            check
                .env("UIW", uiw())
                .env("UIW_LIB", libraries.folder())
                .current_dir(libraries.folder());
            let ended = Running::start(check).end();
            assert_eq!(
                (ended.code == 0, ended.count(says)),
                (says == "PASS", 1),
                "{source}: {ended:?}"
            );
        }
    }
}

//! Runs `cargo xtask book --run`: in a fresh root, the commands of the book and `docs/newcomer.sh`
//! print the output that the book shows.

mod common;

use common::output;
use std::process::Command;

#[test]
fn book_commands_print_documented_output() {
    let output =
        output(Command::new(env!("CARGO_BIN_EXE_xtask")).args(["book", "--run", "--debug"]));
    let (text, error) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let of_script =
        text.lines().find(|line| line.contains("docs/newcomer.sh: ")).unwrap_or_default();
    if let Some(missing) = of_script.strip_prefix("SKIPPED: docs/newcomer.sh: ") {
        return uiw_interop::skip(missing);
    }
    assert!(output.status.success(), "{text}{error}");
    assert!(of_script.starts_with("docs/newcomer.sh: passed in "), "{text}");
    assert!(text.ends_with(" passed, 0 failed, 0 skipped\n"), "{text}");
}

//! Folders of the workspace, and the Cargo that builds it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use crate::process::{TempPath, output};

/// Returns the folder of the workspace.
pub(crate) fn root() -> PathBuf {
    let here =
        env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&here).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Returns a command of the Cargo that runs this program, in the folder of the workspace.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Returns a command that runs the tests with stock programs, with these arguments.
pub(crate) fn stock(args: &[&str]) -> Command {
    let mut command = cargo();
    command.args(["test", "-p", "uiw-interop", "--test", "stock", "--"]).args(args);
    command
}

/// Runs tests, and returns whether all of them ran and passed. Prints why tests were skipped.
///
/// # Errors
/// If the command cannot be started.
pub(crate) fn run_tests(tests: &mut Command) -> io::Result<bool> {
    let log = TempPath::new(env::temp_dir().join(format!("uiw-skipped-{}", std::process::id())));
    let passed = tests.env(uiw_interop::SKIP_LOG, &*log).status()?.success();
    let skipped = fs::read_to_string(&*log).unwrap_or_default();
    skipped.lines().for_each(|line| eprintln!("SKIPPED: {line}"));
    Ok(passed && skipped.is_empty())
}

/// Returns what `cargo metadata` prints about the packages of the workspace.
pub(crate) fn metadata() -> Result<serde_json::Value, String> {
    let metadata =
        output(cargo().args(["metadata", "--format-version", "1", "--no-deps", "--offline"]))?;
    serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))
}

/// Returns Cargo's target folder.
pub(crate) fn target() -> Result<PathBuf, String> {
    let metadata = metadata()?;
    let folder =
        metadata["target_directory"].as_str().ok_or("cargo metadata names no target folder")?;
    Ok(folder.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files that import each other can only be understood together.
    #[test]
    fn at_most_four_files_import_each_other() {
        let Some(python) = uiw_interop::require("python3") else { return };
        let counted =
            output(Command::new(python).arg("xtask/scripts/count.py").current_dir(root())).unwrap();
        let (_, cycles) = counted.split_once("import cycles:\n").unwrap();
        let files = |line: &&str| line.split_whitespace().next().unwrap().parse::<u32>().unwrap();
        let large: Vec<_> = cycles.lines().filter(|line| files(line) > 4).collect();
        assert!(large.is_empty(), "{large:#?}");
    }
}

//! Helpers of the tests of packages.
#![allow(dead_code, reason = "each test binary uses some of them")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Temporary folder, which is removed on drop.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("uiw-packages-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn join(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// Returns the paths of all files and folders in it.
    pub(crate) fn entries(&self) -> BTreeSet<PathBuf> {
        let mut all = BTreeSet::new();
        let mut folders = vec![self.0.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() && !path.is_symlink() {
                    folders.push(path.clone());
                }
                all.insert(path.strip_prefix(&self.0).unwrap().to_path_buf());
            }
        }
        all
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn output(command: &mut Command) -> Output {
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("UIW_"))
    {
        command.env_remove(name);
    }
    command
        .env("UIW_COUNTERS", "off")
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Returns the output of a command, which must succeed.
pub(crate) fn run<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: &[S]) -> String {
    let mut command = Command::new(program);
    let output = output(command.args(args));
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

pub(crate) fn xtask<S: AsRef<OsStr>>(args: &[S]) -> String {
    run(env!("CARGO_BIN_EXE_xtask"), args)
}

pub(crate) fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

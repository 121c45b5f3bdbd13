//! Reproducible archives, which do not depend on the time and the user, made with GNU tar and gzip.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::output;

/// Returns all files and links below `root`, relative to it, in the order of their names.
pub(super) fn files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => {
                    files.push(entry.path().strip_prefix(root).unwrap_or(&folder).to_path_buf());
                }
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Writes all files in `root` to a tar archive, in its folder `top`. They belong to the user root,
/// and have the time stamp `seconds`.
pub(super) fn tar(root: &Path, top: &str, seconds: u64, to: &Path) -> Result<(), String> {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    tar.arg(format!("--mtime=@{seconds}")).arg(format!("--transform=flags=r;s,^[.],{top},"));
    output(tar.arg("--create").arg("--file").arg(to).arg("--directory").arg(root).arg("."))
        .map(drop)
}

/// Replaces files by compressed ones, which contain neither name nor time.
pub(super) fn gzip(files: &[PathBuf]) -> Result<(), String> {
    output(Command::new("gzip").args(["--best", "--no-name", "--force"]).args(files)).map(drop)
}

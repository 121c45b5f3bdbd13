//! Installed files.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// File to install, with its path below the prefix.
#[derive(Debug)]
pub(super) struct InstalledFile {
    pub(super) path: PathBuf,
    pub(super) content: FileContent,
}

/// Content of an installed file.
#[derive(Debug)]
pub(super) enum FileContent {
    /// The bytes of another file.
    Copy(PathBuf),
    /// A program or library.
    Executable(PathBuf),
    /// A program or library that is stripped by this program with this option.
    Stripped(PathBuf, String, &'static str),
    Text(String),
    /// A symbolic link.
    Link(String),
}

impl InstalledFile {
    /// Creates the file under a temporary name and renames it, so that running programs keep the
    /// old file.
    pub(super) fn put(&self, to: &Path) -> io::Result<()> {
        let folder = to.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let name = to.file_name().unwrap_or_default().to_string_lossy();
        let new = folder.join(format!(".{name}.{}", std::process::id()));
        let made = self.make(&new).and_then(|()| fs::rename(&new, to));
        if made.is_err() {
            let _ = fs::remove_file(&new);
        }
        made
    }

    fn make(&self, new: &Path) -> io::Result<()> {
        let mode = match &self.content {
            FileContent::Link(target) => return symlink(target, new),
            FileContent::Copy(from) => fs::copy(from, new).map(|_| 0o644),
            FileContent::Executable(from) => fs::copy(from, new).map(|_| 0o755),
            FileContent::Stripped(from, program, option) => {
                strip(program, option, from, new).map(|()| 0o755)
            }
            FileContent::Text(text) => fs::write(new, text).map(|()| 0o644),
        }?;
        // The permissions must not depend on the umask.
        fs::set_permissions(new, fs::Permissions::from_mode(mode))
    }
}

fn strip(program: &str, option: &str, from: &Path, to: &Path) -> io::Result<()> {
    let fix = |why: &dyn std::fmt::Display| {
        io::Error::other(format!("{program}: {why}: install binutils, or use --no-strip"))
    };
    let status = Command::new(program).arg(option).arg("-o").args([to, from]).status();
    let status = status.map_err(|error| fix(&error))?;
    if status.success() { Ok(()) } else { Err(fix(&status)) }
}

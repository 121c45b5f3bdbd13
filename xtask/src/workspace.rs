//! Folders of the workspace, and the Cargo that builds it.

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the folder of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&here).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Returns a command of the Cargo that runs this program, in the folder of the workspace.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Returns Cargo's target folder.
pub(crate) fn target() -> Result<PathBuf, String> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let folder = metadata["target_directory"].as_str().ok_or("cargo metadata names no target folder")?;
    Ok(folder.into())
}

/// Temporary folder, which is removed when dropped. Folders of processes that were killed are
/// removed when the next one is created.
pub(crate) struct WorkFolder {
    pub(crate) path: PathBuf,
    /// The open folder, which is locked as long as this process lives.
    _lock: File,
}

impl WorkFolder {
    /// Creates a folder in `parent` whose name begins with `prefix`.
    pub(crate) fn new(parent: &Path, prefix: &str) -> io::Result<Self> {
        fs::create_dir_all(parent)?;
        for entry in fs::read_dir(parent)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(prefix)
                && File::open(entry.path()).is_ok_and(|folder| folder.try_lock().is_ok())
            {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        // The folder gets its name when it is locked, so that no other process removes it.
        let name = format!("{prefix}{}", std::process::id());
        let (unlocked, path) = (parent.join(format!(".{name}")), parent.join(name));
        fs::create_dir_all(&unlocked)?;
        let lock = File::open(&unlocked)?;
        lock.lock()?;
        fs::rename(unlocked, &path)?;
        Ok(Self { path, _lock: lock })
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_killed_processes_removed() {
        let parent = env::temp_dir().join(format!("uiw-work-{}", std::process::id()));
        fs::create_dir_all(parent.join("work-1/sub")).unwrap();
        fs::create_dir(parent.join("other-1")).unwrap();
        let in_use = parent.join("work-2");
        fs::create_dir(&in_use).unwrap();
        let lock = File::open(&in_use).unwrap();
        lock.lock().unwrap();
        let folder = WorkFolder::new(&parent, "work-").unwrap();
        let names = || {
            let entries = fs::read_dir(&parent).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
            names.sort();
            names
        };
        let others = [parent.join("other-1"), in_use];
        let mut all = others.to_vec();
        all.push(folder.path.clone());
        all.sort();
        assert_eq!(names(), all);
        drop(folder);
        assert_eq!(names(), others);
        fs::remove_dir_all(parent).unwrap();
    }
}

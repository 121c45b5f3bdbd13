//! Folders of this workspace, and names that contain the process to which something belongs.

use std::path::{Path, PathBuf};

/// Returns the folder of this crate.
pub fn folder() -> PathBuf {
    let here = std::env::var_os("UIW_SIW_FOLDER").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(here)
}

/// Returns the folder of the workspace.
pub fn workspace() -> PathBuf {
    folder().parent().and_then(Path::parent).map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Returns whether something that is named by a process id and a number belongs to this process, or
/// to one that has ended.
pub(crate) fn is_left_over(name: &str) -> bool {
    let owner = name.split('-').next().unwrap_or_default();
    owner == std::process::id().to_string() || !Path::new("/proc").join(owner).exists()
}

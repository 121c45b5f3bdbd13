//! Folders of this workspace.

use std::path::{Path, PathBuf};

/// Returns the folder of this crate.
pub fn folder() -> PathBuf {
    let here =
        std::env::var_os("UIW_SIW_FOLDER").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(here)
}

/// Returns the folder of the workspace.
pub fn workspace() -> PathBuf {
    folder().parent().and_then(Path::parent).map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

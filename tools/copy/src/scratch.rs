//! Temporary directory of a test.

use std::path::{Path, PathBuf};

/// Temporary directory, which is removed when dropped.
pub(crate) struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    pub(crate) fn new() -> Self {
        let number = getrandom::u64().unwrap();
        let path = std::env::temp_dir().join(format!("uiw-cp-{}-{number:x}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

//! What `cargo xtask install` installs, for one measurement.

use crate::install;
use std::fs;
use std::path::PathBuf;

/// A release, installed in a folder that is removed in the end.
pub(super) struct Installed {
    prefix: PathBuf,
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.prefix);
    }
}

impl Installed {
    /// # Errors
    /// When it cannot be built or installed.
    pub(super) fn new() -> Result<Self, String> {
        let prefix = std::env::temp_dir().join(format!("uiw-bench-{}", std::process::id()));
        let installed = Self { prefix };
        install::release(&installed.prefix)?;
        Ok(installed)
    }

    /// Where the program is.
    pub(super) fn uiw(&self) -> PathBuf {
        self.prefix.join("bin/uiw")
    }
}

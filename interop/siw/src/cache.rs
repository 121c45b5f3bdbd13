//! Cache of packages and of the files that are made from them.

use crate::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Environment variable with the folder of the cache.
pub const VARIABLE: &str = "UIW_SIW_CACHE";

/// The cache, which only one process at a time may fill.
pub struct Cache {
    root: PathBuf,
    kernel: Option<String>,
    _lock: File,
}

impl Cache {
    /// Opens the cache: the folder that [`VARIABLE`] names, or `target/siw` of the workspace. Waits
    /// while another process uses it. Files that are made for a kernel other than the release's
    /// own, such as `6.12`, have separate folders.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn open(kernel: Option<&str>) -> Result<Self> {
        let root = env::var_os(VARIABLE)
            .map_or_else(|| crate::workspace::workspace().join("target/siw"), PathBuf::from);
        let kernel = kernel.map(str::to_owned);
        let cache = |lock| Self { root: root.clone(), kernel, _lock: lock };
        fs::create_dir_all(&root).map_err(Error::io(root.display()))?;
        let lock = File::create(root.join("lock")).map_err(Error::io("the cache's lock"))?;
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| Error::Failed(format!("the cache's lock: {error}")))?;
        let cache = cache(lock);
        let made = cache.made("");
        fs::create_dir_all(&made).map_err(Error::io(made.display()))?;
        Ok(cache)
    }

    /// Returns the version of the kernel, or `None` for the kernel of the release.
    pub fn kernel(&self) -> Option<&str> {
        self.kernel.as_deref()
    }

    /// Returns the path of a file or folder that is made for the kernel of the cache.
    pub fn made(&self, name: &str) -> PathBuf {
        let folder =
            self.kernel.as_ref().map_or("made".to_owned(), |kernel| format!("made-{kernel}"));
        self.root.join(folder).join(name)
    }
}

/// Returns whether `made` exists and is not older than any of `from`.
pub fn is_fresh(made: &Path, from: &[PathBuf]) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    match time(made) {
        None => false,
        Some(made) => from.iter().all(|from| time(from).is_some_and(|from| from <= made)),
    }
}

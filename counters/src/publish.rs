//! Creating the file in which a device publishes its counters.

use crate::block_file::BlockFile;
use crate::directory::{Directory, NEW, SUFFIX};
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Configuration with which a device publishes its counters in a file.
#[derive(Clone, Debug)]
pub struct Publish {
    /// Directory of the file.
    pub directory: Directory,
    /// File whose code updates the counters: the path of `libibverbs.so.1` or of a program.
    pub library: String,
}

/// A counter file that readers do not find yet. Dropping this removes the file, unless it was
/// announced.
#[derive(Debug)]
pub(crate) struct NewFile {
    pub(crate) blocks: Arc<BlockFile>,
    directory: OwnedFd,
    name: String,
}

impl NewFile {
    /// Creates the file, which has a temporary name until [`NewFile::announce`].
    pub(crate) fn create(directory: &Directory, shards: usize) -> io::Result<Self> {
        // Growing a file beyond this limit ends the process (SIGXFSZ).
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < BlockFile::len(shards)) {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "the limit of file sizes is lower",
            ));
        }
        let folder = directory.create()?;
        if let Err(error) = directory.trim() {
            tracing::debug!(%error, "files of counters are not removed");
        }
        let name = format!("{:016x}", getrandom::u64().map_err(io::Error::other)?);
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&folder, format!("{NEW}{name}{SUFFIX}"), flags, Mode::RUSR | Mode::WUSR)?;
        let blocks = Arc::new(BlockFile::new(file, shards)?);
        let this = Self { blocks, directory: folder, name };
        this.blocks.prepare()?;
        Ok(this)
    }

    /// Renames the file, so that readers find it.
    pub(crate) fn announce(self) -> io::Result<()> {
        let (from, to) = (format!("{NEW}{}{SUFFIX}", self.name), format!("{}{SUFFIX}", self.name));
        Ok(renameat(&self.directory, from, &self.directory, to)?)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // This does not remove an announced file, which has another name. It stays after the end of
        // the process, so that `uiw stat` and `uiw run` can report its counters.
        let _ = unlinkat(&self.directory, format!("{NEW}{}{SUFFIX}", self.name), AtFlags::empty());
    }
}

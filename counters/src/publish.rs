//! Makes the file in which a device publishes its counters.

use crate::block_file::BlockFile;
use crate::directory::{Directory, NEW, SUFFIX};
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Publishes a device's counters in a file.
#[derive(Clone, Debug)]
pub struct Publish {
    /// Directory of the file.
    pub directory: Directory,
    /// The file whose code counts: a path of `libibverbs.so.1`, or of a program.
    pub library: String,
}

/// A file that readers do not find yet. Dropping it removes the file unless it was announced.
#[derive(Debug)]
pub(crate) struct NewFile {
    pub(crate) blocks: Arc<BlockFile>,
    directory: OwnedFd,
    name: String,
}

impl NewFile {
    /// Makes the file, which has another name until [`NewFile::announce`].
    pub(crate) fn create(directory: &Directory, shards: usize) -> io::Result<Self> {
        // Growing a file beyond this limit ends the process (SIGXFSZ).
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < BlockFile::len(shards)) {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the limit of file sizes is lower"));
        }
        let folder = directory.create()?;
        if let Err(error) = directory.trim() {
            tracing::debug!(%error, "files of counters are not removed");
        }
        let name = format!("{:016x}", getrandom::u64().map_err(io::Error::other)?);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&folder, format!("{NEW}{name}{SUFFIX}"), flags, Mode::RUSR | Mode::WUSR)?;
        let blocks = Arc::new(BlockFile::new(file, shards)?);
        let this = Self { blocks, directory: folder, name };
        this.blocks.prepare()?;
        Ok(this)
    }

    /// Gives it the name under which readers find it.
    pub(crate) fn announce(self) -> io::Result<()> {
        let (from, to) = (format!("{NEW}{}{SUFFIX}", self.name), format!("{}{SUFFIX}", self.name));
        Ok(renameat(&self.directory, from, &self.directory, to)?)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // An announced file has another name, and stays: `uiw stat` and `uiw run` report its
        // numbers.
        let _ = unlinkat(&self.directory, format!("{NEW}{}{SUFFIX}", self.name), AtFlags::empty());
    }
}

//! One file of counters: its making, and its reading.

use crate::directory::{Directory, NEW, SUFFIX};
use crate::layout::{FIRST, MAGIC, MAX_SHARDS, VERSION, block, blocks, process};
use crate::snapshot::Snapshot;
use rustix::fs::{
    AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, fallocate, fcntl_lock, fstat, ftruncate, openat,
    renameat, statat, unlinkat,
};
use rustix::process::{Flock, FlockType, Resource, fcntl_getlk, getrlimit};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, PoisonError};
use uiw_mem::{BLOCK_BYTES, BLOCK_WORDS, Blocks};

/// The file of a device of this process.
#[derive(Debug)]
pub(crate) struct Published {
    /// Open as long as the process lives: its lock shows that.
    file: File,
    directory: OwnedFd,
    name: String,
    shards: usize,
    id: (u64, u64),
}

/// Device and inode of the files of this process. To open and close one would release its lock (fcntl(2), record locks).
static OWN: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// Blocks of a shard that have room from the beginning: a page.
const FIRST_BLOCKS: usize = crate::layout::FIRST_CONN + 1;

impl Published {
    /// Makes the file, which has another name until [`Published::announce`].
    pub(crate) fn create(directory: &Directory, shards: usize) -> io::Result<Self> {
        let len = (blocks(shards) * BLOCK_BYTES) as u64;
        // To pass this limit ends a process (SIGXFSZ).
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < len) {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the limit of file sizes is lower"));
        }
        let folder = directory.make()?;
        if let Err(error) = directory.trim() {
            tracing::debug!(%error, "files of counters are not removed");
        }
        let name = format!("{:016x}", getrandom::u64().map_err(io::Error::other)?);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&folder, format!("{NEW}{name}{SUFFIX}"), flags, Mode::RUSR | Mode::WUSR)?;
        let found = fstat(&file)?;
        let id = (found.st_dev, found.st_ino);
        OWN.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        let this = Self { file: file.into(), directory: folder, name, shards, id };
        fcntl_lock(&this.file, FlockOperation::NonBlockingLockExclusive)?;
        ftruncate(&this.file, len)?;
        // A page for which the file system has no room would end the process when it is written.
        this.allocate(0, FIRST)?;
        for shard in 0..shards {
            this.allocate(block(shard, 0), FIRST_BLOCKS)?;
        }
        Ok(this)
    }

    /// Maps it.
    pub(crate) fn map(&self) -> io::Result<Arc<Blocks>> {
        Blocks::of_file(&self.file, blocks(self.shards))
    }

    /// Gets memory of the file system for blocks.
    pub(crate) fn allocate(&self, first: usize, count: usize) -> io::Result<()> {
        let (at, len) = ((first * BLOCK_BYTES) as u64, (count * BLOCK_BYTES) as u64);
        Ok(fallocate(&self.file, FallocateFlags::empty(), at, len)?)
    }

    /// Gives it the name under which readers find it.
    pub(crate) fn announce(&self) -> io::Result<()> {
        let (from, to) = (format!("{NEW}{}{SUFFIX}", self.name), format!("{}{SUFFIX}", self.name));
        Ok(renameat(&self.directory, from, &self.directory, to)?)
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // The numbers stay: `uiw stat` and `uiw run` report them. Under its first name no reader finds it.
        let _ = unlinkat(&self.directory, format!("{NEW}{}{SUFFIX}", self.name), AtFlags::empty());
        OWN.lock().unwrap_or_else(PoisonError::into_inner).retain(|id| *id != self.id);
    }
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system's error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is no regular file.
    #[error("it is not a regular file")]
    Kind,
    /// It does not begin as a file of counters does.
    #[error("it is not a file of counters")]
    Foreign,
    /// Another version of uiw wrote it.
    #[error("its layout has version {found}; this program reads version {VERSION}")]
    Version {
        /// The number that it has.
        found: u64,
    },
    /// It has not the length that its contents say.
    #[error("it is {found} bytes long and should have {expected}")]
    Length {
        /// Bytes that it has.
        found: u64,
        /// Bytes that it should have.
        expected: u64,
    },
    /// Its numbers contradict each other.
    #[error("its contents are damaged")]
    Damaged,
    /// A device of this process publishes it.
    #[error("it is this process's own")]
    Own,
}

/// The process that publishes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// It lives, and has this number in the reader's PID namespace.
    Process(u32),
    /// It lives, and the reader's PID namespace does not have it.
    Elsewhere,
    /// It has ended, or has closed its device.
    Ended,
}

/// A file of counters, open for reading.
#[derive(Debug)]
pub struct CounterFile {
    file: File,
    name: String,
}

impl CounterFile {
    /// Opens the file and checks that it is one.
    pub(crate) fn open(directory: &OwnedFd, name: &str) -> Result<Self, FileError> {
        let found = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)?;
        if OWN.lock().unwrap_or_else(PoisonError::into_inner).contains(&(found.st_dev, found.st_ino)) {
            return Err(FileError::Own);
        }
        // Without NONBLOCK, a FIFO without a writer would not be opened.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(directory, name, flags, Mode::empty()).map_err(io::Error::from)?);
        if !file.metadata()?.is_file() {
            return Err(FileError::Kind);
        }
        let this = Self { file, name: name.to_owned() };
        this.check()?;
        Ok(this)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Result<(), FileError> {
        let len = self.file.metadata()?.len();
        let begin = self.block(0).ok_or(FileError::Foreign)?;
        if begin[process::MAGIC] != MAGIC {
            return Err(FileError::Foreign);
        }
        if begin[process::VERSION] != VERSION {
            return Err(FileError::Version { found: begin[process::VERSION] });
        }
        let shards = usize::try_from(begin[process::SHARDS]).ok().filter(|n| (1..=MAX_SHARDS).contains(n));
        let expected = (blocks(shards.ok_or(FileError::Damaged)?) * BLOCK_BYTES) as u64;
        if len != expected {
            return Err(FileError::Length { found: len, expected });
        }
        Ok(())
    }

    /// Which process publishes it, by the lock that it has: no other user can hold one on a file of mode 0600.
    ///
    /// # Errors
    /// The system's.
    pub fn owner(&self) -> io::Result<Owner> {
        let lock = fcntl_getlk(&self.file, &Flock::from(FlockType::WriteLock))?;
        Ok(match lock {
            None => Owner::Ended,
            Some(Flock { pid: Some(pid), .. }) => Owner::Process(pid.as_raw_nonzero().get().unsigned_abs()),
            Some(_) => Owner::Elsewhere,
        })
    }

    /// The user that made it.
    ///
    /// # Errors
    /// The system's.
    pub fn user(&self) -> io::Result<u32> {
        Ok(fstat(&self.file)?.st_uid)
    }

    /// The counters now. The file is read into a buffer: another program may truncate it meanwhile.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn snapshot(&self) -> Result<Snapshot, FileError> {
        self.check()?;
        Snapshot::read(|index| self.block(index)).ok_or(FileError::Damaged)
    }

    fn block(&self, index: usize) -> Option<[u64; BLOCK_WORDS]> {
        let mut bytes = [0; BLOCK_BYTES];
        self.file.read_exact_at(&mut bytes, (index * BLOCK_BYTES) as u64).ok()?;
        let mut words = [0; BLOCK_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Some(words)
    }

    /// Removes it from `directory`. False: another program was faster.
    ///
    /// # Errors
    /// The system's.
    pub fn remove(&self, directory: &Directory) -> io::Result<bool> {
        match unlinkat(directory.make()?, &self.name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

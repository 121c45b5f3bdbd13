//! Reads one file of counters.

use crate::block_file;
use crate::layout::{MAGIC, MAX_SHARDS, VERSION, block_count, process};
use crate::snapshot::Snapshot;
use rustix::fs::{AtFlags, Mode, OFlags, fstat, openat, statat};
use rustix::process::{Flock, FlockType, fcntl_getlk};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use uiw_mem::{BLOCK_BYTES, BLOCK_WORDS};

/// Reason why a file cannot be read.
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
    /// The numbers of the file contradict each other.
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
        if block_file::is_own(&found) {
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

    /// Returns the name.
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
        let expected = (block_count(shards.ok_or(FileError::Damaged)?) * BLOCK_BYTES) as u64;
        if len != expected {
            return Err(FileError::Length { found: len, expected });
        }
        Ok(())
    }

    /// Returns the process that publishes the file, by its lock: no other user can hold one on a
    /// file of mode 0600.
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
}

//! Reading a counter file.

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

/// Reason why a counter file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// OS error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not a regular file.
    #[error("it is not a regular file")]
    Kind,
    /// The file does not begin like a counter file.
    #[error("it is not a file of counters")]
    Foreign,
    /// Another version of uiw has written the file.
    #[error("its layout has version {found}; this program reads version {VERSION}")]
    Version {
        /// Layout version of the file.
        found: u64,
    },
    /// The length of the file does not match its contents.
    #[error("it is {found} bytes long and should have {expected}")]
    Length {
        /// Length of the file in bytes.
        found: u64,
        /// Length in bytes that matches the contents.
        expected: u64,
    },
    /// The contents of the file contradict each other.
    #[error("its contents are damaged")]
    Damaged,
    /// A device of this process publishes the file.
    #[error("it is this process's own")]
    Own,
}

/// Process that publishes a counter file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The process is alive and has this number in the reader's PID namespace.
    Process(u32),
    /// The process is alive, but not visible in the reader's PID namespace.
    Elsewhere,
    /// The process has ended, or has closed its device.
    Ended,
}

/// A counter file, open for reading.
#[derive(Debug)]
pub struct CounterFile {
    file: File,
    name: String,
}

impl CounterFile {
    /// Opens a file and checks that it is a counter file.
    pub(crate) fn open(directory: &OwnedFd, name: &str) -> Result<Self, FileError> {
        let found = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)?;
        if block_file::is_own(&found) {
            return Err(FileError::Own);
        }
        // Without NONBLOCK, opening a FIFO without a writer would block.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file =
            File::from(openat(directory, name, flags, Mode::empty()).map_err(io::Error::from)?);
        if !file.metadata()?.is_file() {
            return Err(FileError::Kind);
        }
        let this = Self { file, name: name.to_owned() };
        this.check()?;
        Ok(this)
    }

    /// Returns the name of the file.
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
        let shards =
            usize::try_from(begin[process::SHARDS]).ok().filter(|n| (1..=MAX_SHARDS).contains(n));
        let expected = (block_count(shards.ok_or(FileError::Damaged)?) * BLOCK_BYTES) as u64;
        if len != expected {
            return Err(FileError::Length { found: len, expected });
        }
        Ok(())
    }

    /// Returns the process that publishes the file. The process is identified by its lock, which no
    /// other user can hold on a file of mode 0600.
    ///
    /// # Errors
    /// Returns the OS error.
    pub fn owner(&self) -> io::Result<Owner> {
        let lock = fcntl_getlk(&self.file, &Flock::from(FlockType::WriteLock))?;
        Ok(match lock {
            None => Owner::Ended,
            Some(Flock { pid: Some(pid), .. }) => {
                Owner::Process(pid.as_raw_nonzero().get().unsigned_abs())
            }
            Some(_) => Owner::Elsewhere,
        })
    }

    /// Returns the user that owns the file.
    ///
    /// # Errors
    /// Returns the OS error.
    pub fn user(&self) -> io::Result<u32> {
        Ok(fstat(&self.file)?.st_uid)
    }

    /// Reads the current counters. The file is read into a buffer, because another program may
    /// truncate it at the same time.
    ///
    /// # Errors
    /// Returns a [`FileError`] if the file cannot be read or is damaged.
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

//! Counter file of a device of this process, which the writer maps and extends.

use crate::layout::{FIRST, FIRST_CONN, block_count, block_index};
use rustix::fs::{FallocateFlags, FlockOperation, Stat, fallocate, fcntl_lock, fstat, ftruncate};
use rustix::io::retry_on_intr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use uiw_mem::{BLOCK_BYTES, Blocks};

/// Device and inode numbers of the counter files of this process. They must not be opened for
/// reading: closing the descriptor would release the lock of the process (fcntl(2), record locks).
static OWN_FILES: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// Number of blocks of a shard that are allocated at the beginning: one page.
const FIRST_BLOCKS: usize = FIRST_CONN + 1;

/// Returns whether a device of this process publishes its counters in this file.
pub(crate) fn is_own(found: &Stat) -> bool {
    OWN_FILES.lock().unwrap_or_else(PoisonError::into_inner).contains(&(found.st_dev, found.st_ino))
}

/// Counter file of a device. It stays open as long as the process uses it, because its lock shows
/// readers that the process is alive.
#[derive(Debug)]
pub(crate) struct BlockFile {
    file: File,
    shards: usize,
    id: (u64, u64),
}

impl BlockFile {
    pub(crate) fn new(file: OwnedFd, shards: usize) -> io::Result<Self> {
        let found = fstat(&file)?;
        let id = (found.st_dev, found.st_ino);
        OWN_FILES.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        Ok(Self { file: file.into(), shards, id })
    }

    /// Locks the file and allocates space for the blocks that are used first.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        fcntl_lock(&self.file, FlockOperation::NonBlockingLockExclusive)?;
        ftruncate(&self.file, Self::len(self.shards))?;
        // Without allocated space, a write to a mapped page would kill the process if the file
        // system is full.
        self.allocate(0, FIRST)?;
        for shard in 0..self.shards {
            self.allocate(block_index(shard, 0), FIRST_BLOCKS)?;
        }
        Ok(())
    }

    /// Returns the length in bytes of the file of a device with `shards` shards.
    pub(crate) fn len(shards: usize) -> u64 {
        (block_count(shards) * BLOCK_BYTES) as u64
    }

    pub(crate) fn map(&self) -> io::Result<Arc<Blocks>> {
        Blocks::of_file(&self.file, block_count(self.shards))
    }

    /// Allocates space in the file system for blocks.
    pub(crate) fn allocate(&self, first: usize, count: usize) -> io::Result<()> {
        let (at, len) = ((first * BLOCK_BYTES) as u64, (count * BLOCK_BYTES) as u64);
        Ok(retry_on_intr(|| fallocate(&self.file, FallocateFlags::empty(), at, len))?)
    }
}

impl Drop for BlockFile {
    fn drop(&mut self) {
        OWN_FILES.lock().unwrap_or_else(PoisonError::into_inner).retain(|id| *id != self.id);
    }
}

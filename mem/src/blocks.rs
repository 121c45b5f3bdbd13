//! Blocks of 64-bit counters in mapped memory.
//!
//! Blocks in a mapped file can be read by other processes, also after the process that writes them
//! has exited. Blocks in anonymous memory are private to the process.

use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Once};

/// Number of 64-bit words in a block.
pub const BLOCK_WORDS: usize = 128;
/// Size of a block in bytes.
pub const BLOCK_BYTES: usize = BLOCK_WORDS * size_of::<u64>();

/// Block of 1 KiB: words that processes access atomically, initially zero.
pub type Block = [AtomicU64; BLOCK_WORDS];

/// Memory mapping that consists of blocks.
///
/// If it maps a file, all processes that map the file share the blocks. In a child process created
/// by `fork`, anonymous memory replaces the mapping of a file, so that the child cannot change its
/// parent's blocks.
#[derive(Debug)]
pub struct Blocks {
    at: NonNull<Block>,
    count: usize,
    /// Entry in [`FILE_MAPPINGS`], if a file is mapped.
    entry: Option<&'static FileMapping>,
}

// SAFETY: the blocks consist of atomic integers, and their mapping lives as long as `Blocks`.
unsafe impl Send for Blocks {}
// SAFETY: as above.
unsafe impl Sync for Blocks {}

impl Blocks {
    /// Maps `count` blocks of anonymous memory, private to this process. Pages that are never
    /// accessed take no memory.
    ///
    /// # Errors
    /// The error of `mmap`, or `InvalidInput` if `count` is 0 or the size in bytes overflows.
    pub fn anonymous(count: usize) -> io::Result<Arc<Self>> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Ok(Arc::new(Self { at: map(None, count, flags, -1)?, count, entry: None }))
    }

    /// Maps the first `count` blocks of `file`, which must be at least that long.
    ///
    /// An access to a block that has no backing storage kills the process with SIGBUS. So the
    /// caller must allocate the storage first (`fallocate(2)`), and no other program may truncate
    /// the file.
    ///
    /// # Errors
    /// The error of `mmap`, `InvalidInput` if `count` is 0 or the size in bytes overflows, or
    /// `OutOfMemory` if the process already maps 64 files.
    pub fn of_file(file: &File, count: usize) -> io::Result<Arc<Self>> {
        let entry = FileMapping::reserve().ok_or(io::ErrorKind::OutOfMemory)?;
        let at = map(None, count, libc::MAP_SHARED, file.as_raw_fd())
            .inspect_err(|_| entry.release())?;
        entry.set(at, count * BLOCK_BYTES);
        Ok(Arc::new(Self { at, count, entry: Some(entry) }))
    }

    /// Returns the number of blocks.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the block at `index`, or `None` if `index` is out of range.
    pub fn get(self: &Arc<Self>, index: usize) -> Option<BlockRef> {
        if index >= self.count {
            return None;
        }
        // SAFETY: `index` is less than `count`, so the address is within the mapping.
        let at = unsafe { self.at.add(index) };
        Some(BlockRef { at, blocks: Arc::clone(self) })
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            entry.release();
        }
        // SAFETY: `map` created this mapping. No `BlockRef` exists any more, because each of them
        // holds an `Arc` of `self`.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.count * BLOCK_BYTES) };
    }
}

/// Reference to one block, which keeps the mapping alive.
#[derive(Clone, Debug)]
pub struct BlockRef {
    at: NonNull<Block>,
    blocks: Arc<Blocks>,
}

// SAFETY: as for `Blocks`.
unsafe impl Send for BlockRef {}
// SAFETY: as for `Blocks`.
unsafe impl Sync for BlockRef {}

impl BlockRef {
    /// Returns the mapping to which the block belongs.
    pub fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }
}

impl Deref for BlockRef {
    type Target = Block;

    #[inline(always)]
    fn deref(&self) -> &Block {
        // SAFETY: `Blocks::get` checked that the block is within the mapping, which `blocks` keeps
        // alive. Other threads and processes may change atomic integers at any time, and every bit
        // pattern is a valid integer.
        unsafe { self.at.as_ref() }
    }
}

/// Maps `count` blocks. With `at`, they replace the blocks that are mapped there.
fn map(
    at: Option<NonNull<Block>>,
    count: usize,
    flags: libc::c_int,
    fd: libc::c_int,
) -> io::Result<NonNull<Block>> {
    let len =
        count.checked_mul(BLOCK_BYTES).filter(|len| *len > 0).ok_or(io::ErrorKind::InvalidInput)?;
    let (at, fixed) = match at {
        Some(at) => (at.as_ptr().cast(), libc::MAP_FIXED),
        None => (core::ptr::null_mut(), 0),
    };
    // SAFETY: without `at`, the kernel chooses an unused address, so no existing mapping changes.
    // With `at`, the caller (`replace_mappings_in_child`) guarantees that a mapping of `Blocks` is
    // there.
    let at =
        unsafe { libc::mmap(at, len, libc::PROT_READ | libc::PROT_WRITE, flags | fixed, fd, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Address and length of one mapping of a file.
///
/// The entries are read in a child after `fork`. There, a lock held by another thread of the parent
/// would never be released, so the fields are atomics.
#[derive(Debug)]
struct FileMapping {
    taken: AtomicBool,
    /// Null while no file is mapped.
    at: AtomicPtr<Block>,
    /// Length in bytes.
    len: AtomicUsize,
}

/// File mappings of this process: one for each device that publishes its counters.
static FILE_MAPPINGS: [FileMapping; 64] = [const {
    FileMapping {
        taken: AtomicBool::new(false),
        at: AtomicPtr::new(core::ptr::null_mut()),
        len: AtomicUsize::new(0),
    }
}; 64];

impl FileMapping {
    /// Reserves an unused entry. Returns `None` if all are in use.
    fn reserve() -> Option<&'static Self> {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: the handler has no arguments. It is never unloaded: threads run in the
            // program or library that has it.
            unsafe { libc::pthread_atfork(None, None, Some(replace_mappings_in_child)) };
        });
        let free = |entry: &&Self| !entry.taken.swap(true, Ordering::AcqRel);
        FILE_MAPPINGS.iter().find(free)
    }

    fn set(&self, at: NonNull<Block>, len: usize) {
        self.len.store(len, Ordering::Relaxed);
        self.at.store(at.as_ptr(), Ordering::Release);
    }

    fn release(&self) {
        self.at.store(core::ptr::null_mut(), Ordering::Release);
        self.taken.store(false, Ordering::Release);
    }
}

/// Replaces every mapping of a file by anonymous memory. Runs in the child after `fork`.
extern "C" fn replace_mappings_in_child() {
    for entry in &FILE_MAPPINGS {
        if let Some(at) = NonNull::new(entry.at.load(Ordering::Acquire)) {
            let count = entry.len.load(Ordering::Relaxed) / BLOCK_BYTES;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // A mapping of `Blocks` is at this address, because `Blocks` releases its entry before
            // it unmaps.
            if map(Some(at), count, flags, -1).is_err() {
                // The child must not write to the parent's blocks. Once they are unmapped, a write
                // kills the child instead.
                // SAFETY: a mapping of `Blocks` is at this address, as explained above.
                unsafe { libc::munmap(at.as_ptr().cast(), count * BLOCK_BYTES) };
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;
    use std::path::PathBuf;

    /// Temporary file, removed on drop.
    struct TempFile(PathBuf, File);

    impl TempFile {
        fn new(name: &str, blocks: usize) -> Self {
            let path =
                std::env::temp_dir().join(format!("uiw-blocks-{}-{name}", std::process::id()));
            let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
            file.set_len((blocks * BLOCK_BYTES) as u64).unwrap();
            Self(path, file)
        }

        fn word(&self, at: usize) -> u64 {
            let mut bytes = [0; 8];
            self.1.read_exact_at(&mut bytes, at as u64 * 8).unwrap();
            u64::from_ne_bytes(bytes)
        }
    }

    impl Drop for TempFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn stored_bytes_reach_file() {
        let file = TempFile::new("stored", 3);
        let blocks = Blocks::of_file(&file.1, 3).unwrap();
        assert!(blocks.get(3).is_none());
        let last = blocks.get(2).unwrap();
        drop(blocks);
        last[5].store(77, Ordering::Relaxed);
        assert_eq!(file.word(2 * BLOCK_WORDS + 5), 77);
        drop(last);
        assert_eq!(file.word(2 * BLOCK_WORDS + 5), 77);
    }

    #[test]
    fn forked_child_keeps_parent_blocks() {
        let file = TempFile::new("fork", 1);
        let blocks = Blocks::of_file(&file.1, 1).unwrap();
        let block = blocks.get(0).unwrap();
        block[0].store(1, Ordering::Relaxed);
        // SAFETY: the child only loads, stores and calls `_exit`. It runs no other code of the test
        // program.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let seen = block[0].load(Ordering::Relaxed);
            block[0].store(2, Ordering::Relaxed);
            block[1].store(3, Ordering::Relaxed);
            // SAFETY: `_exit` ends the child immediately, without destructors or exit handlers.
            unsafe { libc::_exit(if seen == 0 { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `child` was forked above, and `status` is a valid pointer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
        assert_eq!((file.word(0), file.word(1)), (1, 0));
        block[1].store(4, Ordering::Relaxed);
        assert_eq!(file.word(1), 4);
    }

    #[test]
    fn anonymous_blocks_begin_at_zero() {
        let blocks = Blocks::anonymous(1 << 10).unwrap();
        let block = blocks.get(1023).unwrap();
        assert!(block.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        assert!(Blocks::anonymous(0).is_err());
    }
}

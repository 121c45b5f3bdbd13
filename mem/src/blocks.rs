//! Blocks of numbers that outlive the process that writes them: pages of a file that it maps, or anonymous ones.

use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Once};

/// Numbers in a block.
pub const BLOCK_WORDS: usize = 128;
/// Bytes of a block.
pub const BLOCK_BYTES: usize = BLOCK_WORDS * size_of::<u64>();

/// 1 KiB of numbers, which start at zero.
pub type Block = [AtomicU64; BLOCK_WORDS];

/// A mapping of blocks, shared with the file's readers. A child of a fork gets anonymous pages in its place, so that it writes
/// nothing of its parent's.
#[derive(Debug)]
pub struct Blocks {
    at: NonNull<Block>,
    count: usize,
    /// Entry in [`OF_FILES`].
    entry: Option<&'static FileMapping>,
}

// SAFETY: the blocks are atomic numbers, whose mapping lives as long as `Blocks`.
unsafe impl Send for Blocks {}
// SAFETY: as above.
unsafe impl Sync for Blocks {}

impl Blocks {
    /// `count` blocks that only this process has. Pages that are not touched take no memory.
    ///
    /// # Errors
    /// The system's; `InvalidInput` for no block.
    pub fn anonymous(count: usize) -> io::Result<Arc<Self>> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Ok(Arc::new(Self { at: map(None, count, flags, -1)?, count, entry: None }))
    }

    /// The first `count` blocks of `file`, which is at least that long. Blocks for which the file system has no room must not be
    /// touched (`fallocate(2)` before), nor any while another program truncates the file: the system would end the process with
    /// SIGBUS.
    ///
    /// # Errors
    /// The system's; `OutOfMemory` when the process has 64 of them.
    pub fn of_file(file: &File, count: usize) -> io::Result<Arc<Self>> {
        let entry = FileMapping::take().ok_or(io::ErrorKind::OutOfMemory)?;
        let at = map(None, count, libc::MAP_SHARED, file.as_raw_fd()).inspect_err(|_| entry.release())?;
        entry.set(at, count * BLOCK_BYTES);
        Ok(Arc::new(Self { at, count, entry: Some(entry) }))
    }

    /// Returns the number of blocks.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Block `index`; `None` beyond the last one.
    pub fn get(self: &Arc<Self>, index: usize) -> Option<BlockRef> {
        if index >= self.count {
            return None;
        }
        // SAFETY: within the mapping.
        let at = unsafe { self.at.add(index) };
        Some(BlockRef { at, blocks: Arc::clone(self) })
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            entry.release();
        }
        // SAFETY: `map` made this mapping, and no `BlockRef` is left, as each keeps `self`.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.count * BLOCK_BYTES) };
    }
}

/// One block, which keeps its mapping.
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
    /// The mapping that it is in.
    pub fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }
}

impl Deref for BlockRef {
    type Target = Block;

    #[inline(always)]
    fn deref(&self) -> &Block {
        // SAFETY: `Blocks::get` checked the place, and `blocks` keeps the mapping. Atomic numbers may be changed by others, also by
        // other processes, and any bits are a number.
        unsafe { self.at.as_ref() }
    }
}

fn map(
    at: Option<NonNull<Block>>,
    count: usize,
    flags: libc::c_int,
    fd: libc::c_int,
) -> io::Result<NonNull<Block>> {
    let len = count.checked_mul(BLOCK_BYTES).filter(|len| *len > 0).ok_or(io::ErrorKind::InvalidInput)?;
    let (at, fixed) = match at {
        Some(at) => (at.as_ptr().cast(), libc::MAP_FIXED),
        None => (core::ptr::null_mut(), 0),
    };
    // SAFETY: at an address of the kernel's choice nothing that exists is changed; otherwise `in_child` promises that the place is
    // a mapping of ours.
    let at = unsafe { libc::mmap(at, len, libc::PROT_READ | libc::PROT_WRITE, flags | fixed, fd, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// A mapping of a file. `fork` copies it to a child, which has no other thread and must not wait for a lock: so no lock guards it.
#[derive(Debug)]
struct FileMapping {
    taken: AtomicBool,
    /// Null while there is none.
    at: AtomicPtr<Block>,
    len: AtomicUsize,
}

/// A process has one of each device that publishes its counters.
static OF_FILES: [FileMapping; 64] = [const {
    FileMapping {
        taken: AtomicBool::new(false),
        at: AtomicPtr::new(core::ptr::null_mut()),
        len: AtomicUsize::new(0),
    }
}; 64];

impl FileMapping {
    fn take() -> Option<&'static Self> {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: a handler without arguments, in a program or a library that is never unloaded (its threads run in it).
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        let free = |entry: &&Self| !entry.taken.swap(true, Ordering::AcqRel);
        OF_FILES.iter().find(free)
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

/// Puts anonymous pages in the place of every mapping of a file.
extern "C" fn in_child() {
    for entry in &OF_FILES {
        if let Some(at) = NonNull::new(entry.at.load(Ordering::Acquire)) {
            let count = entry.len.load(Ordering::Relaxed) / BLOCK_BYTES;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // The place is a mapping of `Blocks`, which removes its entry before it unmaps.
            if map(Some(at), count, flags, -1).is_err() {
                // The parent's pages must not be written; without them a write ends the child.
                // SAFETY: as above.
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

    /// A file that is gone when dropped.
    struct TempFile(PathBuf, File);

    impl TempFile {
        fn new(name: &str, blocks: usize) -> Self {
            let path = std::env::temp_dir().join(format!("uiw-blocks-{}-{name}", std::process::id()));
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
        // SAFETY: the child makes stores and ends itself without running anything of the test program.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let seen = block[0].load(Ordering::Relaxed);
            block[0].store(2, Ordering::Relaxed);
            block[1].store(3, Ordering::Relaxed);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if seen == 0 { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
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

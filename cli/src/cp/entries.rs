//! Entries that the client transfers, and the blocks of large files.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uiw_copy::meta::{Entry, Meta};
use uiw_copy::names::{Name, NameError, RelPath};
use uiw_copy::part::PartialFile;
use uiw_copy::protocol::FileHead;
use uiw_copy::root::Root;

/// Paths of an entry at this end and at the server.
#[derive(Clone, Debug)]
pub(super) struct EntryPaths {
    pub(super) root: Arc<Root>,
    pub(super) local: RelPath,
    pub(super) remote: RelPath,
}

impl EntryPaths {
    pub(super) fn join(&self, name: &Name) -> Result<Self, NameError> {
        let (local, remote) = (self.local.join(name)?, self.remote.join(name)?);
        Ok(Self { root: Arc::clone(&self.root), local, remote })
    }
}

/// A file or symbolic link.
#[derive(Clone, Debug)]
pub(super) struct CopyItem {
    pub(super) place: EntryPaths,
    /// Metadata of the source.
    pub(super) meta: Meta,
    pub(super) parent: Option<Arc<CopyDirectory>>,
    /// Number of times that the copy was restarted, most often because the file has changed.
    pub(super) restarts: u8,
}

/// A directory, whose mode and time are set when all its entries are complete. With `--delete` this
/// can also be a directory that does not exist at the source: it is searched for excluded entries,
/// which stay.
#[derive(Debug)]
pub(super) struct CopyDirectory {
    pub(super) place: EntryPaths,
    pub(super) meta: Meta,
    pub(super) parent: Option<Arc<Self>>,
    /// Path of the directory relative to the source on the command line: empty for the source
    /// itself, otherwise with a slash at the end.
    pub(super) below: Vec<u8>,
    /// True if the directory does not exist at the source.
    pub(super) is_surplus: bool,
    /// Number of incomplete entries, plus one until the list is complete.
    pending: AtomicUsize,
    removals: Mutex<Removals>,
    memory: MemoryShare,
}

/// Entries of a directory to be removed.
#[derive(Debug, Default)]
pub(super) struct Removals {
    pub(super) places: Vec<EntryPaths>,
    /// True if the directory stays because it contains an excluded entry.
    pub(super) has_excluded: bool,
}

/// Counter of the memory of all directory lists of a transfer, in bytes.
pub(super) type ListMemory = Arc<AtomicU64>;

/// Maximum memory of the directory lists of a transfer, in bytes. Entries count until their
/// directory is complete.
const MAX_LISTS: u64 = 2 << 30;

/// Error of a directory whose list would exceed [`MAX_LISTS`].
pub(super) const LISTS_FULL: &str = "the lists of directories take more than 2 GiB of memory";

/// Part of a [`ListMemory`], which is returned when dropped.
#[derive(Debug)]
struct MemoryShare {
    all: ListMemory,
    own: AtomicU64,
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.all.fetch_sub(*self.own.get_mut(), Ordering::Relaxed);
    }
}

impl CopyDirectory {
    pub(super) fn new(
        place: EntryPaths,
        meta: Meta,
        parent: Option<Arc<Self>>,
        lists: &ListMemory,
    ) -> Self {
        let name =
            place.remote.split().map(|(_, name)| name.as_bytes().to_vec()).unwrap_or_default();
        let below =
            parent.as_ref().map_or(Vec::new(), |parent| [&parent.below, &name[..], b"/"].concat());
        let memory = MemoryShare { all: Arc::clone(lists), own: AtomicU64::new(0) };
        let pending = AtomicUsize::new(1);
        Self {
            place,
            meta,
            parent,
            below,
            is_surplus: false,
            pending,
            removals: Mutex::default(),
            memory,
        }
    }

    /// Counts the memory of entries of the list. Returns false if it exceeds [`MAX_LISTS`].
    pub(super) fn reserve(&self, entries: &[Entry]) -> bool {
        let EntryPaths { local, remote, .. } = &self.place;
        // An entry becomes an item, which has two paths, or a directory, which has three.
        let paths = local.as_bytes().len() + remote.as_bytes().len() + self.below.len();
        let each = size_of::<Entry>() + size_of::<Self>() + paths;
        let text = |entry: &Entry| 4 * entry.name.as_bytes().len() + entry.meta.target.len();
        let bytes = entries.iter().map(|entry| (each + text(entry)) as u64).sum();
        self.memory.own.fetch_add(bytes, Ordering::Relaxed);
        self.memory.all.fetch_add(bytes, Ordering::Relaxed) + bytes <= MAX_LISTS
    }

    /// Returns the entries to be removed.
    pub(super) fn removals(&self) -> MutexGuard<'_, Removals> {
        self.removals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_pending(&self) {
        self.pending.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts an entry as complete. Returns true if it was the last one.
    pub(super) fn entry_done(&self) -> bool {
        self.pending.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// A large file that is being transferred.
#[derive(Debug)]
pub(super) struct LargeFile {
    pub(super) item: CopyItem,
    pub(super) end: FileEnd,
    /// True if the file is complete, has failed, or was restarted. Replies that are still under way
    /// are then ignored.
    cancelled: AtomicBool,
    blocks: Mutex<BlockQueue>,
}

/// The file at this end.
#[derive(Debug)]
pub(super) enum FileEnd {
    Source(File),
    Target(PartialFile),
}

#[derive(Debug, Default)]
struct BlockQueue {
    missing: VecDeque<Range<u64>>,
    under_way: u64,
    /// Sum of the missing blocks of all replies so far.
    asked: u64,
}

impl LargeFile {
    pub(super) fn new(item: CopyItem, end: FileEnd) -> Self {
        Self { item, end, cancelled: AtomicBool::new(false), blocks: Mutex::default() }
    }

    /// Returns the description of the file at the server.
    pub(super) fn head(&self) -> FileHead {
        FileHead { path: self.item.place.remote.clone(), meta: self.item.meta.clone() }
    }

    fn blocks(&self) -> MutexGuard<'_, BlockQueue> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels the transfer of the file. Returns false if it was cancelled before.
    pub(super) fn cancel(&self) -> bool {
        !self.cancelled.swap(true, Ordering::AcqRel)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Sets the blocks to be transferred. Returns their bytes.
    pub(super) fn set_missing(&self, ranges: Vec<Range<u64>>) -> u64 {
        let head = self.head();
        let sum =
            ranges.iter().fold(0, |sum: u64, range| sum.saturating_add(head.range_len(range)));
        let mut blocks = self.blocks();
        blocks.asked = ranges
            .iter()
            .fold(blocks.asked, |sum, range| sum.saturating_add(range.end - range.start));
        blocks.missing = ranges.into();
        sum
    }

    /// Returns whether the server has reported more than twice as many missing blocks as the file
    /// has. A server that keeps the blocks that it gets reports each of them once.
    pub(super) fn is_endless(&self) -> bool {
        self.blocks().asked > self.head().blocks().saturating_mul(2)
    }

    /// Returns the number of blocks that are still to be taken.
    pub(super) fn missing(&self) -> u64 {
        self.blocks().missing.iter().map(|range| range.end - range.start).sum()
    }

    /// Takes the next block.
    pub(super) fn take_block(&self) -> Option<u64> {
        let mut blocks = self.blocks();
        let range = blocks.missing.front_mut()?;
        let block = range.start;
        range.start += 1;
        if range.is_empty() {
            blocks.missing.pop_front();
        }
        blocks.under_way += 1;
        Some(block)
    }

    /// Removes the missing blocks that directly follow `block`, up to `end`, because they lie in a
    /// hole. Returns the end of the removed range.
    pub(super) fn skip_hole(&self, block: u64, end: u64) -> u64 {
        let mut blocks = self.blocks();
        let Some(range) = blocks.missing.front_mut().filter(|range| range.start == block + 1)
        else {
            return block + 1;
        };
        range.start = end.clamp(range.start, range.end);
        let until = range.start;
        if range.is_empty() {
            blocks.missing.pop_front();
        }
        until
    }

    /// Counts a block as complete. Returns true if it was the last one.
    pub(super) fn block_done(&self) -> bool {
        let mut blocks = self.blocks();
        blocks.under_way = blocks.under_way.saturating_sub(1);
        blocks.under_way == 0 && blocks.missing.is_empty()
    }

    /// Returns whether no block is missing or under way.
    pub(super) fn is_complete(&self) -> bool {
        let blocks = self.blocks();
        blocks.under_way == 0 && blocks.missing.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uiw_copy::meta::{EntryKind, FileTime};
    use uiw_copy::protocol::BLOCK;

    fn large_file(size: u64) -> LargeFile {
        let kind = EntryKind::File;
        let (mtime, version, target) = (FileTime::default(), [0; 16], Vec::new());
        let meta = Meta { kind, mode: 0, size, mtime, version, sparse: false, target };
        let root = Arc::new(Root::open("/".as_ref()).unwrap());
        let place = EntryPaths { root, local: RelPath::default(), remote: RelPath::default() };
        let item = CopyItem { place, meta, parent: None, restarts: 0 };
        LargeFile::new(item, FileEnd::Source(File::open("/dev/null").unwrap()))
    }

    #[test]
    fn every_missing_block_is_taken_once() {
        let large_file = large_file(9 * BLOCK + 1);
        assert_eq!(large_file.set_missing(vec![0..2, 5..10]), 6 * BLOCK + 1);
        assert_eq!(large_file.missing(), 7);
        let mut taken = Vec::new();
        while let Some(block) = large_file.take_block() {
            taken.push(block);
        }
        assert_eq!(taken, [0, 1, 5, 6, 7, 8, 9]);
        let last: Vec<_> = taken.iter().map(|_| large_file.block_done()).collect();
        assert_eq!(last, [false, false, false, false, false, false, true]);
    }

    #[test]
    fn endlessly_missing_blocks_noticed() {
        let large_file = large_file(10 * BLOCK);
        large_file.set_missing(vec![0..4, 6..10]);
        large_file.set_missing(vec![4..6, 0..10]);
        assert!(!large_file.is_endless());
        large_file.set_missing(vec![1..2, 9..10]);
        assert!(large_file.is_endless());
    }

    #[test]
    fn missing_hole_skipped() {
        let large_file = large_file(10 * BLOCK);
        large_file.set_missing(vec![0..4, 6..10]);
        assert_eq!(large_file.take_block(), Some(0));
        assert_eq!(large_file.skip_hole(0, 8), 4);
        assert_eq!(large_file.take_block(), Some(6));
        assert_eq!(large_file.skip_hole(6, 7), 7);
        assert_eq!(large_file.take_block(), Some(7));
        assert_eq!(large_file.take_block(), Some(8));
        assert_eq!(large_file.skip_hole(7, 10), 8, "another took what follows");
        assert_eq!(large_file.skip_hole(8, 10), 10);
        assert_eq!(large_file.take_block(), None);
    }
}

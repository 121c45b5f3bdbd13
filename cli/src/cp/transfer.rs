//! What the client has to transfer: entries, and the blocks of large files.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uiw_copy::meta::{Entry, Meta};
use uiw_copy::names::{Name, NameError, RelPath};
use uiw_copy::part::Part;
use uiw_copy::protocol::FileHead;
use uiw_copy::root::Root;

/// Where an entry is at this end and at the other one.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) root: Arc<Root>,
    pub(super) local: RelPath,
    pub(super) remote: RelPath,
}

impl Place {
    pub(super) fn join(&self, name: &Name) -> Result<Self, NameError> {
        let (local, remote) = (self.local.join(name)?, self.remote.join(name)?);
        Ok(Self { root: Arc::clone(&self.root), local, remote })
    }
}

/// A file or symbolic link.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) place: Place,
    /// Of the source.
    pub(super) meta: Meta,
    pub(super) parent: Option<Arc<Directory>>,
    /// How often it has changed while it was copied.
    pub(super) restarts: u8,
}

/// A directory, which gets its mode and time when everything in it is there. With `--delete` also
/// one that the source does not have: it is searched for excluded entries, which stay.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) place: Place,
    pub(super) meta: Meta,
    pub(super) parent: Option<Arc<Self>>,
    /// Path of the directory relative to the source on the command line: empty for the source
    /// itself, otherwise with a slash at the end.
    pub(super) below: Vec<u8>,
    /// True if the source does not have it.
    pub(super) is_surplus: bool,
    /// Entries that are not there yet, and one for its list.
    pending: AtomicUsize,
    removals: Mutex<Removals>,
    memory: MemoryShare,
}

/// Entries of a directory to be removed.
#[derive(Debug, Default)]
pub(super) struct Removals {
    pub(super) places: Vec<Place>,
    /// True if an excluded entry is below the directory, which stays then.
    pub(super) has_excluded: bool,
}

/// Memory of all lists of a transfer.
pub(super) type ListMemory = Arc<AtomicU64>;

/// Bytes of memory that the lists of a transfer take at most. What becomes of their entries counts,
/// as long as the directory is not complete.
const MAX_LISTS: u64 = 2 << 30;

/// The error of a directory for which [`MAX_LISTS`] leaves no room.
pub(super) const LISTS_FULL: &str = "the lists of directories take more than 2 GiB of memory";

/// Part of a [`ListMemory`], given back when dropped.
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

impl Directory {
    pub(super) fn new(place: Place, meta: Meta, parent: Option<Arc<Self>>, lists: &ListMemory) -> Self {
        let name = place.remote.split().map(|(_, name)| name.as_bytes().to_vec()).unwrap_or_default();
        let below = parent.as_ref().map_or(Vec::new(), |parent| [&parent.below, &name[..], b"/"].concat());
        let memory = MemoryShare { all: Arc::clone(lists), own: AtomicU64::new(0) };
        let pending = AtomicUsize::new(1);
        Self { place, meta, parent, below, is_surplus: false, pending, removals: Mutex::default(), memory }
    }

    /// Counts the memory of entries of its list. False: it is more than there is.
    pub(super) fn reserve(&self, entries: &[Entry]) -> bool {
        let Place { local, remote, .. } = &self.place;
        // An entry becomes an item, which has two paths, or a directory, which has a third one.
        let paths = local.as_bytes().len() + remote.as_bytes().len() + self.below.len();
        let each = size_of::<Entry>() + size_of::<Self>() + paths;
        let text = |entry: &Entry| 4 * entry.name.as_bytes().len() + entry.meta.target.len();
        let bytes = entries.iter().map(|entry| (each + text(entry)) as u64).sum();
        self.memory.own.fetch_add(bytes, Ordering::Relaxed);
        self.memory.all.fetch_add(bytes, Ordering::Relaxed) + bytes <= MAX_LISTS
    }

    /// The entries to be removed.
    pub(super) fn removals(&self) -> MutexGuard<'_, Removals> {
        self.removals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self) {
        self.pending.fetch_add(1, Ordering::AcqRel);
    }

    /// One is there. True: it was the last.
    pub(super) fn done(&self) -> bool {
        self.pending.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// A large file under way.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) item: Item,
    pub(super) end: FileEnd,
    /// It failed, or was begun anew: what is still under way of it means nothing.
    cancelled: AtomicBool,
    blocks: Mutex<BlockQueue>,
}

/// This end's part of a file.
#[derive(Debug)]
pub(super) enum FileEnd {
    Source(File),
    Target(Part),
}

#[derive(Debug, Default)]
struct BlockQueue {
    missing: VecDeque<Range<u64>>,
    under_way: u64,
    /// Blocks that were missing so far, of all replies together.
    asked: u64,
}

impl Transfer {
    pub(super) fn new(item: Item, end: FileEnd) -> Self {
        Self { item, end, cancelled: AtomicBool::new(false), blocks: Mutex::default() }
    }

    /// The file as the server writes it.
    pub(super) fn head(&self) -> FileHead {
        FileHead { path: self.item.place.remote.clone(), meta: self.item.meta.clone() }
    }

    fn blocks(&self) -> MutexGuard<'_, BlockQueue> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False: it was cancelled before.
    pub(super) fn cancel(&self) -> bool {
        !self.cancelled.swap(true, Ordering::AcqRel)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// These are to be transferred. Returns their bytes.
    pub(super) fn set_missing(&self, ranges: Vec<Range<u64>>) -> u64 {
        let head = self.head();
        let sum = ranges.iter().fold(0, |sum: u64, range| sum.saturating_add(head.range_len(range)));
        let mut blocks = self.blocks();
        blocks.asked =
            ranges.iter().fold(blocks.asked, |sum, range| sum.saturating_add(range.end - range.start));
        blocks.missing = ranges.into();
        sum
    }

    /// Returns whether more blocks were missing than twice those of the file: a server that keeps
    /// what it gets names each once.
    pub(super) fn is_endless(&self) -> bool {
        self.blocks().asked > self.head().blocks().saturating_mul(2)
    }

    /// Blocks that are still to be taken.
    pub(super) fn missing(&self) -> u64 {
        self.blocks().missing.iter().map(|range| range.end - range.start).sum()
    }

    /// The next block.
    pub(super) fn take(&self) -> Option<u64> {
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

    /// Up to where blocks behind `block` are missing too, at most to `end`: they are not
    /// transferred, as they lie in a hole.
    pub(super) fn skip(&self, block: u64, end: u64) -> u64 {
        let mut blocks = self.blocks();
        let Some(range) = blocks.missing.front_mut().filter(|range| range.start == block + 1) else {
            return block + 1;
        };
        range.start = end.clamp(range.start, range.end);
        let until = range.start;
        if range.is_empty() {
            blocks.missing.pop_front();
        }
        until
    }

    /// A block is there. True: it was the last.
    pub(super) fn done(&self) -> bool {
        let mut blocks = self.blocks();
        blocks.under_way = blocks.under_way.saturating_sub(1);
        blocks.under_way == 0 && blocks.missing.is_empty()
    }

    /// Returns whether no block is missing or under way.
    pub(super) fn is_whole(&self) -> bool {
        let blocks = self.blocks();
        blocks.under_way == 0 && blocks.missing.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uiw_copy::meta::{Kind, Time};
    use uiw_copy::protocol::BLOCK;

    fn transfer(size: u64) -> Transfer {
        let kind = Kind::File;
        let (mtime, version, target) = (Time::default(), [0; 16], Vec::new());
        let meta = Meta { kind, mode: 0, size, mtime, version, sparse: false, target };
        let root = Arc::new(Root::open("/".as_ref()).unwrap());
        let place = Place { root, local: RelPath::default(), remote: RelPath::default() };
        let item = Item { place, meta, parent: None, restarts: 0 };
        Transfer::new(item, FileEnd::Source(File::open("/dev/null").unwrap()))
    }

    #[test]
    fn every_missing_block_is_taken_once() {
        let transfer = transfer(9 * BLOCK + 1);
        assert_eq!(transfer.set_missing(vec![0..2, 5..10]), 6 * BLOCK + 1);
        assert_eq!(transfer.missing(), 7);
        let mut taken = Vec::new();
        while let Some(block) = transfer.take() {
            taken.push(block);
        }
        assert_eq!(taken, [0, 1, 5, 6, 7, 8, 9]);
        let last: Vec<_> = taken.iter().map(|_| transfer.done()).collect();
        assert_eq!(last, [false, false, false, false, false, false, true]);
    }

    #[test]
    fn endlessly_missing_blocks_noticed() {
        let transfer = transfer(10 * BLOCK);
        transfer.set_missing(vec![0..4, 6..10]);
        transfer.set_missing(vec![4..6, 0..10]);
        assert!(!transfer.is_endless());
        transfer.set_missing(vec![1..2, 9..10]);
        assert!(transfer.is_endless());
    }

    #[test]
    fn missing_hole_skipped() {
        let transfer = transfer(10 * BLOCK);
        transfer.set_missing(vec![0..4, 6..10]);
        assert_eq!(transfer.take(), Some(0));
        assert_eq!(transfer.skip(0, 8), 4);
        assert_eq!(transfer.take(), Some(6));
        assert_eq!(transfer.skip(6, 7), 7);
        assert_eq!(transfer.take(), Some(7));
        assert_eq!(transfer.take(), Some(8));
        assert_eq!(transfer.skip(7, 10), 8, "another took what follows");
        assert_eq!(transfer.skip(8, 10), 10);
        assert_eq!(transfer.take(), None);
    }
}

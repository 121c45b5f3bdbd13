//! Files that are being received. The bytes of a file are in `NAME.uiw-part` until it is complete;
//! then it is renamed to `NAME`.

use super::journal::{Journal, Record};
use super::meta::{EntryKind, Meta};
use super::names::{Name, RelPath};
use super::protocol::{BLOCK, FileHead, Hash, MAX_RANGES};
use super::ranges::RangeSet;
use super::root::{Root, sync_names};
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom, fstat, statat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// Maximum number of ranges of verified blocks of one file. There are normally few, because blocks
/// are sent in order.
const MAX_FRAGMENTS: usize = 4096;
/// Size in bytes of the pieces of zeros that are not written to sparse files.
const PAGE: usize = 4096;

/// A file that is being received.
#[derive(Debug)]
pub struct PartialFile {
    head: FileHead,
    directory: OwnedFd,
    name: Name,
    bytes: File,
    /// Locked while bytes are written, so that no bytes are written after the file was renamed.
    phase: RwLock<PartPhase>,
    state: Mutex<PartState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartPhase {
    Receiving,
    /// The file was renamed to its final name.
    Finished,
    /// The file was removed, because its bytes may not have reached the medium.
    Discarded,
}

#[derive(Debug)]
struct PartState {
    verified: RangeSet,
    journal: Journal,
}

/// Result of opening an incomplete file.
#[derive(Debug)]
pub enum OpenedPart {
    /// The complete file exists already under its name.
    Complete,
    /// The incomplete file, which may contain some blocks.
    Part(PartialFile),
    /// No incomplete file of this version exists, and the caller did not ask to begin one.
    Nothing,
}

/// Result of a call on an incomplete file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartOutcome {
    Done,
    /// The file was finished or replaced, and must be opened again.
    Reopen,
    /// These blocks are missing, and possibly others.
    Missing(Vec<Range<u64>>),
}

/// Flags with which the incomplete file and its journal are opened.
const OPEN_FLAGS: OFlags = OFlags::RDWR
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Creates a file, or returns `None` if there is an entry with this name.
fn create(directory: &OwnedFd, name: &OsStr) -> Result<Option<File>> {
    let flags = OPEN_FLAGS | OFlags::CREATE | OFlags::EXCL;
    match rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::EXIST) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the owner that a new file of this user gets. It is another user if the file system stores
/// no owners (FAT), or a server maps users (NFS).
fn owner_of_new_file(directory: &OwnedFd) -> Result<u32> {
    let name = format!("owner.{:08x}.uiw-part", getrandom::u32().map_err(Error::other)?);
    let file = create(directory, name.as_ref())?.ok_or(Errno::EXIST)?;
    rustix::fs::unlinkat(directory, &name, AtFlags::empty())?;
    Ok(fstat(&file)?.st_uid)
}

/// Opens a regular file of this user, and refuses anything else with this name.
fn open_own(directory: &OwnedFd, name: &OsStr) -> Result<File> {
    let file = rustix::fs::openat(directory, name, OPEN_FLAGS, Mode::empty())?;
    let stat = fstat(&file)?;
    // A file with several hard links must be refused, because writing would change a file
    // elsewhere.
    let is_own = Meta::from_stat(&stat).kind == EntryKind::File
        && stat.st_nlink == 1
        && (stat.st_uid == rustix::process::geteuid().as_raw()
            || stat.st_uid == owner_of_new_file(directory)?);
    if is_own {
        Ok(file.into())
    } else {
        let name = name.display();
        Err(Error::other(format!("{name} is there and is no incomplete file of this user's")))
    }
}

/// Returns whether `name` still refers to this file.
fn is_at(directory: &OwnedFd, name: &OsStr, file: impl AsFd) -> Result<bool> {
    let own = fstat(file)?;
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok((stat.st_dev, stat.st_ino) == (own.st_dev, own.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Opens the journal and locks it, so that two processes never write to the same incomplete file.
fn open_journal(directory: &OwnedFd, name: &Name) -> Result<File> {
    loop {
        let file = match create(directory, &name.journal_name())? {
            Some(file) => file,
            None => match open_own(directory, &name.journal_name()) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened?,
            },
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // The previous holder of the lock may have removed the journal between the two calls.
            Ok(()) if is_at(directory, &name.journal_name(), &file)? => return Ok(file),
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(Errno::BUSY.into()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Removes the incomplete file that belongs to a name, unless a transfer writes it.
pub(crate) fn remove_incomplete(directory: &OwnedFd, name: &Name) {
    let journal = name.journal_name();
    let Ok(file) = open_own(directory, &journal) else { return };
    let is_free = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    if is_free && is_at(directory, &journal, &file).unwrap_or(false) {
        for name in [name.part_name(), journal] {
            let _ = rustix::fs::unlinkat(directory, &name, AtFlags::empty());
        }
    }
}

/// Returns whether an up-to-date copy exists already.
fn is_complete(directory: &OwnedFd, name: &Name, head: &FileHead) -> Result<bool> {
    match statat(directory, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => match Meta::from_stat(&stat) {
            meta if meta.kind == EntryKind::Directory => Err(Errno::ISDIR.into()),
            meta => Ok(head.meta.is_copied_by(&meta)),
        },
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl PartialFile {
    /// Opens the incomplete file of the same version, or creates it if `begin` is set. Existing
    /// blocks are verified, which takes time, so `should_continue` is called before each block.
    ///
    /// # Errors
    /// Returns the errors of the file system, `EBUSY` if another transfer writes the file, or
    /// `ECANCELED` if `should_continue` has returned false.
    pub fn open(
        root: &Root,
        head: &FileHead,
        begin: bool,
        should_continue: &dyn Fn() -> bool,
    ) -> Result<OpenedPart> {
        let (directory, name) = root.open_parent(&head.path)?;
        if is_complete(&directory, &name, head)? {
            return Ok(OpenedPart::Complete);
        }
        let mut journal = Journal::new(open_journal(&directory, &name)?);
        let resumed = if journal.matches(&head.meta)? {
            match open_own(&directory, &name.part_name()) {
                Ok(bytes) if bytes.metadata()?.len() == head.meta.size => Some(bytes),
                Ok(_) => None,
                // The final mode of a read-only file was already set when the transfer ended.
                Err(error) => match error.kind() {
                    ErrorKind::NotFound | ErrorKind::PermissionDenied => None,
                    _ => return Err(error),
                },
            }
        } else {
            None
        };
        let mut verified = RangeSet::default();
        let bytes = match resumed {
            Some(bytes) => {
                journal.replay(head, |record| {
                    if !should_continue() {
                        return Err(Errno::CANCELED.into());
                    }
                    verify(&bytes, head, &record, &mut verified)
                })?;
                // Zero all blocks that were not verified, because after a crash they may contain
                // anything, and holes and zeros of sparse files are not written. This is done for
                // all files: whether a file counts as sparse may change without a new version,
                // because the file system decides when to allocate.
                for gap in verified.missing(head.blocks()) {
                    clear(&bytes, &gap, head.meta.size, punch)?;
                }
                bytes
            }
            None if !begin => {
                if journal.is_empty()? {
                    let journal = name.journal_name();
                    let _ = rustix::fs::unlinkat(&directory, journal, AtFlags::empty());
                }
                return Ok(OpenedPart::Nothing);
            }
            None => {
                let part = name.part_name();
                match rustix::fs::unlinkat(&directory, &part, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => return Err(error.into()),
                }
                let bytes = create(&directory, &part)?.ok_or(Errno::EXIST)?;
                bytes.set_len(head.meta.size)?;
                journal.restart(&head.meta)?;
                bytes
            }
        };
        let state = Mutex::new(PartState { verified, journal });
        let phase = RwLock::new(PartPhase::Receiving);
        Ok(OpenedPart::Part(Self { head: head.clone(), directory, name, bytes, phase, state }))
    }

    /// Returns whether this is a file of the version that `head` describes.
    pub fn matches(&self, head: &FileHead) -> bool {
        self.head.meta.version == head.meta.version && self.head.meta.size == head.meta.size
    }

    pub fn path(&self) -> &RelPath {
        &self.head.path
    }

    fn state(&self) -> MutexGuard<'_, PartState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a block whose hash the caller has verified.
    pub fn put_block(&self, index: u64, bytes: &[u8], hash: &Hash) -> Result<PartOutcome> {
        if bytes.is_empty() || bytes.len() as u64 != self.head.block_len(index) {
            return Err(Error::other(format!("block {index} does not have {} bytes", bytes.len())));
        }
        let phase = self.phase.read().unwrap_or_else(PoisonError::into_inner);
        if *phase != PartPhase::Receiving {
            return Ok(PartOutcome::Reopen);
        }
        // A block that was stored before gets no second record, because opening the file reads the
        // whole journal.
        if self.state().verified.contains(&(index..index + 1)) {
            return Ok(PartOutcome::Done);
        }
        let at = index * BLOCK;
        if self.head.meta.sparse {
            for (number, page) in bytes.chunks(PAGE).enumerate() {
                if page.iter().any(|byte| *byte != 0) {
                    self.bytes.write_all_at(page, at + (number * PAGE) as u64)?;
                }
            }
        } else {
            self.bytes.write_all_at(bytes, at)?;
        }
        self.record(index..index + 1, &Record::Block(index, *hash))
    }

    /// Records blocks that lie in a hole.
    pub fn put_hole(&self, blocks: Range<u64>) -> Result<PartOutcome> {
        if blocks.end > self.head.blocks() {
            return Err(Error::other(format!("a hole up to block {}", blocks.end)));
        }
        let phase = self.phase.read().unwrap_or_else(PoisonError::into_inner);
        if *phase != PartPhase::Receiving {
            return Ok(PartOutcome::Reopen);
        }
        self.record(blocks.clone(), &Record::Hole(blocks))
    }

    fn record(&self, blocks: Range<u64>, record: &Record) -> Result<PartOutcome> {
        let mut state = self.state();
        if state.verified.contains(&blocks) {
            return Ok(PartOutcome::Done);
        }
        if state.verified.ranges() >= MAX_FRAGMENTS {
            return Err(Error::other("too many pieces of one file"));
        }
        state.journal.append(record)?;
        state.verified.add(blocks);
        Ok(PartOutcome::Done)
    }

    /// Returns the first missing blocks, at most [`MAX_RANGES`] ranges.
    pub fn missing(&self) -> Vec<Range<u64>> {
        self.state().verified.missing(self.head.blocks()).take(MAX_RANGES).collect()
    }

    /// Returns the number of bytes in verified blocks.
    pub fn verified_bytes(&self) -> u64 {
        let state = self.state();
        let missing = state.verified.missing(self.head.blocks());
        self.head.meta.size - missing.map(|range| self.head.range_len(&range)).sum::<u64>()
    }

    /// Syncs the complete file, sets its mode and time, and renames it to its final name.
    ///
    /// # Errors
    /// Returns the errors of the file system. If the file cannot be synced, it is removed, because
    /// the kernel reports lost bytes only once and would report success the second time.
    pub fn finish(&self) -> Result<PartOutcome> {
        self.finish_with(File::sync_all)
    }

    fn finish_with(&self, sync: impl FnOnce(&File) -> Result<()>) -> Result<PartOutcome> {
        let mut phase = self.phase.write().unwrap_or_else(PoisonError::into_inner);
        match *phase {
            PartPhase::Receiving => {}
            PartPhase::Finished => return Ok(PartOutcome::Done),
            PartPhase::Discarded => return Ok(PartOutcome::Reopen),
        }
        let missing = self.missing();
        if !missing.is_empty() {
            return Ok(PartOutcome::Missing(missing));
        }
        let synced = sync(&self.bytes);
        let part = self.name.part_name();
        if !is_at(&self.directory, &part, &self.bytes)? {
            return Err(Error::other("the incomplete file was replaced meanwhile"));
        }
        if let Err(error) = synced {
            *phase = PartPhase::Discarded;
            self.remove(&part);
            self.remove(&self.name.journal_name());
            return Err(error);
        }
        // The mode is set last, because a read-only file could not be opened to resume it.
        set_mode_and_time(&self.bytes, &self.head.meta)?;
        rustix::fs::renameat(&self.directory, &part, &self.directory, self.name.as_os_str())?;
        *phase = PartPhase::Finished;
        self.remove(&self.name.journal_name());
        sync_names(&self.directory)?;
        Ok(PartOutcome::Done)
    }

    fn remove(&self, name: &OsStr) {
        let _ = rustix::fs::unlinkat(&self.directory, name, AtFlags::empty());
    }
}

/// Sets mode and modification time of a file.
pub(crate) fn set_mode_and_time(file: &File, meta: &Meta) -> Result<()> {
    rustix::fs::fchmod(file, Mode::from_raw_mode(meta.mode.into()))?;
    Ok(rustix::fs::futimens(file, &Meta::timestamps(meta.mtime))?)
}

/// Adds the blocks of a record to `verified` if the file contains them.
fn verify(bytes: &File, head: &FileHead, record: &Record, verified: &mut RangeSet) -> Result<()> {
    match record {
        Record::Block(index, _) if verified.contains(&(*index..index + 1)) => {}
        Record::Block(index, hash) => {
            let mut block = vec![0; head.block_len(*index) as usize];
            bytes.read_exact_at(&mut block, index * BLOCK)?;
            if blake3::hash(&block) == *hash {
                verified.add(*index..index + 1);
            }
        }
        Record::Hole(blocks) => {
            let end = (blocks.end * BLOCK).min(head.meta.size);
            if next_data(bytes, blocks.start * BLOCK)?.is_none_or(|data| data >= end) {
                verified.add(blocks.clone());
            }
        }
    }
    Ok(())
}

/// Returns the offset of the next byte from `from` on that is not in a hole, or `None` if there is
/// none.
pub fn next_data(file: &File, from: u64) -> Result<Option<u64>> {
    match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        // The file system does not support holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(from)),
        Err(error) => Err(error.into()),
    }
}

/// Zeroes blocks of a file of `size` bytes. `punch` makes a hole, which not every file system can.
fn clear(
    bytes: &File,
    blocks: &Range<u64>,
    size: u64,
    punch: impl FnOnce(&File, u64, u64) -> rustix::io::Result<()>,
) -> Result<()> {
    let (start, end) = (blocks.start * BLOCK, (blocks.end * BLOCK).min(size));
    match punch(bytes, start, end - start) {
        Err(Errno::OPNOTSUPP) => {}
        other => return Ok(other?),
    }
    if end == size {
        bytes.set_len(start)?;
        return bytes.set_len(size);
    }
    let zeros = vec![0; BLOCK as usize];
    (blocks.start..blocks.end).try_for_each(|block| bytes.write_all_at(&zeros, block * BLOCK))
}

fn punch(bytes: &File, start: u64, len: u64) -> rustix::io::Result<()> {
    rustix::fs::fallocate(bytes, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, len)
}

#[cfg(test)]
mod tests {
    use super::super::batch::store;
    use super::super::scratch::ScratchDirectory;
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    const SIZE: usize = 2 * BLOCK as usize + 100;

    fn head(version: u8, sparse: bool) -> FileHead {
        let meta = Meta {
            kind: EntryKind::File,
            mode: 0o640,
            size: SIZE as u64,
            mtime: super::super::meta::FileTime { seconds: 1_000_000, nanos: 5 },
            version: [version; 16],
            sparse,
            target: Vec::new(),
        };
        FileHead { path: RelPath::new(b"file").unwrap(), meta }
    }

    fn open(root: &Root, head: &FileHead) -> PartialFile {
        match PartialFile::open(root, head, true, &|| true).unwrap() {
            OpenedPart::Part(part) => part,
            other => panic!("{other:?}"),
        }
    }

    fn put(part: &PartialFile, index: u64, source: &[u8]) -> PartOutcome {
        let start = (index * BLOCK) as usize;
        let block = &source[start..(start + BLOCK as usize).min(SIZE)];
        part.put_block(index, block, blake3::hash(block).as_bytes()).unwrap()
    }

    fn source() -> Vec<u8> {
        (0..SIZE as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    #[test]
    fn finish_after_failed_sync_starts_over() {
        let scratch = ScratchDirectory::new();
        let (root, source) = (Root::open(scratch.path()).unwrap(), source());
        let part = open(&root, &head(1, false));
        (0..3).for_each(|index| assert_eq!(put(&part, index, &source), PartOutcome::Done));
        let failed = part.finish_with(|_| Err(Errno::IO.into())).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(Errno::IO.raw_os_error()));
        assert_eq!(part.finish().unwrap(), PartOutcome::Reopen);
        assert_eq!(put(&part, 0, &source), PartOutcome::Reopen);
        drop(part);
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
        assert!(matches!(
            PartialFile::open(&root, &head(1, false), false, &|| true).unwrap(),
            OpenedPart::Nothing
        ));
        assert_eq!(open(&root, &head(1, false)).verified_bytes(), 0);
    }

    #[test]
    fn file_appears_complete_and_resumes() {
        let scratch = ScratchDirectory::new();
        let (root, source) = (Root::open(scratch.path()).unwrap(), source());
        let part = open(&root, &head(1, false));
        assert_eq!(put(&part, 1, &source), PartOutcome::Done);
        assert_eq!(part.finish().unwrap(), PartOutcome::Missing(vec![0..1, 2..3]));
        assert!(!scratch.path().join("file").exists());
        // The file cannot be opened twice, but can be continued after it was closed.
        let busy = PartialFile::open(&root, &head(1, false), true, &|| true).unwrap_err();
        assert_eq!(busy.raw_os_error(), Some(Errno::BUSY.raw_os_error()));
        drop(part);
        let part = open(&root, &head(1, false));
        assert_eq!((part.missing(), part.verified_bytes()), (vec![0..1, 2..3], BLOCK));
        put(&part, 2, &source);
        drop(part);
        // A block that does not match its record is missing again.
        let damaged =
            File::options().write(true).open(scratch.path().join("file.uiw-part")).unwrap();
        damaged.write_all_at(b"\0\0\0\0", BLOCK + 5).unwrap();
        let part = open(&root, &head(1, false));
        assert_eq!(part.missing(), vec![0..2]);
        put(&part, 0, &source);
        put(&part, 1, &source);
        assert_eq!(part.finish().unwrap(), PartOutcome::Done);
        assert_eq!(put(&part, 1, &source), PartOutcome::Reopen);
        assert_eq!(std::fs::read(scratch.path().join("file")).unwrap(), source);
        let data = std::fs::metadata(scratch.path().join("file")).unwrap();
        assert_eq!(
            (data.permissions().mode() & 0o7777, data.mtime(), data.mtime_nsec()),
            (0o640, 1_000_000, 5)
        );
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1, "nothing remains");
        assert!(matches!(
            PartialFile::open(&root, &head(1, false), true, &|| true).unwrap(),
            OpenedPart::Complete
        ));
    }

    #[test]
    fn repeated_blocks_keep_journal_size() {
        let scratch = ScratchDirectory::new();
        let (root, source) = (Root::open(scratch.path()).unwrap(), source());
        let part = open(&root, &head(1, true));
        let journal = || std::fs::metadata(scratch.path().join("file.uiw-journal")).unwrap().len();
        put(&part, 0, &source);
        part.put_hole(1..2).unwrap();
        let once = journal();
        for _ in 0..100 {
            assert_eq!(
                (put(&part, 0, &source), part.put_hole(0..2).unwrap()),
                (PartOutcome::Done, PartOutcome::Done)
            );
        }
        assert_eq!(journal(), once);
    }

    #[test]
    fn incomplete_file_removed_with_its_name() {
        let scratch = ScratchDirectory::new();
        let (root, head) = (Root::open(scratch.path()).unwrap(), head(1, false));
        let count = || std::fs::read_dir(scratch.path()).unwrap().count();
        let meta = Meta { size: 1, ..head.meta.clone() };
        let store =
            || assert_eq!(store(&root, [(0, &head.path, &meta, &b"x"[..])].into_iter(), "s"), []);
        let part = open(&root, &head);
        store();
        assert_eq!(count(), 3, "a transfer writes it");
        drop(part);
        store();
        assert_eq!(count(), 1);
        drop(open(&root, &head));
        root.symlink(&head.path, b"x", meta.mtime, "s").unwrap();
        assert_eq!(count(), 1);
        drop(open(&root, &head));
        root.remove(&head.path, &|| true).unwrap();
        assert_eq!(count(), 0);
    }

    #[test]
    fn verification_ends_without_waiter() {
        let scratch = ScratchDirectory::new();
        let (root, source) = (Root::open(scratch.path()).unwrap(), source());
        put(&open(&root, &head(1, false)), 0, &source);
        let error = PartialFile::open(&root, &head(1, false), true, &|| false).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::CANCELED.raw_os_error()));
        assert_eq!(open(&root, &head(1, false)).missing(), vec![1..3], "what is there stays");
    }

    #[test]
    fn other_version_restarts() {
        let scratch = ScratchDirectory::new();
        let (root, source) = (Root::open(scratch.path()).unwrap(), source());
        put(&open(&root, &head(1, false)), 0, &source);
        assert!(matches!(
            PartialFile::open(&root, &head(2, false), false, &|| true).unwrap(),
            OpenedPart::Nothing
        ));
        let part = open(&root, &head(2, false));
        assert_eq!(part.missing(), vec![0..3]);
        assert!(part.matches(&head(2, false)) && !part.matches(&head(1, false)));
    }

    #[test]
    fn holes_stay_holes() {
        let scratch = ScratchDirectory::new();
        let root = Root::open(scratch.path()).unwrap();
        let mut source = vec![0; SIZE];
        source[BLOCK as usize + 9000] = 7;
        let part = open(&root, &head(1, true));
        assert_eq!(part.put_hole(0..1).unwrap(), PartOutcome::Done);
        put(&part, 1, &source);
        drop(part);
        let part = open(&root, &head(1, true));
        assert_eq!(part.missing(), vec![2..3]);
        part.put_hole(2..3).unwrap();
        assert!(part.put_hole(2..4).is_err());
        assert_eq!(part.finish().unwrap(), PartOutcome::Done);
        assert_eq!(std::fs::read(scratch.path().join("file")).unwrap(), source);
        let allocated = std::fs::metadata(scratch.path().join("file")).unwrap().blocks() * 512;
        assert!(allocated < BLOCK, "{allocated}");
    }

    #[test]
    fn blocks_cleared_without_hole_punching() {
        let scratch = ScratchDirectory::new();
        let name = scratch.path().join("file");
        for (blocks, cleared) in [(0..1, 0..BLOCK as usize), (1..3, BLOCK as usize..SIZE)] {
            std::fs::write(&name, vec![1; SIZE]).unwrap();
            let file = File::options().write(true).open(&name).unwrap();
            clear(&file, &blocks, SIZE as u64, |_, _, _| Err(Errno::OPNOTSUPP)).unwrap();
            let mut expected = vec![1; SIZE];
            expected[cleared].fill(0);
            assert!(std::fs::read(&name).unwrap() == expected, "{blocks:?}");
        }
    }

    #[test]
    fn unwritable_part_started_over() {
        let scratch = ScratchDirectory::new();
        let root = Root::open(scratch.path()).unwrap();
        put(&open(&root, &head(1, false)), 0, &source());
        let read_only = std::fs::Permissions::from_mode(0o444);
        std::fs::set_permissions(scratch.path().join("file.uiw-part"), read_only).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // With this capability, root could write the file.
                let mut sets = rustix::thread::capabilities(None).unwrap();
                sets.effective.remove(rustix::thread::CapabilitySet::DAC_OVERRIDE);
                rustix::thread::set_capabilities(None, sets).unwrap();
                assert_eq!(open(&root, &head(1, false)).missing(), vec![0..3]);
            });
        });
    }

    /// A process that is killed while it syncs must leave a file that can be opened again.
    #[test]
    fn read_only_file_writable_until_synced() {
        let scratch = ScratchDirectory::new();
        let (root, source) = (Root::open(scratch.path()).unwrap(), source());
        let mut head = head(1, false);
        head.meta.mode = 0o444;
        let part = open(&root, &head);
        (0..3).for_each(|index| assert_eq!(put(&part, index, &source), PartOutcome::Done));
        let mode = |file: &File| file.metadata().unwrap().permissions().mode() & 0o777;
        let finished = part.finish_with(|file| {
            assert_eq!(mode(file), 0o600);
            Ok(())
        });
        assert_eq!(finished.unwrap(), PartOutcome::Done);
        assert_eq!(mode(&File::open(scratch.path().join("file")).unwrap()), 0o444);
    }

    /// A crash may leave bytes without their record, and the file system may report holes in a
    /// version of the source that it reported without holes before.
    #[test]
    fn unverified_bytes_not_in_holes() {
        for sparse in [false, true] {
            let scratch = ScratchDirectory::new();
            let (root, source) = (Root::open(scratch.path()).unwrap(), source());
            put(&open(&root, &head(1, sparse)), 0, &source);
            let torn =
                File::options().write(true).open(scratch.path().join("file.uiw-part")).unwrap();
            torn.write_all_at(b"torn", BLOCK + 7).unwrap();
            let part = open(&root, &head(1, sparse));
            part.put_hole(1..3).unwrap();
            assert_eq!(part.finish().unwrap(), PartOutcome::Done);
            let bytes = std::fs::read(scratch.path().join("file")).unwrap();
            assert!(bytes[BLOCK as usize..].iter().all(|byte| *byte == 0), "sparse: {sparse}");
        }
    }

    #[test]
    fn foreign_files_not_written() {
        let scratch = ScratchDirectory::new();
        let root = Root::open(scratch.path()).unwrap();
        let (victim, journal) =
            (scratch.path().join("victim"), scratch.path().join("file.uiw-journal"));
        std::fs::write(&victim, "victim").unwrap();
        std::os::unix::fs::symlink("victim", &journal).unwrap();
        assert!(
            PartialFile::open(&root, &head(1, false), true, &|| true).is_err(),
            "a symbolic link"
        );
        std::fs::remove_file(&journal).unwrap();
        std::fs::hard_link(&victim, &journal).unwrap();
        assert!(PartialFile::open(&root, &head(1, false), true, &|| true).is_err(), "a hard link");
        assert_eq!(std::fs::read(&victim).unwrap(), b"victim");
        std::fs::remove_file(&journal).unwrap();
        // A symbolic link with the name of the incomplete file is replaced.
        std::os::unix::fs::symlink("victim", scratch.path().join("file.uiw-part")).unwrap();
        put(&open(&root, &head(1, false)), 0, &source());
        assert_eq!(std::fs::read(&victim).unwrap(), b"victim");
        // A directory is not replaced by a file.
        std::fs::create_dir(scratch.path().join("sub")).unwrap();
        let head = FileHead { path: RelPath::new(b"sub").unwrap(), ..head(1, false) };
        let error = PartialFile::open(&root, &head, true, &|| true).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::ISDIR.raw_os_error()));
    }

    /// Files of a user whom an NFS server maps to another one can be resumed.
    #[test]
    fn files_of_mapped_owner_resumed() {
        use std::os::unix::fs::chown;
        const OTHER: u32 = 1000;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let scratch = ScratchDirectory::new();
        chown(scratch.path(), Some(OTHER), None).unwrap();
        let root = Root::open(scratch.path()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: the call changes only the owner of files that this thread creates.
                unsafe { libc::setfsuid(OTHER) };
                put(&open(&root, &head(1, false)), 0, &source());
                assert_eq!(open(&root, &head(1, false)).missing(), vec![1..3]);
            });
        });
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 2);
    }

    /// Another user may know the version of the file, and would own the complete file.
    #[test]
    fn files_of_directory_owner_refused() {
        use std::os::unix::fs::chown;
        const OTHER: u32 = 1000;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let scratch = ScratchDirectory::new();
        let root = Root::open(scratch.path()).unwrap();
        let files = ["file.uiw-journal", "file.uiw-part"].map(|name| scratch.path().join(name));
        put(&open(&root, &head(2, false)), 0, &source());
        chown(scratch.path(), Some(OTHER), None).unwrap();
        files.iter().for_each(|file| chown(file, Some(OTHER), None).unwrap());
        let error = PartialFile::open(&root, &head(2, false), true, &|| true).unwrap_err();
        assert!(error.to_string().contains("no incomplete file of this user"), "{error}");
    }
}

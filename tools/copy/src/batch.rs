//! Batches of small files in one slot.
//!
//! A record consists of a path, a mark, and contents that depend on the mark. Mark 0 is followed by
//! the metadata of the file, a length (32 bits) and the bytes of the file; mark 1 by an error
//! number (16 bits), if the file cannot be read; mark 2 by the metadata only, if the file has
//! become too large for a batch.

use super::meta::{EntryKind, Meta};
use super::names::{Name, RelPath};
use super::part::{remove_incomplete, set_mode_and_time};
use super::protocol::{Hash, MAX_BATCH, SLOT};
use super::root::Root;
use super::wire::{Decoder, Encoder, Result, WireError};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, statat};
use rustix::io::Errno;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

/// Maximum size of a file in a batch, in bytes.
pub const SMALL: u64 = 256 << 10;

/// Content of a file in a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchContent<'a> {
    Bytes(Meta, &'a [u8]),
    /// Error number, because the file cannot be read.
    Failed(u16),
    /// Metadata only, because the file has become too large for a batch.
    TooLarge(Meta),
}

/// A batch under construction.
#[derive(Debug, Default)]
pub struct Batch {
    out: Encoder,
    pub count: u16,
}

/// Result of adding a file to a batch.
#[derive(Debug)]
pub enum BatchRead {
    /// The batch has no room for the file.
    NoRoom,
    /// The file was added, with this number of bytes.
    File(u64),
    /// Only the metadata was added, because the file is too large.
    TooLarge,
    /// An error record was added, because the file cannot be read.
    Failed(std::io::Error),
}

impl Batch {
    /// Maximum number of bytes of a record in addition to the path and the contents of the file.
    const RECORD: usize = 64;

    /// Returns whether another record with this path and `size` bytes of contents fits.
    fn has_room(&self, path: &RelPath, size: u64) -> bool {
        let record = Self::RECORD as u64 + path.as_bytes().len() as u64 + size;
        self.count < MAX_BATCH && self.out.0.len() as u64 + record <= SLOT.into()
    }

    fn add(&mut self, path: &RelPath, content: &BatchContent<'_>) {
        let out = &mut self.out;
        out.counted(path.as_bytes());
        match content {
            BatchContent::Bytes(meta, bytes) => {
                meta.encode(out.u8(0)).u32(bytes.len() as u32).fixed(bytes)
            }
            BatchContent::Failed(errno) => out.u8(1).u16(*errno),
            BatchContent::TooLarge(meta) => meta.encode(out.u8(2)),
        };
        self.count += 1;
    }

    /// Adds a file. Returns false if it does not fit.
    pub fn add_file(&mut self, path: &RelPath, meta: &Meta, bytes: &[u8]) -> bool {
        let fits = self.has_room(path, bytes.len() as u64);
        if fits {
            self.add(path, &BatchContent::Bytes(meta.clone(), bytes));
        }
        fits
    }

    /// Reads a file and adds it, or adds a record with the reason why it is not included.
    pub fn read(&mut self, root: &Root, path: &RelPath) -> BatchRead {
        let (content, fit) = match root.read_small(path, SMALL) {
            Ok(Ok((meta, bytes))) if self.add_file(path, &meta, &bytes) => {
                return BatchRead::File(meta.size);
            }
            Ok(Ok(_)) => return BatchRead::NoRoom,
            Ok(Err(meta)) => (BatchContent::TooLarge(meta), BatchRead::TooLarge),
            Err(error) => (BatchContent::Failed(errno(&error)), BatchRead::Failed(error)),
        };
        if !self.has_room(path, 0) {
            return BatchRead::NoRoom;
        }
        self.add(path, &content);
        fit
    }

    pub fn bytes(&self) -> &[u8] {
        &self.out.0
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.out.0
    }

    pub fn hash(&self) -> Hash {
        *blake3::hash(self.bytes()).as_bytes()
    }
}

/// Returns the error number of an error, or EIO if it has none.
pub fn errno(error: &std::io::Error) -> u16 {
    error
        .raw_os_error()
        .and_then(|number| u16::try_from(number).ok())
        .unwrap_or(Errno::IO.raw_os_error() as u16)
}

/// Decodes the records of a batch.
pub fn decode(bytes: &[u8], count: u16) -> Result<Vec<(RelPath, BatchContent<'_>)>> {
    let mut from = Decoder::new(bytes);
    let mut records = Vec::with_capacity(count.into());
    for _ in 0..count {
        let path = RelPath::new(from.counted("a path")?)?;
        let content = match from.u8("the mark of a record")? {
            0 => {
                let meta = Meta::decode(&mut from)?;
                let len = from.u32("a length")?;
                if meta.kind != EntryKind::File || u64::from(len) != meta.size {
                    return Err(WireError::value("the length of a file", len));
                }
                BatchContent::Bytes(meta, from.take(len as usize, "a file")?)
            }
            1 => BatchContent::Failed(from.u16("an error number")?),
            2 => BatchContent::TooLarge(Meta::decode(&mut from)?),
            other => return Err(WireError::value("the mark of a record", other)),
        };
        if path.is_empty() {
            return Err(super::names::NameError::Empty.into());
        }
        records.push((path, content));
    }
    from.finish()?;
    Ok(records)
}

/// A file of a batch under its temporary name. It is not kept open, because a batch may have more
/// files than a process may open.
struct WrittenFile {
    position: u16,
    path: RelPath,
    /// Device and inode of the temporary file.
    id: (u64, u64),
}

/// Cache of the parent directory of the previous file, which is often also that of the next one.
#[derive(Default)]
struct ParentDirectory(Option<(RelPath, OwnedFd)>);

impl ParentDirectory {
    fn open_parent(&mut self, root: &Root, path: &RelPath) -> std::io::Result<(&OwnedFd, Name)> {
        let (parent, name) = path.split().ok_or(Errno::ISDIR)?;
        let known = self.0.take().filter(|(known, _)| *known == parent);
        let (_, directory) = match known {
            Some(known) => self.0.insert(known),
            None => {
                let directory = root.open_directory(&parent)?;
                self.0.insert((parent, directory))
            }
        };
        Ok((directory, name))
    }
}

/// A file of a batch: its position, path, metadata and bytes.
pub type BatchFile<'a> = (u16, &'a RelPath, &'a Meta, &'a [u8]);

/// Stores complete files: writes all of them under temporary names, syncs their file systems,
/// renames them, and syncs again, because only that makes the names durable. Returns the positions
/// of files that failed, with error numbers.
pub fn store<'a>(
    root: &Root,
    files: impl Iterator<Item = BatchFile<'a>>,
    session: &str,
) -> Vec<(u16, u16)> {
    store_with(root, files, session, sync)
}

fn store_with<'a>(
    root: &Root,
    files: impl Iterator<Item = BatchFile<'a>>,
    session: &str,
    mut sync: impl FnMut(&mut ParentDirectory, &Root, &[WrittenFile]) -> std::io::Result<()>,
) -> Vec<(u16, u16)> {
    let mut failures = Vec::new();
    let mut written = Vec::new();
    let mut parents = ParentDirectory::default();
    for (position, path, meta, bytes) in files {
        match write_temporary(&mut parents, root, path, meta, bytes, session) {
            Ok(id) => written.push(WrittenFile { position, path: path.clone(), id }),
            Err(error) => failures.push((position, errno(&error))),
        }
    }
    if written.is_empty() {
        return failures;
    }
    if let Err(error) = sync(&mut parents, root, &written) {
        for file in written {
            file.remove(&mut parents, root, session);
            failures.push((file.position, errno(&error)));
        }
        return failures;
    }
    written.retain(|file| match file.move_to_name(&mut parents, root, session) {
        Ok(()) => true,
        Err(error) => {
            file.remove(&mut parents, root, session);
            failures.push((file.position, errno(&error)));
            false
        }
    });
    if let Err(error) = sync(&mut parents, root, &written) {
        failures.extend(written.iter().map(|file| (file.position, errno(&error))));
    }
    failures
}

/// Syncs the file systems of these files. Some may be mounted below the root.
fn sync(
    parents: &mut ParentDirectory,
    root: &Root,
    written: &[WrittenFile],
) -> std::io::Result<()> {
    root.sync()?;
    let mut synced = vec![root.device()?];
    for WrittenFile { path, id: (device, _), .. } in written {
        if !synced.contains(device) {
            rustix::fs::syncfs(parents.open_parent(root, path)?.0)?;
            synced.push(*device);
        }
    }
    Ok(())
}

/// Writes a file under its temporary name. Returns its device and inode.
fn write_temporary(
    parents: &mut ParentDirectory,
    root: &Root,
    path: &RelPath,
    meta: &Meta,
    bytes: &[u8],
    session: &str,
) -> std::io::Result<(u64, u64)> {
    let (directory, name) = parents.open_parent(root, path)?;
    if statat(directory, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    {
        return Err(Errno::ISDIR.into());
    }
    let part = name.session_part_name(session);
    // A file of this name belongs to the same session, which repeats a batch that was not answered.
    let _ = rustix::fs::unlinkat(directory, &part, AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file: File = rustix::fs::openat(directory, &part, flags, Mode::RUSR | Mode::WUSR)?.into();
    let filled = (&file).write_all(bytes).and_then(|()| set_mode_and_time(&file, meta));
    let stat = filled.and_then(|()| Ok(rustix::fs::fstat(&file)?));
    if stat.is_err() {
        let _ = rustix::fs::unlinkat(directory, &part, AtFlags::empty());
    }
    stat.map(|stat| (stat.st_dev, stat.st_ino))
}

impl WrittenFile {
    fn move_to_name(
        &self,
        parents: &mut ParentDirectory,
        root: &Root,
        session: &str,
    ) -> std::io::Result<()> {
        let (directory, name) = parents.open_parent(root, &self.path)?;
        let part = name.session_part_name(session);
        let stat = statat(directory, &part, AtFlags::SYMLINK_NOFOLLOW)?;
        if (stat.st_dev, stat.st_ino) != self.id {
            // Another request of the session has replaced the file, because the client repeated the
            // batch.
            return Err(Errno::BUSY.into());
        }
        rustix::fs::renameat(directory, &part, directory, name.as_os_str())?;
        remove_incomplete(directory, &name);
        Ok(())
    }

    fn remove(&self, parents: &mut ParentDirectory, root: &Root, session: &str) {
        let Ok((directory, name)) = parents.open_parent(root, &self.path) else { return };
        let part = name.session_part_name(session);
        let is_own = statat(directory, &part, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.id);
        if is_own {
            let _ = rustix::fs::unlinkat(directory, &part, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scratch::ScratchDirectory;
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> RelPath {
        RelPath::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn files_go_through_a_batch() {
        let (from, to) = (ScratchDirectory::new(), ScratchDirectory::new());
        for (name, text) in [("a", "first"), ("empty", ""), ("b c", "third")] {
            std::fs::write(from.path().join(name), text).unwrap();
        }
        File::create(from.path().join("large")).unwrap().set_len(SMALL + 1).unwrap();
        std::fs::create_dir(to.path().join("empty")).unwrap();
        let root = Root::open(from.path()).unwrap();
        let mut batch = Batch::default();
        for name in ["a", "empty", "b c", "large", "missing"] {
            assert!(!matches!(batch.read(&root, &path(name)), BatchRead::NoRoom));
        }
        let records = decode(batch.bytes(), batch.count).unwrap();
        assert!(matches!(&records[3].1, BatchContent::TooLarge(meta) if meta.size == SMALL + 1));
        assert_eq!(records[4].1, BatchContent::Failed(Errno::NOENT.raw_os_error() as u16));
        let files =
            records.iter().zip(0..).filter_map(|((path, content), position)| match content {
                BatchContent::Bytes(meta, bytes) => Some((position, path, meta, *bytes)),
                _ => None,
            });
        let target = Root::open(to.path()).unwrap();
        assert_eq!(store(&target, files, "s"), [(1, Errno::ISDIR.raw_os_error() as u16)]);
        assert_eq!(std::fs::read(to.path().join("b c")).unwrap(), b"third");
        assert_eq!(target.meta(&path("a")).unwrap().mtime, root.meta(&path("a")).unwrap().mtime);
        assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 3, "no temporary file remains");
    }

    #[test]
    fn names_synced_after_rename() {
        let scratch = ScratchDirectory::new();
        let (root, path) = (Root::open(scratch.path()).unwrap(), path("a"));
        let meta = Meta { size: 1, ..Meta::from_stat(&rustix::fs::stat("/etc/passwd").unwrap()) };
        let files = || [(7, &path, &meta, &b"x"[..])].into_iter();
        let mut renamed = Vec::new();
        let failures = store_with(&root, files(), "s", |_, _, _| {
            renamed.push(scratch.path().join("a").exists());
            Ok(())
        });
        assert_eq!((failures, renamed), (vec![], vec![false, true]));
        let mut results = [Ok(()), Err(Errno::IO.into())].into_iter();
        let failures = store_with(&root, files(), "s", |_, _, _| results.next().unwrap());
        assert_eq!(failures, [(7, Errno::IO.raw_os_error() as u16)], "the second sync fails");
    }

    #[test]
    fn file_below_mount_stored() {
        let name = format!("shm/uiw-batch-{}", std::process::id());
        let (root, path) = (Root::open("/dev".as_ref()).unwrap(), path(&name));
        let stat = rustix::fs::stat("/etc/passwd").unwrap();
        let meta = Meta { size: 1, ..Meta::from_stat(&stat) };
        assert_eq!(store(&root, [(0, &path, &meta, &b"x"[..])].into_iter(), "s"), []);
        std::fs::remove_file(std::path::Path::new("/dev").join(name)).unwrap();
    }

    #[test]
    fn batch_full_at_slot_size() {
        let scratch = ScratchDirectory::new();
        std::fs::write(scratch.path().join("x"), vec![1; SMALL as usize]).unwrap();
        let root = Root::open(scratch.path()).unwrap();
        let mut batch = Batch::default();
        while matches!(batch.read(&root, &path("x")), BatchRead::File(_)) {}
        assert_eq!(batch.count, 3);
        assert!(batch.bytes().len() <= SLOT as usize);
    }

    #[test]
    fn batches_with_wrong_record_refused() {
        let meta = Meta::from_stat(&rustix::fs::stat("/etc/passwd").unwrap());
        let record = |path: &[u8], mark: u8, size: u64, len: u32| {
            let mut out = Encoder::default();
            out.counted(path).u8(mark);
            Meta { size, ..meta.clone() }.encode(&mut out);
            out.u32(len).fixed(&vec![0; len as usize]);
            out.0
        };
        assert!(decode(&record(b"a", 0, 5, 5), 1).is_ok());
        for bad in [
            record(b"../a", 0, 5, 5),
            record(b"/a", 0, 5, 5),
            record(b"", 0, 5, 5),
            record(b"a.uiw-part", 0, 5, 5),
            record(b"a", 0, 6, 5),
            record(b"a", 3, 5, 5),
            [record(b"a", 0, 5, 5), vec![0]].concat(),
        ] {
            assert!(decode(&bad, 1).is_err());
        }
        assert!(decode(&record(b"a", 0, 5, 5), 2).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), count in 0u16..4) {
            let _ = decode(&bytes, count);
        }
    }
}

//! Access to files below one directory. Every path is resolved by openat2(2) with RESOLVE_BENEATH
//! and RESOLVE_NO_SYMLINKS, so that neither `..` nor a symbolic link leads out of the directory,
//! even if entries are renamed or replaced at the same time. The type of an entry is checked before
//! and after it is opened, so that no device or FIFO is read. One is opened only if it replaces a
//! file between the two checks.

use super::meta::{Entry, EntryKind, FileTime, Meta};
use super::names::{self, Name, RelPath};
use super::part::remove_incomplete;
use super::protocol::SLOT;
use super::remove::{add_owner_rights, remove_tree};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::collections::BinaryHeap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, Read, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Maximum number of entries in a page of a list.
const MAX_PAGE_ENTRIES: usize = 8192;
/// Maximum number of bytes of an entry in a list, or of a name in memory, in addition to the name
/// and the target of a link.
const ENTRY_OVERHEAD: usize = 64;

/// Age after which a temporary file of a batch or a link is considered abandoned by a killed
/// session. A batch takes only seconds.
pub const ABANDONED: Duration = Duration::from_secs(60 * 60);

/// Maximum number of attempts to open a file that the kernel refuses with EAGAIN. The second half
/// of them is made after pauses.
const MAX_ATTEMPTS: u32 = 200;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(1);

/// Longest tick of the kernel's clock for times of files, which is that of a kernel with 100 Hz.
const MAX_TICK: Duration = Duration::from_millis(10);

/// Maximum memory in bytes for the names of a directory that are kept between two pages of its
/// list.
pub const LISTING: u64 = 4 << 20;

/// The first names of a directory in their order, as many as fit into [`LISTING`].
#[derive(Default)]
struct FirstNames {
    /// Heap with the greatest name on top, which is the first one to be removed.
    names: BinaryHeap<Name>,
    /// Memory of the names in bytes.
    bytes: u64,
    /// True if further names follow.
    has_more: bool,
}

impl FirstNames {
    fn add(&mut self, name: Name) {
        let len = |name: &Name| (ENTRY_OVERHEAD + name.as_bytes().len()) as u64;
        if self.has_more && self.names.peek().is_some_and(|last| *last < name) {
            return;
        }
        self.bytes += len(&name);
        self.names.push(name);
        while self.bytes > LISTING
            && let Some(last) = self.names.pop()
        {
            self.bytes -= len(&last);
            self.has_more = true;
        }
    }
}

/// Position in the list of a directory after a page. The following names are kept, so that the
/// directory is read again only after many pages.
#[derive(Debug)]
pub struct Listing {
    path: RelPath,
    /// Last name that was listed.
    after: Vec<u8>,
    /// Names after it, in reverse order.
    names: Vec<Name>,
    /// True if further names follow that are not kept.
    has_more: bool,
}

/// Directory below which files are read or written.
#[derive(Debug)]
pub struct Root(OwnedFd, SharedSync);

/// Metadata and bytes of a small file. The error is the metadata of a file that is too large.
pub type SmallFile = std::result::Result<(Meta, Vec<u8>), Meta>;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

impl Root {
    /// Opens the directory at `path`, which may contain symbolic links because it comes from the
    /// user.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self(
            rustix::fs::open(path, OFlags::RDONLY | DIRECTORY, Mode::empty())?,
            SharedSync::default(),
        ))
    }

    fn open_at(&self, path: &RelPath, flags: OFlags) -> Result<OwnedFd> {
        match self.resolve(path, flags, ResolveFlags::empty()) {
            Err(Errno::NOSYS) => Err(Error::other(
                "openat2(2) is not there: it needs Linux 5.6, and a service without RestrictSUIDSGID=",
            )),
            other => Ok(other?),
        }
    }

    fn resolve(
        &self,
        path: &RelPath,
        flags: OFlags,
        limits: ResolveFlags,
    ) -> rustix::io::Result<OwnedFd> {
        let limits = limits
            | ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC;
        let mut attempts = 0;
        loop {
            match rustix::fs::openat2(&self.0, path.as_path(), flags, Mode::empty(), limits) {
                // Because of a concurrent rename, the kernel could not determine whether the path
                // stays below. Or another process has a lease of the file, and gets some time to
                // give it up.
                Err(Errno::AGAIN) if attempts < MAX_ATTEMPTS => {
                    attempts += 1;
                    if attempts > MAX_ATTEMPTS / 2 {
                        std::thread::sleep(ATTEMPT_PAUSE);
                    }
                }
                Err(Errno::INTR) => {}
                other => return other,
            }
        }
    }

    /// Opens a directory.
    pub fn open_directory(&self, path: &RelPath) -> Result<OwnedFd> {
        self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Opens the parent directory of an entry, and returns it with the name of the entry.
    pub fn open_parent(&self, path: &RelPath) -> Result<(OwnedFd, Name)> {
        let (parent, name) = path.split().ok_or(Errno::ISDIR)?;
        Ok((self.open_directory(&parent)?, name))
    }

    /// Returns the metadata of the entry at a path.
    pub fn meta(&self, path: &RelPath) -> Result<Meta> {
        if path.is_empty() {
            return Ok(Meta::from_stat(&rustix::fs::fstat(&self.0)?));
        }
        let (parent, name) = self.open_parent(path)?;
        meta_at(&parent, name.as_os_str())
    }

    /// Returns the first entries of a directory after the name `after`, in the order of their names
    /// and without incomplete files, and whether further entries follow. `kept` stores the position
    /// from one page to the next. If it has no position or another one, the directory is read
    /// again.
    ///
    /// # Errors
    /// Returns the errors of the file system.
    pub fn read_page(
        &self,
        path: &RelPath,
        after: &[u8],
        kept: &mut Option<Listing>,
    ) -> Result<(Vec<Entry>, bool)> {
        let directory = self.open_directory(path)?;
        let continued =
            kept.take().filter(|listing| listing.path == *path && listing.after == after);
        let mut listing = match continued {
            Some(listing) => listing,
            None => Listing::read(&directory, path, after)?,
        };
        loop {
            let entries = listing.entries(&directory)?;
            let more = listing.has_more || !listing.names.is_empty();
            // The client continues after the last entry of a page. A page whose entries were all
            // removed in the meantime would end the list too early, so it is skipped.
            if !more || !entries.is_empty() {
                *kept = Some(listing).filter(|listing| !listing.names.is_empty());
                return Ok((entries, more));
            }
            if listing.names.is_empty() {
                listing = Listing::read(&directory, path, &listing.after)?;
            }
        }
    }

    /// Returns the entries of a directory in the order of their names, without incomplete files.
    pub fn list(&self, path: &RelPath) -> Result<Vec<Entry>> {
        let directory = self.open_directory(path)?;
        let mut entries = Vec::new();
        for name in read_names(&directory)? {
            entries.extend(read_entry(&directory, name?));
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Opens a regular file for reading, and returns it with its metadata.
    pub fn open_file(&self, path: &RelPath) -> Result<(File, Meta)> {
        let regular = |fd: &OwnedFd| {
            let stat = rustix::fs::fstat(fd)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Ok(stat),
                FileType::Directory => Err(Error::from(Errno::ISDIR)),
                FileType::Symlink => Err(Errno::LOOP.into()),
                _ => Err(Error::other("no regular file")),
            }
        };
        // Check the type first: opening a device may have side effects, and opening a FIFO may
        // block.
        regular(&self.open_at(path, OFlags::PATH | OFlags::NOFOLLOW)?)?;
        let file = self
            .open_at(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let stat = regular(&file)?;
        Ok((file.into(), Meta::from_stat(&stat)))
    }

    /// Reads a file of at most `limit` bytes. All bytes belong to the same version. Returns only
    /// the metadata if the file is larger.
    pub fn read_small(&self, path: &RelPath, limit: u64) -> Result<SmallFile> {
        for _ in 0..5 {
            let (file, meta) = self.open_file(path)?;
            if meta.size > limit {
                return Ok(Err(meta));
            }
            wait_for_tick(&file)?;
            let mut bytes = Vec::with_capacity(meta.size as usize + 1);
            (&file).take(limit + 1).read_to_end(&mut bytes)?;
            let after = Meta::from_stat(&rustix::fs::fstat(&file)?);
            if after.version == meta.version && bytes.len() as u64 == meta.size {
                return Ok(Ok((meta, bytes)));
            }
        }
        // The file changes all the time.
        Err(Errno::AGAIN.into())
    }

    /// Creates a directory, unless it exists. A private directory is accessible only to its owner
    /// until [`Root::set_directory`].
    pub fn make_directory(&self, path: &RelPath, is_private: bool) -> Result<()> {
        let (parent, name) = self.open_parent(path)?;
        let mode = if is_private { Mode::RWXU } else { Mode::RWXU | Mode::RWXG | Mode::RWXO };
        match rustix::fs::mkdirat(&parent, name.as_os_str(), mode) {
            Err(Errno::EXIST) => match meta_at(&parent, name.as_os_str())?.kind {
                EntryKind::Directory => Ok(()),
                _ => Err(Errno::NOTDIR.into()),
            },
            made => {
                made?;
                sync_names(&parent)
            }
        }
    }

    /// Creates a symbolic link, which replaces any existing entry except a directory.
    pub fn symlink(
        &self,
        path: &RelPath,
        target: &[u8],
        mtime: FileTime,
        session: &str,
    ) -> Result<()> {
        let (parent, name) = self.open_parent(path)?;
        let part = name.session_part_name(session);
        let _ = rustix::fs::unlinkat(&parent, &part, AtFlags::empty());
        rustix::fs::symlinkat(OsStr::from_bytes(target), &parent, &part)?;
        let times = Meta::timestamps(mtime);
        let timed = rustix::fs::utimensat(&parent, &part, &times, AtFlags::SYMLINK_NOFOLLOW);
        let named =
            timed.and_then(|()| rustix::fs::renameat(&parent, &part, &parent, name.as_os_str()));
        match named {
            Ok(()) => remove_incomplete(&parent, &name),
            Err(_) => drop(rustix::fs::unlinkat(&parent, &part, AtFlags::empty())),
        }
        Ok(named?)
    }

    /// Removes the entry at a path, or a directory with everything in it. Symbolic links are
    /// removed and never followed. Mount points are not removed and cause an error. A path that
    /// does not exist is not an error.
    ///
    /// # Errors
    /// Returns the errors of the file system, or `EINTR` if `should_continue`, which is called for
    /// each entry, returns false.
    pub fn remove(&self, path: &RelPath, should_continue: &dyn Fn() -> bool) -> Result<()> {
        let (parent, name) = path.split().ok_or(Errno::ISDIR)?;
        let parent = match self.resolve(
            &parent,
            OFlags::RDONLY | OFlags::DIRECTORY,
            ResolveFlags::NO_XDEV,
        ) {
            Err(Errno::NOENT) => return Ok(()),
            opened => opened,
        };
        let removed = parent.and_then(|parent| {
            remove_tree(&parent, name.as_os_str(), should_continue)?;
            remove_incomplete(&parent, &name);
            Ok(())
        });
        match removed {
            Err(Errno::XDEV | Errno::BUSY) => Err(Error::other(
                "another file system is mounted there: removal does not cross file systems",
            )),
            other => Ok(other?),
        }
    }

    /// Removes temporary files of sessions that have been in a directory for at least `age`.
    pub fn remove_abandoned(&self, path: &RelPath, age: Duration) -> Result<()> {
        let directory = self.open_directory(path)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let Some(journal) = names::left_by_session(entry.file_name().to_bytes()) else {
                continue;
            };
            let stat =
                |name: &OsStr| rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW);
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let is_old = stat(name).is_ok_and(|stat| {
                let changed =
                    u64::try_from(stat.st_ctime).map_or(Duration::ZERO, Duration::from_secs);
                now.saturating_sub(changed) >= age
            });
            if is_old && stat(&journal).err() == Some(Errno::NOENT) {
                // This fails for a directory with such a name. Continue with the next entry in any
                // case.
                let _ = rustix::fs::unlinkat(&directory, name, AtFlags::empty());
            }
        }
        Ok(())
    }

    /// Adds missing rights of the owner to a directory before entries are created or removed in it.
    /// [`Root::set_directory`] sets its mode afterwards.
    pub fn make_writable(&self, path: &RelPath) -> Result<()> {
        Ok(add_owner_rights(self.open_directory(path)?)?)
    }

    /// Sets mode and modification time of a complete directory. Its special bits (setgid, sticky)
    /// are those of this end and stay. A directory of another user stays as it is.
    pub fn set_directory(&self, path: &RelPath, mode: u16, mtime: FileTime) -> Result<()> {
        let directory = self.open_directory(path)?;
        let before = rustix::fs::fstat(&directory)?;
        let mode = Mode::from_raw_mode(before.st_mode & 0o7000 | u32::from(mode));
        let set = rustix::fs::fchmod(&directory, mode)
            .and_then(|()| rustix::fs::futimens(&directory, &Meta::timestamps(mtime)));
        match set {
            Err(Errno::PERM) if before.st_uid != rustix::process::geteuid().as_raw() => Ok(()),
            set => Ok(set?),
        }
    }

    /// Returns the device of the directory.
    pub(crate) fn device(&self) -> Result<u64> {
        Ok(rustix::fs::fstat(&self.0)?.st_dev)
    }

    /// Writes all data of the file system to its medium. Threads that call this at the same time
    /// share a system call.
    pub fn sync(&self) -> Result<()> {
        Ok(self.1.run(|| rustix::fs::syncfs(&self.0))?)
    }
}

/// Makes the names in a directory durable. A directory of some file systems cannot be synced.
pub fn sync_names(directory: impl AsFd) -> Result<()> {
    match rustix::fs::fsync(directory) {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Operation that runs once on behalf of all threads that have requested it before it began.
/// Many small requests thus cause few system calls, and an error that the kernel reports only once
/// reaches all threads that it concerns.
#[derive(Debug, Default)]
struct SharedSync {
    state: Mutex<SyncState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct SyncState {
    /// Number of the last run that has begun.
    begun: u64,
    /// Number of the last run that has ended.
    ended: u64,
    /// Number and error of the last run that has failed.
    failed: Option<(u64, Errno)>,
    #[cfg(test)]
    waiting: usize,
}

impl SharedSync {
    fn run(&self, operation: impl FnOnce() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = state.begun + 1;
        #[cfg(test)]
        {
            state.waiting += 1;
        }
        while state.begun > state.ended && state.ended < wanted {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.ended < wanted {
            state.begun += 1;
            drop(state);
            let result = operation();
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.ended = state.begun;
            if let Err(error) = result {
                state.failed = Some((state.ended, error));
            }
            self.ended.notify_all();
        }
        match state.failed {
            Some((number, error)) if number >= wanted => Err(error),
            _ => Ok(()),
        }
    }
}

impl Listing {
    /// Reads the first names after `after`.
    fn read(directory: &OwnedFd, path: &RelPath, after: &[u8]) -> Result<Self> {
        let mut first = FirstNames::default();
        for name in read_names(directory)? {
            let name = name?;
            if name.as_bytes() > after {
                first.add(name);
            }
        }
        let mut names = first.names.into_sorted_vec();
        names.reverse();
        Ok(Self { path: path.clone(), after: after.to_vec(), names, has_more: first.has_more })
    }

    /// Takes the entries of a page, which fit into a slot. Names that were removed in the meantime
    /// are omitted.
    fn entries(&mut self, directory: &OwnedFd) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        while entries.len() < MAX_PAGE_ENTRIES
            && let Some(name) = self.names.pop()
        {
            if let Some(entry) = read_entry(directory, name.clone()) {
                bytes += ENTRY_OVERHEAD + entry.name.as_bytes().len() + entry.meta.target.len();
                if bytes > SLOT as usize {
                    self.names.push(name);
                    break;
                }
                entries.push(entry);
            }
            name.as_bytes().clone_into(&mut self.after);
        }
        Ok(entries)
    }
}

/// Waits until a write to the file changes its version. The kernel's clock for times of files
/// advances in ticks, so the second of two writes within a tick does not.
pub(crate) fn wait_for_tick(file: &File) -> Result<()> {
    let stat = rustix::fs::fstat(file)?;
    let changed = Duration::new(stat.st_ctime.max(0).cast_unsigned(), stat.st_ctime_nsec as u32);
    let age = UNIX_EPOCH.elapsed().unwrap_or_default().checked_sub(changed);
    if age.is_some_and(|age| age < MAX_TICK) {
        std::thread::sleep(MAX_TICK);
    }
    Ok(())
}

/// Returns the names in a directory, without incomplete files.
fn read_names(directory: &OwnedFd) -> Result<impl Iterator<Item = Result<Name>>> {
    let entries = Dir::read_from(directory)?;
    Ok(entries.filter_map(|entry| match entry {
        Ok(entry) => Name::new(entry.file_name().to_bytes()).ok().map(Ok),
        Err(error) => Some(Err(error.into())),
    }))
}

/// Returns the entry with a name, or `None` if it was removed in the meantime. An entry that cannot
/// be examined, such as the mount point of a server that is gone, counts as special, so that the
/// others are copied.
fn read_entry(directory: &OwnedFd, name: Name) -> Option<Entry> {
    let meta = match meta_at(directory, name.as_os_str()) {
        Ok(meta) => meta,
        Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => return None,
        Err(error) => Meta::unreadable(&error),
    };
    Some(Entry { name, meta })
}

fn meta_at(directory: impl AsFd, name: &OsStr) -> Result<Meta> {
    let mut meta =
        Meta::from_stat(&rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?);
    if meta.kind == EntryKind::Symlink {
        meta.target = rustix::fs::readlinkat(&directory, name, Vec::new())?.into_bytes();
    }
    Ok(meta)
}

#[cfg(test)]
mod tests {
    use super::super::scratch::ScratchDirectory;
    use super::*;
    use std::os::unix::fs::symlink;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    fn path(text: &str) -> RelPath {
        RelPath::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn no_symbolic_link_is_followed() {
        let (inside, outside) = (ScratchDirectory::new(), ScratchDirectory::new());
        std::fs::write(outside.path().join("secret"), "secret").unwrap();
        symlink(outside.path(), inside.path().join("out")).unwrap();
        symlink("/etc/passwd", inside.path().join("passwd")).unwrap();
        std::fs::create_dir(inside.path().join("d")).unwrap();
        symlink("d", inside.path().join("within")).unwrap();
        let root = Root::open(inside.path()).unwrap();
        for link in ["out/secret", "passwd", "within/x"] {
            assert!(root.open_file(&path(link)).is_err(), "{link}");
        }
        for below in ["out", "within"] {
            let at = path(&format!("{below}/new"));
            assert!(
                root.list(&path(below)).is_err() && root.make_directory(&at, true).is_err(),
                "{below}"
            );
            assert!(root.symlink(&at, b"x", FileTime::default(), "s").is_err(), "{below}");
            assert!(
                root.set_directory(&path(below), 0o777, FileTime::default()).is_err(),
                "{below}"
            );
            assert!(root.meta(&at).is_err(), "{below}");
        }
        for below in ["out/secret", "within/x"] {
            assert!(root.remove(&path(below), &|| true).is_err(), "{below}");
        }
        assert!(root.make_directory(&path("passwd"), true).is_err());
        assert_eq!(root.meta(&path("passwd")).unwrap().target, b"/etc/passwd");
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read_dir(inside.path().join("d")).unwrap().count(), 0);
    }

    #[test]
    fn removed_tree_leaves_link_targets() {
        let (inside, outside) = (ScratchDirectory::new(), ScratchDirectory::new());
        std::fs::write(outside.path().join("secret"), "secret").unwrap();
        let tree = inside.path().join("tree");
        std::fs::create_dir_all(tree.join("a/b")).unwrap();
        std::fs::write(tree.join("a/b/file.uiw-part"), "x").unwrap();
        symlink(outside.path(), tree.join("a/out")).unwrap();
        symlink(outside.path(), inside.path().join("link")).unwrap();
        let root = Root::open(inside.path()).unwrap();
        assert!(root.remove(&path("tree"), &|| false).is_err());
        assert!(tree.join("a/b/file.uiw-part").exists());
        for name in ["tree", "link", "absent", "absent/x"] {
            root.remove(&path(name), &|| true).unwrap();
        }
        assert!(root.remove(&RelPath::default(), &|| true).is_err());
        assert_eq!(std::fs::read_dir(inside.path()).unwrap().count(), 0);
        assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"secret");
    }

    #[test]
    fn directory_moved_during_removal_is_error() {
        let scratch = ScratchDirectory::new();
        let (inner, moved) = (scratch.path().join("d/d"), scratch.path().join("moved"));
        let deepest = scratch.path().join("d/".repeat(2 * super::super::remove::MAX_OPEN));
        std::fs::create_dir_all(&deepest).unwrap();
        let root = Root::open(scratch.path()).unwrap();
        let removed = root.remove(&path("d"), &|| {
            if !deepest.exists() && inner.exists() {
                std::fs::rename(&inner, &moved).unwrap();
            }
            true
        });
        assert!(removed.is_err() && moved.exists());
    }

    #[test]
    fn entry_in_mount_not_removed() {
        let name = format!("uiw-{}", std::process::id());
        let file = Path::new("/dev/shm").join(&name);
        std::fs::write(&file, "x").unwrap();
        let root = Root::open(Path::new("/dev")).unwrap();
        let removed = root.remove(&path(&format!("shm/{name}")), &|| true);
        let is_there = file.exists();
        let _ = std::fs::remove_file(&file);
        let error = removed.unwrap_err().to_string();
        assert!(is_there && error.contains("does not cross file systems"), "{error}");
    }

    /// A write in the tick of the previous one would leave the version unchanged.
    #[test]
    fn new_file_read_after_tick() {
        let scratch = ScratchDirectory::new();
        let root = Root::open(scratch.path()).unwrap();
        std::fs::write(scratch.path().join("file"), "one").unwrap();
        let (meta, _) = root.read_small(&path("file"), 100).unwrap().unwrap();
        std::fs::write(scratch.path().join("file"), "two").unwrap();
        assert_ne!(root.meta(&path("file")).unwrap().version, meta.version);
    }

    #[test]
    fn failed_link_leaves_nothing() {
        let scratch = ScratchDirectory::new();
        std::fs::create_dir(scratch.path().join("d")).unwrap();
        let root = Root::open(scratch.path()).unwrap();
        let error = root.symlink(&path("d"), b"x", FileTime::default(), "s").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::ISDIR.raw_os_error()));
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
    }

    #[test]
    fn vanished_page_continues_list() {
        let scratch = ScratchDirectory::new();
        let names: Vec<_> =
            (0..MAX_PAGE_ENTRIES + 2).map(|number| format!("{number:04}")).collect();
        for name in &names {
            File::create(scratch.path().join(name)).unwrap();
        }
        let root = Root::open(scratch.path()).unwrap();
        let mut listing = Listing::read(&root.0, &path(""), b"").unwrap();
        listing.after = b"!".to_vec();
        for name in &names[..=MAX_PAGE_ENTRIES] {
            std::fs::remove_file(scratch.path().join(name)).unwrap();
        }
        // With an empty list, `--delete` would take the directory for empty and remove its copy.
        let (page, more) = root.read_page(&path(""), b"!", &mut Some(listing)).unwrap();
        assert_eq!((page.len(), more), (1, false));
    }

    #[test]
    fn following_page_reads_no_directory() {
        let scratch = ScratchDirectory::new();
        let create = |name: String| drop(File::create(scratch.path().join(name)).unwrap());
        (0..4000).for_each(|number| create(format!("{number:0250}")));
        let root = Root::open(scratch.path()).unwrap();
        let mut kept = None;
        let (first, more) = root.read_page(&path(""), b"", &mut kept).unwrap();
        assert!(more && (3000..3500).contains(&first.len()), "{}", first.len());
        // The second page would have this name if it read the directory.
        create(format!("{:0250}!", 3500));
        let after = first.last().unwrap().name.as_bytes();
        let (second, more) = root.read_page(&path(""), after, &mut kept).unwrap();
        assert_eq!((first.len() + second.len(), more), (4000, false));
        let (anew, _) = root.read_page(&path(""), after, &mut kept).unwrap();
        assert_eq!(anew.len(), second.len() + 1);
    }

    #[test]
    fn directories_listed_in_ordered_pages() {
        let scratch = ScratchDirectory::new();
        for number in 0..MAX_PAGE_ENTRIES + 50 {
            File::create(scratch.path().join(format!("{number}"))).unwrap();
        }
        File::create(scratch.path().join("5.uiw-part")).unwrap();
        let root = Root::open(scratch.path()).unwrap();
        let (first, more) = root.read_page(&RelPath::default(), b"", &mut None).unwrap();
        assert_eq!((first.len(), more), (MAX_PAGE_ENTRIES, true));
        let entries = root.list(&RelPath::default()).unwrap();
        assert_eq!(entries.len(), MAX_PAGE_ENTRIES + 50);
        assert!(entries.is_sorted_by(|a, b| a.name < b.name) && entries.starts_with(&first));
        assert_eq!(
            root.read_page(&RelPath::default(), b"9999", &mut None).unwrap(),
            (Vec::new(), false)
        );
    }

    #[test]
    fn concurrent_syncs_share_runs_and_errors() {
        const WAITING: usize = 20;
        let (sync, runs) = (SharedSync::default(), AtomicUsize::new(0));
        let (begun, go_on) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let first = sync.run(|| {
                    begun.wait();
                    go_on.wait();
                    Ok(())
                });
                assert_eq!(first, Ok(()));
            });
            begun.wait();
            let others: Vec<_> = (0..WAITING)
                .map(|_| {
                    scope.spawn(|| {
                        sync.run(|| {
                            runs.fetch_add(1, Ordering::SeqCst);
                            Err(Errno::IO)
                        })
                    })
                })
                .collect();
            // All of them wait for the run after the one that has begun.
            while sync.state.lock().unwrap().waiting < 1 + WAITING {
                std::thread::yield_now();
            }
            go_on.wait();
            for other in others {
                assert_eq!(other.join().unwrap(), Err(Errno::IO));
            }
        });
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        assert_eq!(sync.run(|| Ok(())), Ok(()));
    }

    #[test]
    fn kept_names_have_bounded_size() {
        let name = |number: usize| Name::new(format!("{number:0>255}").as_bytes()).unwrap();
        let mut first = FirstNames::default();
        for number in (0..2 * LISTING as usize / (ENTRY_OVERHEAD + 255)).rev() {
            first.add(name(number));
            let bytes = (first.names.len() * (ENTRY_OVERHEAD + 255)) as u64;
            assert!(bytes <= LISTING && bytes == first.bytes, "{bytes}");
        }
        let names = first.names.into_sorted_vec();
        assert!(first.has_more && names.len() as u64 == LISTING / (ENTRY_OVERHEAD as u64 + 255));
        assert!(names.iter().enumerate().all(|(number, first)| *first == name(number)));
    }

    /// 8,192 links of 4 KiB would be 32 MiB.
    #[test]
    fn long_links_page_fits_slot() {
        let scratch = ScratchDirectory::new();
        let target = "x/".repeat(2040);
        for number in 0..600 {
            symlink(&target, scratch.path().join(format!("{number:03}"))).unwrap();
        }
        let root = Root::open(scratch.path()).unwrap();
        let (page, more) = root.read_page(&RelPath::default(), b"", &mut None).unwrap();
        let bytes: usize = page.iter().map(|entry| entry.meta.target.len()).sum();
        assert!(more && bytes <= SLOT as usize, "{bytes} bytes");
        assert_eq!(root.list(&RelPath::default()).unwrap().len(), 600);
    }

    #[test]
    fn leftovers_of_killed_session_removed() {
        let scratch = ScratchDirectory::new();
        // The last two belong to a file with the name `b.0123abcd`, which can be continued, and to
        // the user of the program.
        let (left, kept) =
            (["a.0123abcd.uiw-part", "l.89efffff.uiw-part"], ["b.0123abcd.uiw-part", "x.uiw-part"]);
        for name in [left[0], kept[0], kept[1], "b.0123abcd.uiw-journal"] {
            File::create(scratch.path().join(name)).unwrap();
        }
        symlink("nowhere", scratch.path().join(left[1])).unwrap();
        std::fs::create_dir(scratch.path().join("d.0123abcd.uiw-part")).unwrap();
        let root = Root::open(scratch.path()).unwrap();
        let names = || -> Vec<_> {
            let entries = std::fs::read_dir(scratch.path()).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        root.remove_abandoned(&RelPath::default(), ABANDONED).unwrap();
        assert_eq!(names().len(), 6, "a session may be at work on them");
        root.remove_abandoned(&RelPath::default(), Duration::ZERO).unwrap();
        let rest = names();
        assert!(
            rest.len() == 4 && kept.iter().all(|name| rest.contains(&(*name).to_owned())),
            "{rest:?}"
        );
    }

    #[test]
    fn devices_and_fifos_are_never_opened() {
        let scratch = ScratchDirectory::new();
        let mode = Mode::RUSR | Mode::WUSR;
        let fifo = scratch.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
        let _socket =
            std::os::unix::net::UnixListener::bind(scratch.path().join("socket")).unwrap();
        let root = Root::open(scratch.path()).unwrap();
        let devices = Root::open(Path::new("/dev")).unwrap();
        // Opening the FIFO for reading would wait forever without a writer.
        for (root, name) in [(&root, "fifo"), (&root, "socket"), (&devices, "null")] {
            let error = root.open_file(&path(name)).unwrap_err();
            assert_eq!(error.to_string(), "no regular file", "{name}");
            assert_eq!(root.meta(&path(name)).unwrap().kind, EntryKind::Special);
        }
    }

    #[test]
    fn entry_that_cannot_be_examined_has_reason() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // With this capability, root could read the link.
                let mut sets = rustix::thread::capabilities(None).unwrap();
                sets.effective.remove(rustix::thread::CapabilitySet::SYS_PTRACE);
                rustix::thread::set_capabilities(None, sets).unwrap();
                let Err(error) = std::fs::read_link("/proc/1/exe") else { return };
                let entries = Root::open(Path::new("/proc/1")).unwrap().list(&RelPath::default());
                let entries = entries.unwrap();
                let exe = entries.iter().find(|entry| entry.name.as_bytes() == b"exe").unwrap();
                assert_eq!(exe.meta, Meta::unreadable(&error));
                assert_eq!(exe.meta.target, b"Permission denied (os error 13)");
            });
        });
    }

    #[test]
    fn directory_swapped_for_link_stays_inside() {
        let (inside, outside) = (ScratchDirectory::new(), ScratchDirectory::new());
        for (scratch, text) in [(&inside, "inside"), (&outside, "secret")] {
            std::fs::create_dir(scratch.path().join("d")).unwrap();
            std::fs::write(scratch.path().join("d/file"), text).unwrap();
        }
        symlink(outside.path().join("d"), inside.path().join("link")).unwrap();
        let root = Root::open(inside.path()).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let directory = File::open(inside.path()).unwrap();
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                while !stop.load(Ordering::Relaxed) {
                    rustix::fs::renameat_with(&directory, "d", &directory, "link", exchange)
                        .unwrap();
                }
            });
            let (mut read, mut written) = (0, 0);
            while read < 200 || written < 200 {
                if let Ok(Ok((_, bytes))) = root.read_small(&path("d/file"), 100) {
                    assert_eq!(bytes, b"inside");
                    read += 1;
                }
                if root.symlink(&path("d/new"), b"x", FileTime::default(), "s").is_ok() {
                    written += 1;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(std::fs::read_dir(outside.path().join("d")).unwrap().count(), 1);
    }
}

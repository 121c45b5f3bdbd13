//! Removal of directory trees of any depth, with few open directories.

use super::names::MAX_PATH;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags, fchmod, fstat, openat2, unlinkat};
use rustix::io::{Errno, Result};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

/// Maximum number of directories that a removal has open. These are the deepest ones; the others
/// are opened again when the removal returns to them.
pub const MAX_OPEN: usize = 8;
/// Maximum depth of a tree: as many directories as a path below a share can name.
const MAX_NESTING: usize = MAX_PATH.div_ceil(2);
/// Maximum number of times that a directory is read until it is empty.
const MAX_PASSES: usize = 8;

/// A directory that is being emptied.
struct Level {
    name: OsString,
    /// Entries of the directory; `None` while it is closed.
    entries: Option<Dir>,
    passes: usize,
}

/// Directories from the top of the removed tree to the one that is being emptied.
struct Levels<'a> {
    /// Directory that contains the tree.
    parent: BorrowedFd<'a>,
    levels: Vec<Level>,
}

impl Levels<'_> {
    /// Enters a directory of the deepest level, and closes one of the levels above if too many are
    /// open.
    fn push(&mut self, name: &OsStr, passes: usize) -> Result<()> {
        if self.levels.len() >= MAX_NESTING {
            return Err(Errno::NAMETOOLONG);
        }
        let entries = match open(self.deepest()?, name) {
            Err(Errno::NOENT) => return Ok(()),
            opened => opened?,
        };
        if let Some(at) = self.levels.len().checked_sub(MAX_OPEN - 1) {
            self.levels[at].entries = None;
        }
        self.levels.push(Level { name: name.to_owned(), entries: Some(entries), passes });
        Ok(())
    }

    /// Opens the deepest levels again if they are closed. Each one is opened by its name in the
    /// level above, so that a rename cannot lead out of the parent.
    fn reopen(&mut self) -> Result<()> {
        if self.levels.last().is_none_or(|level| level.entries.is_some()) {
            return Ok(());
        }
        let mut above = None;
        for at in 0..self.levels.len() {
            let directory = match &above {
                None => open(self.parent, &self.levels[at].name)?,
                Some(above) => open(Dir::fd(above)?, &self.levels[at].name)?,
            };
            if at > 0 && at + MAX_OPEN > self.levels.len() + 1 {
                self.levels[at - 1].entries = above.take();
            }
            above = Some(directory);
        }
        if let Some(level) = self.levels.last_mut() {
            level.entries = above;
        }
        Ok(())
    }

    /// Returns the directory of the deepest level, or the parent of the tree.
    fn deepest(&self) -> Result<BorrowedFd<'_>> {
        self.levels.last().and_then(|level| level.entries.as_ref()).map_or(Ok(self.parent), Dir::fd)
    }

    /// Removes an entry of the deepest level, or enters it if it is a directory.
    fn remove(&mut self, name: &OsStr) -> Result<()> {
        match unlinkat(self.deepest()?, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR) => self.push(name, 1),
            Err(error) => Err(error),
        }
    }

    /// Removes the deepest level, after all its entries were read.
    fn pop(&mut self) -> Result<()> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        let Level { name, passes, entries } = level;
        drop(entries);
        self.reopen()?;
        match unlinkat(self.deepest()?, &name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            // Some file systems skip entries of a directory while other entries are removed.
            Err(Errno::NOTEMPTY | Errno::EXIST) if passes < MAX_PASSES => {
                self.push(&name, passes + 1)
            }
            Err(error) => Err(error),
        }
    }
}

/// Opens a directory, which must be on the same file system, and makes it writable.
fn open(parent: BorrowedFd<'_>, name: &OsStr) -> Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let directory = openat2(parent, name, flags, Mode::empty(), resolve)?;
    // An error shows again when an entry is removed.
    let _ = add_owner_rights(&directory);
    Dir::new(directory)
}

/// Adds missing rights of the owner to a directory, because entries of a read-only directory can be
/// neither created nor removed.
pub(crate) fn add_owner_rights(directory: impl AsFd) -> Result<()> {
    let mode = Mode::from_raw_mode(fstat(&directory)?.st_mode & 0o7777);
    if mode.contains(Mode::RWXU) { Ok(()) } else { fchmod(directory, mode | Mode::RWXU) }
}

/// Removes an entry of `parent`, or a directory with everything in it. Symbolic links are removed
/// and never followed.
///
/// # Errors
/// Returns the errors of the file system; `EXDEV` for a directory on which another file system is
/// mounted; `ENAMETOOLONG` for a deeper tree than a path can name; and `EINTR` if
/// `should_continue`, which is called for each entry, returns false.
pub(crate) fn remove_tree(
    parent: impl AsFd,
    name: &OsStr,
    should_continue: &dyn Fn() -> bool,
) -> Result<()> {
    let mut tree = Levels { parent: parent.as_fd(), levels: Vec::new() };
    let check = || if should_continue() { Ok(()) } else { Err(Errno::INTR) };
    check()?;
    tree.remove(name)?;
    while let Some(level) = tree.levels.last_mut() {
        check()?;
        match level.entries.as_mut().and_then(Dir::next).transpose()? {
            Some(entry) => {
                let name = entry.file_name().to_bytes();
                if !matches!(name, b"." | b"..") {
                    tree.remove(OsStr::from_bytes(name))?;
                }
            }
            None => tree.pop()?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::scratch::ScratchDirectory;
    use super::*;
    use rustix::fs::{CWD, RenameFlags, mkdirat, open as open_path, renameat_with};
    use std::cell::Cell;
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn directory(path: &std::path::Path) -> OwnedFd {
        open_path(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    /// Creates nested directories below `top`, some of which also contain a file.
    fn nest(top: &std::path::Path, levels: usize) {
        mkdirat(CWD, top, Mode::RWXU).unwrap();
        let mut at = directory(top);
        for level in 1..levels {
            mkdirat(&at, "d", Mode::RWXU).unwrap();
            if level % 100 < 2 {
                rustix::fs::openat(&at, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU)
                    .unwrap();
            }
            at = rustix::fs::openat(&at, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
                .unwrap();
        }
    }

    #[test]
    fn deepest_tree_removed_with_few_descriptors() {
        let scratch = ScratchDirectory::new();
        let top = scratch.path().join("d");
        nest(&top, MAX_NESTING);
        let parent = directory(scratch.path());
        // Other tests of this process have few files open.
        let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let (before, most) = (count(), Cell::new(0));
        remove_tree(&parent, OsStr::new("d"), &|| {
            most.set(most.get().max(count()));
            true
        })
        .unwrap();
        assert!(!top.exists());
        assert!(most.get() < before + MAX_OPEN + 50, "{} descriptors", most.get() - before);
    }

    #[test]
    fn trees_deeper_than_paths_rejected() {
        let scratch = ScratchDirectory::new();
        let top = scratch.path().join("d");
        nest(&top, MAX_NESTING + 1);
        let parent = directory(scratch.path());
        let remove = |at: &OwnedFd| remove_tree(at, OsStr::new("d"), &|| true);
        assert_eq!(remove(&parent), Err(Errno::NAMETOOLONG));
        remove(&directory(&top)).unwrap();
        remove(&parent).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn swapped_directories_keep_link_targets() {
        let (inside, outside) = (ScratchDirectory::new(), ScratchDirectory::new());
        let deep: std::path::PathBuf = vec!["d"; 2 * MAX_OPEN].iter().collect();
        std::fs::create_dir_all(outside.path().join(&deep)).unwrap();
        let parent = directory(inside.path());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = renameat_with(&parent, "d/d/d", &parent, "link", RenameFlags::EXCHANGE);
                }
            });
            let mut removed = 0;
            while removed < 100 {
                let _ = std::os::unix::fs::symlink(outside.path(), inside.path().join("link"));
                let _ = std::fs::create_dir_all(inside.path().join(&deep));
                removed += usize::from(remove_tree(&parent, OsStr::new("d"), &|| true).is_ok());
                let _ = remove_tree(&parent, OsStr::new("link"), &|| true);
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(outside.path().join(&deep).exists());
    }
}

//! Where processes publish their counters, and where readers look for them.

use crate::file::{CounterFile, FileError, Owner};
use rustix::fs::{
    Access, AtFlags, CWD, Dir, FileType, Mode, OFlags, accessat, mkdir, open, stat, statat, unlinkat,
};
use rustix::process::geteuid;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The end of a file's name. Random digits are in front.
pub(crate) const SUFFIX: &str = ".counters";
/// The beginning of the name of a file that is not locked yet.
pub(crate) const NEW: &str = ".new-";

/// A directory keeps files of so many processes that have ended. A process that finds more when it
/// publishes removes the oldest.
const MAX_FILES: usize = 128;
/// A process that has not finished its file after this time was killed meanwhile.
const UNFINISHED_SECONDS: i64 = 60;
/// Number of files that are kept.
const KEEP_FILES: usize = 64;

/// Owner of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryKind {
    /// The user's: made with mode 0700 where it is not there, and refused unless it belongs to the
    /// user alone.
    User,
    /// One that another program made for this one, such as `uiw run`, which also removes the files.
    Given,
}

/// A directory of counter files.
///
/// ```
/// use std::path::Path;
/// # mod uiw { pub use uiw_counters as counters; }
/// use uiw::counters::Directory;
/// // A runtime directory that is not there is not used.
/// let directory = Directory::for_user(Some(Path::new("/nonexistent")));
/// assert!(directory.path().starts_with("/tmp"));
/// # let path = std::env::temp_dir().join(format!("uiw-example-Directory-{}", std::process::id()));
/// # std::fs::create_dir(&path)?;
/// // Readers find another directory by a link.
/// let (directory, other) = (Directory::new(&path), Directory::new("/run/other"));
/// directory.link(&other, "1")?;
/// assert_eq!(directory.linked()?, [other]);
/// # std::fs::remove_dir_all(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    path: PathBuf,
    kind: DirectoryKind,
}

impl Directory {
    /// A file beside the directory of `uiw run`, which needs the counters of every process that has
    /// ended, and removes them itself.
    #[doc(hidden)]
    pub const RUN_LOCK: &str = "../uiw-run-lock";

    /// The directory of the user whose rights the process has. `runtime` is the user's runtime
    /// directory, if there is one (`XDG_RUNTIME_DIR`): `uiw` within it, where it belongs to that
    /// user. Otherwise `/tmp/uiw-UID`.
    #[must_use]
    pub fn for_user(runtime: Option<&Path>) -> Self {
        let user = geteuid().as_raw();
        let own = |path: &&Path| path.is_absolute() && stat(*path).is_ok_and(|found| found.st_uid == user);
        let path = match runtime.filter(own) {
            Some(runtime) => runtime.join("uiw"),
            None => PathBuf::from(format!("/tmp/uiw-{user}")),
        };
        Self { path, kind: DirectoryKind::User }
    }

    /// A directory that is there already.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), kind: DirectoryKind::Given }
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the owner of the directory.
    #[must_use]
    pub fn kind(&self) -> DirectoryKind {
        self.kind
    }

    /// Makes it, if it is the user's and not there.
    pub(crate) fn create(&self) -> io::Result<OwnedFd> {
        if self.kind == DirectoryKind::User {
            match mkdir(&self.path, Mode::RWXU) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // A directory of `uiw run` can be entered and written by every user, and listed by its own
        // alone.
        self.open(OFlags::PATH)
    }

    /// Returns whether a process of this user could publish in it. Nothing is made: where the
    /// user's directory is not there, whether it can be.
    ///
    /// # Errors
    /// The system's; `PermissionDenied` for a user's directory that others may write.
    pub fn check(&self) -> io::Result<()> {
        let writable = Access::WRITE_OK | Access::EXEC_OK;
        match self.open(OFlags::PATH) {
            Ok(directory) => Ok(accessat(&directory, ".", writable, AtFlags::EACCESS)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.kind == DirectoryKind::User => {
                let parent = self.path.parent().unwrap_or(Path::new("/"));
                Ok(accessat(CWD, parent, writable, AtFlags::EACCESS)?)
            }
            Err(error) => Err(error),
        }
    }

    fn open(&self, how: OFlags) -> io::Result<OwnedFd> {
        let flags = how | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = open(&self.path, flags, Mode::empty())?;
        if self.kind == DirectoryKind::User {
            let found = rustix::fs::fstat(&directory)?;
            if found.st_uid != geteuid().as_raw() || found.st_mode & 0o077 != 0 {
                let why = "it does not belong to this user alone";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
        }
        Ok(directory)
    }

    /// Opens every counter file of other processes. A file that cannot be read is given as its name
    /// and the error. Of a user's directory that is not there, nothing.
    ///
    /// # Errors
    /// The system's; `PermissionDenied` for a user's directory that others may write.
    pub fn files(&self) -> io::Result<Vec<Result<CounterFile, (String, FileError)>>> {
        let directory = match self.open(OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.kind == DirectoryKind::User => {
                return Ok(Vec::new());
            }
            directory => directory?,
        };
        let mut files = Vec::new();
        for name in list_names(&directory, |name| name.ends_with(SUFFIX) && !name.starts_with('.'))? {
            match CounterFile::open(&directory, &name) {
                // The process has ended and its file was removed since, or it is this process's
                // own.
                Err(FileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(FileError::Own) => {}
                Ok(file) => files.push(Ok(file)),
                Err(error) => files.push(Err((name, error))),
            }
        }
        Ok(files)
    }

    /// Directories that `uiw run` has linked here, for readers: only `uiw run` removes their files.
    ///
    /// # Errors
    /// As [`Directory::files`].
    pub fn linked(&self) -> io::Result<Vec<Self>> {
        let directory = match self.open(OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            directory => directory?,
        };
        let mut all = Vec::new();
        for name in list_names(&directory, |name| name.starts_with("run-"))? {
            if let Ok(target) = rustix::fs::readlinkat(&directory, &name, Vec::new()) {
                let target = PathBuf::from(std::ffi::OsString::from(target.to_string_lossy().into_owned()));
                all.push(Self::new(target));
            }
        }
        Ok(all)
    }

    /// Links `other` here as `run-NAME`, so that readers find it.
    ///
    /// # Errors
    /// The system's.
    pub fn link(&self, other: &Self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(&other.path, self.create()?, format!("run-{name}"))?)
    }

    /// Removes that link.
    ///
    /// # Errors
    /// The system's.
    pub fn unlink(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(self.create()?, format!("run-{name}"), AtFlags::empty())?)
    }

    /// Removes the files of all processes that have ended, for the program that made the directory.
    /// True: no counter file is left.
    ///
    /// # Errors
    /// As [`Directory::files`].
    pub fn remove_ended(&self) -> io::Result<bool> {
        let directory = self.open(OFlags::RDONLY)?;
        let mut is_empty = true;
        for name in list_names(&directory, |name| name.ends_with(SUFFIX))? {
            let runs = match CounterFile::open(&directory, &name) {
                Ok(file) => file.owner()? != Owner::Ended,
                Err(_) => false,
            };
            is_empty &= !runs && unlinkat(&directory, &name, AtFlags::empty()).is_ok();
        }
        Ok(is_empty)
    }

    /// Removes files of processes that have ended, the oldest first, if there are many. Programs
    /// that end by themselves leave theirs, and not every user looks at them.
    pub(crate) fn trim(&self) -> io::Result<()> {
        let directory = self.open(OFlags::RDONLY)?;
        if statat(&directory, Self::RUN_LOCK, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Ok(());
        }
        let all = list_names(&directory, |name| name.ends_with(SUFFIX))?;
        if all.len() <= MAX_FILES {
            return Ok(());
        }
        let changed =
            |name: &String| statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|it| it.st_mtime);
        let mut by_age: Vec<_> =
            all.into_iter().filter_map(|name| Some((changed(&name).ok()?, name))).collect();
        by_age.sort_unstable();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs().cast_signed());
        let mut surplus = by_age.len() - KEEP_FILES;
        for (changed_at, name) in by_age {
            if surplus == 0 {
                break;
            }
            // What is no counter file is left alone, but one that was never finished goes as well.
            let ended = match CounterFile::open(&directory, &name) {
                Ok(file) => matches!(file.owner(), Ok(Owner::Ended)),
                Err(_) => name.starts_with(NEW) && changed_at + UNFINISHED_SECONDS < now,
            };
            if ended && unlinkat(&directory, &name, AtFlags::empty()).is_ok() {
                surplus -= 1;
            }
        }
        Ok(())
    }
}

impl CounterFile {
    /// Removes it from `directory`. False: another program was faster.
    ///
    /// # Errors
    /// The system's.
    pub fn remove(&self, directory: &Directory) -> io::Result<bool> {
        match unlinkat(directory.create()?, self.name(), AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// The names of the files and links for which `which` returns true.
fn list_names(directory: &OwnedFd, which: impl Fn(&str) -> bool) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if entry.file_type() == FileType::Directory {
            continue;
        }
        if let Ok(name) = entry.file_name().to_str()
            && which(name)
        {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

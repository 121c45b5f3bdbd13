//! Directories with counter files.

use crate::file::{CounterFile, FileError, Owner};
use rustix::fs::{
    Access, AtFlags, CWD, Dir, FileType, Mode, OFlags, accessat, mkdir, open, stat, statat,
    unlinkat,
};
use rustix::process::geteuid;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Suffix of the name of a counter file, after random digits.
pub(crate) const SUFFIX: &str = ".counters";
/// Prefix of the name of a file that is not announced yet.
pub(crate) const NEW: &str = ".new-";

/// Maximum number of files in a directory. A process that finds more when it publishes its own file
/// removes the oldest files of ended processes.
const MAX_FILES: usize = 128;
/// Age in seconds after which an unfinished file counts as left by a killed process.
const UNFINISHED_SECONDS: i64 = 60;
/// Number of files that are kept when old ones are removed.
const KEEP_FILES: usize = 64;

/// Kind of a directory, by its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryKind {
    /// The directory of the user. It is created with mode 0700 if it does not exist, and refused if
    /// other users have access to it.
    User,
    /// A directory that another program, such as `uiw run`, has created for this one. That program
    /// also removes the files.
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
    /// Lock file of `uiw run`, relative to its directory. It marks directories whose files are not
    /// trimmed, because `uiw run` needs the counters of every ended process and removes the files
    /// itself.
    #[doc(hidden)]
    pub const RUN_LOCK: &str = "../uiw-run-lock";

    /// Returns the directory of the effective user. It is the subdirectory `uiw` of `runtime`, the
    /// user's runtime directory (`XDG_RUNTIME_DIR`), if that exists and belongs to the user.
    /// Otherwise it is `/tmp/uiw-UID`.
    #[must_use]
    pub fn for_user(runtime: Option<&Path>) -> Self {
        let user = geteuid().as_raw();
        let own = |path: &&Path| {
            path.is_absolute() && stat(*path).is_ok_and(|found| found.st_uid == user)
        };
        let path = match runtime.filter(own) {
            Some(runtime) => runtime.join("uiw"),
            None => PathBuf::from(format!("/tmp/uiw-{user}")),
        };
        Self { path, kind: DirectoryKind::User }
    }

    /// Returns an existing directory that another program has created.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), kind: DirectoryKind::Given }
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the kind of the directory.
    #[must_use]
    pub fn kind(&self) -> DirectoryKind {
        self.kind
    }

    /// Opens the directory. Creates it first if it is the directory of the user and does not exist.
    pub(crate) fn create(&self) -> io::Result<OwnedFd> {
        if self.kind == DirectoryKind::User {
            match mkdir(&self.path, Mode::RWXU) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Open it without the right to list it: every user may enter and write to a directory of
        // `uiw run`, but only its owner may list it.
        self.open(OFlags::PATH)
    }

    /// Checks whether a process of this user could publish counters in the directory. Nothing is
    /// created: if the directory of the user does not exist, checks whether it could be created.
    ///
    /// # Errors
    /// Returns the OS error, or `PermissionDenied` if the directory of the user does not belong to
    /// this user alone.
    pub fn check(&self) -> io::Result<()> {
        let writable = Access::WRITE_OK | Access::EXEC_OK;
        match self.open(OFlags::PATH) {
            Ok(directory) => Ok(accessat(&directory, ".", writable, AtFlags::EACCESS)?),
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && self.kind == DirectoryKind::User =>
            {
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

    /// Opens every counter file of other processes. For a file that cannot be read, the result has
    /// its name and the error. If the directory of the user does not exist, there are no files.
    ///
    /// # Errors
    /// Returns the OS error, or `PermissionDenied` if the directory of the user does not belong to
    /// this user alone.
    pub fn files(&self) -> io::Result<Vec<Result<CounterFile, (String, FileError)>>> {
        let directory = match self.open(OFlags::RDONLY) {
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && self.kind == DirectoryKind::User =>
            {
                return Ok(Vec::new());
            }
            directory => directory?,
        };
        let mut files = Vec::new();
        for name in list_names(&directory, |name| name.ends_with(SUFFIX) && !name.starts_with('.'))?
        {
            match CounterFile::open(&directory, &name) {
                // The file was removed in the meantime, or it belongs to this process.
                Err(FileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(FileError::Own) => {}
                Ok(file) => files.push(Ok(file)),
                Err(error) => files.push(Err((name, error))),
            }
        }
        Ok(files)
    }

    /// Returns the directories that `uiw run` has linked here for readers. Only `uiw run` removes
    /// their files.
    ///
    /// # Errors
    /// Same as for [`Directory::files`].
    pub fn linked(&self) -> io::Result<Vec<Self>> {
        let directory = match self.open(OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            directory => directory?,
        };
        let mut all = Vec::new();
        for name in list_names(&directory, |name| name.starts_with("run-"))? {
            if let Ok(target) = rustix::fs::readlinkat(&directory, &name, Vec::new()) {
                let target =
                    PathBuf::from(std::ffi::OsString::from(target.to_string_lossy().into_owned()));
                all.push(Self::new(target));
            }
        }
        Ok(all)
    }

    /// Links `other` here as `run-NAME`, so that readers find it.
    ///
    /// # Errors
    /// Returns the OS error.
    pub fn link(&self, other: &Self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(&other.path, self.create()?, format!("run-{name}"))?)
    }

    /// Removes the link `run-NAME`.
    ///
    /// # Errors
    /// Returns the OS error.
    pub fn unlink(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(self.create()?, format!("run-{name}"), AtFlags::empty())?)
    }

    /// Removes the files of all ended processes, and files that cannot be read, for the program
    /// that has created the directory. Returns true if no counter file is left.
    ///
    /// # Errors
    /// Same as for [`Directory::files`].
    pub fn remove_ended(&self) -> io::Result<bool> {
        let directory = self.open(OFlags::RDONLY)?;
        let mut is_empty = true;
        for name in list_names(&directory, |name| name.ends_with(SUFFIX))? {
            let runs = match CounterFile::open(&directory, &name) {
                Ok(file) => file.owner()? != Owner::Ended,
                Err(FileError::Own) => true,
                Err(_) => false,
            };
            is_empty &= !runs && unlinkat(&directory, &name, AtFlags::empty()).is_ok();
        }
        Ok(is_empty)
    }

    /// Removes the oldest files of ended processes if there are too many files. Programs leave
    /// their files when they end, and not every user runs `uiw stat`, which removes them.
    pub(crate) fn trim(&self) -> io::Result<()> {
        let directory = self.open(OFlags::RDONLY)?;
        if self.kind == DirectoryKind::Given
            && statat(&directory, Self::RUN_LOCK, AtFlags::SYMLINK_NOFOLLOW).is_ok()
        {
            return Ok(());
        }
        let all = list_names(&directory, |name| name.ends_with(SUFFIX))?;
        if all.len() <= MAX_FILES {
            return Ok(());
        }
        let changed = |name: &String| {
            statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|it| it.st_mtime)
        };
        let mut by_age: Vec<_> =
            all.into_iter().filter_map(|name| Some((changed(&name).ok()?, name))).collect();
        by_age.sort_unstable();
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| now.as_secs().cast_signed());
        let mut surplus = by_age.len().saturating_sub(KEEP_FILES);
        for (changed_at, name) in by_age {
            if surplus == 0 {
                break;
            }
            // An unfinished file may be one of this process, which is about to lock it, and closing
            // a descriptor of it would release the lock.
            let ended = if name.starts_with(NEW) {
                changed_at + UNFINISHED_SECONDS < now
            } else {
                CounterFile::open(&directory, &name)
                    .is_ok_and(|file| matches!(file.owner(), Ok(Owner::Ended)))
            };
            if ended && unlinkat(&directory, &name, AtFlags::empty()).is_ok() {
                surplus -= 1;
            }
        }
        Ok(())
    }
}

impl CounterFile {
    /// Removes the file from `directory`. Returns false if another program has already removed it.
    ///
    /// # Errors
    /// Returns the OS error.
    pub fn remove(&self, directory: &Directory) -> io::Result<bool> {
        match unlinkat(directory.create()?, self.name(), AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the sorted names of files and links for which `which` returns true.
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

//! Destinations of installed files.

use std::path::{Component, Path, PathBuf};

/// Locations of an installation.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Absolute path of the prefix.
    prefix: PathBuf,
    /// Folder of the libraries, relative to the prefix.
    libdir: PathBuf,
    /// Absolute path of the folder below which a packager collects all files.
    destdir: Option<PathBuf>,
}

/// Prefixes whose folder `lib` the loader searches. Libraries in it would be used by all programs
/// of the system, like those of rdma-core.
const LOADER_PREFIXES: [&str; 3] = ["/", "/usr", "/usr/local"];

impl Layout {
    /// Creates a layout.
    ///
    /// # Errors
    /// Returns an error if the folder of the libraries is not below the prefix.
    pub(crate) fn new(
        prefix: &Path,
        libdir: Option<&Path>,
        destdir: Option<&Path>,
    ) -> Result<Self, String> {
        let absolute = |path: &Path| {
            std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let prefix = absolute(prefix)?;
        let is_loader_prefix = LOADER_PREFIXES.iter().any(|other| prefix == Path::new(other));
        let libdir = match libdir {
            Some(given) if given.is_absolute() => {
                given.strip_prefix(&prefix).map(Path::to_path_buf)
            }
            Some(given) => Ok(given.to_path_buf()),
            None if is_loader_prefix => Ok("lib/uiw".into()),
            None => Ok("lib".into()),
        };
        let libdir = libdir
            .ok()
            .filter(|path| is_below(path))
            .ok_or("--libdir: not a folder below the prefix")?;
        let destdir = destdir.map(absolute).transpose()?;
        Ok(Self { prefix, libdir, destdir })
    }

    pub(crate) fn prefix(&self) -> &Path {
        &self.prefix
    }

    pub(crate) fn libdir(&self) -> &Path {
        &self.libdir
    }

    /// Returns the destination of a path below the prefix.
    pub(crate) fn place(&self, path: impl AsRef<Path>) -> PathBuf {
        // Collecting the components removes a separator at the end.
        let prefix: PathBuf = self.prefix.join(path).components().collect();
        match &self.destdir {
            Some(destdir) => destdir.join(prefix.strip_prefix("/").unwrap_or(&prefix)),
            None => prefix,
        }
    }
}

/// Returns whether a path consists only of names, without a root or `..`.
pub(super) fn is_below(path: &Path) -> bool {
    path.components().next().is_some()
        && path.components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_private_in_loader_paths() {
        let libdir = |prefix: &str, given: Option<&str>| {
            Layout::new(Path::new(prefix), given.map(Path::new), None)
                .map(|layout| layout.place(layout.libdir()))
        };
        assert_eq!(libdir("/usr", None), Ok("/usr/lib/uiw".into()));
        assert_eq!(libdir("/usr/local/", None), Ok("/usr/local/lib/uiw".into()));
        assert_eq!(libdir("/opt/uiw", None), Ok("/opt/uiw/lib".into()));
        assert_eq!(libdir("/usr", Some("/usr/lib64/uiw")), Ok("/usr/lib64/uiw".into()));
        assert_eq!(libdir("/usr", Some("lib64")), Ok("/usr/lib64".into()));
        for wrong in ["/lib", "../lib", ""] {
            assert!(libdir("/usr", Some(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn packager_gets_one_folder() {
        let layout = Layout::new(Path::new("/usr"), None, Some(Path::new("/tmp/root"))).unwrap();
        assert_eq!(layout.place("bin/uiw"), Path::new("/tmp/root/usr/bin/uiw"));
        assert_eq!(layout.place(""), Path::new("/tmp/root/usr"));
        assert_eq!(layout.prefix(), Path::new("/usr"));
    }
}

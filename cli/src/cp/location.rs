//! Sources and targets on the command line: `HOST[:PORT]:SHARE/PATH`, or a local path.

use crate::shared::fail::{Failure, Result};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use uiw_copy::names::RelPath;

/// Location of a source or the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    Local(PathBuf),
    Remote(RemotePath),
}

/// A path in a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemotePath {
    /// Host, with the port if one is given.
    pub(super) host: String,
    pub(super) share: String,
    pub(super) path: RelPath,
    /// True if the path ends with a slash. As a source it then means the contents of the directory.
    pub(super) has_slash: bool,
}

impl RemotePath {
    /// Returns whether the path must be a directory.
    pub(super) fn is_directory(&self) -> bool {
        self.has_slash || self.path.is_empty()
    }

    /// Returns the name that this source gets at the target, or `None` if its contents are copied.
    /// A whole share gets the name of the share.
    pub(super) fn name(&self) -> Option<Vec<u8>> {
        let name = match self.path.split() {
            Some((_, name)) => name.as_bytes().to_vec(),
            None => self.share.clone().into_bytes(),
        };
        (!self.has_slash).then_some(name)
    }
}

/// Returns the name that a local source gets at the target, or `None` if its contents are copied:
/// `.`, `..` and `/` have no name, and a slash at the end means the contents.
pub(super) fn local_name(path: &Path) -> Option<&OsStr> {
    let bytes = path.as_os_str().as_bytes();
    let is_contents = bytes.ends_with(b"/") || bytes.ends_with(b"/.");
    path.file_name().filter(|_| !is_contents)
}

impl Location {
    /// Returns the name that this source gets at the target, or `None` if its contents are copied.
    pub(super) fn name(&self) -> Option<Vec<u8>> {
        match self {
            Self::Local(path) => local_name(path).map(|name| name.as_bytes().to_vec()),
            Self::Remote(place) => place.name(),
        }
    }

    /// Parses an argument. Like scp, it treats an argument with a colon before any slash as remote.
    /// A local name with a colon is written `./a:b`.
    pub(super) fn parse(text: &OsString) -> Result<Self> {
        let bytes = text.as_bytes();
        let slash = bytes.iter().position(|byte| *byte == b'/').unwrap_or(bytes.len());
        let Some(colon) = bytes[..slash].iter().rposition(|byte| *byte == b':') else {
            return Ok(Self::Local(text.into()));
        };
        let wrong = |why: &dyn std::fmt::Display| {
            Failure::usage(
                text.to_string_lossy(),
                why,
                "write HOST[:PORT]:SHARE/PATH, and local names with a colon as ./NAME",
            )
        };
        let part = |bytes: &[u8]| OsStr::from_bytes(bytes).to_str().map(str::to_owned);
        let host = part(&bytes[..colon])
            .filter(|host| !host.is_empty())
            .ok_or_else(|| wrong(&"no host"))?;
        let share = part(&bytes[colon + 1..slash]).filter(|share| !share.is_empty());
        let share = share.ok_or_else(|| wrong(&"no share"))?;
        let path = bytes.get(slash + 1..).unwrap_or_default();
        let path = RelPath::new(without_slashes(path)).map_err(|error| wrong(&error))?;
        Ok(Self::Remote(RemotePath { host, share, path, has_slash: bytes.ends_with(b"/") }))
    }
}

/// Returns the path without the slashes at its end.
fn without_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    &path[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations() {
        let remote = |text: &str| match Location::parse(&text.into()).unwrap() {
            Location::Remote(RemotePath { host, share, path, has_slash }) => {
                (host, share, path.to_string(), has_slash)
            }
            other => panic!("{other:?}"),
        };
        let of = |host: &str, share: &str, path: &str, has_slash| {
            (host.to_owned(), share.to_owned(), path.to_owned(), has_slash)
        };
        assert_eq!(remote("node:data/a/b"), of("node", "data", "a/b", false));
        assert_eq!(remote("node:7:data/a//"), of("node:7", "data", "a", true));
        assert_eq!(remote("[::1]:7:data"), of("[::1]:7", "data", ".", false));
        assert_eq!(remote("[fe80::1]:data/"), of("[fe80::1]", "data", ".", true));
        for local in ["a", "./a:b", "/x:y/z", "a/b:c"] {
            assert_eq!(Location::parse(&local.into()).unwrap(), Location::Local(local.into()));
        }
        for bad in
            [":data/a", "node:/a", "node:", "node:data/../a", "node:data//a", "node:data/a/./b"]
        {
            assert!(Location::parse(&bad.into()).is_err(), "{bad}");
        }
    }

    #[test]
    fn sources_have_names_at_target() {
        let name = |text: &str| Location::parse(&text.into()).unwrap().name();
        let some = |name: &str| Some(name.as_bytes().to_vec());
        assert_eq!(name("node:data/a/b"), some("b"));
        assert_eq!(name("node:data"), some("data"));
        assert_eq!((name("node:data/"), name("node:data/a/")), (None, None));
        assert_eq!((name("a/b"), name("a/b/"), name(".")), (some("b"), None, None));
    }
}

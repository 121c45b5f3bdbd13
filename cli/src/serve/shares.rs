//! Directories that are served to `uiw cp`, and the access of peers to them.

use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::open::LineCheck;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use uiw_copy::root::Root;
use uiw_llp::PeerIdentity;

/// Maximum length of a share's name, in bytes.
const MAX_NAME: usize = 64;
/// Option of a pinned key that limits the key to some shares.
const OPTION: &str = "shares";

/// Argument of `--share`: `NAME=DIR[:rw]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShareArg {
    name: String,
    directory: PathBuf,
    writable: bool,
}

/// A directory that is served.
#[derive(Debug)]
pub(super) struct ServedShare {
    pub(super) name: String,
    pub(super) root: Arc<Root>,
    pub(super) writable: bool,
}

/// All served directories.
#[derive(Debug, Default)]
pub(super) struct Shares(Vec<ServedShare>);

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

impl FromStr for ShareArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (name, directory) = text.split_once('=').ok_or("expected NAME=DIR or NAME=DIR:rw")?;
        if !is_name(name) {
            return Err("a name is 1 to 64 letters, digits, `-`, `_` and `.`".to_owned());
        }
        let (directory, writable) = match directory.strip_suffix(":rw") {
            Some(directory) => (directory, true),
            None => (directory, false),
        };
        if directory.is_empty() {
            return Err("expected NAME=DIR or NAME=DIR:rw".to_owned());
        }
        Ok(Self { name: name.to_owned(), directory: directory.into(), writable })
    }
}

/// Returns the check of pinned keys, whose options may only name shares of `arguments`.
pub(super) fn line_check(arguments: &[ShareArg]) -> Arc<LineCheck> {
    let names: Vec<_> = arguments.iter().map(|share| share.name.clone()).collect();
    Arc::new(move |line| check(line.options, &names))
}

/// Checks the options of a key against the names of the shares.
fn check(options: &str, names: &[String]) -> std::result::Result<(), String> {
    if options.is_empty() {
        return Ok(());
    }
    let list = match options.split_once('=') {
        Some((OPTION, list)) => list,
        Some((word, _)) => {
            return Err(format!(
                "unknown option `{}`: expected {OPTION}=NAME[:rw],..",
                word.escape_default()
            ));
        }
        None => return Err(format!("expected {OPTION}=NAME[:rw],..")),
    };
    let shares = list
        .split(',')
        .filter(|_| !list.is_empty())
        .map(|entry| entry.strip_suffix(":rw").unwrap_or(entry));
    for share in shares {
        if !names.iter().any(|name| name == share) {
            return Err(format!("no share `{}` is served here", share.escape_default()));
        }
    }
    Ok(())
}

/// Returns whether the key of a peer is limited to shares, so that it must not use other services.
pub(super) fn is_limited(identity: Option<&PeerIdentity>) -> bool {
    matches!(identity, Some(PeerIdentity::PublicKey { options, .. }) if !options.is_empty())
}

impl Shares {
    pub(super) fn open(arguments: &[ShareArg]) -> Result<Self> {
        let mut shares = Vec::<ServedShare>::new();
        for ShareArg { name, directory, writable } in arguments {
            if shares.iter().any(|share| share.name == *name) {
                let why = "a second share of this name";
                return Err(Failure::usage(
                    format!("--share {name}"),
                    why,
                    "give each its own name",
                ));
            }
            let root = Root::open(directory).map_err(|error| {
                let what = format!("--share {name}={}", directory.display());
                Failure::new(Exit::Failed, what, error, "name a directory that this user can read")
            })?;
            shares.push(ServedShare {
                name: name.clone(),
                root: Arc::new(root),
                writable: *writable,
            });
        }
        Ok(Self(shares))
    }

    /// Returns whether any share is writable, or `None` if there are no shares.
    pub(super) fn are_writable(&self) -> Option<bool> {
        (!self.0.is_empty()).then(|| self.0.iter().any(|share| share.writable))
    }

    /// Returns the share, and whether this peer may write there. The error is the reason for the
    /// refusal.
    pub(super) fn find(
        &self,
        name: &str,
        identity: Option<&PeerIdentity>,
    ) -> std::result::Result<(&ServedShare, bool), String> {
        // The answer is the same for a missing share and one without permission, so that peers
        // cannot find out the names of shares.
        let none = || format!("no share `{}` for you", name.escape_default());
        let share = self.0.iter().find(|share| share.name == name).ok_or_else(none)?;
        let options = match identity {
            Some(PeerIdentity::PublicKey { options, .. }) => options.as_str(),
            _ => "",
        };
        let may_write = may_write(options, name).ok_or_else(none)?;
        Ok((share, share.writable && may_write))
    }
}

/// Returns whether a key with these options may write to a share, or `None` if it may not even
/// read.
///
/// `shares=a,b:rw` allows the key to read `a`, and to read and write `b` if that share is writable.
/// A key without options may do whatever the share permits. Unknown options grant nothing.
fn may_write(options: &str, share: &str) -> Option<bool> {
    if options.is_empty() {
        return Some(true);
    }
    let (word, list) = options.split_once('=')?;
    if word != OPTION {
        return None;
    }
    list.split(',').find_map(|entry| match entry.strip_suffix(":rw") {
        Some(name) => (name == share).then_some(true),
        None => (entry == share).then_some(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let share = |name: &str, directory: &str, writable| {
            Ok(ShareArg { name: name.into(), directory: directory.into(), writable })
        };
        assert_eq!("data=/srv/data".parse(), share("data", "/srv/data", false));
        assert_eq!("in.1=/a=b:rw".parse(), share("in.1", "/a=b", true));
        for bad in [
            "data",
            "=dir",
            "a b=dir",
            "a/b=dir",
            "data=",
            "data=:rw",
            &format!("{}=x", "a".repeat(65)),
        ] {
            assert!(bad.parse::<ShareArg>().is_err(), "{bad}");
        }
    }

    #[test]
    fn unknown_key_options_rejected() {
        let names = ["a".to_owned(), "b".to_owned()];
        for good in ["", "shares=", "shares=a", "shares=a,b:rw"] {
            assert_eq!(check(good, &names), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("share=a", "unknown option `share`"),
            ("nonsense", "expected shares=NAME[:rw],.."),
            ("shares=c", "no share `c`"),
            ("shares=a,", "no share ``"),
            ("shares=a:ro", "no share `a:ro`"),
            ("shares=a,b:rw,c:rw", "no share `c`"),
        ] {
            let error = check(bad, &names).unwrap_err();
            assert!(error.starts_with(why), "{bad}: {error}");
        }
    }

    #[test]
    fn rights_of_keys() {
        for (options, share, may) in [
            ("", "any", Some(true)),
            ("shares=a,b:rw", "a", Some(false)),
            ("shares=a,b:rw", "b", Some(true)),
            ("shares=a,b:rw", "c", None),
            ("shares=", "a", None),
            ("share=a", "a", None),
            ("nonsense", "a", None),
        ] {
            assert_eq!(may_write(options, share), may, "{options} {share}");
        }
    }
}

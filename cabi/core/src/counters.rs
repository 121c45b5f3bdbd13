//! Where a process publishes its counters: for programs on the libraries, and for uiw's own.

use crate::abi::zeroed;
use crate::environment::{self, Privileged};
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use uiw_verbs::counters::{Directory, Publish};

/// The variable that names a directory, or is `off`.
pub const VARIABLE: &str = "UIW_COUNTERS";

/// Destination of the counters, if they are published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Counters {
    /// The user's directory.
    #[default]
    User,
    /// This directory, which exists.
    In(PathBuf),
    /// Nowhere.
    Off,
}

impl Counters {
    /// The value of [`VARIABLE`].
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "off" => Ok(Self::Off),
            path if Path::new(path).is_absolute() => Ok(Self::In(path.into())),
            _ => Err("expected off or an absolute path"),
        }
    }

    /// Returns the destination for a process whose counting code is in the file `library`.
    pub fn publish(&self, library: String) -> Option<Publish> {
        let directory = match self {
            Self::Off => return None,
            Self::In(path) => Directory::new(path),
            Self::User => user(),
        };
        Some(Publish { directory, library })
    }
}

/// The directory of this user: `uiw` in the runtime directory that `XDG_RUNTIME_DIR` names,
/// otherwise `/tmp/uiw-UID`.
pub fn user() -> Directory {
    let runtime = environment::variable("XDG_RUNTIME_DIR", Privileged::Ignored).map(PathBuf::from);
    Directory::for_user(runtime.as_deref())
}

/// Returns the destination for the libraries.
pub(crate) fn of_library(counters: &Counters) -> Option<Publish> {
    counters.publish(library())
}

/// Reports that a process cannot publish where `uiw run` counts its traffic: it would be reported
/// as one that moved nothing.
pub(crate) fn report_unpublished(counters: &Counters, is_published: bool) {
    let Counters::In(path) = counters else { return };
    if !is_published {
        let why = Directory::new(path).check().map_or_else(|error| format!(": {error}"), |()| String::new());
        crate::log::note!(
            "uiw: counters cannot be published in {}{why}: this process is not counted",
            path.display()
        );
    }
}

/// The file that this code is in: the library, which a program may also have loaded from a place of
/// its own.
fn library() -> String {
    let mut found: libc::Dl_info = zeroed();
    let code = of_library as *const () as *const libc::c_void;
    // SAFETY: there is room for the answer; any address may be asked about.
    let is_found = unsafe { libc::dladdr(code, &raw mut found) } != 0;
    let name = found.dli_fname;
    if !is_found || name.is_null() {
        return String::new();
    }
    // SAFETY: the loader's name of an object ends in NUL and lives as long as the object, which is
    // the one of this code.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    std::fs::canonicalize(&name).map_or(name, |path| path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_must_be_absolute() {
        assert_eq!(Counters::parse("off"), Ok(Counters::Off));
        assert_eq!(Counters::parse("/run/x"), Ok(Counters::In("/run/x".into())));
        assert!(Counters::parse("run/x").is_err() && Counters::parse("on").is_err());
        assert!(Counters::Off.publish(String::new()).is_none());
        let publish = Counters::In("/run/x".into()).publish("lib".to_owned()).unwrap();
        assert_eq!((publish.directory, &*publish.library), (Directory::new("/run/x"), "lib"));
    }

    #[test]
    fn file_of_code_is_program() {
        assert_eq!(Path::new(&library()), std::env::current_exe().unwrap().canonicalize().unwrap());
    }
}

//! The directory in which a process publishes its counters, for programs that use the C libraries
//! and for the program `uiw`.

use crate::abi::zeroed;
use crate::environment::{self, PrivilegePolicy};
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use uiw_verbs::counters::{Directory, Publish};

/// Environment variable with the path of a directory, or `off`.
pub const VARIABLE: &str = "UIW_COUNTERS";

/// Destination of the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CounterDestination {
    /// The default directory of the user.
    #[default]
    User,
    /// This directory, which exists.
    In(PathBuf),
    /// The counters are not published.
    Off,
}

impl CounterDestination {
    /// Parses the value of [`VARIABLE`].
    ///
    /// # Errors
    /// The rule that the value breaks.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "off" => Ok(Self::Off),
            path if Path::new(path).is_absolute() => Ok(Self::In(path.into())),
            _ => Err("expected off or an absolute path"),
        }
    }

    /// Returns the configuration for publishing counters of a process whose counting code is in the
    /// file `library`. Returns `None` if the counters are not published.
    pub fn publish_config(&self, library: String) -> Option<Publish> {
        let directory = match self {
            Self::Off => return None,
            Self::In(path) => Directory::new(path),
            Self::User => user_directory(),
        };
        Some(Publish { directory, library })
    }
}

/// Returns the default directory of this user: `uiw` in the directory that `XDG_RUNTIME_DIR` names,
/// otherwise `/tmp/uiw-UID`.
pub fn user_directory() -> Directory {
    let runtime =
        environment::variable("XDG_RUNTIME_DIR", PrivilegePolicy::Ignored).map(PathBuf::from);
    Directory::for_user(runtime.as_deref())
}

/// Returns the configuration for publishing counters of a program that uses the C libraries.
pub(crate) fn library_publish_config(counters: &CounterDestination) -> Option<Publish> {
    counters.publish_config(library())
}

/// Reports on standard error that the counters of this process cannot be published in the directory
/// in which `uiw run` expects them. Otherwise `uiw run` would report that the process moved no
/// data.
pub(crate) fn report_unpublished(counters: &CounterDestination, is_published: bool) {
    let CounterDestination::In(path) = counters else { return };
    if !is_published {
        let why = Directory::new(path)
            .check()
            .map_or_else(|error| format!(": {error}"), |()| String::new());
        crate::log::note!(
            "uiw: counters cannot be published in {}{why}: this process is not counted",
            path.display()
        );
    }
}

/// Returns the path of the file that contains this code, which is the library. A program may have
/// loaded the library from any directory.
fn library() -> String {
    let mut found: libc::Dl_info = zeroed();
    let code = library_publish_config as *const () as *const libc::c_void;
    // SAFETY: the call looks up an address, which may be any, and writes its answer to `found`, a
    // local variable of this type.
    let is_found = unsafe { libc::dladdr(code, &raw mut found) } != 0;
    let name = found.dli_fname;
    if !is_found || name.is_null() {
        return String::new();
    }
    // SAFETY: the name is not NULL, as checked above. It is the loader's name of a shared object,
    // which ends in NUL and lives as long as the object, which contains this code. It is copied
    // here.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    std::fs::canonicalize(&name).map_or(name, |path| path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_must_be_absolute() {
        assert_eq!(CounterDestination::parse("off"), Ok(CounterDestination::Off));
        assert_eq!(
            CounterDestination::parse("/run/x"),
            Ok(CounterDestination::In("/run/x".into()))
        );
        assert!(
            CounterDestination::parse("run/x").is_err() && CounterDestination::parse("on").is_err()
        );
        assert!(CounterDestination::Off.publish_config(String::new()).is_none());
        let publish =
            CounterDestination::In("/run/x".into()).publish_config("lib".to_owned()).unwrap();
        assert_eq!((publish.directory, &*publish.library), (Directory::new("/run/x"), "lib"));
    }

    #[test]
    fn file_of_code_is_program() {
        assert_eq!(Path::new(&library()), std::env::current_exe().unwrap().canonicalize().unwrap());
    }
}

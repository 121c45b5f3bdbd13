//! The environment of the process. This module is the only place where the libraries read it.
//!
//! A program with more rights than the user that started it (setuid, setgid or file capabilities)
//! runs in an environment that this user has chosen. In such a program a variable must not decide
//! which files are opened or made, which interfaces are used, or which code is loaded, so
//! [`variable`] returns only the few that are harmless.

use std::env;
use std::ffi::{OsStr, OsString};

/// Treatment of a variable in programs with more rights than their user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivilegePolicy {
    /// The variable is obeyed.
    Obeyed,
    /// Only a plain log level is obeyed, not a filter.
    LevelOnly,
    /// Opening a device fails, because without the variable the program would do something less
    /// safe.
    Refused,
    /// The variable is ignored.
    Ignored,
}

/// Levels of the log that privileged programs obey.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Returns whether the process has more rights than the user that started it.
pub(crate) fn is_privileged() -> bool {
    // SAFETY: the call takes only an integer and reads a vector that the process always has.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns the value of a variable that is set and not empty, if this process obeys a variable of
/// this class.
pub fn variable(name: &str, class: PrivilegePolicy) -> Option<OsString> {
    read(name).filter(|value| !is_privileged() || is_obeyed(class, value))
}

/// Returns whether a variable is set but ignored because the process is privileged.
pub(crate) fn is_ignored(name: &str, class: PrivilegePolicy) -> bool {
    is_privileged() && read(name).is_some_and(|value| !is_obeyed(class, &value))
}

/// Prefix of the names of all variables.
const PREFIX: &str = "UIW_";
/// Variables that the program `uiw` obeys and the libraries do not read.
const PROGRAM_VARIABLES: [&str; 1] = ["UIW_LIB"];
/// Maximum number of unknown variables in a warning.
const MAX_UNKNOWN: usize = 8;

/// Returns a warning that names the variables that begin with `UIW_` and are not `known`; `None` if
/// there are none.
pub(crate) fn unknown_variables(known: impl Fn(&str) -> bool) -> Option<String> {
    warning(env::vars_os().map(|(name, _)| name), known)
}

fn warning(names: impl Iterator<Item = OsString>, known: impl Fn(&str) -> bool) -> Option<String> {
    let is_known = |name: &str| PROGRAM_VARIABLES.contains(&name) || known(name);
    let unknown = names.filter_map(|name| {
        let name = name.to_string_lossy();
        (name.starts_with(PREFIX) && !is_known(&name)).then(|| name.escape_debug().to_string())
    });
    let mut unknown: Vec<_> = unknown.collect();
    unknown.sort_unstable();
    unknown.truncate(MAX_UNKNOWN);
    (!unknown.is_empty())
        .then(|| format!("no variable of uiw: {}; `uiw env` lists them", unknown.join(", ")))
}

fn read(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns whether a privileged program uses the value. The value of a refused variable is returned
/// as well, because the reader of the variable reports the refusal.
fn is_obeyed(class: PrivilegePolicy, value: &OsStr) -> bool {
    match class {
        PrivilegePolicy::Obeyed | PrivilegePolicy::Refused => true,
        PrivilegePolicy::LevelOnly => value.to_str().is_some_and(|level| LEVELS.contains(&level)),
        PrivilegePolicy::Ignored => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{VARIABLES, is_variable};
    use std::fs;
    use std::path::{Path, PathBuf};

    #[test]
    fn privileged_programs_obey_two_variables() {
        let of_class = |class| {
            let names = VARIABLES.iter().filter(move |variable| variable.privileged == class);
            names.map(|variable| variable.name).collect::<Vec<_>>()
        };
        assert_eq!(of_class(PrivilegePolicy::Obeyed), ["UIW_PERSONA"]);
        assert_eq!(of_class(PrivilegePolicy::LevelOnly), ["UIW_LOG"]);
        assert_eq!(of_class(PrivilegePolicy::Refused), ["UIW_TLS"]);
        let is = |class, value: &str| is_obeyed(class, value.as_ref());
        assert!(is(PrivilegePolicy::Obeyed, "roce") && is(PrivilegePolicy::LevelOnly, "debug"));
        assert!(
            !is(PrivilegePolicy::LevelOnly, "uiw_verbs=trace")
                && !is(PrivilegePolicy::LevelOnly, "trace,x")
        );
        assert!(is(PrivilegePolicy::Refused, "file"), "it is refused by whoever reads it");
        assert!(!is(PrivilegePolicy::Ignored, "x"));
    }

    #[test]
    fn unknown_variables_named() {
        let warning = |names: &[&str]| warning(names.iter().map(OsString::from), is_variable);
        assert_eq!(warning(&["UIW_LOG", "UIW_LIB", "UIWX", "uiw_log", "PATH"]), None);
        let expected = "no variable of uiw: UIW_FOO, UIW_LOGG; `uiw env` lists them";
        assert_eq!(warning(&["UIW_LOGG", "UIW_LOG", "UIW_FOO"]).as_deref(), Some(expected));
        let many: Vec<_> = (0..1000).map(|number| format!("UIW_X{number}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert!(warning(&many).is_some_and(|line| line.len() < 200));
    }

    /// Returns the source files of our libraries, without tests.
    fn sources() -> Vec<(PathBuf, String)> {
        fn visit(directory: &Path, found: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
                let path = entry.path();
                let name = path.file_name().unwrap().to_str().unwrap();
                if path.is_dir() && name != "tests" {
                    visit(&path, found);
                } else if name.ends_with(".rs") && name != "tests.rs" {
                    found.push(path);
                }
            }
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut found = Vec::new();
        for folder in [
            "cabi/core",
            "cabi/verbs",
            "cabi/cm",
            "cabi/rsocket",
            "cabi/ibverbs",
            "cabi/rdmacm",
            "cabi/rspreload",
            "verbs",
            "llp",
            "counters",
            "mem",
            "stream",
        ] {
            visit(&root.join(folder).join("src"), &mut found);
        }
        let code = |path: PathBuf| {
            let text = fs::read_to_string(&path).unwrap();
            let code =
                text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
            (path, code)
        };
        found.into_iter().map(code).collect()
    }

    /// Only this file reads the environment.
    #[test]
    fn environment_read_elsewhere_is_found() {
        let reads = ["env::var", "getenv(", "libc::environ"];
        for (path, code) in sources() {
            let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            let found: Vec<_> =
                code.filter(|line| reads.iter().any(|read| line.contains(read))).collect();
            let is_here = path.ends_with("cabi/core/src/environment.rs");
            assert!(found.is_empty() || is_here, "{}: {found:?}", path.display());
        }
    }

    #[test]
    fn unclassified_variable_is_found() {
        for (path, code) in sources() {
            let words = code.split('"').filter(|word| {
                word.starts_with("UIW_")
                    && !word.contains(|c: char| !(c.is_ascii_uppercase() || c == '_'))
            });
            for name in words {
                let is_read = name != PREFIX && !PROGRAM_VARIABLES.contains(&name);
                assert!(
                    !is_read || VARIABLES.iter().any(|variable| variable.name == name),
                    "{}: {name} is in no table",
                    path.display()
                );
            }
        }
    }
}

//! The environment of the process. This module is the only place where the libraries read it.
//!
//! A program with more rights than the user that started it (setuid, setgid or file capabilities) runs in an environment that this user
//! has chosen. There a variable must not decide which files are opened or made, which interfaces are used, or which code is loaded, so
//! [`variable`] returns only the few that are harmless.

use std::env;
use std::ffi::{OsStr, OsString};

/// Treatment of a variable in programs with more rights than their user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privileged {
    /// The variable is obeyed.
    Obeyed,
    /// Only a plain log level is obeyed, not a filter.
    LevelOnly,
    /// Opening a device fails, because without the variable the program would do something less safe.
    Refused,
    /// The variable is ignored.
    Ignored,
}

/// Every variable that the libraries read. One that is missing here is ignored.
const CLASSES: [(&str, Privileged); 38] = [
    ("UIW_PERSONA", Privileged::Obeyed),
    ("UIW_CRC", Privileged::Ignored),
    ("UIW_MARKERS", Privileged::Ignored),
    ("UIW_MPA_REVISION", Privileged::Ignored),
    ("UIW_FALLBACK", Privileged::Ignored),
    ("UIW_PEER_TO_PEER", Privileged::Ignored),
    ("UIW_RTR", Privileged::Ignored),
    ("UIW_CAPABILITIES", Privileged::Ignored),
    ("UIW_FPDU", Privileged::Ignored),
    ("UIW_STABLE_TX", Privileged::Ignored),
    ("UIW_CONGESTION", Privileged::Ignored),
    ("UIW_MSS", Privileged::Ignored),
    ("UIW_DEAD_AFTER", Privileged::Ignored),
    ("UIW_ORD", Privileged::Ignored),
    ("UIW_IRD", Privileged::Ignored),
    ("UIW_LLP", Privileged::Ignored),
    ("UIW_ACK", Privileged::Ignored),
    ("UIW_UD", Privileged::Ignored),
    ("UIW_PRIVATE_DATA", Privileged::Ignored),
    ("UIW_LOOPBACK", Privileged::Ignored),
    ("UIW_SHARDS", Privileged::Ignored),
    ("UIW_QP_PORTS", Privileged::Ignored),
    ("UIW_LID_MAP", Privileged::Ignored),
    ("UIW_PORT_OFFSET", Privileged::Ignored),
    ("UIW_SOCKETS_TCP", Privileged::Ignored),
    ("UIW_SOCKETS_TIMEOUT", Privileged::Ignored),
    ("UIW_FAULT", Privileged::Ignored),
    ("UIW_PCAP", Privileged::Ignored),
    ("UIW_TLS", Privileged::Refused),
    ("UIW_TLS_UD", Privileged::Ignored),
    ("UIW_KEYLOG", Privileged::Ignored),
    ("UIW_SYSTEM_VERBS", Privileged::Ignored),
    ("UIW_COUNTERS", Privileged::Ignored),
    ("UIW_LOG", Privileged::LevelOnly),
    ("XDG_RUNTIME_DIR", Privileged::Ignored),
    ("RS_SQ_SIZE", Privileged::Ignored),
    ("RS_RQ_SIZE", Privileged::Ignored),
    ("RS_INLINE", Privileged::Ignored),
];

/// Levels of the log that privileged programs obey.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Whether the process has more rights than the user that started it.
pub(crate) fn is_privileged() -> bool {
    // SAFETY: takes an integer alone.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The value of a variable that is set and not empty, as far as this process obeys it.
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    read(name).filter(|value| !is_privileged() || is_obeyed(name, value))
}

/// Names of variables that are set and that this process ignores because it is privileged.
pub(crate) fn ignored() -> Vec<&'static str> {
    if !is_privileged() {
        return Vec::new();
    }
    let names = CLASSES.iter().map(|(name, _)| *name);
    names
        .filter(|name| name.starts_with("UIW"))
        .filter(|name| read(name).is_some_and(|value| !is_obeyed(name, &value)))
        .collect()
}

fn read(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns the treatment of a variable in privileged programs, or `None` if the variable is not classified.
fn class(name: &str) -> Option<Privileged> {
    CLASSES.iter().find(|(other, _)| *other == name).map(|(_, class)| *class)
}

/// Whether privileged programs use the value. That of a refused variable is passed on, because whoever reads it has to refuse.
fn is_obeyed(name: &str, value: &OsStr) -> bool {
    match class(name) {
        Some(Privileged::Obeyed | Privileged::Refused) => true,
        Some(Privileged::LevelOnly) => value.to_str().is_some_and(|level| LEVELS.contains(&level)),
        Some(Privileged::Ignored) | None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::{Path, PathBuf};

    #[test]
    fn privileged_programs_obey_two_variables() {
        let obeyed: Vec<_> =
            CLASSES.iter().filter(|(_, class)| *class == Privileged::Obeyed).map(|(name, _)| *name).collect();
        assert_eq!(obeyed, ["UIW_PERSONA"]);
        for variable in crate::settings::VARIABLES {
            assert!(class(variable.name).is_some(), "{} is not classified", variable.name);
        }
        let is = |name, value: &str| is_obeyed(name, value.as_ref());
        assert!(is("UIW_PERSONA", "roce") && is("UIW_LOG", "debug"));
        assert!(!is("UIW_LOG", "uiw_verbs=trace") && !is("UIW_LOG", "trace,x"));
        assert!(is("UIW_TLS", "file"), "it is refused by whoever reads it");
        for name in [
            "UIW_PCAP",
            "UIW_LLP",
            "UIW_KEYLOG",
            "UIW_SYSTEM_VERBS",
            "UIW_COUNTERS",
            "UIW_LID_MAP",
            "UIW_NEW",
        ] {
            assert!(!is(name, "x"), "{name}");
        }
    }

    /// The code of our libraries, without tests.
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
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut found = Vec::new();
        for folder in [
            "cabi",
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
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
            (path, code)
        };
        found.into_iter().map(code).collect()
    }

    /// The environment is read in this file alone.
    #[test]
    fn environment_read_elsewhere_is_found() {
        let reads = ["env::var", "getenv(", "libc::environ"];
        for (path, code) in sources() {
            let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            let found: Vec<_> = code.filter(|line| reads.iter().any(|read| line.contains(read))).collect();
            let is_here = path.ends_with("cabi/src/environment.rs");
            assert!(found.is_empty() || is_here, "{}: {found:?}", path.display());
        }
    }

    #[test]
    fn unclassified_variable_is_found() {
        for (path, code) in sources() {
            let words = code.split('"').filter(|word| {
                word.starts_with("UIW_") && !word.contains(|c: char| !(c.is_ascii_uppercase() || c == '_'))
            });
            for name in words {
                assert!(class(name).is_some(), "{}: {name} is in no table", path.display());
            }
        }
    }
}

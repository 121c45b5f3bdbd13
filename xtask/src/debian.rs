//! The Debian that packages are tried in.

use std::fs;

/// Its name.
pub(crate) const SUITE: &str = "bookworm";

/// Where this system has its packages from, if it is a Debian of the same suite; otherwise mmdebstrap's own choice.
pub(crate) fn sources() -> Option<&'static str> {
    ["/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources"]
        .into_iter()
        .find(|file| fs::read_to_string(file).is_ok_and(|text| text.contains(SUITE)))
}

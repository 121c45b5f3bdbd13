//! The Debian that guests, packages and the book's commands run on.

use std::fs;

/// Code name of the Debian release of the guest.
pub const SUITE: &str = "bookworm";

/// Returns the file with this system's sources of packages if it is a Debian of the same suite;
/// otherwise mmdebstrap chooses.
pub fn sources() -> Option<&'static str> {
    ["/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources"]
        .into_iter()
        .find(|file| fs::read_to_string(file).is_ok_and(|text| text.contains(SUITE)))
}

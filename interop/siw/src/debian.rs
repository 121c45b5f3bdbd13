//! The Debian release of guests, packages and the commands of the book.

use std::fs;

/// Code name of the Debian release of the guest.
pub const SUITE: &str = "bookworm";

/// Returns the file with the package sources of this system if it is the same Debian release.
/// Otherwise mmdebstrap chooses the sources.
pub fn sources() -> Option<&'static str> {
    ["/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources"]
        .into_iter()
        .find(|file| fs::read_to_string(file).is_ok_and(|text| text.contains(SUITE)))
}

//! SHA-256 sums.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Returns the sum in the format of `sha256sum`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    sha256(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

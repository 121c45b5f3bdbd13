//! SHA-256.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use sha2::{Digest as _, Sha256};

pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// As `sha256sum` writes it.
pub(crate) fn hex(bytes: &[u8]) -> String {
    sha256(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The file that `sha256sum --check` reads, of the files of a folder.
pub(super) fn of_folder(folder: &Path, names: &[String]) -> io::Result<String> {
    let mut names: Vec<_> = names.iter().collect();
    names.sort();
    names.into_iter().map(|name| Ok(format!("{}  {name}\n", hex(&fs::read(folder.join(name))?)))).collect()
}

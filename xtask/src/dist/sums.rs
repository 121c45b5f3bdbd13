//! SHA-256 sums.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

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

/// Writes the file SHA256SUMS for the packages with these names, and for those of earlier runs that
/// are still in the folder.
pub(super) fn write<'a>(folder: &Path, names: impl Iterator<Item = &'a str>) -> io::Result<()> {
    let file = folder.join("SHA256SUMS");
    let before = fs::read_to_string(&file).unwrap_or_default();
    let known = before.lines().filter_map(|line| Some(line.split_once("  ")?.1.to_owned()));
    let known = known.filter(|name| folder.join(name).exists());
    let mut text = String::new();
    for name in names.map(str::to_owned).chain(known).collect::<BTreeSet<_>>() {
        let _ = writeln!(text, "{}  {name}", hex(&fs::read(folder.join(&name))?));
    }
    fs::write(file, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_earlier_runs_kept() {
        let folder = std::env::temp_dir().join(format!("uiw-sums-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        for (name, bytes) in [("a", "1"), ("b", "2"), ("c", "3")] {
            fs::write(folder.join(name), bytes).unwrap();
        }
        write(&folder, ["c", "a"].into_iter()).unwrap();
        fs::write(folder.join("a"), "4").unwrap();
        fs::remove_file(folder.join("c")).unwrap();
        write(&folder, ["b"].into_iter()).unwrap();
        let sums = fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
        assert_eq!(sums, format!("{}  a\n{}  b\n", hex(b"4"), hex(b"2")));
        fs::remove_dir_all(folder).unwrap();
    }
}

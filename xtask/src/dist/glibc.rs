//! Requirements of the programs on the system.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Libraries used by Rust programs that a wheel may load from the system of any distribution (PEP
/// 600).
const SYSTEM_LIBRARIES: [&str; 8] = [
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

/// Minor version of glibc 2 and the libraries that a set of files needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GlibcNeeds {
    pub(super) minor: u32,
    pub(super) libraries: BTreeSet<String>,
}

impl GlibcNeeds {
    /// Returns the needs of all `files` together. Our own libraries do not count.
    pub(super) fn of(files: &[PathBuf]) -> Result<Self, String> {
        let mut all = Self { minor: 0, libraries: BTreeSet::new() };
        for file in files {
            let needs = Self::parse(&objdump(file)?);
            all.minor = all.minor.max(needs.minor);
            all.libraries.extend(needs.libraries);
        }
        all.libraries.retain(|name| name != "libibverbs.so.1" && name != "librdmacm.so.1");
        Ok(all)
    }

    /// Parses the output of `objdump -p` for a file: the required versions and libraries.
    fn parse(text: &str) -> Self {
        let minors = text.split_whitespace().filter_map(|word| {
            // GLIBC_2.2.5 is a version, but GLIBC_PRIVATE is not.
            word.strip_prefix("GLIBC_2.")?.split('.').next()?.parse().ok()
        });
        let minor = minors.max().unwrap_or(0);
        let libraries = text.lines().filter_map(|line| line.trim().strip_prefix("NEEDED"));
        Self { minor, libraries: libraries.map(|name| name.trim().to_owned()).collect() }
    }

    /// Returns a readable list of the libraries.
    pub(super) fn listed(&self) -> String {
        self.libraries.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Returns the libraries that a wheel must not load from the system.
    pub(super) fn foreign(&self) -> Vec<&str> {
        self.libraries
            .iter()
            .map(String::as_str)
            .filter(|name| !SYSTEM_LIBRARIES.contains(name))
            .collect()
    }
}

fn objdump(file: &Path) -> Result<String, String> {
    let output = Command::new("objdump").arg("-p").arg(file).output();
    let output = output.map_err(|error| format!("objdump: {error}: install binutils"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("objdump -p {}: {}", file.display(), String::from_utf8_lossy(&output.stderr)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_counts() {
        let text = "
Dynamic Section:
  NEEDED               libgcc_s.so.1
  NEEDED               libibverbs.so.1
  SONAME               librdmacm.so.1

Version References:
  required from libc.so.6:
    0x09691a75 0x00 06 GLIBC_2.2.5
    0x069691b8 0x00 05 GLIBC_2.28
    0x09691974 0x00 04 GLIBC_2.3.4
    0x0963cf85 0x00 03 GLIBC_PRIVATE
";
        let needs = GlibcNeeds::parse(text);
        assert_eq!(needs.minor, 28);
        assert_eq!(
            needs.libraries.iter().collect::<Vec<_>>(),
            ["libgcc_s.so.1", "libibverbs.so.1"]
        );
        assert_eq!(needs.foreign(), ["libibverbs.so.1"]);
    }
}

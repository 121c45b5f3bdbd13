//! Files in the guest and their checksums: data written by a kernel consumer of siw must be read
//! back unchanged, and must be the same on the host.

use crate::bench::Bench;
use crate::shell::must;
use crate::{Error, Result};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(120);

/// Shell command that makes files with sizes around those of pages, messages and requests.
const MAKE: &str = "for size in 0 1 511 4095 4096 4097 65537 1000003 6291456; do head -c $size /dev/urandom > file.$size; done; \
                    mkdir small; i=0; while [ $i -lt 100 ]; do head -c $((i * 37)) /dev/urandom > small/$i; i=$((i + 1)); done";

/// Directory of the guest with files whose checksums are known.
pub(super) struct Files {
    folder: String,
    /// Output of `sha256sum` for all files.
    sums: String,
}

impl Files {
    /// Makes files in a new directory of the guest.
    pub(super) fn make(bench: &Bench, folder: &str) -> Result<Self> {
        bench.guest().must(&format!("set -e; mkdir -p {folder}; cd {folder}; {MAKE}; sync"))?;
        Self::sum(bench, folder)
    }

    /// Computes the checksums of the existing files.
    pub(super) fn sum(bench: &Bench, folder: &str) -> Result<Self> {
        let sums = bench.guest().must(&format!(
            "set -e; cd {folder}; find . -type f | sort | xargs sha256sum > /tmp/sums; cat /tmp/sums"
        ))?;
        if sums.lines().count() == 0 {
            return Err(Error::Failed(format!("no files in {folder} of the guest")));
        }
        Ok(Self { folder: folder.to_owned(), sums })
    }

    /// Compares the checksums with those of files in the same or another directory of the guest.
    /// Returns the number of files.
    pub(super) fn same_in_guest(&self, bench: &Bench, folder: &str) -> Result<usize> {
        let script = format!("cd {folder} && find . -type f | sort | xargs sha256sum");
        let output = bench.guest().run(&script, TIMEOUT)?;
        if !output.is_ok() {
            return Err(Error::Failed(format!(
                "reading {folder} in the guest: {}",
                output.last_line()
            )));
        }
        self.compare(&output.out, folder)
    }

    /// Compares the checksums with those of files in a directory of the host. Returns the number of
    /// files.
    pub(super) fn same_on_host(&self, folder: &Path) -> Result<usize> {
        let mut command = Command::new("sh");
        command
            .args(["-c", "find . -type f | LC_ALL=C sort | xargs sha256sum"])
            .current_dir(folder);
        self.compare(&must(&mut command, TIMEOUT)?, &folder.display().to_string())
    }

    fn compare(&self, sums: &str, place: &str) -> Result<usize> {
        if sums == self.sums {
            return Ok(sums.lines().count());
        }
        let different = self.sums.lines().find(|line| !sums.lines().any(|other| other == *line));
        let first = different.unwrap_or("one that was not written");
        Err(Error::Failed(format!(
            "the files of {} are not those of {place}: {first}",
            self.folder
        )))
    }
}

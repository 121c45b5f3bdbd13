//! Runs `cargo xtask dist`: the packages can be installed, run and removed, and a second run creates
//! the same packages.

mod common;

use common::{Folder, output};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Creates packages of the debug build, and returns the output.
fn dist(out: &Path, more: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["dist", "--debug", "--only", "tarball,deb,wheel,bom", "--out"]).arg(out).args(more);
    let output = output(command.env("SOURCE_DATE_EPOCH", "1700000000"));
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{error}");
    text.into_owned()
}

/// The image takes minutes, so only `cargo xtask dist --check` tests it.
#[test]
fn packages_installed_run_and_removed() {
    for program in ["strip", "objdump", "dpkg-deb", "tar", "gzip", "sha256sum", "unshare", "ip", "mmdebstrap"]
    {
        let Some(_) = uiw_interop::require(program) else { return };
    }
    let (first, second) = (Folder::new("first"), Folder::new("second"));
    let said = dist(&first.0, &["--check"]);
    assert!(said.ends_with("\n3 passed, 0 failed, 0 skipped\n"), "{said}");
    dist(&second.0, &[]);
    let sums = |folder: &Folder| fs::read_to_string(folder.0.join("SHA256SUMS")).unwrap();
    assert_eq!(sums(&first).lines().count(), 4);
    assert_eq!(sums(&first), sums(&second));
}

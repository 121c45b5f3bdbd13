//! `cargo xtask dist`: what was made is installed, run and removed, and is the same when it is made again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder that is removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("uiw-dist-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes packages of the debug build, and gives what was printed.
fn dist(out: &Path, more: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["dist", "--debug", "--only", "tarball,deb,wheel,bom", "--out"]).arg(out).args(more);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("UIW_")) {
        command.env_remove(name);
    }
    let output = command.env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap();
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{error}");
    text.into_owned()
}

/// The image, which needs minutes, is left to `cargo xtask dist --check`.
#[test]
fn packages_are_installed_run_removed_and_made_again() {
    for program in [
        "strip",
        "objdump",
        "dpkg-deb",
        "tar",
        "sha256sum",
        "unshare",
        "ip",
        "python3",
        "rping",
        "mmdebstrap",
    ] {
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

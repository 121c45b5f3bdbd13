//! Runs `cargo xtask dist`: the packages can be installed, run and removed, and a second run creates
//! the same packages.

mod common;

use common::{Folder, output};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// Creates packages of the debug build, and returns the output.
fn dist(out: &Path, more: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command
        .args(["dist", "--debug", "--only", "tarball,deb,wheel,bom", "--out"])
        .arg(out)
        .args(more);
    let output = output(command.env("SOURCE_DATE_EPOCH", "1700000000"));
    let (text, error) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{error}");
    text.into_owned()
}

/// Runs the script that Debian calls after it has unpacked the package, with stubs of the programs
/// of systemd.
#[test]
fn service_restarted_after_upgrade() {
    let Some(_) = uiw_interop::require("unshare") else { return };
    let stubs = Folder::new("stubs");
    for name in ["systemd-sysusers", "systemctl", "deb-systemd-invoke"] {
        let stub = stubs.join(name);
        fs::write(&stub, "#!/bin/sh\necho ${0##*/} $*\n").unwrap();
        fs::set_permissions(stub, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/debian/postinst");
    let run = |version: &str| {
        let booted = "mount -t tmpfs none /run; mkdir -p /run/systemd/system; PATH=$1:$PATH sh $2 configure $3";
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-ec", booted, "sh"]);
        let output = output(command.arg(&stubs.0).arg(&script).arg(version));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let installed = "systemd-sysusers uiw.conf\nsystemctl daemon-reload\n";
    assert_eq!(run(""), installed);
    assert_eq!(run("0.0.9-1"), format!("{installed}deb-systemd-invoke try-restart uiw.service\n"));
}

/// The image takes minutes, so only `cargo xtask dist --check` tests it.
#[test]
fn packages_installed_run_and_removed() {
    for program in
        ["strip", "objdump", "dpkg-deb", "tar", "gzip", "sha256sum", "unshare", "ip", "mmdebstrap"]
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

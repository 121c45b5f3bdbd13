//! Fresh Debian for the processor of the packages, in which they are tested.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::check::NETWORK;
use crate::arch::Arch;
use crate::process::output;
use uiw_siw::debian;

pub(super) struct Root(PathBuf);

impl Root {
    /// Creates the Debian, with stock programs and the packages for virtual environments of Python.
    pub(super) fn make(folder: PathBuf, arch: Arch) -> Result<Self, String> {
        let mut make = Command::new("mmdebstrap");
        make.args(["--variant=apt", "--include=rdmacm-utils,ibverbs-utils,python3-venv"]);
        make.arg(format!("--architectures={}", arch.debian())).arg(debian::SUITE).arg(&folder);
        output(make.args(debian::sources()))?;
        Ok(Self(folder))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Copies a file to the folder of the user root.
    pub(super) fn put(&self, file: &Path, name: &str) -> Result<(), String> {
        let to = self.0.join("root").join(name);
        fs::copy(file, &to).map(drop).map_err(|error| format!("{}: {error}", to.display()))
    }

    /// Runs a shell script in the root, with its own network, and returns the output.
    pub(super) fn run(&self, script: &str) -> Result<String, String> {
        let mut command = Command::new("unshare");
        command.args(["--net", "--pid", "--fork", "--kill-child"]);
        command.arg(format!("--mount-proc={}", self.0.join("proc").display()));
        command.args(["--", "sh", "-c", NETWORK, "sh", "chroot"]).arg(&self.0);
        command.args(["/usr/bin/env", "-i", "-C", "/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]);
        command.args(["DEBIAN_FRONTEND=noninteractive", "UIW_COUNTERS=off"]);
        output(command.args(["sh", "-ec", script]))
    }
}

//! What Cargo builds, and what the program then writes of itself.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{cargo, target};

/// The program, the two libraries, the man pages and the completions.
#[derive(Debug)]
pub(crate) struct Built {
    folder: PathBuf,
    generated: PathBuf,
}

impl Built {
    /// Builds for this machine.
    pub(crate) fn make(debug: bool) -> Result<Self, String> {
        Self::native(debug, &[])
    }

    fn native(debug: bool, more: &[&str]) -> Result<Self, String> {
        let mut build = cargo();
        build.arg("build").args(PACKAGES).args(more);
        if !debug {
            build.arg("--release");
        }
        run(&mut build)?;
        Self::new(target()?.join(if debug { "debug" } else { "release" }))
    }

    /// Builds, the Python module too, for systems with an older glibc as well, if cargo-zigbuild is here; otherwise, and for debugging, for this machine.
    pub(crate) fn portable(debug: bool) -> Result<Self, String> {
        if debug {
            return Self::native(debug, &PYTHON);
        }
        if !crate::packages::on_path("cargo-zigbuild") {
            eprintln!(
                "xtask: no cargo-zigbuild (`pip install cargo-zigbuild ziglang`): the packages need the glibc of this system"
            );
            return Self::native(debug, &PYTHON);
        }
        let triple = format!("{}-unknown-linux-gnu", env::consts::ARCH);
        let mut build = cargo();
        build
            .args(["zigbuild", "--release"])
            .args(PACKAGES)
            .args(PYTHON)
            .arg(format!("--target={triple}.{OLDEST_GLIBC}"));
        run(&mut build)?;
        Self::new(target()?.join(triple).join("release"))
    }

    /// What `folder` has. The program runs here.
    fn new(folder: PathBuf) -> Result<Self, String> {
        // Of this process: several may install at the same time.
        let generated = folder.join(format!("generated-{}", std::process::id()));
        let built = Self { folder, generated };
        run(Command::new(built.file("uiw")).arg("generate").arg(&built.generated))?;
        Ok(built)
    }

    /// A file that Cargo has made.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The folder with `man` and `completions`.
    pub(crate) fn generated(&self) -> &Path {
        &self.generated
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.generated);
    }
}

/// That of manylinux_2_28, Debian 11, RHEL 8.
const OLDEST_GLIBC: &str = "2.28";

/// What is packaged beside that.
pub(crate) const PYTHON: [&str; 2] = ["-p", "uiw-python"];

/// What is installed.
pub(crate) const PACKAGES: [&str; 8] =
    ["-p", "uiw-cli", "-p", "uiw-ibverbs", "-p", "uiw-rdmacm", "-p", "uiw-rspreload"];

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|error| format!("cannot run {program}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{program}: {status}")) }
}

//! Files that Cargo builds, and files that the built program generates.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::file::FileContent;
use super::toolchain;
use crate::arch::Arch;
use crate::process::{TempPath, succeed};
use crate::workspace::{cargo, target};

/// Built program and libraries, with the generated man pages and completions.
#[derive(Debug)]
pub(crate) struct Built {
    arch: Arch,
    folder: PathBuf,
    generated: TempPath,
    glibc: Option<u32>,
}

impl Built {
    /// Builds for this machine.
    pub(crate) fn make(debug: bool) -> Result<Self, String> {
        // Debug builds, which tests install and package, include the Python module, so that all
        // tests use the same build.
        Self::native(debug, if debug { &PYTHON } else { &[] }, &[])
    }

    fn native(debug: bool, more: &[&str], environment: &[(&str, &str)]) -> Result<Self, String> {
        // `cargo xtask test` builds everything before it runs the tests.
        if let Some(folder) = std::env::var_os(uiw_interop::stock::BUILT).filter(|_| debug) {
            let folder = PathBuf::from(folder);
            let program = folder.join("uiw");
            return Self::new(Arch::here(), folder, None, &program);
        }
        let mut build = cargo();
        build.arg("build").args(PACKAGES).args(more).envs(environment.iter().copied());
        if debug {
            // A crate in C is built again whenever this variable changes, although its value is not
            // part of the built files.
            build.env_remove("SOURCE_DATE_EPOCH");
        } else {
            build.arg("--release");
        }
        succeed(&mut build)?;
        let folder = target()?.join(if debug { "debug" } else { "release" });
        let program = folder.join("uiw");
        Self::new(Arch::here(), folder, None, &program)
    }

    /// Builds the program, the libraries and the Python module. Release builds with cargo-zigbuild
    /// also run on systems with an older glibc. Without cargo-zigbuild, and in debug builds, they
    /// are built for the glibc of this machine.
    pub(crate) fn portable(debug: bool, arch: Arch) -> Result<Self, String> {
        if debug {
            return Self::native(debug, &PYTHON, &[]);
        }
        let hint = "`pip install cargo-zigbuild ziglang` in a virtual environment";
        match (crate::packages::on_path("cargo-zigbuild"), arch.is_here()) {
            (true, _) => {}
            (false, true) => {
                eprintln!(
                    "xtask: no cargo-zigbuild ({hint}): the packages need the glibc of this system"
                );
                return Self::native(debug, &PYTHON, &PACKAGE_PROFILE);
            }
            (false, false) => {
                return Err(format!("packages for {} need cargo-zigbuild: {hint}", arch.name()));
            }
        }
        let mut build = cargo();
        build
            .args(["zigbuild", "--release"])
            .args(PACKAGES)
            .args(PYTHON)
            .envs(PACKAGE_PROFILE)
            .arg(format!("--target={}.2.{OLDEST_GLIBC}", arch.target()));
        if let Some(compiler) = toolchain::compiler(arch)? {
            build.env("RUSTC", compiler);
        }
        succeed(&mut build)?;
        let folder = target()?.join(arch.target()).join("release");
        let program = if arch.is_here() {
            folder.join("uiw")
        } else {
            // This program only generates files, so it is built for this machine.
            succeed(cargo().args(["build", "-p", "uiw-cli"]))?;
            target()?.join("debug/uiw")
        };
        Self::new(arch, folder, Some(OLDEST_GLIBC), &program)
    }

    /// Describes the built files in `folder`, and generates the others with `program`, which must
    /// run on this machine.
    fn new(
        arch: Arch,
        folder: PathBuf,
        glibc: Option<u32>,
        program: &Path,
    ) -> Result<Self, String> {
        // The folder contains the process id, because several processes may install at the same
        // time.
        let generated = TempPath::new(folder.join(format!("generated-{}", std::process::id())));
        let built = Self { arch, folder, generated, glibc };
        succeed(Command::new(program).arg("generate").arg(&*built.generated))?;
        Ok(built)
    }

    /// Returns the path of a file that Cargo has built.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Like [`Self::file`], but stripped with this option of `strip`.
    pub(super) fn stripped(&self, name: &str, option: &'static str) -> FileContent {
        FileContent::Stripped(self.file(name), self.arch.strip(), option)
    }

    /// Returns the folder with `man` and `completions`.
    pub(crate) fn generated(&self) -> &Path {
        &self.generated
    }

    /// Returns the minor version of glibc 2 for which the files were built, or `None` if it is that
    /// of this machine.
    pub(crate) fn glibc(&self) -> Option<u32> {
        self.glibc
    }
}

/// Minor version of glibc 2 in manylinux_2_28, Debian 10 and RHEL 8.
const OLDEST_GLIBC: u32 = 28;

/// Settings of the release profile for packages, which are built once and installed often.
const PACKAGE_PROFILE: [(&str, &str); 1] = [("CARGO_PROFILE_RELEASE_LTO", "thin")];

/// Arguments of Cargo for the Python module, which is only packaged.
pub(crate) const PYTHON: [&str; 2] = ["-p", "uiw-python"];

/// Arguments of Cargo for the installed packages.
pub(crate) const PACKAGES: [&str; 8] =
    ["-p", "uiw-cli", "-p", "uiw-ibverbs", "-p", "uiw-rdmacm", "-p", "uiw-rspreload"];

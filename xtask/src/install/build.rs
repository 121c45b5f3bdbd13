//! What Cargo builds, and what the program then writes of itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::file::FileContent;
use super::toolchain;
use crate::arch::Arch;
use crate::workspace::{cargo, target};

/// The program, the libraries, the man pages and the completions.
#[derive(Debug)]
pub(crate) struct Built {
    arch: Arch,
    folder: PathBuf,
    generated: PathBuf,
    glibc: Option<u32>,
}

impl Built {
    /// Builds for this machine.
    pub(crate) fn make(debug: bool) -> Result<Self, String> {
        // What tests install is what they package, so that it is built once.
        Self::native(debug, if debug { &PYTHON } else { &[] }, &[])
    }

    fn native(debug: bool, more: &[&str], environment: &[(&str, &str)]) -> Result<Self, String> {
        // `cargo xtask test` has built everything before the tests run.
        if let Some(folder) = std::env::var_os(uiw_interop::stock::BUILT).filter(|_| debug) {
            let folder = PathBuf::from(folder);
            let program = folder.join("uiw");
            return Self::new(Arch::here(), folder, None, &program);
        }
        let mut build = cargo();
        build.arg("build").args(PACKAGES).args(more).envs(environment.iter().copied());
        if debug {
            // A crate in C is built again whenever it changes, and the packages' time is not in
            // what is built.
            build.env_remove("SOURCE_DATE_EPOCH");
        } else {
            build.arg("--release");
        }
        run(&mut build)?;
        let folder = target()?.join(if debug { "debug" } else { "release" });
        let program = folder.join("uiw");
        Self::new(Arch::here(), folder, None, &program)
    }

    /// Builds, the Python module too, for systems with an older glibc as well, if cargo-zigbuild is
    /// here; otherwise, and for debugging, for this machine.
    pub(crate) fn portable(debug: bool, arch: Arch) -> Result<Self, String> {
        if debug {
            return Self::native(debug, &PYTHON, &[]);
        }
        let hint = "`pip install cargo-zigbuild ziglang`";
        match (crate::packages::on_path("cargo-zigbuild"), arch.is_here()) {
            (true, _) => {}
            (false, true) => {
                eprintln!("xtask: no cargo-zigbuild ({hint}): the packages need the glibc of this system");
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
        run(&mut build)?;
        let folder = target()?.join(arch.target()).join("release");
        let program = if arch.is_here() {
            folder.join("uiw")
        } else {
            // One that runs here.
            run(cargo().args(["build", "-p", "uiw-cli"]))?;
            target()?.join("debug/uiw")
        };
        Self::new(arch, folder, Some(OLDEST_GLIBC), &program)
    }

    /// What `folder` has. `program` is the program, and runs here.
    fn new(arch: Arch, folder: PathBuf, glibc: Option<u32>, program: &Path) -> Result<Self, String> {
        // Of this process: several may install at the same time.
        let generated = folder.join(format!("generated-{}", std::process::id()));
        let built = Self { arch, folder, generated, glibc };
        run(Command::new(program).arg("generate").arg(&built.generated))?;
        Ok(built)
    }

    /// A file that Cargo has made.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The same without what `strip` removes when it is given this option.
    pub(super) fn stripped(&self, name: &str, option: &'static str) -> FileContent {
        FileContent::Stripped(self.file(name), self.arch.strip(), option)
    }

    /// The folder with `man` and `completions`.
    pub(crate) fn generated(&self) -> &Path {
        &self.generated
    }

    /// The minor version of glibc 2 that it was built for, if that is another one than this
    /// machine's.
    pub(crate) fn glibc(&self) -> Option<u32> {
        self.glibc
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.generated);
    }
}

/// The minor version of glibc 2 of manylinux_2_28, Debian 10 and RHEL 8.
const OLDEST_GLIBC: u32 = 28;

/// Settings of the release profile for packages, which are built once and installed often.
const PACKAGE_PROFILE: [(&str, &str); 1] = [("CARGO_PROFILE_RELEASE_LTO", "thin")];

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

//! C programs of the benchmarks (`programs/`), compiled against Debian's headers, and the C libraries that they run with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the sources are.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/programs");
/// Sources that every program is linked with.
const COMMON: [&str; 2] = ["ends.c", "traffic.c"];

/// A folder for programs, libraries and traces of one run. Removed when dropped.
pub(crate) struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    /// # Errors
    /// When the folder cannot be made.
    pub(crate) fn new() -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("uiw-bench-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Self { folder })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Compiles a program.
    ///
    /// # Errors
    /// Without a compiler or the headers of Debian's `librdmacm-dev`.
    pub(crate) fn compile(&self, name: &str) -> Result<PathBuf, String> {
        let program = self.folder.join(name);
        let sources = Path::new(SOURCES);
        let output = Command::new("cc")
            .args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&program)
            .arg(sources.join(format!("{name}.c")))
            .args(COMMON.map(|file| sources.join(file)))
            .args(["-lrdmacm", "-libverbs", "-lpthread"])
            .output()
            .map_err(|error| format!("cc: {error}; on Debian `apt-get install gcc`"))?;
        if output.status.success() {
            return Ok(program);
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(format!("compiling {name}.c, which needs Debian's librdmacm-dev: {}", stderr.trim()))
    }

    /// The libraries of this workspace, built for release: a folder for `LD_LIBRARY_PATH`.
    ///
    /// # Errors
    /// When they cannot be built.
    pub(crate) fn libraries(&self) -> Result<PathBuf, String> {
        let folder = self.folder.join("lib");
        build_libraries(&crate::workspace::root(), &crate::workspace::target()?, &folder)?;
        Ok(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Builds the two libraries of a workspace in this target folder, and copies them to `to`.
pub(crate) fn build_libraries(workspace: &Path, target: &Path, to: &Path) -> Result<(), String> {
    cargo_build(workspace, target, &["-p", "uiw-ibverbs", "-p", "uiw-rdmacm"])?;
    fs::create_dir_all(to).map_err(|error| format!("{}: {error}", to.display()))?;
    for name in ["libibverbs.so", "librdmacm.so"] {
        let to = to.join(format!("{name}.1"));
        fs::copy(target.join("release").join(name), &to)
            .map_err(|error| format!("{}: {error}", to.display()))?;
    }
    Ok(())
}

/// Builds for release.
pub(crate) fn cargo_build(workspace: &Path, target: &Path, what: &[&str]) -> Result<(), String> {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "--target-dir"])
        .arg(target)
        .args(what)
        .current_dir(workspace)
        .status()
        .map_err(|error| format!("starting cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("building {}: {status}", what.join(" "))) }
}

/// A program that runs with these libraries and without the `UIW_` variables of the environment.
pub(crate) fn command(program: &Path, libraries: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("UIW_") {
            command.env_remove(name);
        }
    }
    command.env("LD_LIBRARY_PATH", libraries);
    command
}

//! `cargo xtask interop sideway` and `cargo xtask interop rust-ibverbs`: tests of the C libraries
//! with crates from crates.io that bind libibverbs. Building these crates takes too long for
//! `cargo xtask test`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Crate that binds libibverbs, and the tests that use it.
pub(crate) struct Binding {
    /// Name in `cargo xtask interop`, and of the folder below `target`. With `_` instead of `-`, it
    /// is the module of the tests.
    name: &'static str,
    crate_name: &'static str,
    /// Our package that uses the crate, in the workspace `interop/bindings`, which pins its
    /// version.
    peer: &'static str,
    /// Arguments of Cargo that select the crate's own targets to build.
    targets: &'static [&'static str],
    /// Environment variable that tells the tests the folder with the programs.
    programs: &'static str,
    pub(crate) help: &'static str,
}

pub(crate) const SIDEWAY: Binding = Binding {
    name: "sideway",
    crate_name: "sideway",
    peer: "uiw-sideway-peer",
    targets: &["--examples", "--tests"],
    programs: "UIW_SIDEWAY",
    help: "\
Builds the crate's own examples and tests and a program of ours on it, in target/sideway (three minutes; cmake, libclang and access to
crates.io), and runs the tests stock sideway::* with them. Needs root for network namespaces. interop/bindings has the version.",
};

pub(crate) const RUST_IBVERBS: Binding = Binding {
    name: "rust-ibverbs",
    crate_name: "ibverbs",
    peer: "uiw-rust-ibverbs-peer",
    targets: &["--examples"],
    programs: "UIW_RUST_IBVERBS",
    help: "\
Builds the crate's own example and a program of ours on it, in target/rust-ibverbs (three minutes; cmake, libclang, libnl's and
libibverbs' headers and access to crates.io), and runs the tests stock rust_ibverbs::* with them. Needs root for network namespaces.
interop/bindings has the version.",
};

/// Programs and files that the build scripts need, with their Debian packages.
const NEEDS: [(&str, &str); 6] = [
    ("cmake", "cmake"),
    ("pkg-config", "pkgconf"),
    ("/usr/lib/llvm-14/lib/libclang.so", "libclang-dev"),
    ("/usr/include/libnl3/netlink/netlink.h", "libnl-3-dev"),
    ("/usr/lib/x86_64-linux-gnu/pkgconfig/libnl-route-3.0.pc", "libnl-route-3-dev"),
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
];

impl Binding {
    /// Builds the programs and runs the tests.
    pub(crate) fn run(&self) -> io::Result<bool> {
        // If something is still missing, the build fails with an error.
        let _ = crate::packages::provide(&NEEDS);
        let folder = crate::workspace::target().map_err(io::Error::other)?.join(self.name);
        let (build, programs) = (folder.join("build"), folder.join("programs"));
        let workspace = crate::workspace::root().join("interop/bindings/Cargo.toml");
        let source = self.copy_source(&workspace, &folder)?;
        let own = source.join("Cargo.toml");
        let Some(mut built) = executables(&workspace, &["-p", self.peer], &build)? else {
            return Ok(false);
        };
        let Some(of_crate) = executables(&own, self.targets, &build)? else { return Ok(false) };
        built.extend(of_crate);
        if programs.exists() {
            fs::remove_dir_all(&programs)?;
        }
        fs::create_dir_all(&programs)?;
        for (name, file) in built {
            fs::copy(file, programs.join(name))?;
        }
        let tests = format!("{}::", self.name.replace('-', "_"));
        let mut cargo = crate::workspace::stock(&[&tests]);
        crate::workspace::run_tests(cargo.env(self.programs, programs))
    }

    /// Copies the source of the crate to a folder in which its own targets can be built, because
    /// Cargo builds only the library of a dependency.
    fn copy_source(&self, workspace: &Path, folder: &Path) -> io::Result<PathBuf> {
        let output = cargo(workspace, "metadata")
            .args(["--locked", "--format-version", "1"])
            .stderr(Stdio::inherit())
            .output()?;
        let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let packages = metadata["packages"].as_array().into_iter().flatten();
        let manifest = packages
            .filter(|package| package["name"] == self.crate_name)
            .find_map(|package| package["manifest_path"].as_str())
            .ok_or_else(|| {
                io::Error::other(format!("{} has no {}", workspace.display(), self.crate_name))
            })?;
        let from =
            Path::new(manifest).parent().ok_or_else(|| io::Error::other(manifest.to_owned()))?;
        let to = folder.join("source");
        if to.exists() {
            fs::remove_dir_all(&to)?;
        }
        copy_folder(from, &to)?;
        // The folder may be inside of a workspace that does not have the crate as a member, so the
        // crate gets a workspace of its own.
        let own = to.join("Cargo.toml");
        fs::write(&own, fs::read_to_string(&own)? + "\n[workspace]\n")?;
        Ok(to)
    }
}

/// Builds targets of a manifest, and returns the executables by the names of the targets. Returns
/// `None` if the build fails, after Cargo has printed the error.
fn executables(
    manifest: &Path,
    what: &[&str],
    build: &Path,
) -> io::Result<Option<Vec<(String, PathBuf)>>> {
    let output = cargo(manifest, "build")
        .args(["--locked", "--message-format=json-render-diagnostics", "--target-dir"])
        .arg(build)
        .args(what)
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Ok(None);
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let made = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let file = message["executable"].as_str()?;
        Some((message["target"]["name"].as_str()?.to_owned(), PathBuf::from(file)))
    });
    Ok(Some(made.collect()))
}

fn cargo(manifest: &Path, command: &str) -> Command {
    let mut cargo = crate::workspace::cargo();
    cargo.arg(command).arg("--manifest-path").arg(manifest);
    cargo
}

/// Copies a folder with all files and folders in it, except for links and `.git`.
pub(crate) fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() && entry.file_name() != ".git" {
            copy_folder(&entry.path(), &target)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

//! Crates in the form that a reader gets: packages of this workspace and of its dependencies, in a
//! folder that replaces crates.io.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dist::sha256;
use crate::process::output;

/// Crate that a reader adds to a project.
const FACADE: &str = "uiw";

/// Packages of the facade and the crates of this workspace on which it depends.
pub(super) struct Crates {
    /// Folder with the packages.
    work: PathBuf,
    members: Vec<WorkspaceMember>,
}

struct WorkspaceMember {
    name: String,
    version: String,
}

impl Crates {
    /// Creates the packages. They are built later, in the fresh root.
    pub(super) fn package(work: PathBuf) -> Result<Self, String> {
        let crates = Self { members: members()?, work };
        let package = |more: &[&str]| {
            let mut package = crate::workspace::cargo();
            package.args(["package", "--quiet", "--no-verify", "--allow-dirty"]).args(more);
            package.args(crates.members.iter().flat_map(|member| ["-p", &member.name]));
            output(package.env("CARGO_TARGET_DIR", crates.work.join("target"))).map(drop)
        };
        // The dependencies of the workspace are usually present, so no network is needed.
        package(&["--offline"]).or_else(|_| package(&[]))?;
        for member in &crates.members {
            unpack(&crates.archive(member), &crates.sources())?;
        }
        Ok(crates)
    }

    fn archive(&self, member: &WorkspaceMember) -> PathBuf {
        self.work.join(format!("target/package/{}-{}.crate", member.name, member.version))
    }

    fn sources(&self) -> PathBuf {
        self.work.join("sources")
    }

    /// Copies the dependencies into `folder`, in the versions of the lock file. They include crates
    /// for other platforms, which Cargo may have to fetch.
    pub(super) fn vendor(&self, folder: &Path) -> Result<(), String> {
        let project = self.work.join("project");
        let patches = self.members.iter().map(|WorkspaceMember { name, version }| {
            format!("{name} = {{ path = \"{}/{name}-{version}\" }}\n", self.sources().display())
        });
        let manifest = format!(
            "[package]\nname = \"vendored\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n{FACADE} = \"*\"\n\n\
             [workspace]\n\n[patch.crates-io]\n{}",
            patches.collect::<String>()
        );
        write(&project.join("Cargo.toml"), &manifest)?;
        write(&project.join("src/lib.rs"), "")?;
        let lock = crate::workspace::root().join("Cargo.lock");
        fs::copy(&lock, project.join("Cargo.lock"))
            .map_err(|error| format!("{}: {error}", lock.display()))?;
        let mut vendor = crate::workspace::cargo();
        vendor.args(["vendor", "--quiet", "--versioned-dirs"]).arg(folder);
        output(vendor.current_dir(project)).map(drop)
    }

    /// Copies the packages into `folder`, and writes a configuration to `config` that makes Cargo
    /// use that folder instead of crates.io. `place` is the path of `folder` in the root. Cargo
    /// builds all crates in `built` and without debug information, so that each is built only once
    /// in a run.
    pub(super) fn place(
        &self,
        folder: &Path,
        place: &str,
        built: &str,
        config: &Path,
    ) -> Result<(), String> {
        for member in &self.members {
            let archive = self.archive(member);
            unpack(&archive, folder)?;
            let bytes =
                fs::read(&archive).map_err(|error| format!("{}: {error}", archive.display()))?;
            let sums = format!("{{\"files\":{{}},\"package\":\"{}\"}}", sha256(&bytes));
            let unpacked = folder.join(format!("{}-{}", member.name, member.version));
            write(&unpacked.join(".cargo-checksum.json"), &sums)?;
        }
        let text = "[source.crates-io]\nreplace-with = \"packaged\"\n[source.packaged]\n";
        write(
            config,
            &format!(
                "{text}directory = \"{place}\"\n[build]\nbuild-dir = \"{built}\"\n[profile.dev]\ndebug = false\n"
            ),
        )
    }
}

fn members() -> Result<Vec<WorkspaceMember>, String> {
    let mut tree = crate::workspace::cargo();
    tree.args(["tree", "--package", FACADE]);
    tree.args("--edges normal --all-features --prefix none --format {p}".split(' '));
    // Lines have the form `name vVERSION (folder)`. Crates of other origin have no folder.
    let text = output(&mut tree)?;
    let mut members: Vec<WorkspaceMember> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(version), Some(folder)) =
            (words.next(), words.next(), words.next())
            && folder.starts_with("(/")
            && !members.iter().any(|member| member.name == name)
        {
            let version = version.trim_start_matches('v').to_owned();
            members.push(WorkspaceMember { name: name.to_owned(), version });
        }
    }
    Ok(members)
}

fn unpack(archive: &Path, folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    output(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(folder)).map(drop)
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    let folder = file.parent().map(PathBuf::from).unwrap_or_default();
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(file, text));
    written.map_err(|error| format!("{}: {error}", file.display()))
}

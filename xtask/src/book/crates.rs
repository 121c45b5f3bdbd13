//! The crates as a reader gets them: packages of this workspace and of their dependencies, in a folder that stands for crates.io.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dist::sha256;

/// The crate that a reader adds to a project.
const FACADE: &str = "uiw";

/// Puts the packages in `folder`, a source of the kind that Cargo calls a directory, and what a fresh root's Cargo needs to use it in place of crates.io into
/// `config`. `folder` is seen there as `place`. `work` is for what is put together.
pub(super) fn make(work: &Path, folder: &Path, place: &str, config: &Path) -> Result<(), String> {
    let members = members()?;
    let packages = work.join("packaged");
    let mut package = crate::test::cargo();
    // What is built of them is built in the fresh root.
    package.args(["package", "--quiet", "--no-verify", "--allow-dirty"]).env("CARGO_TARGET_DIR", &packages);
    for (name, _) in &members {
        package.args(["-p", name]);
    }
    succeed(&mut package)?;
    let packages = packages.join("package");
    let sources = work.join("sources");
    let mut patches = String::new();
    for (name, version) in &members {
        let archive = packages.join(format!("{name}-{version}.crate"));
        unpack(&archive, &sources)?;
        patches +=
            &format!("{name} = {{ path = \"{}\" }}\n", sources.join(format!("{name}-{version}")).display());
    }
    vendor(work, folder, &patches)?;
    for (name, version) in &members {
        let archive = packages.join(format!("{name}-{version}.crate"));
        unpack(&archive, folder)?;
        let sum = fs::read(&archive).map(|bytes| sha256(&bytes));
        let sums = sum.map(|sum| format!("{{\"files\":{{}},\"package\":\"{sum}\"}}"));
        let to = folder.join(format!("{name}-{version}/.cargo-checksum.json"));
        sums.and_then(|sums| fs::write(&to, sums)).map_err(|error| format!("{}: {error}", to.display()))?;
    }
    let text = format!(
        "[source.crates-io]\nreplace-with = \"packaged\"\n[source.packaged]\ndirectory = \"{place}\"\n"
    );
    write(config, &text)
}

/// The crates of this workspace that the facade is made of, with their versions.
fn members() -> Result<Vec<(String, String)>, String> {
    let mut tree = crate::test::cargo();
    tree.args(["tree", "--package", FACADE, "--edges", "normal", "--prefix", "none", "--format", "{p}"]);
    let output = tree.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("{tree:?}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    // `name vVERSION (folder)`; those from elsewhere have no folder.
    let text = String::from_utf8_lossy(&output.stdout);
    let members = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (name, version, folder) = (words.next()?, words.next()?, words.next()?);
        folder.starts_with("(/").then(|| (name.to_owned(), version.trim_start_matches('v').to_owned()))
    });
    let mut members: Vec<_> = members.collect();
    members.sort();
    members.dedup();
    Ok(members)
}

/// Puts what the facade needs of other workspaces into `folder`, in the versions that are locked here.
fn vendor(work: &Path, folder: &Path, patches: &str) -> Result<(), String> {
    let project = work.join("project");
    let manifest = format!(
        "[package]\nname = \"vendored\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n{FACADE} = \"*\"\n\n[workspace]\n\n\
         [patch.crates-io]\n{patches}"
    );
    write(&project.join("Cargo.toml"), &manifest)?;
    write(&project.join("src/lib.rs"), "")?;
    let lock = crate::test::workspace().join("Cargo.lock");
    fs::copy(&lock, project.join("Cargo.lock")).map_err(|error| format!("{}: {error}", lock.display()))?;
    let mut vendor = crate::test::cargo();
    vendor.args(["vendor", "--quiet", "--versioned-dirs"]).arg(folder).current_dir(project);
    succeed(&mut vendor)
}

fn unpack(archive: &Path, folder: &Path) -> Result<(), String> {
    let unpack = || -> io::Result<()> {
        let file = flate2::read::GzDecoder::new(fs::File::open(archive)?);
        tar::Archive::new(file).unpack(folder)
    };
    unpack().map_err(|error| format!("{}: {error}", archive.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    let folder = file.parent().map(PathBuf::from).unwrap_or_default();
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(file, text));
    written.map_err(|error| format!("{}: {error}", file.display()))
}

/// Runs a command and keeps what it says unless it fails.
fn succeed(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

//! Crates that are linked into the program, the libraries and the Python module.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::arch::Arch;
use crate::install::{PACKAGES, PYTHON};
use crate::process::output;
use crate::workspace::cargo;

/// Crate that is linked.
#[derive(Clone, Debug)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) version: String,
    /// Licence as an SPDX expression.
    pub(super) licence: Option<String>,
    pub(super) repository: Option<String>,
    /// Folder of the source.
    pub(super) folder: PathBuf,
    /// SHA-256 sum of the package. `None` for a crate of this workspace.
    pub(super) sum: Option<String>,
    /// Ids of the crates that it depends on.
    pub(super) uses: Vec<String>,
}

/// All crates, by the ids that Cargo assigns.
#[derive(Clone, Debug)]
pub(super) struct Crates(pub(super) BTreeMap<String, Crate>);

impl Crates {
    /// Finds the crates of the packages for a processor. Crates that are only used while building
    /// (dependencies of build scripts, and macros) are omitted.
    pub(super) fn of_packages(arch: Arch) -> Result<Self, String> {
        let tree = output(
            cargo()
                .args(["tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "none"])
                .args(["--format", "{p}", "--target", &arch.target()])
                .args(PACKAGES)
                .args(PYTHON),
        )?;
        // `name vVERSION (folder)`.
        let linked: Vec<(String, String)> = tree
            .lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
            })
            .collect();
        let metadata = output(cargo().args(["metadata", "--locked", "--format-version", "1"]))?;
        let metadata: Value =
            serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
        let lock = crate::workspace::root().join("Cargo.lock");
        let lock =
            fs::read_to_string(&lock).map_err(|error| format!("{}: {error}", lock.display()))?;
        let mut crates = BTreeMap::new();
        for package in metadata["packages"].as_array().into_iter().flatten() {
            let of = |key: &str| package[key].as_str().map(str::to_owned);
            let (Some(id), Some(name), Some(version)) = (of("id"), of("name"), of("version"))
            else {
                continue;
            };
            if !linked.contains(&(name.clone(), version.clone())) {
                continue;
            }
            let folder = of("manifest_path").map(PathBuf::from).unwrap_or_default();
            let folder = folder.parent().map(PathBuf::from).unwrap_or_default();
            let sum = of("source").and_then(|_| sum(&lock, &name, &version));
            // An older form of this field separates licences by `/`.
            let licence = of("license").map(|text| text.replace('/', " OR "));
            let repository = of("repository");
            crates.insert(
                id,
                Crate { name, version, licence, repository, folder, sum, uses: Vec::new() },
            );
        }
        let ids: Vec<String> = crates.keys().cloned().collect();
        for node in metadata["resolve"]["nodes"].as_array().into_iter().flatten() {
            let Some(one) = node["id"].as_str().and_then(|id| crates.get_mut(id)) else { continue };
            let uses = node["deps"].as_array().into_iter().flatten().filter(|dep| is_linked(dep));
            let uses = uses
                .filter_map(|dep| dep["pkg"].as_str())
                .filter(|id| ids.iter().any(|other| other == id));
            one.uses = uses.map(str::to_owned).collect();
            one.uses.sort();
        }
        Ok(Self(crates))
    }
}

/// Returns whether an edge of the graph is not only for building or for tests.
fn is_linked(dep: &Value) -> bool {
    dep["dep_kinds"].as_array().into_iter().flatten().any(|kind| kind["kind"].is_null())
}

/// Returns the sum of a package in Cargo.lock.
fn sum(lock: &str, name: &str, version: &str) -> Option<String> {
    let wanted = [format!("name = \"{name}\""), format!("version = \"{version}\"")];
    let entry = lock
        .split("[[package]]")
        .find(|entry| wanted.iter().all(|line| entry.lines().any(|other| other == line)))?;
    entry
        .lines()
        .find_map(|line| Some(line.strip_prefix("checksum = \"")?.strip_suffix('"')?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_crates_of_programs_listed() {
        let Crates(crates) = Crates::of_packages(Arch::here()).unwrap();
        let find = |name: &str| crates.values().find(|one| one.name == name);
        let verbs = find("uiw-verbs").expect("our own");
        assert_eq!((verbs.version.as_str(), &verbs.sum), (env!("CARGO_PKG_VERSION"), &None));
        assert!(verbs.folder.join("Cargo.toml").exists());
        let libc = find("libc").expect("a library of all of them");
        assert_eq!(libc.sum.as_ref().map(String::len), Some(64));
        assert_eq!(libc.licence.as_deref(), Some("MIT OR Apache-2.0"));
        // Dependencies for tests, for macros and for building.
        for name in ["proptest", "serde_derive", "cc", "xtask", "loom"] {
            assert!(find(name).is_none(), "{name}");
        }
        assert!(verbs.uses.iter().any(|id| crates[id].name == "uiw-mem"));
    }
}

//! All packages have one version, also where they name each other, and the documents name the oldest Rust that Cargo.toml names.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use super::VERSION;
use crate::workspace::cargo;

/// Documents that name the oldest Rust.
const DOCUMENTS: [&str; 3] = ["README.md", "docs/installing.md", "docs/compatibility.md"];

pub(super) fn check() -> Result<(), String> {
    let mut command = cargo();
    command.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let mut wrong = different(&packages, VERSION);
    let rust = packages.iter().find_map(|package| package["rust_version"].as_str()).unwrap_or_default();
    wrong.extend(documents(&crate::workspace::root(), rust)?);
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Packages that have another version, and requirements that another version would meet.
fn different(packages: &[Value], version: &str) -> Vec<String> {
    let names: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut wrong = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let own = package["version"].as_str().unwrap_or_default();
        if own != version {
            wrong.push(format!("{name} has version {own}, not {version}"));
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let (other, asks) = (dependency["name"].as_str(), dependency["req"].as_str());
            let (Some(other), Some(asks)) = (other.filter(|other| names.contains(other)), asks) else {
                continue;
            };
            // `*`: by its path alone, as in what is not published.
            if asks != "*" && asks != format!("^{version}") {
                wrong.push(format!("{name} asks for {other} {asks}, not {version}"));
            }
        }
    }
    wrong
}

/// Documents that do not name the oldest Rust.
fn documents(root: &Path, rust: &str) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(root.join(document)).map_err(|error| format!("{document}: {error}"))?;
        let is_named = text.contains(&format!("Rust {rust}")) || text.contains(&format!("| Rust | {rust} "));
        if !is_named {
            wrong.push(format!("{document} does not name Rust {rust}"));
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn packages_of_other_version_named() {
        let packages = json!([
            { "name": "a", "version": "0.2.0", "dependencies": [
                { "name": "b", "req": "^0.1.0" }, { "name": "c", "req": "^0.2.0" }, { "name": "libc", "req": "^0.2" } ] },
            { "name": "b", "version": "0.1.0", "dependencies": [{ "name": "c", "req": "*" }] },
            { "name": "c", "version": "0.2.0", "dependencies": [] },
        ]);
        let wrong = different(packages.as_array().unwrap(), "0.2.0");
        assert_eq!(wrong, ["a asks for b ^0.1.0, not 0.2.0", "b has version 0.1.0, not 0.2.0"]);
    }

    #[test]
    fn versions_are_equal() {
        check().unwrap();
    }
}

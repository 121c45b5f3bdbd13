//! List of the crates in the packages, as CycloneDX 1.5 in JSON.
//!
//! cargo-cyclonedx writes a list for each crate of the workspace into its source folder, with paths
//! of this machine in it. Packages need one list, which is the same on every machine.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::crates::{Crate, Crates};
use super::{PackageBuild, sums};
use crate::install::{PACKAGES, PYTHON};

pub(super) fn make(dist: &PackageBuild) -> Result<PathBuf, String> {
    let file = dist.out.join(format!("uiw-{}.cdx.json", dist.version));
    let bom = of(&dist.crates, &dist.version, &dist.timestamp()?);
    let text = serde_json::to_string_pretty(&bom).map_err(|error| error.to_string())?;
    fs::write(&file, text + "\n").map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file)
}

fn of(crates: &Crates, version: &str, timestamp: &str) -> Value {
    let root = format!("pkg:generic/uiw@{version}");
    let components: Vec<Value> = crates.0.values().map(component).collect();
    let mut edges: Vec<Value> = crates
        .0
        .values()
        .map(|one| {
            let uses: Vec<String> =
                one.uses.iter().filter_map(|id| crates.0.get(id)).map(url).collect();
            json!({ "ref": url(one), "dependsOn": uses })
        })
        .collect();
    let programs = crates
        .0
        .values()
        .filter(|one| PACKAGES.iter().chain(&PYTHON).any(|name| *name == one.name));
    edges.push(json!({ "ref": root, "dependsOn": programs.map(url).collect::<Vec<_>>() }));
    json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": serial(&components),
        "version": 1,
        "metadata": {
            "timestamp": timestamp,
            "component": { "type": "application", "bom-ref": root, "name": "uiw", "version": version, "purl": root },
        },
        "components": components,
        "dependencies": edges,
    })
}

fn url(one: &Crate) -> String {
    // The build metadata of a version follows a plus, which means a space in a URL.
    format!("pkg:cargo/{}@{}", one.name, one.version.replace('+', "%2B"))
}

fn component(one: &Crate) -> Value {
    let mut component = json!({
        "type": "library", "bom-ref": url(one), "name": one.name, "version": one.version, "purl": url(one),
    });
    if let Some(licence) = &one.licence {
        component["licenses"] = json!([{ "expression": licence }]);
    }
    if let Some(sum) = &one.sum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
    }
    if let Some(repository) = &one.repository {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    component
}

/// Returns a serial number that is the same for the same crates: a UUID of version 8 (RFC 9562)
/// that is derived from the sum of the list.
fn serial(components: &[Value]) -> String {
    let mut bytes = sums::sha256(Value::from(components).to_string().as_bytes());
    bytes[6] = bytes[6] & 0x0F | 0x80;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    let hex: String = bytes[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "urn:uuid:{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Arch;

    #[test]
    fn every_reference_names_a_component() {
        let crates = Crates::of_packages(Arch::here()).unwrap();
        let bom = of(&crates, "1.2.3", "2026-01-02T03:04:05Z");
        assert_eq!(bom, of(&crates, "1.2.3", "2026-01-02T03:04:05Z"));
        let all = |list: &Value, key: &str| -> Vec<String> {
            list.as_array()
                .unwrap()
                .iter()
                .map(|one| one[key].as_str().unwrap().to_owned())
                .collect()
        };
        let components = all(&bom["components"], "bom-ref");
        assert!(
            components.iter().any(|name| name.starts_with("pkg:cargo/rustls@")),
            "{components:?}"
        );
        let edges = bom["dependencies"].as_array().unwrap();
        assert_eq!(edges.len(), components.len() + 1);
        for edge in edges {
            for to in edge["dependsOn"].as_array().unwrap() {
                assert!(components.iter().any(|name| name == to.as_str().unwrap()), "{to}");
            }
        }
    }
}

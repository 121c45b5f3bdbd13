//! Licences of the linked crates, which the packages must contain.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use super::archive;
use super::crates::Crates;

/// Prefixes of the names of licence files.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// Returns each licence text once, after the names of the crates that have it. Crates of the
/// workspace have the licence of the package itself.
pub(super) fn of(crates: &Crates) -> Result<String, String> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut all = "The programs contain these crates:\n\n".to_owned();
    for one in crates.0.values().filter(|one| one.sum.is_some()) {
        let licence = one.licence.as_deref().unwrap_or("see below");
        let _ = writeln!(all, "{} {}: {licence}", one.name, one.version);
        for text in licence_texts(&one.folder)
            .map_err(|error| format!("{}: {error}", one.folder.display()))?
        {
            texts.entry(text).or_default().push(format!("{} {}", one.name, one.version));
        }
    }
    for (text, crates) in texts {
        let _ = write!(all, "\n{}\n{}:\n\n{text}\n", "-".repeat(78), crates.join(", "));
    }
    Ok(all)
}

/// Returns the texts of the licence files of a crate, and of those in a folder such as `LICENSES`.
fn licence_texts(folder: &Path) -> io::Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        if !NAMES.iter().any(|begin| name.starts_with(begin)) {
            continue;
        }
        let path = entry.path();
        let files = match path.is_dir() {
            true => archive::files(&path)?.into_iter().map(|file| path.join(file)).collect(),
            false => vec![path],
        };
        for file in files {
            texts.push(String::from_utf8_lossy(&fs::read(file)?).trim().to_owned());
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Arch;

    #[test]
    fn every_crate_has_text() {
        let crates = Crates::of_packages(Arch::here()).unwrap();
        let foreign = crates.0.values().filter(|one| one.sum.is_some());
        let without = foreign.filter(|one| licence_texts(&one.folder).unwrap().is_empty());
        // The package of this crate has no licence file.
        assert_eq!(without.map(|one| one.name.as_str()).collect::<Vec<_>>(), ["etherparse"]);
    }

    #[test]
    fn shared_texts_listed_once() {
        let notices = of(&Crates::of_packages(Arch::here()).unwrap()).unwrap();
        assert!(notices.contains("\nlibc 0.2."), "{notices}");
        let mit = "Permission is hereby granted, free of charge, to any";
        let crates = notices.split(&"-".repeat(78)).next().unwrap().lines().count();
        assert!(
            (2..crates).contains(&notices.matches(mit).count()),
            "{}",
            notices.matches(mit).count()
        );
    }
}

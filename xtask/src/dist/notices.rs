//! Licences of the linked crates, which the packages must contain.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

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
        let entries =
            fs::read_dir(&one.folder).map_err(|error| format!("{}: {error}", one.folder.display()))?;
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().to_uppercase();
            if NAMES.iter().any(|begin| name.starts_with(begin))
                && let Ok(text) = fs::read_to_string(entry.path())
            {
                texts
                    .entry(text.trim().to_owned())
                    .or_default()
                    .push(format!("{} {}", one.name, one.version));
            }
        }
    }
    for (text, crates) in texts {
        let _ = write!(all, "\n{}\n{}:\n\n{text}\n", "-".repeat(78), crates.join(", "));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Arch;

    #[test]
    fn shared_texts_listed_once() {
        let notices = of(&Crates::of_packages(Arch::here()).unwrap()).unwrap();
        assert!(notices.contains("\nlibc 0.2."), "{notices}");
        let mit = "Permission is hereby granted, free of charge, to any";
        let crates = notices.split(&"-".repeat(78)).next().unwrap().lines().count();
        assert!((2..crates).contains(&notices.matches(mit).count()), "{}", notices.matches(mit).count());
    }
}

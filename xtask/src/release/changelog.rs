//! CHANGELOG.md: what is to be released is in the section `Unreleased`, which becomes that of the version.

use std::fs;

use super::VERSION;

const UNRELEASED: &str = "## Unreleased";

pub(super) fn check() -> Result<(), String> {
    let path = crate::workspace::root().join("CHANGELOG.md");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    released(&text, VERSION, "").map(drop)
}

/// The text with the version and the date in place of `Unreleased`, and an empty such section above.
///
/// # Errors
/// When nothing is described, or the version is there already.
pub(super) fn released(text: &str, version: &str, date: &str) -> Result<String, String> {
    let is_of =
        |line: &str| line.strip_prefix("## ").is_some_and(|rest| rest.split(' ').next() == Some(version));
    if text.lines().any(is_of) {
        return Err(format!(
            "CHANGELOG.md has a section `## {version}` already: raise the version in Cargo.toml"
        ));
    }
    let missing = || format!("CHANGELOG.md has no section `{UNRELEASED}`");
    let (before, after) = text.split_once(&format!("{UNRELEASED}\n")).ok_or_else(missing)?;
    let section = after.split("\n## ").next().unwrap_or(after);
    if !section.lines().any(|line| line.starts_with("* ")) {
        return Err(format!("CHANGELOG.md describes nothing in `{UNRELEASED}`"));
    }
    Ok(format!("{before}{UNRELEASED}\n\n## {version} ({date})\n{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreleased_section_becomes_version() {
        let text = "# Changelog\n\n## Unreleased\n\n### Wire\n* new\n\n## 0.1.0 (2026-01-01)\n* old\n";
        let new = "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2026-02-02)\n\n### Wire\n* new\n\n## 0.1.0 (2026-01-01)\n* old\n";
        assert_eq!(released(text, "0.2.0", "2026-02-02").as_deref(), Ok(new));
        // Released already.
        assert!(released(text, "0.1.0", "").unwrap_err().contains("has a section `## 0.1.0`"));
        // Nothing new since.
        assert!(released(new, "0.3.0", "").unwrap_err().contains("describes nothing"));
        assert!(released("# Changelog\n", "0.1.0", "").unwrap_err().contains("no section"));
    }
}

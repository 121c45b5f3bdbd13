//! Links of the documents to files and sections of the repository.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The links that lead nowhere, each with its document.
///
/// # Errors
/// When the documents cannot be read.
pub(super) fn broken(root: &Path) -> Result<Vec<String>, String> {
    let listed = Command::new("git").args(["ls-files", "*.md"]).current_dir(root).output();
    let listed = listed.map_err(|error| format!("git: {error}"))?;
    let mut broken = Vec::new();
    for name in String::from_utf8_lossy(&listed.stdout).lines() {
        let document = root.join(name);
        let text = fs::read_to_string(&document).map_err(|error| format!("{name}: {error}"))?;
        for link in links(&text) {
            if let Some(why) = wrong(&document, &link)? {
                broken.push(format!("{name}: {link}: {why}"));
            }
        }
    }
    Ok(broken)
}

/// The targets of a document's links, `[text](target)`, outside of code.
fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        }
        if is_code || line.starts_with("    ") {
            continue;
        }
        // What is between backquotes is code.
        for prose in line.split('`').step_by(2) {
            let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            links.extend(targets.map(|(target, _)| target.to_owned()));
        }
        // A link whose text is code.
        let of_code = line.split("`](").skip(1).filter_map(|rest| rest.split_once(')'));
        links.extend(of_code.map(|(target, _)| target.to_owned()));
    }
    links.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}

/// What is wrong with a link, if it is one to a file.
fn wrong(document: &Path, link: &str) -> Result<Option<&'static str>, String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return Ok(None);
    }
    let (file, section) = link.split_once('#').map_or((link, None), |(file, section)| (file, Some(section)));
    let target: PathBuf = match file {
        "" => document.to_path_buf(),
        file => document.parent().unwrap_or(Path::new(".")).join(file),
    };
    if !target.exists() {
        return Ok(Some("no such file"));
    }
    let Some(section) = section.filter(|_| target.extension().is_some_and(|kind| kind == "md")) else {
        return Ok(None);
    };
    let text = fs::read_to_string(&target).map_err(|error| format!("{}: {error}", target.display()))?;
    let headings =
        text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    Ok(if headings.map(anchor).any(|name| name == section) { None } else { Some("no such section") })
}

/// The name by which a heading is linked to.
fn anchor(heading: &str) -> String {
    let letters = heading.to_lowercase();
    let letters =
        letters.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    letters.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "See [a](x.md) and [`b`](y.md#z), [c](https://example.org).\n\n    [d](no.md)\n```\n[e](no.md)\n```\n`[f](no.md)` [g](#h)\n";
        assert_eq!(links(text), ["#h", "https://example.org", "x.md", "y.md#z"]);
    }

    #[test]
    fn headings_are_linked_to_as_they_are_written() {
        assert_eq!(anchor("The wire between `uiw` peers, 1.0"), "the-wire-between-uiw-peers-10");
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
        assert_eq!(wrong(&here, "docs/absent.md"), Ok(Some("no such file")));
        assert_eq!(wrong(&here, "ARCHITECTURE.md#absent"), Ok(Some("no such section")));
        assert_eq!(wrong(&here, "ARCHITECTURE.md#folders"), Ok(None));
    }

    #[test]
    fn the_documents_have_none() {
        assert_eq!(broken(&crate::workspace::root()), Ok(Vec::new()));
    }
}

//! Commands of the book that are run, and the reasons why others are not.

use super::Page;
use super::script;
use super::transcript::{self, Section};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Pages with commands that are not run, and the reasons. It contains exactly those pages that have
/// `sh` blocks or indented blocks.
const NOT_RUN: &[(&str, &str)] = &[
    ("CONTRIBUTING.md", "work on the source tree; its commands are what CI runs"),
    ("README.md", "the test command of the source tree, which CI runs"),
    ("docs/containers.md", "containers, by interop/tests/stock"),
    (
        "docs/installing.md",
        "the source tree, which xtask/tests has: install.rs, dist.rs; a running systemd",
    ),
    (
        "docs/interop.md",
        "the kernel's siw, which `cargo xtask interop siw` runs in a virtual machine",
    ),
    ("docs/serving.md", "a running systemd; interop/tests/stock/sandboxes has the unit"),
    ("docs/quick-start.md", "the installation from the source tree, by xtask/tests/install.rs"),
    (
        "docs/programs.md",
        "UCX and MPI on several hosts, by interop/tests/stock; NIXL and Mooncake, by `cargo xtask interop`",
    ),
    (
        "docs/run-your-program.md",
        "a machine with an adapter; interop/tests/stock/beside.rs has the system's library",
    ),
    ("docs/tls.md", "Wireshark, by interop/tests/stock/tls.rs"),
    ("interop/siw/README.md", "a virtual machine with the Linux siw driver"),
];

/// Returns the sections with commands of each page of the book, and those of the script by its
/// path.
///
/// # Errors
/// Returns a line for each error: a page with commands that are neither run nor excused, an excuse
/// that no page needs, or a difference between the script and the pages.
pub(super) fn of_book<'a>(
    documents: &BTreeMap<PathBuf, Page>,
    book: impl Iterator<Item = &'a Path>,
    script: &str,
) -> Result<Commands, Vec<String>> {
    collect(documents, book, script, NOT_RUN)
}

/// Sections by the path of their document.
pub(super) type Commands = BTreeMap<PathBuf, Vec<Section>>;

fn collect<'a>(
    documents: &BTreeMap<PathBuf, Page>,
    book: impl Iterator<Item = &'a Path>,
    script: &str,
    not_run: &[(&str, &str)],
) -> Result<Commands, Vec<String>> {
    let mut wrong = Vec::new();
    let mut pages = BTreeMap::new();
    let mut excused: Vec<_> = not_run.iter().map(|(page, _)| Path::new(page)).collect();
    for path in book {
        let Some(page) = documents.get(path) else { continue };
        match transcript::sections(page.text()) {
            Ok(sections) if sections.is_empty() => {}
            Ok(sections) => drop(pages.insert(path.to_owned(), sections)),
            Err(error) => wrong.push(format!("{}: {error}", path.display())),
        }
        let place = excused.iter().position(|other| *other == path);
        match (place, page.has_commands()) {
                (None, true) => wrong.push(format!(
                    "{}: commands that are not run: make them a `console` block, or name the page in NOT_RUN with the reason",
                    path.display()
                )),
                (Some(place), true) => drop(excused.swap_remove(place)),
                (_, false) => {}
            }
    }
    wrong.extend(
        excused
            .iter()
            .map(|page| format!("NOT_RUN: {} has no command that is not run", page.display())),
    );
    match script::sections(script, &pages) {
        Ok(sections) => drop(pages.insert(script::PATH.into(), sections)),
        Err(lines) => wrong.extend(lines),
    }
    if wrong.is_empty() { Ok(pages) } else { Err(wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "# Run\n\n## A\n\n```console\n$ true\n```\n";
    const NOT: &str = "# Not\n\n```sh\ntrue\n```\n";
    const INDENTED: &str = "# Indented\n\n    true\n";
    const SCRIPT: &str = "set -eu\n\necho '== run.md: A'\ntrue\n";

    fn wrong(not_run: &[&str], script: &str) -> Vec<String> {
        let documents: BTreeMap<_, _> =
            [("run.md", RUN), ("not.md", NOT), ("indented.md", INDENTED)]
                .map(|(path, text)| (PathBuf::from(path), Page::new(text.to_owned())))
                .into();
        let not_run: Vec<_> = not_run.iter().map(|page| (*page, "a reason")).collect();
        let book = documents.keys().map(PathBuf::as_path);
        match collect(&documents, book, script, &not_run) {
            Ok(commands) => {
                assert_eq!(commands.len(), 2);
                Vec::new()
            }
            Err(wrong) => wrong,
        }
    }

    #[test]
    fn list_of_excused_pages_is_exact() {
        assert!(wrong(&["not.md", "indented.md"], SCRIPT).is_empty());
        for (not_run, page) in [
            (&["not.md"][..], "indented.md"),
            (&["indented.md"], "not.md"),
            (&["not.md", "indented.md", "run.md"], "run.md"),
            (&["not.md", "indented.md", "absent.md"], "absent.md"),
        ] {
            let wrong = wrong(not_run, SCRIPT);
            assert!(matches!(&wrong[..], [line] if line.contains(page)), "{not_run:?}: {wrong:?}");
        }
        assert_eq!(
            wrong(&["not.md", "indented.md"], &SCRIPT.replace("\ntrue", "\nfalse")).len(),
            1
        );
    }
}

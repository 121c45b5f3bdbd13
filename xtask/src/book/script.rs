//! `docs/newcomer.sh`: sections of several pages as one shell script.
//!
//! A section begins with `echo '== PAGE: HEADING'`. Below this line are the steps below that
//! heading of the page, word for word. So the script runs exactly these steps.

use super::transcript::{Section, Step};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Path of the script in the repository.
pub(super) const PATH: &str = "docs/newcomer.sh";

/// Returns the sections of the pages that the script contains, in its order.
///
/// # Errors
/// Returns the differences from the pages, line by line.
pub(super) fn sections(
    script: &str,
    pages: &BTreeMap<PathBuf, Vec<Section>>,
) -> Result<Vec<Section>, Vec<String>> {
    let (mut sections, mut wrong) = (Vec::new(), Vec::new());
    for part in script.split("\necho '== ").skip(1) {
        let (title, body) = part.split_once("'\n").unwrap_or((part, ""));
        let Some(section) = find(pages, title) else {
            wrong.push(format!("{PATH}: no page has the commands of `{title}`"));
            continue;
        };
        let expected: String = section.steps.iter().map(Step::script).collect();
        if body.trim_end() != expected.trim_end() {
            wrong.push(format!("{PATH}: `{title}` is not what the page has:\n{expected}"));
        }
        sections.push(section.clone());
    }
    if sections.is_empty() {
        wrong.push(format!("{PATH} has no section"));
    }
    if wrong.is_empty() { Ok(sections) } else { Err(wrong) }
}

fn find<'a>(pages: &'a BTreeMap<PathBuf, Vec<Section>>, title: &str) -> Option<&'a Section> {
    let (page, heading) = title.split_once(": ")?;
    pages.get(Path::new(page))?.iter().find(|section| section.heading == heading)
}

#[cfg(test)]
mod tests {
    use super::super::transcript;
    use super::*;

    const PAGE: &str = "# A\n\n## B\n\n```console\n$ one\n1 [..]\n```\n\n`f`:\n\n```text\nx\n```\n\n## C\n\n```console\n$ two\n```\n";
    const SCRIPT: &str = "#!/bin/sh\nset -eu\n\necho '== docs/p.md: B'\none\ncat > f <<'END'\nx\nEND\n\necho '== docs/p.md: C'\ntwo\n";

    #[test]
    fn script_that_differs_from_pages_rejected() {
        let pages = [(PathBuf::from("docs/p.md"), transcript::sections(PAGE).unwrap())].into();
        assert_eq!(sections(SCRIPT, &pages).as_ref(), Ok(&pages[Path::new("docs/p.md")]));
        for (from, to) in
            [("one\n", "one -v\n"), ("x\n", ""), ("two\n", "two\nthree\n"), (": C", ": D")]
        {
            let wrong = sections(&SCRIPT.replacen(from, to, 1), &pages);
            assert_eq!(wrong.err().map(|wrong| wrong.len()), Some(1), "{from}");
        }
        assert!(sections("#!/bin/sh\none\n", &pages).is_err());
    }
}

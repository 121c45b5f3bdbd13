//! `docs/newcomer.sh`: sections of pages, one behind the other, as one shell script.
//!
//! A section begins with `echo '== PAGE: HEADING'`; below that line are the steps of the page below that heading, word by word.

use super::transcript::{Section, Step, fits};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where it is.
pub(super) const PATH: &str = "docs/newcomer.sh";

const TITLE: &str = "== ";

/// The script's sections: title, and text.
pub(super) struct Script<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Script<'a> {
    pub(super) fn parse(text: &'a str) -> Self {
        let mut sections = Vec::new();
        let mut rest = text;
        while let Some((_, after)) = rest.split_once("\necho '== ") {
            let Some((title, body)) = after.split_once("'\n") else { break };
            let end = body.find("\necho '== ").map_or(body.len(), |at| at + 1);
            sections.push((title, &body[..end]));
            rest = &body[end.saturating_sub(1)..];
        }
        Self(sections)
    }

    /// The pages' sections that the script has, in its order. What is otherwise in the pages, line by line.
    pub(super) fn of_pages(
        &self,
        pages: &BTreeMap<PathBuf, Vec<Section>>,
    ) -> Result<Vec<(&'a str, Section)>, Vec<String>> {
        let (mut sections, mut wrong) = (Vec::new(), Vec::new());
        for (title, body) in &self.0 {
            let Some(section) = find(pages, title) else {
                wrong.push(format!("{PATH}: no page has the commands of `{title}`"));
                continue;
            };
            let expected: String = section.steps.iter().map(Step::script).collect();
            if body.trim_end() == expected.trim_end() {
                sections.push((*title, section.clone()));
            } else {
                wrong.push(format!("{PATH}: `{title}` is not what the page has:\n{expected}"));
            }
        }
        if self.0.is_empty() {
            wrong.push(format!("{PATH} has no section"));
        }
        if wrong.is_empty() { Ok(sections) } else { Err(wrong) }
    }
}

fn find<'a>(pages: &'a BTreeMap<PathBuf, Vec<Section>>, title: &str) -> Option<&'a Section> {
    let (page, heading) = title.split_once(": ")?;
    pages.get(Path::new(page))?.iter().find(|section| section.heading == heading)
}

/// Compares what the script has printed with what the pages say.
pub(super) fn compare(sections: &[(&str, Section)], said: &str) -> Result<(), String> {
    let mut parts: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in said.lines() {
        match (line.strip_prefix(TITLE), parts.last_mut()) {
            (Some(title), _) => parts.push((title, Vec::new())),
            (None, Some((_, lines))) => lines.push(line),
            (None, None) => return Err(format!("printed before the first title: {line}")),
        }
    }
    for (number, (title, section)) in sections.iter().enumerate() {
        let Some((printed, lines)) = parts.get(number) else {
            return Err(format!("ended before `{title}`:\n{said}"));
        };
        let expected: Vec<_> = section.steps.iter().flat_map(Step::printed).cloned().collect();
        if printed != title || !fits(&expected, lines) {
            return Err(format!(
                "{title}: expected:\n{}\nprinted:\n{}",
                expected.join("\n"),
                lines.join("\n")
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A\n\n## B\n\n```console\n$ one\n1 [..]\n```\n\n`f`:\n\n```text\nx\n```\n\n## C\n\n```console\n$ two\n```\n";

    fn pages() -> BTreeMap<PathBuf, Vec<Section>> {
        [(PathBuf::from("docs/p.md"), super::super::transcript::sections(PAGE).unwrap())].into()
    }

    const SCRIPT: &str = "#!/bin/sh\nset -eu\n\necho '== docs/p.md: B'\none\ncat > f <<'END'\nx\nEND\n\necho '== docs/p.md: C'\ntwo\n";

    #[test]
    fn a_script_has_what_the_pages_have() {
        let sections = Script::parse(SCRIPT).of_pages(&pages()).unwrap();
        assert_eq!(
            sections.iter().map(|(title, _)| *title).collect::<Vec<_>>(),
            ["docs/p.md: B", "docs/p.md: C"]
        );
        for (from, to) in [("one\n", "one -v\n"), ("x\n", ""), ("two\n", "two\nthree\n"), (": C", ": D")] {
            let script = SCRIPT.replacen(from, to, 1);
            let wrong = Script::parse(&script).of_pages(&pages());
            assert_eq!(wrong.err().map(|wrong| wrong.len()), Some(1), "{from}");
        }
        assert!(Script::parse("#!/bin/sh\none\n").of_pages(&pages()).is_err());
    }

    #[test]
    fn what_a_script_prints_is_compared_section_by_section() {
        let sections = Script::parse(SCRIPT).of_pages(&pages()).unwrap();
        assert!(compare(&sections, "== docs/p.md: B\n1 us\n== docs/p.md: C\n").is_ok());
        for wrong in ["", "== docs/p.md: B\n1 us\n", "== docs/p.md: B\n2 us\n== docs/p.md: C\n", "x\n"] {
            assert!(compare(&sections, wrong).is_err(), "{wrong}");
        }
    }
}

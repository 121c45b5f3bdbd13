//! `cargo xtask book --run --update`: what commands print becomes what their page shows.
//!
//! Lines of the page and printed lines are aligned so that as much of the page as possible stays, and in lines that differ so are their words. A
//! wildcard (`[..]` in a line, a line `...`) stays where it takes what stands at its place, and takes no more than that: what is new is shown.

use super::transcript::{Place, Step, fits, is_like};
use std::fs;
use std::path::Path;

/// Changes of one page.
#[derive(Debug, Default)]
pub(super) struct Update(Vec<(Place, Vec<String>)>);

impl Update {
    /// `step` has printed something else than the page shows.
    pub(super) fn add(&mut self, step: &Step, printed: &str) -> Result<(), String> {
        let Step::Command { command, printed: shown, place } = step else { return Ok(()) };
        let printed: Vec<&str> = printed.lines().collect();
        let is_syntax = |(number, line): (usize, &&str)| {
            line.starts_with("$ ") || line.starts_with("```") || number == 0 && line.starts_with("> ")
        };
        if let Some((_, line)) = printed.iter().enumerate().find(|(number, line)| is_syntax((*number, line)))
        {
            return Err(format!("`{command}` prints a line that a console block cannot show: {line}"));
        }
        let lines = lines(shown, &printed);
        self.0.push((place.clone(), lines));
        Ok(())
    }

    /// Writes the page if it has changed.
    pub(super) fn write(self, file: &Path) -> Result<(), String> {
        if self.0.is_empty() {
            return Ok(());
        }
        let failed = |error: std::io::Error| format!("{}: {error}", file.display());
        let page = fs::read_to_string(file).map_err(failed)?;
        fs::write(file, self.applied(&page)).map_err(failed)
    }

    fn applied(self, page: &str) -> String {
        let mut lines: Vec<String> = page.lines().map(str::to_owned).collect();
        // From the end on: numbers of lines before a change stay as they are.
        for (place, new) in self.0.into_iter().rev() {
            let indent = " ".repeat(place.indent);
            let new =
                new.into_iter().map(|line| if line.is_empty() { line } else { format!("{indent}{line}") });
            lines.splice(place.lines, new);
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// Costs of a change of the page, and of what a wildcard takes. The latter is small, so that a wildcard takes what was changed at its place, but is
/// not nothing: it takes no more than it must.
const CHANGE: u32 = 1000;
const TAKEN: u32 = 1;

/// The lines to show.
fn lines(shown: &[String], printed: &[&str]) -> Vec<String> {
    let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
    let (_, new) = align(&shown, printed, |line| line == "...", line);
    if fits(&new, printed) { new } else { printed.iter().map(|line| (*line).to_owned()).collect() }
}

/// The line to show, and what of [`CHANGE`] it costs.
fn line(shown: &str, printed: &str) -> (u32, String) {
    if is_like(shown, printed) {
        return (0, shown.to_owned());
    }
    let (old, words) = (words(shown), words(printed));
    let whole = |old: &str, new: &str| (if old == new { 0 } else { CHANGE }, new.to_owned());
    let (cost, new) = align(&old, &words, |word| word == "[..]", whole);
    let new = new.concat();
    let most = CHANGE * u32::try_from(old.len().max(words.len())).unwrap_or(u32::MAX / CHANGE);
    if is_like(&new, printed) { (CHANGE * cost.min(most) / most, new) } else { (CHANGE, printed.to_owned()) }
}

/// Words, spaces, other characters, and wildcards.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let end = |of: fn(char) -> bool| rest.find(|c| !of(c)).unwrap_or(rest.len());
        let len = if rest.starts_with("[..]") {
            "[..]".len()
        } else if first.is_alphanumeric() {
            end(char::is_alphanumeric)
        } else if first.is_whitespace() {
            end(char::is_whitespace)
        } else {
            first.len_utf8()
        };
        let (word, after) = rest.split_at(len);
        words.push(word);
        rest = after;
    }
    words
}

/// What happens to the first parts of what is shown and of what is printed.
#[derive(Clone, Copy)]
enum Edit {
    /// The wildcard ends here.
    Pass,
    /// The wildcard takes a part.
    Take,
    /// A part becomes another one.
    Replace,
    Remove,
    Insert,
}

/// The cheapest way from `old` to `new`, and what it costs. `replaced` gives what one part becomes, and what of [`CHANGE`] that costs.
fn align(
    old: &[&str],
    new: &[&str],
    is_wild: impl Fn(&str) -> bool,
    replaced: impl Fn(&str, &str) -> (u32, String),
) -> (u32, Vec<String>) {
    // For what is left of both: the cost, and the first edit.
    let mut best = vec![vec![(0, Edit::Pass); new.len() + 1]; old.len() + 1];
    for i in (0..=old.len()).rev() {
        for j in (0..=new.len()).rev() {
            let edits = match (old.get(i), new.get(j)) {
                (None, None) => continue,
                (None, Some(_)) => vec![(CHANGE + best[i][j + 1].0, Edit::Insert)],
                (Some(wild), None) if is_wild(wild) => vec![(best[i + 1][j].0, Edit::Pass)],
                (Some(_), None) => vec![(CHANGE + best[i + 1][j].0, Edit::Remove)],
                (Some(wild), Some(_)) if is_wild(wild) => vec![
                    (best[i + 1][j].0, Edit::Pass),
                    (TAKEN + best[i][j + 1].0, Edit::Take),
                    (CHANGE + best[i][j + 1].0, Edit::Insert),
                ],
                (Some(one), Some(other)) => vec![
                    (replaced(one, other).0 + best[i + 1][j + 1].0, Edit::Replace),
                    (CHANGE + best[i + 1][j].0, Edit::Remove),
                    (CHANGE + best[i][j + 1].0, Edit::Insert),
                ],
            };
            best[i][j] = edits.into_iter().min_by_key(|(cost, _)| *cost).unwrap_or((0, Edit::Pass));
        }
    }
    let (mut i, mut j, mut all) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        match best[i][j].1 {
            Edit::Pass => {
                all.push(old[i].to_owned());
                i += 1;
            }
            Edit::Take => j += 1,
            Edit::Replace => {
                all.push(replaced(old[i], new[j]).1);
                (i, j) = (i + 1, j + 1);
            }
            Edit::Remove => i += 1,
            Edit::Insert => {
                all.push(new[j].to_owned());
                j += 1;
            }
        }
    }
    (best[0][0].0, all)
}

#[cfg(test)]
mod tests {
    use super::super::transcript::sections;
    use super::*;

    fn updated(shown: &str, printed: &str) -> String {
        let shown: Vec<_> = shown.lines().map(str::to_owned).collect();
        lines(&shown, &printed.lines().collect::<Vec<_>>()).join("\n")
    }

    #[test]
    fn wildcards_stay_where_they_still_fit() {
        for (shown, printed, expected) in [
            ("a [..] us", "a 5 us", "a [..] us"),
            ("a [..] us", "a 5 ms", "a [..] ms"),
            ("a [..] us", "b 5 us", "b [..] us"),
            ("CRC on, MTU [..]", "CRC off, MTU 1500 bytes", "CRC off, MTU [..]"),
            (
                "round 0, [..] us\nround 1, [..] us",
                "round 1, 7 us\nround 2, 8 us",
                "round 1, [..] us\nround 2, [..] us",
            ),
            ("a\n...\nd", "a\nb\nc\ne", "a\n...\ne"),
            ("...\nlast", "first\nlast\nmore", "...\nlast\nmore"),
            ("a [..]\nb", "b", "b"),
            ("", "new\n\nlines", "new\n\nlines"),
            ("all\ngone", "", ""),
            ("uiw-[..].whl: OK", "uiw-1.2.whl: FAILED", "uiw-[..].whl: FAILED"),
            ("x[..]", "y", "y[..]"),
        ] {
            let new = updated(shown, printed);
            assert_eq!(new, expected, "{shown} | {printed}");
            let new: Vec<_> = new.lines().map(str::to_owned).collect();
            assert!(fits(&new, &printed.lines().collect::<Vec<_>>()), "{new:?} | {printed}");
        }
    }

    const PAGE: &str = "# A\n\n```console\n$ one\n$ two \\\n> more\n2 [..]\n```\n\n* list\n\n  ```console\n  $ three\n  3\n    4\n  ```\n";

    #[test]
    fn only_what_is_printed_changes_in_the_page() {
        let sections = sections(PAGE).unwrap();
        let mut update = Update::default();
        for (step, printed) in sections[0].steps.iter().zip(["1\n", "2 us\nnew\n", "3\n\n  5\n"]) {
            update.add(step, printed).unwrap();
        }
        let expected = PAGE
            .replace("$ one\n", "$ one\n1\n")
            .replace("[..]\n", "[..]\nnew\n")
            .replace("    4\n", "\n    5\n");
        assert_eq!(update.applied(PAGE), expected);
    }

    #[test]
    fn lines_that_a_block_cannot_show_are_refused() {
        let sections = sections(PAGE).unwrap();
        for printed in ["$ ls\n", "a\n$ ls\n", "> x\n", "```\n"] {
            let refused = Update::default().add(&sections[0].steps[0], printed).unwrap_err();
            assert!(refused.contains("`one`"), "{refused}");
        }
        Update::default().add(&sections[0].steps[0], "a\n> x\n$\n").unwrap();
    }
}

//! The banned phrases and their exceptions.

use super::text::{self, Word};

/// A phrase that is not to be used, and the term that is.
pub(super) struct Banned {
    pub(super) phrase: String,
    pub(super) term: String,
    /// A word, and whether it is only the beginning of one.
    words: Vec<(String, bool)>,
}

impl Banned {
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether `passage` begins with the phrase.
    pub(super) fn begins(&self, passage: &[Word]) -> bool {
        passage.len() >= self.words.len()
            && self.words.iter().zip(passage).all(|((word, prefix), found)| {
                if *prefix { found.text.starts_with(word.as_str()) } else { found.text == *word }
            })
    }
}

/// A place where a banned phrase is right.
pub(super) struct Allowed {
    /// A file, or a folder with a `/` at its end.
    pub(super) path: String,
    pub(super) phrase: String,
}

impl Allowed {
    pub(super) fn covers(&self, path: &str, phrase: &str) -> bool {
        self.phrase == phrase
            && (self.path == path || self.path.ends_with('/') && path.starts_with(&self.path))
    }
}

/// Reads `banned.tsv`.
pub(super) fn banned() -> Result<Vec<Banned>, String> {
    parse_banned(include_str!("../../prose/banned.tsv"))
}

/// Reads `allowed.tsv`.
pub(super) fn allowed() -> Result<Vec<Allowed>, String> {
    parse_allowed(include_str!("../../prose/allowed.tsv"))
}

/// One line: a phrase, a tab, the term. A word with `*` at its end stands for every word that begins so.
pub(super) fn parse_banned(table: &str) -> Result<Vec<Banned>, String> {
    rows(table)
        .map(|(number, row)| {
            let [phrase, term] = row[..] else {
                return Err(format!("banned.tsv:{number}: not a phrase and a term"));
            };
            let words: Vec<_> = phrase
                .split(' ')
                .flat_map(|word| {
                    let prefix = word.ends_with('*');
                    let mut parts: Vec<_> = text::split(word).map(|part| (part, false)).collect();
                    if let Some(last) = parts.last_mut() {
                        last.1 = prefix;
                    }
                    parts
                })
                .collect();
            if words.is_empty() || term.is_empty() {
                return Err(format!("banned.tsv:{number}: an empty field"));
            }
            Ok(Banned { phrase: phrase.to_owned(), term: term.to_owned(), words })
        })
        .collect()
}

/// One line: a path, a phrase of the other list, the reason, with tabs between them.
pub(super) fn parse_allowed(table: &str) -> Result<Vec<Allowed>, String> {
    rows(table)
        .map(|(number, row)| match row[..] {
            [path, phrase, reason] if !reason.is_empty() => {
                Ok(Allowed { path: path.to_owned(), phrase: phrase.to_owned() })
            }
            _ => Err(format!("allowed.tsv:{number}: not a path, a phrase and a reason")),
        })
        .collect()
}

/// The fields of each line that is neither empty nor a comment, with its number.
fn rows(table: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let lines = table.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines.map(|(at, line)| (at + 1, line.split('\t').collect()))
}

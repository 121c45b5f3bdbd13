//! Finds what people read in a file: passages of words, each with its line.

use std::path::Path;

/// A word in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) line: usize,
}

/// Words that stand together: a paragraph, a comment, a string literal or a name.
pub(super) type Passage = Vec<Word>;

/// How a file is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Markdown,
    Rust,
    C,
    /// Comments begin with `#`; everything is prose, as messages stand between commands.
    Script,
}

fn kind(path: &Path) -> Option<Kind> {
    match path.extension()?.to_str()? {
        "md" => Some(Kind::Markdown),
        "rs" => Some(Kind::Rust),
        "c" | "h" => Some(Kind::C),
        "sh" | "toml" => Some(Kind::Script),
        _ => None,
    }
}

/// Whether the file has prose that is checked.
pub(super) fn is_prose(path: &Path) -> bool {
    kind(path).is_some()
}

/// The passages of a file. Phrases do not extend from one into the next.
pub(super) fn passages(path: &str, text: &str) -> Vec<Passage> {
    match kind(Path::new(path)) {
        Some(Kind::Markdown) => paragraphs(text),
        Some(Kind::Script) => text.lines().enumerate().map(|(at, line)| words(line, at + 1)).collect(),
        Some(kind) => Source::new(text, kind).passages(),
        None => Vec::new(),
    }
}

/// The words of a text, in lower case. The possessive `'s` is left out; other punctuation and `_` separate words.
pub(super) fn split(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric() && c != '\'')
        .map(|word| word.trim_matches('\'').trim_end_matches("'s").to_lowercase())
        .filter(|word| !word.is_empty())
}

fn words(text: &str, line: usize) -> Passage {
    text.lines()
        .enumerate()
        .flat_map(|(at, text)| split(text).map(move |text| Word { text, line: line + at }))
        .collect()
}

/// Markdown: paragraphs between empty lines, without block quotes.
fn paragraphs(text: &str) -> Vec<Passage> {
    let mut passages = vec![Passage::new()];
    for (at, line) in text.lines().enumerate() {
        let quote = line.trim_start().starts_with('>');
        if quote || line.trim().is_empty() {
            passages.push(Passage::new());
        }
        if !quote && let Some(last) = passages.last_mut() {
            last.extend(words(line, at + 1));
        }
    }
    passages
}

/// Splits `CamelCase` and `snake_case` into words.
fn name_words(name: &str, line: usize) -> Passage {
    let mut spaced = String::new();
    let mut lower_before = false;
    for c in name.chars() {
        if c.is_uppercase() && lower_before {
            spaced.push(' ');
        }
        lower_before = c.is_lowercase();
        spaced.push(c);
    }
    words(&spaced, line)
}

/// A reader of Rust or C.
struct Source<'a> {
    rest: &'a str,
    line: usize,
    kind: Kind,
    passages: Vec<Passage>,
    /// The line comment that the next one continues unless code is between them, and its last line.
    comment: Option<(Passage, usize)>,
}

impl<'a> Source<'a> {
    fn new(text: &'a str, kind: Kind) -> Self {
        Self { rest: text, line: 1, kind, passages: Vec::new(), comment: None }
    }

    fn passages(mut self) -> Vec<Passage> {
        let mut word_before = "";
        while let Some(first) = self.rest.chars().next() {
            if !first.is_whitespace() && !self.rest.starts_with("//") {
                self.passages.extend(self.comment.take().map(|(passage, _)| passage));
            }
            if self.rest.starts_with("//") {
                let len = self.rest.find('\n').unwrap_or(self.rest.len());
                let text = self.take(len);
                self.line_comment(text.trim_start_matches(['/', '!']));
            } else if self.rest.starts_with("/*") {
                let line = self.line;
                let len = self.block_comment();
                let text = self.take(len);
                self.passages.push(words(text, line));
            } else if first == '"' {
                self.string(0, true);
            } else if first == '\'' {
                let len = self.quoted();
                self.take(len);
            } else if first.is_alphabetic() || first == '_' {
                let len =
                    self.rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.rest.len());
                let word = &self.rest[..len];
                if let Some(hashes) = self.literal_behind(word, len) {
                    self.take(len);
                    self.raw_or_prefixed(word, hashes);
                } else {
                    let line = self.line;
                    self.take(len);
                    let names = ["fn", "struct", "enum", "trait", "type", "const", "static", "mod"];
                    if names.contains(&word_before) {
                        self.passages.push(name_words(word, line));
                    }
                    // `const fn` and `static mut` have the name behind the second word.
                    word_before = word;
                    continue;
                }
            } else if first.is_ascii_digit() {
                let len =
                    self.rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.rest.len());
                self.take(len);
            } else {
                self.take(first.len_utf8());
                if first.is_whitespace() {
                    continue;
                }
            }
            word_before = "";
        }
        self.passages.extend(self.comment.take().map(|(passage, _)| passage));
        self.passages
    }

    /// Consumes `len` bytes and counts their lines.
    fn take(&mut self, len: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        self.line += taken.bytes().filter(|byte| *byte == b'\n').count();
        taken
    }

    /// Adds a line to the comment that it continues, or begins one. A block quote or an empty line ends one.
    fn line_comment(&mut self, text: &str) {
        let line = self.line;
        let quote = text.trim_start().starts_with("> ");
        let found = if quote { Passage::new() } else { words(text, line) };
        match self.comment.take() {
            Some((mut passage, last)) if last + 1 == line && !found.is_empty() => {
                passage.extend(found);
                self.comment = Some((passage, line));
            }
            before => {
                self.passages.extend(before.map(|(passage, _)| passage));
                self.comment = Some((found, line));
            }
        }
    }

    /// The length of the block comment at the front; Rust's nest.
    fn block_comment(&self) -> usize {
        let (mut depth, mut at) = (0_usize, 0);
        while at < self.rest.len() {
            let rest = &self.rest.as_bytes()[at..];
            if rest.starts_with(b"/*") && (depth == 0 || self.kind == Kind::Rust) {
                depth += 1;
                at += 2;
            } else if rest.starts_with(b"*/") {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            } else {
                at += 1;
            }
        }
        self.rest.len()
    }

    /// The length of a character literal, or of a lifetime's apostrophe.
    fn quoted(&self) -> usize {
        let mut chars = self.rest.char_indices().skip(1);
        match chars.next() {
            Some((_, '\\')) => {
                chars.next();
                let end = chars.find(|(_, c)| *c == '\'' || *c == '\n');
                end.map_or(self.rest.len(), |(at, _)| at + 1)
            }
            Some((_, _)) => match chars.next() {
                Some((at, '\'')) => at + 1,
                _ => 1,
            },
            None => 1,
        }
    }

    /// Whether `word`, `len` bytes at the front, is the prefix of a literal: the count of `#` before its quotation mark.
    fn literal_behind(&self, word: &str, len: usize) -> Option<usize> {
        if !["r", "b", "br", "c", "cr"].contains(&word) || self.kind != Kind::Rust {
            return None;
        }
        let rest = &self.rest[len..];
        let hashes = rest.bytes().take_while(|byte| *byte == b'#').count();
        (rest[hashes..].starts_with('"') && (hashes == 0 || word.contains('r'))).then_some(hashes)
    }

    /// A literal with a prefix. Byte strings are data.
    fn raw_or_prefixed(&mut self, prefix: &str, hashes: usize) {
        let prose = !prefix.starts_with('b');
        if !prefix.contains('r') {
            return self.string(0, prose);
        }
        self.take(hashes + 1);
        let end = format!("\"{}", "#".repeat(hashes));
        let len = self.rest.find(&end).unwrap_or(self.rest.len());
        let line = self.line;
        let text = self.take(len);
        if prose {
            self.passages.push(words(text, line));
        }
        self.take(end.len().min(self.rest.len()));
    }

    /// A string literal at the front. An escape separates words.
    fn string(&mut self, start: usize, prose: bool) {
        let line = self.line;
        let bytes = self.rest.as_bytes();
        let mut at = start + 1;
        while at < bytes.len() && bytes[at] != b'"' {
            at += if bytes[at] == b'\\' { 2 } else { 1 };
        }
        let mut len = (at + 1).min(bytes.len());
        while !self.rest.is_char_boundary(len) {
            len += 1;
        }
        let text = self.take(len);
        if prose {
            let plain = text.replace("\\n", "  ").replace("\\t", "  ");
            self.passages.push(words(&plain, line));
        }
    }
}

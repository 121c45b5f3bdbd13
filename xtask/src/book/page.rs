//! Documents, with their links and headings.

use pulldown_cmark::{CodeBlockKind, Event, LinkType, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

/// Document.
pub(super) struct Page {
    text: String,
    links: Vec<Link>,
    anchors: BTreeSet<String>,
    has_commands: bool,
}

/// Link to a file, or to a heading in it.
pub(super) struct Link {
    /// Destination as it is written.
    pub(super) to: String,
    /// Position of the destination in the text.
    at: Range<usize>,
    /// Position of the whole link.
    whole: Range<usize>,
    /// Position of the link text.
    words: Range<usize>,
}

/// Reason why a link is broken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LinkError {
    #[error("the file of the link {0} does not exist")]
    File(String),
    #[error("the heading of the link {0} does not exist")]
    Heading(String),
    #[error("the link {0} leads out of the repository")]
    Outside(String),
}

impl Page {
    pub(super) fn new(text: String) -> Self {
        let (mut links, mut anchors) = (Vec::new(), BTreeSet::new());
        let mut heading: Option<String> = None;
        let mut has_commands = false;
        for (event, range) in Parser::new_ext(&text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::Link { link_type: LinkType::Inline, dest_url, .. })
                    if !dest_url.contains("://") =>
                {
                    // The destination is the last part of the link.
                    if let Some(at) = text[range.clone()].rfind(&*dest_url) {
                        let at = range.start + at;
                        let words = range.start + 1..(at - 2).max(range.start + 1);
                        links.push(Link {
                            to: dest_url.to_string(),
                            at: at..at + dest_url.len(),
                            whole: range,
                            words,
                        });
                    }
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Indented)) => has_commands = true,
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                    has_commands |= matches!(&*language, "sh" | "shell" | "bash");
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    anchors.extend(heading.take().map(|words| anchor(&words)));
                }
                Event::Text(words) | Event::Code(words) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&words);
                    }
                }
                _ => {}
            }
        }
        Self { text, links, anchors, has_commands }
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.iter()
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether the page has commands for a shell in `sh` blocks, which are not run, unlike
    /// those in `console` blocks. An indented block has no language, so it counts as well.
    pub(super) fn has_commands(&self) -> bool {
        self.has_commands
    }

    /// Returns the text as a page of the book. Links to other pages are changed to their names in
    /// the book; all other links are replaced by the link text and the name of the file.
    pub(super) fn rewritten(&self, path: &Path, chapters: &BTreeMap<PathBuf, String>) -> String {
        let mut text = self.text.clone();
        for link in self.links.iter().rev() {
            let (file, anchor) = split_anchor(&link.to);
            if file.is_empty() {
                continue;
            }
            let to = resolve(path, &link.to);
            match (chapters.get(&to), anchor) {
                (Some(name), None) => text.replace_range(link.at.clone(), name),
                (Some(name), Some(anchor)) => {
                    text.replace_range(link.at.clone(), &format!("{name}#{anchor}"));
                }
                (None, _) => {
                    let words = &self.text[link.words.clone()];
                    let name = to.to_string_lossy();
                    let named = if words.trim_matches('`') == name {
                        format!("`{name}`")
                    } else {
                        format!("{words} (`{name}`)")
                    };
                    text.replace_range(link.whole.clone(), &named);
                }
            }
        }
        text
    }
}

fn split_anchor(link: &str) -> (&str, Option<&str>) {
    link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)))
}

/// Returns the file to which a link of the document `from` refers, relative to the root. The path
/// begins with `..` if the file is outside of the root.
pub(super) fn resolve(from: &Path, link: &str) -> PathBuf {
    let (file, _) = split_anchor(link);
    if file.is_empty() {
        return from.to_owned();
    }
    let mut path = PathBuf::new();
    for component in from.parent().unwrap_or(Path::new("")).join(file).components() {
        match component {
            Component::ParentDir if path.file_name().is_some() => drop(path.pop()),
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

/// Checks a link of the document `from`.
pub(super) fn check(
    root: &Path,
    from: &Path,
    link: &str,
    documents: &BTreeMap<PathBuf, Page>,
) -> Result<(), LinkError> {
    let path = resolve(from, link);
    if path.starts_with("..") || path.is_absolute() {
        return Err(LinkError::Outside(link.to_owned()));
    }
    if !root.join(&path).exists() {
        return Err(LinkError::File(link.to_owned()));
    }
    match (split_anchor(link).1, documents.get(&path)) {
        (Some(anchor), Some(page)) if !page.anchors.contains(anchor) => {
            Err(LinkError::Heading(link.to_owned()))
        }
        _ => Ok(()),
    }
}

/// Returns the anchor that GitHub and mdBook generate for a heading: letters and digits in lower
/// case, with hyphens instead of spaces.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

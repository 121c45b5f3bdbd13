//! Patterns of `--exclude`.

use std::convert::Infallible;
use std::str::FromStr;

/// A pattern for names, or with a slash for paths below a source. `*` stands for any part of a
/// name, `?` for any byte of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern(Vec<u8>);

impl FromStr for Pattern {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.trim_end_matches('/').into()))
    }
}

impl Pattern {
    /// Returns whether the pattern matches a path below a source, or the last name of the path if
    /// the pattern has no slash.
    pub(super) fn matches(&self, path: &[u8]) -> bool {
        match self.0.strip_prefix(b"/") {
            Some(pattern) => is_match(pattern, path),
            None if self.0.contains(&b'/') => is_match(&self.0, path),
            None => {
                path.rsplit(|byte| *byte == b'/').next().is_some_and(|name| is_match(&self.0, name))
            }
        }
    }
}

fn is_match(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // Position of the last `*`, and the end of the text that it stands for.
    let mut star = None;
    while from < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(byte) if *byte == text[from] || (*byte == b'?' && text[from] != b'/') => {
                (at, from) = (at + 1, from + 1);
            }
            _ => match star {
                Some((before, end)) if text[end] != b'/' => {
                    star = Some((before, end + 1));
                    (at, from) = (before + 1, end + 1);
                }
                _ => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        pattern.parse::<Pattern>().unwrap().matches(path.as_bytes())
    }

    #[test]
    fn patterns_match_names_or_paths() {
        for (pattern, path) in [
            ("*.tmp", "a.tmp"),
            ("*.tmp", "a/b/.tmp"),
            ("target/", "a/target"),
            ("a/*/c", "a/bb/c"),
            ("/a", "a"),
            ("?b*", "x/ab"),
            ("*a*b*", "xxaxxabxx"),
            ("*", "a/b"),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("*.tmp", "a.tmp2"),
            ("*.tmp", "a.tmp/b"),
            ("a/*", "a/b/c"),
            ("a/*/c", "a/b/b/c"),
            ("a/?c", "a//c"),
            ("/a", "b/a"),
            ("", "a"),
            ("a?", "a"),
        ] {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
    }

    #[test]
    fn many_stars_take_bounded_time() {
        let pattern = "*a".repeat(200) + "b";
        assert!(!matches(&pattern, &"a".repeat(3000)));
    }
}

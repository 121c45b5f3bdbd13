//! Names and paths below a share. Both ends validate the names that they receive and send.

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Maximum length of a name in bytes (NAME_MAX of the kernel).
const MAX_NAME: usize = 255;
/// Maximum length of a path below a share, in bytes.
pub const MAX_PATH: usize = 3072;
/// Suffix of the name of an incomplete file.
const PART: &str = ".uiw-part";
/// Suffix of the name of the journal of an incomplete file.
const JOURNAL: &str = ".uiw-journal";

/// Rule that a name or path violates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// A name is empty. This includes two adjacent slashes, and the slash at the beginning of an
    /// absolute path.
    #[error("an empty name, or an absolute path")]
    Empty,
    /// A name is `.` or `..`.
    #[error("`.` or `..` as a name")]
    Dots,
    /// A name contains a slash or a zero byte.
    #[error("a slash or a zero byte in a name")]
    Byte,
    /// A name or path is too long. The value is its length in bytes.
    #[error("a name or path of {0} bytes")]
    Long(usize),
    /// The name is reserved for incomplete files.
    #[error("a name that ends in {PART} or {JOURNAL}, which incomplete files have")]
    Reserved,
}

/// One component of a path.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Vec<u8>);

impl Name {
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        match bytes {
            b"" => Err(NameError::Empty),
            b"." | b".." => Err(NameError::Dots),
            _ if bytes.len() > MAX_NAME => Err(NameError::Long(bytes.len())),
            _ if bytes.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(NameError::Byte),
            _ if is_reserved(bytes) => Err(NameError::Reserved),
            _ => Ok(Self(bytes.to_vec())),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// Returns the name of the incomplete file.
    pub fn part_name(&self) -> OsString {
        self.with_suffix(PART)
    }

    /// Like [`Name::part_name`], but the name contains the session, because two sessions must not
    /// write to the same file of a batch.
    pub fn session_part_name(&self, session: &str) -> OsString {
        self.with_suffix(&format!(".{session}{PART}"))
    }

    /// Returns the name of the journal of the incomplete file.
    pub fn journal_name(&self) -> OsString {
        self.with_suffix(JOURNAL)
    }

    /// Appends a suffix. A name that would become too long is replaced by its hash.
    fn with_suffix(&self, suffix: &str) -> OsString {
        if self.0.len() + suffix.len() <= MAX_NAME {
            OsString::from_vec([&self.0, suffix.as_bytes()].concat())
        } else {
            format!("{}{suffix}", blake3::hash(&self.0).to_hex()).into()
        }
    }
}

/// Recognizes a name that [`Name::session_part_name`] may have returned. Returns `None` for other
/// names.
///
/// Such a name can also be the [`Name::part_name`] of a file whose own name ends like a session.
/// The function therefore returns the name of the journal which that file would have.
pub fn left_by_session(name: &[u8]) -> Option<OsString> {
    let file = name.strip_suffix(PART.as_bytes())?;
    let (stem, label) = file.split_last_chunk::<9>()?;
    let is_label =
        label[0] == b'.' && label[1..].iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (!stem.is_empty() && is_label).then(|| Name(file.to_vec()).journal_name())
}

/// Returns whether a name is reserved for incomplete files and their journals.
pub fn is_reserved(name: &[u8]) -> bool {
    name.ends_with(PART.as_bytes()) || name.ends_with(JOURNAL.as_bytes())
}

/// A path below a share, or below the directory that a client copies to or from. An empty path is
/// that directory itself.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RelPath(Vec<u8>);

impl RelPath {
    /// Creates a path from names that are separated by single slashes.
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        if bytes.len() > MAX_PATH {
            return Err(NameError::Long(bytes.len()));
        }
        if !bytes.is_empty() {
            bytes.split(|byte| *byte == b'/').try_for_each(|name| Name::new(name).map(drop))?;
        }
        Ok(Self(bytes.to_vec()))
    }

    pub fn join(&self, name: &Name) -> Result<Self, NameError> {
        let mut path = self.0.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend(name.as_bytes());
        if path.len() > MAX_PATH { Err(NameError::Long(path.len())) } else { Ok(Self(path)) }
    }

    /// Returns the longest common path of both.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        let names = |path: &Self| {
            path.0.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        let (own, other) = (names(self), names(other));
        let same = own.iter().zip(&other).take_while(|(a, b)| a == b).count();
        Self(own[..same].join(&b'/'))
    }

    /// Splits the path into its parent and the last name. Returns `None` for the share itself.
    pub fn split(&self) -> Option<(Self, Name)> {
        if self.0.is_empty() {
            return None;
        }
        let slash = self.0.iter().rposition(|byte| *byte == b'/');
        let parent = slash.map_or(&[][..], |at| &self.0[..at]);
        let name = slash.map_or(&self.0[..], |at| &self.0[at + 1..]);
        Some((Self(parent.to_vec()), Name(name.to_vec())))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the path for system calls, which do not accept an empty path.
    pub fn as_path(&self) -> &Path {
        if self.0.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(&self.0)) }
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        EscapedName(self.as_path().as_os_str().as_bytes()).fmt(f)
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        EscapedName(&self.0).fmt(f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns whether a character is unsafe to print on a terminal: control and format characters
/// (Unicode categories Cc and Cf, which include changes of the text direction), separators other
/// than the space (Zl, Zp, Zs), and characters without a defined meaning (Co, Cn).
#[must_use]
pub fn is_unsafe(char: char) -> bool {
    // Characters are unsafe if the standard library escapes them. It escapes a combining mark
    // unless it follows another character.
    let mut text = *b"x\0\0\0\0";
    let len = 1 + char.encode_utf8(&mut text[1..]).len();
    let is_printed =
        || std::str::from_utf8(&text[..len]).is_ok_and(|text| text.escape_debug().count() == 2);
    !matches!(char, '\'' | '"' | '\\') && !is_printed()
}

/// A name or path for output. Unsafe characters (see [`is_unsafe`]), backslashes and bytes that are
/// not UTF-8 are escaped, so that different names have different output, and names sent by a peer
/// cannot control a terminal.
pub struct EscapedName<'a>(pub &'a [u8]);

impl fmt::Display for EscapedName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for char in chunk.valid().chars() {
                if is_unsafe(char) || char == '\\' {
                    write!(f, "{}", char.escape_default())?;
                } else {
                    f.write_char(char)?;
                }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_names_look_alike() {
        let shown = |bytes: &[u8]| Name::new(bytes).unwrap().to_string();
        let names: [(&[u8], &str); 5] = [
            (b"a\nb", r"a\nb"),
            (br"a\nb", r"a\\nb"),
            (b"a\x1b[2J", r"a\u{1b}[2J"),
            (b"a\xff\xc3", r"a\xff\xc3"),
            ("a\u{fffd} \u{e9}".as_bytes(), "a\u{fffd} \u{e9}"),
        ];
        for (name, text) in names {
            assert_eq!(shown(name), text);
        }
    }

    #[test]
    fn paths_leaving_share_rejected() {
        for (path, error) in [
            (&b".."[..], NameError::Dots),
            (b"a/../b", NameError::Dots),
            (b"a/..", NameError::Dots),
            (b"./a", NameError::Dots),
            (b"/etc/passwd", NameError::Empty),
            (b"a//b", NameError::Empty),
            (b"a/", NameError::Empty),
            (b"a\0b", NameError::Byte),
            (b"x.uiw-part", NameError::Reserved),
            (b"d/x.uiw-journal", NameError::Reserved),
            (&[b'a'; 256], NameError::Long(256)),
            (&[b'a'; 3073], NameError::Long(3073)),
        ] {
            assert_eq!(RelPath::new(path), Err(error), "{}", path.escape_ascii());
        }
        assert_eq!(Name::new(b"a/b"), Err(NameError::Byte));
        assert!(RelPath::new(b"").unwrap().is_empty());
        assert_eq!(RelPath::new(b"a/b c/..d").unwrap().to_string(), "a/b c/..d");
    }

    #[test]
    fn paths_are_joined_and_split() {
        let path = RelPath::new(b"a/b").unwrap();
        let joined = path.join(&Name::new(b"c").unwrap()).unwrap();
        assert_eq!(joined.split(), Some((path, Name::new(b"c").unwrap())));
        let one = RelPath::default().join(&Name::new(b"one").unwrap()).unwrap();
        assert_eq!(one.split(), Some((RelPath::default(), Name::new(b"one").unwrap())));
        assert_eq!(RelPath::default().split(), None);
        let deep = RelPath::new(&[b"abcdefg/".repeat(383), b"abcdefg".to_vec()].concat()).unwrap();
        assert_eq!(deep.join(&Name::new(b"c").unwrap()), Err(NameError::Long(3073)));
    }

    #[test]
    fn incomplete_files_have_own_names() {
        let name = Name::new(b"film").unwrap();
        assert_eq!(name.part_name(), "film.uiw-part");
        assert_eq!(name.journal_name(), "film.uiw-journal");
        assert_eq!(name.session_part_name("0a"), "film.0a.uiw-part");
        let long = Name::new(&[b'x'; 255]).unwrap();
        assert_eq!(long.part_name().len(), 64 + PART.len());
        assert!(is_reserved(long.part_name().as_bytes()));
        assert!(is_reserved(long.journal_name().as_bytes()));
        assert_ne!(long.part_name(), Name::new(&[b'y'; 255]).unwrap().part_name());
    }

    /// Tests one character of each range of category Cf in Unicode 16, and the first and last one
    /// of the other categories.
    #[test]
    fn characters_without_glyph_are_unsafe() {
        let unsafe_ones = "\0\t\n\x1b\x7f\u{80}\u{85}\u{9b}\u{9f}\u{a0}\u{ad}\u{600}\u{605}\u{61c}\u{6dd}\u{70f}\u{890}\u{8e2}\u{180e}\
            \u{200b}\u{200c}\u{200d}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2060}\u{2064}\u{2066}\u{2069}\u{206a}\u{206f}\
            \u{feff}\u{fff9}\u{fffb}\u{110bd}\u{13430}\u{1bca0}\u{1d173}\u{1d17a}\u{e0001}\u{e0020}\u{e007f}\u{e000}\u{10ffff}";
        for char in unsafe_ones.chars() {
            assert!(is_unsafe(char), "{char:?}");
        }
        // The last one of the first line is a combining mark.
        for char in " aZ~'\"\\\u{e9}\u{5d0}\u{627}\u{4e2d}\u{1f600}\u{301}".chars().chain('!'..='~')
        {
            assert!(!is_unsafe(char), "{char:?}");
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(RelPath::new(b"a\x1b[2Jb").unwrap().to_string(), "a\\u{1b}[2Jb");
        let turned = RelPath::new("exe.\u{202e}gpj\u{2028}\u{2066}x".as_bytes()).unwrap();
        assert_eq!(turned.to_string(), "exe.\\u{202e}gpj\\u{2028}\\u{2066}x");
        assert_eq!(
            RelPath::new("a\u{e4}\u{5d0}\u{1f600}".as_bytes()).unwrap().to_string(),
            "a\u{e4}\u{5d0}\u{1f600}"
        );
    }
}

//! The file of a capture, and limits for its size.

use crate::size;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Minimum number of bytes kept of a packet: the headers of IPv6 and TCP, and an FPDU header.
const MIN_SNAP: u32 = 96;
/// Minimum size at which a file is replaced, in bytes.
const MIN_ROTATE: u64 = 64 << 10;
/// Maximum number of files of a rotated capture.
const MAX_FILES: u32 = 1000;

/// Configuration of a capture: the file, its rotation, and the kept length of packets.
///
/// The text form is `FILE[,snap=BYTES][,rotate=BYTES[,files=N]][,append]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PcapConfig {
    pub(super) path: PathBuf,
    pub(super) snap: Option<u32>,
    pub(super) rotate: Option<Rotate>,
    pub(super) append: bool,
}

/// Condition for starting a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rotate {
    pub(super) bytes: u64,
    /// Number of files that are kept, including the current one.
    pub(super) files: u32,
}

/// Error in the text form of a [`PcapConfig`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PcapConfigError {
    /// The file name is missing.
    #[error("expected FILE[,snap=BYTES][,rotate=BYTES[,files=N]][,append]")]
    Name,
    /// A value is not a number, or is out of range.
    #[error("{key}={value}: expected {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// Given value.
        value: String,
        /// Accepted values.
        expected: &'static str,
    },
    /// A number of files was given without a size.
    #[error("files={files} needs rotate=BYTES, at which a file is full")]
    FilesWithoutRotate {
        /// Given number of files.
        files: u32,
    },
}

impl PcapConfig {
    /// Creates a configuration without limits: the file is created or truncated, and packets are
    /// not shortened.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), snap: None, rotate: None, append: false }
    }

    /// Limits the captured part of each packet to `bytes`, beginning with its IP header. The
    /// minimum is 96.
    #[must_use]
    pub fn snap(self, bytes: u32) -> Self {
        Self { snap: Some(bytes.max(MIN_SNAP)), ..self }
    }

    /// Starts a new file when the current one has `bytes` (at least 64 KiB). The previous file is
    /// renamed to `FILE.1`, that one to `FILE.2`, and so on. `files` is the number of files that
    /// are kept, including the current one, from 1 to 1,000.
    #[must_use]
    pub fn rotate(self, bytes: u64, files: u32) -> Self {
        let rotate = Rotate { bytes: bytes.max(MIN_ROTATE), files: files.clamp(1, MAX_FILES) };
        Self { rotate: Some(rotate), ..self }
    }

    /// Sets whether packets are appended to an existing file, instead of truncating it.
    #[must_use]
    pub fn append(self, append: bool) -> Self {
        Self { append, ..self }
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Returns the same configuration with another path.
    #[must_use]
    pub fn with_path(self, path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ..self }
    }

    /// Returns the path of the file that was the current one `age` rotations ago.
    pub(super) fn rotated_path(&self, age: u32) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        if age > 0 {
            path.push(format!(".{age}"));
        }
        path.into()
    }
}

impl<P: Into<PathBuf>> From<P> for PcapConfig {
    fn from(path: P) -> Self {
        Self::new(path)
    }
}

/// Formats the options in the form that can be parsed.
impl fmt::Display for PcapConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(bytes) = self.snap {
            write!(f, ",snap={bytes}")?;
        }
        if let Some(Rotate { bytes, files }) = self.rotate {
            write!(f, ",rotate={bytes},files={files}")?;
        }
        if self.append { write!(f, ",append") } else { Ok(()) }
    }
}

impl FromStr for PcapConfig {
    type Err = PcapConfigError;

    /// Parses options from the end until a word is not an option, because a path may contain
    /// commas.
    fn from_str(text: &str) -> Result<Self, PcapConfigError> {
        let (mut path, mut snap, mut rotate, mut files, mut append) =
            (text, None, None, None, false);
        while let Some((before, word)) = path.rsplit_once(',') {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let wrong =
                |key, expected| PcapConfigError::Value { key, value: value.to_owned(), expected };
            match key {
                "snap" => {
                    let bytes = size(value).and_then(|bytes| u32::try_from(bytes).ok());
                    let bytes = bytes.filter(|bytes| *bytes >= MIN_SNAP);
                    snap =
                        Some(bytes.ok_or_else(|| wrong("snap", "bytes of a packet, at least 96"))?);
                }
                "rotate" => {
                    let bytes = size(value).filter(|bytes| *bytes >= MIN_ROTATE);
                    rotate = Some(bytes.ok_or_else(|| {
                        wrong("rotate", "bytes of a file, at least 64K, such as 100M")
                    })?);
                }
                "files" => {
                    let count = value.parse().ok().filter(|count| (1..=MAX_FILES).contains(count));
                    files = Some(count.ok_or_else(|| wrong("files", "a number from 1 to 1000"))?);
                }
                "append" if value.is_empty() => append = true,
                _ => break,
            }
            path = before;
        }
        if path.is_empty() {
            return Err(PcapConfigError::Name);
        }
        let file = Self { snap, append, ..Self::new(path) };
        match (rotate, files) {
            (Some(bytes), files) => Ok(file.rotate(bytes, files.unwrap_or(2))),
            (None, Some(files)) => Err(PcapConfigError::FilesWithoutRotate { files }),
            (None, None) => Ok(file),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capture_text_parsed() {
        let parse = |text: &str| text.parse::<PcapConfig>();
        assert_eq!(parse("a,b.pcapng"), Ok(PcapConfig::new("a,b.pcapng")));
        assert_eq!(parse("a,append,snap=200"), Ok(PcapConfig::new("a").snap(200).append(true)));
        assert_eq!(parse("a,rotate=1M"), Ok(PcapConfig::new("a").rotate(1 << 20, 2)));
        for (text, said) in [
            ("", "expected FILE"),
            (",append", "expected FILE"),
            ("a,snap=10", "snap=10: expected bytes of a packet, at least 96"),
            ("a,rotate=1", "rotate=1"),
            ("a,files=0,rotate=1M", "files=0"),
            ("a,files=3", "files=3 needs rotate=BYTES"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
        let all = PcapConfig::new("a").snap(96).rotate(1 << 20, 3).append(true);
        assert_eq!(parse(&all.to_string()), Ok(all));
        assert_eq!(PcapConfig::new("a.pcapng").rotated_path(2), PathBuf::from("a.pcapng.2"));
    }
}

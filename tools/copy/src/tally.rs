//! Totals of a session: the number of files and bytes that it has moved, and their common path.

use super::names::RelPath;
use std::collections::VecDeque;

/// Number of recent files that are remembered, so that a file is counted once although each of its
/// blocks is a separate request. A client has fewer files under way at a time.
const RECENT: usize = 64;

/// Totals of a session.
#[derive(Debug, Default)]
pub struct Tally {
    /// Number of files and symbolic links.
    pub files: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// Number of removed entries.
    pub removed: u64,
    /// Number of failed requests, or failed files of a batch.
    pub errors: u64,
    /// Number of entries that failed, if the client has reported the end of its transfer.
    pub reported: Option<u64>,
    common: Option<RelPath>,
    recent: VecDeque<RelPath>,
}

impl Tally {
    /// Returns the common path of all files that were begun or removed and all directories that
    /// were created. This is the path of the entry itself if there was only one, and `None` if
    /// there was none.
    #[must_use]
    pub fn common_path(&self) -> Option<&RelPath> {
        self.common.as_ref()
    }

    /// Counts a complete file or link.
    pub(crate) fn count_file(&mut self, path: &RelPath, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
        self.extend_common_path(path);
    }

    /// Counts a block of a file, and the file if it is new.
    pub(crate) fn count_block(&mut self, path: &RelPath, bytes: u64) {
        self.bytes += bytes;
        if !self.recent.contains(path) {
            self.files += 1;
            self.extend_common_path(path);
            self.recent.truncate(RECENT - 1);
            self.recent.push_front(path.clone());
        }
    }

    /// Counts a removed entry.
    pub(crate) fn count_removal(&mut self, path: &RelPath) {
        self.removed += 1;
        self.extend_common_path(path);
    }

    /// Includes a path in the common path.
    pub(crate) fn extend_common_path(&mut self, path: &RelPath) {
        self.common = Some(match &self.common {
            Some(common) => common.common(path),
            None => path.clone(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn common_path_covers_all_files() {
        let mut tally = Tally::default();
        let mut common = |next: &str| {
            tally.count_file(&path(next), 1);
            tally.common_path().unwrap().to_string()
        };
        assert_eq!(common("a/bc/d"), "a/bc/d");
        assert_eq!(common("a/bc/d"), "a/bc/d");
        assert_eq!(common("a/bc/de"), "a/bc");
        assert_eq!(common("a/b"), "a");
        assert_eq!(common("c"), ".");
        assert_eq!((tally.files, tally.bytes), (5, 5));
    }

    #[test]
    fn blocks_of_file_count_once() {
        let mut tally = Tally::default();
        for block in 0..500 {
            tally.count_block(&path(&format!("large{}", block % 16)), 10);
        }
        assert_eq!((tally.files, tally.bytes), (16, 5000));
        (0..500).for_each(|number| tally.count_block(&path(&format!("f{number}")), 1));
        assert!(tally.recent.len() <= RECENT);
    }
}

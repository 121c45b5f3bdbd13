//! Journal of an incomplete file, with the blocks that were received and verified.
//!
//! A journal begins with `MAGIC`, the size (64 bits) and the version (16 bytes) of the source, and
//! 8 bytes of the BLAKE3 hash of these fields. A record consists of the index of the first block
//! (64 bits), the number of blocks (64 bits), the hash of the bytes of the block, and 8 bytes of
//! the hash of these fields. A record for a hole may have several blocks, and its hash is zero.
//! Every other record describes one block.
//!
//! The kernel may write data and journal in any order. After a crash, a record may be torn or lack
//! its data. A torn record ends the journal, and a record only counts after its block has been read
//! and its hash has been compared (`super::part`).

use super::meta::{Meta, Version};
use super::protocol::{FileHead, Hash};
use super::wire::{Decoder, Encoder};
use std::fs::File;
use std::io::{BufReader, Read, Result, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;

const MAGIC: &[u8; 8] = b"uiw-cp1\n";
const HEADER: usize = 8 + 8 + 16 + 8;
const RECORD: usize = 8 + 8 + 32 + 8;
/// Hash of a record for a hole.
const NO_BYTES: Hash = [0; 32];

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    file: File,
    /// Position of the next record.
    end: u64,
}

/// A record: a block and its hash, or blocks in a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    Block(u64, Hash),
    Hole(Range<u64>),
}

/// Appends 8 bytes of the hash of the encoded fields.
fn seal(mut out: Encoder) -> Vec<u8> {
    let check = blake3::hash(&out.0);
    out.fixed(&check.as_bytes()[..8]);
    out.0
}

/// Returns the fields before the 8 bytes of the hash, or `None` if the hash does not match.
fn sealed(bytes: &[u8]) -> Option<&[u8]> {
    let (front, check) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
    (blake3::hash(front).as_bytes()[..8] == *check).then_some(front)
}

fn header(size: u64, version: &Version) -> Vec<u8> {
    let mut out = Encoder::default();
    out.fixed(MAGIC).u64(size).fixed(version);
    seal(out)
}

impl Record {
    fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        match self {
            Self::Block(index, hash) => out.u64(*index).u64(1).fixed(hash),
            Self::Hole(blocks) => {
                out.u64(blocks.start).u64(blocks.end.saturating_sub(blocks.start)).fixed(&NO_BYTES)
            }
        };
        seal(out)
    }

    fn decode(bytes: &[u8], blocks: u64) -> Option<Self> {
        let mut from = Decoder::new(sealed(bytes)?);
        let (first, count) = (from.u64("").ok()?, from.u64("").ok()?);
        let hash: Hash = from.array("").ok()?;
        let end = first.checked_add(count).filter(|end| *end <= blocks && count > 0)?;
        match hash {
            NO_BYTES => Some(Self::Hole(first..end)),
            _ if count == 1 => Some(Self::Block(first, hash)),
            _ => None,
        }
    }
}

impl Journal {
    /// Wraps an open file. [`Journal::restart`] or [`Journal::replay`] must precede the first
    /// [`Journal::append`].
    pub fn new(file: File) -> Self {
        Self { file, end: HEADER as u64 }
    }

    /// Returns whether the journal is empty.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.file.metadata()?.len() == 0)
    }

    /// Returns whether the journal belongs to a source of this size and version.
    pub fn matches(&mut self, meta: &Meta) -> Result<bool> {
        let mut found = Vec::new();
        self.file.seek(SeekFrom::Start(0))?;
        (&self.file).take(HEADER as u64).read_to_end(&mut found)?;
        Ok(found == header(meta.size, &meta.version))
    }

    /// Replaces the journal by an empty one for a source of this size and version.
    pub fn restart(&mut self, meta: &Meta) -> Result<()> {
        self.file.set_len(0)?;
        self.end = HEADER as u64;
        self.file.write_all_at(&header(meta.size, &meta.version), 0)
    }

    /// Calls `each` with every valid record, and truncates the journal after the last of them. We
    /// never write more than about twice as many records as the file has blocks, so further records
    /// are removed.
    pub fn replay(
        &mut self,
        file: &FileHead,
        mut each: impl FnMut(Record) -> Result<()>,
    ) -> Result<()> {
        self.file.seek(SeekFrom::Start(HEADER as u64))?;
        self.end = HEADER as u64;
        let mut from = BufReader::new(&self.file);
        let mut record = [0; RECORD];
        let most = HEADER as u64 + RECORD as u64 * (2 * file.blocks() + 64);
        while self.end < most && from.read_exact(&mut record).is_ok() {
            let Some(record) = Record::decode(&record, file.blocks()) else { break };
            each(record)?;
            self.end += RECORD as u64;
        }
        self.file.set_len(self.end)
    }

    /// Appends a record. After an error, the next record overwrites the bytes that were written:
    /// records after a torn one would not be found.
    pub fn append(&mut self, record: &Record) -> Result<()> {
        self.file.write_all_at(&record.encode(), self.end)?;
        self.end += RECORD as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::meta::{EntryKind, FileTime};
    use super::super::names::RelPath;
    use super::*;
    use std::io::Write;

    fn file() -> FileHead {
        let meta = Meta {
            kind: EntryKind::File,
            mode: 0o600,
            size: 10 << 20,
            mtime: FileTime::default(),
            version: [3; 16],
            sparse: false,
            target: Vec::new(),
        };
        FileHead { path: RelPath::new(b"x").unwrap(), meta }
    }

    /// A file without a name.
    fn nameless() -> File {
        let path =
            std::env::temp_dir().join(format!("uiw-journal-{:x}", getrandom::u64().unwrap()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    fn replay(journal: &mut Journal) -> Vec<Record> {
        let mut records = Vec::new();
        let replayed = journal.replay(&file(), |record| {
            records.push(record);
            Ok(())
        });
        replayed.unwrap();
        records
    }

    #[test]
    fn records_read_up_to_torn_one() {
        let records = [Record::Block(3, [1; 32]), Record::Hole(4..9), Record::Block(0, [2; 32])];
        for cut in 0..RECORD as u64 {
            let mut journal = Journal::new(nameless());
            journal.restart(&file().meta).unwrap();
            records.iter().for_each(|record| journal.append(record).unwrap());
            let len = journal.file.metadata().unwrap().len();
            assert_eq!(len, (HEADER + 3 * RECORD) as u64);
            journal.file.set_len(len - cut).unwrap();
            assert!(journal.matches(&file().meta).unwrap());
            let whole = if cut == 0 { 3 } else { 2 };
            assert_eq!(replay(&mut journal), records[..whole]);
            // Records appended after a damaged one are found, too.
            journal.append(&Record::Block(9, [5; 32])).unwrap();
            assert_eq!(replay(&mut journal).last(), Some(&Record::Block(9, [5; 32])));
        }
    }

    #[test]
    fn partial_write_overwritten_by_next_record() {
        let mut journal = Journal::new(nameless());
        journal.restart(&file().meta).unwrap();
        journal.append(&Record::Block(3, [1; 32])).unwrap();
        // Write as much as fits on a full disk.
        journal.file.seek(SeekFrom::End(0)).unwrap();
        journal.file.write_all(&Record::Block(4, [2; 32]).encode()[..20]).unwrap();
        journal.append(&Record::Block(5, [3; 32])).unwrap();
        assert_eq!(replay(&mut journal), [Record::Block(3, [1; 32]), Record::Block(5, [3; 32])]);
    }

    #[test]
    fn journal_of_other_source_ignored() {
        let mut journal = Journal::new(nameless());
        assert!(!journal.matches(&file().meta).unwrap(), "an empty one");
        journal.restart(&file().meta).unwrap();
        let version = Meta { version: [4; 16], ..file().meta };
        let size = Meta { size: 1, ..file().meta };
        assert!(!journal.matches(&version).unwrap() && !journal.matches(&size).unwrap());
    }

    #[test]
    fn invalid_records_end_journal() {
        for bad in
            [Record::Block(10, [1; 32]), Record::Hole(8..11), Record::Block(u64::MAX, [1; 32])]
        {
            let mut journal = Journal::new(nameless());
            journal.restart(&file().meta).unwrap();
            journal.append(&bad).unwrap();
            assert_eq!(replay(&mut journal), []);
        }
        let mut bytes = Record::Block(1, [1; 32]).encode();
        bytes[20] ^= 1;
        assert_eq!(Record::decode(&bytes, 10), None);
    }
}

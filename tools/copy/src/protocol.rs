//! Version 1 of the protocol of `uiw cp`.
//!
//! A client requests the service `uiw-cp/1` in the private data of its MPA Request (`CpOrder` in
//! the program `uiw`). The order names a share, a direction, the token of the client's session, a
//! number of slots, and the client's memory for bytes from the server. All connections of one run
//! of `uiw cp` (the stripes) have the same token. The private data of the server (`CpReply`) names
//! its memory for bytes from the client.
//!
//! # Messages
//!
//! * The client sends requests, and the server sends one reply to each, in any order. Both are
//!   Sends of at most [`MESSAGE`] bytes: the number of a slot (the tag, 16 bits), one byte that
//!   identifies the message, and its fields.
//! * A slot has [`SLOT`] bytes at both ends. A request occupies the slot of its tag until the reply
//!   has arrived, so there are never more requests under way than slots. The server ends a
//!   connection on which more messages wait than it has slots.
//! * A client that asks for them in its order gets heartbeats ([`Reply::Working`]) at least every
//!   second while the server works on a request or receives the bytes of one.
//! * Bytes of files, batches and lists are sent by RDMA Writes into the slot with the same number
//!   at the other end, followed by a message that contains their length. RDMAP delivers that
//!   message only after the Write before it has been placed (RFC 5040 section 5.5).
//! * The receiver copies a slot before it examines the bytes, because the peer could overwrite the
//!   slot.
//! * [`Request::End`], which reports the end of a transfer on each connection, has no reply.
//! * Every message is decoded strictly: an unknown message number, a value out of range, a name
//!   that violates a rule, or a wrong length ends the connection. The state of the server does not
//!   depend on the order of requests, and each request may be repeated. A client whose connection
//!   broke therefore repeats unanswered requests on any connection.
//!
//! # Files
//!
//! * The bytes of files are sent in blocks of [`BLOCK`] bytes, or in batches of complete small
//!   files. Each block or batch has a BLAKE3 hash, which the reading end computes and the writing
//!   end verifies.
//! * The end that reads a file identifies its contents by a version: a hash of size, modification
//!   time, change time and inode number. Each block belongs to one version. A block of another
//!   version is refused, and the file is started again.
//! * Until a file is complete, it is written as `NAME.uiw-part`, with a journal of its verified
//!   blocks in `NAME.uiw-journal` (see `super::journal`). Then it is synced and renamed. Files of a
//!   batch are written under temporary names, synced by one syncfs(2), renamed, and synced again.
//! * Successive blocks in a hole are described by one message.
//! * Nothing outside the share is opened (see `super::root`). Both ends validate names (see
//!   `super::names`).

use super::meta::{Entry, EntryKind, FileTime, Meta, decode_mode, decode_target};
use super::names::{RelPath, is_unsafe};
use super::wire::{Decoder, Encoder, Result, WireError};
use std::ops::Range;

/// Maximum length of a request or reply, in bytes.
pub const MESSAGE: u32 = 16 << 10;
/// Size in bytes of a slot, which is also the size of a block of a file.
pub const SLOT: u32 = 1 << 20;
/// Size of a block in bytes. The last block of a file may be shorter.
pub const BLOCK: u64 = SLOT as u64;
/// Maximum number of slots of a connection.
pub const MAX_SLOTS: u16 = 32;
/// Maximum number of files in a batch.
pub const MAX_BATCH: u16 = 512;
/// Maximum number of ranges in a reply. The next reply lists further missing ranges.
pub const MAX_RANGES: usize = 512;
/// Revision of the protocol within its version. The server sends its revision in its reply to the
/// order. Revision 1 adds [`Request::End`] and [`Request::Remove`].
pub const REVISION: u8 = 1;
/// Maximum length of the text of a failure, in bytes.
const MAX_TEXT: usize = 512;

/// BLAKE3 hash.
pub type Hash = [u8; 32];

/// Description of a file to be written: its path and metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHead {
    pub path: RelPath,
    pub meta: Meta,
}

/// Rule for creating a missing directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateMode {
    No,
    /// Creates it without rights for others, until [`Request::SetDirectory`] sets its mode.
    Private,
    /// Creates it with the default mode of the server's user.
    Usual,
}

/// Request of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Returns the metadata of the entry at a path.
    Stat { path: RelPath },
    /// Returns the entries of a directory after the name `after`.
    List { path: RelPath, after: Vec<u8>, create: CreateMode },
    /// Begins a file, or continues an incomplete file of the same version.
    Open { file: FileHead },
    /// Stores a block of a file, whose `len` bytes are in the slot.
    Put { file: FileHead, index: u64, len: u32, hash: Hash },
    /// Records blocks of a file that lie in a hole.
    Hole { file: FileHead, blocks: Range<u64> },
    /// Renames the complete file to its final name.
    Finish { file: FileHead },
    /// Stores `count` complete files, which are in `len` bytes of the slot.
    PutBatch { count: u16, len: u32, hash: Hash },
    /// Creates a symbolic link.
    Symlink { path: RelPath, target: Vec<u8>, mtime: FileTime },
    /// Sets mode and modification time of a directory whose entries are complete.
    SetDirectory { path: RelPath, mode: u16, mtime: FileTime },
    /// Returns a block of a file.
    Get { path: RelPath, version: [u8; 16], index: u64 },
    /// Returns complete files, as many of them as fit into a slot.
    GetBatch { paths: Vec<RelPath> },
    /// Reports the end of the transfer, with the number of failed entries. This request has no
    /// reply, and is only sent to servers of [`REVISION`] 1.
    End { failed: u64 },
    /// Removes an entry, or a directory with everything in it. Only for servers of [`REVISION`] 1.
    Remove { path: RelPath },
}

/// Reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Done,
    /// The path does not exist.
    Absent,
    /// Metadata of the entry.
    Found(Meta),
    /// `len` bytes of entries are in the slot. `more` means that further entries follow the last
    /// one.
    Listed {
        len: u32,
        more: bool,
    },
    /// A complete copy of the file exists already.
    Complete,
    /// These blocks are missing, and possibly others.
    Missing(Vec<Range<u64>>),
    /// The file must be opened again, because it has another version or is not open.
    Reopen,
    /// `len` bytes of a block are in the slot.
    Block {
        len: u32,
        hash: Hash,
    },
    /// The block lies in a hole that ends at this block.
    HoleUntil(u64),
    /// The source has another version now, with this metadata.
    Changed(Meta),
    /// `count` records are in `len` bytes of the slot.
    Batch {
        count: u16,
        len: u32,
        hash: Hash,
    },
    /// The batch is stored, except for these files: position in the batch and error number.
    Stored(Vec<(u16, u16)>),
    /// The request failed, with a Linux error number and a text.
    Failed {
        errno: u16,
        text: String,
    },
    /// Heartbeat, which is not a reply: the server works on a request or receives the bytes of one.
    /// Sent at least every second to clients that have asked for it in their order.
    Working,
}

impl FileHead {
    /// Returns the number of blocks of the file.
    pub fn blocks(&self) -> u64 {
        self.meta.size.div_ceil(BLOCK)
    }

    /// Returns the length of a block in bytes.
    pub fn block_len(&self, index: u64) -> u64 {
        self.meta.size.saturating_sub(index.saturating_mul(BLOCK)).min(BLOCK)
    }

    /// Returns the number of bytes in a range of blocks.
    pub fn range_len(&self, blocks: &Range<u64>) -> u64 {
        let at = |block: u64| block.saturating_mul(BLOCK).min(self.meta.size);
        at(blocks.end).saturating_sub(at(blocks.start))
    }

    fn encode<'a>(&self, out: &'a mut Encoder) -> &'a mut Encoder {
        self.meta.encode(out.counted(self.path.as_bytes()))
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let path = decode_entry_path(from)?;
        let meta = Meta::decode(from)?;
        if meta.kind != EntryKind::File {
            return Err(WireError::value("the kind of a file", meta.kind as u64));
        }
        Ok(Self { path, meta })
    }
}

fn decode_path(from: &mut Decoder<'_>) -> Result<RelPath> {
    Ok(RelPath::new(from.counted("a path")?)?)
}

/// Decodes a path that is not the share itself.
fn decode_entry_path(from: &mut Decoder<'_>) -> Result<RelPath> {
    let path = decode_path(from)?;
    if path.is_empty() { Err(super::names::NameError::Empty.into()) } else { Ok(path) }
}

/// Decodes the number of bytes in a slot.
fn decode_slot_len(from: &mut Decoder<'_>) -> Result<u32> {
    match from.u32("a length")? {
        len if len <= SLOT => Ok(len),
        len => Err(WireError::value("a length", len)),
    }
}

fn decode_range(from: &mut Decoder<'_>) -> Result<Range<u64>> {
    let (start, end) = (from.u64("a range of blocks")?, from.u64("a range of blocks")?);
    if start < end && end <= super::meta::MAX_SIZE / BLOCK {
        Ok(start..end)
    } else {
        Err(WireError::value("the end of a range of blocks", end))
    }
}

fn encode_range<'a>(range: &Range<u64>, out: &'a mut Encoder) -> &'a mut Encoder {
    out.u64(range.start).u64(range.end)
}

/// Decodes the number of files in a batch.
fn decode_batch_count(from: &mut Decoder<'_>) -> Result<u16> {
    match from.u16("the files of a batch")? {
        count @ 1..=MAX_BATCH => Ok(count),
        count => Err(WireError::value("the files of a batch", count)),
    }
}

impl Request {
    /// Encodes the request as a message for the slot `tag`.
    pub fn encode(&self, tag: u16) -> Vec<u8> {
        let mut message = Encoder::default();
        let out = message.u16(tag).u8(self.number());
        match self {
            Self::Stat { path } | Self::Remove { path } => out.counted(path.as_bytes()),
            Self::List { path, after, create } => {
                out.counted(path.as_bytes()).counted(after).u8(*create as u8)
            }
            Self::Open { file } | Self::Finish { file } => file.encode(out),
            Self::Put { file, index, len, hash } => {
                file.encode(out).u64(*index).u32(*len).fixed(hash)
            }
            Self::Hole { file, blocks } => encode_range(blocks, file.encode(out)),
            Self::PutBatch { count, len, hash } => out.u16(*count).u32(*len).fixed(hash),
            Self::Symlink { path, target, mtime } => {
                mtime.encode(out.counted(path.as_bytes()).counted(target))
            }
            Self::SetDirectory { path, mode, mtime } => {
                mtime.encode(out.counted(path.as_bytes()).u16(*mode))
            }
            Self::Get { path, version, index } => {
                out.counted(path.as_bytes()).fixed(version).u64(*index)
            }
            Self::GetBatch { paths } => paths
                .iter()
                .fold(out.u16(paths.len() as u16), |out, path| out.counted(path.as_bytes())),
            Self::End { failed } => out.u64(*failed),
        };
        message.0
    }

    fn number(&self) -> u8 {
        match self {
            Self::Stat { .. } => 1,
            Self::List { .. } => 2,
            Self::Open { .. } => 3,
            Self::Put { .. } => 4,
            Self::Hole { .. } => 5,
            Self::Finish { .. } => 6,
            Self::PutBatch { .. } => 7,
            Self::Symlink { .. } => 8,
            Self::SetDirectory { .. } => 9,
            Self::Get { .. } => 10,
            Self::GetBatch { .. } => 11,
            Self::End { .. } => 12,
            Self::Remove { .. } => 13,
        }
    }

    /// Decodes a request and its tag.
    pub fn decode(bytes: &[u8]) -> Result<(u16, Self)> {
        let mut from = Decoder::new(bytes);
        let tag = from.u16("a tag")?;
        let request = match from.u8("the number of a request")? {
            1 => Self::Stat { path: decode_path(&mut from)? },
            2 => {
                let path = decode_path(&mut from)?;
                let after = from.counted("a name")?.to_vec();
                let create = match from.u8("the mark of a directory to be made")? {
                    0 => CreateMode::No,
                    1 => CreateMode::Private,
                    2 => CreateMode::Usual,
                    other => {
                        return Err(WireError::value("the mark of a directory to be made", other));
                    }
                };
                Self::List { path, after, create }
            }
            3 => Self::Open { file: FileHead::decode(&mut from)? },
            4 => Self::decode_put(&mut from)?,
            5 => {
                let file = FileHead::decode(&mut from)?;
                let blocks = decode_range(&mut from)?;
                if blocks.end > file.blocks() {
                    return Err(WireError::value("the end of a hole", blocks.end));
                }
                Self::Hole { file, blocks }
            }
            6 => Self::Finish { file: FileHead::decode(&mut from)? },
            7 => {
                let count = decode_batch_count(&mut from)?;
                Self::PutBatch {
                    count,
                    len: decode_slot_len(&mut from)?,
                    hash: from.array("a hash")?,
                }
            }
            8 => {
                let path = decode_entry_path(&mut from)?;
                Self::Symlink {
                    path,
                    target: decode_target(&mut from, EntryKind::Symlink)?,
                    mtime: FileTime::decode(&mut from)?,
                }
            }
            9 => {
                let path = decode_path(&mut from)?;
                let mode = decode_mode(&mut from)?;
                Self::SetDirectory { path, mode, mtime: FileTime::decode(&mut from)? }
            }
            10 => {
                let path = decode_entry_path(&mut from)?;
                Self::Get { path, version: from.array("a version")?, index: from.u64("a block")? }
            }
            11 => {
                let count = decode_batch_count(&mut from)?;
                let paths: Result<_> = (0..count).map(|_| decode_entry_path(&mut from)).collect();
                Self::GetBatch { paths: paths? }
            }
            12 => Self::End { failed: from.u64("the number of failed entries")? },
            13 => Self::Remove { path: decode_entry_path(&mut from)? },
            other => {
                return Err(WireError::value("the number of a request", other));
            }
        };
        from.finish()?;
        Ok((tag, request))
    }

    fn decode_put(from: &mut Decoder<'_>) -> Result<Self> {
        let file = FileHead::decode(from)?;
        let index = from.u64("a block")?;
        let len = from.u32("a length")?;
        if len == 0 || u64::from(len) != file.block_len(index) {
            return Err(WireError::value("the length of a block", len));
        }
        Ok(Self::Put { file, index, len, hash: from.array("a hash")? })
    }

    /// Returns the path of the request, or `None` if it concerns several paths or none.
    #[must_use]
    pub fn path(&self) -> Option<RelPath> {
        match self {
            Self::Stat { path }
            | Self::List { path, .. }
            | Self::Symlink { path, .. }
            | Self::SetDirectory { path, .. }
            | Self::Remove { path }
            | Self::Get { path, .. } => Some(path.clone()),
            Self::Open { file }
            | Self::Put { file, .. }
            | Self::Hole { file, .. }
            | Self::Finish { file } => Some(file.path.clone()),
            Self::PutBatch { .. } | Self::GetBatch { .. } | Self::End { .. } => None,
        }
    }

    /// Returns whether the request changes the share.
    pub fn writes(&self) -> bool {
        match self {
            Self::Stat { .. } | Self::Get { .. } | Self::GetBatch { .. } | Self::End { .. } => {
                false
            }
            Self::List { create, .. } => *create != CreateMode::No,
            _ => true,
        }
    }
}

impl Reply {
    /// Encodes the reply as a message for the slot `tag`.
    pub fn encode(&self, tag: u16) -> Vec<u8> {
        let mut message = Encoder::default();
        let out = message.u16(tag);
        match self {
            Self::Done => out.u8(1),
            Self::Absent => out.u8(2),
            Self::Found(meta) => meta.encode(out.u8(3)),
            Self::Listed { len, more } => out.u8(4).u32(*len).u8((*more).into()),
            Self::Complete => out.u8(5),
            Self::Missing(ranges) => {
                let out = out.u8(6).u16(ranges.len() as u16);
                ranges.iter().fold(out, |out, range| encode_range(range, out))
            }
            Self::Reopen => out.u8(7),
            Self::Block { len, hash } => out.u8(8).u32(*len).fixed(hash),
            Self::HoleUntil(end) => out.u8(9).u64(*end),
            Self::Changed(meta) => meta.encode(out.u8(10)),
            Self::Batch { count, len, hash } => out.u8(11).u16(*count).u32(*len).fixed(hash),
            Self::Stored(failures) => {
                let out = out.u8(12).u16(failures.len() as u16);
                failures.iter().fold(out, |out, (position, errno)| out.u16(*position).u16(*errno))
            }
            Self::Failed { errno, text } => {
                let end = text.floor_char_boundary(MAX_TEXT);
                out.u8(13).u16(*errno).counted(&text.as_bytes()[..end])
            }
            Self::Working => out.u8(14),
        };
        message.0
    }

    /// Decodes a reply and its tag.
    pub fn decode(bytes: &[u8]) -> Result<(u16, Self)> {
        let mut from = Decoder::new(bytes);
        let tag = from.u16("a tag")?;
        let reply = match from.u8("the number of a reply")? {
            1 => Self::Done,
            2 => Self::Absent,
            3 => Self::Found(Meta::decode(&mut from)?),
            4 => Self::Listed {
                len: decode_slot_len(&mut from)?,
                more: from.flag("the mark of a longer list")?,
            },
            5 => Self::Complete,
            6 => {
                let count = from.u16("the number of ranges")?;
                let ranges: Result<Vec<_>> = (0..count).map(|_| decode_range(&mut from)).collect();
                let ranges = ranges?;
                // The ranges must not overlap, otherwise a server could make the client send a file
                // many times.
                if let Some([_, next]) = ranges.windows(2).find(|pair| pair[1].start < pair[0].end)
                {
                    return Err(WireError::value("the start of a range of blocks", next.start));
                }
                Self::Missing(ranges)
            }
            7 => Self::Reopen,
            8 => Self::Block { len: decode_slot_len(&mut from)?, hash: from.array("a hash")? },
            9 => Self::HoleUntil(from.u64("the end of a hole")?),
            10 => Self::Changed(Meta::decode(&mut from)?),
            11 => {
                let count = decode_batch_count(&mut from)?;
                Self::Batch { count, len: decode_slot_len(&mut from)?, hash: from.array("a hash")? }
            }
            12 => {
                let count = from.u16("the number of failures")?;
                let failures: Result<_> = (0..count)
                    .map(|_| Ok((from.u16("a position in a batch")?, from.u16("an error number")?)))
                    .collect();
                Self::Stored(failures?)
            }
            13 => {
                let errno = from.u16("an error number")?;
                let text = String::from_utf8_lossy(from.counted("a text")?);
                // The text of a peer must not control a terminal.
                let text = text.chars().filter(|char| !is_unsafe(*char)).take(MAX_TEXT).collect();
                Self::Failed { errno, text }
            }
            14 => Self::Working,
            other => {
                return Err(WireError::value("the number of a reply", other));
            }
        };
        from.finish()?;
        Ok((tag, reply))
    }
}

/// Encodes entries, which the caller has limited to those that fit into a slot.
pub fn encode_entries(entries: &[Entry]) -> Vec<u8> {
    let mut out = Encoder::default();
    entries.iter().for_each(|entry| entry.encode(&mut out));
    out.0
}

/// Decodes the entries in `bytes`, which contains nothing else.
pub fn decode_entries(bytes: &[u8]) -> Result<Vec<Entry>> {
    let mut from = Decoder::new(bytes);
    let mut entries = Vec::new();
    while !from.is_empty() {
        entries.push(Entry::decode(&mut from)?);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::super::names::Name;
    use super::*;
    use proptest::prelude::*;

    fn meta(kind: EntryKind) -> Meta {
        Meta {
            kind,
            mode: 0o640,
            size: if kind == EntryKind::File { 5 << 20 } else { 0 },
            mtime: FileTime { seconds: -5, nanos: 999_999_999 },
            version: [7; 16],
            sparse: true,
            target: match kind {
                EntryKind::Symlink => b"../x".to_vec(),
                EntryKind::Special => b"Stale file handle".to_vec(),
                EntryKind::File | EntryKind::Directory => Vec::new(),
            },
        }
    }

    fn requests() -> Vec<Request> {
        let path = RelPath::new(b"dir/file").unwrap();
        let file = FileHead { path: path.clone(), meta: meta(EntryKind::File) };
        let mtime = FileTime { seconds: 1, nanos: 2 };
        vec![
            Request::Stat { path: RelPath::default() },
            Request::List { path: path.clone(), after: b"x".to_vec(), create: CreateMode::Usual },
            Request::Open { file: file.clone() },
            Request::Put { file: file.clone(), index: 4, len: 1 << 20, hash: [1; 32] },
            Request::Hole { file: file.clone(), blocks: 1..5 },
            Request::Finish { file },
            Request::PutBatch { count: 3, len: 99, hash: [2; 32] },
            Request::Symlink { path: path.clone(), target: b"/etc".to_vec(), mtime },
            Request::SetDirectory { path: path.clone(), mode: 0o755, mtime },
            Request::Get { path: path.clone(), version: [3; 16], index: 7 },
            Request::GetBatch { paths: vec![path.clone(), path] },
            Request::End { failed: 1 },
            Request::Remove { path: RelPath::new(b"a/b").unwrap() },
        ]
    }

    fn replies() -> Vec<Reply> {
        vec![
            Reply::Done,
            Reply::Absent,
            Reply::Found(meta(EntryKind::Symlink)),
            Reply::Listed { len: SLOT, more: true },
            Reply::Complete,
            Reply::Missing(vec![0..1, 5..9]),
            Reply::Reopen,
            Reply::Block { len: 5, hash: [9; 32] },
            Reply::HoleUntil(77),
            Reply::Changed(meta(EntryKind::Special)),
            Reply::Batch { count: 1, len: 1, hash: [4; 32] },
            Reply::Stored(vec![(0, 28), (511, 13)]),
            Reply::Failed { errno: 13, text: "no".into() },
        ]
    }

    #[test]
    fn messages_survive_round_trip() {
        for (tag, request) in requests().into_iter().enumerate() {
            let bytes = request.encode(tag as u16);
            assert_eq!(Request::decode(&bytes), Ok((tag as u16, request)));
            for end in 0..bytes.len() {
                assert!(Request::decode(&bytes[..end]).is_err(), "{tag} cut at {end}");
            }
            assert_eq!(Request::decode(&[bytes, vec![0]].concat()), Err(WireError::Trailing(1)));
        }
        for (tag, reply) in replies().into_iter().enumerate() {
            let bytes = reply.encode(tag as u16);
            assert_eq!(Reply::decode(&bytes), Ok((tag as u16, reply)));
            for end in 0..bytes.len() {
                assert!(Reply::decode(&bytes[..end]).is_err(), "{tag} cut at {end}");
            }
            assert_eq!(Reply::decode(&[bytes, vec![0]].concat()), Err(WireError::Trailing(1)));
        }
    }

    #[test]
    fn longest_messages_fit() {
        let path = RelPath::new(&[b"abcdefg/".repeat(383), b"abcdefg".to_vec()].concat()).unwrap();
        let longest =
            Request::Symlink { path, target: vec![b'x'; 4095], mtime: FileTime::default() };
        assert!(longest.encode(0).len() <= MESSAGE as usize);
        let ranges = Reply::Missing((0..MAX_RANGES as u64).map(|at| 2 * at..2 * at + 1).collect());
        assert!(ranges.encode(0).len() <= MESSAGE as usize);
        let failures = Reply::Stored(vec![(0, 0); MAX_BATCH.into()]);
        assert!(failures.encode(0).len() <= MESSAGE as usize);
        let text = "ä".repeat(1000);
        assert!(Reply::Failed { errno: 1, text }.encode(0).len() < 600);
    }

    #[test]
    fn invalid_values_refused() {
        let file = FileHead { path: RelPath::new(b"a").unwrap(), meta: meta(EntryKind::File) };
        let mut large = file.clone();
        large.meta.size = u64::MAX;
        let mut setuid = file.clone();
        setuid.meta.mode = 0o4755;
        let mut directory = file.clone();
        directory.meta = meta(EntryKind::Directory);
        for request in [
            Request::Open { file: large },
            Request::Open { file: setuid },
            Request::Open { file: directory },
            Request::Open { file: FileHead { path: RelPath::default(), ..file.clone() } },
            Request::Put { file: file.clone(), index: 5, len: 1, hash: [0; 32] },
            Request::Put { file: file.clone(), index: u64::MAX, len: 1 << 20, hash: [0; 32] },
            Request::Put { file: file.clone(), index: 0, len: 5, hash: [0; 32] },
            Request::Hole { file: file.clone(), blocks: 4..6 },
            #[expect(clippy::reversed_empty_ranges, reason = "a peer may send one")]
            Request::Hole { file, blocks: 3..2 },
            Request::PutBatch { count: 0, len: 1, hash: [0; 32] },
            Request::PutBatch { count: 1, len: SLOT + 1, hash: [0; 32] },
            Request::SetDirectory {
                path: RelPath::default(),
                mode: 0o1777,
                mtime: FileTime::default(),
            },
            Request::GetBatch { paths: Vec::new() },
            Request::Remove { path: RelPath::default() },
        ] {
            assert!(Request::decode(&request.encode(0)).is_err(), "{request:?}");
        }
    }

    #[test]
    fn lists_survive_round_trip() {
        let entry =
            |name: &[u8]| Entry { name: Name::new(name).unwrap(), meta: meta(EntryKind::File) };
        let entries = [entry(b"a"), entry(&[b'x'; 200])];
        let bytes = encode_entries(&entries);
        assert_eq!(decode_entries(&bytes).unwrap(), entries);
        assert!(decode_entries(&bytes[..bytes.len() - 1]).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), number in 0u8..15) {
            let _ = (Request::decode(&bytes), Reply::decode(&bytes), decode_entries(&bytes));
            let mut named = bytes;
            if let Some(byte) = named.get_mut(2) {
                *byte = number;
            }
            let _ = (Request::decode(&named), Reply::decode(&named));
        }
    }
}

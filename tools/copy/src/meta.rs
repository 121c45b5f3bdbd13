//! Metadata of files, directories and symbolic links that is copied.

use super::names::Name;
use super::wire::{Decoder, Encoder, Result, WireError};
use rustix::fs::{FileType, Stat, Timespec, Timestamps};

/// Maximum length of the target of a symbolic link, in bytes.
const MAX_TARGET: usize = 4095;
/// Maximum size of a file in bytes: 64 TiB. A larger one counts as [`EntryKind::Special`].
pub const MAX_SIZE: u64 = 64 << 40;
/// Permission bits that are copied. Setuid, setgid and the sticky bit are not.
const MODE: u16 = 0o777;

/// Type of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    /// A device, FIFO or socket, a file of more than [`MAX_SIZE`], or an entry that cannot be
    /// examined. It is never copied.
    Special,
}

/// A modification time in the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FileTime {
    pub seconds: i64,
    pub nanos: u32,
}

/// Version of a source file, which changes with its contents. The end that reads the source creates
/// and compares versions; for the other end they are opaque.
pub type Version = [u8; 16];

/// Metadata of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    pub kind: EntryKind,
    pub mode: u16,
    /// Size of a file in bytes, 0 for other entries.
    pub size: u64,
    pub mtime: FileTime,
    pub version: Version,
    /// True if fewer bytes are allocated than the size of the file.
    pub sparse: bool,
    /// Target of a symbolic link, or the reason why a special entry cannot be examined. Empty for
    /// other entries.
    pub target: Vec<u8>,
}

/// An entry of a directory, with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Name,
    pub meta: Meta,
}

impl Meta {
    /// Returns the metadata of an entry that cannot be examined because of `error`.
    pub(crate) fn unreadable(error: &std::io::Error) -> Self {
        Self {
            kind: EntryKind::Special,
            mode: 0,
            size: 0,
            mtime: FileTime::default(),
            version: Version::default(),
            sparse: false,
            target: error.to_string().into_bytes(),
        }
    }

    /// Converts the result of stat(2).
    pub fn from_stat(stat: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if stat.st_size.cast_unsigned() <= MAX_SIZE => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => EntryKind::Symlink,
            _ => EntryKind::Special,
        };
        let size = if kind == EntryKind::File { stat.st_size.max(0).cast_unsigned() } else { 0 };
        let mut hash = blake3::Hasher::new();
        for part in [stat.st_size, stat.st_mtime, stat.st_ctime] {
            hash.update(&part.to_be_bytes());
        }
        for part in [
            u64::from(stat.st_mtime_nsec as u32),
            u64::from(stat.st_ctime_nsec as u32),
            stat.st_ino,
        ] {
            hash.update(&part.to_be_bytes());
        }
        let mut version = Version::default();
        version.copy_from_slice(&hash.finalize().as_bytes()[..16]);
        Self {
            kind,
            mode: stat.st_mode as u16 & MODE,
            size,
            mtime: FileTime { seconds: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 },
            version,
            sparse: kind == EntryKind::File
                && (stat.st_blocks.max(0).cast_unsigned()).saturating_mul(512) < size,
            target: Vec::new(),
        }
    }

    /// Returns whether an entry with the metadata `other` counts as an up-to-date copy of this one.
    pub fn is_copied_by(&self, other: &Self) -> bool {
        let same = self.kind == other.kind && self.target == other.target;
        same && self.mtime.is_stored_as(other.mtime)
            && self.size == other.size
            && (self.kind == EntryKind::Symlink || self.mode == other.mode)
    }

    /// Returns the times for utimensat(2), which keep the access time unchanged.
    pub fn timestamps(mtime: FileTime) -> Timestamps {
        let last_access = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT as _ };
        let last_modification = Timespec { tv_sec: mtime.seconds, tv_nsec: mtime.nanos.into() };
        Timestamps { last_access, last_modification }
    }

    pub fn encode<'a>(&self, out: &'a mut Encoder) -> &'a mut Encoder {
        let kind = match self.kind {
            EntryKind::File => 0,
            EntryKind::Directory => 1,
            EntryKind::Symlink => 2,
            EntryKind::Special => 3,
        };
        out.u8(kind).u16(self.mode).u64(self.size);
        self.mtime.encode(out).fixed(&self.version).u8(self.sparse.into()).counted(&self.target)
    }

    pub fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let kind = match from.u8("a kind")? {
            0 => EntryKind::File,
            1 => EntryKind::Directory,
            2 => EntryKind::Symlink,
            3 => EntryKind::Special,
            other => return Err(WireError::value("a kind", other)),
        };
        let mode = decode_mode(from)?;
        let size = from.u64("a size")?;
        if size > MAX_SIZE || (kind != EntryKind::File && size != 0) {
            return Err(WireError::value("a size", size));
        }
        let mtime = FileTime::decode(from)?;
        let version = from.array("a version")?;
        let sparse = from.flag("the mark of a sparse file")?;
        let target = decode_target(from, kind)?;
        Ok(Self { kind, mode, size, mtime, version, sparse, target })
    }
}

/// Decodes permission bits.
pub fn decode_mode(from: &mut Decoder<'_>) -> Result<u16> {
    match from.u16("a mode")? {
        mode if mode & !MODE == 0 => Ok(mode),
        mode => Err(WireError::value("a mode", mode)),
    }
}

/// Decodes the target of a symbolic link, or the reason why a special entry cannot be examined. For
/// other entries it must be empty.
pub(crate) fn decode_target(from: &mut Decoder<'_>, kind: EntryKind) -> Result<Vec<u8>> {
    let target = from.counted("the text of a link")?;
    let lengths = match kind {
        EntryKind::Symlink => 1..=MAX_TARGET,
        EntryKind::Special => 0..=MAX_TARGET,
        EntryKind::File | EntryKind::Directory => 0..=0,
    };
    if !lengths.contains(&target.len()) || target.contains(&0) {
        return Err(WireError::value("the length of a link's text", target.len() as u64));
    }
    Ok(target.to_vec())
}

impl FileTime {
    /// Returns whether `stored` is this time, or this time as a file system stores it that rounds
    /// times down: to a decimal fraction of a second, to seconds, or to two seconds like FAT.
    ///
    /// A time of whole seconds is only stored as itself. The file system of the source may have no
    /// other times, and the next second is then that of another version.
    fn is_stored_as(self, stored: Self) -> bool {
        let units = (0..=9).map(|digits| 10u32.pow(digits));
        let unit = units.take_while(|unit| stored.nanos.is_multiple_of(*unit)).last().unwrap_or(1);
        let rounded = Self { nanos: self.nanos / unit * unit, ..self };
        let even = Self { seconds: self.seconds & !1, nanos: 0 };
        self == stored || self.nanos != 0 && (stored == rounded || stored == even)
    }

    pub fn encode(self, out: &mut Encoder) -> &mut Encoder {
        out.u64(self.seconds.cast_unsigned()).u32(self.nanos)
    }

    pub fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let seconds = from.u64("a time")?.cast_signed();
        match from.u32("a time")? {
            nanos if nanos < 1_000_000_000 => Ok(Self { seconds, nanos }),
            nanos => Err(WireError::value("the nanoseconds of a time", nanos)),
        }
    }
}

impl Entry {
    pub fn encode(&self, out: &mut Encoder) {
        self.meta.encode(out.counted(self.name.as_bytes()));
    }

    pub fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(Self { name: Name::new(from.counted("a name")?)?, meta: Meta::decode(from)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_rounded_by_target_accepted() {
        let time = |seconds, nanos| FileTime { seconds, nanos };
        for (source, stored, is_same) in [
            (time(7, 123_456_789), time(7, 123_456_789), true),
            (time(7, 123_456_789), time(7, 123_456_700), true),
            (time(7, 123_456_789), time(7, 120_000_000), true),
            (time(7, 123_456_789), time(7, 0), true),
            (time(7, 123_456_789), time(6, 0), true),
            (time(-7, 1), time(-8, 0), true),
            (time(7, 123_456_789), time(7, 123_456_788), false),
            (time(7, 123_456_789), time(7, 123_456_800), false),
            (time(7, 123_456_789), time(6, 120_000_000), false),
            (time(7, 123_456_789), time(5, 0), false),
            (time(8, 123_456_789), time(7, 0), false),
            (time(7, 0), time(6, 0), false),
            (time(7, 0), time(7, 1), false),
        ] {
            assert_eq!(source.is_stored_as(stored), is_same, "{source:?} as {stored:?}");
            let stat = rustix::fs::stat("/etc/passwd").unwrap();
            let meta = |mtime| Meta { mtime, ..Meta::from_stat(&stat) };
            assert_eq!(meta(source).is_copied_by(&meta(stored)), is_same);
        }
    }

    #[test]
    fn oversized_file_counts_as_special() {
        let mut stat = rustix::fs::stat("/etc/passwd").unwrap();
        for (size, kind) in [(MAX_SIZE, EntryKind::File), (MAX_SIZE + 1, EntryKind::Special)] {
            stat.st_size = size.cast_signed();
            let meta = Meta::from_stat(&stat);
            assert_eq!(meta.kind, kind);
            let mut out = Encoder::default();
            meta.encode(&mut out);
            assert_eq!(Meta::decode(&mut Decoder::new(&out.0)), Ok(meta));
        }
    }
}

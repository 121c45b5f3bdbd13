//! Packet captures in the classic pcap format or pcapng, in either byte order. They are read as a
//! stream and parsed by `pcap_parser`.
//!
//! The input may be any bytes. Invalid input results in an [`Error`], never in a panic, and memory
//! is bounded by [`MAX_RECORD`].

mod classic;
mod ng;

use std::io::{self, Read};

use pcap_parser::nom;

/// Maximum accepted length of a record, in bytes. Packets in captures have up to 256 KiB.
pub const MAX_RECORD: usize = 16 << 20;

/// A link type number of the tcpdump registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkType(pub u32);

impl LinkType {
    /// BSD loopback: the address family in the capturing host's byte order, then an IP packet.
    pub const NULL: Self = Self(0);
    /// Ethernet II, with or without VLAN tags.
    pub const ETHERNET: Self = Self(1);
    /// IP packet without a link header, as numbered by some systems.
    pub const RAW_12: Self = Self(12);
    /// Like [`Self::RAW_12`].
    pub const RAW_14: Self = Self(14);
    /// IPv4 or IPv6 packet without a link header.
    pub const RAW: Self = Self(101);
    /// OpenBSD loopback: like [`Self::NULL`], with a big-endian address family.
    pub const LOOP: Self = Self(108);
    /// Linux "cooked" capture, version 1.
    pub const LINUX_SLL: Self = Self(113);
    /// IPv4 packet without a link header.
    pub const IPV4: Self = Self(228);
    /// IPv6 packet without a link header.
    pub const IPV6: Self = Self(229);
    /// Linux "cooked" capture, version 2.
    pub const LINUX_SLL2: Self = Self(276);
}

/// One captured packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Time in nanoseconds since 1970-01-01 00:00 UTC, `None` for a pcapng Simple Packet Block.
    pub time: Option<u64>,
    /// Type of the link header at the start of the bytes.
    pub link: LinkType,
    /// Captured bytes, from the link header on.
    pub bytes: Vec<u8>,
    /// Length of the packet on the wire, which is more than was captured if the snapshot length has
    /// cut it.
    pub original_length: usize,
}

/// Reason why a capture cannot be read at all, or not any further.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The first bytes belong to no capture format.
    #[error("{}", if .0.is_empty() { "the file is empty".to_owned() } else { format!("not a packet capture (it begins with \"{}\")", .0.escape_ascii()) })]
    NotACapture(Vec<u8>),
    /// The first bytes belong to a compressed file.
    #[error("compressed with {0}")]
    Compressed(&'static str),
    /// The file ends inside a header or a record.
    #[error("the file ends inside the {what} that begins at byte {offset}")]
    Truncated {
        /// Offset of the unfinished part in the file.
        offset: u64,
        /// Name of the part.
        what: &'static str,
    },
    /// A length is impossible.
    #[error("the {what} at byte {offset} has the impossible length {length}")]
    Length {
        /// Offset of the part in the file.
        offset: u64,
        /// Name of the part.
        what: &'static str,
        /// Announced length.
        length: u64,
    },
    /// The bytes are not a valid record.
    #[error("the {what} at byte {offset} cannot be read")]
    Malformed {
        /// Offset of the part in the file.
        offset: u64,
        /// Name of the part.
        what: &'static str,
    },
    /// A packet belongs to an interface that the capture does not describe.
    #[error(
        "the packet block at byte {offset} is of interface {interface}, of which there is no description"
    )]
    Interface {
        /// Offset of the block in the file.
        offset: u64,
        /// Number of the interface.
        interface: u32,
    },
}

/// Reader of the packets of a capture.
#[derive(Debug)]
pub struct Reader<R> {
    source: FileSource<R>,
    format: FileFormat,
}

#[derive(Debug)]
enum FileFormat {
    Classic(classic::FileHeader),
    Ng(ng::SectionState),
}

impl<R: Read> Reader<R> {
    /// Creates a reader, which recognises the format by the first bytes.
    ///
    /// # Errors
    /// Returns an error if the input is not a capture, is compressed, or is too short.
    pub fn new(read: R) -> Result<Self, Error> {
        let mut source = FileSource { read, buffer: Vec::new(), taken: 0, offset: 0 };
        while source.bytes().len() < MAGIC_LEN {
            if !source.fill()? {
                return Err(Error::NotACapture(Vec::new()));
            }
        }
        let format = match source.bytes() {
            [0x1f, 0x8b, ..] => return Err(Error::Compressed("gzip")),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => return Err(Error::Compressed("zstd")),
            [0x04, 0x22, 0x4d, 0x18, ..] => return Err(Error::Compressed("lz4")),
            bytes if bytes.starts_with(&ng::SECTION_HEADER) => {
                FileFormat::Ng(ng::SectionState::default())
            }
            _ => FileFormat::Classic(classic::FileHeader::read(&mut source)?),
        };
        Ok(Self { source, format })
    }

    /// Returns the next packet, or `None` at the end of the file.
    ///
    /// # Errors
    /// Returns an error if the file ends inside a record, or a record is invalid. Nothing can be
    /// read after an error.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, Error> {
        match &mut self.format {
            FileFormat::Classic(header) => header.next(&mut self.source),
            FileFormat::Ng(section) => section.next(&mut self.source),
        }
    }
}

impl<R> Reader<R> {
    /// Returns the secrets of TLS connections that were read from a pcapng file since the last
    /// call, in key log format.
    pub fn take_secrets(&mut self) -> Option<String> {
        match &mut self.format {
            FileFormat::Classic(_) => None,
            FileFormat::Ng(section) => section.take_secrets(),
        }
    }
}

/// Number of bytes that distinguish formats.
const MAGIC_LEN: usize = 4;
/// Number of bytes that are read at a time.
const READ: usize = 64 << 10;

/// Input file with a buffer, and the position for error messages.
#[derive(Debug)]
struct FileSource<R> {
    read: R,
    buffer: Vec<u8>,
    /// Number of bytes of the buffer that were parsed.
    taken: usize,
    offset: u64,
}

impl<R: Read> FileSource<R> {
    fn bytes(&self) -> &[u8] {
        &self.buffer[self.taken..]
    }

    /// Reads the bytes that are available now. Returns false at the end of the file.
    fn fill(&mut self) -> Result<bool, Error> {
        self.buffer.drain(..std::mem::take(&mut self.taken));
        let have = self.buffer.len();
        self.buffer.resize(have + READ, 0);
        let got = loop {
            match self.read.read(&mut self.buffer[have..]) {
                Ok(got) => break got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        };
        self.buffer.truncate(have + got);
        Ok(got > 0)
    }

    /// Parses the next record with `parse`. Returns `None` at the end of the file.
    fn next<T>(
        &mut self,
        what: &'static str,
        parse: impl Fn(&[u8]) -> Parsed<'_, T>,
    ) -> Result<Option<T>, Error> {
        loop {
            let offset = self.offset;
            let bytes = self.bytes();
            match parse(bytes) {
                Ok((rest, record)) => {
                    let length = bytes.len() - rest.len();
                    self.taken += length;
                    self.offset += length as u64;
                    return Ok(Some(record));
                }
                Err(nom::Err::Incomplete(needed)) => {
                    let more = match needed {
                        nom::Needed::Size(more) => more.get(),
                        nom::Needed::Unknown => 1,
                    };
                    let length = bytes.len().saturating_add(more);
                    if length > MAX_RECORD {
                        return Err(Error::Length { offset, what, length: length as u64 });
                    }
                    let is_empty = bytes.is_empty();
                    if !self.fill()? {
                        return if is_empty {
                            Ok(None)
                        } else {
                            Err(Error::Truncated { offset, what })
                        };
                    }
                }
                Err(_) => return Err(Error::Malformed { offset, what }),
            }
        }
    }
}

/// Result of a parser: the remaining input, and the record at its front.
type Parsed<'a, T> = nom::IResult<&'a [u8], T, pcap_parser::PcapError<&'a [u8]>>;

#[cfg(test)]
mod tests;

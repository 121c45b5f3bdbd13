//! Packet captures: the classic pcap format and pcapng, either byte order, read as a stream.
//!
//! Any bytes may be given: what is not a capture is an [`Error`], never a panic, and memory stays bounded by
//! [`MAX_RECORD`].

mod classic;
mod ng;

use std::io::{self, Read};

/// The longest record that is believed, in bytes. Captures hold packets of up to 256 KiB.
pub const MAX_RECORD: usize = 16 << 20;

/// A link type number of the tcpdump registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkType(pub u32);

impl LinkType {
    /// BSD loopback: the address family in the capturing host's byte order, then an IP packet.
    pub const NULL: Self = Self(0);
    /// Ethernet II, with or without VLAN tags.
    pub const ETHERNET: Self = Self(1);
    /// An IP packet with nothing before it, as some systems number it.
    pub const RAW_12: Self = Self(12);
    /// As [`Self::RAW_12`].
    pub const RAW_14: Self = Self(14);
    /// An IPv4 or IPv6 packet with nothing before it.
    pub const RAW: Self = Self(101);
    /// OpenBSD loopback: as [`Self::NULL`], the address family big-endian.
    pub const LOOP: Self = Self(108);
    /// Linux "cooked" capture, version 1.
    pub const LINUX_SLL: Self = Self(113);
    /// An IPv4 packet with nothing before it.
    pub const IPV4: Self = Self(228);
    /// An IPv6 packet with nothing before it.
    pub const IPV6: Self = Self(229);
    /// Linux "cooked" capture, version 2.
    pub const LINUX_SLL2: Self = Self(276);
}

/// One captured packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its place in the capture, from 1.
    pub number: u64,
    /// Nanoseconds since 1970-01-01 00:00 UTC; `None` in a pcapng Simple Packet Block, which has no time.
    pub time: Option<u64>,
    /// What the bytes begin with.
    pub link: LinkType,
    /// The captured bytes, from the link header on.
    pub bytes: Vec<u8>,
}

/// Why a capture cannot be read, or not on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The first bytes are those of no capture format.
    #[error("not a packet capture (it begins with {0:02x?})")]
    NotACapture(Vec<u8>),
    /// The first bytes are those of a compressed file.
    #[error("compressed with {0}")]
    Compressed(&'static str),
    /// The file ends inside a header or a record.
    #[error("the file ends inside the {what} that begins at byte {offset}")]
    Truncated {
        /// Where the unfinished part begins, in bytes from the start of the file.
        offset: u64,
        /// What it is.
        what: &'static str,
    },
    /// A length that cannot be.
    #[error("the {what} at byte {offset} has the impossible length {length}")]
    Length {
        /// Where it begins, in bytes from the start of the file.
        offset: u64,
        /// What it is.
        what: &'static str,
        /// The length it announces.
        length: u64,
    },
    /// A pcapng section with an unknown byte-order magic.
    #[error("the section header at byte {offset} has the unknown byte-order magic {magic:#010x}")]
    ByteOrder {
        /// Where the block begins, in bytes from the start of the file.
        offset: u64,
        /// The magic as it stands there, read as a big-endian number.
        magic: u32,
    },
    /// A packet of an interface that the capture does not describe.
    #[error(
        "the packet block at byte {offset} is of interface {interface}, of which there is no description"
    )]
    Interface {
        /// Where the block begins, in bytes from the start of the file.
        offset: u64,
        /// The interface's number.
        interface: u32,
    },
}

/// Reads the packets of a capture one after the other.
#[derive(Debug)]
pub struct Reader<R> {
    source: Source<R>,
    format: Format,
    packets: u64,
}

#[derive(Debug)]
enum Format {
    Classic(classic::Header),
    Ng(ng::Section),
}

impl<R: Read> Reader<R> {
    /// Recognises the format by the first bytes.
    ///
    /// # Errors
    /// Nothing that can be read as a capture: not one, compressed, or too short.
    pub fn new(read: R) -> Result<Self, Error> {
        let mut source = Source { read, offset: 0 };
        let mut magic = [0; 4];
        source.exact(&mut magic, "file header").map_err(|error| match error {
            Error::Truncated { .. } => Error::NotACapture(Vec::new()),
            error => error,
        })?;
        let format = match magic {
            [0x1f, 0x8b, ..] => return Err(Error::Compressed("gzip")),
            [0x28, 0xb5, 0x2f, 0xfd] => return Err(Error::Compressed("zstd")),
            [0x04, 0x22, 0x4d, 0x18] => return Err(Error::Compressed("lz4")),
            ng::SECTION_HEADER => Format::Ng(ng::Section::read_first(&mut source)?),
            magic => Format::Classic(classic::Header::read(magic, &mut source)?),
        };
        Ok(Self { source, format, packets: 0 })
    }

    /// The next packet; `None` at the end of the file.
    ///
    /// # Errors
    /// The file ends inside a record, or a record makes no sense. Nothing can be read after an error.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, Error> {
        let packet = match &mut self.format {
            Format::Classic(header) => header.next(&mut self.source)?,
            Format::Ng(section) => section.next(&mut self.source)?,
        };
        Ok(packet.map(|packet| {
            self.packets += 1;
            Packet { number: self.packets, ..packet }
        }))
    }
}

/// The file, with the position for error messages.
#[derive(Debug)]
struct Source<R> {
    read: R,
    offset: u64,
}

impl<R: Read> Source<R> {
    /// Fills `to`, or says that the file ended in `what`.
    fn exact(&mut self, to: &mut [u8], what: &'static str) -> Result<(), Error> {
        if self.exact_or_end(to, what)? {
            Ok(())
        } else {
            Err(Error::Truncated { offset: self.offset, what })
        }
    }

    /// As [`Self::exact`], with `false` when the file ends just here.
    fn exact_or_end(&mut self, to: &mut [u8], what: &'static str) -> Result<bool, Error> {
        let offset = self.offset;
        let mut filled = 0;
        while let Some(rest) = to.get_mut(filled..)
            && !rest.is_empty()
        {
            match self.read.read(rest) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(Error::Truncated { offset, what }),
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.offset += filled as u64;
        Ok(true)
    }

    /// `length` bytes. What a damaged length announces is not allocated before it was read.
    fn bytes(&mut self, length: usize, offset: u64, what: &'static str) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::with_capacity(length.min(1 << 16));
        (&mut self.read).take(length as u64).read_to_end(&mut bytes)?;
        self.offset += bytes.len() as u64;
        if bytes.len() == length { Ok(bytes) } else { Err(Error::Truncated { offset, what }) }
    }
}

/// Numbers in the byte order of the host that captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Big,
    Little,
}

impl Order {
    fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Big => u16::from_be_bytes(bytes),
            Self::Little => u16::from_le_bytes(bytes),
        }
    }

    fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Big => u32::from_be_bytes(bytes),
            Self::Little => u32::from_le_bytes(bytes),
        }
    }

    /// The number at `at`; `None` when the bytes end before it does.
    fn u32_at(self, bytes: &[u8], at: usize) -> Option<u32> {
        bytes.get(at..)?.first_chunk().map(|bytes| self.u32(*bytes))
    }

    /// The number at `at`; `None` when the bytes end before it does.
    fn u16_at(self, bytes: &[u8], at: usize) -> Option<u16> {
        bytes.get(at..)?.first_chunk().map(|bytes| self.u16(*bytes))
    }
}

#[cfg(test)]
mod tests;

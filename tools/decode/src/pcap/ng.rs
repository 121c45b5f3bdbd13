//! pcapng format (draft-ietf-opsawg-pcapng): sections, interfaces and packet blocks.

use std::io::Read;

use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{
    Block, EnhancedPacketBlock, InterfaceDescriptionBlock, SimplePacketBlock, parse_block_be,
    parse_block_le,
};

use super::{Error, FileSource, LinkType, MAX_RECORD, Packet, Parsed};

/// Type of the Section Header Block, which is the same in both byte orders.
pub(super) const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// Type of a Decryption Secrets Block with a key log of TLS.
const TLS_KEY_LOG: u32 = 0x544c_534b;
/// Maximum number of interfaces of a section that are kept.
const MAX_INTERFACES: usize = 65_536;

/// State of the current section: its byte order and its interfaces.
#[derive(Debug, Default)]
pub(super) struct SectionState {
    big_endian: bool,
    interfaces: Vec<CaptureInterface>,
    /// Secrets that the caller has not taken yet.
    secrets: String,
}

#[derive(Clone, Copy, Debug)]
struct CaptureInterface {
    link: LinkType,
    /// Snapshot length in bytes, 0 if there is none.
    snapshot_length: u32,
    /// Number of time units per second.
    resolution: u128,
    /// Offset of times in seconds.
    offset: i64,
}

/// The relevant contents of a block.
enum BlockContent {
    Section {
        big_endian: bool,
    },
    Interface(CaptureInterface),
    Packet {
        interface: u32,
        time: Option<u64>,
        /// Number of captured bytes. A Simple Packet Block does not contain it: it is the smaller
        /// one of the original length and the snapshot length of the interface.
        captured: Option<u32>,
        bytes: Vec<u8>,
        original: u32,
    },
    /// Secrets of TLS connections.
    Secrets(String),
    Other,
}

impl SectionState {
    /// Returns the secrets that were read since the last call.
    pub(super) fn take_secrets(&mut self) -> Option<String> {
        (!self.secrets.is_empty()).then(|| std::mem::take(&mut self.secrets))
    }

    pub(super) fn next<R: Read>(
        &mut self,
        source: &mut FileSource<R>,
    ) -> Result<Option<Packet>, Error> {
        loop {
            let offset = source.offset;
            let parse = if self.big_endian { parse_block_be } else { parse_block_le };
            let content = source.next("block", |bytes| -> Parsed<'_, BlockContent> {
                parse(bytes).map(|(rest, block)| (rest, parse_block(&block, self.big_endian)))
            })?;
            match content {
                None => return Ok(None),
                // A new section has its own byte order and its own interfaces.
                Some(BlockContent::Section { big_endian }) => {
                    let secrets = std::mem::take(&mut self.secrets);
                    *self = Self { big_endian, secrets, ..Self::default() };
                }
                Some(BlockContent::Secrets(text)) => {
                    if self.secrets.len() + text.len() <= MAX_RECORD {
                        self.secrets.push_str(&text);
                        self.secrets.push('\n');
                    }
                }
                Some(BlockContent::Interface(interface)) => {
                    if self.interfaces.len() < MAX_INTERFACES {
                        self.interfaces.push(interface);
                    }
                }
                Some(BlockContent::Packet { interface, time, captured, mut bytes, original }) => {
                    let of = self.interfaces.get(interface as usize);
                    let of = of.ok_or(Error::Interface { offset, interface })?;
                    let captured = captured.unwrap_or_else(|| of.limit(original)) as usize;
                    if captured > bytes.len() {
                        return Err(Error::Length {
                            offset,
                            what: "packet",
                            length: captured as u64,
                        });
                    }
                    bytes.truncate(captured);
                    let time = time.map(|units| of.nanoseconds(units));
                    let original_length = original as usize;
                    return Ok(Some(Packet { time, link: of.link, bytes, original_length }));
                }
                Some(BlockContent::Other) => {}
            }
        }
    }
}

/// Returns the contents of a block of a section with this byte order.
fn parse_block(block: &Block<'_>, big_endian: bool) -> BlockContent {
    match block {
        Block::SectionHeader(section) => BlockContent::Section { big_endian: section.big_endian() },
        Block::InterfaceDescription(interface) => {
            BlockContent::Interface(CaptureInterface::from_block(interface, big_endian))
        }
        Block::EnhancedPacket(packet) => enhanced(packet),
        Block::SimplePacket(packet) => simple(packet),
        Block::DecryptionSecrets(block) if block.secrets_type.0 == TLS_KEY_LOG => {
            let len = (block.secrets_len as usize).min(block.data.len());
            BlockContent::Secrets(String::from_utf8_lossy(&block.data[..len]).into_owned())
        }
        _ => BlockContent::Other,
    }
}

fn enhanced(packet: &EnhancedPacketBlock<'_>) -> BlockContent {
    BlockContent::Packet {
        interface: packet.if_id,
        time: Some(u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low)),
        captured: Some(packet.caplen),
        bytes: packet.raw_packet_data().to_vec(),
        original: packet.origlen,
    }
}

/// Returns the contents of a Simple Packet Block, which belongs to the first interface and has no
/// time.
fn simple(packet: &SimplePacketBlock<'_>) -> BlockContent {
    BlockContent::Packet {
        interface: 0,
        time: None,
        captured: None,
        bytes: packet.raw_packet_data().to_vec(),
        original: packet.origlen,
    }
}

impl CaptureInterface {
    fn from_block(block: &InterfaceDescriptionBlock<'_>, big_endian: bool) -> Self {
        // The parser always reads this option as little-endian.
        let offset = block.if_tsoffset;
        Self {
            link: LinkType(block.linktype.0.cast_unsigned()),
            snapshot_length: block.snaplen,
            resolution: units_per_second(block.if_tsresol),
            offset: if big_endian { offset.swap_bytes() } else { offset },
        }
    }

    /// Limits a length to the snapshot length.
    fn limit(&self, length: u32) -> u32 {
        if self.snapshot_length == 0 { length } else { length.min(self.snapshot_length) }
    }

    fn nanoseconds(&self, units: u64) -> u64 {
        let nanoseconds = u128::from(units) * 1_000_000_000 / self.resolution.max(1);
        let nanoseconds = i128::try_from(nanoseconds).unwrap_or(i128::MAX);
        let sum = nanoseconds.saturating_add(i128::from(self.offset) * 1_000_000_000);
        u64::try_from(sum.max(0)).unwrap_or(u64::MAX)
    }
}

/// Decodes `if_tsresol`, which is a power of 2 if the top bit is set, and otherwise of 10.
fn units_per_second(resolution: u8) -> u128 {
    let exponent = u32::from(resolution & 0x7f);
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    base.checked_pow(exponent).unwrap_or(u128::MAX)
}

//! pcapng (draft-ietf-opsawg-pcapng): sections, interfaces, packet blocks.
//!
//! ```text
//! block:  type 4, total length 4, body, options, total length again 4
//! ```
//! A section header starts anew with its own byte order and its own interfaces.

use std::io::Read;

use super::{Error, LinkType, MAX_RECORD, Order, Packet, Source};

/// The Section Header Block's type; it reads the same in both byte orders.
pub(super) const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const INTERFACE_DESCRIPTION: u32 = 1;
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

/// More interfaces than this in one section are not kept.
const MAX_INTERFACES: usize = 65_536;

const OPTION_END: u16 = 0;
const OPTION_TSRESOL: u16 = 9;
const OPTION_TSOFFSET: u16 = 14;

/// The section that is being read.
#[derive(Debug)]
pub(super) struct Section {
    order: Order,
    interfaces: Vec<Interface>,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link: LinkType,
    /// Bytes kept of each packet, 0 = all. A Simple Packet Block does not say how many it holds.
    snapshot_length: u32,
    /// Units per second.
    resolution: u128,
    /// Seconds to add.
    offset: i64,
}

impl Section {
    /// The file's first block, after its type.
    pub(super) fn read_first<R: Read>(source: &mut Source<R>) -> Result<Self, Error> {
        let mut section = Self { order: Order::Big, interfaces: Vec::new() };
        section.begin(source, 0)?;
        Ok(section)
    }

    pub(super) fn next<R: Read>(&mut self, source: &mut Source<R>) -> Result<Option<Packet>, Error> {
        loop {
            let offset = source.offset;
            let mut kind = [0; 4];
            if !source.exact_or_end(&mut kind, "block")? {
                return Ok(None);
            }
            if kind == SECTION_HEADER {
                self.begin(source, offset)?;
                continue;
            }
            let body = self.body(source, offset)?;
            let packet = match self.order.u32(kind) {
                INTERFACE_DESCRIPTION => {
                    self.describe(&body);
                    None
                }
                ENHANCED_PACKET => Some(self.enhanced(&body, offset)?),
                SIMPLE_PACKET => Some(self.simple(&body, offset)?),
                PACKET => Some(self.obsolete(&body, offset)?),
                _ => None,
            };
            if packet.is_some() {
                return Ok(packet);
            }
        }
    }

    /// A section header: byte order, then nothing that matters here.
    fn begin<R: Read>(&mut self, source: &mut Source<R>, offset: u64) -> Result<(), Error> {
        let mut head = [0; 8];
        source.exact(&mut head, "section header")?;
        let [l0, l1, l2, l3, magic @ ..] = head;
        self.order = match u32::from_be_bytes(magic) {
            0x1a2b_3c4d => Order::Big,
            0x4d3c_2b1a => Order::Little,
            magic => return Err(Error::ByteOrder { offset, magic }),
        };
        self.interfaces.clear();
        let length = self.order.u32([l0, l1, l2, l3]);
        let rest = checked(length, 12, offset, "section header")?;
        source.bytes(rest, offset, "section header")?;
        Ok(())
    }

    /// A block's body with its options; the second total length is read and not looked at.
    fn body<R: Read>(&self, source: &mut Source<R>, offset: u64) -> Result<Vec<u8>, Error> {
        let mut length = [0; 4];
        source.exact(&mut length, "block")?;
        let rest = checked(self.order.u32(length), 12, offset, "block")?;
        let body = source.bytes(rest, offset, "block")?;
        source.exact(&mut length, "block")?;
        Ok(body)
    }

    /// Interface Description Block: link type 2, reserved 2, snapshot length 4, options.
    fn describe(&mut self, body: &[u8]) {
        let link = LinkType(self.order.u16_at(body, 0).unwrap_or_default().into());
        let snapshot_length = self.order.u32_at(body, 4).unwrap_or_default();
        let mut interface = Interface { link, snapshot_length, resolution: 1_000_000, offset: 0 };
        let options = Options { order: self.order, rest: body.get(8..).unwrap_or_default() };
        for (code, value) in options {
            match (code, value) {
                (OPTION_TSRESOL, &[resolution, ..]) => interface.resolution = units_per_second(resolution),
                (OPTION_TSOFFSET, value) => {
                    if let Some(value) = value.first_chunk::<8>() {
                        interface.offset = match self.order {
                            Order::Big => i64::from_be_bytes(*value),
                            Order::Little => i64::from_le_bytes(*value),
                        };
                    }
                }
                _ => {}
            }
        }
        if self.interfaces.len() < MAX_INTERFACES {
            self.interfaces.push(interface);
        }
    }

    /// Enhanced Packet Block: interface 4, time 8, captured length 4, original length 4, bytes, options.
    fn enhanced(&self, body: &[u8], offset: u64) -> Result<Packet, Error> {
        let interface = self.field(body, 0, offset)?;
        self.timed(body, interface, offset)
    }

    /// The obsolete Packet Block: interface 2, drops 2, then as the Enhanced Packet Block.
    fn obsolete(&self, body: &[u8], offset: u64) -> Result<Packet, Error> {
        let interface = self.order.u16_at(body, 0).unwrap_or_default();
        self.timed(body, interface.into(), offset)
    }

    fn timed(&self, body: &[u8], interface: u32, offset: u64) -> Result<Packet, Error> {
        let interface = self.interface(interface, offset)?;
        let (high, low) = (self.field(body, 4, offset)?, self.field(body, 8, offset)?);
        let captured = self.field(body, 12, offset)?;
        let bytes = bytes(body, 20, captured, offset)?;
        let time = interface.nanoseconds(u64::from(high) << 32 | u64::from(low));
        Ok(Packet { number: 0, time: Some(time), link: interface.link, bytes })
    }

    /// Simple Packet Block: original length 4, bytes; always of the first interface.
    fn simple(&self, body: &[u8], offset: u64) -> Result<Packet, Error> {
        let interface = self.interface(0, offset)?;
        let original = self.field(body, 0, offset)?;
        let captured = match interface.snapshot_length {
            0 => original,
            limit => original.min(limit),
        };
        let bytes = bytes(body, 4, captured, offset)?;
        Ok(Packet { number: 0, time: None, link: interface.link, bytes })
    }

    fn interface(&self, number: u32, offset: u64) -> Result<Interface, Error> {
        let interface = self.interfaces.get(number as usize).copied();
        interface.ok_or(Error::Interface { offset, interface: number })
    }

    fn field(&self, body: &[u8], at: usize, offset: u64) -> Result<u32, Error> {
        let missing = Error::Length { offset, what: "packet block", length: body.len() as u64 + 12 };
        self.order.u32_at(body, at).ok_or(missing)
    }
}

impl Interface {
    fn nanoseconds(&self, units: u64) -> u64 {
        let nanoseconds = u128::from(units) * 1_000_000_000 / self.resolution.max(1);
        let nanoseconds = i128::try_from(nanoseconds).unwrap_or(i128::MAX);
        let sum = nanoseconds.saturating_add(i128::from(self.offset) * 1_000_000_000);
        u64::try_from(sum.max(0)).unwrap_or(u64::MAX)
    }
}

/// `if_tsresol`: a power of 2 when the top bit is set, else of 10.
fn units_per_second(resolution: u8) -> u128 {
    let exponent = u32::from(resolution & 0x7f);
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    base.checked_pow(exponent).unwrap_or(u128::MAX)
}

/// The bytes of a block after `fixed` ones that its total length counts.
fn checked(length: u32, fixed: u32, offset: u64, what: &'static str) -> Result<usize, Error> {
    let rest = length.checked_sub(fixed).map(|rest| rest as usize);
    let rest = rest.filter(|rest| length.is_multiple_of(4) && *rest <= MAX_RECORD);
    rest.ok_or(Error::Length { offset, what, length: length.into() })
}

fn bytes(body: &[u8], at: usize, captured: u32, offset: u64) -> Result<Vec<u8>, Error> {
    let packet = at.checked_add(captured as usize).and_then(|end| body.get(at..end));
    let error = Error::Length { offset, what: "packet", length: captured.into() };
    packet.map(<[u8]>::to_vec).ok_or(error)
}

/// Options: code 2, length 2, value padded to 4 bytes.
struct Options<'a> {
    order: Order,
    rest: &'a [u8],
}

impl<'a> Iterator for Options<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let code = self.order.u16_at(self.rest, 0).filter(|code| *code != OPTION_END)?;
        let length = usize::from(self.order.u16_at(self.rest, 2)?);
        let value = self.rest.get(4..4 + length)?;
        self.rest = self.rest.get(4 + length.next_multiple_of(4)..).unwrap_or_default();
        Some((code, value))
    }
}

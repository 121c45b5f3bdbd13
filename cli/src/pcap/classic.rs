//! The classic pcap format (draft-ietf-opsawg-pcap).
//!
//! ```text
//! file:    magic 4, major 2, minor 2, reserved 8, snapshot length 4, link type 4 (low 16 bits)
//! record:  seconds 4, micro- or nanoseconds 4, captured length 4, original length 4, bytes
//! ```
//! The "modified" format of Alexey Kuznetsov's patch to libpcap has 8 more bytes in the header of a record: interface 4, protocol 2, packet type 1,
//! padding 1.

use std::io::Read;

use super::{Error, LinkType, MAX_RECORD, Order, Packet, Source};

const RECORD_HEADER: usize = 16;
const MODIFIED_RECORD_HEADER: usize = 24;

/// What the file header says.
#[derive(Debug)]
pub(super) struct Header {
    order: Order,
    nanoseconds_per_unit: u64,
    record_header: usize,
    link: LinkType,
}

impl Header {
    /// The rest of the file header, after its magic number.
    pub(super) fn read<R: Read>(magic: [u8; 4], source: &mut Source<R>) -> Result<Self, Error> {
        let (order, nanoseconds_per_unit, record_header) = match u32::from_be_bytes(magic) {
            0xa1b2_c3d4 => (Order::Big, 1000, RECORD_HEADER),
            0xd4c3_b2a1 => (Order::Little, 1000, RECORD_HEADER),
            0xa1b2_3c4d => (Order::Big, 1, RECORD_HEADER),
            0x4d3c_b2a1 => (Order::Little, 1, RECORD_HEADER),
            0xa1b2_cd34 => (Order::Big, 1000, MODIFIED_RECORD_HEADER),
            0x34cd_b2a1 => (Order::Little, 1000, MODIFIED_RECORD_HEADER),
            _ => return Err(Error::NotACapture(magic.to_vec())),
        };
        let mut rest = [0; 20];
        source.exact(&mut rest, "file header")?;
        // The upper 16 bits describe a frame check sequence behind each packet; IP's length cuts it off.
        let link = order.u32_at(&rest, 16).unwrap_or_default() & 0xffff;
        Ok(Self { order, nanoseconds_per_unit, record_header, link: LinkType(link) })
    }

    pub(super) fn next<R: Read>(&mut self, source: &mut Source<R>) -> Result<Option<Packet>, Error> {
        let offset = source.offset;
        let mut header = [0; MODIFIED_RECORD_HEADER];
        let header = &mut header[..self.record_header];
        if !source.exact_or_end(header, "packet header")? {
            return Ok(None);
        }
        let field = |at| self.order.u32_at(header, at).unwrap_or_default();
        let (seconds, fraction, captured) = (field(0), field(4), field(8));
        let length = captured as usize;
        if length > MAX_RECORD {
            return Err(Error::Length { offset, what: "packet", length: captured.into() });
        }
        let bytes = source.bytes(length, offset, "packet")?;
        let time = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * self.nanoseconds_per_unit;
        Ok(Some(Packet { number: 0, time: Some(time), link: self.link, bytes }))
    }
}

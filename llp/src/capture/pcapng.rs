//! The parts of the pcapng file format (draft-ietf-opsawg-pcapng) that are used here. Numbers are
//! in the byte order of the host.

use std::{
    fs::File,
    io::{self, BufReader, Read as _},
    time::Duration,
};

const SECTION: u32 = 0x0A0D_0D0A;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1A2B_3C4D;
/// Packets begin with an IP header (LINKTYPE_RAW).
const LINK_RAW: u16 = 101;
const OPT_END: u16 = 0;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const NO_PCAPNG: &str =
    "the file is not a pcapng capture in the byte order of this machine: nothing was appended";

/// Removes the incomplete block that a killed program may have left at the end of a file. Returns
/// the length of the file.
///
/// # Errors
/// Returns OS errors, and `InvalidData` if the file is not empty and does not consist of pcapng
/// blocks in this byte order. The file is unchanged then.
pub(super) fn remove_incomplete_block(file: &File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    let (mut reader, mut end) = (BufReader::new(file), 0);
    while end + 12 <= length {
        let mut head = [[0; 4]; 3];
        reader.read_exact(head.as_flattened_mut())?;
        let [kind, len, order] = head.map(u32::from_ne_bytes);
        let is_known = if kind == SECTION { order == BYTE_ORDER } else { end > 0 };
        if !is_known || len < 12 || !len.is_multiple_of(4) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, NO_PCAPNG));
        }
        if end + u64::from(len) > length {
            break;
        }
        reader.seek_relative(i64::from(len) - 12)?;
        end += u64::from(len);
    }
    if end == 0 && length > 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, NO_PCAPNG));
    }
    if end < length {
        file.set_len(end)?;
    }
    Ok(end)
}

/// Appends a Section Header Block.
pub(super) fn section(out: &mut Vec<u8>) {
    block(out, SECTION, |out| {
        put32(out, BYTE_ORDER);
        put16(out, 1);
        put16(out, 0);
        out.extend_from_slice(&u64::MAX.to_ne_bytes()); // section length: not known
    });
}

/// Appends an Interface Description Block for raw IP, with timestamps in nanoseconds.
pub(super) fn interface(out: &mut Vec<u8>, name: &str, snap: Option<u32>) {
    block(out, INTERFACE, |out| {
        put16(out, LINK_RAW);
        put16(out, 0);
        put32(out, snap.unwrap_or(0)); // 0: no limit to packets
        option(out, IF_NAME, name.as_bytes());
        option(out, IF_TSRESOL, &[9]);
        option(out, OPT_END, &[]);
    });
}

/// Data of a packet's block other than the packet.
pub(super) struct Packet {
    pub(super) interface: u32,
    /// Time since 1970.
    pub(super) time: Duration,
    pub(super) outgoing: bool,
    /// Maximum number of bytes that are written.
    pub(super) snap: Option<u32>,
}

/// Appends an Enhanced Packet Block. `fill` appends the packet.
pub(super) fn packet(out: &mut Vec<u8>, packet: &Packet, fill: impl FnOnce(&mut Vec<u8>)) {
    block(out, ENHANCED_PACKET, |out| {
        let time = packet.time.as_nanos() as u64;
        put32(out, packet.interface);
        put32(out, (time >> 32) as u32);
        put32(out, time as u32);
        let lengths = out.len();
        out.extend_from_slice(&[0; 8]);
        fill(out);
        let len = (out.len() - lengths - 8) as u32;
        let captured = packet.snap.map_or(len, |snap| len.min(snap));
        out.truncate(lengths + 8 + captured as usize);
        out[lengths..lengths + 4].copy_from_slice(&captured.to_ne_bytes());
        out[lengths + 4..lengths + 8].copy_from_slice(&len.to_ne_bytes());
        pad(out);
        option(out, EPB_FLAGS, &u32::to_ne_bytes(if packet.outgoing { 2 } else { 1 }));
        option(out, OPT_END, &[]);
    });
}

/// Appends a block. `out` is either empty or ends with another block, so that the padding is
/// correct.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    put32(out, kind);
    put32(out, 0);
    body(out);
    let len = (out.len() - start + 4) as u32;
    out[start + 4..start + 8].copy_from_slice(&len.to_ne_bytes());
    put32(out, len);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    put16(out, code);
    put16(out, value.len() as u16);
    out.extend_from_slice(value);
    pad(out);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

fn put16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_ne_bytes());
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_ne_bytes());
}

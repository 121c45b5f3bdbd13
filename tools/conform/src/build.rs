//! Builds frames to send, valid or not. The codecs of `mpa`, `ddp` and `rdmap` emit a valid frame,
//! in which the fields that a case gives are then changed.

use super::values::Values;
use uiw_cases::FrameKind;
use uiw_ddp::{STag, Tagged, Untagged};
use uiw_mpa::wire::startup::{Enhanced, Frame, FrameKind as StartupKind};
use uiw_mpa::{FpduTx, crc32c, pad_len};
use uiw_rdmap::ReadRequest;
use uiw_rdmap::wire::Control;

const MARKER_INTERVAL: u64 = 512;
const MARKER_LEN: u64 = 4;
const CRC_LEN: usize = 4;
const KEY_LEN: usize = 16;

/// Builds a Request or Reply.
pub(super) fn startup(kind: FrameKind, fields: &Values) -> Vec<u8> {
    let on = |name, default| fields.number(name, u64::from(default)) != 0;
    let is_enhanced = on("enhanced", fields.has(&["a", "b", "c", "d", "ird", "ord"]));
    let enhanced = Enhanced {
        peer_to_peer: on("a", false),
        rtr_send: on("b", false),
        rtr_write: on("c", false),
        rtr_read: on("d", false),
        ird: fields.number("ird", 0) as u16,
        ord: fields.number("ord", 0) as u16,
    };
    let frame = Frame {
        kind: if kind == FrameKind::Reply { StartupKind::Reply } else { StartupKind::Request },
        markers: on("markers", false),
        crc: on("crc", true),
        reject: on("reject", false),
        enhanced: is_enhanced.then_some(enhanced),
        reserved: fields.number("reserved", 0) as u8,
        revision: fields.number("revision", if is_enhanced { 2 } else { 1 }) as u8,
        private_data: fields
            .bytes("private")
            .unwrap_or_default()
            .iter()
            .copied()
            .take(65_000)
            .collect(),
    };
    let mut bytes = frame.emit();
    if let Some(key) = fields.bytes("key") {
        for (byte, new) in bytes.iter_mut().zip(key.iter().take(KEY_LEN)) {
            *byte = *new;
        }
    }
    if let Some(length) = fields.get("length") {
        bytes[18..20].copy_from_slice(&(length as u16).to_be_bytes());
    }
    bytes
}

/// Builds the ULPDU of a segment. `msn` returns the next MSN of a queue; its second argument is
/// true if the message ends with this segment.
pub(super) fn ulpdu(
    kind: FrameKind,
    fields: &Values,
    msn: impl FnOnce(u32, bool) -> u32,
) -> Vec<u8> {
    let opcode = fields.number("opcode", u64::from(kind.opcode().unwrap_or(0))) as u8;
    let version = fields.number("version", u64::from(uiw_rdmap::wire::VERSION)) as u8;
    let control = Control { version, rsv: fields.number("reserved", 0) as u8, opcode };
    let last = fields.number("last", 1) != 0;
    let tagged = matches!(kind, FrameKind::Write | FrameKind::ReadResponse);
    let tagged = fields.number("tagged", u64::from(tagged)) != 0;
    let mut bytes = if tagged {
        let stag = STag(fields.number("stag", 1) as u32);
        Tagged { last, rsvd_ulp: control.emit(), stag, to: fields.number("to", 1) }.emit().to_vec()
    } else {
        let qn = fields.number("qn", default_queue(kind.opcode().unwrap_or(opcode))) as u32;
        let header = Untagged {
            last,
            rsvd_ulp: control.emit(),
            rsvd_ulp32: fields.number("invalidate", 0) as u32,
            qn,
            msn: fields.get("msn").map_or_else(|| msn(qn, last), |msn| msn as u32),
            mo: fields.number("mo", 0) as u32,
        };
        header.emit().to_vec()
    };
    let version = fields.number("ddp-version", u64::from(uiw_ddp::wire::VERSION)) as u8 & 3;
    bytes[0] = bytes[0] & !0x3F | version | (fields.number("ddp-reserved", 0) as u8 & 15) << 2;
    match (fields.bytes("payload"), kind) {
        (Some(payload), _) => bytes.extend_from_slice(payload),
        (None, FrameKind::ReadRequest) => bytes.extend_from_slice(&read_request(fields).emit()),
        (None, FrameKind::Terminate) => {
            let [layer, etype, code] = fields.codes("codes").unwrap_or_default();
            bytes.extend_from_slice(&[layer << 4 | etype, code, 0, 0]);
        }
        _ => {}
    }
    bytes
}

fn default_queue(opcode: u8) -> u64 {
    match opcode {
        1 | 10 => u64::from(uiw_rdmap::QN_READ),
        7 => u64::from(uiw_rdmap::QN_TERMINATE),
        11 => u64::from(uiw_rdmap::QN_ATOMIC_RESPONSE),
        _ => u64::from(uiw_rdmap::QN_SEND),
    }
}

/// Returns the Read Request with these fields. The default STag is 1, because Chelsio adapters
/// require it in zero-length Reads.
pub(super) fn read_request(fields: &Values) -> ReadRequest {
    ReadRequest {
        sink_stag: STag(fields.number("sink-stag", 1) as u32),
        sink_to: fields.number("sink-to", 1),
        len: fields.number("size", 0) as u32,
        source_stag: STag(fields.number("source-stag", 1) as u32),
        source_to: fields.number("source-to", 1),
    }
}

/// Builds the FPDU of `ulpdu`.
pub(super) fn fpdu(tx: &mut FpduTx, ulpdu: &[u8], fields: &Values) -> Vec<u8> {
    let start = tx.position();
    let mut bytes = [&[0, 0], ulpdu].concat();
    let pad = pad_len(ulpdu.len());
    tx.frame(&mut bytes, 0);
    let lead = if tx.markers() && start.is_multiple_of(MARKER_INTERVAL) { 4 } else { 0 };
    if let Some(length) = fields.get("length") {
        bytes[lead..lead + 2].copy_from_slice(&(length as u16).to_be_bytes());
    }
    let end = bytes.len() - CRC_LEN;
    let first = (MARKER_INTERVAL - start % MARKER_INTERVAL) % MARKER_INTERVAL;
    if let Some(value) = fields.get("pad") {
        let is_marker = |at: &usize| {
            tx.markers()
                && *at as u64 >= first
                && (*at as u64 - first) % MARKER_INTERVAL < MARKER_LEN
        };
        let places: Vec<usize> = (0..end).rev().filter(|at| !is_marker(at)).take(pad).collect();
        places.into_iter().for_each(|at| bytes[at] = value as u8);
    }
    if tx.markers() {
        for at in (first as usize..end).step_by(MARKER_INTERVAL as usize) {
            let reserved = (fields.number("marker-reserved", 0) as u16).to_be_bytes();
            let flipped = (fields.number("marker-xor", 0) as u16).to_be_bytes();
            bytes[at..at + 2].copy_from_slice(&reserved);
            bytes[at + 2] ^= flipped[0];
            bytes[at + 3] ^= flipped[1];
        }
    }
    if tx.crc_on() {
        let crc = crc32c(&bytes[..end]);
        bytes[end..].copy_from_slice(&crc.to_le_bytes());
    }
    if let Some(flip) = fields.get("crc-xor") {
        for (byte, flip) in bytes[end..].iter_mut().zip((flip as u32).to_le_bytes()) {
            *byte ^= flip;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_affect_only_named_fields() {
        let mut fields = Values::default();
        let legal = fpdu(
            &mut FpduTx::new(true, false),
            &ulpdu(FrameKind::ReadRequest, &fields, |_, _| 1),
            &fields,
        );
        assert_eq!(legal.len(), 52);
        fields.set("ddp-version", 2);
        fields.set("opcode", 15);
        fields.set("qn", 9);
        let wrong = fpdu(
            &mut FpduTx::new(true, false),
            &ulpdu(FrameKind::ReadRequest, &fields, |_, _| 1),
            &fields,
        );
        assert_eq!((legal[2], wrong[2], legal[3], wrong[3]), (0x41, 0x42, 0x41, 0x4F));
        assert_eq!((legal[11], wrong[11]), (1, 9));
        assert_eq!(legal[12..48], wrong[12..48]);
        let crc = crc32c(&wrong[..48]).to_le_bytes();
        assert_eq!(wrong[48..], crc);
        fields.set("crc-xor", 1);
        let broken = fpdu(
            &mut FpduTx::new(true, false),
            &ulpdu(FrameKind::ReadRequest, &fields, |_, _| 1),
            &fields,
        );
        assert_eq!(broken[48], crc[0] ^ 1);
    }

    #[test]
    fn changed_markers_have_valid_crc() {
        let mut fields = Values::default();
        fields.set("marker-xor", 4);
        fields.set("marker-reserved", 0x0102);
        let mut tx = FpduTx::new(true, true);
        let bytes = fpdu(&mut tx, &[0; 600], &fields);
        assert_eq!((&bytes[..4], &bytes[512..516]), (&[1, 2, 0, 4][..], &[1, 2, 1, 0xF8][..]));
        let end = bytes.len() - 4;
        assert_eq!(bytes[end..], crc32c(&bytes[..end]).to_le_bytes());
    }

    #[test]
    fn pad_changed_around_marker() {
        let mut fields = Values::default();
        fields.set("pad", 0xFF);
        // The first Marker has four bytes and the length two; with 503 bytes the second Marker
        // stands between PAD and CRC.
        for (len, places) in [(5, 11..12), (499, 505..508), (503, 509..512)] {
            let mut tx = FpduTx::new(true, true);
            let bytes = fpdu(&mut tx, &vec![0; len], &fields);
            let end = bytes.len() - CRC_LEN;
            let changed: Vec<usize> = (6..end).filter(|at| bytes[*at] == 0xFF).collect();
            assert_eq!(changed, places.collect::<Vec<_>>(), "a ULPDU of {len} bytes");
            assert_eq!(bytes[end..], crc32c(&bytes[..end]).to_le_bytes());
        }
    }

    #[test]
    fn start_up_frames() {
        let mut fields = Values::default();
        assert_eq!(startup(FrameKind::Request, &fields)[16..], [0x40, 1, 0, 0]);
        fields.set("a", 1);
        fields.set("ird", 5);
        fields.set("length", 513);
        assert_eq!(startup(FrameKind::Request, &fields)[16..], [0x50, 2, 2, 1, 0x80, 5, 0, 0]);
    }
}

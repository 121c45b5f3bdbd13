//! Where the next FPDU begins in a direction whose FPDU boundaries are lost: at a place where
//! length and headers are those of an FPDU, and its CRC proves it. Without CRCs several FPDUs in a
//! row, or one that fills the rest of a TCP segment, are the evidence.
//!
//! FPDUs are multiples of four bytes long (RFC 5044 section 4.1), so only every fourth place comes
//! into question as long as it is known where Full Operation began. With Markers each of them
//! points to the beginning of its FPDU (section 4.3).

use std::ops::Range;

use uiw_ddp::Header;
use uiw_mpa::{FpduRx, MAX_ULPDU, Step, crc32c};
use uiw_rdmap::Opcode;

const LENGTH_LEN: usize = 2;
const CRC_LEN: usize = 4;
const MARKER_INTERVAL: u64 = 512;
const MARKER_LEN: usize = 4;
/// Bytes that have the length and the longest DDP header.
const HEADERS: usize = LENGTH_LEN + 18;
/// FPDUs in a row that are evidence without a CRC.
const IN_A_ROW: usize = 3;
/// Reserved bits of the DDP and the RDMAP control byte, and the versions.
const DDP_CONTROL: (u8, u8) = (0x3f, 0x01);
const RDMAP_CONTROL: (u8, u8) = (0xf0, 0x40);

/// The search.
#[derive(Debug)]
pub(super) struct Seek {
    /// True if FPDUs have CRCs; `None` if that is not known.
    crc: Option<bool>,
    /// True if positions count from the beginning of Full Operation.
    aligned: bool,
    /// Bytes dropped before the buffer.
    pub(super) skipped: u64,
    /// Places in front of this offset are judged, but for `incomplete`.
    scanned: usize,
    /// Places that look like the beginning of an FPDU which is not whole yet.
    incomplete: Vec<usize>,
    /// Offsets at which TCP segments begin.
    segments: Vec<usize>,
}

/// Offset of an FPDU, and whether it has a CRC.
pub(super) struct FpduPosition {
    pub(super) offset: usize,
    pub(super) crc: bool,
}

/// Verdict on an offset.
enum OffsetVerdict {
    No,
    Yes {
        crc: bool,
    },
    /// It takes more bytes to say.
    Incomplete,
}

impl Seek {
    /// Creates the search for a direction that was followed up to here.
    pub(super) fn aligned(crc: bool) -> Self {
        Self { aligned: true, ..Self::anywhere(Some(crc)) }
    }

    /// Creates the search for a direction of which nothing is known.
    pub(super) fn anywhere(crc: Option<bool>) -> Self {
        Self { crc, aligned: false, skipped: 0, scanned: 0, incomplete: Vec::new(), segments: vec![0] }
    }

    /// Notes that no FPDU begins at the front of the buffer.
    pub(super) fn not_here(&mut self) {
        self.scanned = 1;
    }

    /// A TCP segment begins at this offset of the buffer.
    pub(super) fn segment_begins(&mut self, offset: usize) {
        self.segments.push(offset);
    }

    /// The buffer was emptied, and so many bytes are passed by.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.skipped += bytes;
        (self.scanned, self.incomplete, self.segments) = (0, Vec::new(), Vec::new());
    }

    /// Bytes at the front of the buffer in which no FPDU begins, to be dropped.
    pub(super) fn take_passed(&mut self) -> usize {
        let passed = self.incomplete.first().copied().unwrap_or(self.scanned).min(self.scanned);
        self.skipped += passed as u64;
        self.scanned -= passed;
        self.incomplete.iter_mut().for_each(|at| *at -= passed);
        self.segments.retain(|at| *at >= passed);
        self.segments.iter_mut().for_each(|at| *at -= passed);
        passed
    }

    /// The next FPDU in `buffer`, whose first byte is at `position`; `is_lost` says whether bytes
    /// are not in the capture.
    pub(super) fn find(
        &mut self,
        buffer: &[u8],
        position: u64,
        markers: bool,
        is_lost: impl Fn(Range<usize>) -> bool,
    ) -> Option<FpduPosition> {
        let mut incomplete = std::mem::take(&mut self.incomplete);
        let mut found = None;
        incomplete.retain(|&at| match self.judge(buffer, at, position, markers, &is_lost) {
            OffsetVerdict::Yes { crc } if found.is_none() => {
                found = Some(FpduPosition { offset: at, crc });
                false
            }
            verdict => matches!(verdict, OffsetVerdict::Incomplete),
        });
        self.incomplete = incomplete;
        if found.is_some() {
            return found;
        }
        while let Some(at) = self.next_place(buffer, position, markers) {
            match self.judge(buffer, at, position, markers, &is_lost) {
                OffsetVerdict::Yes { crc } => return Some(FpduPosition { offset: at, crc }),
                OffsetVerdict::Incomplete => self.incomplete.push(at),
                OffsetVerdict::No => {}
            }
        }
        None
    }

    /// The next place that comes into question; it counts as scanned then.
    fn next_place(&mut self, buffer: &[u8], position: u64, markers: bool) -> Option<usize> {
        if markers {
            return self.next_marker(buffer, position);
        }
        let mut at = self.scanned;
        while self.aligned && !(position + at as u64).is_multiple_of(4) {
            at += 1;
        }
        (at + HEADERS <= buffer.len()).then(|| {
            self.scanned = at + 1;
            at
        })
    }

    /// The beginning of the FPDU that the next Marker points to.
    fn next_marker(&mut self, buffer: &[u8], position: u64) -> Option<usize> {
        loop {
            let from = position + self.scanned as u64;
            let marker = usize::try_from(from.next_multiple_of(MARKER_INTERVAL) - position).ok()?;
            let bytes = buffer.get(marker..marker + MARKER_LEN)?;
            self.scanned = marker + 1;
            let back = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
            if let Some(at) = marker.checked_sub(back) {
                return Some(at);
            }
        }
    }

    fn judge(
        &self,
        buffer: &[u8],
        at: usize,
        position: u64,
        markers: bool,
        is_lost: &impl Fn(Range<usize>) -> bool,
    ) -> OffsetVerdict {
        if markers {
            return self.judge_marked(buffer, at, position, is_lost);
        }
        let Some(length) = plausible(&buffer[at..]) else { return OffsetVerdict::No };
        let Some(fpdu) = buffer.get(at..at + length) else { return OffsetVerdict::Incomplete };
        if is_lost(at..at + length) {
            return OffsetVerdict::No;
        }
        let (covered, field) = fpdu.split_at(length - CRC_LEN);
        if self.crc != Some(false) && field == crc32c(covered).to_le_bytes() {
            return OffsetVerdict::Yes { crc: true };
        }
        if self.crc == Some(true) { OffsetVerdict::No } else { self.judge_row(buffer, at) }
    }

    /// Returns whether FPDUs without CRCs stand here.
    fn judge_row(&self, buffer: &[u8], at: usize) -> OffsetVerdict {
        let mut next = at;
        for count in 1..=IN_A_ROW {
            let Some(length) = plausible(&buffer[next.min(buffer.len())..]) else { return OffsetVerdict::No };
            next += length;
            let ends_segment = next == buffer.len() || self.segments.contains(&next);
            if ends_segment && self.segments.contains(&at) || count == IN_A_ROW && next <= buffer.len() {
                return OffsetVerdict::Yes { crc: false };
            }
            if next + HEADERS > buffer.len() {
                return OffsetVerdict::Incomplete;
            }
        }
        OffsetVerdict::No
    }

    /// An FPDU to which a Marker points.
    fn judge_marked(
        &self,
        buffer: &[u8],
        at: usize,
        position: u64,
        is_lost: &impl Fn(Range<usize>) -> bool,
    ) -> OffsetVerdict {
        let mut rx = FpduRx::at(false, true, position + at as u64);
        // Of one that is not whole the copy is no longer than an FPDU can be.
        let mut copy = buffer[at..].to_vec();
        let Ok(step) = rx.next(&mut copy) else { return OffsetVerdict::No };
        let Step::Fpdu(fpdu) = step else { return OffsetVerdict::Incomplete };
        let end = at + fpdu.consumed;
        let headers = plausible_headers(&fpdu.ulpdu);
        if !headers || is_lost(at..end) {
            return OffsetVerdict::No;
        }
        let (covered, field) = buffer[at..end].split_at(fpdu.consumed - CRC_LEN);
        match (self.crc, field == crc32c(covered).to_le_bytes()) {
            (_, true) => OffsetVerdict::Yes { crc: true },
            (Some(true), false) => OffsetVerdict::No,
            (_, false) => OffsetVerdict::Yes { crc: false },
        }
    }
}

/// Returns whether a whole FPDU with its CRC stands at the front.
pub(super) fn begins_with_fpdu(bytes: &[u8]) -> bool {
    let Some(fpdu) = plausible(bytes).and_then(|length| bytes.get(..length)) else { return false };
    let (covered, field) = fpdu.split_at(fpdu.len() - CRC_LEN);
    field == crc32c(covered).to_le_bytes()
}

/// The length on the wire of what may be an FPDU, by its length field and headers.
fn plausible(bytes: &[u8]) -> Option<usize> {
    let ulpdu = usize::from(u16::from_be_bytes(*bytes.first_chunk()?));
    let headers = bytes.get(LENGTH_LEN..)?;
    (ulpdu <= MAX_ULPDU && plausible_headers(&headers[..headers.len().min(ulpdu)]))
        .then(|| (LENGTH_LEN + ulpdu).next_multiple_of(4) + CRC_LEN)
}

/// Returns whether DDP and RDMAP could have sent this.
pub(super) fn plausible_headers(ulpdu: &[u8]) -> bool {
    let &[ddp, rdmap, ..] = ulpdu else { return false };
    if ddp & DDP_CONTROL.0 != DDP_CONTROL.1 || rdmap & RDMAP_CONTROL.0 & 0xc0 != RDMAP_CONTROL.1 {
        return false;
    }
    let Some(opcode) = Opcode::from_raw(rdmap & 0x0f) else { return false };
    let Ok((header, _)) = Header::parse(ulpdu) else { return false };
    match header {
        Header::Tagged(_) => opcode.queue().is_none(),
        Header::Untagged(header) => opcode.queue() == Some(header.qn),
    }
}

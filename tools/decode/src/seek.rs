//! Search for the next FPDU in a direction whose FPDU boundaries are lost. An FPDU is recognised by
//! a plausible length, plausible headers and a matching CRC. Without CRCs, three FPDUs in a row are
//! required, or fewer that fill one or more whole TCP segments.
//!
//! The length of an FPDU is a multiple of four bytes (RFC 5044 section 4.1). If the beginning of
//! Full Operation is known, only every fourth offset must be tried. With Markers, each Marker
//! points to the beginning of its FPDU (section 4.3).

use std::ops::Range;

use uiw_ddp::Header;
use uiw_mpa::{FpduRx, MAX_ULPDU, Step, crc32c};
use uiw_rdmap::Opcode;

const LENGTH_LEN: usize = 2;
const CRC_LEN: usize = 4;
const MARKER_INTERVAL: u64 = 512;
const MARKER_LEN: usize = 4;
/// Number of bytes of the length and the longest DDP header.
const HEADERS: usize = LENGTH_LEN + 18;
/// Number of FPDUs in a row that are required without a CRC.
const IN_A_ROW: usize = 3;
/// Masks of reserved bits and version in the DDP and RDMAP control bytes, and the expected values.
const DDP_CONTROL: (u8, u8) = (0x3f, 0x01);
/// Only the version of this byte is compared, because two ends may use its reserved bits
/// (`Control::SOLICITED` of `uiw_rdmap`).
const RDMAP_CONTROL: (u8, u8) = (0xc0, 0x40);

/// Search for the next FPDU.
#[derive(Debug)]
pub(super) struct FpduSearch {
    /// True if FPDUs have CRCs; `None` if that is not known.
    crc: Option<bool>,
    /// True if positions count from the beginning of Full Operation.
    aligned: bool,
    /// Number of bytes dropped before the buffer.
    pub(super) skipped: u64,
    /// Offsets below this one have been checked, except those in `incomplete`.
    scanned: usize,
    /// Offsets that look like the beginning of an FPDU that is not complete yet, in ascending
    /// order, and the length of the buffer that the verdict on each one needs.
    incomplete: Vec<(usize, usize)>,
    /// Offsets at which TCP segments begin, in ascending order.
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
    /// The buffer must have at least this length.
    Incomplete(usize),
}

impl FpduSearch {
    /// Creates a search for a direction whose FPDUs were decoded up to here.
    pub(super) fn aligned(crc: bool) -> Self {
        Self { aligned: true, ..Self::anywhere(Some(crc)) }
    }

    /// Creates a search for a direction about which nothing is known.
    pub(super) fn anywhere(crc: Option<bool>) -> Self {
        Self {
            crc,
            aligned: false,
            skipped: 0,
            scanned: 0,
            incomplete: Vec::new(),
            segments: vec![0],
        }
    }

    /// Notes that no FPDU begins at the front of the buffer.
    pub(super) fn exclude_front(&mut self) {
        self.scanned = 1;
    }

    /// Notes that a TCP segment begins at this offset of the buffer.
    pub(super) fn segment_begins(&mut self, offset: usize) {
        self.segments.push(offset);
    }

    /// Notes that the buffer was emptied and `bytes` bytes were skipped.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.skipped += bytes;
        (self.scanned, self.incomplete, self.segments) = (0, Vec::new(), Vec::new());
    }

    /// Returns the number of bytes at the front of the buffer in which no FPDU begins. The caller
    /// must drop them.
    pub(super) fn take_passed(&mut self) -> usize {
        let passed = self.incomplete.first().map_or(self.scanned, |(at, _)| self.scanned.min(*at));
        if passed == 0 {
            return 0;
        }
        self.skipped += passed as u64;
        self.scanned -= passed;
        self.incomplete
            .iter_mut()
            .for_each(|(at, needed)| (*at, *needed) = (*at - passed, *needed - passed));
        self.segments.retain(|at| *at >= passed);
        self.segments.iter_mut().for_each(|at| *at -= passed);
        passed
    }

    /// Finds the next FPDU in `buffer`, whose first byte is at `position`. `is_lost` returns
    /// whether any bytes of a range are not in the capture.
    pub(super) fn find(
        &mut self,
        buffer: &[u8],
        position: u64,
        markers: bool,
        is_lost: impl Fn(Range<usize>) -> bool,
    ) -> Option<FpduPosition> {
        let mut incomplete = std::mem::take(&mut self.incomplete);
        let mut found = None;
        incomplete.retain_mut(|(at, needed)| {
            if *needed > buffer.len() || found.is_some() {
                return true;
            }
            match self.judge(buffer, *at, position, markers, &is_lost) {
                OffsetVerdict::Yes { crc } => found = Some(FpduPosition { offset: *at, crc }),
                OffsetVerdict::Incomplete(length) => {
                    *needed = length;
                    return true;
                }
                OffsetVerdict::No => {}
            }
            false
        });
        self.incomplete = incomplete;
        if found.is_some() {
            return found;
        }
        while let Some(at) = self.next_place(buffer, position, markers) {
            match self.judge(buffer, at, position, markers, &is_lost) {
                OffsetVerdict::Yes { crc } => return Some(FpduPosition { offset: at, crc }),
                // Markers may point to the same offset, or to a lower one than earlier Markers.
                OffsetVerdict::Incomplete(needed) => {
                    if let Err(index) = self.incomplete.binary_search_by_key(&at, |(at, _)| *at) {
                        self.incomplete.insert(index, (at, needed));
                    }
                }
                OffsetVerdict::No => {}
            }
        }
        None
    }

    /// Returns the next offset to check, and marks it as checked.
    fn next_place(&mut self, buffer: &[u8], position: u64, markers: bool) -> Option<usize> {
        if markers {
            return self.next_marked_fpdu(buffer, position);
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

    /// Returns the beginning of the FPDU to which the next Marker points.
    fn next_marked_fpdu(&mut self, buffer: &[u8], position: u64) -> Option<usize> {
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
        let Some(length) = plausible_len(&buffer[at..]) else { return OffsetVerdict::No };
        let Some(fpdu) = buffer.get(at..at + length) else {
            return OffsetVerdict::Incomplete(at + length);
        };
        if is_lost(at..at + length) {
            return OffsetVerdict::No;
        }
        if self.crc != Some(false) && has_crc(fpdu) {
            return OffsetVerdict::Yes { crc: true };
        }
        if self.crc == Some(true) { OffsetVerdict::No } else { self.judge_row(buffer, at) }
    }

    /// Checks whether FPDUs without CRCs begin at this offset.
    fn judge_row(&self, buffer: &[u8], at: usize) -> OffsetVerdict {
        let mut next = at;
        for count in 1..=IN_A_ROW {
            let Some(length) = plausible_len(&buffer[next.min(buffer.len())..]) else {
                return OffsetVerdict::No;
            };
            next += length;
            let begins_segment = |at: usize| self.segments.binary_search(&at).is_ok();
            let ends_segment = next == buffer.len() || begins_segment(next);
            // FPDUs that fill whole TCP segments are accepted even if there are fewer than
            // `IN_A_ROW`.
            if ends_segment && begins_segment(at) || count == IN_A_ROW && next <= buffer.len() {
                return OffsetVerdict::Yes { crc: false };
            }
            if next > buffer.len() {
                return OffsetVerdict::Incomplete(next);
            }
            if next + HEADERS > buffer.len() {
                return OffsetVerdict::Incomplete(next + HEADERS);
            }
        }
        OffsetVerdict::No
    }

    /// Checks an FPDU to which a Marker points.
    fn judge_marked(
        &self,
        buffer: &[u8],
        at: usize,
        position: u64,
        is_lost: &impl Fn(Range<usize>) -> bool,
    ) -> OffsetVerdict {
        // The receiver ignores CRCs, because it may be unknown whether FPDUs have them. The CRC is
        // compared below.
        let mut rx = FpduRx::with_position(false, true, position + at as u64);
        // While the FPDU is incomplete, the copy is not longer than an FPDU can be.
        let mut copy = buffer[at..].to_vec();
        let fpdu = match rx.next(&mut copy) {
            Ok(Step::Fpdu(fpdu)) => fpdu,
            Ok(Step::NeedMore { at_least }) => return OffsetVerdict::Incomplete(at + at_least),
            Err(_) => return OffsetVerdict::No,
        };
        let end = at + fpdu.consumed;
        let headers = plausible_headers(&fpdu.ulpdu);
        if !headers || is_lost(at..end) {
            return OffsetVerdict::No;
        }
        match has_crc(&buffer[at..end]) {
            false if self.crc == Some(true) => OffsetVerdict::No,
            crc => OffsetVerdict::Yes { crc },
        }
    }
}

/// Returns whether the bytes begin with a complete FPDU with a matching CRC.
pub(super) fn begins_with_fpdu(bytes: &[u8]) -> bool {
    plausible_len(bytes).and_then(|length| bytes.get(..length)).is_some_and(has_crc)
}

/// Returns whether the last bytes of an FPDU are the CRC of the others.
fn has_crc(fpdu: &[u8]) -> bool {
    let (covered, field) = fpdu.split_at(fpdu.len() - CRC_LEN);
    field == crc32c(covered).to_le_bytes()
}

/// Returns the length on the wire of a possible FPDU at the front, if its length field and headers
/// are plausible.
fn plausible_len(bytes: &[u8]) -> Option<usize> {
    let ulpdu = usize::from(u16::from_be_bytes(*bytes.first_chunk()?));
    let headers = bytes.get(LENGTH_LEN..)?;
    (ulpdu <= MAX_ULPDU && plausible_headers(&headers[..headers.len().min(ulpdu)]))
        .then(|| (LENGTH_LEN + ulpdu).next_multiple_of(4) + CRC_LEN)
}

/// Returns whether the headers are valid for DDP and RDMAP.
pub(super) fn plausible_headers(ulpdu: &[u8]) -> bool {
    let &[ddp, rdmap, ..] = ulpdu else { return false };
    if ddp & DDP_CONTROL.0 != DDP_CONTROL.1 || rdmap & RDMAP_CONTROL.0 != RDMAP_CONTROL.1 {
        return false;
    }
    let Some(opcode) = Opcode::from_raw(rdmap & 0x0f) else { return false };
    let Ok((header, _)) = Header::parse(ulpdu) else { return false };
    match header {
        Header::Tagged(_) => opcode.queue().is_none(),
        Header::Untagged(header) => opcode.queue() == Some(header.qn),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Markers of a hostile sender may point in any order.
    #[test]
    fn markers_pointing_backwards() {
        let mut buffer = vec![0; 1100];
        for (marker, back) in [(508, 8), (1020, 860)] {
            buffer[marker + 2..marker + 4].copy_from_slice(&(back as u16).to_be_bytes());
            buffer[marker - back] = 0xfc;
        }
        let mut seek = FpduSearch::aligned(true);
        for _ in 0..2 {
            assert!(seek.find(&buffer, 4, true, |_| false).is_none());
        }
        assert_eq!(seek.take_passed(), 160);
        assert!(seek.incomplete.iter().map(|(at, _)| *at).eq([0, 340]));
    }

    /// A large FPDU seems to begin in each segment.
    #[test]
    fn tiny_segments_cost_little() {
        let begun = Instant::now();
        let (mut seek, mut buffer) = (FpduSearch::aligned(false), Vec::new());
        let mut position = 2;
        for _ in 0..20_000 {
            seek.segment_begins(buffer.len());
            buffer.extend([0xc1, 0x40, 0xfc, 0]);
            assert!(seek.find(&buffer, position, false, |_| false).is_none());
            position += buffer.drain(..seek.take_passed()).len() as u64;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}

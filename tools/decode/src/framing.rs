//! FPDUs of one direction, even if some bytes are not in the capture or a CRC is wrong.
//!
//! [`FpduRx`] stops at the first invalid FPDU, as RFC 5044 section 8 requires of a receiver. A
//! decoder must continue. FPDUs are therefore split with CRCs off, in a copy whose Markers were
//! corrected. The CRC and the Markers are then checked in the original bytes.

use std::collections::VecDeque;
use std::ops::Range;

use uiw_mpa::{FpduRx, MAX_FPDU_ON_WIRE, MIN_FPDU, Step, crc32c, pad_len};

use super::event::{Crc, Event};
use super::seek::{self, FpduPosition, FpduSearch};

const MARKER_INTERVAL: u64 = 512;
const MARKER_LEN: usize = 4;
const LENGTH_LEN: usize = 2;
const CRC_LEN: usize = 4;
/// Number of bytes before a tagged payload: ULPDU_Length and the headers of DDP and RDMAP (RFC 5041
/// section 4.2).
const TAGGED: usize = LENGTH_LEN + 14;
/// Number of bytes before an untagged payload: ULPDU_Length and the headers of DDP and RDMAP (RFC
/// 5041 section 4.3).
const UNTAGGED: usize = LENGTH_LEN + 18;
const SUMMED_TWICE: &str = ": that of the payload summed twice, an error of the Linux siw driver";

/// Splits the bytes of one direction of Full Operation into FPDUs.
#[derive(Debug)]
pub(super) struct Framing {
    rx: FpduRx,
    crc: bool,
    /// Bytes from the position of `rx` on. Bytes that are not in the capture are zero.
    buffer: Vec<u8>,
    /// Positions of bytes that are not in the capture, in order.
    lost: VecDeque<Range<u64>>,
    /// Minimum length of the buffer with which an FPDU can be complete.
    at_least: usize,
    /// Search for the next FPDU, if the boundaries are lost.
    seek: Option<FpduSearch>,
    /// True if the format of FPDUs is a guess. Bytes that cannot be an FPDU are then skipped,
    /// instead of being reported as a departure from the RFCs.
    pub(super) is_guess: bool,
}

/// Next item of a direction.
#[derive(Debug)]
pub(super) enum FramingItem {
    Fpdu(CapturedFpdu),
    /// The bytes so far contain no further item.
    Nothing,
    /// The length of the FPDU at this position is not in the capture, so the boundaries are lost.
    Lost(u64),
    /// An FPDU begins here; `skipped` bytes before it could not be decoded.
    Resumed {
        position: u64,
        skipped: u64,
    },
}

/// A complete FPDU.
#[derive(Debug)]
pub(super) struct CapturedFpdu {
    pub(super) position: u64,
    pub(super) ulpdu: Vec<u8>,
    pub(super) crc: Crc,
    pub(super) crc_field: u32,
    pub(super) markers: u16,
    /// Smallest range of `ulpdu` with all bytes that are not in the capture.
    pub(super) unknown: Option<Range<usize>>,
    pub(super) departures: Vec<Event>,
}

impl Framing {
    pub(super) fn new(crc: bool, markers: bool) -> Self {
        Self {
            rx: FpduRx::new(false, markers),
            crc,
            buffer: Vec::new(),
            lost: VecDeque::new(),
            at_least: 0,
            seek: None,
            is_guess: false,
        }
    }

    /// Creates the framing of a direction whose startup frame is not in the capture. It is not
    /// known where FPDUs begin and, if `crc` is `None`, whether they have CRCs.
    pub(super) fn without_startup(crc: Option<bool>) -> Self {
        Self { seek: Some(FpduSearch::anywhere(crc)), ..Self::new(crc.unwrap_or(true), false) }
    }

    /// Returns the number of bytes of Full Operation before the buffer.
    pub(super) fn position(&self) -> u64 {
        self.rx.position()
    }

    /// Returns the number of buffered bytes, which are not a complete FPDU.
    pub(super) fn pending(&self) -> usize {
        self.buffer.len()
    }

    /// Returns whether the FPDU boundaries are lost.
    pub(super) fn is_seeking(&self) -> bool {
        self.seek.is_some()
    }

    /// Adds the next bytes of the direction, which begin with a TCP segment.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if let Some(seek) = &mut self.seek {
            seek.segment_begins(self.buffer.len());
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Adds bytes that are not in the capture.
    pub(super) fn push_lost(&mut self, bytes: u64) -> FramingItem {
        let position = self.position();
        let start = position + self.buffer.len() as u64;
        if let Ok(length) = usize::try_from(bytes)
            && length <= MAX_FPDU_ON_WIRE
            && self.seek.is_none()
        {
            self.buffer.resize(self.buffer.len() + length, 0);
            self.lost.push_back(start..start + bytes);
            return FramingItem::Nothing;
        }
        // The bytes before the missing ones are not a complete FPDU, and the next FPDU begins
        // within the missing bytes.
        let before = self.buffer.len() as u64;
        self.restart(start + bytes);
        let was = self.seek.take();
        let newly = was.is_none();
        let mut seek = was.unwrap_or_else(|| FpduSearch::aligned(self.crc));
        seek.skip(before + bytes);
        self.seek = Some(seek);
        if newly { FramingItem::Lost(position) } else { FramingItem::Nothing }
    }

    /// Empties the buffer. The next byte is at `position`.
    fn restart(&mut self, position: u64) {
        self.buffer.clear();
        self.lost.clear();
        self.at_least = 0;
        self.rx = FpduRx::with_position(false, self.rx.markers(), position);
    }

    /// Begins a search, because the boundaries are lost.
    fn lose_boundaries(&mut self, position: u64) -> FramingItem {
        self.seek = Some(FpduSearch::aligned(self.crc));
        self.at_least = 0;
        FramingItem::Lost(position)
    }

    /// Returns the next item.
    pub(super) fn next(&mut self) -> FramingItem {
        if let Some(seek) = &mut self.seek {
            let position = self.rx.position();
            let is_lost = |range: Range<usize>| overlap(&self.lost, position, &range).is_some();
            let Some(FpduPosition { offset, crc }) =
                seek.find(&self.buffer, position, self.rx.markers(), is_lost)
            else {
                let passed = seek.take_passed();
                self.advance(passed);
                return FramingItem::Nothing;
            };
            let skipped = seek.skipped + offset as u64;
            self.crc = crc;
            self.seek = None;
            self.advance(offset);
            return FramingItem::Resumed { position: self.position(), skipped };
        }
        let position = self.position();
        let lead = if self.rx.markers() && position.is_multiple_of(MARKER_INTERVAL) {
            MARKER_LEN
        } else {
            0
        };
        if self.buffer.len() >= lead + LENGTH_LEN
            && self.overlap(position, &(lead..lead + LENGTH_LEN)).is_some()
        {
            return self.lose_boundaries(position);
        }
        // Copy first the bytes with the length, then only the FPDU, so that the copies stay small.
        self.at_least = self.at_least.max(lead + MIN_FPDU);
        while let Some(front) = self.buffer.get(..self.at_least) {
            let mut copy = front.to_vec();
            let markers = self.set_markers(position, lead, &mut copy);
            match self.rx.next(&mut copy) {
                Ok(Step::Fpdu(fpdu)) => {
                    let cut =
                        self.judge(position, &fpdu.ulpdu, fpdu.start, fpdu.consumed, &markers);
                    if self.is_guess
                        && (cut.crc == Crc::Bad || !seek::plausible_headers(&cut.ulpdu))
                    {
                        self.rx = FpduRx::with_position(false, self.rx.markers(), position);
                        let lost = self.lose_boundaries(position);
                        self.seek.as_mut().into_iter().for_each(FpduSearch::exclude_front);
                        return lost;
                    }
                    self.buffer.drain(..fpdu.consumed);
                    self.at_least = 0;
                    self.forget_lost();
                    return FramingItem::Fpdu(cut);
                }
                Ok(Step::NeedMore { at_least }) if at_least > self.at_least => {
                    self.at_least = at_least;
                }
                // With CRCs off and correct Markers, no other result is possible.
                Ok(Step::NeedMore { .. }) | Err(_) => return self.lose_boundaries(position),
            }
        }
        FramingItem::Nothing
    }

    /// Drops bytes at the front that are not part of an FPDU.
    fn advance(&mut self, bytes: usize) {
        let position = self.position() + bytes as u64;
        self.buffer.drain(..bytes);
        self.rx = FpduRx::with_position(false, self.rx.markers(), position);
        self.forget_lost();
    }

    fn forget_lost(&mut self) {
        let position = self.position();
        self.lost.retain(|lost| lost.end > position);
    }

    /// Corrects the Markers in `copy`, as if the FPDU at its front were the only one. Markers
    /// beyond its end are handled with the next FPDU.
    fn set_markers(&self, position: u64, lead: usize, copy: &mut [u8]) -> Vec<(usize, u16)> {
        if !self.rx.markers() {
            return Vec::new();
        }
        let first = (MARKER_INTERVAL - position % MARKER_INTERVAL) % MARKER_INTERVAL;
        let interval = MARKER_INTERVAL as usize;
        let mut markers = Vec::new();
        for at in (first as usize..copy.len()).step_by(interval) {
            let pointer = if at < lead { Some(0) } else { u16::try_from(at - lead).ok() };
            if let (Some(pointer), Some(marker)) = (pointer, copy.get_mut(at..at + MARKER_LEN)) {
                let [high, low] = pointer.to_be_bytes();
                marker.copy_from_slice(&[0, 0, high, low]);
                markers.push((at, pointer));
            }
        }
        markers
    }

    fn judge(
        &self,
        position: u64,
        ulpdu: &[u8],
        start: usize,
        consumed: usize,
        markers: &[(usize, u16)],
    ) -> CapturedFpdu {
        let whole = &self.buffer[..consumed];
        let markers = &markers[..markers.partition_point(|(at, _)| *at < consumed)];
        let (covered, field) = whole.split_at(consumed - CRC_LEN);
        let crc_field = field.first_chunk().map_or(0, |field| u32::from_le_bytes(*field));
        let damaged = self.overlap(position, &(0..consumed)).is_some();
        let crc = match (self.crc, damaged) {
            (false, _) => Crc::Off,
            (true, true) => Crc::Unknown,
            (true, false) if crc32c(covered) == crc_field => Crc::Good,
            (true, false) => Crc::Bad,
        };
        let mut departures = Vec::new();
        if crc == Crc::Bad {
            let computed = crc32c(covered);
            let twice = if sums_payload_twice(covered, crc_field) { SUMMED_TWICE } else { "" };
            let what = format!("CRC is {crc_field:#010x}, computed {computed:#010x}{twice}");
            departures.push(Event::departure("RFC 5044 4.4", what));
        }
        if crc == Crc::Off
            && crc_field != 0
            && self.overlap(position, &(consumed - CRC_LEN..consumed)).is_none()
        {
            let what = format!(
                "CRCs are off, yet the CRC field holds {crc_field:#010x} (allowed, to be ignored)"
            );
            departures.push(Event::departure("RFC 5044 7.1.1", what));
        }
        self.judge_markers(position, whole, markers, &mut departures);
        if !damaged {
            judge_pad(whole, ulpdu.len(), markers, &mut departures);
        }
        // The positions of a byte in the ULPDU and on the wire differ by the Markers before the
        // byte.
        let unknown = self.overlap(position, &(0..consumed)).map(|lost| {
            let inner = |at: usize| {
                let before =
                    markers.iter().filter(|(marker, _)| *marker >= start && *marker < at).count();
                at.saturating_sub(start).saturating_sub(before * MARKER_LEN)
            };
            inner(lost.start)..inner(lost.end).min(ulpdu.len())
        });
        let unknown = unknown.filter(|unknown| !unknown.is_empty());
        let count = u16::try_from(markers.len()).unwrap_or(u16::MAX);
        CapturedFpdu {
            position,
            ulpdu: ulpdu.to_vec(),
            crc,
            crc_field,
            markers: count,
            unknown,
            departures,
        }
    }

    fn judge_markers(
        &self,
        position: u64,
        whole: &[u8],
        markers: &[(usize, u16)],
        departures: &mut Vec<Event>,
    ) {
        for &(at, expected) in markers {
            let Some([r0, r1, high, low]) =
                whole.get(at..).and_then(|bytes| bytes.first_chunk()).copied()
            else {
                continue;
            };
            if self.overlap(position, &(at..at + MARKER_LEN)).is_some() {
                continue;
            }
            let (reserved, pointer) =
                (u16::from_be_bytes([r0, r1]), u16::from_be_bytes([high, low]));
            let place = position + at as u64;
            if reserved != 0 {
                let what =
                    format!("the Marker at byte {place} has {reserved:#06x} in its reserved field");
                departures.push(Event::departure("RFC 5044 4.3", what));
            }
            if pointer != expected {
                let what = format!(
                    "the Marker at byte {place} points {pointer} bytes back, the FPDU begins {expected} back"
                );
                departures.push(Event::departure("RFC 5044 4.3", what));
            }
        }
    }

    fn overlap(&self, position: u64, range: &Range<usize>) -> Option<Range<usize>> {
        overlap(&self.lost, position, range)
    }
}

/// Returns the smallest range with all bytes of `range` that are in `lost`. `range` is relative to
/// `position`.
fn overlap(
    lost: &VecDeque<Range<u64>>,
    position: u64,
    range: &Range<usize>,
) -> Option<Range<usize>> {
    let (start, end) = (position + range.start as u64, position + range.end as u64);
    let mut within = lost.iter().filter(|lost| lost.start < end && lost.end > start);
    let first = within.next()?;
    let last = within.next_back().unwrap_or(first);
    let local = |at: u64| usize::try_from(at - position).unwrap_or(usize::MAX);
    Some(local(first.start.max(start))..local(last.end.min(end)))
}

/// Returns whether `crc` is the result of including the payload, after a tagged or an untagged
/// header, twice. The Linux siw driver sends such an FPDU when two threads transmit it at the same
/// time: one continues before the other has recorded that the CRC is complete.
fn sums_payload_twice(covered: &[u8], crc: u32) -> bool {
    [TAGGED, UNTAGGED].into_iter().any(|header| {
        covered.get(header..).is_some_and(|payload| crc32c(&[covered, payload].concat()) == crc)
    })
}

/// Checks that PAD is zero. PAD is between ULPDU and CRC; a Marker may be anywhere in it.
fn judge_pad(
    whole: &[u8],
    ulpdu_len: usize,
    markers: &[(usize, u16)],
    departures: &mut Vec<Event>,
) {
    let is_marker =
        |at: usize| markers.iter().any(|(marker, _)| (*marker..*marker + MARKER_LEN).contains(&at));
    let before_crc = (0..whole.len() - CRC_LEN).rev().filter(|at| !is_marker(*at));
    let pad: Vec<u8> = before_crc.take(pad_len(ulpdu_len)).map(|at| whole[at]).collect();
    if pad.iter().any(|byte| *byte != 0) {
        let pad: Vec<u8> = pad.into_iter().rev().collect();
        departures.push(Event::departure("RFC 5044 4.1", format!("PAD is {pad:02x?}, not zero")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An FPDU that siw sent: the 33rd of a Send of 65,536 bytes.
    #[test]
    fn double_summed_siw_crc_recognised() {
        let mut fpdu =
            vec![0x05, 0xaa, 0x01, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x1e, 0, 0, 0xb3, 0];
        fpdu.extend((0xb300..0xb300 + 1432).map(|at: u32| (246 + at * 31 + (at >> 8) * 17) as u8));
        let sent = u32::from_le_bytes([0xd7, 0xdc, 0x15, 0xe3]);
        assert_ne!(crc32c(&fpdu), sent);
        assert!(sums_payload_twice(&fpdu, sent));
        assert!(!sums_payload_twice(&fpdu, sent ^ 1));
        assert!(!sums_payload_twice(&fpdu, crc32c(&fpdu)));
    }
}

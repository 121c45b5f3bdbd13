//! Positions of the Markers in an FPDU (RFC 5044 section 4.3).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |           RESERVED            |            FPDUPTR            |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//!
//! There is a Marker at every 512th byte of Full Operation of a direction. The first one precedes
//! the first FPDU. The length of an FPDU is a multiple of four, so a Marker never splits
//! ULPDU_Length or the CRC field. A Marker between two FPDUs belongs to the second one.

/// Length of a Marker in bytes.
pub(crate) const MARKER_LEN: usize = 4;

/// Distance in bytes of the stream from the start of one Marker to the start of the next.
const INTERVAL: usize = 512;

/// Number of FPDU bytes between two Markers.
pub(crate) const FPDU_STRIDE: usize = INTERVAL - MARKER_LEN;

/// Positions of the Markers in one FPDU, which follow from its position in the stream and its
/// length.
///
/// ```text
/// lead_len       first           FPDU_STRIDE       FPDU_STRIDE
/// ┌────┬──────────────────────┬────┬─────────────┬────┬───────╌╌
/// │ M? │ ULPDU_Length ULPDU.. │ M  │ ..ULPDU..   │ M  │ ..
/// └────┴──────────────────────┴────┴─────────────┴────┴───────╌╌
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MarkerLayout {
    /// Length in bytes of the Marker directly before ULPDU_Length: 4, or 0 if there is none.
    pub(crate) lead_len: usize,
    /// Number of FPDU bytes before the first Marker that follows ULPDU_Length, from 4 to 508.
    first: usize,
    /// Number of Markers after ULPDU_Length.
    inner: usize,
    /// Length of the FPDU in bytes, without Markers.
    fpdu_len: usize,
}

impl MarkerLayout {
    /// Computes the layout of an FPDU. `position` is the number of bytes of Full Operation before
    /// it, and `fpdu_len` its length without Markers.
    #[inline]
    pub(crate) fn new(position: u64, fpdu_len: usize) -> Self {
        let past_marker = (position % INTERVAL as u64) as usize;
        let (lead_len, first) =
            if past_marker == 0 { (MARKER_LEN, FPDU_STRIDE) } else { (0, INTERVAL - past_marker) };
        // A Marker directly after the CRC field belongs to the next FPDU, so only Markers that are
        // followed by bytes of this FPDU count.
        let inner = fpdu_len.saturating_sub(first).div_ceil(FPDU_STRIDE);
        Self { lead_len, first, inner, fpdu_len }
    }

    /// Returns the length on the wire in bytes, including all Markers.
    #[inline]
    pub(crate) fn wire_len(&self) -> usize {
        self.lead_len + self.fpdu_len + MARKER_LEN * self.inner
    }

    /// Returns the number of inner Markers: those after ULPDU_Length.
    #[inline]
    pub(crate) fn inner_count(&self) -> usize {
        self.inner
    }

    /// Returns the number of FPDU bytes before inner Marker `n`, counted from 0.
    #[inline]
    pub(crate) fn fpdu_offset(&self, n: usize) -> usize {
        self.first + FPDU_STRIDE * n
    }

    /// Returns the FPDUPTR of inner Marker `n`: the distance in bytes from ULPDU_Length to the
    /// Marker.
    #[inline]
    pub(crate) fn pointer(&self, n: usize) -> usize {
        self.first + INTERVAL * n
    }
}

/// Encodes a Marker with this FPDUPTR.
#[inline]
pub(crate) fn emit(pointer: u16) -> [u8; MARKER_LEN] {
    let [high, low] = pointer.to_be_bytes();
    [0, 0, high, low]
}

/// Decodes the FPDUPTR of a Marker. The reserved half is ignored, and the two low bits are taken as
/// zero.
#[inline]
pub(crate) fn parse(marker: [u8; MARKER_LEN]) -> u16 {
    u16::from_be_bytes([marker[2], marker[3]]) & !0b11
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Walks the stream word by word, as the RFC describes it.
    fn by_walking(position: u64, fpdu_len: usize) -> (usize, Vec<usize>) {
        let (mut at, mut lead_len, mut pointers) = (position, 0, Vec::new());
        if at % 512 == 0 {
            (at, lead_len) = (at + 4, 4);
        }
        let (start, mut left) = (at, fpdu_len);
        while left > 0 {
            if at % 512 == 0 {
                pointers.push((at - start) as usize);
            } else {
                left -= 4;
            }
            at += 4;
        }
        (lead_len, pointers)
    }

    // [test:RFC5044-4.3-03] [test:RFC5044-4.3-07] [test:RFC5044-4.3-08]
    #[test]
    fn layout_agrees_with_walking_the_stream() {
        let near_wrap = (1u64 << 32) - 512;
        // Miri takes a part, and nothing long.
        let (positions, lengths) = if cfg!(miri) { (508, 50) } else { (4, 1) };
        for position in (0..1024).chain(near_wrap..near_wrap + 1024).step_by(positions) {
            for fpdu_len in (8..2200).step_by(4).chain([64_776, 65_544]).step_by(lengths) {
                let (lead_len, pointers) = by_walking(position, fpdu_len);
                let layout = MarkerLayout::new(position, fpdu_len);
                let found: Vec<_> = (0..layout.inner_count()).map(|n| layout.pointer(n)).collect();
                assert_eq!(
                    (layout.lead_len, found),
                    (lead_len, pointers),
                    "at {position}, {fpdu_len} bytes"
                );
                assert_eq!(layout.wire_len(), lead_len + fpdu_len + 4 * layout.inner_count());
            }
        }
    }

    // [test:RFC5044-4.2-02] [test:RFC5044-4.2-03b] [test:RFC5044-4.3-06]
    #[test]
    fn reserved_bits_ignored() {
        assert_eq!(parse([0xFF, 0xFF, 0x01, 0xFF]), 0x01FC);
        assert_eq!(emit(0x01FC), [0, 0, 0x01, 0xFC]);
    }
}

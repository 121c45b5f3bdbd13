//! Where the Markers of an FPDU stand (RFC 5044 section 4.3).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |           RESERVED            |            FPDUPTR            |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//!
//! A Marker stands at every 512th byte of Full Operation in its direction, the first one before the
//! first FPDU. FPDUs are multiples of four bytes long, so a Marker never splits ULPDU_Length or the
//! CRC field. A Marker that falls between two FPDUs belongs to the second.

/// Bytes of a Marker.
pub(crate) const MARKER_LEN: usize = 4;

/// Bytes of the stream from one Marker to the next.
const INTERVAL: usize = 512;

/// Bytes of FPDU between two Markers.
pub(crate) const FPDU_STRIDE: usize = INTERVAL - MARKER_LEN;

/// The Markers of one FPDU that starts at a known position of the stream.
///
/// ```text
/// lead_len       first           FPDU_STRIDE       FPDU_STRIDE
/// ┌────┬──────────────────────┬────┬─────────────┬────┬───────╌╌
/// │ M? │ ULPDU_Length ULPDU.. │ M  │ ..ULPDU..   │ M  │ ..
/// └────┴──────────────────────┴────┴─────────────┴────┴───────╌╌
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MarkerLayout {
    /// Bytes of the Marker right before ULPDU_Length: 4, or 0 when there is none.
    pub(crate) lead_len: usize,
    /// Bytes of FPDU before the first Marker behind ULPDU_Length: 4..=508.
    first: usize,
    /// Markers behind ULPDU_Length.
    inner: usize,
    /// Bytes of the FPDU without its Markers.
    fpdu_len: usize,
}

impl MarkerLayout {
    /// `position`: bytes of Full Operation before this FPDU; `fpdu_len`: its bytes without Markers.
    #[inline]
    pub(crate) fn new(position: u64, fpdu_len: usize) -> Self {
        let past_marker = (position % INTERVAL as u64) as usize;
        let (lead_len, first) =
            if past_marker == 0 { (MARKER_LEN, FPDU_STRIDE) } else { (0, INTERVAL - past_marker) };
        // A Marker right behind the CRC field is the next FPDU's: only those with FPDU bytes behind
        // them count.
        let inner = fpdu_len.saturating_sub(first).div_ceil(FPDU_STRIDE);
        Self { lead_len, first, inner, fpdu_len }
    }

    /// Bytes on the wire, all Markers included.
    #[inline]
    pub(crate) fn wire_len(&self) -> usize {
        self.lead_len + self.fpdu_len + MARKER_LEN * self.inner
    }

    /// Markers behind ULPDU_Length.
    #[inline]
    pub(crate) fn inner_count(&self) -> usize {
        self.inner
    }

    /// Bytes of FPDU before inner Marker `n` (0-based).
    #[inline]
    pub(crate) fn fpdu_offset(&self, n: usize) -> usize {
        self.first + FPDU_STRIDE * n
    }

    /// Bytes from ULPDU_Length to the first byte of inner Marker `n`: its FPDUPTR.
    #[inline]
    pub(crate) fn pointer(&self, n: usize) -> usize {
        self.first + INTERVAL * n
    }
}

/// The bytes of a Marker.
#[inline]
pub(crate) fn emit(pointer: u16) -> [u8; MARKER_LEN] {
    let [high, low] = pointer.to_be_bytes();
    [0, 0, high, low]
}

/// The FPDUPTR of a Marker; the reserved half is ignored, and the low two bits count as zero.
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
                assert_eq!((layout.lead_len, found), (lead_len, pointers), "at {position}, {fpdu_len} bytes");
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

//! Lengths of ULPDU, FPDU and MULPDU (RFC 5044 sections 3, 4.1, 4.5).

use crate::marker::MARKER_LEN;

/// Length in bytes of the ULPDU_Length field.
pub(crate) const LENGTH_LEN: usize = 2;

/// Length in bytes of the CRC field.
pub(crate) const CRC_LEN: usize = 4;

/// Maximum length of a ULPDU that DDP may post: 64,768 bytes (RFC 5044 section 3). With this limit,
/// FPDUPTR cannot overflow.
pub const MAX_ULPDU: usize = 64_768;

/// Minimum MULPDU that MPA may announce: 128 bytes (RFC 5044 section 3).
pub const MIN_MULPDU: usize = 128;

/// Length in bytes of the shortest FPDU, which has an empty ULPDU.
pub const MIN_FPDU: usize = fpdu_len(0);

/// Length in bytes of the longest FPDU that a peer can send, including Markers.
///
/// The field ULPDU_Length can exceed [`MAX_ULPDU`]. Such FPDUs are accepted, so buffers must have
/// room for them.
pub const MAX_FPDU_ON_WIRE: usize = {
    let plain = fpdu_len(u16::MAX as usize);
    // There are 508 bytes of FPDU between two Markers. In the worst case, a Marker is directly
    // before the FPDU or 4 bytes after its start.
    plain + MARKER_LEN * (plain.div_ceil(508) + 1)
};

/// Returns the length in bytes of the PAD after a ULPDU of `ulpdu_len` bytes: 0 to 3 (RFC 5044
/// section 4.1).
#[inline]
#[must_use]
pub const fn pad_len(ulpdu_len: usize) -> usize {
    (LENGTH_LEN + ulpdu_len).wrapping_neg() % 4
}

/// Returns the length in bytes of the FPDU with a ULPDU of `ulpdu_len` bytes, without Markers. It
/// is always a multiple of four.
///
/// ```
/// assert_eq!(uiw_mpa::fpdu_len(42), 48);
/// assert_eq!(uiw_mpa::fpdu_len(0), 8);
/// ```
#[inline]
#[must_use]
pub const fn fpdu_len(ulpdu_len: usize) -> usize {
    LENGTH_LEN + ulpdu_len + pad_len(ulpdu_len) + CRC_LEN
}

/// Returns the MULPDU: the maximum length in bytes of a ULPDU whose FPDU fits in a TCP segment of
/// `emss` bytes (RFC 5044 section 4.5), limited to the range from [`MIN_MULPDU`] to [`MAX_ULPDU`].
#[must_use]
pub const fn mulpdu(emss: usize, markers: bool) -> usize {
    let marker_bytes = if markers { MARKER_LEN * emss.div_ceil(512) } else { 0 };
    let fits = emss.saturating_sub(LENGTH_LEN + CRC_LEN + marker_bytes + emss % 4);
    if fits < MIN_MULPDU {
        MIN_MULPDU
    } else if fits > MAX_ULPDU {
        MAX_ULPDU
    } else {
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marker::MarkerLayout;

    #[test]
    fn pad_completes_the_word() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(pad_len), [2, 1, 0, 3, 2, 1]);
        for len in 0..=u16::MAX as usize {
            assert_eq!(fpdu_len(len) % 4, 0);
            assert!(fpdu_len(len) - len - 6 < 4);
        }
    }

    // [test:RFC5044-4.5-01] [test:RFC5044-4.5-02] [test:RFC5044-3-02]
    #[test]
    fn mulpdu_by_the_formula() {
        for (emss, plain, with_markers) in [
            (1460, 1454, 1442),
            (1448, 1442, 1430),
            (8948, 8942, 8870),
            (536, 530, 522),
            (1461, 1454, 1442),
        ] {
            assert_eq!(mulpdu(emss, false), plain, "EMSS {emss}");
            assert_eq!(mulpdu(emss, true), with_markers, "EMSS {emss} with Markers");
        }
    }

    // [test:RFC5044-3-04] [test:RFC5044-4.5-06] [test:RFC5044-4.5-07]
    #[test]
    fn mulpdu_stays_in_its_range() {
        for emss in 0..140_000 {
            for markers in [false, true] {
                assert!((MIN_MULPDU..=MAX_ULPDU).contains(&mulpdu(emss, markers)));
            }
        }
        assert_eq!(mulpdu(65_483, false), MAX_ULPDU);
        assert_eq!(mulpdu(0, true), MIN_MULPDU);
    }

    /// With a ULPDU of the MULPDU's length, the FPDU fits in one TCP segment, at all positions of
    /// the Markers.
    #[test]
    fn mulpdu_fits_into_segment() {
        // Miri is slow, so it tests only some of the cases.
        for emss in (150..3000).step_by(if cfg!(miri) { 229 } else { 1 }) {
            assert!(fpdu_len(mulpdu(emss, false)) <= emss);
            for position in (0..512).step_by(4) {
                let layout = MarkerLayout::new(position, fpdu_len(mulpdu(emss, true)));
                assert!(layout.wire_len() <= emss, "EMSS {emss} at {position}: {layout:?}");
            }
        }
    }

    #[test]
    fn largest_fpdu_is_an_upper_bound() {
        let longest =
            (0..512).step_by(4).map(|at| MarkerLayout::new(at, fpdu_len(65_535)).wire_len()).max();
        assert!(longest.unwrap() <= MAX_FPDU_ON_WIRE);
        assert!(MAX_FPDU_ON_WIRE - longest.unwrap() <= MARKER_LEN);
    }
}

//! How long things are: ULPDU, FPDU, MULPDU (RFC 5044 sections 3, 4.1, 4.5).

use crate::marker::MARKER_LEN;

/// Bytes of the ULPDU_Length field.
pub(crate) const LENGTH_LEN: usize = 2;

/// Bytes of the CRC field.
pub(crate) const CRC_LEN: usize = 4;

/// The largest ULPDU DDP may post: 64,768 bytes (RFC 5044 section 3). With it, FPDUPTR cannot
/// overflow.
pub const MAX_ULPDU: usize = 64_768;

/// The smallest MULPDU MPA may announce: 128 bytes (RFC 5044 section 3).
pub const MIN_MULPDU: usize = 128;

/// Bytes of the smallest FPDU: that of an empty ULPDU.
pub const MIN_FPDU: usize = fpdu_len(0);

/// Bytes of the largest FPDU a peer can put on the wire, its Markers included.
///
/// ULPDU_Length can announce more than [`MAX_ULPDU`]; such FPDUs are taken, so buffers are sized
/// for them.
pub const MAX_FPDU_ON_WIRE: usize = {
    let plain = fpdu_len(u16::MAX as usize);
    // Markers stand 508 bytes of FPDU apart; at worst one stands right in front of the FPDU or 4
    // bytes behind.
    plain + MARKER_LEN * (plain.div_ceil(508) + 1)
};

/// Bytes of PAD behind a ULPDU of `ulpdu_len` bytes: 0 to 3 (RFC 5044 section 4.1).
#[inline]
#[must_use]
pub const fn pad_len(ulpdu_len: usize) -> usize {
    (LENGTH_LEN + ulpdu_len).wrapping_neg() % 4
}

/// Bytes of the FPDU around a ULPDU of `ulpdu_len` bytes, without Markers: always a multiple of
/// four.
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

/// The largest ULPDU whose FPDU fills a TCP segment of `emss` bytes (RFC 5044 section 4.5), kept
/// between [`MIN_MULPDU`] and [`MAX_ULPDU`].
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
        for (emss, plain, with_markers) in
            [(1460, 1454, 1442), (1448, 1442, 1430), (8948, 8942, 8870), (536, 530, 522), (1461, 1454, 1442)]
        {
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

    /// The purpose of MULPDU: the FPDU fits into one TCP segment, wherever the Markers fall.
    #[test]
    fn mulpdu_fits_into_segment() {
        // Miri takes a part.
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
        let longest = (0..512).step_by(4).map(|at| MarkerLayout::new(at, fpdu_len(65_535)).wire_len()).max();
        assert!(longest.unwrap() <= MAX_FPDU_ON_WIRE);
        assert!(MAX_FPDU_ON_WIRE - longest.unwrap() <= MARKER_LEN);
    }
}

//! Tests of the framing with the figures of RFC 5044, with a second encoder that builds the stream
//! word by word, and with streams that are split at any byte or damaged.

use proptest::prelude::*;
use uiw_mpa::{Crc32c, Fpdu, FpduError, FpduRx, FpduTx, MAX_ULPDU, MIN_FPDU, Step, crc32c};

/// FPDU of RFC 5044 Figure 5, with the Marker before it.
const FIGURE_5: &[u8] = &[
    0x00, 0x00, 0x00, 0x00, // Marker
    0x00, 0x2A, 0x41, 0x43, // length, DDP control, RDMAP control
    0x00, 0x00, 0x00, 0x00, // reserved
    0x00, 0x00, 0x00, 0x00, // QN
    0x00, 0x00, 0x00, 0x01, // MSN
    0x00, 0x00, 0x00, 0x00, // MO
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // data
    0x52, 0x23, 0x99, 0x83, // CRC32C
];

/// FPDU of RFC 5044 Figure 6: the second one of its stream, after 492 bytes.
const FIGURE_6: &[u8] = &[
    0x00, 0x2A, 0x41, 0x43, // length, DDP control, RDMAP control
    0x00, 0x00, 0x00, 0x00, // reserved
    0x00, 0x00, 0x00, 0x00, // QN
    0x00, 0x00, 0x00, 0x02, // MSN
    0x00, 0x00, 0x00, 0x00, // MO
    0x00, 0x00, 0x00, 0x14, // Marker
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // data
    0x84, 0x92, 0x58, 0x98, // CRC32C
];

/// ULPDU of both figures.
fn figure_ulpdu(msn: u8) -> Vec<u8> {
    let mut ulpdu = vec![0; 42];
    ulpdu[..2].copy_from_slice(&[0x41, 0x43]);
    ulpdu[13] = msn;
    ulpdu
}

/// Step through a range of cases. Miri is a thousand times slower, so it tests only some of them.
const fn thinned(step: usize, under_miri: usize) -> usize {
    if cfg!(miri) { under_miri } else { step }
}

/// Returns bytes that differ from one another.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 251) as u8).collect()
}

/// Seals a ULPDU and returns the FPDU.
fn seal(tx: &mut FpduTx, ulpdu: &[u8]) -> Vec<u8> {
    let mut buf = vec![0xEE; 2];
    buf.extend_from_slice(ulpdu);
    tx.seal(&mut buf, 0);
    buf
}

/// Builds an FPDU at `position` of its stream word by word, as RFC 5044 section 4 describes it.
fn by_walking(position: u64, ulpdu: &[u8], crc: bool, markers: bool) -> Vec<u8> {
    let mut words = (ulpdu.len() as u16).to_be_bytes().to_vec();
    words.extend_from_slice(ulpdu);
    while !words.len().is_multiple_of(4) {
        words.push(0);
    }
    let mut wire = Vec::new();
    let at = |wire: &Vec<u8>| position + wire.len() as u64;
    if markers && at(&wire).is_multiple_of(512) {
        wire.extend_from_slice(&[0; 4]);
    }
    let start = at(&wire);
    for word in words.chunks(4) {
        if markers && at(&wire).is_multiple_of(512) && at(&wire) != start {
            wire.extend_from_slice(&[0, 0]);
            wire.extend_from_slice(&((at(&wire) - 2 - start) as u16).to_be_bytes());
        }
        wire.extend_from_slice(word);
    }
    if markers && at(&wire).is_multiple_of(512) {
        wire.extend_from_slice(&[0, 0]);
        wire.extend_from_slice(&((at(&wire) - 2 - start) as u16).to_be_bytes());
    }
    let field = if crc { crc32c(&wire) } else { 0 };
    wire.extend_from_slice(&field.to_le_bytes());
    wire
}

/// Returns the only FPDU in `bytes`.
fn receive<'a>(rx: &mut FpduRx, bytes: &'a mut [u8]) -> Fpdu<'a> {
    let length = bytes.len();
    match rx.next(bytes).unwrap() {
        Step::Fpdu(fpdu) => fpdu,
        more => panic!("{more:?} of {length}"),
    }
}

// [test:RFC5044-4.1-01] [test:RFC5044-4.2-01] [test:RFC5044-4.3-07] [test:RFC5044-4.4-12]
// [test:RFC5044-4.4-15] [test:RFC5044-4.4-16]
#[test]
fn figure_5() {
    assert_eq!(seal(&mut FpduTx::new(true, true), &figure_ulpdu(1)), FIGURE_5);
    let mut bytes = FIGURE_5.to_vec();
    let fpdu = receive(&mut FpduRx::new(true, true), &mut bytes);
    assert_eq!((fpdu.consumed, &*fpdu.ulpdu), (52, &figure_ulpdu(1)[..]));
}

// [test:RFC5044-4.3-02] [test:RFC5044-4.3-03] [test:RFC5044-4.4-14] [test:RFC5044-4.3-11]
#[test]
fn figure_6() {
    let (mut tx, mut rx) = (FpduTx::new(true, true), FpduRx::new(true, true));
    let mut before = seal(&mut tx, &[0; 482]);
    assert_eq!(before.len(), 492);
    receive(&mut rx, &mut before);

    assert_eq!(seal(&mut tx, &figure_ulpdu(2)), FIGURE_6);
    let mut bytes = FIGURE_6.to_vec();
    let fpdu = receive(&mut rx, &mut bytes);
    assert_eq!((fpdu.consumed, &*fpdu.ulpdu), (52, &figure_ulpdu(2)[..]));
    assert_eq!((tx.position(), rx.position()), (544, 544));
}

/// Tests all positions of a Marker relative to an FPDU: before it, after the length, in the data,
/// in the word of the PAD, before the CRC, and directly after the CRC.
// [test:RFC5044-4.1-02] [test:RFC5044-4.2-03a] [test:RFC5044-4.3-01] [test:RFC5044-4.3-05]
// [test:RFC5044-4.3-08] [test:RFC5044-4.3-09a] [test:RFC5044-4.3-09b] [test:RFC5044-4.4-11]
// [test:RFC5044-4.4-13] [test:RFC5044-3-01]
#[test]
fn any_length_at_any_position() {
    for (crc, markers) in [(true, true), (false, true), (true, false), (false, false)] {
        for first in (0..=600).step_by(thinned(4, 300)).map(|bytes| bytes + 2) {
            for len in (0..24).chain(490..530).chain([1014, 1024, 1500]).step_by(thinned(1, 11)) {
                let (mut tx, mut rx) = (FpduTx::new(crc, markers), FpduRx::new(crc, markers));
                receive(&mut rx, &mut seal(&mut tx, &pattern(first)));
                let ulpdu = pattern(len);
                let expected = by_walking(tx.position(), &ulpdu, crc, markers);
                let mut bytes = seal(&mut tx, &ulpdu);
                assert_eq!(
                    bytes, expected,
                    "{len} bytes behind {first}, CRC {crc}, Markers {markers}"
                );
                let fpdu = receive(&mut rx, &mut bytes);
                assert_eq!(fpdu.consumed, expected.len());
                assert_eq!(*fpdu.ulpdu, ulpdu);
            }
        }
    }
}

// [test:RFC5044-3-05] [test:RFC5044-3-06a] [test:RFC5044-A.4-01]
#[test]
#[cfg_attr(miri, ignore = "minutes: 64 KiB byte by byte")]
fn largest_ulpdu_at_every_position() {
    assert_eq!(MAX_ULPDU, 64_768, "RFC 5044 section 3");
    let ulpdu = pattern(MAX_ULPDU);
    for first in (0..=512).step_by(4).map(|bytes| bytes + 2) {
        let (mut tx, mut rx) = (FpduTx::new(true, true), FpduRx::new(true, true));
        receive(&mut rx, &mut seal(&mut tx, &pattern(first)));
        let mut bytes = seal(&mut tx, &ulpdu);
        let fpdu = receive(&mut rx, &mut bytes);
        assert!(*fpdu.ulpdu == *ulpdu, "behind {first}");
    }
}

#[test]
#[should_panic = "ULPDU of 64769 bytes"]
fn larger_ulpdu_not_sent() {
    seal(&mut FpduTx::new(true, false), &pattern(MAX_ULPDU + 1));
}

/// A peer may send a ULPDU of the maximum length that ULPDU_Length can represent. Markers are not
/// checked if their distance exceeds the range of FPDUPTR.
#[test]
#[cfg_attr(miri, ignore = "minutes: 64 KiB byte by byte")]
fn larger_ulpdu_accepted() {
    let ulpdu = pattern(65_535);
    for markers in [false, true] {
        let mut bytes = by_walking(0, &ulpdu, true, markers);
        assert!(bytes.len() <= uiw_mpa::MAX_FPDU_ON_WIRE);
        let fpdu = receive(&mut FpduRx::new(true, markers), &mut bytes);
        assert!(*fpdu.ulpdu == *ulpdu);
    }
}

// [test:RFC5044-4.4-11] [test:RFC5044-4.4-12]
#[test]
fn header_and_trailer_match_seal() {
    for crc in [true, false] {
        let (mut contiguous, mut gathered) = (FpduTx::new(crc, false), FpduTx::new(crc, false));
        for len in (0..300).chain([1454, 65_000 - 232]).step_by(thinned(1, 50)) {
            let ulpdu = pattern(len);
            let header = FpduTx::header(len as u16);
            let (front, back) = ulpdu.split_at(len / 3);
            let sum = Crc32c::new().update(&header).update(front).update(back);
            let trailer = gathered.trailer(len as u16, sum);
            let pieces = [&header[..], &ulpdu, trailer.as_slice()].concat();
            assert_eq!(pieces, seal(&mut contiguous, &ulpdu), "{len} bytes, CRC {crc}");
            assert_eq!(contiguous.position(), gathered.position());
        }
    }
}

#[test]
fn seal_keeps_preceding_bytes() {
    let mut tx = FpduTx::new(true, true);
    let mut buf = Vec::new();
    let mut expected = Vec::new();
    for len in [0, 30, 700, 1, 508, 4] {
        expected.extend(by_walking(expected.len() as u64, &pattern(len), true, true));
        let start = buf.len();
        buf.extend_from_slice(&[0xEE; 2]);
        buf.extend(pattern(len));
        tx.seal(&mut buf, start);
    }
    assert_eq!(buf, expected);
    assert_eq!(tx.position(), expected.len() as u64);
}

/// Adds one byte at a time. No FPDU is returned before it is complete, `at_least` never exceeds the
/// required number, and the bytes are not modified.
// [test:RFC5044-6-09] [test:RFC5044-5.1-05] [test:RFC5044-5.2-01] [test:RFC5044-6-06]
// [test:RFC5044-3-07]
#[test]
fn byte_by_byte() {
    for (crc, markers) in [(true, true), (false, true), (true, false), (false, false)] {
        let ulpdus: Vec<_> =
            [0, 1, 18, 480, 3, 42, 1442, 2, 900, 0].into_iter().map(pattern).collect();
        let mut tx = FpduTx::new(crc, markers);
        let stream: Vec<_> = ulpdus.iter().flat_map(|ulpdu| seal(&mut tx, ulpdu)).collect();

        let mut rx = FpduRx::new(crc, markers);
        let (mut buffer, mut received) = (Vec::new(), Vec::new());
        for byte in stream {
            buffer.push(byte);
            let before = buffer.clone();
            let length = buffer.len();
            match rx.next(&mut buffer).unwrap() {
                Step::NeedMore { at_least } => {
                    assert!(at_least > length);
                    assert_eq!(buffer, before);
                }
                Step::Fpdu(fpdu) => {
                    assert_eq!(fpdu.consumed, length, "found with its last byte");
                    received.push(fpdu.ulpdu.to_vec());
                    buffer.clear();
                }
            }
        }
        assert_eq!(received, ulpdus, "CRC {crc}, Markers {markers}");
        assert_eq!(rx.position(), tx.position());
    }
}

#[test]
fn needed_bytes_exact_with_known_length() {
    for markers in [false, true] {
        let bytes = seal(&mut FpduTx::new(true, markers), &pattern(1000));
        let mut rx = FpduRx::new(true, markers);
        let lead = if markers { 4 } else { 0 };
        assert_eq!(rx.next(&mut []), Ok(Step::NeedMore { at_least: lead + MIN_FPDU }));
        let whole = Step::NeedMore { at_least: bytes.len() };
        assert_eq!(rx.next(&mut bytes[..lead + 2].to_vec()), Ok(whole));
    }
}

/// One read contains several FPDUs and a part of the next one.
// [test:RFC5044-5.2-01] [test:RFC5044-4.3-10]
#[test]
fn several_fpdus_in_one_read() {
    for (crc, markers) in [(true, true), (false, true), (true, false), (false, false)] {
        let mut tx = FpduTx::new(crc, markers);
        let mut stream: Vec<u8> = (0..20).flat_map(|n| seal(&mut tx, &pattern(n * 37))).collect();
        let end = stream.len() - 1;
        let mut rx = FpduRx::new(crc, markers);
        let (mut at, mut count) = (0, 0);
        while let Step::Fpdu(fpdu) = rx.next(&mut stream[at..end]).unwrap() {
            assert_eq!(*fpdu.ulpdu, pattern(count * 37), "CRC {crc}, Markers {markers}");
            (at, count) = (at + fpdu.consumed, count + 1);
        }
        assert_eq!(count, 19, "the last one lacks a byte");
    }
}

/// Flips each bit once: in a Marker, the length, the data, the PAD or the CRC.
// [test:RFC5044-4.4-17] [test:RFC5044-4.4-18] [test:RFC5044-4.4-19] [test:RFC5044-4.4-20]
// [test:RFC5044-6-01] [test:RFC5044-6-04] [test:RFC5044-8-03] [test:RFC5044-7.1.1-11]
// [test:RFC5041-3-07]
#[test]
fn flipped_bits_rejected() {
    let good = seal(&mut FpduTx::new(true, true), &pattern(521));
    for bit in (0..good.len() * 8).step_by(thinned(1, 131)) {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        match FpduRx::new(true, true).next(&mut bytes) {
            Err(FpduError::Crc { position: 0, computed, received }) => {
                assert_ne!(computed, received);
            }
            Ok(Step::NeedMore { at_least }) => {
                assert!((32..48).contains(&bit), "only a length can ask for more");
                assert!(at_least > good.len());
            }
            other => panic!("bit {bit}: {other:?}"),
        }
    }
}

// [test:RFC5044-4.1-03] [test:RFC5044-7.1.1-10] [test:RFC5044-7.1.1-12] [test:RFC5044-4.4-05]
// [test:RFC5044-4.4-09]
#[test]
fn crc_field_ignored_without_crcs() {
    for markers in [false, true] {
        for field in [[0; 4], [0xDE, 0xAD, 0xBE, 0xEF], [0xFF; 4]] {
            let mut bytes = seal(&mut FpduTx::new(false, markers), &pattern(41));
            let end = bytes.len();
            bytes[end - 4..].copy_from_slice(&field);
            let fpdu = receive(&mut FpduRx::new(false, markers), &mut bytes);
            assert_eq!(*fpdu.ulpdu, pattern(41));
        }
    }
}

/// Returns `bytes` with a correct CRC.
fn with_crc(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 4;
    let crc = crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

// [test:RFC5044-4.1-02]
#[test]
fn pad_ignored() {
    let mut bytes = seal(&mut FpduTx::new(true, false), &pattern(39));
    bytes[41..44].copy_from_slice(&[0xFF; 3]);
    let mut bytes = with_crc(bytes);
    let fpdu = receive(&mut FpduRx::new(true, false), &mut bytes);
    assert_eq!((fpdu.start, fpdu.ulpdu.len()), (2, 39));
}

// [test:RFC5044-8-04] [test:RFC5044-8-05] [test:RFC5044-5.2-02a]
#[test]
fn wrong_marker_pointer_rejected() {
    let good = seal(&mut FpduTx::new(true, true), &pattern(1100));
    for (at, expected) in [(0, 0), (512, 508), (1024, 1020)] {
        for found in [0, 4, 504, 508, 512, 1016, 1020, 0xFFFC] {
            let mut bytes = good.clone();
            bytes[at + 2..at + 4].copy_from_slice(&u16::to_be_bytes(found));
            let mut bytes = with_crc(bytes);
            let outcome = FpduRx::new(true, true).next(&mut bytes);
            if found == expected {
                assert!(matches!(outcome, Ok(Step::Fpdu(_))));
            } else {
                assert_eq!(
                    outcome,
                    Err(FpduError::Marker { position: at as u64, expected, found })
                );
            }
        }
    }
}

// [test:RFC5044-4.2-02] [test:RFC5044-4.2-03b] [test:RFC5044-4.3-06]
#[test]
fn reserved_marker_bits_ignored() {
    let mut bytes = seal(&mut FpduTx::new(true, true), &pattern(1100));
    for at in [0, 512, 1024] {
        bytes[at..at + 2].copy_from_slice(&[0xFF; 2]);
        bytes[at + 3] |= 0b11;
    }
    let mut bytes = with_crc(bytes);
    let fpdu = receive(&mut FpduRx::new(true, true), &mut bytes);
    assert_eq!(*fpdu.ulpdu, pattern(1100));
}

/// The Markers are checked only after the CRC has been found correct.
// [test:RFC5044-8-04]
#[test]
fn crc_error_precedes_marker_error() {
    let mut bytes = seal(&mut FpduTx::new(true, true), &pattern(600));
    bytes[515] ^= 4;
    let outcome = FpduRx::new(true, true).next(&mut bytes);
    assert!(matches!(outcome, Err(FpduError::Crc { .. })), "{outcome:?}");
}

#[test]
fn negotiated_modes_reported() {
    for crc in [false, true] {
        for markers in [false, true] {
            let (tx, rx) = (FpduTx::new(crc, markers), FpduRx::new(crc, markers));
            assert_eq!((tx.crc_on(), tx.markers(), tx.position()), (crc, markers, 0));
            assert_eq!((rx.crc_on(), rx.markers(), rx.position()), (crc, markers, 0));
        }
    }
}

/// An FPDU that was built but never sent does not affect the stream.
#[test]
fn dropped_fpdu_moves_no_marker() {
    let (mut tx, mut straight) = (FpduTx::new(true, true), FpduTx::new(true, true));
    let first = seal(&mut tx, &pattern(300));
    assert_eq!(first, seal(&mut straight, &pattern(300)));
    let position = tx.position();
    seal(&mut tx, &pattern(700));
    tx.rewind(position);
    assert_eq!(tx.position(), position);
    assert_eq!(seal(&mut tx, &pattern(500)), seal(&mut straight, &pattern(500)));
}

// [test:RFC5044-8-11]
#[test]
fn error_ends_reception() {
    for markers in [false, true] {
        let mut tx = FpduTx::new(true, markers);
        let (first, second) = (seal(&mut tx, &pattern(30)), seal(&mut tx, &pattern(40)));
        let mut rx = FpduRx::new(true, markers);
        let mut bad = first.clone();
        *bad.last_mut().unwrap() ^= 1;
        let error = rx.next(&mut bad).unwrap_err();
        assert_eq!(rx.next(&mut first.clone()), Err(error));
        assert_eq!(rx.next(&mut second.clone()), Err(error));
        assert_eq!(rx.next(&mut []), Err(error));
        assert_eq!(rx.position(), 0);
    }
}

proptest! {
    /// No input causes a panic, or an FPDU that is longer than the input.
    #[test]
    fn garbage(bytes in prop::collection::vec(any::<u8>(), 0..2000), crc: bool, markers: bool) {
        let mut rx = FpduRx::new(crc, markers);
        let (mut bytes, mut at) = (bytes, 0);
        while let Ok(Step::Fpdu(fpdu)) = rx.next(&mut bytes[at..]) {
            prop_assert!(fpdu.consumed >= MIN_FPDU && fpdu.start + fpdu.ulpdu.len() + 4 <= fpdu.consumed);
            at += fpdu.consumed;
            prop_assert!(at <= bytes.len());
            prop_assert_eq!(rx.position(), at as u64);
        }
    }

    /// The ULPDUs do not depend on how the stream is split into reads.
    // [test:RFC5044-5.1-05] [test:RFC5044-A.4-01]
    // [test:RFC5041-3-05] [test:RFC5041-3-08] [test:RFC5041-3-13] [test:RFC5044-6-03]
    #[test]
    fn cut_anywhere(
        lengths in prop::collection::vec(0..1600usize, 1..12),
        reads in prop::collection::vec(1..700usize, 1..40),
        crc: bool,
        markers: bool,
    ) {
        let mut tx = FpduTx::new(crc, markers);
        let stream: Vec<_> = lengths.iter().flat_map(|len| seal(&mut tx, &pattern(*len))).collect();
        let (mut rx, mut buffer, mut received, mut at) = (FpduRx::new(crc, markers), Vec::new(), Vec::new(), 0);
        for read in reads.iter().cycle() {
            let end = stream.len().min(at + read);
            buffer.extend_from_slice(&stream[at..end]);
            at = end;
            while let Step::Fpdu(fpdu) = rx.next(&mut buffer).unwrap() {
                received.push(fpdu.ulpdu.len());
                prop_assert_eq!(&*fpdu.ulpdu, &pattern(fpdu.ulpdu.len())[..]);
                let consumed = fpdu.consumed;
                buffer.drain(..consumed);
            }
            if at == stream.len() {
                break;
            }
        }
        prop_assert!(buffer.is_empty());
        prop_assert_eq!(received, lengths);
    }
}

//! Tests of Terminates: the quoted headers, the encodings of other implementations, and arbitrary
//! bytes.

use proptest::prelude::*;
use uiw_ddp::{HeaderError, STag, TaggedError, UntaggedError};
use uiw_rdmap::*;

/// Header of a Send, followed by its payload.
const SEND: &[u8] = &[0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, b'h', b'i'];
/// Header of a Write, followed by its payload.
const WRITE: &[u8] = &[0xC1, 0x40, 0xBA, 0xDB, 0xAD, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'h', b'i'];
/// Header of a Read Request, followed by the Read Request.
const READ: (&[u8], ReadRequest) = (
    &[0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0],
    ReadRequest {
        sink_stag: STag(0x0BAD_CA02),
        sink_to: 0x1000,
        len: 64,
        source_stag: STag(0x00C0_FF03),
        source_to: 0x2000,
    },
);

/// Returns one fault of each kind with its codes from the RFCs.
fn faults() -> Vec<(Fault, (u8, u8, u8))> {
    let (stag, to, len) = (STag(5), 6, 7);
    let tagged = |error: TaggedError, code| (Fault::from(error), (1, 1, code));
    let untagged = |error: UntaggedError, code| (Fault::from(error), (1, 2, code));
    let protection = |fault: ProtectionError, code| (Fault::from(fault), (0, 1, code));
    let rdmap = |error: RdmapError, code| (Fault::from(error), (0, 2, code));
    vec![
        (MpaFault::LlpClosed.into(), (2, 0, 1)),
        (MpaFault::Crc.into(), (2, 0, 2)),
        (MpaFault::Marker.into(), (2, 0, 3)),
        (Fault::InsufficientIrd, (2, 0, 6)),
        (Fault::NoMatchingRtr, (2, 0, 7)),
        (Fault::LocalCatastrophic, (0, 0, 0)),
        (HeaderError::TooShort { len: 3, needed: 18 }.into(), (1, 0, 0)),
        (HeaderError::Version { tagged: true, version: 0 }.into(), (1, 1, 4)),
        (HeaderError::Version { tagged: false, version: 2 }.into(), (1, 2, 6)),
        tagged(TaggedError::InvalidStag { stag }, 0),
        tagged(TaggedError::AccessRights { stag }, 0),
        tagged(TaggedError::BaseOrBounds { stag, to, len }, 1),
        tagged(TaggedError::NotAssociated { stag }, 2),
        tagged(TaggedError::ToWrap { stag, to, len }, 3),
        untagged(UntaggedError::NoBuffer { msn: 1 }, 2),
        untagged(UntaggedError::MsnRange { expected: 1, got: 2 }, 3),
        untagged(UntaggedError::Mo { expected: 0, got: 4 }, 4),
        untagged(UntaggedError::TooLong { message: 9, buffer: 8 }, 5),
        untagged(UntaggedError::MessageTooLong { mo: 9, len: 8 }, 5),
        (UntaggedError::RsvdUlpChanged { was: 0x43, got: 0x44 }.into(), (0, 2, 6)),
        (RdmapError::InvalidQn { qn: 4 }.into(), (1, 2, 1)),
        rdmap(RdmapError::Version { got: 2 }, 5),
        rdmap(RdmapError::UnexpectedOpcode { opcode: 12 }, 6),
        rdmap(RdmapError::WrongBuffer { opcode: Opcode::Send, tagged: true, qn: 0 }, 6),
        rdmap(RdmapError::AfterTerminate { opcode: 3 }, 6),
        rdmap(RdmapError::UnexpectedAtomicResponse { request_id: 1 }, 6),
        rdmap(FormatError::AtomicCode { code: 1 }.into(), 6),
        rdmap(RdmapError::AtomicUnaligned { stag, to }, 7),
        rdmap(
            FormatError::Length { message: Opcode::ReadRequest, len: 27, needed: 28 }.into(),
            0xFF,
        ),
        protection(ProtectionError::InvalidStag { stag }, 0),
        protection(ProtectionError::BaseOrBounds { stag, to, len }, 1),
        protection(ProtectionError::AccessRights { stag }, 2),
        protection(ProtectionError::NotAssociated { stag }, 3),
        protection(ProtectionError::ToWrap { stag, to, len }, 4),
        protection(ProtectionError::CannotInvalidate { stag }, 9),
        (TerminateTooShort { len: 3 }.into(), (0, 2, 0xFF)),
    ]
}

// [test:RFC5040-4.8-03] [test:RFC5041-7.2-01] [test:RFC5040-5.3-15] [test:RFC7306-8.2-07]
// [test:RFC6581-9.1-09] [test:RFC6581-9.2-11] [test:RFC7306-5.2.1-08]
#[test]
fn faults_map_to_codes() {
    for (fault, codes) in faults() {
        assert_eq!(fault.reason().codes(), codes, "{fault}");
        assert!(fault.reason().is_known());
    }
}

/// Returns the columns of RFC 5040 Figure 10: whether a Terminate quotes the DDP header, and
/// whether it quotes the Read Request.
fn figure_10((layer, etype, _): (u8, u8, u8)) -> (bool, bool) {
    match (layer, etype) {
        (0 | 1, 0) | (2, _) => (false, false),
        (0, 1) => (true, true),
        _ => (true, false),
    }
}

// [test:RFC5040-4.8-01] [test:RFC5040-4.8-02] [test:RFC5040-4.8-04] [test:RFC5040-4.8-05]
// [test:RFC5040-4.8-06] [test:RFC5040-4.8-07] [test:RFC5040-4.8-08] [test:RFC5040-4.8-09]
// [test:RFC5040-4.8-10] [test:RFC5040-4.8-11] [test:RFC5040-7.1-04] [test:RFC5041-7.1-18]
#[test]
fn quoted_headers_follow_figure_10() {
    let read_bytes = READ.1.emit();
    for (fault, codes) in faults() {
        let first_two = [codes.0 << 4 | codes.1, codes.2];
        for (segment, header_len, read) in
            [(SEND, 18, None), (WRITE, 14, None), (READ.0, 18, Some(&read_bytes[..]))]
        {
            let quoted = QuotedHeaders { segment_len: 0x1234, header: segment, read_request: read };
            let bytes = fault.terminate(Some(quoted)).emit();
            let mut expected = first_two.to_vec();
            let (ddp, rdma) = figure_10(codes);
            let rdma = read.filter(|_| rdma);
            expected.push(if ddp { 0xC0 } else { 0 } | if rdma.is_some() { 0x20 } else { 0 });
            expected.push(0);
            if ddp {
                expected.extend_from_slice(&[0x12, 0x34]);
                expected.extend_from_slice(&segment[..header_len]);
            }
            expected.extend_from_slice(rdma.unwrap_or(&[]));
            assert_eq!(bytes, expected, "{fault}");
            assert!(bytes.len() <= Terminate::MAX_LEN);
        }
        // RFC 5040 section 7.1, rule 1: not associated with an incoming message.
        assert_eq!(fault.terminate(None).emit(), [first_two[0], first_two[1], 0, 0]);
    }
}

/// An incomplete header cannot be quoted.
#[test]
fn partial_headers_not_quoted() {
    let fault = Fault::from(RdmapError::InvalidQn { qn: 9 });
    for len in 0..18 {
        let quoted =
            QuotedHeaders { segment_len: len as u16, header: &SEND[..len], read_request: None };
        assert_eq!(fault.terminate(Some(quoted)).emit(), [0x12, 1, 0, 0]);
    }
    let fault = Fault::from(ProtectionError::InvalidStag { stag: STag(5) });
    let quoted = QuotedHeaders { segment_len: 45, header: READ.0, read_request: Some(&[0; 27]) };
    assert_eq!(fault.terminate(Some(quoted)).read_request, None);
}

/// Every combination of M, D and R survives a round trip.
// [test:RFC5040-4.8-07] [test:RFC5040-4.8-08] [test:RFC5040-4.8-10] [test:RFC5040-4.8-11]
#[test]
fn bytes_and_back() {
    let headers = [None, HeaderCopy::new(SEND), HeaderCopy::new(WRITE)];
    for segment_len in [None, Some(0x1234)] {
        for ddp_header in headers {
            for read_request in [None, Some(READ.1)] {
                let terminate = Terminate {
                    layer: 1,
                    etype: 2,
                    code: 3,
                    segment_len,
                    ddp_header,
                    read_request,
                };
                let bytes = terminate.emit();
                assert_eq!(Terminate::parse(&bytes), Ok(terminate));
                assert_eq!(Terminate::parse_any(&bytes), Ok((terminate, TerminateEncoding::Rfc)));
                let mut reserved = bytes;
                reserved[2] |= 0x1F;
                reserved[3] = 0xFF;
                assert_eq!(Terminate::parse(&reserved), Ok(terminate), "reserved bits are ignored");
            }
        }
    }
}

/// Some peers set R without sending a Read Request, and the end of TCP may truncate the parts that
/// a peer announces.
#[test]
fn header_bits_beyond_length_rejected() {
    let whole = Terminate {
        layer: 0,
        etype: 1,
        code: 0,
        segment_len: Some(46),
        ddp_header: HeaderCopy::new(READ.0),
        read_request: Some(READ.1),
    };
    let bytes = whole.emit();
    assert_eq!(bytes.len(), 52);
    for len in 0..bytes.len() {
        let parsed = Terminate::parse(&bytes[..len]);
        if len < 4 {
            assert_eq!(parsed, Err(TerminateTooShort { len }));
            continue;
        }
        let expected = Terminate {
            segment_len: whole.segment_len.filter(|_| len >= 6),
            ddp_header: whole.ddp_header.filter(|_| len >= 24),
            read_request: None,
            ..whole
        };
        assert_eq!(parsed, Ok(expected), "{len} bytes");
    }
    let longer = [&bytes[..], &[0xFF; 9]].concat();
    assert_eq!(Terminate::parse(&longer), Ok(whole));
}

/// The T bit of the quoted header determines its length, independently of the Error Type.
#[test]
fn tagged_header_in_untagged_error() {
    let bytes = [&[0x12, 0x05, 0xC0, 0, 0, 16][..], &WRITE[..14]].concat();
    let header = Terminate::parse(&bytes).unwrap().ddp_header.unwrap();
    assert_eq!(header.as_slice(), &WRITE[..14]);
    assert!(matches!(header.header(), Ok(uiw_ddp::Header::Tagged(_))));
}

/// In these bytes, nothing but the codes tells the encoding of siw from that of the RFC.
#[test]
fn encoding_determined_by_codes() {
    for (bytes, reason, encoding) in [
        ([0x02, 6, 0, 0], TerminateReason::LlpInsufficientIrd, TerminateEncoding::Ambiguous),
        ([0x02, 7, 0, 0], TerminateReason::LlpNoMatchingRtr, TerminateEncoding::Ambiguous),
        ([0x11, 1, 0, 0], TerminateReason::TaggedBaseOrBounds, TerminateEncoding::Rfc),
    ] {
        assert_eq!(Terminate::parse_siw(&bytes).unwrap().reason(), reason);
        let rfc = Terminate::parse(&bytes).unwrap();
        assert_eq!(Terminate::parse_any(&bytes), Ok((rfc, encoding)), "{reason}");
    }
}

/// Our Terminates never look like those of siw.
#[test]
fn own_terminates_not_taken_for_siw() {
    let read_bytes = READ.1.emit();
    for (fault, _) in faults() {
        let quoted =
            QuotedHeaders { segment_len: 46, header: READ.0, read_request: Some(&read_bytes) };
        for quoted in [None, Some(quoted)] {
            let (_, encoding) = Terminate::parse_any(&fault.terminate(quoted).emit()).unwrap();
            assert_ne!(encoding, TerminateEncoding::Siw, "{fault}");
        }
    }
}

proptest! {
    #[test]
    fn garbage(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let parsed = Terminate::parse(&bytes);
        prop_assert_eq!(parsed.is_ok(), bytes.len() >= 4);
        prop_assert_eq!(Terminate::parse_siw(&bytes).is_ok(), bytes.len() >= 4);
        if let Ok(terminate) = parsed {
            // Only complete parts are decoded. So the encoded message is a prefix of the input,
            // except for the flags.
            let again = terminate.emit();
            prop_assert!(again.len() <= bytes.len().max(6));
            prop_assert_eq!(&again[..2], &bytes[..2]);
            prop_assert_eq!(again[2] & !bytes[2], 0);
            prop_assert_eq!(Terminate::parse(&again), Ok(terminate));
        }
        let _ = Terminate::parse_any(&bytes).map(|(terminate, _)| terminate.to_string());
        let _ = ReadRequest::parse(&bytes);
        let _ = ImmediateData::parse(&bytes);
    }
}

/// Cause at siw, bytes after the DDP header, codes that siw intended, and whether these bytes could
/// also refuse a Reply.
type FromSiw = (&'static str, &'static str, (u8, u8, u8), bool);

/// Terminates that the siw driver of Linux 6.1 has sent.
const FROM_SIW: &[FromSiw] = &[
    ("DDP version 0", "21060000 0000 0000", (1, 2, 6), false),
    ("RDMAP version 2", "20050000 0000 0000", (0, 2, 5), true),
    ("an atomic", "20060000 0000 0000", (0, 2, 6), true),
    (
        "MSN 5 where 1 is due",
        "21030300 0010 41430000000000000000000000050000000000000000",
        (1, 2, 3),
        false,
    ),
    (
        "MO 8 where 0 is due",
        "21040300 0010 41430000000000000000000000010000000800000000",
        (1, 2, 4),
        false,
    ),
    ("queue 3", "21010300 0010 41430000000000000003000000010000000000000000", (1, 2, 1), false),
    (
        "a Send too long",
        "21020300 0040 41430000000000000000000000010000000000000000",
        (1, 2, 2),
        false,
    ),
    (
        "a Send without a receive",
        "21020300 0010 41430000000000000000000000020000000000000000",
        (1, 2, 2),
        false,
    ),
    ("a Write to no STag", "11000300 0020 c140deadbe00000000000000100000000000", (1, 1, 0), false),
    (
        "a Read from no STag",
        "10000700 0000 414100000000000000010000004000000000 00000001000000000000200000000040deadbe00000000000000100000000000",
        (0, 1, 0),
        false,
    ),
    (
        "a Read beyond the IRD",
        "20070300 0000 41410000000000000001000000030000000000000000",
        (0, 2, 7),
        false,
    ),
    (
        "an answer to no Read",
        "01000300 0020 c14200000001000000000000100000000000",
        (1, 0, 0),
        false,
    ),
    (
        "an invalidate of no STag",
        "20090300 0010 4144deadbe000000000000000001000000000000",
        (0, 2, 9),
        false,
    ),
    ("an FPDU too short", "02030000 0000 0000", (2, 0, 3), false),
    ("a wrong CRC", "02020000 0000 0000", (2, 0, 2), false),
];

#[test]
fn siw_terminates_understood() {
    for (what, bytes, codes, undecidable) in FROM_SIW {
        let digits: String = bytes.split_whitespace().collect();
        let bytes: Vec<u8> = (0..digits.len() / 2)
            .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        let (terminate, encoding) = Terminate::parse_at(&bytes, false).unwrap();
        assert_eq!(Terminate::parse_siw(&bytes), Ok(terminate));
        assert_eq!((terminate.layer, terminate.etype, terminate.code), *codes, "{what}");
        assert_eq!(terminate.ddp_header.is_some(), bytes.len() > 8, "{what}");
        assert_eq!(terminate.read_request.is_some(), bytes.len() == 56, "{what}");
        assert_eq!(encoding, TerminateEncoding::Siw, "{what}");
        // As the initiator's first FPDU it might refuse a Reply instead (RFC 6581 section 8).
        let (first, encoding) = Terminate::parse_at(&bytes, true).unwrap();
        if *undecidable {
            assert_eq!(
                (first.layer, first.etype, first.code),
                (codes.1, codes.0, codes.2),
                "{what}"
            );
            assert_eq!(encoding, TerminateEncoding::Ambiguous, "{what}");
        } else {
            assert_eq!((first, encoding), (terminate, TerminateEncoding::Siw), "{what}");
        }
    }
}

#[test]
fn reply_rejection_only_at_start() {
    let refusal = Terminate::new(TerminateReason::from_codes(2, 0, 6)).emit();
    assert_eq!(Terminate::parse_at(&refusal, true).unwrap().0.layer, 2);
    let (later, encoding) = Terminate::parse_at(&refusal, false).unwrap();
    assert_eq!((later.layer, later.etype, later.code, encoding), (0, 2, 6, TerminateEncoding::Siw));
    // The same error in the encoding of the RFC.
    let operation = Terminate::new(TerminateReason::from_codes(0, 2, 6)).emit();
    let (later, encoding) = Terminate::parse_at(&operation, false).unwrap();
    assert_eq!((later.layer, later.etype, later.code, encoding), (0, 2, 6, TerminateEncoding::Rfc));
}

/// Each of the flags M, D and R identifies the encoding if the codes do not.
#[test]
fn origin_determined_by_each_bit() {
    for bit in [0x80, 0x40, 0x20] {
        let rfc = [0x02, 5, bit, 0, 0, 20];
        assert_eq!(Terminate::parse_any(&rfc).unwrap().1, TerminateEncoding::Rfc, "{bit:#x}");
    }
    for bit in [0x01, 0x02, 0x04] {
        let siw = [0x02, 5, bit, 0, 0, 20];
        let (terminate, encoding) = Terminate::parse_any(&siw).unwrap();
        assert_eq!(
            (terminate.layer, terminate.etype, encoding),
            (2, 0, TerminateEncoding::Siw),
            "{bit:#x}"
        );
    }
    assert_eq!(Terminate::parse_any(&[0x02, 5, 0, 0]).unwrap().1, TerminateEncoding::Ambiguous);
}

#[test]
fn description_of_terminate() {
    let terminate = Terminate::new(TerminateReason::LlpCrc);
    assert_eq!(terminate.to_string(), TerminateReason::LlpCrc.to_string());
    let copy = HeaderCopy::new(&[0xC1; 14]).unwrap();
    assert!(format!("{copy:?}").contains("c1, c1"), "{copy:?}");
}

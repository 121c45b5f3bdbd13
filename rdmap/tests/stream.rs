//! Tests of the rules of a stream: all opcodes, on all kinds of buffers and queues, with and
//! without extensions.

use uiw_ddp::{Header, STag, Tagged, Untagged};
use uiw_rdmap::*;

const ALL: Extensions = Extensions { immediate: true, atomic: true, send_imm: true };
const NONE: Extensions = Extensions { immediate: false, atomic: false, send_imm: false };

fn tagged(byte: u8) -> Header {
    Header::Tagged(Tagged { last: true, rsvd_ulp: byte, stag: STag(1), to: 2 })
}

fn untagged(byte: u8, qn: u32, word: u32) -> Header {
    Header::Untagged(Untagged { last: true, rsvd_ulp: byte, rsvd_ulp32: word, qn, msn: 1, mo: 0 })
}

fn admit(extensions: Extensions, header: &Header) -> Result<Opcode, RdmapError> {
    StreamRx::new(extensions).admit(header)
}

fn delivery(solicited: bool, invalidate: Option<u32>, imm: Option<u32>) -> Option<DeliveryEffects> {
    Some(DeliveryEffects { solicited, invalidate: invalidate.map(STag), imm })
}

/// Queue of each opcode, and its effects on queue 0 if RsvdULP\[8:39\] is 9.
fn table() -> [(u8, Option<u32>, Option<DeliveryEffects>); 13] {
    [
        (0, None, None),
        (1, Some(1), None),
        (2, None, None),
        (3, Some(0), delivery(false, None, None)),
        (4, Some(0), delivery(false, Some(9), None)),
        (5, Some(0), delivery(true, None, None)),
        (6, Some(0), delivery(true, Some(9), None)),
        (7, Some(2), None),
        (8, Some(0), delivery(false, None, None)),
        (9, Some(0), delivery(true, None, None)),
        (10, Some(1), None),
        (11, Some(3), None),
        (15, Some(0), delivery(false, None, Some(9))),
    ]
}

/// Returns the effects of a segment of queue 0.
fn delivery_of(opcode: Opcode, header: &Header) -> Option<DeliveryEffects> {
    match header {
        Header::Untagged(header) if header.qn == QN_SEND => {
            Some(DeliveryEffects::new(opcode, header))
        }
        _ => None,
    }
}

// [test:RFC5040-4.1-05] [test:RFC5040-4.1-12] [test:RFC5040-4.1-13] [test:RFC7306-4.1-04]
// [test:RFC5040-7.2-02] [test:RFC5040-5.2.1-06] [test:RFC7306-5.2-01] [test:RFC7306-5.2-02]
#[test]
fn messages_follow_figure_4() {
    for (raw, home, effects) in table() {
        let opcode = Opcode::from_raw(raw).unwrap();
        let places = [None, Some(0), Some(1), Some(2), Some(3)];
        for place in places {
            let header = place.map_or(tagged(0x40 | raw), |qn| untagged(0x40 | raw, qn, 9));
            let outcome = admit(ALL, &header);
            if place == home {
                assert_eq!(outcome, Ok(opcode));
                assert_eq!(delivery_of(opcode, &header), effects);
            } else {
                let error = RdmapError::WrongBuffer {
                    opcode,
                    tagged: place.is_none(),
                    qn: place.unwrap_or(0),
                };
                assert_eq!(outcome, Err(error));
            }
        }
    }
}

// [test:RFC5040-7.2-02] [test:RFC5040-7.2-07] [test:RFC7306-8.2-03]
#[test]
fn unknown_or_disabled_opcodes_rejected() {
    for raw in [12, 13, 14] {
        assert_eq!(
            admit(ALL, &tagged(0x40 | raw)),
            Err(RdmapError::UnexpectedOpcode { opcode: raw })
        );
        assert_eq!(
            admit(ALL, &untagged(0x40 | raw, 0, 0)),
            Err(RdmapError::UnexpectedOpcode { opcode: raw })
        );
    }
    let only = [
        (8, Extensions { immediate: true, ..NONE }),
        (9, Extensions { immediate: true, ..NONE }),
        (10, Extensions { atomic: true, ..NONE }),
        (11, Extensions { atomic: true, ..NONE }),
        (15, Extensions { send_imm: true, ..NONE }),
    ];
    for (raw, enough) in only {
        let qn = Opcode::from_raw(raw).unwrap().queue().unwrap();
        let header = untagged(0x40 | raw, qn, 0);
        assert!(admit(enough, &header).is_ok());
        let without = [
            NONE,
            Extensions {
                immediate: !enough.immediate,
                atomic: !enough.atomic,
                send_imm: !enough.send_imm,
            },
        ];
        for extensions in without {
            let refused = match admit(extensions, &header) {
                Err(RdmapError::UnexpectedOpcode { opcode }) => opcode == raw,
                // Queue 3 exists only with atomics.
                Err(RdmapError::InvalidQn { qn: 3 }) => raw == 11,
                _ => false,
            };
            assert!(refused, "opcode {raw} with {extensions:?}");
        }
    }
}

#[test]
fn extensions_enabled_later() {
    let mut stream = StreamRx::new(NONE);
    let header = untagged(0x48, 0, 0);
    assert!(stream.admit(&header).is_err());
    stream.set_extensions(ALL);
    assert_eq!(stream.admit(&header), Ok(Opcode::Immediate));
}

// [test:RFC5040-7.2-03] [test:RFC5040-7.2-08] [test:RFC7306-8.2-04]
#[test]
fn other_versions_rejected() {
    for version in [0, 2, 3] {
        for (raw, home, _) in table() {
            let byte = version << 6 | raw;
            let header = home.map_or(tagged(byte), |qn| untagged(byte, qn, 9));
            assert_eq!(admit(ALL, &header), Err(RdmapError::Version { got: version }));
        }
    }
}

// [test:RFC5040-4.1-10]
#[test]
fn reserved_bits_ignored() {
    for (raw, home, effects) in table().into_iter().filter(|row| row.0 != 15) {
        let opcode = Opcode::from_raw(raw).unwrap();
        let header = home.map_or(tagged(0x70 | raw), |qn| untagged(0x70 | raw, qn, 9));
        assert_eq!(admit(ALL, &header), Ok(opcode));
        assert_eq!(delivery_of(opcode, &header), effects);
    }
}

// [test:RFC5041-7.1-02]
#[test]
fn unknown_queues_rejected() {
    for qn in [4, 5, 0x0100_0000, u32::MAX] {
        for raw in 0..16 {
            assert_eq!(admit(ALL, &untagged(0x40 | raw, qn, 0)), Err(RdmapError::InvalidQn { qn }));
        }
    }
    assert_eq!(admit(NONE, &untagged(0x43, 3, 0)), Err(RdmapError::InvalidQn { qn: 3 }));
}

// [test:RFC5040-5.4-05]
#[test]
fn nothing_follows_terminate() {
    let mut stream = StreamRx::new(ALL);
    assert!(stream.admit(&untagged(0x43, 0, 0)).is_ok());
    assert_eq!(stream.admit(&untagged(0x47, 2, 0)), Ok(Opcode::Terminate));
    for (raw, home, _) in table() {
        let header = home.map_or(tagged(0x40 | raw), |qn| untagged(0x40 | raw, qn, 9));
        assert_eq!(stream.admit(&header), Err(RdmapError::AfterTerminate { opcode: raw }));
    }
}

/// A Terminate always fits in one segment, but DDP may split any message.
#[test]
fn terminate_parsed_from_pieces() {
    let mut stream = StreamRx::new(NONE);
    let piece = Untagged { last: false, rsvd_ulp: 0x47, rsvd_ulp32: 0, qn: 2, msn: 1, mo: 0 };
    assert_eq!(stream.admit(&Header::Untagged(piece)), Ok(Opcode::Terminate));
    let end = Untagged { last: true, mo: 2, ..piece };
    assert_eq!(stream.admit(&Header::Untagged(end)), Ok(Opcode::Terminate));
    assert_eq!(stream.admit(&Header::Untagged(end)), Err(RdmapError::AfterTerminate { opcode: 7 }));
}

#[test]
fn errors_name_message_and_queue() {
    let wrong = |byte, qn: Option<u32>| {
        let header = qn.map_or(tagged(byte), |qn| untagged(byte, qn, 0));
        admit(ALL, &header).unwrap_err().to_string()
    };
    assert_eq!(wrong(0x43, None), "Send in a tagged segment");
    assert_eq!(wrong(0x40, Some(2)), "RDMA Write in queue 2");
    assert_eq!(wrong(0x41, Some(0)), "RDMA Read Request in queue 0");
}

// [test:RFC5040-4.1-01] [test:RFC5040-4.1-03] [test:RFC5040-4.1-04] [test:RFC5040-4.1-08]
// [test:RFC7306-4.1-01]
#[test]
fn own_headers_admitted() {
    for (raw, home, effects) in table() {
        let opcode = Opcode::from_raw(raw).unwrap();
        let header: Header = match home {
            None => tagged_header(opcode, STag(0x1234), 0x5678, true).into(),
            Some(qn) => untagged_header(opcode, qn, 7, 8, true, 9).into(),
        };
        let mut bytes = [0; Header::MAX_LEN];
        let len = header.emit(&mut bytes);
        let expected = if home.is_some() { 0x41 } else { 0xC1 };
        assert_eq!(bytes[..2], [expected, 0x40 | raw]);
        assert_eq!(Header::parse(&bytes[..len]), Ok((header, len)));
        assert_eq!(admit(ALL, &header), Ok(opcode));
        assert_eq!(delivery_of(opcode, &header), effects);
    }
}

#[test]
fn send_with_immediate_may_be_solicited() {
    for solicited in [false, true] {
        let header = send_imm_header(3, 100, true, 0xFEED, solicited);
        assert_eq!(
            header,
            Untagged {
                rsvd_ulp: header.rsvd_ulp,
                ..untagged_header(Opcode::SendImm, 0, 3, 100, true, 0xFEED)
            }
        );
        assert_eq!(admit(ALL, &header.into()), Ok(Opcode::SendImm));
        let effects = delivery(solicited, None, Some(0xFEED));
        assert_eq!(delivery_of(Opcode::SendImm, &header.into()), effects);
    }
}

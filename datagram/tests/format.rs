//! Tests of the format in `docs/datagrams.md`: the bytes of another implementation, each rule, and
//! arbitrary bytes.

use proptest::prelude::*;
use std::net::IpAddr;
use uiw_datagram::sidr::{self, Reply, Request, Status};
use uiw_datagram::{
    DatagramError, Grh, Header, Kind, MAX_PAYLOAD, OVERHEAD, Qpn, RunCrc, crc, max_payload,
};

/// Decodes bytes from `text`, which has two hexadecimal digits for each.
fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// Send of five bytes, built by a Python program that shares no code with this crate.
const SEND: &str = "0101000001020304001f9001001f91021111111141430000000000000000000000010000000068656c6c6fb40a88b3";
/// Solicited multicast Send with immediate data, built by the same program.
const MULTICAST: &str =
    "01010000a0b0c0d000ffffff001f910280010000415fdeadbeef00000000ffffffff000000001f71f7b0";

fn send() -> Header {
    Header {
        epoch: 0x0102_0304,
        destination: Qpn::new(8080, 1),
        source: Qpn::new(8081, 2),
        qkey: 0x1111_1111,
        msn: 1,
        solicited: false,
        immediate: None,
    }
}

fn datagram(header: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = [header, payload].concat();
    bytes.extend_from_slice(&crc(&bytes));
    bytes
}

#[test]
fn golden_messages() {
    assert_eq!(datagram(&send().emit(), b"hello"), hex(SEND));
    assert_eq!(Header::parse(&hex(SEND)), Ok((send(), &b"hello"[..])));
    let multicast = Header {
        epoch: 0xA0B0_C0D0,
        destination: Qpn::MULTICAST,
        qkey: 0x8001_0000,
        msn: u32::MAX,
        solicited: true,
        immediate: Some(0xDEAD_BEEF),
        ..send()
    };
    assert_eq!(datagram(&multicast.emit(), b""), hex(MULTICAST));
    assert_eq!(Header::parse(&hex(MULTICAST)), Ok((multicast, &b""[..])));
    assert_eq!(Kind::of(&hex(SEND)), Some(Kind::Message));
}

#[test]
fn golden_sidr() {
    let transaction = 0x1122_3344_5566_7788;
    let request = Request { transaction, private_data: b"abc" };
    let bytes = request.emit().unwrap();
    assert_eq!(bytes[..24], hex("010200031122334455667788000000000000000061626300"));
    assert_eq!(bytes[252..], hex("3ad5ccb3"));
    assert_eq!(Request::parse(&bytes), Ok(request));
    let reply = Reply {
        transaction,
        status: Status::Valid,
        qpn: Qpn::new(8080, 1),
        qkey: 0x0123_4567,
        private_data: b"de",
    };
    let bytes = reply.emit().unwrap();
    assert_eq!(bytes[..24], hex("010300021122334455667788001f90010123456764650000"));
    assert_eq!(bytes[252..], hex("02c61eaa"));
    assert_eq!(Reply::parse(&bytes), Ok(reply));
}

/// Changes bytes of a message and corrects its CRC.
fn changed(at: usize, to: &[u8]) -> Vec<u8> {
    let mut header = send().emit();
    header[at..at + to.len()].copy_from_slice(to);
    datagram(&header, b"hello")
}

#[test]
fn message_rules_have_errors() {
    let error = |bytes: &[u8]| Header::parse(bytes).unwrap_err();
    for len in 0..OVERHEAD {
        assert_eq!(error(&hex(SEND)[..len.min(42)]), DatagramError::TooShort { len });
    }
    assert_eq!(error(&changed(0, &[2])), DatagramError::Version { version: 2 });
    assert_eq!(error(&changed(1, &[2])), DatagramError::Kind { kind: 2, expected: 1 });
    let mut flipped = hex(SEND);
    flipped[40] ^= 1;
    assert!(matches!(error(&flipped), DatagramError::Crc { .. }));
    let long = datagram(&send().emit(), &[0; MAX_PAYLOAD + 1]);
    assert_eq!(error(&long), DatagramError::TooLong { len: 4097 });
    let portless = Qpn::new(0, 9);
    assert_eq!(error(&changed(8, &[0, 0, 0, 9])), DatagramError::DestinationQpn { qpn: portless });
    assert_eq!(error(&changed(12, &[0, 0, 0, 9])), DatagramError::SourceQpn { qpn: portless });
    assert!(matches!(error(&changed(20, &[0x42])), DatagramError::Ddp(_)));
    assert_eq!(error(&changed(20, &[0xC1])), DatagramError::Tagged);
    assert_eq!(error(&changed(20, &[0x01])), DatagramError::NotLast);
    assert_eq!(error(&changed(26, &[0, 0, 0, 2])), DatagramError::Queue { qn: 2 });
    assert_eq!(error(&changed(34, &[0, 0, 0, 8])), DatagramError::MessageOffset { mo: 8 });
    assert_eq!(error(&changed(21, &[0x83])), DatagramError::RdmapVersion { version: 2 });
    for opcode in (0..16).filter(|opcode| ![3, 5, 15].contains(opcode)) {
        assert_eq!(error(&changed(21, &[0x40 | opcode])), DatagramError::Opcode { opcode });
    }
    let (header, _) = Header::parse(&changed(8, &[0xFF, 0x1F, 0x90, 0x01]))
        .expect("reserved bits are not checked");
    assert_eq!(header, send());
    assert_eq!(send().check_source(8081), Ok(()));
    let qpn = send().source;
    assert_eq!(send().check_source(8080), Err(DatagramError::SourcePort { port: 8080, qpn }));
}

#[test]
fn sidr_rules_have_errors() {
    let with_crc = |mut bytes: [u8; sidr::LEN]| {
        let field = crc(&bytes[..252]);
        bytes[252..].copy_from_slice(&field);
        bytes
    };
    let request = Request { transaction: 5, private_data: &[7; 180] }.emit().unwrap();
    assert_eq!(Request::parse(&request[..255]), Err(DatagramError::SidrLength { len: 255 }));
    let with = |at: usize, to: u8| {
        let mut bytes = request;
        bytes[at] = to;
        with_crc(bytes)
    };
    assert_eq!(Request::parse(&with(0, 9)), Err(DatagramError::Version { version: 9 }));
    assert_eq!(Request::parse(&with(1, 3)), Err(DatagramError::Kind { kind: 3, expected: 2 }));
    assert_eq!(Request::parse(&with(2, 1)), Err(DatagramError::SidrStatus { status: 1 }));
    assert_eq!(
        Request::parse(&with(3, 181)),
        Err(DatagramError::PrivateData { len: 181, max: 180 })
    );
    let mut flipped = request;
    flipped[100] ^= 4;
    assert!(matches!(Request::parse(&flipped), Err(DatagramError::Crc { .. })));
    let too_long = Request { transaction: 5, private_data: &[7; 181] };
    assert_eq!(too_long.emit(), Err(DatagramError::PrivateData { len: 181, max: 180 }));
    let reply = |status: u8, qpn: u8, len: u8| {
        let mut bytes = request;
        (bytes[1], bytes[2], bytes[3], bytes[14]) = (3, status, len, qpn);
        with_crc(bytes)
    };
    assert_eq!(Reply::parse(&reply(3, 1, 0)), Err(DatagramError::SidrStatus { status: 3 }));
    assert_eq!(
        Reply::parse(&reply(0, 0, 0)),
        Err(DatagramError::DestinationQpn { qpn: Qpn::from_raw(0) })
    );
    assert_eq!(
        Reply::parse(&reply(0, 1, 137)),
        Err(DatagramError::PrivateData { len: 137, max: 136 })
    );
    assert_eq!(Reply::parse(&reply(2, 0, 0)).unwrap().status, Status::NoQp);
}

#[test]
fn longest_payload_is_ibta_mtu() {
    for (mtu, payload) in
        [(345, None), (346, Some(256)), (1280, Some(1024)), (9000, Some(4096)), (65536, Some(4096))]
    {
        assert_eq!(max_payload(mtu), payload, "MTU {mtu}");
    }
}

#[test]
fn route_header_has_addresses() {
    for (source, destination) in [("10.1.2.3", "224.0.0.9"), ("fe80::1", "ff02::1:2")] {
        let grh = Grh {
            len: 77,
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        };
        let bytes = grh.emit();
        assert_eq!((bytes[0] >> 4, bytes[6]), (6, 0x1B));
        assert_eq!(Grh::parse(&bytes), Some(grh));
    }
    let v4 = Grh {
        len: 0,
        source: IpAddr::from([10, 1, 2, 3]),
        destination: IpAddr::from([10, 1, 2, 4]),
    };
    assert_eq!(v4.emit()[34..], [0xFF, 0xFF, 10, 1, 2, 4]);
    assert_eq!(Grh::parse(&[0; 40]), None);
}

proptest! {
    #[test]
    fn emitted_messages_parse_back(
        epoch: u32, destination in 0x100u32..0x100_0000, source in 0x100u32..0x100_0000, qkey: u32, msn: u32, solicited: bool,
        immediate: Option<u32>, payload in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let (destination, source) = (Qpn::from_raw(destination), Qpn::from_raw(source));
        let header = Header { epoch, destination, source, qkey, msn, solicited, immediate };
        let bytes = datagram(&header.emit(), &payload);
        prop_assert_eq!(Header::parse(&bytes), Ok((header, &payload[..])));
        prop_assert_eq!(Qpn::new(source.port(), source.index()), source);
    }

    #[test]
    fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 1u8..4, sized: bool) {
        if sized {
            bytes.resize(sidr::LEN, 0);
        }
        if let [version, second, ..] = &mut bytes[..] {
            (*version, *second) = (1, kind);
        }
        if let Some(end) = bytes.len().checked_sub(4) {
            let field = crc(&bytes[..end]);
            bytes[end..].copy_from_slice(&field);
        }
        let _ = (Header::parse(&bytes), Request::parse(&bytes), Reply::parse(&bytes));
    }

    #[test]
    fn crcs_of_run_match_datagrams(
        payloads in (0usize..600).prop_flat_map(|len| {
            proptest::collection::vec(proptest::collection::vec(any::<u8>(), len), 2..5)
        }),
        msn: u32,
        solicited: bool,
        immediate: Option<u32>,
        flip in any::<proptest::sample::Index>(),
    ) {
        let datagram = |msn, payload: &Vec<u8>| {
            [&Header { msn, solicited, immediate, ..send() }.emit()[..], payload].concat()
        };
        let run = RunCrc::new(&datagram(msn, &payloads[0]));
        for (at, payload) in payloads.iter().enumerate() {
            let mut bytes = datagram(msn.wrapping_add(at as u32), payload);
            let field = run.crc(&bytes);
            prop_assert_eq!(field, crc(&bytes));
            // These bytes are not compared with the first header.
            let at = 30 + flip.index(bytes.len() - 30);
            bytes[at] ^= 1;
            prop_assert_ne!(run.crc(&bytes), field);
        }
    }

    #[test]
    fn flipped_bit_detected(at in 0usize..47, bit in 0u8..8) {
        let mut bytes = hex(SEND);
        bytes[at] ^= 1 << bit;
        prop_assert!(Header::parse(&bytes).is_err());
    }
}

#[test]
fn headers_equal_except_msn() {
    for (solicited, immediate) in [(false, None), (true, None), (false, Some(3)), (true, Some(3))] {
        let bytes = Header { solicited, immediate, ..send() }.emit();
        for at in 0..Header::LEN {
            let mut other = bytes;
            other[at] ^= 0x40;
            let is_msn = (30..34).contains(&at);
            assert_eq!(Header::is_equal_but_msn(&other, &bytes), is_msn, "byte {at}");
        }
    }
}

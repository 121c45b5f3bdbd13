//! Tests that the results do not depend on how TCP and the capture carry the bytes, and that
//! missing bytes are reported.

use crate::packets::{
    ACK, FIN, Link, SYN, Segment, capture, capture_of, decode, essence, of_type, packet,
    segments_of,
};

const VECTORS: &str = "vectors/vectors.pcap";

/// Returns the startup frames, FPDUs, messages and departures in these segments.
fn found(segments: &[Segment]) -> Vec<(u64, String, serde_json::Value)> {
    essence(&decode(&capture_of(segments, Link::Ethernet)).0)
}

fn with_payload(segment: &Segment, at: usize, length: usize) -> Segment {
    let sequence = segment.sequence.wrapping_add(u32::try_from(at).unwrap());
    Segment { sequence, payload: segment.payload[at..at + length].to_vec(), ..segment.clone() }
}

#[test]
fn every_link_type_and_ip_version() {
    let segments = segments_of(VECTORS);
    let expected = found(&segments);
    assert!(!expected.is_empty());
    for link in Link::ALL {
        let (records, summary) = decode(&capture_of(&segments, link));
        assert!(summary.followed(), "{link:?}: {summary}");
        assert_eq!(essence(&records), expected, "{link:?}");
    }
}

#[test]
fn one_byte_a_segment() {
    let segments = segments_of(VECTORS);
    let single: Vec<_> = segments
        .iter()
        .flat_map(|segment| match segment.payload.len() {
            0 => vec![segment.clone()],
            length => (0..length).map(|at| with_payload(segment, at, 1)).collect(),
        })
        .collect();
    assert_eq!(found(&single), found(&segments));
}

#[test]
fn repeated_overlapping_and_out_of_order() {
    let segments = segments_of(VECTORS);
    let mut shuffled = Vec::new();
    for segment in &segments {
        let length = segment.payload.len();
        if length > 4 {
            // First the end, then the middle, then everything, then the front again.
            shuffled.push(with_payload(segment, length - 2, 2));
            shuffled.push(with_payload(segment, 1, length - 2));
            shuffled.push(segment.clone());
            shuffled.push(with_payload(segment, 0, 3));
        } else {
            shuffled.push(segment.clone());
        }
    }
    let (records, summary) = decode(&capture_of(&shuffled, Link::Ethernet));
    assert!(summary.followed(), "{summary}");
    assert!(summary.repeated_bytes > 0);
    assert_eq!(essence(&records), found(&segments));
}

#[test]
fn sequence_numbers_wrap() {
    let mut segments = segments_of("siw/rping-4k-crc-on.pcap");
    let expected = found(&segments);
    let client = segments[0].from;
    let first = segments[0].sequence;
    // The Request of the client begins just before the wrap.
    let shift = |number: u32| number.wrapping_sub(first).wrapping_sub(30);
    for segment in &mut segments {
        if segment.from == client {
            segment.sequence = shift(segment.sequence);
        } else {
            segment.acknowledgment = shift(segment.acknowledgment);
        }
    }
    assert_eq!(found(&segments), expected);
}

#[test]
fn without_the_handshake() {
    let segments = segments_of(VECTORS);
    let mid_stream: Vec<_> =
        segments.iter().filter(|segment| segment.flags & SYN == 0).cloned().collect();
    assert_eq!(found(&mid_stream), found(&segments));
}

#[test]
fn other_traffic_before_the_startup_frames() {
    let mut segments = segments_of("siw/tool-send.pcap");
    let expected = found(&segments);
    let at = segments.iter().position(|segment| !segment.payload.is_empty()).unwrap();
    let greeting = b"HELLO\r\n".to_vec();
    for segment in &mut segments[at..] {
        if segment.from == segments_of("siw/tool-send.pcap")[0].from {
            segment.sequence = segment.sequence.wrapping_add(7);
        } else {
            segment.acknowledgment = segment.acknowledgment.wrapping_add(7);
        }
    }
    let mut hello = segments[at].clone();
    (hello.sequence, hello.payload) = (hello.sequence.wrapping_sub(7), greeting);
    segments.insert(at, hello);
    assert_eq!(found(&segments), expected);
}

/// The beginning is missing, as if the first files of a ring of captures were overwritten.
#[test]
fn connection_followed_from_fpdu() {
    for name in ["siw/rping-4k-crc-on.pcap", "siw/rping-crc-on.pcap", "siw/uiw-all-to-siw.pcapng"] {
        let segments = segments_of(name);
        let (whole, _) = decode(&capture_of(&segments, Link::Ethernet));
        let fields = |records: &[serde_json::Value]| -> Vec<String> {
            let fpdus = of_type(records, "fpdu").into_iter();
            fpdus
                .map(|fpdu| format!("{} {} {}", fpdu["from"], fpdu["crc_field"], fpdu["segment"]))
                .collect()
        };
        let startup = |segment: &Segment| segment.payload.starts_with(b"MPA ID");
        let first = 1 + segments
            .iter()
            .position(|segment| startup(segment) && segment.payload[7..10] == *b"Rep")
            .unwrap();
        for gone in [first, segments.len() / 2] {
            let rest: Vec<Segment> =
                segments[gone..].iter().filter(|segment| !startup(segment)).cloned().collect();
            let (found, summary) = decode(&capture_of(&rest, Link::Ethernet));
            assert!(of_type(&found, "departure").is_empty(), "{name} from {gone} on: {found:#?}");
            let due: Vec<String> =
                fields(&whole).into_iter().rev().take(fields(&found).len()).collect();
            let payloads = rest.iter().filter(|segment| !segment.payload.is_empty()).count();
            assert!(
                summary.connections > 0 && !summary.followed(),
                "{name} from {gone} on: {summary}"
            );
            assert!(fields(&found).len() * 10 >= payloads * 9, "{name} from {gone} on: {summary}");
            assert!(due.iter().all(|fpdu| fields(&found).contains(fpdu)), "{name} from {gone} on");
            assert!(
                summary.to_string().contains("could not be decoded from the beginning on"),
                "{summary}"
            );
        }
    }
    // Without CRCs, an FPDU cannot be recognised.
    let rest = segments_of("siw/rping-4k-crc-off.pcap").split_off(8);
    assert_eq!(decode(&capture_of(&rest, Link::Ethernet)).1.connections, 0);
}

#[test]
fn missing_request_uses_reply_flags() {
    let segments = segments_of("siw/rping-crc-on.pcap");
    let request =
        segments.iter().position(|segment| segment.payload.starts_with(b"MPA ID Req")).unwrap();
    let (records, summary) = decode(&capture_of(&segments[request + 1..], Link::Ethernet));
    assert_eq!((summary.fpdus, summary.crc_good), (21, 21));
    let not_followed = of_type(&records, "not_followed");
    assert_eq!(not_followed.len(), 1);
    assert_eq!(not_followed[0]["why"], "the MPA Request is not in the capture");
    assert!(!summary.followed());
}

/// With one direction alone, its FPDUs are decoded, and the other direction is reported as missing.
#[test]
fn missing_direction_uses_request_flags() {
    let segments = segments_of("siw/rping-crc-on.pcap");
    let one_way: Vec<_> =
        segments.iter().filter(|segment| segment.from == segments[0].from).cloned().collect();
    let (records, summary) = decode(&capture_of(&one_way, Link::Ethernet));
    assert_eq!((summary.fpdus, summary.crc_good, summary.departures), (9, 9, 0));
    assert!(!summary.followed() && !of_type(&records, "missing").is_empty());
}

#[test]
fn snapped_packet_costs_only_payload() {
    let segments = segments_of(VECTORS);
    let long = segments.iter().position(|segment| segment.payload.len() > 1100).unwrap();
    let packets = segments.iter().enumerate().map(|(n, segment)| {
        let mut packet = packet(segment, Link::Ethernet);
        if n == long {
            packet.truncate(200);
        }
        packet
    });
    let (records, summary) = decode(&capture(1, packets));
    let (whole, _) = decode(&capture_of(&segments, Link::Ethernet));
    assert_eq!((summary.fpdus, summary.crc_unknown), (64, 1));
    assert_eq!(summary.missing_bytes, segments[long].payload.len() as u64 - (200 - 54));
    assert!(!summary.followed());
    let messages = |records: &[serde_json::Value]| {
        essence(records)
            .into_iter()
            .filter(|found| found.2["type"] == "message")
            .collect::<Vec<_>>()
    };
    assert_eq!(messages(&records), messages(&whole));
}

#[test]
fn any_payload_may_be_cut() {
    let segments = segments_of(VECTORS);
    let (whole, _) = decode(&capture_of(&segments, Link::Ethernet));
    let departures = of_type(&whole, "departure").len();
    let long =
        |segment: &Segment| segment.payload.len() > 40 && !segment.payload.starts_with(b"MPA ID");
    let long: Vec<_> = (0..segments.len()).filter(|n| long(&segments[*n])).collect();
    assert!(long.len() > 10);
    for cut in long {
        let packets = segments.iter().enumerate().map(|(n, segment)| {
            let mut packet = packet(segment, Link::Ethernet);
            // Keeps room for a Marker, the length and the longest DDP header.
            packet.truncate(if n == cut { 54 + 24 } else { packet.len() });
            packet
        });
        let (records, summary) = decode(&capture(1, packets));
        assert_eq!(summary.fpdus, 64, "packet {cut}");
        assert_eq!(summary.missing_bytes, segments[cut].payload.len() as u64 - 24);
        let found = of_type(&records, "departure");
        assert!(found.len() <= departures, "packet {cut}: {found:?}");
    }
}

#[test]
fn direction_resumed_after_lost_fpdu() {
    let mut segments = segments_of("siw/rping-crc-on.pcap");
    let data: Vec<_> = (0..segments.len())
        .filter(|n| segments[*n].from == segments[0].from && !segments[*n].payload.is_empty())
        .collect();
    let lost = segments.remove(data[2]).payload.len() as u64;
    let (records, summary) = decode(&capture_of(&segments, Link::Ethernet));
    assert_eq!((summary.fpdus, summary.crc_good, summary.departures), (20, 20, 0), "{summary}");
    assert_eq!((summary.missing_bytes, summary.resumed, summary.not_followed), (lost, 1, 0));
    // The lost bytes follow the Request and one FPDU.
    assert_eq!(of_type(&records, "missing")[0]["position"], 24 + 40);
    assert_eq!(of_type(&records, "resumed")[0]["position"], 40 + lost);
    assert_eq!(of_type(&records, "resumed")[0]["skipped"], lost);
    assert!(!summary.followed());
}

#[test]
fn ports_are_used_again() {
    let first = segments_of("siw/tool-send.pcap");
    let again = first.iter().map(|segment| Segment {
        sequence: segment.sequence.wrapping_add(1_000_000),
        acknowledgment: segment.acknowledgment.wrapping_add(1_000_000),
        ..segment.clone()
    });
    let both: Vec<_> = first.iter().cloned().chain(again).collect();
    let (_, summary) = decode(&capture_of(&both, Link::Ethernet));
    assert_eq!((summary.connections, summary.fpdus), (2, 10));
    assert!(summary.followed(), "{summary}");
}

#[test]
fn fin_within_an_fpdu_is_reported() {
    let mut segments = segments_of("siw/tool-send.pcap");
    let last = segments.iter().rposition(|segment| segment.payload.len() > 20).unwrap();
    segments[last].payload.truncate(10);
    segments[last].flags |= FIN;
    segments.truncate(last + 1);
    let (records, _) = decode(&capture_of(&segments, Link::Ethernet));
    let closed = of_type(&records, "closed");
    assert_eq!(closed[0]["what"], "the capture ends after 10 bytes of an FPDU");
}

#[test]
fn fragments_are_reported() {
    let segments = segments_of("siw/tool-send.pcap");
    let mut fragment = packet(&segments[4], Link::Ethernet);
    fragment[14 + 6] = 0x20;
    let packets = segments.iter().map(|segment| packet(segment, Link::Ethernet)).chain([fragment]);
    assert_eq!(decode(&capture(1, packets)).1.fragments, 1);
}

#[test]
fn not_iwarp_at_all() {
    let segment = |payload: &[u8]| Segment {
        from: ([10, 0, 0, 1], 40_000),
        to: ([10, 0, 0, 2], 80),
        sequence: 1,
        acknowledgment: 1,
        flags: ACK,
        payload: payload.to_vec(),
    };
    let (records, summary) = decode(&capture_of(&[segment(b"GET / HTTP/1.1\r\n")], Link::Ethernet));
    assert!(records.is_empty());
    assert!(!summary.followed());
    assert!(summary.to_string().contains("no MPA Request or Reply Frame"), "{summary}");
}

/// A forged segment must not move the direction that it seems to acknowledge.
#[test]
fn impossible_acknowledgment_ignored() {
    let mut segments = segments_of("siw/write-bw-64k.pcapng");
    let expected = found(&segments);
    let at =
        segments.iter().position(|segment| segment.payload.starts_with(b"MPA ID Rep")).unwrap();
    let acknowledgment = segments[at].acknowledgment.wrapping_add(100_000_000);
    segments.insert(at + 1, Segment { acknowledgment, ..segments[at].clone() });
    let (records, summary) = decode(&capture_of(&segments, Link::Ethernet));
    assert!(summary.missing_bytes == 0 && essence(&records) == expected, "{summary}");
}

#[test]
fn split_request_on_reused_ports_found() {
    let mut segments = segments_of("siw/tool-send.pcap");
    let expected = found(&segments);
    let at = segments.iter().position(|segment| !segment.payload.is_empty()).unwrap();
    let request = segments.remove(at);
    let rest = request.payload.len() - 10;
    segments.splice(at..at, [with_payload(&request, 0, 10), with_payload(&request, 10, rest)]);
    // The first connection of these ports is not iWARP.
    let other = Segment { payload: b"GET / HTTP/1.1\r\n".to_vec(), ..request };
    segments.insert(0, other);
    assert_eq!(found(&segments), expected);
}

//! Builds captures of TCP segments with various link and network headers.

use std::path::Path;

use serde_json::Value;
use uiw_decode::pcap::{LinkType, Packet, Reader};
use uiw_decode::{self as decode, Summary};

pub(crate) const SYN: u8 = 0x02;
pub(crate) const FIN: u8 = 0x01;
pub(crate) const ACK: u8 = 0x10;

/// A TCP segment between two hosts in an IPv4 network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) from: ([u8; 4], u16),
    pub(crate) to: ([u8; 4], u16),
    pub(crate) sequence: u32,
    pub(crate) acknowledgment: u32,
    pub(crate) flags: u8,
    pub(crate) payload: Vec<u8>,
}

/// Link header at the start of the packets of a capture.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Link {
    Ethernet,
    Vlan,
    TwoVlans,
    Raw,
    RawIpv6,
    Sll,
    Sll2,
    Null,
    Loop,
}

impl Link {
    pub(crate) const ALL: [Self; 9] = [
        Self::Ethernet,
        Self::Vlan,
        Self::TwoVlans,
        Self::Raw,
        Self::RawIpv6,
        Self::Sll,
        Self::Sll2,
        Self::Null,
        Self::Loop,
    ];

    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Ethernet | Self::Vlan | Self::TwoVlans => 1,
            Self::Raw | Self::RawIpv6 => 101,
            Self::Sll => 113,
            Self::Sll2 => 276,
            Self::Null => 0,
            Self::Loop => 108,
        }
    }

    fn header(self) -> Vec<u8> {
        let macs = [0x02; 12];
        match self {
            Self::Ethernet => [&macs[..], &[8, 0]].concat(),
            Self::Vlan => [&macs[..], &[0x81, 0, 0, 7, 8, 0]].concat(),
            Self::TwoVlans => [&macs[..], &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 9, 8, 0]].concat(),
            Self::Raw | Self::RawIpv6 => Vec::new(),
            Self::Sll => [&[0, 0, 0, 1, 0, 6][..], &[2; 6], &[0, 0, 8, 0]].concat(),
            Self::Sll2 => [&[8, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6][..], &[2; 6], &[0, 0]].concat(),
            Self::Null => vec![2, 0, 0, 0],
            Self::Loop => vec![0, 0, 0, 2],
        }
    }
}

/// Builds the packet of a segment.
pub(crate) fn packet(segment: &Segment, link: Link) -> Vec<u8> {
    let mut tcp = Vec::new();
    tcp.extend(segment.from.1.to_be_bytes());
    tcp.extend(segment.to.1.to_be_bytes());
    tcp.extend(segment.sequence.to_be_bytes());
    tcp.extend(segment.acknowledgment.to_be_bytes());
    tcp.extend([5 << 4, segment.flags, 0xff, 0xff, 0, 0, 0, 0]);
    tcp.extend(&segment.payload);
    let mut packet = link.header();
    if matches!(link, Link::RawIpv6) {
        // An empty Destination Options header, followed by TCP.
        let length = u16::try_from(tcp.len() + 8).unwrap();
        packet.extend([0x60, 0, 0, 0]);
        packet.extend(length.to_be_bytes());
        packet.extend([60, 64]);
        for host in [segment.from.0, segment.to.0] {
            packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            packet.extend(host);
        }
        packet.extend([6, 0, 1, 4, 0, 0, 0, 0]);
    } else {
        let length = u16::try_from(tcp.len() + 20).unwrap();
        packet.extend([0x45, 0]);
        packet.extend(length.to_be_bytes());
        packet.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
        packet.extend(segment.from.0);
        packet.extend(segment.to.0);
    }
    packet.extend(tcp);
    packet
}

/// Builds a classic capture with one packet per millisecond.
pub(crate) fn capture(link: u32, packets: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let header: [u32; 6] = [0xa1b2_c3d4, 0x0002_0004, 0, 0, 262_144, link];
    let mut file: Vec<u8> = header.into_iter().flat_map(u32::to_be_bytes).collect();
    for (n, packet) in packets.into_iter().enumerate() {
        let (n, length) = (u32::try_from(n).unwrap(), u32::try_from(packet.len()).unwrap());
        file.extend(
            [n / 1000, n % 1000 * 1000, length, length].into_iter().flat_map(u32::to_be_bytes),
        );
        file.extend(packet);
    }
    file
}

pub(crate) fn capture_of(segments: &[Segment], link: Link) -> Vec<u8> {
    capture(link.number(), segments.iter().map(|segment| packet(segment, link)))
}

/// Returns the segments of a capture in `interop/data`, which has IPv4 packets with or without
/// Ethernet headers.
pub(crate) fn segments_of(file: &str) -> Vec<Segment> {
    let bytes = file_of(file);
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    let mut segments = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        segments.extend(segment_of(&packet));
    }
    segments
}

pub(crate) fn file_of(file: &str) -> Vec<u8> {
    // The tests of `interop` also include this source file, so the manifest directory differs.
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .find(|path| path.join("interop/data").is_dir());
    let path = root.unwrap().join("interop/data").join(file);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn segment_of(packet: &Packet) -> Option<Segment> {
    let bytes = packet.bytes.as_slice();
    let ip = match packet.link {
        LinkType::ETHERNET => bytes.get(14..).filter(|_| bytes[12..14] == [8, 0])?,
        _ => bytes,
    };
    let length = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let tcp = ip.get(usize::from(ip[0] & 15) * 4..length).filter(|_| ip[9] == 6)?;
    let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    Some(Segment {
        from: (ip[12..16].try_into().unwrap(), port(0)),
        to: (ip[16..20].try_into().unwrap(), port(2)),
        sequence: word(4),
        acknowledgment: word(8),
        flags: tcp[13],
        payload: tcp[usize::from(tcp[12] >> 4) * 4..].to_vec(),
    })
}

/// Decodes a capture. Returns the events as JSON.
pub(crate) fn decode(file: &[u8]) -> (Vec<Value>, Summary) {
    let mut records = Vec::new();
    let summary =
        decode::decode(file, &mut |record| records.push(serde_json::to_value(record).unwrap()));
    (records, summary.expect("a capture"))
}

/// Returns startup frames, FPDUs, messages and departures by connection and source port, without
/// time, packet number and addresses.
pub(crate) fn essence(records: &[Value]) -> Vec<(u64, String, Value)> {
    let mut essence: Vec<_> = records
        .iter()
        .filter(|record| {
            ["startup", "fpdu", "message", "departure"].iter().any(|kind| record["type"] == *kind)
        })
        .map(|record| {
            let mut record = record.clone();
            let port = record["from"].as_str().unwrap().rsplit(':').next().unwrap().to_owned();
            for field in ["time", "packet", "from", "to"] {
                record.as_object_mut().unwrap().remove(field);
            }
            (record["connection"].as_u64().unwrap(), port, record)
        })
        .collect();
    // A stable sort keeps the order within each direction. The order between the directions does
    // not matter.
    essence.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    essence
}

pub(crate) fn of_type<'a>(records: &'a [Value], kind: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["type"] == kind).collect()
}

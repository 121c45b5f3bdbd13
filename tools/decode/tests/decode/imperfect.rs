//! Tests of captures with missing or reordered packets, as tcpdump writes them under load. They
//! must not cause departures, and the captured FPDUs are decoded.

use std::collections::BTreeSet;

use serde_json::Value;
use uiw_decode::Summary;

use crate::packets::{Link, SYN, Segment, capture_of, decode, segments_of};

/// Captures of siw and of the test vectors whose originals are decoded without departures: with
/// and without CRCs, with Reads, both MPA revisions and Markers.
const CAPTURES: [&str; 17] = [
    "siw/uiw-all-to-siw.pcapng",
    "siw/uiw-all-from-siw.pcapng",
    "siw/uiw-all-to-siw-no-crc.pcapng",
    "siw/uiw-all-from-siw-no-crc.pcapng",
    "vectors/vectors.pcap",
    "vectors/quirks.pcap",
    "siw/host-tap-to-siw.pcap",
    "siw/rping-crc-on.pcap",
    "siw/rping-4k-crc-on.pcap",
    "siw/rping-crc-off.pcap",
    "siw/rping-4k-crc-off.pcap",
    "siw/rping-mpa-v1.pcap",
    "siw/tool-send.pcap",
    "siw/tool-read.pcap",
    "siw/tool-inv-crc.pcap",
    "siw/tool-multisge.pcap",
    "siw/tool-inline.pcap",
];
/// Number of mutations of each capture.
const VARIANTS: u64 = 40;

/// Generator xorshift64, so that every run has the same captures.
struct RandomBytes(u64);

impl RandomBytes {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

/// Returns the decoded FPDUs, each with its sender, CRC field and length.
fn fpdus(records: &[Value]) -> Vec<String> {
    let fpdus = records.iter().filter(|record| record["type"] == "fpdu");
    fpdus
        .map(|fpdu| format!("{} {} {}", fpdu["from"], fpdu["crc_field"], fpdu["ulpdu_length"]))
        .collect()
}

/// Returns how many of `expected` are in `found`, counting repetitions.
fn common(expected: &[String], found: &[String]) -> usize {
    let mut left = found.to_vec();
    let mut take =
        |one: &String| left.iter().position(|other| other == one).map(|at| left.swap_remove(at));
    expected.iter().filter(|one| take(one).is_some()).count()
}

/// Returns the departures that the original does not have.
fn new_departures(records: &[Value], original: &BTreeSet<String>) -> Vec<String> {
    let departures = records.iter().filter(|record| record["type"] == "departure");
    let rules = departures.map(|record| format!("{} {}", record["rule"], record["what"]));
    rules.filter(|departure| !original.contains(departure)).collect()
}

struct OriginalCapture {
    name: &'static str,
    segments: Vec<Segment>,
    fpdus: Vec<String>,
    departures: BTreeSet<String>,
}

impl OriginalCapture {
    fn new(name: &'static str) -> Self {
        let segments = segments_of(name);
        let (records, _) = decode(&capture_of(&segments, Link::Ethernet));
        let departures = records.iter().filter(|record| record["type"] == "departure");
        let departures =
            departures.map(|record| format!("{} {}", record["rule"], record["what"])).collect();
        Self { name, fpdus: fpdus(&records), departures, segments }
    }

    /// Returns whether a segment has payload, or is one of the handshake.
    fn is_of_interest(&self, at: usize) -> bool {
        !self.segments[at].payload.is_empty() || self.segments[at].flags & SYN != 0
    }

    fn pick(&self, random: &mut RandomBytes) -> usize {
        loop {
            let at = random.below(self.segments.len());
            if self.is_of_interest(at) {
                return at;
            }
        }
    }

    fn check(&self, segments: &[Segment], what: &str) -> (Vec<String>, Summary) {
        let (records, summary) = decode(&capture_of(segments, Link::Ethernet));
        let false_ones = new_departures(&records, &self.departures);
        assert!(false_ones.is_empty(), "{} {what}: {false_ones:#?}", self.name);
        (fpdus(&records), summary)
    }
}

#[test]
fn swapped_packets_change_nothing() {
    for name in CAPTURES {
        let original = OriginalCapture::new(name);
        for seed in 1..=VARIANTS {
            let mut random = RandomBytes(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let mut segments = original.segments.clone();
            let mut what = String::new();
            for _ in 0..=random.below(3) {
                // Swap it with one of the next three packets.
                let at = random.below(segments.len());
                let with = (at + 1 + random.below(3)).min(segments.len() - 1);
                segments.swap(at, with);
                what += &format!("{at}<>{with} ");
            }
            let (found, summary) = original.check(&segments, &what);
            let expected = &original.fpdus;
            assert_eq!(common(expected, &found), expected.len(), "{name} {what}: {summary}");
            assert_eq!(summary.missing_bytes, 0, "{name} {what}: {summary}");
        }
    }
}

#[test]
fn lost_packets_cost_only_their_bytes() {
    let (mut all, mut decoded, mut captures) = (0, 0, 0);
    for name in CAPTURES {
        let original = OriginalCapture::new(name);
        for seed in 1..=VARIANTS {
            let mut random = RandomBytes(seed.wrapping_mul(0xD1B5_4A32_D192_ED03));
            let lost: BTreeSet<_> =
                (0..=random.below(3)).map(|_| original.pick(&mut random)).collect();
            let (mut kept, mut gone) = (Vec::new(), 0);
            for (at, segment) in original.segments.iter().enumerate() {
                if lost.contains(&at) {
                    gone += fpdus_in(&segment.payload);
                } else {
                    kept.push(segment.clone());
                }
            }
            let what = format!("without {lost:?}");
            let (found, summary) = original.check(&kept, &what);
            // Without a startup frame, the connection is not recognised as iWARP.
            let is_iwarp = kept.iter().any(|segment| segment.payload.starts_with(b"MPA ID"));
            // Segments of the vectors and of uiw do not begin with an FPDU, so theirs are not
            // counted.
            let is_counted = is_iwarp && name.ends_with(".pcap") && name.starts_with("siw/");
            let expected = if is_counted { original.fpdus.len() - gone } else { 0 };
            let right = common(&original.fpdus, &found).min(expected);
            // Swapping two of the remaining packets does no harm either.
            let at = random.below(kept.len() - 1);
            kept.swap(at, at + 1);
            original.check(&kept, &format!("{what}, {at} and the next one swapped"));
            assert!(
                right * 100 >= expected * 50,
                "{name} {what}: {right} of {expected}\n{summary}"
            );
            (all, decoded, captures) = (all + expected, decoded + right, captures + 1);
        }
    }
    assert_eq!(captures, 680);
    assert!(decoded * 100 >= all * 95, "{decoded} of {all} FPDUs");
}

/// Returns the number of FPDUs in a segment that begins with an FPDU, as the segments of siw do.
fn fpdus_in(payload: &[u8]) -> usize {
    let (mut at, mut count) = (0, 0);
    while !payload.starts_with(b"MPA ID") && at + 2 <= payload.len() {
        let length = usize::from(u16::from_be_bytes([payload[at], payload[at + 1]]));
        at += (2 + length).next_multiple_of(4) + 4;
        count += 1;
    }
    count
}

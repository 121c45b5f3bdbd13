//! Runs tshark and uiw on the same captures after packets were removed or reordered: uiw must find
//! the FPDUs that tshark finds and must not report a departure of either end.

use std::collections::BTreeMap;

use serde_json::Value;
use uiw_interop::tshark::{Crc, Tshark};

use crate::decoded::Decoded;
use crate::live::TempFile;
use crate::segments::{Link, Segment, capture_of, segments_of};

/// Captures without departures: sent by siw and by uiw, with and without CRCs, Reads, both MPA
/// revisions, and the test vectors, which contain 22 conversations.
const CAPTURES: [&str; 17] = [
    "siw/uiw-all-to-siw.pcapng",
    "siw/uiw-all-from-siw.pcapng",
    "siw/uiw-all-to-siw-no-crc.pcapng",
    "siw/uiw-all-from-siw-no-crc.pcapng",
    "vectors/vectors.pcap",
    "siw/uiw-rping-from-siw.pcapng",
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
/// Number of mutated copies of each capture; they are stored in one file and have different hosts.
const VARIANTS: u8 = 12;

/// xorshift64 generator, so that every run produces the same captures.
struct RandomBytes(u64);

impl RandomBytes {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).expect("it is below a usize")
    }
}

/// Returns a copy of `segments` with 1 to 3 packets removed, 1 to 3 packets each swapped with one
/// of the three that follow, and host addresses that are unique to `variant`.
fn mutated(segments: &[Segment], variant: u8) -> Vec<Segment> {
    let mut random = RandomBytes(u64::from(variant + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut left = segments.to_vec();
    for _ in 0..=random.below(3) {
        left.remove(random.below(left.len()));
    }
    for _ in 0..=random.below(3) {
        let at = random.below(left.len() - 1);
        let with = (at + 1 + random.below(3)).min(left.len() - 1);
        left.swap(at, with);
    }
    for segment in &mut left {
        (segment.from.0[1], segment.to.0[1]) = (variant, variant);
    }
    left
}

/// Number of FPDUs by variant, CRC field and length.
type Found = BTreeMap<(u8, u32, u16), usize>;

fn variant_of(host: &str) -> u8 {
    host.split('.').nth(1).and_then(|octet| octet.parse().ok()).expect("an address")
}

fn departures(decoded: &Decoded) -> Vec<(u8, String)> {
    let of = |record: &Value| {
        let from = record["from"].as_str().expect("an address");
        (variant_of(from), format!("{} {}", record["rule"], record["what"]))
    };
    decoded.of_type("departure").map(of).collect()
}

fn total(found: &Found) -> usize {
    found.values().sum()
}

#[test]
fn tshark_findings_in_mutated_captures_found() {
    let Some(tshark) = Tshark::require() else { return };
    let (mut captures, mut theirs_in_all, mut common_in_all) = (0, 0, 0);
    for name in CAPTURES {
        let segments = segments_of(name);
        let original = TempFile::new("whole");
        std::fs::write(&original.0, capture_of(&segments, Link::Ethernet)).expect("the capture");
        let original = departures(&Decoded::new(original.0.clone()));
        let all: Vec<Vec<Segment>> =
            (0..VARIANTS).map(|variant| mutated(&segments, variant)).collect();
        let file = TempFile::new("mutated");
        std::fs::write(&file.0, capture_of(&all.concat(), Link::Ethernet)).expect("the capture");
        captures += all.len();

        let mut ends = Vec::new();
        for segments in &all {
            ends.push(ends.last().unwrap_or(&0) + segments.len() as u64);
        }
        let mut theirs = Found::new();
        // A candidate that tshark takes for an FPDU is not one if its CRC is wrong.
        for fpdu in tshark
            .dissect(&file.0)
            .expect("tshark")
            .fpdus
            .iter()
            .filter(|fpdu| fpdu.crc != Crc::Bad)
        {
            let variant = ends.partition_point(|end| *end < fpdu.packet) as u8;
            let (Some(crc), Some(length)) = (fpdu.crc_field, fpdu.ulpdu_length) else { continue };
            *theirs.entry((variant, crc.swap_bytes(), length)).or_default() += 1;
        }
        let decoded = Decoded::new(file.0.clone());
        let mut ours = Found::new();
        for fpdu in decoded.of_type("fpdu") {
            let number = |field: &str| fpdu[field].as_u64();
            let variant = variant_of(fpdu["from"].as_str().expect("an address"));
            let Some(crc) = number("crc_field") else { continue };
            let key = (variant, crc as u32, number("ulpdu_length").expect("a length") as u16);
            *ours.entry(key).or_default() += 1;
        }
        let common =
            |(key, count): (&(u8, u32, u16), &usize)| *ours.get(key).unwrap_or(&0).min(count);
        let common: usize = theirs.iter().map(common).sum();
        println!("{name}: tshark {}, uiw {}, common {common}", total(&theirs), total(&ours));
        for (variant, departure) in departures(&decoded) {
            let known = original.iter().any(|(_, known)| *known == departure);
            assert!(known, "{name}, variant {variant}: {departure}");
        }
        theirs_in_all += total(&theirs);
        common_in_all += common;
    }
    assert!(
        captures >= 200 && theirs_in_all > 2_000,
        "{theirs_in_all} FPDUs in {captures} captures"
    );
    assert!(common_in_all * 100 >= theirs_in_all * 95, "{common_in_all} of {theirs_in_all} FPDUs");
}

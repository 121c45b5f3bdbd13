//! Compares the captures in `interop/data` with counts obtained from tshark's dissection of them.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::decoded::Decoded;

/// One line of `expected.tsv`.
pub(crate) struct Expected {
    pub(crate) file: String,
    pub(crate) requests: u64,
    pub(crate) replies: u64,
    fpdus: u64,
    good: u64,
    bad: u64,
    segments: BTreeMap<u64, u64>,
    messages: BTreeMap<u64, u64>,
    terminates: Vec<[u64; 3]>,
    departures: u64,
}

impl Expected {
    pub(crate) fn all() -> Vec<Self> {
        let table = fs::read_to_string(uiw_interop::data("expected.tsv"))
            .expect("the table is part of the source");
        table.lines().filter(|line| !line.starts_with('#')).map(Self::parse).collect()
    }

    fn parse(line: &str) -> Self {
        let columns: Vec<&str> = line.split('\t').collect();
        let [file, requests, replies, fpdus, good, bad, segments, messages, terminates, departures] =
            columns[..]
        else {
            panic!("not ten columns: {line}")
        };
        let number =
            |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("no number: {text}"));
        let counts = |text: &str| {
            let pair = |pair: &str| {
                pair.split_once(':').map(|(opcode, count)| (number(opcode), number(count)))
            };
            text.split(',').filter_map(pair).collect()
        };
        let terminates = terminates.split(',').filter(|text| *text != "-");
        let terminates = terminates.map(|text| {
            let numbers: Vec<u64> = text.split('/').map(number).collect();
            numbers.try_into().expect("layer/etype/code")
        });
        Self {
            file: file.into(),
            requests: number(requests),
            replies: number(replies),
            fpdus: number(fpdus),
            good: number(good),
            bad: number(bad),
            segments: counts(segments),
            messages: counts(messages),
            terminates: terminates.collect(),
            departures: number(departures),
        }
    }
}

fn count(records: impl Iterator<Item = u64>) -> BTreeMap<u64, u64> {
    records.fold(BTreeMap::new(), |mut counts, opcode| {
        *counts.entry(opcode).or_default() += 1;
        counts
    })
}

fn opcode(record: &Value) -> u64 {
    record["opcode"].as_u64().expect("an OpCode")
}

#[test]
fn all_capture_bytes_followed() {
    for expected in Expected::all() {
        let decoded = Decoded::new(uiw_interop::data(&expected.file));
        let summary = &decoded.summary;
        let file = &expected.file;
        assert!(summary.followed(), "{file}: {summary}");
        assert_eq!(summary.startup_frames, expected.requests + expected.replies, "{file}");
        let crc = (summary.fpdus, summary.crc_good, summary.crc_bad);
        assert_eq!(crc, (expected.fpdus, expected.good, expected.bad), "{file}");
        assert_eq!(
            count(decoded.of_type("fpdu").map(opcode)),
            expected.segments,
            "{file}: segments"
        );
        assert_eq!(
            count(decoded.of_type("message").map(opcode)),
            expected.messages,
            "{file}: messages"
        );
        let departures: Vec<_> =
            decoded.of_type("departure").map(|record| &record["what"]).collect();
        assert_eq!(summary.departures, expected.departures, "{file}: {departures:?}");
    }
}

#[test]
fn siw_terminates_named() {
    for expected in Expected::all() {
        let decoded = Decoded::new(uiw_interop::data(&expected.file));
        let terminates: Vec<&Value> = decoded
            .of_type("message")
            .map(|record| &record["terminate"])
            .filter(|value| !value.is_null())
            .collect();
        let numbers: Vec<[u64; 3]> = terminates
            .iter()
            .map(|value| {
                ["layer", "etype", "code"].map(|field| value[field].as_u64().expect("a number"))
            })
            .collect();
        assert_eq!(numbers, expected.terminates, "{}", expected.file);
        // In captures where siw initiated the connection or the Read was empty, our end sent the
        // Terminate.
        let ours = expected.file.starts_with("siw/uiw-")
            && (expected.file.ends_with("-from-siw.pcapng")
                || expected.file.contains("read0-stale"));
        let from_siw = expected.file.starts_with("siw/") && !ours;
        for terminate in terminates {
            assert_eq!(terminate["layout"] == "siw", from_siw, "{}: {terminate}", expected.file);
        }
        let named = decoded.of_type("departure").filter(|record| {
            record["what"]
                .as_str()
                .is_some_and(|what| what.starts_with("a Terminate as siw writes it"))
        });
        assert_eq!(named.count(), if from_siw { numbers.len() } else { 0 }, "{}", expected.file);
    }
}

/// If CRCs are off, siw leaves the previous contents of its buffer in the PAD.
#[test]
fn pad_of_siw_reported() {
    let decoded = Decoded::new(uiw_interop::data("siw/write-bw-64k.pcapng"));
    let pads = decoded
        .of_type("departure")
        .filter(|record| record["what"].as_str().is_some_and(|what| what.starts_with("PAD is")));
    assert_eq!(pads.count(), 2);
}

//! Runs tshark and uiw on the same captures; every field of every FPDU must agree.

use serde_json::Value;
use uiw_interop::tshark::{Crc, Fpdu, Tshark};

use crate::captures::Expected;
use crate::decoded::Decoded;

/// Converts uiw's record of an FPDU to the form that tshark reports.
fn as_tshark(record: &Value) -> Fpdu {
    let number = |field: &str| record[field].as_u64();
    let number32 =
        |field: &str| number(field).map(|number| u32::try_from(number).expect("32 bits"));
    Fpdu {
        packet: number("packet").expect("a packet number"),
        ulpdu_length: number("ulpdu_length").map(|length| u16::try_from(length).expect("16 bits")),
        crc: match record["crc"].as_str() {
            Some("good") => Crc::Good,
            Some("bad") => Crc::Bad,
            _ => Crc::Unchecked,
        },
        // tshark reads the field as a big-endian number.
        crc_field: number32("crc_field").map(u32::swap_bytes),
        markers: number32("markers").expect("a count"),
        tagged: record["tagged"].as_bool(),
        last: record["last"].as_bool(),
        opcode: number("opcode").map(|opcode| u8::try_from(opcode).expect("4 bits")),
        stag: number32("stag"),
        tagged_offset: record["tagged_offset"].as_str().map(|text| {
            u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a number in hexadecimal")
        }),
        qn: number32("qn"),
        msn: number32("msn"),
        mo: number32("mo"),
        malformed: false,
    }
}

#[test]
fn agrees_with_uiw_on_every_field() {
    let Some(tshark) = Tshark::require() else { return };
    // tshark misreads `quirks.pcap`, see `interop/README.md`.
    for expected in Expected::all().iter().filter(|expected| expected.file != "vectors/quirks.pcap")
    {
        let file = &expected.file;
        let capture = uiw_interop::data(file);
        let theirs = tshark.dissect(&capture).unwrap_or_else(|error| panic!("{file}: {error}"));
        let decoded = Decoded::new(capture);
        let ours: Vec<Fpdu> = decoded.of_type("fpdu").map(as_tshark).collect();
        assert_eq!(
            (theirs.requests as u64, theirs.replies as u64),
            (expected.requests, expected.replies),
            "{file}"
        );
        assert_eq!(theirs.malformed, 0, "{file}");
        assert_eq!(theirs.fpdus.len(), ours.len(), "{file}");
        for (theirs, ours) in theirs.fpdus.iter().zip(&ours) {
            assert_eq!(theirs, ours, "{file}");
        }
    }
}

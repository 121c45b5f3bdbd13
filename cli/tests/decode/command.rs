//! The program itself: what it prints where, and its exit code.

use std::path::Path;
use std::process::{Command, Output};

fn uiw(args: &[&str]) -> Output {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop/data");
    Command::new(env!("CARGO_BIN_EXE_uiw")).arg("decode").args(args).current_dir(data).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_whole_capture_is_0() {
    let output = uiw(&["siw/tool-oobwrite-crc.pcap"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("MPA Request rev 2 M=0 C=1"), "{text}");
    assert!(
        text.contains("CRC good: RDMA Write STag 0x57b65c00 TO 0x7f1006e08000, 64 bytes, last"),
        "{text}"
    );
    assert!(text.contains("DEPARTURE (RFC 5040 4.8): a Terminate as siw writes it"), "{text}");
    assert!(text.ends_with("1 departure(s) from the RFCs\n"), "{text}");
}

#[test]
fn quiet_leaves_departures_and_the_summary() {
    let text = stdout(&uiw(&["--quiet", "siw/tool-oobwrite-crc.pcap"]));
    assert_eq!(text.lines().count(), 5, "{text}");
}

#[test]
fn json_is_one_object_a_line() {
    let text = stdout(&uiw(&["--json", "vectors/vectors.pcap"]));
    for line in text.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(value["type"].is_string(), "{line}");
    }
    assert!(text.lines().count() > 100);
}

#[test]
fn no_iwarp_is_1_and_no_capture_is_2() {
    let empty = std::env::temp_dir().join(format!("uiw-empty-{}.pcap", std::process::id()));
    let header: [u32; 6] = [0xa1b2_c3d4, 0x0002_0004, 0, 0, 65_535, 1];
    std::fs::write(&empty, header.map(u32::to_be_bytes).concat()).unwrap();
    let output = uiw(&[empty.to_str().unwrap()]);
    std::fs::remove_file(&empty).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("no MPA Request or Reply Frame in the capture"));

    let output = uiw(&["expected.tsv"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.starts_with("error: expected.tsv: not a packet capture"), "{error}");
    assert_eq!(error.lines().filter(|line| line.starts_with("hint: ")).count(), 1, "{error}");
    assert_eq!(uiw(&["--no-such-option"]).status.code(), Some(2));
}

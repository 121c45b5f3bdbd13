//! The program itself: what it prints where, and its exit code.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop/data").join(file)
}

fn uiw(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uiw"))
        .arg("decode")
        .args(args)
        .current_dir(data(""))
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn complete_capture_exits_with_0() {
    let output = uiw(&["siw/tool-oobwrite-crc.pcap"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("MPA Request rev 2 M=0 C=1"), "{text}");
    assert!(
        text.contains("CRC good: RDMA Write STag 0x57b65c00 TO 0x7f1006e08000, 64 bytes, last"),
        "{text}"
    );
    assert!(text.contains("DEPARTURE (RFC 5040 4.8): a Terminate as siw writes it"), "{text}");
    assert!(text.ends_with("1 departure from the RFCs\n"), "{text}");
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
fn exit_codes_without_iwarp_or_capture() {
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
    assert!(
        error.ends_with(
            ")\nhint: name a readable pcap or pcapng file, such as tcpdump -w or Wireshark write\n"
        ),
        "{error}"
    );
    assert_eq!(error.lines().filter(|line| line.starts_with("hint: ")).count(), 1, "{error}");
    assert_eq!(uiw(&["--no-such-option"]).status.code(), Some(2));
}

/// What the packets of a whole capture find, one line a finding.
fn findings(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.contains("] ")).collect()
}

/// Starts `uiw decode -` with pipes.
fn decode_stdin() -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uiw"));
    command.args(["decode", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn standard_input_decoded_while_read() {
    let bytes = std::fs::read(data("siw/tool-send.pcap")).unwrap();
    let mut child = decode_stdin();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    // All but the end of the last packet: what is complete is printed although nothing follows.
    input.write_all(&bytes[..bytes.len() - 10]).unwrap();
    input.flush().unwrap();
    let mut first = String::new();
    output.read_line(&mut first).unwrap();
    assert!(first.contains("MPA Request"), "{first}");
    input.write_all(&bytes[bytes.len() - 10..]).unwrap();
    drop(input);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(first + &rest, stdout(&uiw(&["siw/tool-send.pcap"])));
}

#[test]
fn live_decode_ends_with_reader() {
    let bytes = std::fs::read(data("siw/tool-send.pcap")).unwrap();
    let mut child = decode_stdin();
    drop(child.stdout.take());
    let mut input = child.stdin.take().unwrap();
    // More than the pipe and the buffer of the program take.
    let more = std::iter::repeat_n(&bytes[24..], (1 << 20) / bytes.len());
    assert!(
        std::iter::once(&bytes[..]).chain(more).any(|packets| input.write_all(packets).is_err())
    );
    assert!(child.wait().unwrap().success());
}

#[test]
fn rotated_files_form_one_capture() {
    let bytes = std::fs::read(data("siw/rping-crc-on.pcap")).unwrap();
    let (header, mut rest) = bytes.split_at(24);
    let mut packets = Vec::new();
    while let Some(length) = rest.get(8..12) {
        let length = 16 + u32::from_le_bytes(length.try_into().unwrap()) as usize;
        packets.push(&rest[..length]);
        rest = &rest[length..];
    }
    let folder = std::env::temp_dir().join(format!("uiw-rotated-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let names: Vec<_> = packets
        .chunks(9)
        .enumerate()
        .map(|(n, some)| {
            let name = folder.join(format!("capture{n}"));
            std::fs::write(&name, [header, &some.concat()].concat()).unwrap();
            name.into_os_string().into_string().unwrap()
        })
        .collect();
    assert!(names.len() > 3);
    let mut args: Vec<&str> = names.iter().map(String::as_str).collect();
    args.reverse();
    let output = uiw(&args);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stdout(&output), stdout(&uiw(&["siw/rping-crc-on.pcap"])));
}

#[test]
fn connection_selected_by_number_or_address() {
    let all = stdout(&uiw(&["vectors/vectors.pcap"]));
    let third: Vec<_> = findings(&all).into_iter().filter(|line| line.contains(" [3] ")).collect();
    assert!(third.len() > 3);
    let one = uiw(&["vectors/vectors.pcap", "--connection", "3"]);
    let without_times =
        |lines: &[&str]| lines.iter().map(|line| line[11..].to_owned()).collect::<Vec<_>>();
    assert_eq!(without_times(&findings(&stdout(&one))), without_times(&third));
    assert!(stdout(&one).contains(" 1 iWARP connection"), "{}", stdout(&one));
    let end = third[0].split(" > ").next().unwrap().rsplit(' ').next().unwrap();
    let by_end = uiw(&["vectors/vectors.pcap", "--connection", end]);
    assert_eq!(stdout(&by_end), stdout(&one));
    let none = uiw(&["vectors/vectors.pcap", "--connection", ":9"]);
    assert_eq!((findings(&stdout(&none)).len(), none.status.code()), (0, Some(1)));
    assert!(
        stdout(&none).contains("not followed: --connection leaves out every one of "),
        "{}",
        stdout(&none)
    );
    assert_eq!(uiw(&["vectors/vectors.pcap", "--connection", "host"]).status.code(), Some(2));
}

#[test]
fn retransmissions_are_counted() {
    let bytes = std::fs::read(data("siw/tool-send.pcap")).unwrap();
    // The longest packet once more, at the end.
    let (mut at, mut longest) = (24, 0..0);
    while let Some(length) = bytes.get(at + 8..at + 12) {
        let end = at + 16 + u32::from_le_bytes(length.try_into().unwrap()) as usize;
        if end - at > longest.len() {
            longest = at..end;
        }
        at = end;
    }
    // Before the FINs: twice in a row.
    let again = [&bytes[..longest.end], &bytes[longest.start..]].concat();
    let file = std::env::temp_dir().join(format!("uiw-again-{}.pcap", std::process::id()));
    std::fs::write(&file, again).unwrap();
    let json = stdout(&uiw(&["--json", file.to_str().unwrap()]));
    std::fs::remove_file(&file).unwrap();
    let lines = json.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let directions: Vec<_> = lines.filter(|line| line["type"] == "tcp").collect();
    let sum =
        |field: &str| directions.iter().map(|line| line[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!(
        (sum("retransmissions"), sum("repeated_bytes")),
        (1, longest.len() as u64 - 16 - 66)
    );
}

#[test]
fn json_64_bit_numbers_are_strings() {
    let json = stdout(&uiw(&["--json", "vectors/vectors.pcap"]));
    let lines: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let tagged: Vec<_> = lines.iter().filter(|line| line["tagged"] == true).collect();
    assert!(!tagged.is_empty());
    for fpdu in tagged {
        assert!(fpdu["tagged_offset"].as_str().unwrap().starts_with("0x"), "{fpdu}");
    }
    let frames: Vec<_> = lines.iter().filter(|line| line["type"] == "startup").collect();
    let enhanced = frames.iter().filter(|frame| frame["enhanced"] == true);
    for frame in enhanced {
        for flag in ["peer_to_peer", "rtr_send", "rtr_write", "rtr_read"] {
            assert!(frame[flag].is_boolean(), "{frame}");
        }
        assert!(frame["reserved"].is_u64(), "{frame}");
    }
    assert!(
        frames.iter().any(|frame| frame["enhanced"] == false && frame["peer_to_peer"].is_null())
    );
}

#[test]
fn packets_cut_by_snapshot_length_named() {
    let bytes = std::fs::read(data("siw/tool-send.pcap")).unwrap();
    let (header, mut rest) = bytes.split_at(24);
    let mut cut = header.to_vec();
    while let Some(length) = rest.get(8..12) {
        let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
        let captured = length.min(96);
        cut.extend(&rest[..8]);
        cut.extend((captured as u32).to_le_bytes());
        cut.extend(&rest[12..16 + captured]);
        rest = &rest[16 + length..];
    }
    let file = std::env::temp_dir().join(format!("uiw-snapped-{}.pcap", std::process::id()));
    std::fs::write(&file, cut).unwrap();
    let output = uiw(&["--quiet", file.to_str().unwrap()]);
    std::fs::remove_file(&file).unwrap();
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("captured in part, such as 96 bytes of "), "{text}");
    assert!(text.contains("raise the snapshot length"), "{text}");
}

#[test]
fn private_data_shown() {
    let text = stdout(&uiw(&["vectors/vectors.pcap"]));
    let json = stdout(&uiw(&["--json", "vectors/vectors.pcap"]));
    let frames = json.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let with_data = frames.filter(|line| line["private_data_length"].as_u64() > Some(0));
    let data: Vec<_> =
        with_data.map(|line| line["private_data"].as_str().unwrap().to_owned()).collect();
    assert!(!data.is_empty(), "{text}");
    for digits in data {
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        let bytes: Vec<_> = (0..digits.len()).step_by(2).map(byte).collect();
        let shown = format!("\"{}\"", bytes[..bytes.len().min(64)].escape_ascii());
        assert!(text.contains(&shown), "{shown}: {text}");
    }
}

//! Runs `docs/uiw.lua` in tshark on the capability exchange and a Send with immediate of a live
//! connection, and on datagrams built here according to `docs/datagrams.md`.

use std::path::{Path, PathBuf};

use uiw::ConnectionConfig;
use uiw_interop::stock::{Libraries, Running, User, free_port};
use uiw_interop::tshark::Tshark;

use crate::live::{End, Script, TempFile, converse};

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/uiw.lua")
}

#[test]
fn exchange_and_immediate_dissected() {
    let Some(tshark) = Tshark::require() else { return };
    let capture = converse("lua", &ConnectionConfig::default(), Script::Everything, End::Client);
    let fields = |filter: &str, fields: &[&str]| {
        tshark.fields(&script(), &capture.0, filter, fields).unwrap()
    };
    let exchange = fields(
        "uiw.capabilities",
        &["uiw.capabilities", "uiw.capabilities.bits", "uiw.capabilities.nonce"],
    );
    // The client may repeat the request until it receives the answer, so only the last row is the
    // answer.
    let answer = exchange.last().expect("an exchange");
    assert_eq!(
        (exchange[0][0].as_str(), answer[0].as_str()),
        ("request", "answer"),
        "{exchange:?}"
    );
    for row in &exchange {
        assert_eq!(row[1], "0x001f", "all five capabilities: {row:?}");
    }
    assert_ne!(exchange[0][2], answer[2], "the answer is a function of the nonce, not the nonce");
    let immediate = fields("uiw.immediate", &["uiw.immediate", "uiw.immediate.solicited"]);
    assert_eq!(immediate.len(), 1, "{immediate:?}");
    assert_eq!(immediate[0][0], "0x05060708");
}

#[test]
fn placement_acks_dissected() {
    let (Some(tshark), Some(_)) = (Tshark::require(), uiw_interop::require("ibv_rc_pingpong"))
    else {
        return;
    };
    let libraries = Libraries::get();
    let capture = libraries.folder().join("acks.pcapng");
    let port = free_port().to_string();
    let command = || {
        let mut command = libraries.command(User::Same, "ibv_rc_pingpong");
        command
            .args(["-d", "uiw_lo", "-g", "0", "-n", "5", "-p", &port])
            .env("UIW_PERSONA", "roce");
        command
    };
    let mut server = Running::start(command());
    server.wait_listening(port.parse().unwrap());
    let mut client = command();
    client.arg("127.0.0.1").env("UIW_PCAP", &capture);
    Running::start(client).end().well();
    server.end().well();
    let fields = |filter: &str| tshark.fields(&script(), &capture, filter, &[filter]).unwrap();
    let positions: Vec<u64> = fields("uiw.placed")
        .iter()
        .flat_map(|row| row[0].split(','))
        .map(|at| at.parse().unwrap())
        .collect();
    assert!(positions.len() >= 2 && positions.iter().all(|at| *at > 0), "{positions:?}");
    let bits = fields("uiw.capabilities.bits");
    assert!(
        !bits.is_empty() && bits.iter().all(|row| row[0] == "0x003f"),
        "both ends ask: {bits:?}"
    );
}

/// Builds an Ethernet frame that contains a UDP datagram.
fn frame(payload: &[u8]) -> Vec<u8> {
    let length = |more: usize| u16::try_from(payload.len() + more).unwrap().to_be_bytes();
    let ip =
        [&[0x45, 0][..], &length(28), &[0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]]
            .concat();
    let udp = [&[0xc3, 0x50, 0xc3, 0x51][..], &length(8), &[0, 0]].concat();
    [&[2; 12][..], &[8, 0], &ip, &udp, payload].concat()
}

/// Builds a big-endian pcap file of Ethernet frames.
fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let header: [u32; 6] = [0xa1b2_c3d4, 0x0002_0004, 0, 0, 262_144, 1];
    let mut file: Vec<u8> = header.into_iter().flat_map(u32::to_be_bytes).collect();
    for frame in frames {
        let length = u32::try_from(frame.len()).unwrap();
        file.extend([7, 0, length, length].into_iter().flat_map(u32::to_be_bytes));
        file.extend(frame);
    }
    file
}

#[test]
fn only_own_datagrams_dissected() {
    let Some(tshark) = Tshark::require() else { return };
    let message = |control: u8, immediate: u32| {
        let words = [0x1122_3344, 0x00c3_5101, 0x00c3_5007, 0x0123_4567u32];
        let mut bytes = vec![1, 1, 0, 0];
        bytes.extend(words.into_iter().flat_map(u32::to_be_bytes));
        bytes.extend([0x41, control]);
        bytes.extend([immediate, 0, 9, 0].into_iter().flat_map(u32::to_be_bytes));
        bytes.extend(b"payload");
        bytes.extend([1, 2, 3, 4]);
        bytes
    };
    let mut request = vec![0; 256];
    request[..4].copy_from_slice(&[1, 2, 0, 3]);
    request[4..12].copy_from_slice(&0x0102_0304_0506_0708u64.to_be_bytes());
    request[20..23].copy_from_slice(b"abc");
    let mut other = message(0x43, 0);
    other[20] = 0x81;
    let file = TempFile::new("lua-datagrams");
    let frames = [
        frame(&message(0x5f, 0xdead_beef)),
        frame(&request),
        frame(&other),
        frame(b"no datagram of ours"),
    ];
    std::fs::write(&file.0, pcap(&frames)).unwrap();
    let fields =
        |filter: &str, fields: &[&str]| tshark.fields(&script(), &file.0, filter, fields).unwrap();
    let names = [
        "frame.number",
        "uiw.datagram.kind",
        "uiw.datagram.epoch",
        "uiw.datagram.destination_qpn",
        "uiw.datagram.source_qpn",
        "uiw.datagram.qkey",
        "uiw.datagram.opcode",
        "uiw.datagram.msn",
        "uiw.immediate",
        "uiw.datagram.payload",
    ];
    let messages = fields("uiw.datagram.msn", &names);
    let expected = [
        "1",
        "1",
        "0x11223344",
        "0x00c35101",
        "0x00c35007",
        "0x01234567",
        "15",
        "9",
        "0xdeadbeef",
        "7061796c6f6164",
    ];
    assert_eq!(messages, [expected]);
    let requests = fields(
        "uiw.sidr.transaction",
        &["frame.number", "uiw.sidr.transaction", "uiw.sidr.private_data"],
    );
    assert_eq!(requests, [["2", "0x0102030405060708", "616263"]]);
    assert_eq!(fields("uiw_datagram", &["frame.number"]), [["1"], ["2"]]);
}

//! Tests that each broken rule is reported as a departure.

use serde_json::Value;
use uiw_decode::RAW_TCP;
use uiw_mpa::crc32c;
use uiw_mpa::wire::startup::{Enhanced, Frame, FrameKind};

use crate::packets::{ACK, Link, SYN, Segment, capture_of, decode, of_type};

const CLIENT: usize = 0;
const SERVER: usize = 1;

/// Two ends that exchange bytes.
struct ScriptedTalk {
    segments: Vec<Segment>,
    next: [u32; 2],
}

impl ScriptedTalk {
    fn new() -> Self {
        let mut talk = Self { segments: Vec::new(), next: [1000, 9000] };
        for side in [CLIENT, SERVER] {
            talk.say(side, &[]);
            talk.segments.last_mut().unwrap().flags |= SYN;
            talk.next[side] += 1;
        }
        talk
    }

    /// Creates a connection with plain startup frames, with or without CRCs.
    fn started(crc: bool) -> Self {
        let mut talk = Self::new();
        talk.say(CLIENT, &frame(FrameKind::Request, crc).emit());
        talk.say(SERVER, &frame(FrameKind::Reply, crc).emit());
        talk
    }

    fn say(&mut self, side: usize, bytes: &[u8]) {
        let ends = [([10, 0, 0, 1], 40_000), ([10, 0, 0, 2], 7174)];
        self.segments.push(Segment {
            from: ends[side],
            to: ends[1 - side],
            sequence: self.next[side],
            acknowledgment: self.next[1 - side],
            flags: ACK,
            payload: bytes.to_vec(),
        });
        self.next[side] += u32::try_from(bytes.len()).unwrap();
    }

    fn fpdu(mut self, side: usize, ulpdu: &[u8]) -> Self {
        self.say(side, &fpdu(ulpdu));
        self
    }

    fn raw(mut self, side: usize, bytes: &[u8]) -> Self {
        self.say(side, bytes);
        self
    }

    fn records(&self) -> Vec<Value> {
        decode(&capture_of(&self.segments, Link::Ethernet)).0
    }

    /// Asserts that there is one departure, and that it contains these words.
    #[track_caller]
    fn departs(&self, words: &str) {
        let records = self.records();
        let departures = of_type(&records, "departure");
        let [departure] = departures.as_slice() else { panic!("{departures:#?}") };
        assert!(departure["what"].as_str().unwrap().contains(words), "{departure}");
    }

    #[track_caller]
    fn is_fine(&self) {
        let records = self.records();
        assert_eq!(of_type(&records, "departure"), Vec::<&Value>::new());
    }
}

fn frame(kind: FrameKind, crc: bool) -> Frame {
    let enhanced = Some(Enhanced { ird: 2, ord: 2, ..Enhanced::default() });
    let private_data = Vec::new();
    Frame {
        kind,
        markers: false,
        crc,
        reject: false,
        enhanced,
        reserved: 0,
        revision: 2,
        private_data,
    }
}

fn peer_to_peer(kind: FrameKind, rtr_write: bool, rtr_read: bool) -> Frame {
    let enhanced =
        Enhanced { peer_to_peer: true, rtr_write, rtr_read, rtr_send: false, ird: 2, ord: 2 };
    Frame { enhanced: Some(enhanced), ..frame(kind, true) }
}

/// Builds an FPDU with a valid CRC and no Markers.
fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(ulpdu.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(ulpdu);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.extend(crc32c(&bytes).to_le_bytes());
    bytes
}

fn untagged(controls: [u8; 2], rsvd: u32, [qn, msn, mo]: [u32; 3], payload: &[u8]) -> Vec<u8> {
    let mut bytes = controls.to_vec();
    bytes.extend([rsvd, qn, msn, mo].into_iter().flat_map(u32::to_be_bytes));
    bytes.extend(payload);
    bytes
}

fn tagged(controls: [u8; 2], stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    [&controls[..], &stag.to_be_bytes(), &to.to_be_bytes(), payload].concat()
}

fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    untagged([0x41, 0x43], 0, [0, msn, 0], payload)
}

fn read_request(msn: u32, length: u32) -> Vec<u8> {
    let header =
        [&[0, 0, 0, 7][..], &[0; 8], &length.to_be_bytes(), &[0, 0, 0, 9], &[0; 8]].concat();
    untagged([0x41, 0x41], 0, [1, msn, 0], &header)
}

fn read_response(stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    tagged([0xc1, 0x42], stag, to, payload)
}

#[test]
fn nothing_is_wrong_where_nothing_is() {
    ScriptedTalk::started(true)
        .fpdu(CLIENT, &send(1, b"hello"))
        .fpdu(SERVER, &read_request(1, 4))
        .fpdu(CLIENT, &read_response(7, 0, b"data"))
        .fpdu(CLIENT, &untagged([0x01, 0x43], 0, [0, 2, 0], b"in two "))
        .fpdu(CLIENT, &untagged([0x41, 0x43], 0, [0, 2, 7], b"parts"))
        .fpdu(SERVER, &tagged([0x81, 0x40], 5, 100, b"ab"))
        .fpdu(SERVER, &tagged([0xc1, 0x40], 5, 102, b"cd"))
        .is_fine();
}

#[test]
fn startup_frames() {
    let request = |change: fn(&mut Frame)| {
        let mut talk = ScriptedTalk::new();
        let mut frame = frame(FrameKind::Request, true);
        change(&mut frame);
        talk.say(CLIENT, &frame.emit());
        talk
    };
    request(|frame| frame.reserved = 0x04).departs("reserved bits 0x04");
    request(|frame| frame.reserved = 0x08).departs("siw's offer");
    request(|frame| frame.reject = true).departs("R is set in a Request");
    request(|frame| frame.revision = 3).departs("unknown revision 3");
    request(|frame| frame.enhanced.as_mut().unwrap().rtr_read = true)
        .departs("without peer-to-peer");

    let reply = |change: fn(&mut Frame)| {
        let mut talk = ScriptedTalk::new();
        talk.say(CLIENT, &frame(FrameKind::Request, true).emit());
        let mut frame = frame(FrameKind::Reply, true);
        change(&mut frame);
        talk.say(SERVER, &frame.emit());
        talk
    };
    reply(|frame| (frame.revision, frame.enhanced) = (1, None))
        .departs("revision 1 to a Request of revision 2");
    reply(|frame| frame.enhanced = None).departs("a Reply without S");
    reply(|frame| frame.enhanced.as_mut().unwrap().ord = 3)
        .departs("ORD 3 is above the initiator's IRD 2");
    reply(|frame| frame.kind = FrameKind::Request).departs("two initiators");
    reply(|frame| frame.reject = true).is_fine();
}

#[test]
fn overlong_private_data_not_followed() {
    let mut talk = ScriptedTalk::new();
    talk.say(CLIENT, b"MPA ID Req Frame\x40\x01\x02\x01");
    let records = talk.records();
    assert!(of_type(&records, "not_followed")[0]["why"].as_str().unwrap().contains("513"));
}

#[test]
fn initiator_sends_first_fpdu() {
    ScriptedTalk::started(true)
        .fpdu(SERVER, &send(1, b""))
        .departs("the responder's first FPDU comes before");
    let mut talk = ScriptedTalk::new();
    talk.say(CLIENT, &frame(FrameKind::Request, true).emit());
    let mut talk = talk.fpdu(CLIENT, &send(1, b"too early"));
    talk.say(SERVER, &frame(FrameKind::Reply, true).emit());
    talk.departs("36 bytes from the initiator before the Reply");
    assert_eq!(of_type(&talk.records(), "fpdu").len(), 1);
}

#[test]
fn rtr() {
    let start = |read| {
        let mut talk = ScriptedTalk::new();
        talk.say(CLIENT, &peer_to_peer(FrameKind::Request, true, true).emit());
        talk.say(SERVER, &peer_to_peer(FrameKind::Reply, false, read).emit());
        talk
    };
    start(true).fpdu(CLIENT, &read_request(1, 0)).is_fine();
    start(true)
        .fpdu(CLIENT, &tagged([0xc1, 0x40], 0, 0, b""))
        .departs("agreed as RTR: zero-length RDMA Read");
    start(true).fpdu(CLIENT, &read_request(1, 8)).departs("agreed as RTR");
    start(true).fpdu(CLIENT, &send(1, b"")).departs("the initiator's first FPDU is a Send");
}

#[test]
fn fpdus() {
    let mut bad = fpdu(&send(1, b"hello!"));
    *bad.last_mut().unwrap() ^= 1;
    let talk = ScriptedTalk::started(true).raw(CLIENT, &bad).fpdu(CLIENT, &send(2, b"after"));
    talk.departs("CRC is");
    assert_eq!(of_type(&talk.records(), "fpdu").len(), 2);

    let mut padded = fpdu(&send(1, b"x"));
    let end = padded.len();
    padded[end - 5] = 0x55;
    let crc = crc32c(&padded[..end - 4]);
    padded[end - 4..].copy_from_slice(&crc.to_le_bytes());
    ScriptedTalk::started(true).raw(CLIENT, &padded).departs("PAD is [00, 00, 55]");

    ScriptedTalk::started(false).raw(CLIENT, &fpdu(&send(1, b"x"))).departs("CRCs are off, yet");
    ScriptedTalk::started(true).fpdu(CLIENT, &[0; 3]).departs("DDP version 0");
    ScriptedTalk::started(true).fpdu(CLIENT, &[0x41, 0x43]).departs("DDP segment of 2 bytes");
}

#[test]
fn markers() {
    let mut talk = ScriptedTalk::new();
    talk.say(CLIENT, &frame(FrameKind::Request, true).emit());
    talk.say(SERVER, &Frame { markers: true, ..frame(FrameKind::Reply, true) }.emit());
    let with_marker = |marker: [u8; 4]| {
        let mut bytes = [&marker[..], &fpdu(&send(1, b"hello!"))].concat();
        let end = bytes.len() - 4;
        let crc = crc32c(&bytes[..end]);
        bytes[end..].copy_from_slice(&crc.to_le_bytes());
        bytes
    };
    let talk = |marker| {
        ScriptedTalk { segments: talk.segments.clone(), next: talk.next }
            .raw(CLIENT, &with_marker(marker))
    };
    talk([0; 4]).is_fine();
    talk([0, 0, 0, 8]).departs("points 8 bytes back, the FPDU begins 0 back");
    talk([1, 0, 0, 0]).departs("0x0100 in its reserved field");
}

#[test]
fn headers() {
    let first = |ulpdu: Vec<u8>| ScriptedTalk::started(true).fpdu(CLIENT, &ulpdu);
    first(untagged([0x45, 0x43], 0, [0, 1, 0], b""))
        .departs("reserved bits 0x04 of the DDP control byte");
    first(untagged([0x41, 0x63], 0, [0, 1, 0], b""))
        .departs("reserved bits 0x20 of the RDMAP control byte");
    first(untagged([0x41, 0x83], 0, [0, 1, 0], b"")).departs("unknown RDMAP version 2");
    first(untagged([0x41, 0x03], 0, [0, 1, 0], b"")).departs("the RDMA Consortium's");
    first(untagged([0x41, 0x4c], 0, [0, 1, 0], b"")).departs("unknown OpCode 12");
    first(untagged([0x41, 0x43], 9, [0, 1, 0], b"")).departs("0x00000009 where an Invalidate STag");
    first(untagged([0x41, 0x43], 0, [1, 1, 0], b""))
        .departs("Send on queue 1, it belongs on queue 0");
    first(untagged([0x41, 0x40], 0, [0, 1, 0], b"")).departs("RDMA Write in an untagged segment");
    first(tagged([0xc1, 0x43], 0, 0, b"")).departs("Send in a tagged segment");
    first(untagged([0x41, 0x44], 9, [0, 1, 0], b"")).is_fine();
}

#[test]
fn sequence() {
    let first = |ulpdu: Vec<u8>| ScriptedTalk::started(true).fpdu(CLIENT, &ulpdu);
    first(send(2, b"")).departs("MSN 2 on queue 0, 1 is due");
    first(untagged([0x41, 0x43], 0, [0, 1, 4], b"")).departs("MO 4 in MSN 1 on queue 0, 0 is due");
    let begun = || first(untagged([0x01, 0x43], 0, [0, 1, 0], b"abc"));
    begun()
        .fpdu(CLIENT, &untagged([0x41, 0x43], 0, [0, 1, 4], b""))
        .departs("MO 4 in MSN 1 on queue 0, 3 is due");
    begun()
        .fpdu(CLIENT, &send(2, b""))
        .departs("MSN 2 on queue 0 before the last segment of MSN 1");
    begun().fpdu(CLIENT, &untagged([0x41, 0x45], 0, [0, 1, 3], b"")).departs("RsvdULP differs");
    let writing = || first(tagged([0x81, 0x40], 5, 100, b"ab"));
    writing()
        .fpdu(CLIENT, &tagged([0xc1, 0x40], 5, 103, b""))
        .departs("TO 0x67 in a message to STag");
    writing()
        .fpdu(CLIENT, &tagged([0xc1, 0x40], 6, 102, b""))
        .departs("before the last segment of the RDMA Write");
}

#[test]
fn reads() {
    let asked = || ScriptedTalk::started(true).fpdu(CLIENT, &read_request(1, 4));
    asked().fpdu(SERVER, &read_response(7, 0, b"data")).is_fine();
    asked()
        .fpdu(SERVER, &read_response(8, 0, b"data"))
        .departs("its request named STag 0x00000007");
    asked()
        .fpdu(SERVER, &read_response(7, 1, b"data"))
        .departs("its request named STag 0x00000007 TO 0x0");
    asked()
        .fpdu(SERVER, &read_response(7, 0, b"dat"))
        .departs("of 3 bytes, its request asked for 4");
    asked()
        .fpdu(SERVER, &read_response(7, 0, b"datum"))
        .departs("of 5 bytes, its request asked for 4");
    ScriptedTalk::started(true)
        .fpdu(CLIENT, &send(1, b""))
        .fpdu(SERVER, &read_response(7, 0, b""))
        .departs("an RDMA Read Response without a request");
    asked().fpdu(CLIENT, &read_request(2, 4)).is_fine();
    asked()
        .fpdu(CLIENT, &read_request(2, 4))
        .fpdu(CLIENT, &read_request(3, 4))
        .departs("3 Reads and Atomics outstanding, the peer's IRD is 2");
    let short = untagged([0x41, 0x41], 0, [1, 1, 0], &[0; 20]);
    ScriptedTalk::started(true)
        .fpdu(CLIENT, &short)
        .departs("RDMA Read Request of 20 bytes, it has 28");
}

#[test]
fn terminates() {
    let terminate = |payload: &[u8]| {
        ScriptedTalk::started(true).fpdu(CLIENT, &untagged([0x41, 0x47], 0, [2, 1, 0], payload))
    };
    let talk = terminate(&[0x20, 0x02, 0, 0]);
    talk.is_fine();
    assert_eq!(of_type(&talk.records(), "message")[0]["terminate"]["layer"], 2);
    talk.fpdu(CLIENT, &send(1, b"")).departs("Send after a Terminate");
    terminate(&[0x2f, 0x02, 0, 0]).departs("a reason no RFC has");
    terminate(&[0x20, 0x02, 0x10, 0]).departs("reserved bits");
    terminate(&[0x11, 0x00, 0x40, 0, 0]).departs("D without a Terminated DDP Header");
    terminate(&[0x20]).departs("Terminate of 1 bytes");
}

/// When CRCs are on, siw refuses a Reply with a Terminate whose CRC is 0. Other FPDUs with such a
/// CRC are not decoded.
#[test]
fn siw_refusal_with_zero_crc_read() {
    let without_crc = |ulpdu: &[u8]| {
        let mut bytes = fpdu(ulpdu);
        let end = bytes.len();
        bytes[end - 4..].fill(0);
        bytes
    };
    // Layer 2, type 0, code 7, with the nibbles swapped.
    let refusal = untagged([0x41, 0x47], 0, [2, 1, 0], &[0x02, 7, 0, 0]);
    let records = ScriptedTalk::started(true).raw(CLIENT, &without_crc(&refusal)).records();
    let messages = of_type(&records, "message");
    assert_eq!(messages.len(), 1, "{records:#?}");
    let details = messages[0]["details"].as_str().unwrap();
    assert!(details.contains("(if siw sent it: ") && details.contains("RTR"), "{details}");
    assert_eq!(of_type(&records, "fpdu")[0]["crc"], "bad");
    let records =
        ScriptedTalk::started(true).raw(CLIENT, &without_crc(&send(1, b"data"))).records();
    assert!(of_type(&records, "message").is_empty());
}

/// `uiw perf --compare` uses the iWARP port for its raw TCP connections, too. The bytes after their
/// startup are neither FPDUs nor departures.
#[test]
fn raw_tcp_comparison_named() {
    let order = |private_data: &[u8]| Frame {
        enhanced: None,
        revision: 1,
        private_data: private_data.to_vec(),
        ..frame(FrameKind::Request, false)
    };
    let reply = Frame { enhanced: None, revision: 1, ..frame(FrameKind::Reply, false) };
    let talk = |request: &Frame, reply: &Frame| {
        let mut talk = ScriptedTalk::new();
        talk.say(CLIENT, &request.emit());
        talk.say(SERVER, &reply.emit());
        // More bytes than one FPDU would have, whose length would be 0xA5A5.
        for _ in 0..40 {
            talk.say(CLIENT, &[0xA5; 1400]);
            talk.say(SERVER, &[0xA5; 8]);
        }
        talk
    };
    let raw = order(&[RAW_TCP, b"1 {}"].concat());
    let (records, summary) = decode(&capture_of(&talk(&raw, &reply).segments, Link::Ethernet));
    assert!(summary.followed(), "{summary}");
    assert_eq!(of_type(&records, "raw_tcp").len(), 1);
    for kind in ["departure", "fpdu", "not_followed", "closed"] {
        assert_eq!(of_type(&records, kind), Vec::<&Value>::new());
    }
    // Missing segments change nothing.
    let mut cut = talk(&raw, &reply);
    cut.segments.remove(10);
    let (records, _) = decode(&capture_of(&cut.segments, Link::Ethernet));
    assert_eq!((of_type(&records, "departure").len(), of_type(&records, "missing").len()), (0, 0));
    // After any other Request, the same bytes are reported as invalid FPDUs.
    let (records, _) =
        decode(&capture_of(&talk(&order(b"other"), &reply).segments, Link::Ethernet));
    assert!(of_type(&records, "raw_tcp").is_empty() && !of_type(&records, "departure").is_empty());
}

/// Bytes that were not captured are not judged, and the gap is no departure.
#[test]
fn missing_header_not_judged() {
    for known in [0, 3, 4, 15, 17] {
        let mut talk = ScriptedTalk::started(true);
        let bytes = fpdu(&send(1, b"hello"));
        talk.say(CLIENT, &bytes[..2 + known]);
        talk.next[CLIENT] += 10;
        talk.say(CLIENT, &bytes[2 + known + 10..]);
        let (records, summary) = decode(&capture_of(&talk.segments, Link::Ethernet));
        assert_eq!(
            (summary.departures, summary.fpdus, summary.missing_bytes),
            (0, 1, 10),
            "{records:#?}"
        );
        assert!(of_type(&records, "departure").is_empty(), "{records:#?}");
    }
}

//! Tests the data path against a scripted peer: which messages are accepted, which are refused, and
//! what is reported to the peer and to the application.

use crate::common::{
    ALL, End, Make, fill, initiator, memory, pattern, peek, plain, requested, responder,
    responder_opt, responder_with,
};
use crate::peer::{
    Peer, Segment, enhanced, read_request, request, tagged, terminate, terminate_of, untagged, with,
};
use crate::simulation::now;
use std::time::Duration;
use uiw_cases::{Action, Atom, Case, CaseCondition, Field, FrameKind, Test};
use uiw_ddp::STag;
use uiw_rdmap::{AtomicRequest, AtomicResponse, Opcode};
use uiw_verbs::{
    Access, AsyncEvent, CapabilityExchange, ConnConfig, QpState, RecvWr, Remote, SendOp, SrqAttr,
    WcOpcode, WcStatus,
};

fn read(remote: Remote) -> SendOp {
    SendOp::Read { remote, invalidate: None }
}

fn assumed() -> ConnConfig {
    plain().capabilities(CapabilityExchange::Assume)
}

// ---------------------------------------------------------------- the negative vectors

/// Frame that must be refused, as described by its case.
struct NegativeVector {
    name: String,
    bytes: Vec<u8>,
    /// Permitted Terminates; `None` means that the stream ends without one.
    due: Vec<Option<(u8, u8, u8)>>,
    markers: bool,
    startup: bool,
}

fn vectors() -> Vec<NegativeVector> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../interop/data/vectors/negative.case");
    let cases = uiw_cases::parse(path, &std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(cases.len(), 26);
    cases.iter().map(NegativeVector::of).collect()
}

impl NegativeVector {
    fn of(case: &Case) -> Self {
        let actions = || case.steps.iter().map(|step| &step.action);
        let is_bytes = |action: &&Action| matches!(action, Action::Send(sent) if sent.kind == FrameKind::Bytes);
        let Some(Action::Send(sent)) = actions().rfind(is_bytes) else { panic!("{}", case.name) };
        let Test::OneOf(values) = &sent.fields[0].test else { panic!("{}", case.name) };
        let [(_, Atom::Bytes(bytes))] = values.as_slice() else { panic!("{}", case.name) };
        let Some(Action::Expect { one_of, .. }) = actions().next_back() else {
            panic!("{}", case.name)
        };
        let due = one_of.iter().flat_map(|frame| match frame.fields.as_slice() {
            [] => vec![None],
            [Field { test: Test::OneOf(values), .. }] => {
                values.iter().map(|(_, code)| codes(code)).collect()
            }
            other => panic!("{}: {other:?}", case.name),
        });
        Self {
            name: case.name.trim_start_matches("negative/").to_owned(),
            bytes: bytes.clone(),
            due: due.collect(),
            markers: case.needs.contains(&CaseCondition::MarkersAsked),
            startup: case.steps.len() == 3,
        }
    }
}

fn codes(atom: &Atom) -> Option<(u8, u8, u8)> {
    let Atom::Codes([layer, etype, code]) = *atom else { panic!("{atom:?}") };
    Some((layer, etype, code))
}

/// Returns the vector in the form that this connection would carry: a STag of the vectors is
/// replaced by that of the end's region.
fn adapted(vector: &NegativeVector, end: &End, peer: &mut Peer) -> Vec<u8> {
    let (name, bytes) = (vector.name.as_str(), vector.bytes.clone());
    if !["tagged-bounds", "tagged-to-wrap", "read-bounds", "read-to-wrap", "atomic-unaligned"]
        .contains(&name)
    {
        return bytes;
    }
    let theirs = [0x1234_A501u32, 0x00C0_FF03].map(u32::to_be_bytes);
    let at = bytes.windows(4).position(|window| theirs.iter().any(|stag| stag == window)).unwrap();
    let len = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    let mut ulpdu = bytes[2..2 + len].to_vec();
    ulpdu[at - 2..at + 2].copy_from_slice(&end.mr.rkey().0.to_be_bytes());
    if name == "atomic-unaligned" {
        ulpdu[at + 2..at + 10].copy_from_slice(&1u64.to_be_bytes());
    }
    peer.seal(&ulpdu)
}

/// Creates a responder with 64 bytes of memory at TO 0.
fn vector_end() -> End {
    let mut end = End::new();
    end.mr = end.pd.register_raw(uiw_verbs::Memory::owned(64).unwrap(), 0, ALL).unwrap();
    end
}

/// Checks that the Terminate quotes the headers of the FPDU `bytes` according to RFC 5040 section
/// 7.1.
fn check_quoted(name: &str, terminate: &uiw_rdmap::Terminate, bytes: &[u8]) {
    let len = u16::from_be_bytes([bytes[0], bytes[1]]);
    let ulpdu = &bytes[2..2 + usize::from(len)];
    let quoted =
        uiw_rdmap::HeaderCopy::new(ulpdu).filter(|_| terminate.layer < 2 && terminate.etype > 0);
    assert_eq!(
        (terminate.ddp_header, terminate.segment_len),
        (quoted, quoted.map(|_| len)),
        "{name}"
    );
    let is_read = ulpdu.len() == 46 && ulpdu[1] & 15 == Opcode::ReadRequest.raw();
    let request =
        ulpdu.get(18..).filter(|_| is_read && (terminate.layer, terminate.etype) == (0, 1));
    assert_eq!(
        terminate.read_request,
        request.and_then(|bytes| uiw_rdmap::ReadRequest::parse(bytes).ok()),
        "{name}"
    );
}

// [test:RFC5041-7.1-02] [test:RFC5041-7.1-08] [test:RFC5041-7.1-10] [test:RFC5041-7.1-14]
// [test:RFC5041-7.1-15] [test:RFC5041-7.1-16] [test:RFC5041-7.1-17] [test:RFC5041-7.2-01]
// [test:RFC5040-7.1-04] [test:RFC5040-7.1-05] [test:RFC5040-7.2-02] [test:RFC5040-7.2-03]
// [test:RFC5040-7.2-04] [test:RFC5044-6-01] [test:RFC5044-6-04] [test:RFC5044-8-03] [test:RFC5044-8-12]
// [test:RFC7306-5.1.1-02a] [test:RFC7306-5.1.1-03b]
// [test:RFC5040-7.2-01] [test:RFC5040-7.2-06] [test:RFC7306-8.2-02] [test:RFC5044-C.1-01]
#[test]
fn negative_vectors_terminated() {
    for vector in vectors().iter().filter(|vector| !vector.startup) {
        let name = vector.name.as_str();
        if vector.markers {
            // These vectors are the first bytes of the stream; the next test covers them.
            continue;
        }
        let end = vector_end();
        if name != "send-no-buffer" {
            end.recv(1, 0, 64);
        }
        let options = assumed().no_receive_timeout(Duration::from_millis(50));
        let mut peer = responder_opt(&end, &options);
        let bytes = adapted(vector, &end, &mut peer);
        peer.raw(&bytes);
        let terminate = peer.next().map(|segment| terminate_of(&segment));
        let got = terminate.map(|terminate| (terminate.layer, terminate.etype, terminate.code));
        if let Some(terminate) = terminate {
            check_quoted(name, &terminate, &bytes);
        }
        assert!(vector.due.contains(&got), "{name}: {got:?}");
        if got.is_some() {
            peer.expect_close();
        }
        let reason = end.ended().reason.map(|r| (r.from_peer, r.layer, r.etype, r.code));
        assert_eq!(reason, got.map(|(l, e, c)| (false, l, e, c)), "{name}");
        assert_eq!(end.qp.state(), QpState::Err);
        if name != "send-no-buffer" {
            assert_eq!(end.received().wr_id, 1);
        }
        // A Send with an invalid STag is placed, because RDMAP checks the STag only after the
        // delivery.
        if !name.starts_with("send-inv") {
            assert_eq!(peek(&end.mr, 0, 64), [0; 64], "{name}: memory was touched");
        }
        let event = end.async_event();
        assert!(
            matches!(event, AsyncEvent::QpRequestError { .. } | AsyncEvent::QpAccessError { .. }),
            "{name}: {event:?}"
        );
        drop(peer);
        end.nothing_more();
    }
}

// [test:RFC5044-7.1.2-11]
#[test]
fn negative_vectors_as_first_fpdu_closed() {
    for vector in vectors().iter().filter(|vector| !vector.startup) {
        let name = vector.name.as_str();
        if name == "send-no-buffer" {
            continue;
        }
        let end = vector_end();
        end.recv(1, 0, 64);
        let options = assumed().markers(vector.markers);
        let (mut peer, _) = responder_with(&end, &options, &with(request(2), enhanced(4, 4)));
        end.established();
        let bytes =
            if vector.markers { vector.bytes.clone() } else { adapted(vector, &end, &mut peer) };
        peer.raw(&bytes);
        if matches!(name, "read-bounds" | "read-to-wrap" | "atomic-unaligned") {
            // The request itself is a valid FPDU; its content is refused when the request is
            // executed.
            terminate_of(&peer.next().unwrap());
        }
        peer.expect_close();
        assert!(!end.ended().orderly, "{name}");
    }
}

// [test:RFC5044-8-09] [test:RFC5044-7.1.1-18]
#[test]
fn negative_vectors_of_the_startup_close() {
    for vector in vectors().iter().filter(|vector| vector.startup) {
        let end = End::new();
        // The connection must be closed at once, not when the start-up timeout expires.
        let options = plain().startup_timeout(10 * crate::peer::TIMEOUT);
        let listener = end.listen(&options);
        let mut peer = Peer::connect(listener.local_addr());
        peer.raw(&vector.bytes);
        assert!(peer.rest().is_empty(), "{}", vector.name);
        assert!(end.channel.is_empty(), "{}: it is reported to the application", vector.name);
    }
    // A Request arrives in place of the Reply.
    let end = End::new();
    let (mut peer, _) = requested(&end, &plain());
    peer.raw(&request(1).emit());
    end.failed();
    assert!(peer.rest().is_empty());
}

// ---------------------------------------------------------------- access of the peer

/// Ranges that a peer must not access, with the expected codes for a Write and for a Read.
// [test:RFC5040-7.2-09] [test:RFC5040-7.2-11] [test:RFC5040-7.2-12] [test:RFC5040-7.2-13]
// [test:RFC5040-8.1.1-04] [test:RFC5041-7.1-12] [test:RFC5041-7.1-18] [test:RFC5041-8.3.1-04]
#[test]
fn access_that_is_not_given() {
    type Case = (&'static str, fn(&End) -> (u32, u64, u32), (u8, u8, u8), (u8, u8, u8));
    let cases: [Case; 5] = [
        ("wrong STag", |e| (e.mr.rkey().0 ^ 0xFF00, e.mr.addr(), 8), (1, 1, 0), (0, 1, 0)),
        ("wrong key", |e| (e.mr.rkey().0 ^ 1, e.mr.addr(), 8), (1, 1, 0), (0, 1, 0)),
        (
            "one past the end",
            |e| (e.mr.rkey().0, e.mr.addr() + e.mr.len() as u64 - 7, 8),
            (1, 1, 1),
            (0, 1, 1),
        ),
        ("before the start", |e| (e.mr.rkey().0, e.mr.addr() - 1, 8), (1, 1, 1), (0, 1, 1)),
        ("wrap", |e| (e.mr.rkey().0, u64::MAX - 3, 8), (1, 1, 3), (0, 1, 4)),
    ];
    for (name, at, for_write, for_read) in cases {
        let end = End::new();
        let (stag, to, len) = at(&end);
        let before = peek(&end.mr, 0, end.mr.len());
        let mut peer = responder(&end);
        peer.write(stag, to, &vec![0xAA; len as usize]);
        let terminate = peer.expect_terminate(for_write.0, for_write.1, for_write.2);
        let quoted = terminate.ddp_header.unwrap().header().unwrap();
        assert!(
            matches!(quoted, uiw_ddp::Header::Tagged(t) if t.stag.0 == stag && t.to == to),
            "{name}"
        );
        assert!(matches!(end.async_event(), AsyncEvent::QpAccessError { .. }));
        assert!(peek(&end.mr, 0, end.mr.len()) == before, "{name}: memory was touched");
        let end = End::new();
        let (stag, to, len) = at(&end);
        let mut peer = responder(&end);
        peer.read(stag, to, len);
        let terminate = peer.expect_terminate(for_read.0, for_read.1, for_read.2);
        assert_eq!(terminate.read_request.unwrap().source_to, to, "{name}");
    }
}

// [test:RFC5040-8.1.1-02] [test:RFC5041-8.2-01] [test:RFC5041-8.3.1-02]
#[test]
fn rights_and_protection_domains_are_checked() {
    for (access, op) in [
        (Access::LOCAL_WRITE | Access::REMOTE_READ, "write"),
        (Access::LOCAL_WRITE | Access::REMOTE_WRITE, "read"),
        (Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ, "atomic"),
    ] {
        let end = End::made(Make { access, ..Make::default() });
        let mut peer = responder_opt(&end, &assumed());
        let (stag, to) = (end.mr.rkey(), end.mr.addr());
        match op {
            "write" => peer.write(stag.0, to, b"x"),
            "read" => peer.read(stag.0, to, 1),
            _ => {
                let atomic = AtomicRequest::fetch_add(1, stag, to, 1, 0);
                peer.fpdu(&untagged(Opcode::AtomicRequest, 1, 1, 0, true, 0, &atomic.emit()));
            }
        }
        let codes = terminate_of(&peer.expect_fpdu());
        let expected = if op == "write" { (1, 1, 0) } else { (0, 1, 2) };
        assert_eq!((codes.layer, codes.etype, codes.code), expected, "{op}");
    }
    // The region belongs to another protection domain, or the queue pair grants no rights.
    let end = End::new();
    let other = memory(&end.device.alloc_pd().unwrap(), 64, ALL);
    let mut peer = responder(&end);
    peer.write(other.rkey().0, other.addr(), b"x");
    let terminate = terminate_of(&peer.expect_fpdu());
    assert!(
        matches!((terminate.layer, terminate.etype, terminate.code), (1, 1, 0 | 2)),
        "{terminate:?}"
    );
    assert_eq!(peek(&other, 0, 1), [0]);
    let end = End::new();
    end.qp.set_access(Access::empty());
    let mut peer = responder(&end);
    peer.write(end.mr.rkey().0, end.mr.addr(), b"x");
    peer.expect_terminate(1, 1, 0);
}

// [test:RFC5041-5.2-10] [test:RFC5040-5.2.1-16] [test:RFC5040-5.2.1-17]
// [test:RFC5041-5.2-09]
#[test]
fn zero_length_accesses_are_not_checked() {
    let end = End::new();
    let mut peer = responder(&end);
    peer.write(0xBAD_BAD, u64::MAX, b"");
    peer.read(0xBAD_BAD, u64::MAX, 0);
    let response = peer.expect_fpdu();
    assert_eq!((response.opcode(), response.payload().len()), (Opcode::ReadResponse, 0));
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn zero_length_region_gives_no_access() {
    let end = End::new();
    if let Ok(memory) = uiw_verbs::Memory::owned(0)
        && let Ok(empty) = end.pd.register_raw(memory, 0, ALL)
    {
        let mut peer = responder(&end);
        peer.write(empty.rkey().0, 0, b"x");
        peer.expect_terminate(1, 1, 1);
    }
}

// [test:RFC5040-5.2.1-09] [test:RFC5040-5.2.1-13] [test:RFC5040-5.2.2-06] [test:RFC5040-6.1-02]
#[test]
fn reads_within_ird_answered_in_order() {
    let end = End::new();
    fill(&end.mr, 0, &pattern(4096));
    let mut peer = responder(&end);
    let mut bytes = Vec::new();
    for i in 0..4u32 {
        let ulpdu = read_request(i + 1, end.mr.rkey().0, end.mr.addr() + u64::from(i) * 1000, 1000);
        bytes.extend(peer.seal(&ulpdu));
    }
    peer.raw(&bytes);
    for i in 0..4usize {
        let segment = peer.expect_fpdu();
        assert_eq!(segment.opcode(), Opcode::ReadResponse);
        assert!(segment.payload() == &pattern(4096)[i * 1000..(i + 1) * 1000]);
        assert!(segment.header.last());
    }
    let mut bytes = Vec::new();
    for i in 4..10u32 {
        bytes.extend(peer.seal(&read_request(i + 1, end.mr.rkey().0, end.mr.addr(), 8)));
    }
    peer.raw(&bytes);
    loop {
        let segment = peer.expect_fpdu();
        if segment.opcode() != Opcode::ReadResponse {
            let terminate = terminate_of(&segment);
            assert_eq!((terminate.layer, terminate.etype, terminate.code), (1, 2, 2));
            break;
        }
    }
}

/// The peer does not read, so no response is sent completely: one response in progress and three
/// waiting requests are the four that were agreed on.
// [test:RFC5040-6.1-02] [test:RFC5040-6.1-05]
#[test]
fn read_beyond_ird_refused() {
    const LONG: usize = 32 << 20;
    for count in [4, 5] {
        let end = End::made(Make { memory: LONG, ..Make::default() });
        let mut peer = responder(&end);
        for _ in 0..count {
            peer.read(end.mr.rkey().0, end.mr.addr(), LONG as u32);
            for _ in 0..20 {
                end.device.pump();
            }
        }
        if count == 5 {
            let reason = end.ended().reason.unwrap();
            assert_eq!(
                (reason.from_peer, reason.layer, reason.etype, reason.code),
                (false, 1, 2, 2)
            );
        } else {
            end.nothing_more();
            assert_eq!(end.qp.state(), QpState::Rts);
        }
    }
}

// ---------------------------------------------------------------- answers to our Reads

fn read_of_16(end: &End) -> (Peer, Segment) {
    let mut peer = initiator(end);
    end.op(1, read(Remote { addr: 5, rkey: STag(6) }), 0, 16);
    let asked = peer.expect_fpdu();
    let request = asked.read_request();
    assert_eq!((request.len, request.source_stag.0, request.source_to), (16, 6, 5));
    (peer, asked)
}

#[test]
fn read_response_in_pieces() {
    let end = End::new();
    let (mut peer, asked) = read_of_16(&end);
    let request = asked.read_request();
    let (stag, to) = (request.sink_stag.0, request.sink_to);
    peer.fpdu(&tagged(Opcode::ReadResponse, stag, to, false, b"01234567"));
    peer.fpdu(&tagged(Opcode::ReadResponse, stag, to + 8, true, b"89abcdef"));
    assert_eq!(end.sent_ok(1).byte_len, 16);
    assert_eq!(peek(&end.mr, 0, 16), b"0123456789abcdef");
}

#[test]
fn read_responses_that_answer_nothing() {
    type Answer = fn(u32, u64) -> Vec<u8>;
    let cases: [(&str, Answer, (u8, u8, u8)); 7] = [
        ("STag", |s, t| tagged(Opcode::ReadResponse, s ^ 0x100, t, true, &[7; 16]), (1, 1, 0)),
        ("TO", |s, t| tagged(Opcode::ReadResponse, s, t + 1, true, &[7; 16]), (1, 1, 1)),
        ("too long", |s, t| tagged(Opcode::ReadResponse, s, t, true, &[7; 17]), (1, 1, 1)),
        ("L missing", |s, t| tagged(Opcode::ReadResponse, s, t, false, &[7; 16]), (1, 1, 1)),
        ("L early", |s, t| tagged(Opcode::ReadResponse, s, t, true, &[7; 15]), (1, 1, 1)),
        ("a Write to the sink", |s, t| tagged(Opcode::Write, s, t, true, &[7; 16]), (1, 1, 0)),
        (
            "an atomic's answer",
            |_, _| {
                let answer = AtomicResponse { request_id: 0, original: 0 };
                untagged(Opcode::AtomicResponse, 3, 1, 0, true, 0, &answer.emit())
            },
            (1, 2, 1),
        ),
    ];
    for (name, answer, (layer, etype, code)) in cases {
        let end = End::new();
        let (mut peer, asked) = read_of_16(&end);
        let request = asked.read_request();
        peer.fpdu(&answer(request.sink_stag.0, request.sink_to));
        let terminate = peer.expect_terminate(layer, etype, code);
        assert!(terminate.read_request.is_none(), "{name}");
        let wc = end.sent();
        assert_eq!(wc.wr_id, 1);
        assert_ne!(wc.status, WcStatus::Success, "{name}");
        assert_eq!(peek(&end.mr, 0, 17), [0; 17], "{name}");
    }
    // There was no request at all.
    let end = End::new();
    let mut peer = initiator(&end);
    peer.fpdu(&tagged(Opcode::ReadResponse, 1, 1, true, b"x"));
    let terminate = terminate_of(&peer.expect_fpdu());
    assert!(matches!((terminate.layer, terminate.etype, terminate.code), (1, 1, 0) | (0, 2, 6)));
}

// [test:RFC5040-6.1-03] [test:RFC5040-6.1-04]
#[test]
fn ord_delays_reads_until_answers() {
    let end = End::new();
    let mut peer = initiator(&end);
    for id in 0..6 {
        end.op(id, read(Remote { addr: id, rkey: STag(1) }), 0, 4);
    }
    let mut asked: Vec<_> = (0..4).map(|_| peer.expect_fpdu().read_request()).collect();
    peer.expect_silence(50);
    for id in 0..6usize {
        peer.answer(&asked[id], b"data");
        end.sent_ok(id as u64);
        if id < 2 {
            asked.push(peer.expect_fpdu().read_request());
        }
    }
}

#[test]
fn queue_drained_with_last_read() {
    let end = End::new();
    let mut peer = initiator(&end);
    end.op(1, read(Remote { addr: 0, rkey: STag(1) }), 0, 4);
    let request = peer.expect_fpdu().read_request();
    end.qp.modify(QpState::Sqd).unwrap();
    end.nothing_more();
    assert!(end.device.async_events().is_empty());
    peer.answer(&request, b"data");
    end.sent_ok(1);
    assert_eq!(end.async_event(), AsyncEvent::SqDrained { qp_num: end.qp.num() });
}

// ---------------------------------------------------------------- untagged messages

// [test:RFC5041-7.1-08] [test:RFC5041-7.1-10]
#[test]
fn misplaced_sends_terminated() {
    type Segments = &'static [(u32, u32, bool, &'static [u8])];
    let cases: [(&str, Segments, (u8, u8, u8)); 6] = [
        ("gap", &[(1, 0, true, b"a"), (3, 0, true, b"b")], (1, 2, 3)),
        ("again", &[(1, 0, true, b"a"), (1, 0, true, b"b")], (1, 2, 3)),
        ("MO not 0", &[(1, 1, true, b"a")], (1, 2, 4)),
        ("MO behind", &[(1, 0, false, b"ab"), (1, 1, true, b"c")], (1, 2, 4)),
        ("MO beyond", &[(1, 0, false, b"ab"), (1, 3, true, b"c")], (1, 2, 4)),
        ("next before last", &[(1, 0, false, b"ab"), (2, 0, true, b"c")], (1, 2, 3)),
    ];
    for (name, segments, (layer, etype, code)) in cases {
        let end = End::new();
        for id in 0..4 {
            end.recv(id, id * 100, 64);
        }
        let mut peer = responder(&end);
        for (msn, mo, last, payload) in segments {
            peer.fpdu(&untagged(Opcode::Send, 0, *msn, *mo, *last, 0, payload));
        }
        let terminate = peer.expect_terminate(layer, etype, code);
        assert!(terminate.ddp_header.is_some(), "{name}");
    }
}

// [test:RFC5041-7.1-09]
#[test]
fn message_longer_than_its_receive() {
    for split in [false, true] {
        let end = End::new();
        end.recv(1, 0, 16);
        end.recv(2, 100, 16);
        let mut peer = responder(&end);
        if split {
            peer.fpdu(&untagged(Opcode::Send, 0, 1, 0, false, 0, &[1; 10]));
            peer.fpdu(&untagged(Opcode::Send, 0, 1, 10, true, 0, &[2; 7]));
        } else {
            peer.send(&[1; 17]);
        }
        peer.expect_terminate(1, 2, 5);
        let wc = end.received();
        assert_eq!((wc.wr_id, wc.status), (1, WcStatus::LocalLength));
        let wc = end.received();
        assert_eq!((wc.wr_id, wc.status), (2, WcStatus::Flushed));
        assert_eq!(peek(&end.mr, 16, 4), [0; 4]);
    }
}

#[test]
fn send_without_receive_stalls() {
    let end = End::new();
    let options = plain().no_receive_timeout(Duration::from_secs(30));
    let mut peer = responder_opt(&end, &options);
    peer.send(b"one");
    peer.send(b"two");
    peer.write(end.mr.rkey().0, end.mr.addr() + 1000, b"later");
    peer.expect_silence(29_999);
    end.recv(1, 0, 64);
    assert_eq!(end.received_ok(1).byte_len, 3);
    end.recv(2, 100, 64);
    end.received_ok(2);
    assert_eq!(peek(&end.mr, 0, 3), b"one");
    assert_eq!(peek(&end.mr, 100, 3), b"two");
    peer.read(end.mr.rkey().0, end.mr.addr() + 1000, 5);
    assert_eq!(peer.expect_fpdu().payload(), b"later");
}

// [test:RFC5041-7.1-03]
#[test]
fn send_without_receive_times_out() {
    for wait in [0, 60].map(Duration::from_millis) {
        let end = End::new();
        let options = plain().no_receive_timeout(wait);
        let mut peer = responder_opt(&end, &options);
        let start = now();
        peer.send(b"one");
        let terminate = peer.expect_terminate(1, 2, 2);
        assert_eq!(now() - start, wait);
        assert!(terminate.ddp_header.is_some());
        assert!(matches!(end.async_event(), AsyncEvent::QpRequestError { .. }));
    }
}

#[test]
fn shared_receive_queue_stalls_each_stream() {
    let device = crate::common::device();
    let pd = device.alloc_pd().unwrap();
    let srq = pd.create_srq(SrqAttr { max_wr: 16, max_sge: 1, limit: 0 }).unwrap();
    let make = || Make { srq: Some(srq.clone()), ..Make::default() };
    let (a, b) = (End::make(&device, &pd, make()), End::make(&device, &pd, make()));
    let options = plain().no_receive_timeout(Duration::from_secs(30));
    let (mut pa, mut pb) = (responder_opt(&a, &options), responder_opt(&b, &options));
    pa.send(b"a");
    pb.send(b"b");
    pa.expect_silence(40);
    for id in [1, 2] {
        let sge = [a.sge(id * 100, 64)];
        // SAFETY: the region lives until the end of the test, and nothing else accesses it.
        unsafe { srq.post_recv([RecvWr { wr_id: id, sges: &sge }]) }.unwrap();
    }
    let mut got = [a.received().wr_id, b.received().wr_id];
    got.sort_unstable();
    assert_eq!(got, [1, 2]);
    let options = plain().no_receive_timeout(Duration::from_millis(40));
    let c = End::make(&device, &pd, make());
    let mut pc = responder_opt(&c, &options);
    pc.send(b"c");
    pc.expect_terminate(1, 2, 2);
}

// ---------------------------------------------------------------- framing

// [test:RFC5040-5.3-05] [test:RFC5041-5.4-06] [test:RFC5044-6-09]
#[test]
fn fpdus_in_one_write_or_bytewise() {
    for chunk in [usize::MAX, 1, 7] {
        let end = End::new();
        let mut peer = responder(&end);
        let mut bytes = Vec::new();
        for i in 0..40u32 {
            end.recv(i.into(), u64::from(i) * 64, 64);
            let payload = vec![i as u8; i as usize];
            bytes.extend(peer.seal(&untagged(Opcode::Send, 0, i + 1, 0, true, 0, &payload)));
            bytes.extend(peer.seal(&tagged(
                Opcode::Write,
                end.mr.rkey().0,
                end.mr.addr() + 9000,
                true,
                &payload,
            )));
        }
        for part in bytes.chunks(chunk.min(bytes.len())) {
            peer.raw(part);
        }
        for i in 0..40 {
            assert_eq!(end.received_ok(i).byte_len, i as u32);
        }
        assert_eq!(peek(&end.mr, 39 * 64, 39), [39; 39]);
    }
}

#[test]
fn largest_fpdu_and_interleaved_messages_accepted() {
    let end = End::made(Make { memory: 256 << 10, ..Make::default() });
    end.recv(1, 0, 128 << 10);
    let mut peer = responder(&end);
    let data = pattern(64_700);
    peer.fpdu(&untagged(Opcode::Send, 0, 1, 0, false, 0, &data));
    peer.write(end.mr.rkey().0, end.mr.addr() + (200 << 10), b"between");
    peer.read(end.mr.rkey().0, end.mr.addr() + (200 << 10), 7);
    peer.fpdu(&untagged(Opcode::Send, 0, 1, 64_700, true, 0, b"end"));
    assert_eq!(end.received_ok(1).byte_len, 64_703);
    assert_eq!(peer.expect_fpdu().payload(), b"between");
    assert!(peek(&end.mr, 0, 64_700) == data);
}

// [test:RFC5041-5.2-03] [test:RFC5041-5.2-07]
#[test]
fn sent_fpdus_fit_segments_and_options() {
    for (size, max) in
        [(uiw_verbs::FpduSize::Fixed(300), 300), (uiw_verbs::FpduSize::Large, uiw_mpa::MAX_ULPDU)]
    {
        let end = End::made(Make { memory: 256 << 10, ..Make::default() });
        let data = pattern(200_000);
        fill(&end.mr, 0, &data);
        let mut peer = responder_opt(&end, &plain().fpdu(size));
        end.op(1, SendOp::Write { remote: Remote { addr: 77, rkey: STag(9) } }, 0, 200_000);
        let mut got = Vec::new();
        loop {
            let segment = peer.expect_fpdu();
            assert!(segment.ulpdu.len() <= max);
            assert_eq!(segment.tagged().to, 77 + got.len() as u64);
            got.extend_from_slice(segment.payload());
            if segment.header.last() {
                break;
            }
        }
        assert!(got == data);
        end.sent_ok(1);
    }
}

// ---------------------------------------------------------------- ends

// [test:RFC5044-8-02] [test:RFC5041-6.2.2-02]
#[test]
fn fin_inside_an_fpdu() {
    let end = End::new();
    end.recv(1, 0, 64);
    let mut peer = responder(&end);
    let bytes = peer.seal(&untagged(Opcode::Send, 0, 1, 0, true, 0, b"data"));
    peer.raw(&bytes[..bytes.len() - 1]);
    peer.fin();
    peer.expect_terminate(2, 0, 1);
    assert_eq!(end.received().status, WcStatus::Flushed);
    assert!(!end.ended().orderly);
}

// [test:RFC5041-6.2.2-02] [test:RFC5040-6.2.1-02]
#[test]
fn reset_by_the_peer() {
    let end = End::new();
    end.recv(1, 0, 64);
    let mut peer = initiator(&end);
    end.op(2, read(Remote::default()), 0, 8);
    end.op(3, read(Remote::default()), 0, 8);
    peer.expect_fpdu();
    peer.reset();
    let wc = end.sent();
    assert_eq!((wc.wr_id, wc.status), (2, WcStatus::RetryExceeded));
    let wc = end.sent();
    assert_eq!((wc.wr_id, wc.status), (3, WcStatus::Flushed));
    assert_eq!(end.received().status, WcStatus::Flushed);
    assert!(!end.ended().orderly);
    assert!(matches!(end.async_event(), AsyncEvent::QpFatal { .. }));
    end.nothing_more();
}

// [test:RFC5041-6.2.1-03]
#[test]
fn reads_answered_after_fin() {
    let end = End::made(Make { memory: 4 << 20, ..Make::default() });
    let data = pattern(4 << 20);
    fill(&end.mr, 0, &data);
    let mut peer = responder(&end);
    peer.read(end.mr.rkey().0, end.mr.addr(), 4 << 20);
    peer.read(end.mr.rkey().0, end.mr.addr(), 5);
    peer.fin();
    let mut got = Vec::new();
    loop {
        let segment = peer.expect_fpdu();
        got.extend_from_slice(segment.payload());
        if segment.header.last() {
            break;
        }
    }
    assert!(got == data);
    assert_eq!(peer.expect_fpdu().payload(), &data[..5]);
    peer.expect_close();
    assert!(end.ended().orderly);
}

/// While a long message is being sent, the peer, which has stopped reading, violates the protocol.
/// The partly sent FPDU is completed, and then the Terminate follows in the same framing.
// [test:RFC5040-5.4-02] [test:RFC5040-5.4-03] [test:RFC5040-5.4-08] [test:RFC5040-6.2.1-04] [test:RFC5040-6.1-01]
// [test:RFC5040-5.4-01] [test:RFC5040-4.1-13]
#[test]
fn terminate_after_message_keeps_framing() {
    let private = Access::LOCAL_WRITE;
    for (markers, crc, fixed, access) in [
        (false, true, 0, ALL),
        (true, true, 0, ALL),
        (false, false, 0, ALL),
        (true, true, 1000, ALL),
        // This memory, which no peer can access, is sent by iovec.
        (false, true, 0, private),
        (false, false, 20_000, private),
        (true, false, 0, private),
    ] {
        let end = End::made(Make { memory: 8 << 20, access, ..Make::default() });
        let data = pattern(8 << 20);
        fill(&end.mr, 0, &data);
        let mut asked = with(request(2), enhanced(4, 4));
        (asked.markers, asked.crc) = (markers, crc);
        let fpdu =
            if fixed == 0 { uiw_verbs::FpduSize::Large } else { uiw_verbs::FpduSize::Fixed(fixed) };
        let options = plain().crc(crc).fpdu(fpdu);
        let (mut peer, _) = responder_with(&end, &options, &asked);
        end.established();
        peer.empty_write();
        end.op(1, SendOp::Write { remote: Remote::default() }, 0, 8 << 20);
        end.op(2, SendOp::Write { remote: Remote::default() }, 0, 8);
        // TCP is full when pumping has no more effect.
        for _ in 0..50 {
            end.device.pump();
        }
        peer.fpdu(&untagged(Opcode::Send, 0, 9, 0, true, 0, b"garbage"));
        assert!(!end.ended().orderly);
        let mut got = 0;
        loop {
            let segment = peer.expect_fpdu();
            if segment.opcode() == Opcode::Terminate {
                let terminate = terminate_of(&segment);
                assert_eq!((terminate.layer, terminate.etype, terminate.code), (1, 2, 3));
                break;
            }
            assert!(segment.payload() == &data[got..got + segment.payload().len()]);
            got += segment.payload().len();
            assert!(got < data.len());
        }
        peer.expect_close();
        let (first, second) = (end.sent(), end.sent());
        assert_eq!((first.wr_id, second.wr_id), (1, 2));
        assert_eq!(second.status, WcStatus::Flushed);
        assert_ne!(first.status, WcStatus::Success);
        assert!(matches!(end.async_event(), AsyncEvent::QpRequestError { .. }));
        drop(peer);
        end.nothing_more();
    }
}

// [test:RFC5040-5.4-07] [test:RFC5040-6.2.1-02] [test:RFC5040-5.5-11]
#[test]
fn terminated_read_named_others_flushed() {
    for (siw, codes, status) in [
        (false, (0, 1, 0), WcStatus::RemoteAccess),
        (false, (1, 2, 2), WcStatus::RnrRetryExceeded),
        (false, (0, 2, 6), WcStatus::RemoteInvalidRequest),
        (false, (0, 0, 0), WcStatus::RemoteAborted),
        (true, (0, 1, 2), WcStatus::RemoteAccess),
    ] {
        let end = End::new();
        end.recv(50, 0, 8);
        end.recv(51, 0, 8);
        let mut peer = initiator(&end);
        for id in 1..=3 {
            end.op(id, read(Remote::default()), 0, 8);
        }
        let asked: Vec<_> = (0..3).map(|_| peer.expect_fpdu()).collect();
        let (layer, etype, code) = codes;
        let mut bytes = vec![layer << 4 | etype, code, 0xE0, 0, 0, 46];
        if siw {
            bytes[0] = etype << 4 | layer;
            bytes[2] = 7;
        }
        bytes.extend_from_slice(&asked[1].ulpdu);
        peer.fpdu(&untagged(Opcode::Terminate, 2, 1, 0, true, 0, &bytes));
        let got: Vec<_> = (0..3).map(|_| end.sent()).map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(
            got,
            [(1, WcStatus::Flushed), (2, status), (3, WcStatus::Flushed)],
            "{siw} {codes:?}"
        );
        assert_eq!([end.received().wr_id, end.received().wr_id], [50, 51]);
        let reason = end.ended().reason.unwrap();
        assert_eq!(
            (reason.from_peer, reason.layer, reason.etype, reason.code),
            (true, layer, etype, code)
        );
        end.async_event();
        peer.expect_close();
        // Data that arrives after a Terminate is discarded.
        let late = peer.seal(&untagged(Opcode::Send, 0, 1, 0, true, 0, b"late"));
        let _ = std::io::Write::write(&mut peer.stream, &late);
        end.nothing_more();
    }
}

#[test]
fn terminate_between_segments_of_message() {
    let end = End::new();
    end.recv(1, 0, 64);
    let mut peer = responder(&end);
    peer.fpdu(&untagged(Opcode::Send, 0, 1, 0, false, 0, b"half"));
    peer.fpdu(&terminate(0, 0, 0));
    let wc = end.received();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Flushed));
    peer.expect_close();
    end.ended();
    end.async_event();
    drop(peer);
    end.nothing_more();
}

// ---------------------------------------------------------------- RFC 7306

// [test:RFC7306-5-05]
#[test]
fn immediate_data_and_atomics_from_peer() {
    let end = End::new();
    end.recv(1, 0, 64);
    let mut peer = responder_opt(&end, &assumed());
    fill(&end.mr, 8, &40u64.to_ne_bytes());
    peer.write(end.mr.rkey().0, end.mr.addr() + 500, &[9; 77]);
    peer.fpdu(&untagged(Opcode::ImmediateSe, 0, 1, 0, true, 0, &[1, 2, 3, 4, 0, 0, 0, 0]));
    let wc = end.received_ok(1);
    assert_eq!((wc.opcode, wc.imm, wc.byte_len), (WcOpcode::RecvWriteImm, Some(0x0102_0304), 77));
    let atomic = AtomicRequest::fetch_add(0x77, end.mr.rkey(), end.mr.addr() + 8, 2, 0);
    peer.fpdu(&untagged(Opcode::AtomicRequest, 1, 1, 0, true, 0, &atomic.emit()));
    let answer = peer.expect_fpdu();
    assert_eq!(
        (answer.opcode(), answer.untagged().qn, answer.untagged().msn),
        (Opcode::AtomicResponse, 3, 1)
    );
    let answer = AtomicResponse::parse(answer.payload()).unwrap();
    assert_eq!((answer.request_id, answer.original), (0x77, 40));
    assert_eq!(peek(&end.mr, 8, 8), 42u64.to_ne_bytes());
}

// [test:RFC7306-6.3-08]
#[test]
fn immediate_data_must_be_eight_bytes() {
    for opcode in [Opcode::Immediate, Opcode::ImmediateSe] {
        for len in [0, 4, 7, 9, 16] {
            let end = End::new();
            end.recv(1, 0, 64);
            let mut peer = responder_opt(&end, &assumed());
            peer.fpdu(&untagged(opcode, 0, 1, 0, true, 0, &[1; 16][..len]));
            // If there are too many bytes, they exceed the buffer that DDP provides; too few bytes
            // are detected by RDMAP.
            let (layer, etype, code) = if len > 8 { (1, 2, 5) } else { (0, 2, 0xFF) };
            peer.expect_terminate(layer, etype, code);
            assert_eq!(end.received().status, WcStatus::Flushed, "{opcode} of {len} bytes");
        }
    }
}

#[test]
fn immediate_data_without_extension_rejected() {
    let end = End::new();
    end.recv(1, 0, 64);
    let mut peer = responder(&end);
    peer.fpdu(&untagged(Opcode::Immediate, 0, 1, 0, true, 0, &[0; 8]));
    peer.expect_terminate(0, 2, 6);
}

/// The byte count belongs to the Write that directly precedes the immediate, not to an earlier one.
#[test]
fn immediate_without_write_counts_no_bytes() {
    let end = End::new();
    for id in 0..3 {
        end.recv(id, id * 64, 64);
    }
    let mut peer = responder_opt(&end, &assumed());
    peer.write(end.mr.rkey().0, end.mr.addr() + 500, &[9; 77]);
    peer.send(b"x");
    peer.fpdu(&untagged(Opcode::Immediate, 0, 2, 0, true, 0, &[0; 8]));
    end.received_ok(0);
    assert_eq!(end.received_ok(1).byte_len, 0);
}

#[test]
fn close_orderly_with_later_reads() {
    let end = End::new();
    let mut peer = responder(&end);
    end.qp.disconnect().unwrap();
    peer.expect_close();
    peer.read(end.mr.rkey().0, end.mr.addr(), 8);
    peer.fin();
    assert!(end.ended().orderly);
    assert!(end.device.async_events().is_empty());
}

#[test]
fn ird_of_zero_takes_no_reads() {
    let end = End::new();
    let mut peer = responder_opt(&end, &plain().ird(0));
    peer.read(end.mr.rkey().0, end.mr.addr(), 8);
    peer.expect_terminate(1, 2, 2);
}

// [test:RFC5041-7.1-19] [test:RFC5040-5.4-05]
#[test]
fn second_terminate_ignored() {
    let end = End::new();
    let mut peer = responder(&end);
    let mut bytes = peer.seal(&terminate(0, 0, 0));
    bytes.extend(peer.seal(&terminate(1, 1, 0)));
    bytes.extend(peer.seal(&tagged(Opcode::Write, end.mr.rkey().0, end.mr.addr(), true, b"late")));
    bytes.extend([0xFF; 100]);
    peer.raw(&bytes);
    peer.fin();
    let reason = end.ended().reason.unwrap();
    assert_eq!((reason.from_peer, reason.layer, reason.etype, reason.code), (true, 0, 0, 0));
    peer.expect_close();
    assert_eq!(peek(&end.mr, 0, 4), [0; 4]);
    end.async_event();
    end.nothing_more();
}

#[test]
fn lenient_invalidation_is_a_switch() {
    let end = End::on(&crate::simulation::device_with(
        uiw_verbs::DeviceConfig::default().lenient_invalidate(true),
    ));
    end.recv(1, 0, 64);
    let mut peer = responder(&end);
    peer.fpdu(&untagged(Opcode::SendInvalidate, 0, 1, 0, true, end.mr.rkey().0, b""));
    // The receive refers to the invalidated region, but the message is empty.
    assert_eq!(end.received_ok(1).invalidated, Some(end.mr.rkey()));
    peer.write(end.mr.rkey().0, end.mr.addr(), b"x");
    peer.expect_terminate(1, 1, 0);
}

#[test]
fn invalid_receive_memory_is_local_error() {
    let end = End::new();
    end.try_recv(1, &[uiw_verbs::Sge { addr: 0x1000, length: 64, lkey: STag(0x1234) }]).unwrap();
    let mut peer = responder(&end);
    peer.send(b"x");
    peer.expect_terminate(0, 0, 0);
    assert_eq!(end.received().status, WcStatus::LocalProtection);
    // The same applies to the sink of a Read; the peer is not told the details.
    let end = End::new();
    let mut peer = initiator(&end);
    let sge = [uiw_verbs::Sge { lkey: STag(0x1234), ..end.sge(0, 4) }];
    end.post(1, read(Remote::default()), &sge, uiw_verbs::SendFlags::SIGNALED).unwrap();
    let segment = peer.expect_fpdu();
    if segment.opcode() == Opcode::ReadRequest {
        peer.answer(&segment.read_request(), b"data");
        peer.expect_terminate(0, 0, 0);
    }
    assert_eq!(end.sent().status, WcStatus::LocalProtection);
}

/// The peer's FIN flushes unsent requests, but no byte that TCP has already accepted is lost.
#[test]
fn fin_of_peer_ends_orderly() {
    let end = End::new();
    for id in 0..3 {
        end.recv(id, 0, 64);
    }
    let mut peer = responder(&end);
    peer.send(b"last words");
    peer.fin();
    assert_eq!(end.received_ok(0).byte_len, 10);
    assert_eq!([end.received().wr_id, end.received().wr_id], [1, 2]);
    assert!(end.ended().orderly);
    peer.expect_close();
    end.nothing_more();
}

/// Segments of messages on different queues may alternate.
#[test]
fn alternating_segments_of_two_queues() {
    let end = End::new();
    end.recv(1, 0, 64);
    fill(&end.mr, 100, b"read");
    let mut peer = responder_opt(&end, &assumed());
    let request = read_request(1, end.mr.rkey().0, end.mr.addr() + 100, 4);
    let body = &request[18..];
    peer.fpdu(&untagged(Opcode::Immediate, 0, 1, 0, false, 0, &[1, 2, 3, 4]));
    peer.fpdu(&untagged(Opcode::ReadRequest, 1, 1, 0, false, 0, &body[..10]));
    peer.fpdu(&untagged(Opcode::Immediate, 0, 1, 4, true, 0, &[5, 6, 7, 8]));
    peer.fpdu(&untagged(Opcode::ReadRequest, 1, 1, 10, true, 0, &body[10..]));
    assert_eq!(end.received_ok(1).imm, Some(0x0102_0304));
    assert_eq!(peer.expect_fpdu().payload(), b"read");
}

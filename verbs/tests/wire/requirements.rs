//! Tests sentences of RFC 5040, 5041 and 7306 that only a complete engine can satisfy: order,
//! delivery and completion.

use crate::common::{
    End, Make, fill, initiator, initiator_opt, initiator_with, memory, pattern, peek, plain,
    responder, responder_opt,
};
use crate::peer::{Peer, Segment, read_request, reply, tagged, terminate_of, untagged, with};
use uiw_ddp::STag;
use uiw_mpa::wire::startup::Frame;
use uiw_rdmap::{AtomicOp, AtomicRequest, AtomicResponse, Opcode, ReadRequest};
use uiw_verbs::{
    AsyncEvent, CapabilityExchange, ConnConfig, Device, FpduSize, QpState, Remote, SendFlags,
    SendOp, WcOpcode, WcStatus,
};

fn read(remote: Remote) -> SendOp {
    SendOp::Read { remote, invalidate: None }
}

fn with_extensions() -> ConnConfig {
    plain().capabilities(CapabilityExchange::Assume)
}

/// Reads the segments of one message and checks that they belong together.
fn message(peer: &mut Peer) -> Vec<Segment> {
    let mut segments = vec![peer.expect_fpdu()];
    while !segments[segments.len() - 1].header.last() {
        segments.push(peer.expect_fpdu());
    }
    segments
}

/// Checks the tagged segments of a message: all fields that identify the message must be the same
/// in each segment.
fn check_tagged(segments: &[Segment], stag: u32, to: u64, bytes: &[u8]) {
    let mut at = 0;
    for segment in segments {
        let header = segment.tagged();
        assert_eq!((header.rsvd_ulp, header.stag.0, header.to), (0x40, stag, to + at as u64));
        assert!(segment.payload() == &bytes[at..at + segment.payload().len()]);
        at += segment.payload().len();
    }
    assert_eq!(at, bytes.len());
}

fn check_untagged(
    segments: &[Segment],
    (opcode, qn, msn, word): (Opcode, u32, u32, u32),
    bytes: &[u8],
) {
    let mut at = 0;
    for segment in segments {
        let header = segment.untagged();
        assert_eq!(header.rsvd_ulp, 0x40 | opcode.raw());
        assert_eq!(
            (header.qn, header.msn, header.mo, header.rsvd_ulp32),
            (qn, msn, at as u32, word),
            "{opcode}"
        );
        assert!(segment.payload() == &bytes[at..at + segment.payload().len()]);
        at += segment.payload().len();
    }
    assert_eq!(at, bytes.len());
}

// [test:RFC5040-3.1-01] [test:RFC5040-5.1-02] [test:RFC5040-5.1-06] [test:RFC5040-5.1-08] [test:RFC5040-5.2.1-02]
// [test:RFC5040-5.2.1-08] [test:RFC5040-5.2.1-10] [test:RFC5040-5.3-02] [test:RFC5040-5.3-08] [test:RFC5040-5.3-11]
// [test:RFC5040-5.3-12] [test:RFC5041-4.2-02] [test:RFC5041-4.2-05] [test:RFC5041-4.2-07] [test:RFC5041-4.2-09b]
// [test:RFC5041-4.2-10] [test:RFC5041-4.3-02] [test:RFC5041-4.3-04] [test:RFC5041-4.3-06a] [test:RFC5041-4.3-06b]
// [test:RFC5041-4.3-07] [test:RFC5041-4.3-11] [test:RFC5041-4.3-12] [test:RFC5041-4.4-01] [test:RFC5041-5.2-06]
// [test:RFC5041-5.3-01] [test:RFC5041-5.3-02] [test:RFC7306-5.2.1-03] [test:RFC7306-5.2.1-04] [test:RFC7306-5.2.1-09]
// [test:RFC7306-5.2.1-10] [test:RFC7306-5.2.1-11] [test:RFC7306-6.3-02] [test:RFC7306-6.3-07] [test:RFC5041-4.2-04]
// [test:RFC5041-4.2-09a] [test:RFC5041-4.3-08] [test:RFC5040-5.1-01] [test:RFC5040-5.2.1-01] [test:RFC5040-5.2.1-07]
// [test:RFC5040-5.3-01] [test:RFC5040-5.3-07] [test:RFC7306-5.2-01] [test:RFC7306-6.3-01] [test:RFC7306-6.3-05]
// [test:RFC5040-4.1-13] [test:RFC7306-4.1-04] [test:RFC5040-5.5-09]
#[test]
fn each_request_is_one_message() {
    let end = End::new();
    let data = pattern(3000);
    fill(&end.mr, 0, &data);
    let fpdu = FpduSize::Fixed(400);
    let mut peer = responder_opt(&end, &with_extensions().fpdu(fpdu).ird(16).ord(4));
    let (one, two) = (
        Remote { addr: 0x1_0000_0007, rkey: STag(0x0A0B_0C0D) },
        Remote { addr: 64, rkey: STag(0x0102_0304) },
    );
    for (id, op, len) in [
        (0, SendOp::Write { remote: one }, 3000),
        (1, SendOp::Send, 1000),
        (2, SendOp::Write { remote: two }, 900),
        (3, SendOp::SendInvalidate { stag: STag(0x7654_3210) }, 1000),
        (4, read(one), 50),
        (5, SendOp::FetchAdd { remote: two, add: 1, mask: 0 }, 8),
        (6, read(two), 60),
        (7, SendOp::WriteImm { remote: one, imm: 0xAABB_CCDD }, 500),
        (8, SendOp::Send, 0),
        (9, SendOp::CmpSwap { remote: two, compare: 2, compare_mask: 3, swap: 4, swap_mask: 5 }, 8),
    ] {
        end.op(id, op, 0, len);
    }
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    end.post(10, SendOp::WriteImm { remote: two, imm: 0x11 }, &[end.sge(0, 20)], flags).unwrap();
    check_tagged(&message(&mut peer), one.rkey.0, one.addr, &data);
    check_untagged(&message(&mut peer), (Opcode::Send, 0, 1, 0), &data[..1000]);
    check_tagged(&message(&mut peer), two.rkey.0, two.addr, &data[..900]);
    check_untagged(&message(&mut peer), (Opcode::SendInvalidate, 0, 2, 0x7654_3210), &data[..1000]);
    for (msn, remote, len) in [(1, one, 50), (3, two, 60)] {
        let asked = message(&mut peer);
        let request = asked[0].read_request();
        check_untagged(&asked, (Opcode::ReadRequest, 1, msn, 0), &request.emit());
        assert_eq!(
            (request.source_stag, request.source_to, request.len),
            (remote.rkey, remote.addr, len)
        );
        if msn == 1 {
            let asked = message(&mut peer);
            let request = AtomicRequest::parse(asked[0].payload()).unwrap();
            check_untagged(&asked, (Opcode::AtomicRequest, 1, 2, 0), &request.emit());
            assert_eq!((request.stag, request.to, request.data), (two.rkey, two.addr, 1));
        }
    }
    check_tagged(&message(&mut peer), one.rkey.0, one.addr, &data[..500]);
    let immediate = [0xAA, 0xBB, 0xCC, 0xDD, 0, 0, 0, 0];
    check_untagged(&message(&mut peer), (Opcode::Immediate, 0, 3, 0), &immediate);
    check_untagged(&message(&mut peer), (Opcode::Send, 0, 4, 0), &[]);
    let asked = message(&mut peer);
    let request = AtomicRequest::parse(asked[0].payload()).unwrap();
    check_untagged(&asked, (Opcode::AtomicRequest, 1, 4, 0), &request.emit());
    assert_eq!((request.compare, request.compare_mask, request.data, request.mask), (2, 3, 4, 5));
    check_tagged(&message(&mut peer), two.rkey.0, two.addr, &data[..20]);
    check_untagged(
        &message(&mut peer),
        (Opcode::ImmediateSe, 0, 5, 0),
        &[0, 0, 0, 0x11, 0, 0, 0, 0],
    );
}

// [test:RFC5040-5.1-03] [test:RFC5040-5.3-03] [test:RFC5040-5.5-05] [test:RFC5040-5.5-12] [test:RFC5041-4.1-08]
// [test:RFC5041-4.1-09] [test:RFC5041-5.4-04] [test:RFC5041-5.4-05] [test:RFC7306-6.3-03] [test:RFC7306-6.3-04]
// [test:RFC5041-5.2-04]
#[test]
fn messages_delivered_once_in_order() {
    let end = End::new();
    for id in 0..5 {
        end.recv(id, id * 100, 100);
    }
    let mut peer = responder_opt(&end, &with_extensions());
    let at = end.mr.addr() + 5000;
    peer.write(end.mr.rkey().0, at, &[1; 900]);
    end.nothing_more();
    assert_eq!(peek(&end.mr, 5000, 900), [1; 900], "a Write is placed, and not reported");
    peer.fpdu(&untagged(Opcode::Send, 0, 1, 0, false, 0, &[2; 40]));
    peer.write(end.mr.rkey().0, at, &[3; 900]);
    end.nothing_more();
    peer.fpdu(&untagged(Opcode::Send, 0, 1, 40, true, 0, &[2; 20]));
    assert_eq!(end.received_ok(0).byte_len, 60);
    assert_eq!(peek(&end.mr, 0, 60), [2; 60]);
    assert_eq!(
        peek(&end.mr, 5000, 900),
        [3; 900],
        "what came before a Send is placed when it is delivered"
    );
    peer.fpdu(&untagged(Opcode::SendSe, 0, 2, 0, true, 0, b"second"));
    peer.fpdu(&untagged(Opcode::Immediate, 0, 3, 0, true, 0, &[0, 0, 0, 7, 0, 0, 0, 0]));
    peer.fpdu(&untagged(Opcode::ImmediateSe, 0, 4, 0, true, 0, &[0, 0, 0, 8, 0, 0, 0, 0]));
    peer.fpdu(&untagged(Opcode::Send, 0, 5, 0, true, 0, b"last"));
    assert_eq!(end.received_ok(1).byte_len, 6);
    let (first, second) = (end.received_ok(2), end.received_ok(3));
    assert_eq!((first.imm, second.imm), (Some(7), Some(8)));
    assert_eq!((first.opcode, second.opcode), (WcOpcode::RecvWriteImm, WcOpcode::RecvWriteImm));
    assert_eq!(end.received_ok(4).byte_len, 4);
    assert_eq!(
        (peek(&end.mr, 100, 6), peek(&end.mr, 400, 4)),
        (b"second".to_vec(), b"last".to_vec())
    );
    end.nothing_more();
}

// [test:RFC5040-4.4-02] [test:RFC5040-5.2-01] [test:RFC5040-5.2.1-03] [test:RFC5040-5.2.1-04] [test:RFC5040-5.2.1-05]
// [test:RFC5040-5.2.2-02] [test:RFC5040-5.2.2-03] [test:RFC5040-5.2.2-08] [test:RFC5040-5.5-16a]
// [test:RFC7306-5.2.1-05] [test:RFC7306-5.2.1-06] [test:RFC7306-5.2.1-07] [test:RFC7306-5.2.1-12]
// [test:RFC7306-5.2.1-13] [test:RFC7306-5.2.2-02] [test:RFC7306-5.2.2-03] [test:RFC7306-5.2.2-04]
// [test:RFC7306-5.2.2-05] [test:RFC7306-5.2.2-08] [test:RFC7306-5.4-09] [test:RFC7306-5.4-10] [test:RFC5040-5.2.2-01]
// [test:RFC7306-5.2-02]
#[test]
fn reads_and_atomics_answered_in_order() {
    let end = End::new();
    let data = pattern(2000);
    fill(&end.mr, 1000, &data);
    // Send as many requests as were agreed on, and one more that has no buffer.
    let mut peer = responder_opt(&end, &with_extensions().fpdu(FpduSize::Fixed(300)));
    let atomic = |id| AtomicRequest::fetch_add(id, end.mr.rkey(), end.mr.addr(), 1, 0).emit();
    let ask = |stag, to, len, source: u64| {
        let source_to = end.mr.addr() + source;
        ReadRequest {
            sink_stag: STag(stag),
            sink_to: to,
            len,
            source_stag: end.mr.rkey(),
            source_to,
        }
        .emit()
    };
    let mut bytes = peer.seal(&untagged(Opcode::AtomicRequest, 1, 1, 0, true, 0, &atomic(0x51)));
    bytes.extend(peer.seal(&untagged(
        Opcode::ReadRequest,
        1,
        2,
        0,
        true,
        0,
        &ask(0xFEDC_BA98, !0xFFFF, 2000, 1000),
    )));
    bytes.extend(peer.seal(&untagged(Opcode::AtomicRequest, 1, 3, 0, true, 0, &atomic(0x49))));
    bytes.extend(peer.seal(&untagged(Opcode::ReadRequest, 1, 4, 0, true, 0, &ask(3, 9, 8, 0))));
    peer.raw(&bytes);
    for (msn, id) in [(1, 0x51), (2, 0x49)] {
        let answer = peer.expect_fpdu();
        check_untagged(
            std::slice::from_ref(&answer),
            (Opcode::AtomicResponse, 3, msn, 0),
            answer.payload(),
        );
        let response = AtomicResponse::parse(answer.payload()).unwrap();
        assert_eq!((response.request_id, response.original), (id, u64::from(msn) - 1));
        let answer = message(&mut peer);
        let (stag, to, expected) = match msn {
            1 => (0xFEDC_BA98, !0xFFFF, data.clone()),
            _ => (3, 9, 2u64.to_ne_bytes().to_vec()),
        };
        let mut at = 0;
        for segment in &answer {
            let header = segment.tagged();
            assert_eq!((header.rsvd_ulp, header.stag.0, header.to), (0x42, stag, to + at as u64));
            at += segment.payload().len();
        }
        let got: Vec<u8> = answer.iter().flat_map(|segment| segment.payload().to_vec()).collect();
        assert!(got == expected, "the answer to message {msn}");
    }
    end.nothing_more();
    // No buffers remain in use: the same number of requests is accepted again, and one more at the
    // same time is refused.
    let mut bytes = Vec::new();
    for msn in 5..30 {
        bytes.extend(peer.seal(&untagged(
            Opcode::ReadRequest,
            1,
            msn,
            0,
            true,
            0,
            &ask(1, 1, 8, 0),
        )));
    }
    peer.raw(&bytes);
    let mut answers = 0;
    let terminate = loop {
        let segment = peer.expect_fpdu();
        if segment.opcode() == Opcode::Terminate {
            break terminate_of(&segment);
        }
        answers += 1;
    };
    assert_eq!((terminate.layer, terminate.etype, terminate.code), (1, 2, 2));
    assert!(answers < 25, "four buffers hold no 25 requests at once");
}

// [test:RFC5040-5.2.1-11] [test:RFC5040-5.2.1-15]
#[test]
fn read_stays_within_tagged_buffer() {
    let end = End::new();
    // Two adjacent regions: the lower one ends where the upper one begins.
    let (low, high) = (end.mr.addr(), end.mr.addr() + 4096);
    let half = |at: u64| {
        // SAFETY: the bytes belong to the end's own region, which lives as long; every access is
        // atomic.
        let memory = unsafe { uiw_verbs::Memory::borrowed(at as *mut u8, 4096) };
        end.pd.register_raw(memory.shared(), at, crate::common::ALL).unwrap()
    };
    let (lower, _upper) = (half(low), half(high));
    let mut peer = responder(&end);
    peer.read(lower.rkey().0, high - 8, 8);
    assert_eq!(peer.expect_fpdu().payload(), [0; 8]);
    peer.read(lower.rkey().0, high - 8, 9);
    peer.expect_terminate(0, 1, 1);
}

/// An incomplete Request has no effect: data that arrives before its last segment is visible when
/// the Request is executed.
// [test:RFC5040-5.5-07] [test:RFC5040-5.5-13] [test:RFC7306-5.4-04] [test:RFC7306-5.4-06]
#[test]
fn requests_executed_when_complete() {
    let end = End::new();
    let mut peer = responder_opt(&end, &with_extensions());
    let (stag, at) = (end.mr.rkey(), end.mr.addr());
    let request = read_request(1, stag.0, at, 4);
    peer.fpdu(&untagged(Opcode::ReadRequest, 1, 1, 0, false, 0, &request[18..]));
    peer.write(stag.0, at, b"news");
    peer.fpdu(&untagged(Opcode::ReadRequest, 1, 1, 28, true, 0, b""));
    assert_eq!(peer.expect_fpdu().payload(), b"news");
    let atomic = AtomicRequest::fetch_add(9, stag, at, 1, 0).emit();
    peer.fpdu(&untagged(Opcode::AtomicRequest, 1, 2, 0, false, 0, &atomic[..51]));
    peer.write(stag.0, at, &41u64.to_ne_bytes());
    peer.fpdu(&untagged(Opcode::AtomicRequest, 1, 2, 51, true, 0, &atomic[51..]));
    assert_eq!(AtomicResponse::parse(peer.expect_fpdu().payload()).unwrap().original, 41);
    assert_eq!(peek(&end.mr, 0, 8), 42u64.to_ne_bytes());
}

// [test:RFC5040-5.2.2-04] [test:RFC5040-5.5-06] [test:RFC5040-5.5-17] [test:RFC7306-5.2.2-01] [test:RFC7306-5.2.2-06]
// [test:RFC7306-5.2.2-07] [test:RFC7306-5.4-01] [test:RFC7306-5.4-08] [test:RFC5040-5.5-15]
#[test]
fn read_completes_with_answer() {
    let end = End::new();
    let mut peer = initiator_opt(&end, &with_extensions());
    end.op(1, read(Remote::default()), 0, 4);
    end.op(2, SendOp::FetchAdd { remote: Remote::default(), add: 1, mask: 0 }, 8, 8);
    end.op(3, read(Remote::default()), 16, 4);
    end.op(4, SendOp::FetchAdd { remote: Remote::default(), add: 1, mask: 0 }, 24, 8);
    let asked: Vec<_> = (0..4).map(|_| peer.expect_fpdu()).collect();
    end.nothing_more();
    for (n, request) in asked.iter().enumerate() {
        if n % 2 == 0 {
            let request = request.read_request();
            let (stag, to) = (request.sink_stag.0, request.sink_to);
            peer.fpdu(&tagged(Opcode::ReadResponse, stag, to, false, b"dat"));
            end.nothing_more();
            peer.fpdu(&tagged(Opcode::ReadResponse, stag, to + 3, true, b"a"));
        } else {
            let request_id = AtomicRequest::parse(request.payload()).unwrap().request_id;
            let answer = AtomicResponse { request_id, original: 77 }.emit();
            let msn = n.div_ceil(2) as u32;
            peer.fpdu(&untagged(Opcode::AtomicResponse, 3, msn, 0, false, 0, &answer[..11]));
            end.nothing_more();
            peer.fpdu(&untagged(Opcode::AtomicResponse, 3, msn, 11, true, 0, &answer[11..]));
        }
        end.sent_ok(n as u64 + 1);
        end.nothing_more();
    }
    assert_eq!((peek(&end.mr, 0, 4), peek(&end.mr, 16, 4)), (b"data".to_vec(), b"data".to_vec()));
    assert_eq!(
        (peek(&end.mr, 8, 8), peek(&end.mr, 24, 8)),
        (77u64.to_ne_bytes().to_vec(), 77u64.to_ne_bytes().to_vec())
    );
    // This is one response too many, so its queue has no buffer for it.
    let answer = AtomicResponse { request_id: 0, original: 1 };
    peer.fpdu(&untagged(Opcode::AtomicResponse, 3, 3, 0, true, 0, &answer.emit()));
    terminate_of(&peer.expect_fpdu());
}

// [test:RFC5040-5.3-14] [test:RFC5041-4.2-06]
#[test]
fn stag_of_other_domain_rejected() {
    for invalidate in [false, true] {
        let end = End::new();
        end.recv(1, 0, 64);
        let other_pd = end.device.alloc_pd().unwrap();
        let other = memory(&other_pd, 64, crate::common::ALL);
        let mut peer = responder(&end);
        if invalidate {
            peer.fpdu(&untagged(Opcode::SendInvalidate, 0, 1, 0, true, other.rkey().0, b"x"));
            peer.expect_terminate(0, 1, 9);
        } else {
            peer.write(other.rkey().0, other.addr(), b"x");
            let terminate = terminate_of(&peer.expect_fpdu());
            assert_eq!((terminate.layer, terminate.etype), (1, 1));
        }
        assert_ne!(end.received().status, WcStatus::Success);
        // The region is unchanged: a stream of its own domain can write to it.
        let own = End::make(&end.device, &other_pd, Make::default());
        let mut owner = responder(&own);
        owner.write(other.rkey().0, other.addr(), b"mine");
        owner.read(other.rkey().0, other.addr(), 4);
        assert_eq!(owner.expect_fpdu().payload(), b"mine");
    }
}

// [test:RFC5040-5.4-04] [test:RFC5040-5.4-06]
#[test]
fn terminate_is_only_message_of_queue() {
    for (msn, mo) in [(0, 0), (2, 0), (1, 4)] {
        let end = End::new();
        let mut peer = responder(&end);
        peer.fpdu(&untagged(Opcode::Terminate, 2, msn, mo, true, 0, &[0x11, 1, 0, 0]));
        let terminate = terminate_of(&peer.expect_fpdu());
        assert_eq!((terminate.layer, terminate.etype), (1, 2));
        assert!(!end.ended().reason.unwrap().from_peer);
    }
    let end = End::new();
    let mut peer = responder(&end);
    peer.fpdu(&untagged(Opcode::Terminate, 2, 1, 0, false, 0, &[0x11, 1]));
    end.nothing_more();
    peer.fpdu(&untagged(Opcode::Terminate, 2, 1, 2, true, 0, &[0, 0]));
    let reason = end.ended().reason.unwrap();
    assert_eq!((reason.from_peer, reason.layer, reason.etype, reason.code), (true, 1, 1, 1));
}

// [test:RFC5040-7-01a] [test:RFC5040-7-01b] [test:RFC5040-7-02] [test:RFC5040-7.1-01] [test:RFC5040-7.1-06]
// [test:RFC5041-3-09a] [test:RFC5041-3-09b] [test:RFC5041-3-12] [test:RFC5041-6.2.2-03] [test:RFC7306-8.1-03]
#[test]
fn first_error_ends_both_directions() {
    let end = End::new();
    end.recv(1, 0, 64);
    let mut peer = responder_opt(&end, &with_extensions());
    let atomic = AtomicRequest::fetch_add(1, STag(0xBAD), 0, 1, 0).emit();
    let mut bytes = peer.seal(&untagged(Opcode::AtomicRequest, 1, 1, 0, true, 0, &atomic[..40]));
    bytes.extend(peer.seal(&tagged(Opcode::Write, 0xBAD, 5, true, b"another error")));
    bytes.extend(peer.seal(&tagged(Opcode::Write, end.mr.rkey().0, end.mr.addr(), true, b"late")));
    bytes.extend(peer.seal(&untagged(Opcode::Send, 0, 1, 0, true, 0, b"late")));
    peer.raw(&bytes);
    // The first of the two errors is reported, with its DDP header and without an RDMAP header.
    let terminate = peer.expect_terminate(0, 2, 0xFF);
    let quoted = terminate.ddp_header.unwrap().header().unwrap();
    assert!(
        matches!(quoted, uiw_ddp::Header::Untagged(header) if (header.qn, header.msn) == (1, 1))
    );
    assert_eq!(terminate.read_request, None);
    let ending = end.ended();
    assert!(!ending.orderly && ending.reason.is_some_and(|reason| !reason.from_peer), "{ending:?}");
    assert!(matches!(end.async_event(), AsyncEvent::QpRequestError { .. }));
    assert_eq!((end.received().status, end.qp.state()), (WcStatus::Flushed, QpState::Err));
    assert_eq!(peek(&end.mr, 0, 4), [0; 4], "nothing behind the error is placed");
    // Nothing is sent afterwards.
    end.post(2, SendOp::Send, &[end.sge(0, 4)], SendFlags::SIGNALED).unwrap();
    assert_eq!(end.sent().status, WcStatus::Flushed);
    drop(peer);
    end.nothing_more();
}

// [test:RFC5040-7.1-03] [test:RFC7306-8.1-02] [test:RFC5040-7.1-01]
#[test]
fn unbuildable_request_terminates_without_headers() {
    for op in [SendOp::Send, SendOp::Write { remote: Remote::default() }] {
        let end = End::new();
        let mut peer = initiator_opt(&end, &with_extensions());
        let sge = [uiw_verbs::Sge { lkey: STag(0x1234), ..end.sge(0, 4) }];
        end.post(1, op, &sge, SendFlags::SIGNALED).unwrap();
        let terminate = peer.expect_terminate(0, 0, 0);
        assert_eq!(
            (terminate.segment_len, terminate.ddp_header, terminate.read_request),
            (None, None, None)
        );
        assert_eq!(end.sent().status, WcStatus::LocalProtection);
        assert!(!end.ended().orderly);
    }
}

// [test:RFC5040-8.1.1-12a] [test:RFC5040-8.1.1-12b]
#[test]
fn completion_queue_overflow_spares_other_streams() {
    let device = crate::common::device();
    let pd = device.alloc_pd().unwrap();
    let small = End::make(&device, &pd, Make { cqe: 2, ..Make::default() });
    let other = End::make(&device, &pd, Make::default());
    let (mut peer, mut other_peer) = (responder(&small), responder(&other));
    for id in 0..8 {
        small.recv(id, id * 64, 64);
        other.recv(id, id * 64, 64);
    }
    for _ in 0..8 {
        peer.send(b"too many");
        other_peer.send(b"well");
    }
    peer.expect_terminate(0, 0, 0);
    for id in 0..8 {
        assert_eq!(other.received_ok(id).byte_len, 4);
    }
    other.send(1, 0, 4);
    assert_eq!(other_peer.expect_fpdu().payload(), b"well");
    assert_eq!((small.qp.state(), other.qp.state()), (QpState::Err, QpState::Rts));
}

// [test:RFC5041-6.2.1-01b]
#[test]
fn posts_after_close_refused() {
    let end = End::new();
    let mut peer = initiator(&end);
    end.send(1, 0, 4);
    end.qp.disconnect().unwrap();
    let late = end.post(2, SendOp::Send, &[end.sge(0, 4)], SendFlags::SIGNALED);
    assert_eq!(peer.expect_fpdu().payload().len(), 4);
    peer.expect_close();
    peer.fin();
    end.sent_ok(1);
    if late.is_ok() {
        let wc = end.sent();
        assert_eq!(wc.wr_id, 2);
        assert_ne!(wc.status, WcStatus::Success);
    }
}

// [test:RFC5041-3-10] [test:RFC5041-3-11] [test:RFC5041-6.2.1-04a]
#[test]
fn graceful_close_reported_and_answered() {
    let end = End::new();
    let mut peer = responder(&end);
    peer.fin();
    assert!(end.ended().orderly);
    // The stream ends with a FIN, not with a RST: `rest` reads up to the end without an error.
    assert!(peer.rest().is_empty());
    let mut byte = [0];
    assert_eq!(std::io::Read::read(&mut peer.stream, &mut byte).unwrap(), 0);
    let end = End::new();
    let mut peer = responder(&end);
    end.qp.disconnect().unwrap();
    peer.expect_close();
    peer.fin();
    assert!(end.ended().orderly);
}

/// Several streams perform atomics on the same word at once, and no operation is lost.
// [test:RFC7306-5-01] [test:RFC7306-5.3-01] [test:RFC7306-5.4-02]
#[test]
fn atomics_of_streams_are_atomic() {
    const STREAMS: u64 = 6;
    const EACH: u64 = 400;
    let server = Device::open().unwrap();
    let server_pd = server.alloc_pd().unwrap();
    let word = memory(&server_pd, 64, crate::common::ALL);
    let remote = Remote { addr: word.addr(), rkey: word.rkey() };
    let pairs: Vec<_> = (0..STREAMS)
        .map(|_| {
            let server = End::make(&server, &server_pd, Make::default());
            crate::common::pair_of(End::tcp(), server, &ConnConfig::default())
        })
        .collect();
    let seen: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = pairs
            .iter()
            .map(|(client, _)| {
                scope.spawn(move || {
                    let mut seen = Vec::new();
                    for id in 0..EACH {
                        client.op(id, SendOp::FetchAdd { remote, add: 1, mask: 0 }, 0, 8);
                        client.sent_ok(id);
                        seen.push(u64::from_ne_bytes(peek(&client.mr, 0, 8).try_into().unwrap()));
                    }
                    seen
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut all: Vec<u64> = seen.concat();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..STREAMS * EACH), "every value was seen once");
    assert_eq!(peek(&word, 0, 8), (STREAMS * EACH).to_ne_bytes());
}

// [test:RFC7306-5.1.1-02a] [test:RFC7306-5.1.1-02b] [test:RFC7306-5.1.1-03a] [test:RFC7306-5.1.2-03]
// [test:RFC7306-5.1.2-04] [test:RFC7306-5.1.2-05] [test:RFC7306-5.1.2-06] [test:RFC7306-8.2-06]
#[test]
fn unaligned_atomic_rejected() {
    for (swap, offset) in [(false, 1), (false, 4), (true, 1), (true, 4)] {
        let end = End::new();
        let mut peer = responder_opt(&end, &with_extensions());
        let (stag, to) = (end.mr.rkey(), end.mr.addr() + offset);
        let (op, mask) = if swap { (AtomicOp::CmpSwap, u64::MAX) } else { (AtomicOp::FetchAdd, 0) };
        let request = AtomicRequest { op, ..AtomicRequest::fetch_add(1, stag, to, u64::MAX, mask) };
        peer.fpdu(&untagged(Opcode::AtomicRequest, 1, 1, 0, true, 0, &request.emit()));
        peer.expect_terminate(0, 2, 7);
        assert!(end.ended().reason.is_some());
        assert!(matches!(end.async_event(), AsyncEvent::QpRequestError { .. }));
        assert_eq!(peek(&end.mr, 0, 16), [0; 16]);
    }
}

/// Covers cases that the negative vectors cannot express, because those are the first bytes of a
/// stream: Markers that are wrong or missing later in the stream.
// [test:RFC5044-8-04] [test:RFC5044-8-05] [test:RFC5044-8-12]
#[test]
fn wrong_markers_after_good_fpdu() {
    for missing in [false, true] {
        let end = End::new();
        end.recv(1, 0, 4000);
        let options = plain().markers(true);
        let mut peer = responder_opt(&end, &options);
        let ulpdu = untagged(Opcode::Send, 0, 1, 0, true, 0, &[5; 600]);
        let bytes = if missing {
            let mut sender = uiw_mpa::FpduTx::new(true, false);
            let mut bytes = [&[0, 0][..], &ulpdu].concat();
            sender.seal(&mut bytes, 0);
            bytes
        } else {
            let start = peer.tx.position() as usize;
            let mut bytes = peer.seal(&ulpdu);
            bytes[512 - start + 3] ^= 8;
            let covered = bytes.len() - 4;
            let crc = uiw_mpa::crc32c(&bytes[..covered]).to_le_bytes();
            bytes[covered..].copy_from_slice(&crc);
            bytes
        };
        peer.raw(&bytes);
        // Without its Marker the FPDU seems to be longer than it is, so the next bytes are
        // interpreted as its CRC.
        peer.raw(&[0; 16]);
        peer.expect_terminate(2, 0, if missing { 2 } else { 3 });
        assert_eq!(end.received().status, WcStatus::Flushed);
    }
}

/// Requests posted while the Reply is still on its way wait for the RTR message.
// [test:RFC6581-5-01]
#[test]
fn nothing_leaves_before_the_rtr_message() {
    let end = End::new();
    let answer = |asked: &Frame| with(reply(2), asked.enhanced.unwrap());
    let (mut peer, _) = initiator_with(&end, &plain().peer_to_peer(true), answer);
    for id in 0..3 {
        end.send(id, 0, 5);
    }
    let first = peer.next().unwrap();
    assert!(first.is_empty_write(), "{first:?}");
    for msn in 1..=3 {
        assert_eq!(peer.expect_fpdu().untagged().msn, msn);
    }
}

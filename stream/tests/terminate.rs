//! Tests the reaction to a peer that violates the protocol: which Terminate is sent, which receive
//! fails, and which request is named.

mod common;

use common::{MEMORY, Pair, at, config_with, pattern, send_header};
use std::time::Duration;
use uiw_ddp::{Header, STag};
use uiw_rdmap::{AtomicOp, AtomicRequest, Opcode, ReadRequest, TerminateReason as Reason};
use uiw_stream::{
    AffectedRequest, ConnError, FpduSize, LocalError, Op, RdmapConfig, RdmapStream, ReceiveError,
    Remote,
};

fn pair() -> Pair {
    Pair::open(RdmapConfig::default(), RdmapConfig::default())
}

fn tagged(opcode: Opcode, stag: STag, to: u64) -> Header {
    Header::Tagged(uiw_rdmap::tagged_header(opcode, stag, to, true))
}

fn untagged(opcode: Opcode, qn: u32, msn: u32, mo: u32) -> Header {
    Header::Untagged(uiw_rdmap::untagged_header(opcode, qn, msn, mo, true, 0))
}

/// Injects an invalid FPDU at the responder, and asserts that it reports `reason`.
#[track_caller]
fn refused(mut pair: Pair, header: &Header, payload: &[u8], reason: Reason) -> Pair {
    pair.inject(1, header, payload);
    assert!(matches!(pair.ends[1].error(), ConnError::Fault(_)), "{:?}", pair.ends[1].ended);
    assert_eq!((pair.ends[1].terminated(), pair.ends[0].terminated_by_peer()), (reason, reason));
    pair.assert_over();
    pair
}

#[test]
fn invalid_writes_terminated() {
    let write = |stag, to| tagged(Opcode::Write, stag, to);
    refused(pair(), &write(STag(5), 0), b"x", Reason::TaggedInvalidStag);
    refused(pair(), &write(MEMORY, (1 << 18) - 1), b"xy", Reason::TaggedBaseOrBounds);
    refused(pair(), &write(MEMORY, u64::MAX), b"xy", Reason::TaggedToWrap);
    let mut forbidden = pair();
    forbidden.ends[1].host.forbidden = 5..6;
    // RFC 5041 section 7.2 has no code for missing access rights.
    let over = refused(forbidden, &write(MEMORY, 0), &[1; 6], Reason::TaggedInvalidStag);
    assert_eq!(over.ends[1].host.memory[..6], [0; 6], "nothing of it is placed");
}

#[test]
fn invalid_sends_terminated() {
    let ready = || {
        let mut pair = pair();
        pair.receives(1, 2, 8);
        pair
    };
    let kept = refused(ready(), &send_header(2, 0, true), b"x", Reason::UntaggedMsnRange);
    assert_eq!(kept.ends[1].host.receives.len(), 2, "no receive is taken for what may not be here");
    refused(ready(), &send_header(1, 4, true), b"x", Reason::UntaggedMo);
    let mut late = ready();
    late.inject(1, &send_header(1, 0, true), b"first");
    refused(late, &send_header(1, 0, true), b"again", Reason::UntaggedMsnRange);
    let over = refused(ready(), &send_header(1, 0, true), &[0; 9], Reason::UntaggedTooLong);
    assert_eq!(over.ends[1].host.failed_receives, [ReceiveError::TooLong { message: 9 }]);
    assert_eq!((over.ends[1].host.received.len(), over.ends[1].host.receives.len()), (0, 1));
    refused(pair(), &untagged(Opcode::Send, 1, 1, 0), b"x", Reason::UnexpectedOpcode);
    let queue = Header::Untagged(uiw_ddp::Untagged { qn: 7, ..send_of(&send_header(1, 0, true)) });
    refused(pair(), &queue, b"x", Reason::UntaggedInvalidQn);
}

fn send_of(header: &Header) -> uiw_ddp::Untagged {
    match header {
        Header::Untagged(untagged) => *untagged,
        Header::Tagged(_) => panic!("a tagged header"),
    }
}

#[test]
fn wrong_crc_or_marker_terminated() {
    let mut wrong = pair();
    wrong.ends[1]
        .incoming
        .extend([0, 14, 0xC1, 0x40, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
    wrong.run();
    assert_eq!(
        (wrong.ends[1].terminated(), wrong.ends[0].terminated_by_peer()),
        (Reason::LlpCrc, Reason::LlpCrc)
    );
    wrong.assert_over();
    // With CRCs, a wrong Marker would be reported as a wrong CRC.
    let config =
        config_with(|config| (config.startup.want_markers, config.startup.crc) = (true, false));
    let mut marked = Pair::open(config.clone(), config);
    // The Marker before the next 512 bytes points to a position where no FPDU begins.
    marked.ends[0].post(Op::Write { remote: at(0) }, &[0; 3000]);
    marked.receive_cuts = Box::new(|| 0);
    marked.run();
    let position = marked.ends[0].sent.len() - marked.ends[1].incoming.len();
    let frames = 20 + b"request".len() + 4;
    assert!(position > frames, "Full Operation has begun");
    let marker = (position - frames).div_ceil(512) * 512 + frames - position;
    marked.ends[1].incoming[marker + 3] ^= 0x04;
    marked.receive_cuts = Box::new(|| usize::MAX);
    marked.run();
    let reasons = (marked.ends[1].terminated(), marked.ends[0].terminated_by_peer());
    assert_eq!(reasons, (Reason::LlpMarker, Reason::LlpMarker));
}

#[test]
fn versions_and_opcodes() {
    let mut ulpdu = vec![0; 18];
    send_header(1, 0, true).emit(&mut ulpdu);
    for (byte, bits, reason) in [
        (0, 0x02, Reason::UntaggedVersion),
        (1, 0xC0, Reason::RdmapVersion),
        (1, 0x0F, Reason::UnexpectedOpcode),
    ] {
        let mut pair = pair();
        pair.receives(1, 1, 8);
        let mut wrong = ulpdu.clone();
        wrong[byte] ^= bits;
        pair.inject_ulpdu(1, &wrong);
        assert_eq!(
            (pair.ends[1].terminated(), pair.ends[0].terminated_by_peer()),
            (reason, reason),
            "{byte}"
        );
    }
}

#[test]
fn reads_and_atomics_of_wrong_memory() {
    let read = |source_stag, source_to, len| {
        ReadRequest { sink_stag: STag(1), sink_to: 0, len, source_stag, source_to }.emit()
    };
    let header = untagged(Opcode::ReadRequest, uiw_rdmap::QN_READ, 1, 0);
    refused(pair(), &header, &read(STag(5), 0, 1), Reason::ProtectionInvalidStag);
    refused(pair(), &header, &read(MEMORY, 1 << 18, 1), Reason::ProtectionBaseOrBounds);
    refused(pair(), &header, &read(MEMORY, u64::MAX - 1, 9), Reason::ProtectionToWrap);
    refused(pair(), &header, &read(MEMORY, 0, 1)[..20], Reason::OperationUnspecified);
    let atomic = |stag, to| {
        let op = AtomicOp::FetchAdd;
        let (data, mask, compare, compare_mask) = (1, 0, 0, u64::MAX);
        AtomicRequest { op, request_id: 1, stag, to, data, mask, compare, compare_mask }.emit()
    };
    let header = untagged(Opcode::AtomicRequest, uiw_rdmap::QN_READ, 1, 0);
    refused(pair(), &header, &atomic(STag(5), 0), Reason::ProtectionInvalidStag);
    refused(pair(), &header, &atomic(MEMORY, 4), Reason::StreamCatastrophic);
    refused(pair(), &header, &atomic(MEMORY, 0)[..40], Reason::OperationUnspecified);
    let mut unknown = atomic(MEMORY, 0);
    unknown[3] = 1;
    refused(pair(), &header, &unknown, Reason::UnexpectedOpcode);
}

/// The peer executes requests in order, so those before the one that it refuses are answered.
#[test]
fn requests_before_refused_one_answered() {
    let wrong = Remote { stag: STag(5), to: 0 };
    let add = |remote| Op::FetchAdd { remote, add: 1, mask: 0 };
    for refused in [Op::Read { remote: wrong, invalidate: None }, add(wrong)] {
        for valid in [Op::Read { remote: at(0), invalidate: None }, add(at(0))] {
            let mut pair = pair();
            let first = pair.ends[0].post(valid, &[0; 8]);
            let second = pair.ends[0].post(refused, &[0; 8]);
            pair.run();
            assert_eq!(pair.ends[0].terminated_by_peer(), Reason::ProtectionInvalidStag);
            let completions = [first, second].map(|id| pair.ends[0].host.get(id).completions);
            assert_eq!(completions, [1, 0], "{valid:?}, then {refused:?}");
        }
    }
}

/// An end that always has requests to send refuses an atomic soon.
#[test]
fn atomic_refused_before_all_requests_are_sent() {
    const WRITES: usize = 20_000;
    let mut pair = pair();
    let write = Op::Write { remote: at(0) };
    let ids: Vec<_> = (0..WRITES).map(|_| pair.ends[1].post(write, &[0; 64])).collect();
    let wrong = Remote { stag: STag(5), to: 0 };
    pair.ends[0].post(Op::FetchAdd { remote: wrong, add: 1, mask: 0 }, &[0; 8]);
    pair.run();
    assert_eq!(pair.ends[0].terminated_by_peer(), Reason::ProtectionInvalidStag);
    assert_eq!(pair.ends[1].host.get(ids[WRITES - 1]).completions, 0);
}

/// The whole range of a Read is checked before any of it is sent (RFC 5040 section 7.2).
#[test]
fn read_beyond_rights_refused() {
    let mut pair = pair();
    let sent = pair.ends[1].sent.len();
    // The byte is not in the first batch of the response.
    pair.ends[1].host.forbidden = 260_000..260_001;
    let id = pair.ends[0].post(Op::Read { remote: at(0), invalidate: None }, &vec![0; 1 << 18]);
    pair.run();
    assert_eq!(pair.ends[0].terminated_by_peer(), Reason::ProtectionAccessRights);
    assert_eq!(pair.ends[0].host.get(id).completions, 0);
    assert_eq!(pair.ends[1].sent.len() - sent, 2 + 18 + uiw_rdmap::Terminate::MAX_LEN + 4);
}

/// If the memory is lost while a Read is answered, the Terminate quotes the Read Request with the
/// location that the response has reached (RFC 5040 section 4.8).
#[test]
fn interrupted_read_quoted_from_location() {
    let len = 1 << 18;
    let config = config_with(|config| config.fpdu = FpduSize::Segment);
    let mut pair = Pair::open(config.clone(), config);
    pair.ends[1].host.memory = pattern(len as usize, 1);
    pair.ends[0].post(Op::Read { remote: at(0), invalidate: None }, &vec![0; len as usize]);
    let (request, _) = pair.transmit(0);
    let sink_to = u64::from_be_bytes(request[2 + 18 + 4..][..8].try_into().unwrap());
    pair.ends[1].incoming.extend(request);
    pair.receive(1, usize::MAX);
    let (first, _) = pair.transmit(1);
    // This byte is not in the first segment of the next batch.
    let lost = first.len() + 10_000;
    pair.ends[1].host.forbidden = lost..lost + 1;
    pair.ends[0].incoming.extend(first);
    pair.run();
    let received = &pair.ends[0].host.requests[0].bytes;
    let sent = received.iter().zip(pattern(len as usize, 1)).take_while(|(a, b)| **a == *b).count();
    assert!(sent > lost - 1460 && sent <= lost, "{sent}");
    let terminate =
        pair.ends[1].ended.as_ref().and_then(|ended| ended.terminate).expect("a Terminate");
    assert_eq!(terminate.reason(), Reason::ProtectionAccessRights);
    let request = terminate.read_request.expect("the Read Request");
    let (left, sent) = (len - sent as u32, sent as u64);
    assert_eq!((request.sink_to, request.len, request.source_to), (sink_to + sent, left, sent));
    pair.assert_over();
}

#[test]
fn unsolicited_answers_are_refused() {
    let response = |stag| tagged(Opcode::ReadResponse, stag, 0);
    let sink = pair().ends[1].stream.sink();
    refused(pair(), &response(sink), b"x", Reason::TaggedInvalidStag);
    let atomic = untagged(Opcode::AtomicResponse, uiw_rdmap::QN_ATOMIC_RESPONSE, 1, 0);
    let answer = uiw_rdmap::AtomicResponse { request_id: 1, original: 5 }.emit();
    refused(pair(), &atomic, &answer, Reason::UnexpectedOpcode);
    // The answer to an outstanding Read names another sink or contains a wrong number of bytes.
    for (stag, len, reason) in [
        (STag(1), 4, Reason::TaggedInvalidStag),
        (sink, 5, Reason::TaggedBaseOrBounds),
        (sink, 3, Reason::TaggedBaseOrBounds),
    ] {
        let mut pair = pair();
        // The request is not delivered to the peer.
        pair.ends[1].post(Op::Read { remote: at(0), invalidate: None }, &[0; 4]);
        let (request, _) = pair.transmit(1);
        let sink_to = u64::from_be_bytes(request[2 + 18 + 4..][..8].try_into().unwrap());
        pair.inject(1, &tagged(Opcode::ReadResponse, stag, sink_to), &vec![9; len]);
        assert_eq!(pair.ends[1].terminated(), reason, "{stag:?} {len}");
        assert_eq!(pair.ends[1].host.requests[0].completions, 0);
    }
}

#[test]
fn reads_beyond_ird_refused() {
    let initiator = config_with(|config| config.startup.ord = 2);
    let responder = config_with(|config| config.startup.ird = 2);
    let request =
        ReadRequest { sink_stag: STag(1), sink_to: 0, len: 1, source_stag: MEMORY, source_to: 0 }
            .emit();
    for count in [2, 3] {
        let mut pair = Pair::open(initiator.clone(), responder.clone());
        pair.send_cuts = Box::new(|| 0);
        pair.ends[1].incoming.clear();
        let mut fpdus = Vec::new();
        for msn in 1..=count {
            fpdus
                .extend(fpdu(&untagged(Opcode::ReadRequest, uiw_rdmap::QN_READ, msn, 0), &request));
        }
        // All requests arrive at once, before an answer is built.
        pair.call(1, |stream, host, now| stream.handle_bytes(host, &mut fpdus, now));
        if count == 2 {
            assert!(pair.ends[1].ended.is_none());
        } else {
            assert_eq!(pair.ends[1].terminated(), Reason::UntaggedNoBuffer);
        }
    }
}

/// A Read counts against the IRD until the last segment of its answer has been built (RFC 5040
/// section 6.1).
#[test]
fn partly_answered_read_counts_against_ird() {
    // The answer is longer than one batch.
    let request = ReadRequest {
        sink_stag: STag(1),
        sink_to: 0,
        len: 1 << 18,
        source_stag: MEMORY,
        source_to: 0,
    };
    let fpdu =
        |msn| fpdu(&untagged(Opcode::ReadRequest, uiw_rdmap::QN_READ, msn, 0), &request.emit());
    for built in [false, true] {
        let mut pair =
            Pair::open(RdmapConfig::default(), config_with(|config| config.startup.ird = 1));
        pair.call(1, |stream, host, now| stream.handle_bytes(host, &mut fpdu(1), now));
        let mut sent = 0;
        while sent < if built { 1 << 18 } else { 1 } {
            sent += pair.transmit(1).0.len();
        }
        pair.call(1, |stream, host, now| stream.handle_bytes(host, &mut fpdu(2), now));
        if built {
            assert!(pair.ends[1].ended.is_none(), "{:?}", pair.ends[1].ended);
        } else {
            assert_eq!(pair.ends[1].terminated(), Reason::UntaggedNoBuffer);
        }
    }
}

#[test]
fn own_ord_respected() {
    let config = config_with(|config| config.startup.ord = 2);
    let mut pair = Pair::open(config, RdmapConfig::default());
    for _ in 0..9 {
        pair.ends[0].post(Op::Read { remote: at(0), invalidate: None }, &[0; 8]);
    }
    let sent = pair.ends[0].sent.len();
    pair.receive_cuts = Box::new(|| 0);
    pair.run();
    assert_eq!(pair.ends[0].host.built, 2);
    assert_eq!(
        pair.ends[0].sent.len() - sent,
        2 * (2 + 18 + 28 + 4),
        "two Read Requests, and no more"
    );
    pair.receive_cuts = Box::new(|| usize::MAX);
    pair.run();
    pair.ends[0].host.assert_all_completed();
}

/// A Terminate quotes an RDMAP header only if it is that of a Read Request (RFC 5040 section 4.8).
#[test]
fn only_read_requests_quoted() {
    let quoted = |pair: &Pair| {
        let terminate =
            pair.ends[1].ended.as_ref().and_then(|ended| ended.terminate).expect("a Terminate");
        assert!(terminate.ddp_header.is_some());
        terminate.read_request
    };
    let mut sent = pair();
    sent.receives(1, 1, 64);
    sent.ends[0].post(Op::SendInvalidate { stag: STag(9) }, &[1; 64]);
    sent.run();
    assert_eq!(quoted(&sent), None);
    let mut atomic = pair();
    atomic.ends[0].post(Op::FetchAdd { remote: at(1 << 40), add: 1, mask: 0 }, &[0; 8]);
    atomic.run();
    assert_eq!(quoted(&atomic), None);
    let mut read = pair();
    read.ends[0].post(Op::Read { remote: at(1 << 40), invalidate: None }, &[0; 8]);
    read.run();
    assert_eq!(quoted(&read).map(|request| (request.source_to, request.len)), Some((1 << 40, 8)));
}

#[test]
fn protected_stag_not_invalidated() {
    let mut pair = pair();
    pair.receives(1, 1, 8);
    pair.ends[0].post(Op::SendInvalidate { stag: STag(9) }, b"x");
    pair.run();
    assert_eq!(pair.ends[0].terminated_by_peer(), Reason::ProtectionCannotInvalidate);
    assert!(pair.ends[1].host.received.is_empty());
    pair.assert_over();
}

#[test]
fn lost_receive_memory_blamed_locally() {
    let mut pair = pair();
    pair.receives(1, 1, 8);
    pair.ends[1].host.no_local_memory = true;
    pair.ends[0].post(Op::Send, b"x");
    pair.run();
    assert_eq!(pair.ends[1].host.failed_receives, [ReceiveError::Protection]);
    let error = ConnError::Local { request: None, error: LocalError::Protection };
    assert_eq!(*pair.ends[1].error(), error);
    assert_eq!(pair.ends[0].terminated_by_peer(), Reason::LocalCatastrophic);
}

#[test]
fn request_with_lost_memory_named() {
    for len in [5, 20_000, 100_000] {
        let mut pair = pair();
        pair.ends[0].post(Op::Write { remote: at(0) }, b"whole");
        pair.run();
        pair.ends[0].host.no_local_memory = true;
        let id = pair.ends[0].post(Op::Write { remote: at(8) }, &pattern(len, 1));
        pair.run();
        let ended = pair.ends[0].ended.as_ref().expect("ended");
        assert_eq!(ended.named, AffectedRequest::Request(id));
        assert_eq!(ended.error.to_string(), "local memory protection error");
        assert_eq!(pair.ends[1].terminated_by_peer(), Reason::LocalCatastrophic);
        pair.assert_over();
    }
}

#[test]
fn terminated_request_named() {
    let cases: [(Op, Option<AffectedRequest>); 4] = [
        (
            Op::Write { remote: at(1 << 40) },
            Some(AffectedRequest::Write { stag: MEMORY, to: 1 << 40 }),
        ),
        (Op::SendInvalidate { stag: STag(9) }, Some(AffectedRequest::Send { msn: 3 })),
        (Op::Read { remote: at(1 << 40), invalidate: None }, None),
        (Op::FetchAdd { remote: at(1 << 40), add: 1, mask: 0 }, None),
    ];
    for (op, named) in cases {
        let mut pair = pair();
        pair.receives(1, 4, 64);
        for _ in 0..2 {
            pair.ends[0].post(Op::Send, b"fine");
            pair.ends[0].post(Op::Read { remote: at(0), invalidate: None }, &[0; 8]);
        }
        let id = pair.ends[0].post(op, &[0; 8]);
        pair.run();
        let ended = pair.ends[0].ended.as_ref().expect("ended");
        assert_eq!(ended.named, named.unwrap_or(AffectedRequest::Request(id)), "{op:?}");
        pair.assert_over();
    }
}

#[test]
fn send_waits_for_receive() {
    let mut pair = pair();
    pair.ends[0].post(Op::Send, b"early");
    pair.ends[0].post(Op::Write { remote: at(0) }, b"behind");
    pair.run();
    assert!(pair.ends[1].stream.is_stalled() && !pair.ends[1].stream.accepts_bytes());
    assert_eq!(pair.ends[1].stream.parked_len(), 18 + 5);
    assert_eq!(pair.ends[1].host.memory[..6], [0; 6], "nothing behind it is placed");
    // The stalled end continues to send.
    pair.ends[1].post(Op::Write { remote: at(0) }, b"on");
    pair.run();
    assert_eq!(&pair.ends[0].host.memory[..2], b"on");
    assert!(!pair.call(1, RdmapStream::receive_posted), "none was posted");
    pair.advance(Duration::from_millis(999));
    pair.receives(1, 1, 64);
    assert_eq!(pair.ends[1].host.received[0].1, b"early");
    assert_eq!(pair.ends[1].stream.parked_len(), 0);
    pair.run();
    assert_eq!(&pair.ends[1].host.memory[..6], b"behind");
    assert_eq!(pair.ends[1].stream.poll_timeout(), uiw_stream::Time::NEVER);
}

#[test]
fn send_without_receive_times_out() {
    for wait in [0u64, 50, 1000] {
        let config = config_with(|config| config.no_receive_timeout = Duration::from_millis(wait));
        let mut pair = Pair::open(RdmapConfig::default(), config);
        pair.ends[0].post(Op::Send, b"early");
        pair.run();
        if wait > 0 {
            pair.advance(Duration::from_millis(wait - 1));
            assert!(pair.ends[1].ended.is_none());
            pair.advance(Duration::from_millis(1));
        }
        assert_eq!(pair.ends[0].terminated_by_peer(), Reason::UntaggedNoBuffer);
        assert_eq!(pair.ends[1].stream.parked_len(), 0);
        pair.assert_over();
    }
    // The host may change the timeout while a Send waits.
    let mut pair = pair();
    pair.ends[0].post(Op::Send, b"early");
    pair.run();
    pair.call(1, |stream, _, now| stream.set_no_receive_timeout(Duration::MAX, now));
    pair.advance(Duration::from_secs(100_000));
    assert!(pair.ends[1].ended.is_none());
    pair.receives(1, 1, 64);
    assert_eq!(pair.ends[1].host.received.len(), 1);
}

#[test]
fn short_receive_fails_waiting_send() {
    let mut pair = pair();
    pair.ends[0].post(Op::Send, b"early");
    pair.run();
    pair.receives(1, 1, 4);
    pair.run();
    assert_eq!(pair.ends[1].host.failed_receives, [ReceiveError::TooLong { message: 5 }]);
    assert_eq!(pair.ends[0].terminated_by_peer(), Reason::UntaggedTooLong);
}

#[test]
fn nothing_is_taken_behind_a_terminate() {
    // The late FPDU arrives together with the invalid one, before the Terminate is sent, or while
    // this end waits for the peer's FIN.
    for when in 0..3 {
        let mut pair = pair();
        pair.receives(1, 1, 64);
        let mut bad = fpdu(&tagged(Opcode::Write, STag(5), 0), b"x");
        let mut late = fpdu(&send_header(1, 0, true), b"late");
        if when == 0 {
            bad.extend_from_slice(&late);
        }
        let take = |pair: &mut Pair, bytes: &mut [u8]| {
            pair.call(1, |stream, host, now| stream.handle_bytes(host, bytes, now))
        };
        assert_eq!(take(&mut pair, &mut bad), bad.len());
        if when == 2 {
            assert!(!pair.transmit(1).0.is_empty(), "the Terminate");
            assert!(pair.transmit(1).1, "FIN");
        }
        if when > 0 {
            assert_eq!(take(&mut pair, &mut late), late.len());
        }
        assert!(pair.ends[1].host.received.is_empty() && pair.ends[1].host.receives.len() == 1);
        assert_eq!(pair.transmit(1).0.is_empty(), when == 2);
        assert!(pair.transmit(1).0.is_empty(), "one Terminate, and nothing behind it");
    }
}

/// Returns an FPDU with a correct CRC.
fn fpdu(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut fpdu = vec![0; 2 + header.len()];
    header.emit(&mut fpdu[2..]);
    fpdu.extend_from_slice(payload);
    uiw_mpa::tx::FpduTx::new(true, false).seal(&mut fpdu, 0);
    fpdu
}

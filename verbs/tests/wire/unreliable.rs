//! Tests unreliable connections: the announcements of messages on the wire, and the messages that
//! are discarded without a Terminate.

use crate::common::{End, fill, initiator_opt, pair_of, pattern, peek, plain, responder_opt};
use crate::peer::{tagged, untagged};
use std::time::Duration;
use uiw_ddp::STag;
use uiw_rdmap::{AtomicRequest, Opcode};
use uiw_verbs::{
    CapabilityExchange, ConnConfig, Error, QpInit, QpState, SendFlags, SendOp, WcOpcode, WcStatus,
};

/// STag of the zero-length Write that precedes a long Write or a Write with immediate data.
const ANNOUNCEMENT: u32 = 0x7569_7734;
const IMMEDIATE: u64 = 1 << 48;

fn unreliable() -> End {
    let mut end = End::new();
    end.qp = end.pd.create_qp(QpInit::new(&end.scq, &end.rcq).unreliable()).unwrap();
    end
}

fn options() -> ConnConfig {
    let exchange = CapabilityExchange::On;
    plain().no_receive_timeout(Duration::from_millis(50)).outlives_peer(true).capabilities(exchange)
}

/// Checks that the next message arrives in the next receive.
fn only_next_arrives(a: &End, b: &End, text: &[u8]) {
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
    b.recv(77, 0, 64);
    fill(&a.mr, 0, text);
    a.send(77, 0, text.len() as u32);
    a.sent_ok(77);
    assert_eq!(b.received_ok(77).byte_len as usize, text.len());
    assert_eq!(peek(&b.mr, 0, text.len()), text);
    a.nothing_more();
    b.nothing_more();
}

#[test]
fn send_without_receive_discarded() {
    let (a, b) = pair_of(unreliable(), unreliable(), &options());
    for wr_id in 0..20 {
        a.send(wr_id, 0, 60_000);
        a.sent_ok(wr_id);
    }
    a.nothing_more();
    crate::transport::pass(&b.device, Duration::from_millis(60));
    only_next_arrives(&a, &b, b"first to arrive");
}

/// A program may post a receive late, because it posts it after a poll.
#[test]
fn receive_posted_in_time_takes_send() {
    let (a, b) = pair_of(unreliable(), unreliable(), &options());
    fill(&a.mr, 0, b"early");
    a.send(1, 0, 5);
    a.sent_ok(1);
    crate::transport::pass(&b.device, Duration::from_millis(20));
    b.recv(2, 0, 64);
    b.received_ok(2);
    assert_eq!(peek(&b.mr, 0, 5), b"early");
}

#[test]
fn too_long_send_leaves_receive() {
    let (a, b) = pair_of(unreliable(), unreliable(), &options());
    b.recv(1, 0, 64);
    a.send(2, 0, 60_000);
    a.send(3, 0, 65);
    a.send(4, 0, 64);
    (2..=4).for_each(|wr_id| assert_eq!(a.sent_ok(wr_id).wr_id, wr_id));
    assert_eq!(b.received_ok(1).byte_len, 64);
    only_next_arrives(&a, &b, b"next");
}

#[test]
fn write_beyond_region_discarded_as_whole() {
    let (a, b) = pair_of(unreliable(), unreliable(), &options());
    fill(&a.mr, 0, &pattern(64 << 10));
    for (wr_id, offset, len) in [(1, 1, 64 << 10), (2, 40_000, 40_000), (3, (64 << 10) - 4, 8)] {
        a.op(wr_id, SendOp::Write { remote: b.remote(offset) }, 0, len);
        a.sent_ok(wr_id);
        a.op(wr_id, SendOp::WriteImm { remote: b.remote(offset), imm: 5 }, 0, len);
        a.sent_ok(wr_id);
    }
    b.nothing_more();
    assert!(peek(&b.mr, 0, 64 << 10).iter().all(|byte| *byte == 0));
    only_next_arrives(&a, &b, b"next");
}

#[test]
fn write_with_immediate_needs_receive() {
    let (a, b) = pair_of(unreliable(), unreliable(), &options());
    fill(&a.mr, 0, &pattern(50_000));
    for len in [8, 50_000] {
        a.op(1, SendOp::WriteImm { remote: b.remote(100), imm: 5 }, 0, len);
        a.sent_ok(1);
        crate::transport::pass(&b.device, Duration::from_millis(60));
        assert!(peek(&b.mr, 100, len as usize).iter().all(|byte| *byte == 0));
    }
    b.recv(2, 60_000, 8);
    a.op(3, SendOp::WriteImm { remote: b.remote(100), imm: 6 }, 0, 50_000);
    a.sent_ok(3);
    let wc = b.received_ok(2);
    assert_eq!((wc.opcode, wc.imm, wc.byte_len), (WcOpcode::RecvWriteImm, Some(6), 50_000));
    assert_eq!(peek(&b.mr, 100, 50_000), pattern(50_000));
}

#[test]
fn only_long_writes_and_immediates_announced() {
    let end = unreliable();
    let options =
        ConnConfig::default().acknowledged(false).capabilities(CapabilityExchange::Assume);
    let mut peer = initiator_opt(&end, &options.peer_to_peer(false));
    let write =
        |wr_id, op, len| end.post(wr_id, op, &[end.sge(0, len)], SendFlags::SIGNALED).unwrap();
    let remote = end.remote(0);
    write(1, SendOp::Write { remote }, 100);
    write(2, SendOp::Write { remote }, 60_000);
    write(3, SendOp::WriteImm { remote, imm: 9 }, 100);
    write(4, SendOp::WriteImm { remote, imm: 9 }, 0);
    write(5, SendOp::Send, 100);
    let mut announced = Vec::new();
    let mut messages = Vec::new();
    while messages.last() != Some(&(Opcode::Send, 100)) {
        let segment = peer.next().unwrap();
        if segment.is_empty_write() && segment.tagged().stag.0 == ANNOUNCEMENT {
            announced.push((messages.len(), segment.tagged().to));
        } else {
            messages.push((segment.opcode(), segment.payload().len()));
        }
    }
    let first = messages.iter().position(|message| message.1 == 100).unwrap();
    assert_eq!(announced[0], (first + 1, 60_000));
    assert_eq!(announced[1].1, IMMEDIATE | 100);
    assert_eq!(announced.len(), 2, "{announced:?} {messages:?}");
}

/// A peer cannot do harm by sending without an announcement or with a wrong one.
#[test]
fn wrong_announcement_affects_sender_only() {
    let end = unreliable();
    let mut peer = responder_opt(&end, &options().capabilities(CapabilityExchange::Assume));
    let (stag, to) = (end.mr.rkey().0, end.mr.addr());
    peer.write(stag ^ 0x100, to, b"lost");
    peer.write(stag, to - 1, b"lost");
    peer.write(ANNOUNCEMENT, 1 << 20, b"");
    peer.write(stag, to, b"lost");
    peer.write(ANNOUNCEMENT, IMMEDIATE | 4, b"");
    peer.write(stag ^ 0x100, to, b"lost");
    let mut msn = 0;
    let mut immediate = |peer: &mut crate::peer::Peer| {
        msn += 1;
        peer.fpdu(&untagged(Opcode::Immediate, 0, msn, 0, true, 0, &[0, 0, 0, 7, 0, 0, 0, 0]));
    };
    end.recv(1, 100, 8);
    immediate(&mut peer);
    end.nothing_more();
    assert_eq!(peek(&end.mr, 0, 8), [0; 8]);
    // An announcement applies only to the next Write.
    peer.fpdu(&tagged(Opcode::Write, stag, to, false, b"plac"));
    peer.fpdu(&tagged(Opcode::Write, stag, to + 4, true, b"ed"));
    immediate(&mut peer);
    assert_eq!(end.received_ok(1).imm, Some(7));
    assert_eq!(peek(&end.mr, 0, 6), b"placed");
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn reads_and_atomics_refused() {
    let (a, b) = pair_of(unreliable(), unreliable(), &options());
    let remote = b.remote(0);
    for op in [
        SendOp::Read { remote, invalidate: None },
        SendOp::FetchAdd { remote, add: 1, mask: 0 },
        SendOp::SendInvalidate { stag: b.mr.rkey() },
    ] {
        let refused = a.post(1, op, &[a.sge(0, 8)], SendFlags::SIGNALED).unwrap_err();
        assert!(matches!(refused.error, Error::Unsupported { .. }), "{op:?}: {refused:?}");
    }
    only_next_arrives(&a, &b, b"next");
}

/// A peer that is not uiw may send these requests nevertheless.
#[test]
fn inbound_reads_atomics_and_invalidates_refused() {
    let requests: [fn(&mut crate::peer::Peer, &End); 3] = [
        |peer, end| peer.read(end.mr.rkey().0, end.mr.addr(), 8),
        |peer, end| {
            let (stag, to) = (end.mr.rkey().0, end.mr.addr());
            let atomic = AtomicRequest::fetch_add(1, STag(stag), to, 1, 0);
            peer.fpdu(&untagged(Opcode::AtomicRequest, 1, 1, 0, true, 0, &atomic.emit()));
        },
        |peer, end| {
            peer.fpdu(&untagged(Opcode::SendInvalidate, 0, 1, 0, true, end.mr.rkey().0, b"x"));
        },
    ];
    for (request, code) in requests.into_iter().zip([(2, 6), (2, 6), (1, 9)]) {
        let end = unreliable();
        fill(&end.mr, 0, b"unchanged");
        end.recv(1, 100, 8);
        let mut peer = responder_opt(&end, &options());
        request(&mut peer, &end);
        peer.expect_terminate(0, code.0, code.1);
        end.ended();
        assert_eq!(end.qp.state(), QpState::Rts);
        assert_eq!(peek(&end.mr, 0, 9), b"unchanged");
    }
}

/// A program may write to a region that its peer has just deregistered. A sender of many different
/// STags, however, is guessing them.
#[test]
fn guessed_stags_end_connection() {
    let end = unreliable();
    let mut peer = responder_opt(&end, &options().capabilities(CapabilityExchange::Assume));
    let (stag, to) = (end.mr.rkey().0, end.mr.addr());
    for number in 0..1000 {
        peer.write(stag ^ (1 + number % 64) << 8, to, b"lost");
    }
    peer.write(stag, to, b"placed");
    crate::transport::pass(&end.device, Duration::from_millis(20));
    assert_eq!(peek(&end.mr, 0, 6), b"placed");
    for announced in [false, true] {
        if announced {
            peer.write(ANNOUNCEMENT, 4, b"");
        }
        peer.write(stag ^ 64 << 8, to, b"lost");
    }
    peer.write(ANNOUNCEMENT, 4, b"");
    peer.write(stag ^ 65 << 8, to, b"lost");
    peer.expect_terminate(1, 1, 0);
    end.ended();
    assert_eq!(end.qp.state(), QpState::Rts);
}

/// The peer resets the connection in the middle of a message. The queue pair stays in RTS, and its
/// receive waits for another message.
#[test]
fn lost_connection_leaves_queue_pair() {
    let end = unreliable();
    let mut peer = responder_opt(&end, &options());
    end.recv(1, 0, 64);
    peer.fpdu(&untagged(Opcode::Send, 0, 1, 0, false, 0, b"half of it"));
    peer.reset();
    end.ended();
    assert_eq!(end.qp.state(), QpState::Rts);
    end.send(2, 0, 8);
    assert!(end.qp.discard_requests());
    end.sent_ok(2);
    let b = unreliable();
    let listener = b.listen(&options());
    end.connect(listener.local_addr(), &options());
    b.accept(b.request());
    end.established();
    b.established();
    fill(&b.mr, 0, b"whole");
    b.send(3, 0, 5);
    b.sent_ok(3);
    assert_eq!(end.received_ok(1).byte_len, 5);
    assert!(!end.qp.discard_requests(), "it is connected");
}

#[test]
fn own_error_ends_queue_pair() {
    let (a, b) = pair_of(unreliable(), unreliable(), &options());
    let wrong = uiw_verbs::Sge { lkey: STag(0x55), ..a.sge(0, 8) };
    a.post(1, SendOp::Send, &[wrong], SendFlags::SIGNALED).unwrap();
    assert_eq!(a.sent().status, WcStatus::LocalProtection);
    assert_eq!(a.qp.state(), QpState::Err);
    b.ended();
    assert_eq!(b.qp.state(), QpState::Rts);
}

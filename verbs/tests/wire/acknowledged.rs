//! Tests acknowledged completion: success means that the peer has placed the data, and an error is
//! reported for the request that caused it.

use crate::common::{End, Make, initiator_opt, pair_of, plain};
use crate::simulation::{now, run_until_idle, wait_idle};
use std::time::Duration;
use uiw_rdmap::Opcode;
use uiw_verbs::{AsyncEvent, ConnConfig, QpState, Remote, STag, SendFlags, SendOp, WcStatus};

fn options() -> ConnConfig {
    ConnConfig::default().acknowledged(true)
}

fn ends() -> (End, End) {
    pair_of(End::new(), End::new(), &options())
}

#[test]
fn write_completes_with_answer_of_read() {
    let end = End::new();
    let scripted = plain().acknowledged(true);
    let mut peer = initiator_opt(&end, &scripted);
    end.send(1, 0, 8);
    assert_eq!(peer.expect_fpdu().opcode(), Opcode::Send);
    let asked = peer.expect_fpdu().read_request();
    assert_eq!(asked.len, 0);
    end.nothing_more();
    peer.answer(&asked, b"");
    end.sent_ok(1);
}

#[test]
fn send_completes_once_received() {
    let (a, b) = ends();
    a.send(1, 0, 8);
    a.nothing_more();
    b.recv(2, 0, 8);
    a.sent_ok(1);
    b.received_ok(2);
}

#[test]
fn bad_write_fails_alone() {
    let (a, b) = ends();
    let write =
        |rkey: u32| SendOp::Write { remote: Remote { addr: b.mr.addr(), rkey: STag(rkey) } };
    let good = b.mr.rkey().0;
    for (id, rkey) in [(1, good), (2, good), (3, good ^ 0x5500), (4, good)] {
        // The failure is reported whether or not the request is signaled.
        let flags = if id == 3 { SendFlags::empty() } else { SendFlags::SIGNALED };
        a.post(id, write(rkey), &[a.sge(0, 16)], flags).unwrap();
    }
    let statuses: Vec<_> = (0..4).map(|_| a.sent()).map(|wc| (wc.wr_id, wc.status)).collect();
    let expected =
        [WcStatus::Success, WcStatus::Success, WcStatus::RemoteAccess, WcStatus::Flushed];
    assert_eq!(statuses, (1..5).zip(expected).collect::<Vec<_>>());
}

#[test]
fn send_without_receive_fails() {
    let (a, b) = ends();
    let timeout = Duration::from_millis(20);
    b.qp.set_no_receive_timeout(timeout).unwrap();
    let start = now();
    for id in 1..4 {
        a.send(id, 0, 8);
    }
    b.recv(9, 0, 8);
    let statuses: Vec<_> = (0..3).map(|_| a.sent().status).collect();
    assert_eq!(now() - start, timeout);
    assert_eq!(statuses, [WcStatus::Success, WcStatus::RnrRetryExceeded, WcStatus::Flushed]);
}

#[test]
fn many_requests_share_their_reads() {
    let (a, b) = ends();
    for round in 0..20 {
        for id in 0..100 {
            let op = SendOp::Write { remote: b.remote(0) };
            let flags = if id == 99 { SendFlags::SIGNALED } else { SendFlags::empty() };
            a.post(round * 100 + id, op, &[a.sge(0, 64)], flags).unwrap();
        }
        for id in 0..100 {
            a.sent_ok(round * 100 + id);
        }
    }
}

/// Unsignaled requests leave the queue without a completion.
#[test]
fn unsignaled_requests_make_room() {
    let unsignaled = End::made(Make { signal_all: false, ..Make::default() });
    let (a, b) = pair_of(unsignaled, End::new(), &options());
    let mut posted = 0;
    while posted < 1000 {
        let op = SendOp::Write { remote: b.remote(0) };
        match a.post(posted, op, &[a.sge(0, 64)], SendFlags::empty()) {
            Ok(()) => posted += 1,
            Err(_) => run_until_idle(),
        }
    }
    a.post(posted, SendOp::Write { remote: b.remote(0) }, &[], SendFlags::SIGNALED).unwrap();
    a.sent_ok(posted);
}

#[test]
fn drain_and_close_await_acknowledgement() {
    let (a, b) = ends();
    a.send(1, 0, 8);
    a.qp.modify(QpState::Sqd).unwrap();
    a.nothing_more();
    b.recv(1, 0, 8);
    a.sent_ok(1);
    assert_eq!(a.async_event(), AsyncEvent::SqDrained { qp_num: a.qp.num() });
    a.qp.modify(QpState::Rts).unwrap();
    a.send(2, 0, 8);
    a.qp.disconnect().unwrap();
    b.recv(2, 0, 8);
    a.sent_ok(2);
    assert!(a.ended().orderly);
}

#[test]
fn without_ord_completions_come_as_usual() {
    let options = options().ord(0);
    let (a, b) = pair_of(End::new(), End::new(), &options);
    b.recv(1, 0, 8);
    a.send(1, 0, 8);
    a.sent_ok(1);
}

/// An RNIC acknowledges requests even after its QP is destroyed. In the same way, a destroyed queue
/// pair answers until its peer can no longer be waiting.
#[test]
fn destroyed_queue_pair_still_acknowledges() {
    for ord in [1, 4] {
        let options = options().ird(ord).ord(ord);
        for _ in 0..50 {
            let (a, b) = pair_of(End::tcp(), End::tcp(), &options);
            for id in 0..20 {
                b.recv(id, 0, 8);
            }
            for id in 0..20 {
                a.send(id, 0, 8);
            }
            for id in 0..20 {
                b.received_ok(id);
            }
            // The queue pair is destroyed as soon as it has received everything.
            drop(b.qp);
            for id in 0..20 {
                a.sent_ok(id);
            }
            assert!(a.ended().orderly);
        }
    }
}

#[test]
fn unanswered_drain_read_times_out() {
    let end = End::new();
    let close_timeout = Duration::from_millis(50);
    let scripted = plain().acknowledged(true).close_timeout(close_timeout);
    let mut peer = initiator_opt(&end, &scripted);
    let start = now();
    drop(end.qp);
    assert!(!wait_idle(&end.device, Duration::ZERO));
    assert_eq!(peer.expect_fpdu().read_request().len, 0);
    assert!(wait_idle(&end.device, Duration::from_secs(20)));
    assert!(peer.rest().is_empty());
    assert_eq!(now() - start, close_timeout);
}

/// Segments in flight to a destroyed queue pair are consumed without being placed. No Read after
/// them is answered, because the peer would take the response for their success.
#[test]
fn segments_during_drain_not_placed() {
    let end = End::new();
    let scripted = plain().acknowledged(true);
    let mut peer = initiator_opt(&end, &scripted);
    let memory = (end.mr.rkey(), end.mr.addr());
    drop(end.qp);
    let drain = peer.expect_fpdu().read_request();
    peer.read(0, 0, 0);
    assert_eq!(peer.expect_fpdu().opcode(), Opcode::ReadResponse);
    peer.send(b"late");
    peer.write(memory.0.0, memory.1, b"late");
    peer.read(0, 0, 0);
    assert_eq!(
        crate::common::peek(&end.mr, 0, 4),
        [0; 4],
        "nothing is placed for a queue pair that is gone"
    );
    peer.answer(&drain, b"");
    peer.expect_close();
}

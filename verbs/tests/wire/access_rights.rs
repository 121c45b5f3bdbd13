//! Tests changes of the peers' access rights while a queue pair is connected.

use crate::common::{ALL, End, Make, fill, peek, plain, responder, responder_opt, tcp_pair};
use crate::peer::{tagged, terminate_of, untagged};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;
use uiw_rdmap::{AtomicRequest, Opcode};
use uiw_verbs::{Access, CapabilityExchange, SendOp, WcStatus};

#[test]
fn write_refused_from_segment_after_removal() {
    let end = End::new();
    let mut peer = responder(&end);
    let (stag, to) = (end.mr.rkey().0, end.mr.addr());
    peer.fpdu(&tagged(Opcode::Write, stag, to, false, b"placed"));
    end.qp.set_access(Access::REMOTE_READ);
    peer.fpdu(&tagged(Opcode::Write, stag, to + 6, true, b"refused"));
    peer.expect_terminate(1, 1, 0);
    assert_eq!(peek(&end.mr, 0, 13), b"placed\0\0\0\0\0\0\0");
}

/// The access rights are removed in the middle of a Read Response. Data that was read before may
/// still be sent, up to the end of a segment.
#[test]
fn read_answer_ends_after_removal() {
    const LEN: u32 = 48 << 20;
    let end = End::made(Make { memory: LEN as usize, ..Make::default() });
    let mut peer = responder(&end);
    peer.read(end.mr.rkey().0, end.mr.addr(), LEN);
    end.qp.set_access(Access::REMOTE_WRITE);
    fill(&end.mr, 0, &vec![0x77; LEN as usize]);
    let mut answered = 0;
    let terminate = loop {
        let segment = peer.expect_fpdu();
        if segment.opcode() != Opcode::ReadResponse {
            break terminate_of(&segment);
        }
        assert!(segment.payload().iter().all(|byte| *byte == 0), "read after {answered} bytes");
        answered += segment.payload().len();
    };
    assert_eq!((terminate.layer, terminate.etype, terminate.code), (0, 1, 2));
    assert!(answered > 0 && answered < LEN as usize, "{answered}");
}

#[test]
fn atomic_refused_after_removal() {
    let end = End::new();
    let mut peer = responder_opt(&end, &plain().capabilities(CapabilityExchange::Assume));
    let atomic = |id| AtomicRequest::fetch_add(id, end.mr.rkey(), end.mr.addr(), 1, 0).emit();
    peer.fpdu(&untagged(Opcode::AtomicRequest, 1, 1, 0, true, 0, &atomic(1)));
    assert_eq!(peer.expect_fpdu().opcode(), Opcode::AtomicResponse);
    end.qp.set_access(ALL - Access::REMOTE_ATOMIC);
    peer.fpdu(&untagged(Opcode::AtomicRequest, 1, 2, 0, true, 0, &atomic(2)));
    peer.expect_terminate(0, 1, 2);
    assert_eq!(u64::from_ne_bytes(peek(&end.mr, 0, 8).try_into().unwrap()), 1);
}

/// The devices' own threads make progress, so the call may happen in the middle of a segment.
#[test]
fn removal_waits_for_segment_under_way() {
    const LEN: usize = 64 << 10;
    for round in 0..40 {
        let (a, b) = &tcp_pair();
        let done = &AtomicU32::new(0);
        thread::scope(|scope| {
            scope.spawn(move || {
                for wr_id in 0.. {
                    fill(&a.mr, 0, &[wr_id as u8; LEN]);
                    a.op(wr_id, SendOp::Write { remote: b.remote(0) }, 0, LEN as u32);
                    if a.sent().status != WcStatus::Success {
                        break;
                    }
                    done.store(wr_id as u32, Ordering::Relaxed);
                }
            });
            while done.load(Ordering::Relaxed) < 20 {
                thread::yield_now();
            }
            thread::sleep(Duration::from_micros(round * 43));
            b.qp.set_access(Access::empty());
            let before = peek(&b.mr, 0, LEN);
            thread::sleep(Duration::from_millis(10));
            assert!(before == peek(&b.mr, 0, LEN), "a segment was placed after the removal");
        });
    }
}

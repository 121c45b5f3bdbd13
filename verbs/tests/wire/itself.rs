//! Tests a queue pair that is connected to itself.

use crate::common::{End, fill, pattern, peek};
use crate::simulation;
use std::sync::Arc;
use std::time::Duration;
use uiw_verbs::cm;
use uiw_verbs::{
    AsyncEvent, ConnConfig, Error, FpduSize, QpState, Remote, SendFlags, SendOp, Sge, WcOpcode,
    WcStatus,
};

fn connected(options: &ConnConfig) -> End {
    let end = End::new();
    connect(&end, options);
    end
}

fn connect(end: &End, options: &ConnConfig) {
    cm::connect_self(&end.qp, simulation::any_port(), &Arc::new(options.clone()), &end.channel)
        .unwrap();
    let info = end.established();
    assert_eq!(info.local, info.peer);
    assert_eq!(end.qp.state(), QpState::Rts);
}

fn acknowledged() -> ConnConfig {
    ConnConfig::default().acknowledged(true)
}

/// Performs every operation that a queue pair can request from another one.
fn every_operation(options: &ConnConfig) {
    let end = connected(options);
    let bytes = pattern(8192);
    fill(&end.mr, 0, &bytes);

    end.recv(1, 8192, 8192);
    end.op(2, SendOp::Send, 0, 8192);
    end.sent_ok(2);
    assert_eq!(end.received_ok(1).byte_len, 8192);
    assert_eq!(peek(&end.mr, 8192, 8192), bytes);

    end.recv(3, 0, 0);
    end.op(4, SendOp::WriteImm { remote: end.remote(16 << 10), imm: 7 }, 0, 8192);
    end.sent_ok(4);
    let wc = end.received_ok(3);
    assert_eq!((wc.opcode, wc.byte_len, wc.imm), (WcOpcode::RecvWriteImm, 8192, Some(7)));
    assert_eq!(peek(&end.mr, 16 << 10, 8192), bytes);

    end.op(5, SendOp::Read { remote: end.remote(0), invalidate: None }, 24 << 10, 8192);
    end.sent_ok(5);
    assert_eq!(peek(&end.mr, 24 << 10, 8192), bytes);

    fill(&end.mr, 40 << 10, &5u64.to_ne_bytes());
    let remote = end.remote(40 << 10);
    end.op(6, SendOp::FetchAdd { remote, add: 3, mask: 0 }, 48 << 10, 8);
    end.sent_ok(6);
    let all = u64::MAX;
    let swap = SendOp::CmpSwap { remote, compare: 8, compare_mask: all, swap: 99, swap_mask: all };
    end.op(7, swap, 49 << 10, 8);
    end.sent_ok(7);
    let value = |at| u64::from_ne_bytes(peek(&end.mr, at, 8).try_into().unwrap());
    assert_eq!((value(48 << 10), value(49 << 10), value(40 << 10)), (5, 8, 99));
}

#[test]
fn does_everything_with_itself() {
    for (markers, crc) in [(false, true), (true, true), (false, false)] {
        every_operation(&ConnConfig::default().markers(markers).crc(crc));
    }
    every_operation(&acknowledged());
    every_operation(&acknowledged().fpdu(FpduSize::Segment).ird(1).ord(1));
}

/// Requests and Read Responses exceed the capacity of the stream in both directions.
#[test]
fn full_pipe_makes_progress() {
    let mut options = acknowledged();
    options.stream.send_buffer = Some(4096);
    options.stream.recv_buffer = Some(4096);
    let end = connected(&options);
    let (whole, half) = (64 << 10, 32 << 10);
    for round in 0..20 {
        for id in 0..20 {
            let id = round * 100 + id * 3;
            end.op(id, SendOp::Write { remote: end.remote(0) }, 0, whole);
            end.op(
                id + 1,
                SendOp::Read { remote: end.remote(0), invalidate: None },
                half,
                half as u32,
            );
            end.recv(id + 2, 0, 16);
            end.send(id + 2, 16, 16);
        }
        for id in 0..20 {
            let id = round * 100 + id * 3;
            for id in id..id + 3 {
                end.sent_ok(id);
            }
            end.received_ok(id + 2);
        }
    }
}

#[test]
fn error_assigned_to_causing_request() {
    let wrong =
        |end: &End| Remote { addr: end.mr.addr(), rkey: uiw_verbs::STag(end.mr.rkey().0 ^ 0x5500) };
    let writes: fn(&End) -> SendOp = |end| SendOp::Write { remote: end.remote(0) };
    type Case = (&'static str, Box<dyn Fn(&End) -> SendOp>, WcStatus);
    let cases: [Case; 3] = [
        (
            "Write",
            Box::new(move |end| SendOp::Write { remote: wrong(end) }),
            WcStatus::RemoteAccess,
        ),
        (
            "Read",
            Box::new(move |end| SendOp::Read { remote: wrong(end), invalidate: None }),
            WcStatus::RemoteAccess,
        ),
        (
            "FetchAdd",
            Box::new(move |end| SendOp::FetchAdd { remote: wrong(end), add: 1, mask: 0 }),
            WcStatus::RemoteAccess,
        ),
    ];
    for (what, bad, status) in cases {
        let end = connected(&acknowledged());
        end.op(1, writes(&end), 0, 8);
        end.op(2, bad(&end), 8, 8);
        end.op(3, writes(&end), 0, 8);
        end.recv(4, 0, 8);
        end.sent_ok(1);
        assert_eq!((end.sent().status, end.sent().status), (status, WcStatus::Flushed), "{what}");
        assert_eq!(end.received().status, WcStatus::Flushed);
        assert_eq!(end.qp.state(), QpState::Err);
        assert!(!end.ended().orderly);
        assert!(matches!(end.async_event(), AsyncEvent::QpFatal { .. }));
        // The queue pair can be connected again.
        end.qp.modify(QpState::Reset).unwrap();
        end.qp.modify(QpState::Init).unwrap();
        connect(&end, &acknowledged());
        end.op(5, writes(&end), 0, 8);
        end.sent_ok(5);
    }
}

#[test]
fn send_without_receive_waits_then_fails() {
    let end = connected(&acknowledged());
    end.send(1, 0, 8);
    end.nothing_more();
    end.recv(2, 16, 8);
    end.sent_ok(1);
    end.received_ok(2);
    end.qp.set_no_receive_timeout(Duration::from_millis(10)).unwrap();
    end.send(3, 0, 8);
    assert_eq!(end.sent().status, WcStatus::RnrRetryExceeded);
}

#[test]
fn local_error_ends_connection() {
    let end = connected(&ConnConfig::default());
    let nowhere = Sge { addr: 1, length: 8, lkey: end.mr.lkey() };
    end.post(1, SendOp::Write { remote: end.remote(0) }, &[nowhere], SendFlags::SIGNALED).unwrap();
    assert_eq!(end.sent().status, WcStatus::LocalProtection);
    assert_eq!(end.qp.state(), QpState::Err);
    assert!(!end.ended().orderly);
}

#[test]
fn orderly_close_and_drop_under_load() {
    for options in [ConnConfig::default(), acknowledged()] {
        let end = connected(&options);
        end.recv(1, 0, 8);
        end.send(2, 8, 8);
        end.qp.disconnect().unwrap();
        end.sent_ok(2);
        end.received_ok(1);
        assert!(end.ended().orderly);
        assert_eq!(end.qp.state(), QpState::Err);

        let end = connected(&options);
        for id in 0..50 {
            end.op(id, SendOp::Read { remote: end.remote(0), invalidate: None }, 0, 64 << 10);
        }
        drop(end.qp);
        assert!(simulation::wait_idle(&end.device, Duration::from_secs(20)));
    }
}

#[test]
fn connected_queue_pair_refused() {
    let end = connected(&ConnConfig::default());
    let options = Arc::new(ConnConfig::default());
    assert!(matches!(
        cm::connect_self(&end.qp, simulation::any_port(), &options, &end.channel),
        Err(Error::State { .. } | Error::AlreadyConnected { .. })
    ));
    let other = End::new();
    let foreign = "192.0.2.1:0".parse().unwrap();
    assert!(cm::connect_self(&other.qp, foreign, &options, &other.channel).is_err());
    // The refused queue pair is still free.
    connect(&other, &options);
}

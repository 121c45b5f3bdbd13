//! Compares the counters of both ends with the transferred data.

use crate::common::{End, pair_of};
use std::time::Duration;
use uiw_verbs::counters::{Directions, Operations};
use uiw_verbs::{ConnConfig, FpduSize, Remote, STag, SendOp, StableTx, WcStatus};

/// Returns the same traffic as counted by the other end.
fn mirrored(traffic: Operations) -> Operations {
    let mirror = |moved: Directions| Directions { sent: moved.received, received: moved.sent };
    let Operations { send, write, read, atomic } = traffic;
    let [send, write, read, atomic] = [send, write, read, atomic].map(mirror);
    let mut operations = Operations::default();
    (operations.send, operations.write, operations.read, operations.atomic) =
        (send, write, read, atomic);
    operations
}

fn traffic(end: &End) -> Operations {
    end.device.counters().total().traffic
}

#[test]
fn both_ends_count_the_same_payload() {
    let plain = ConnConfig::default;
    for options in [
        plain(),
        plain().acknowledged(true),
        plain().markers(true).crc(false),
        plain().fpdu(FpduSize::Fixed(128)),
        plain().stable_tx(StableTx::On),
    ] {
        let (a, b) = pair_of(End::new(), End::new(), &options);
        for (wr_id, length) in [(1, 8192), (2, 1), (3, 0)] {
            b.recv(wr_id, 0, 8192);
            a.op(wr_id, SendOp::Send, 0, length);
            a.sent_ok(wr_id);
            b.received_ok(wr_id);
        }
        for (wr_id, length) in [(4, 30_000), (5, 5), (6, 0)] {
            a.op(wr_id, SendOp::Write { remote: b.remote(0) }, 0, length);
            a.sent_ok(wr_id);
        }
        b.recv(7, 0, 0);
        a.op(7, SendOp::WriteImm { remote: b.remote(0), imm: 7 }, 0, 300);
        a.sent_ok(7);
        b.received_ok(7);
        for (wr_id, length) in [(8, 20_000), (9, 0)] {
            a.op(wr_id, SendOp::Read { remote: b.remote(0), invalidate: None }, 0, length);
            a.sent_ok(wr_id);
        }
        a.op(10, SendOp::FetchAdd { remote: b.remote(0), add: 1, mask: 0 }, 0, 8);
        a.sent_ok(10);

        let counted = traffic(&a);
        let of = |moved: uiw_verbs::counters::Count| (moved.messages, moved.bytes);
        // The Immediate Data message is a Send without payload.
        assert_eq!(of(counted.send.sent), (4, 8193), "{options:?}");
        assert_eq!(of(counted.write.sent), (3, 30_305), "{options:?}");
        assert_eq!(of(counted.read.received), (1, 20_000), "{options:?}");
        assert_eq!(of(counted.atomic.received), (1, 8), "{options:?}");
        assert_eq!(traffic(&b), mirrored(counted), "{options:?}");
        let counters = b.device.counters();
        assert_eq!(counters.with_other_devices(), counters.total().traffic);
        let [connection] = &counters.connections[..] else { panic!("{counters:?}") };
        assert_eq!((connection.traffic, connection.qp_num), (traffic(&b), b.qp.num()));
        assert!(!connection.initiator && !connection.kernel && !connection.same_device);
    }
}

#[test]
fn loopback_traffic_counted_for_device() {
    let end = End::new();
    let (options, local) = (ConnConfig::default().into(), crate::simulation::any_port());
    uiw_verbs::cm::connect_self(&end.qp, local, &options, &end.channel).unwrap();
    end.established();
    end.recv(1, 0, 100);
    end.op(2, SendOp::Send, 0, 100);
    end.sent_ok(2);
    end.received_ok(1);
    let total = end.device.counters().total();
    assert_eq!((total.traffic.send.sent.bytes, total.traffic.send.received.bytes), (100, 100));
    assert_eq!(total.same_device, total.traffic);
    assert_eq!(end.device.counters().with_other_devices(), Operations::default());
}

#[test]
fn terminate_counted_at_both_ends() {
    let (a, b) = pair_of(End::new(), End::new(), &ConnConfig::default());
    a.op(1, SendOp::Write { remote: b.remote(0) }, 0, 1000);
    a.sent_ok(1);
    let wrong = Remote { rkey: STag(!b.remote(0).rkey.0), ..b.remote(0) };
    a.op(2, SendOp::Read { remote: wrong, invalidate: None }, 0, 100);
    assert_eq!(a.sent().status, WcStatus::RemoteAccess);
    b.ended();
    a.ended();
    let terminates = |end: &End| {
        let all = end.device.counters().total().terminates;
        all.iter().map(|it| (it.code, it.sent, it.received)).collect::<Vec<_>>()
    };
    // RDMAP, remote protection error, invalid STag (RFC 5040 section 4.8).
    assert_eq!(terminates(&b), [(Some((0, 1, 0)), 1, 0)]);
    assert_eq!(terminates(&a), [(Some((0, 1, 0)), 0, 1)]);
    assert_eq!((traffic(&b).write.received.bytes, traffic(&b).read.sent.bytes), (1000, 0));
}

#[test]
fn waits_are_counted_once_each() {
    let options = ConnConfig::default().ord(1).ird(1).no_receive_timeout(Duration::from_secs(5));
    let (a, b) = pair_of(End::new(), End::new(), &options);
    let waits = |end: &End| end.device.counters().total().waits;
    let read = |wr_id| a.op(wr_id, SendOp::Read { remote: b.remote(0), invalidate: None }, 0, 100);
    read(1);
    a.sent_ok(1);
    assert_eq!(waits(&a).credit, 0);
    (2..5).for_each(read);
    for wr_id in 2..5 {
        a.sent_ok(wr_id);
    }
    // The second and the third Read each wait for the previous one.
    assert_eq!(waits(&a).credit, 2);
    a.op(5, SendOp::Send, 0, 100);
    a.sent_ok(5);
    while waits(&b).receive == 0 {
        b.device.pump();
    }
    b.recv(5, 0, 100);
    b.received_ok(5);
    assert_eq!(waits(&b).receive, 1);
}

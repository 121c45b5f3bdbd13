//! Tests queue pairs whose application moves them to RTS before their connection is established,
//! and whose peers may not be reachable.

use crate::common::{End, device, pair, pair_of};
use crate::peer::Port;
use std::cell::RefCell;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use uiw_verbs::{
    AsyncEvent, ConnConfig, CqConfig, Device, Error, QpInit, QpState, SendFlags, SendOp, WcStatus,
    cm,
};

fn ready(end: &End) {
    end.qp.modify(QpState::Rtr).unwrap();
    end.qp.modify(QpState::Rts).unwrap();
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn requests_wait_for_connection() {
    let (a, b) = (End::new(), End::new());
    for end in [&a, &b] {
        ready(end);
        end.recv(1, 100, 64);
        end.send(2, 0, 8);
    }
    a.nothing_more();
    let options = ConnConfig::default();
    let listener = b.listen(&options);
    a.connect(listener.local_addr(), &options);
    b.accept(b.request());
    for end in [&a, &b] {
        end.sent_ok(2);
        end.received_ok(1);
        assert_eq!(end.qp.state(), QpState::Rts);
    }
}

#[test]
fn failed_attempt_keeps_requests_waiting() {
    let (a, b) = (End::new(), End::new());
    ready(&a);
    a.send(1, 0, 8);
    let options = ConnConfig::default();
    let nobody = Port::new().addr();
    a.connect(nobody, &options);
    assert!(matches!(a.failed(), Error::Refused { .. }));
    assert_eq!(a.qp.state(), QpState::Rts);
    a.nothing_more();
    let listener = b.listen(&options);
    a.connect(listener.local_addr(), &options);
    b.recv(5, 0, 64);
    b.accept(b.request());
    b.received_ok(5);
    a.sent_ok(1);
}

#[test]
fn abandoned_peer_fails_oldest_request() {
    let a = End::new();
    ready(&a);
    a.recv(9, 0, 64);
    a.send(1, 0, 8);
    a.send(2, 0, 8);
    a.qp.fail(WcStatus::RetryExceeded);
    assert_eq!((a.sent().status, a.sent().status), (WcStatus::RetryExceeded, WcStatus::Flushed));
    assert_eq!(a.received().status, WcStatus::Flushed);
    assert_eq!(a.qp.state(), QpState::Err);
}

#[test]
fn abandoning_connection_ends_it() {
    let (a, b) = pair();
    a.qp.fail(WcStatus::RetryExceeded);
    assert_eq!(a.qp.state(), QpState::Err);
    assert!(b.ended().reason.is_some());
    assert!(matches!(a.async_event(), AsyncEvent::QpFatal { .. }));
}

#[test]
fn numbers_are_the_callers_to_choose() {
    let device = device();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(4, CqConfig::default()).unwrap();
    let make = |num| {
        let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
        pd.create_qp(QpInit::new(&send_cq, &recv_cq).num(num))
    };
    let first = make(Some(0x0047_1102)).unwrap();
    assert_eq!(first.num(), 0x0047_1102);
    assert!(matches!(make(Some(0x0047_1102)), Err(Error::QpNumberTaken { num: 0x0047_1102 })));
    for num in [0, 1, 0x0100_0000] {
        assert!(matches!(make(Some(num)), Err(Error::QpNumber { .. })));
    }
    drop(first);
    make(Some(0x0047_1102)).unwrap();
}

#[test]
fn events_delivered_to_creating_handle() {
    let device = device();
    let (mine, other) = (device.with_own_events(), device.with_own_events());
    let (a, b) = (End::on(&mine), End::on(&other));
    let (a, b) = pair_of(a, b, &ConnConfig::default());
    a.qp.fail(WcStatus::RetryExceeded);
    assert!(matches!(a.async_event(), AsyncEvent::QpFatal { qp_num, .. } if qp_num == a.qp.num()));
    assert!(matches!(b.async_event(), AsyncEvent::QpFatal { qp_num, .. } if qp_num == b.qp.num()));
    assert!(device.async_events().is_empty());
}

#[test]
fn send_waits_forever_if_configured() {
    let options = ConnConfig::default().no_receive_timeout(Duration::MAX);
    let (a, b) = pair_of(End::new(), End::new(), &options);
    a.send(1, 0, 8);
    a.sent_ok(1);
    b.nothing_more();
    b.recv(2, 0, 8);
    b.received_ok(2);
    // From now on a Send does not wait.
    b.qp.set_no_receive_timeout(Duration::ZERO).unwrap();
    a.send(3, 0, 8);
    let reason = a.ended().reason.unwrap();
    assert_eq!((reason.layer, reason.etype, reason.code), (1, 2, 2));
    assert!(matches!(
        End::new().qp.set_no_receive_timeout(Duration::ZERO),
        Err(Error::NotConnected)
    ));
}

#[test]
fn reset_and_again() {
    let (a, b) = (End::new(), End::new());
    let options = ConnConfig::default();
    let listener = b.listen(&options);
    for round in 0..3 {
        for end in [&a, &b] {
            end.qp.modify(QpState::Reset).unwrap();
            end.qp.modify(QpState::Init).unwrap();
            ready(end);
        }
        a.post(round, SendOp::Send, &[], SendFlags::SIGNALED).unwrap();
        b.recv(round, 0, 0);
        a.connect(listener.local_addr(), &options);
        b.accept(b.request());
        a.sent_ok(round);
        b.received_ok(round);
        cm::abandon(&a.qp);
        a.established();
        b.established();
        a.qp.modify(QpState::Err).unwrap();
        a.ended();
        b.ended();
    }
}

/// The thread-local values of the engine are destroyed before those that are older.
#[test]
fn wait_in_destructor_of_thread_local_value() {
    struct WaitOnDrop(mpsc::Sender<()>);

    impl Drop for WaitOnDrop {
        fn drop(&mut self) {
            wait_briefly(&Device::open().unwrap());
            self.0.send(()).unwrap();
        }
    }

    fn wait_briefly(device: &Device) {
        let never = std::future::pending::<()>();
        assert!(device.block_on_for(Duration::from_millis(1), never).is_none());
    }

    thread_local! {
        static LAST: RefCell<Option<WaitOnDrop>> = const { RefCell::new(None) };
    }
    let (done, over) = mpsc::channel();
    let thread = std::thread::spawn(|| {
        LAST.set(Some(WaitOnDrop(done)));
        wait_briefly(&Device::open().unwrap());
    });
    thread.join().unwrap();
    over.try_recv().expect("the destructor has waited");
}

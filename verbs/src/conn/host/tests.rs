use super::*;
use crate::qp::QpCap;
use crate::wr::{RecvWr, SendWr};
use crate::{Device, DeviceConfig, Progress, Qp, QpInit};
use std::sync::Barrier;
use std::time::Duration;
use uiw_llp::Token;
use uiw_stream::StreamHost;

/// Creates a queue pair with 20 receives and 20 sends that were sent. Its completion queue has room
/// for all of them.
fn busy_qp() -> (Device, Qp) {
    let device = Device::open_with(DeviceConfig::default().progress(Progress::Manual)).unwrap();
    let cq = device.create_cq(64, crate::CqConfig::default()).unwrap();
    let cap = QpCap { max_send_wr: 20, max_recv_wr: 20, ..QpCap::default() };
    let qp = device.alloc_pd().unwrap().create_qp(QpInit::new(&cq, &cq).cap(cap)).unwrap();
    let RecvSource::Own(receives) = &qp.0.rq else { unreachable!("it has its own queue") };
    for wr_id in 0..20 {
        receives.lock().post(&RecvWr { wr_id, sges: &[] }).unwrap();
        let mut sends = qp.0.sq.lock();
        let flags = SendFlags::empty();
        sends.post(&SendWr { wr_id, op: SendOp::Send, sges: &[], flags }, |_, _| ()).unwrap();
        sends.built(0);
    }
    (device, qp)
}

fn receive(host: &mut QpHost<'_>, count: usize) {
    for _ in 0..count {
        host.begin_receive().unwrap();
        let kind = ReceivedKind::Send { len: 0, imm: None };
        let message =
            ReceivedMessage { kind, solicited: false, invalidated: None, awaits_ack: false };
        host.receive(message).unwrap();
    }
}

fn acknowledge(host: &mut QpHost<'_>, ids: Range<u32>) {
    for id in ids {
        host.acknowledged(id).unwrap();
    }
}

/// Asserts that a queue which `collect` leaves locked is not unlocked by `unlock` before its
/// completions were added. They cannot be added at first, because the completion queue is locked.
fn assert_reported_before_unlock(
    is_locked: fn(&QpInner) -> bool,
    collect: impl FnOnce(&mut QpHost<'_>) + Send,
    unlock: impl FnOnce(&mut QpHost<'_>) + Send,
    total: usize,
) {
    let (device, qp) = busy_qp();
    let (qp, step) = (&*qp.0, Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut busy = device.driver().shard_at(0).lock();
            let services = &mut busy.core().services;
            let mut state = HostState::new(Token(1), services.counters.unassigned());
            let mut host = QpHost::new(Some(qp), &mut state, services);
            collect(&mut host);
            step.wait();
            step.wait();
            unlock(&mut host);
        });
        step.wait();
        let mut wakes = Wakes::default();
        let mut completions = qp.send_cq.appender(&mut wakes);
        completions.push(&Cqe {
            wc: Wc::plain(99, WcStatus::Success, WcOpcode::Send, 0),
            solicited: false,
        });
        step.wait();
        // Time to unlock the queue too early.
        std::thread::sleep(Duration::from_millis(20));
        let locked = is_locked(qp);
        drop(completions);
        assert!(locked);
    });
    assert!(!is_locked(qp));
    assert_eq!(qp.send_cq.len(), 1 + total);
}

#[test]
fn receives_reported_before_unlock() {
    fn is_locked(qp: &QpInner) -> bool {
        matches!(&qp.rq, RecvSource::Own(receives) if receives.is_locked())
    }
    assert_reported_before_unlock(is_locked, |host| receive(host, 3), |host| host.release(), 3);
    assert_reported_before_unlock(
        is_locked,
        |host| receive(host, 3),
        |host| acknowledge(host, 0..1),
        4,
    );
    assert_reported_before_unlock(is_locked, |host| receive(host, 16), |host| receive(host, 1), 17);
}

#[test]
fn sends_reported_before_unlock() {
    fn is_locked(qp: &QpInner) -> bool {
        qp.sq.is_locked()
    }
    assert_reported_before_unlock(
        is_locked,
        |host| acknowledge(host, 0..3),
        |host| host.release(),
        3,
    );
    assert_reported_before_unlock(
        is_locked,
        |host| acknowledge(host, 0..3),
        |host| receive(host, 1),
        4,
    );
    assert_reported_before_unlock(
        is_locked,
        |host| acknowledge(host, 0..15),
        |host| acknowledge(host, 15..16),
        16,
    );
}

//! Tests planned faults: the errors that the application gets, and the behaviour of its peer.

#![expect(
    unused_qualifications,
    reason = "what the examples of the documentation share has whole paths"
)]

include!("../docs/pair.rs");

use std::sync::Arc;
use std::time::{Duration, Instant};
use uiw_verbs::cm::{self, CmEventKind};
use uiw_verbs::{
    AsyncEvent, CmCall, CmFault, ConnConfig, CqConfig, Device, DeviceConfig, Error, QpState,
    RecvWr, Remote, SendFlags, SendOp, SendWr, SrqAttr, WcStatus,
};

fn device(plan: &str) -> Device {
    Device::open_with(DeviceConfig::default().faults(plan.parse().unwrap())).unwrap()
}

/// Connects a client and a server whose devices have these fault plans.
fn pair(client: &str, server: &str) -> [End; 2] {
    connected(End::on(device(client)).unwrap(), End::on(device(server)).unwrap()).unwrap()
}

/// Posts a signaled Write of 8 bytes to the memory that `to` has registered.
fn write(from: &End, to: &End, wr_id: u64) -> Result<(), uiw_verbs::PostError> {
    let remote = Remote { addr: to.memory.addr(), rkey: to.memory.rkey() };
    let wr = SendWr {
        wr_id,
        op: SendOp::Write { remote },
        sges: &[from.sge(0, 8)],
        flags: SendFlags::SIGNALED,
    };
    // SAFETY: the ends keep their memory, which the engine owns, until after their queue pairs are
    // destroyed.
    unsafe { from.qp.post_send([wr]) }
}

fn statuses(end: &End, count: usize) -> Vec<(u64, WcStatus)> {
    (0..count).map(|_| end.completion()).map(|wc| (wc.wr_id, wc.status)).collect()
}

fn errno(error: &Error) -> (&'static str, Option<i32>) {
    match error {
        Error::Injected { call, source } => (call, source.raw_os_error()),
        other => panic!("{other}"),
    }
}

#[test]
fn planned_status_ends_queue_pair() {
    let [client, server] = pair("wc:write@3=RETRY_EXC_ERR", "seed=1");
    for wr_id in 1..=5 {
        write(&client, &server, wr_id).unwrap();
    }
    let expected = [
        (1, WcStatus::Success),
        (2, WcStatus::Success),
        (3, WcStatus::RetryExceeded),
        (4, WcStatus::Flushed),
        (5, WcStatus::Flushed),
    ];
    assert_eq!(statuses(&client, 5), expected);
    assert_eq!(client.qp.state(), QpState::Err);
    // The peer's connection ends as well.
    assert!(matches!(server.event(), CmEventKind::Disconnected(_)));
}

#[test]
fn planned_status_of_receive() {
    let [client, server] = pair("seed=1", "wc:recv@2=LOC_PROT_ERR");
    let receives: Vec<_> = (1..=3).map(|wr_id| (wr_id, [server.sge(8 * wr_id, 8)])).collect();
    let posts = receives.iter().map(|(wr_id, sges)| RecvWr { wr_id: *wr_id, sges });
    // SAFETY: as above.
    unsafe { server.qp.post_recv(posts) }.unwrap();
    for wr_id in 1..=2 {
        let wr = SendWr {
            wr_id,
            op: SendOp::Send,
            sges: &[client.sge(0, 8)],
            flags: SendFlags::SIGNALED,
        };
        // SAFETY: as above.
        unsafe { client.qp.post_send([wr]) }.unwrap();
    }
    let expected = [(1, WcStatus::Success), (2, WcStatus::LocalProtection), (3, WcStatus::Flushed)];
    assert_eq!(statuses(&server, 3), expected);
}

#[test]
fn planned_calls_refused() {
    let plan = "call:alloc_pd@2=ENOMEM,call:create_cq@2=12,call:create_qp@2=EINVAL,call:reg_mr@2=EPERM,\
                call:create_srq=EIO,call:post_recv@1=ENOSPC,call:post_send@2=EIO";
    let [client, server] = pair(plan, "seed=1");
    assert_eq!(errno(&client.device.alloc_pd().unwrap_err()), ("alloc_pd", Some(libc::ENOMEM)));
    let refused = client.device.create_cq(1, CqConfig::default()).unwrap_err();
    assert_eq!(errno(&refused), ("create_cq", Some(libc::ENOMEM)));
    let refused = client.pd.create_qp(uiw_verbs::QpInit::new(&client.cq, &client.cq)).unwrap_err();
    assert_eq!(errno(&refused), ("create_qp", Some(libc::EINVAL)));
    let memory = uiw_verbs::Memory::owned(64).unwrap();
    let refused = client.pd.register_raw(memory, 0, uiw_verbs::Access::LOCAL_WRITE).unwrap_err();
    assert_eq!(errno(&refused), ("reg_mr", Some(libc::EPERM)));
    let refused = client.pd.create_srq(SrqAttr { max_wr: 1, max_sge: 1, limit: 0 }).unwrap_err();
    assert_eq!(errno(&refused), ("create_srq", Some(libc::EIO)));
    // SAFETY: as above.
    let refused = unsafe { client.qp.post_recv([RecvWr { wr_id: 1, sges: &[client.sge(0, 8)] }]) }
        .unwrap_err();
    assert_eq!((refused.index, errno(&refused.error)), (0, ("post_recv", Some(libc::ENOSPC))));
    write(&client, &server, 1).unwrap();
    assert_eq!(
        errno(&write(&client, &server, 2).unwrap_err().error),
        ("post_send", Some(libc::EIO))
    );
    write(&client, &server, 3).unwrap();
    assert_eq!(statuses(&client, 2), [(1, WcStatus::Success), (3, WcStatus::Success)]);
}

#[test]
fn planned_outcomes_of_connections() {
    for (outcome, expected) in [
        ("REJECTED", "Rejected"),
        ("REFUSED", "Refused"),
        ("UNREACHABLE", "TimedOut"),
        ("CONNECT_ERROR", "Lost"),
    ] {
        let end = End::on(device(&format!("cm:connect@1={outcome}"))).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (peer, options) = (listener.local_addr().unwrap(), Arc::new(ConnConfig::default()));
        cm::connect(&end.qp, None, peer, &options, b"", &end.channel).unwrap();
        let CmEventKind::Failed(error) = end.event() else { panic!("no failure") };
        assert!(format!("{error:?}").starts_with(expected), "{outcome}: {error:?}");
        assert!(listener.accept().is_err(), "nothing is sent");
        // The queue pair is free for the next attempt, for which no fault is planned.
        cm::connect(&end.qp, None, peer, &options, b"", &end.channel).unwrap();
        cm::abandon(&end.qp);
    }
    let layers = device("cm:resolve_addr@2=ADDR_ERROR");
    assert_eq!(layers.inject_cm(CmCall::ResolveAddr), None);
    assert_eq!(layers.inject_cm(CmCall::ResolveAddr), Some(CmFault::AddrError));
}

#[test]
fn planned_events_reach_every_handle() {
    let next = |handle: &Device| {
        handle.block_on(std::future::poll_fn(|cx| handle.async_events().poll_pop(cx)))
    };
    let device = device("event:PORT_ERR@1s,event:PORT_ACTIVE@0s");
    assert_eq!(next(&device), AsyncEvent::PortActive);
    let other = device.with_own_events();
    assert_eq!([&device, &other].map(next), [AsyncEvent::PortError, AsyncEvent::PortError]);
}

#[test]
fn slow_calls_sleep() {
    let end = End::on(device("slow:poll_cq@2=50ms")).unwrap();
    let mut found = Vec::new();
    end.cq.poll(&mut found, 1);
    let began = Instant::now();
    end.cq.poll(&mut found, 1);
    assert!(began.elapsed() >= Duration::from_millis(50));
}

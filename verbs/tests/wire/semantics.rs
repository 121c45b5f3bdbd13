//! Tests the guarantees of verbs between two of our ends.

use crate::common::{
    ALL, End, Make, device, fill, memory, next_wc, pair, pair_of, pattern, peek, plain, requested,
    responder, responder_opt, tcp_pair,
};
use crate::peer::untagged;
use crate::simulation::{change_link, now, until};
use crate::transport::wait;
use std::sync::Arc;
use std::time::Duration;
use uiw_rdmap::Opcode;
use uiw_verbs::cm::Listener;
use uiw_verbs::{
    Access, Arm, AsyncEvent, Bind, CapabilityExchange, CompChannel, ConnConfig, CqConfig, Device,
    Error, FastRegister, Memory, Pd, QpCap, QpInit, QpState, RawMw, RecvWr, Remote, STag,
    SendFlags, SendOp, SendWr, Sge, SrqAttr, StableTx, WcOpcode, WcStatus, WindowType,
};

fn read(remote: Remote) -> SendOp {
    SendOp::Read { remote, invalidate: None }
}

#[test]
fn scatter_and_gather_with_empty_elements() {
    let (a, b) = pair();
    let data = pattern(1600);
    fill(&a.mr, 0, &data);
    let sges: Vec<Sge> =
        (0..16).map(|i| a.sge(i * 100, if i % 5 == 2 { 0 } else { 100 })).collect();
    let expected: Vec<u8> = (0..16)
        .filter(|i| i % 5 != 2)
        .flat_map(|i| data[i * 100..(i + 1) * 100].to_vec())
        .collect();
    let into: Vec<Sge> =
        (0..16).map(|i| b.sge(i * 200, if i % 3 == 1 { 0 } else { 130 })).collect();
    b.try_recv(1, &into).unwrap();
    a.post(1, SendOp::Send, &sges, SendFlags::SIGNALED).unwrap();
    assert_eq!(b.received_ok(1).byte_len as usize, expected.len());
    let mut got = Vec::new();
    for i in (0..16).filter(|i| i % 3 != 1) {
        got.extend(peek(&b.mr, i * 200, 130));
    }
    assert!(got[..expected.len()] == expected);
    a.sent_ok(1);
    a.post(2, SendOp::Write { remote: b.remote(8000) }, &sges, SendFlags::SIGNALED).unwrap();
    a.post(
        3,
        read(b.remote(8000)),
        &[a.sge(20_000, 7), a.sge(0, 0), a.sge(30_000, 1293)],
        SendFlags::SIGNALED,
    )
    .unwrap();
    a.sent_ok(2);
    a.sent_ok(3);
    assert!(peek(&b.mr, 8000, expected.len()) == expected);
    assert!(peek(&a.mr, 20_000, 7) == expected[..7] && peek(&a.mr, 30_000, 1293) == expected[7..]);
    // Inline data: several elements, one of them empty, in memory that is not registered and that
    // changes immediately afterwards.
    let mut text = *b"inline data";
    b.recv(9, 0, 64);
    {
        let at = text.as_mut_ptr() as u64;
        let sges = [
            Sge { addr: at, length: 3, lkey: STag(0) },
            Sge { addr: at, length: 0, lkey: STag(7) },
            Sge { addr: at + 3, length: 8, lkey: STag(0) },
        ];
        a.post(4, SendOp::Send, &sges, SendFlags::SIGNALED | SendFlags::INLINE).unwrap();
    }
    text.fill(0);
    b.received_ok(9);
    assert_eq!(peek(&b.mr, 0, 11), b"inline data");
}

#[test]
fn refused_posts_name_position() {
    let cap = QpCap {
        max_send_wr: 4,
        max_recv_wr: 2,
        max_send_sge: 2,
        max_inline: 16,
        ..QpCap::default()
    };
    let small = || End::made(Make { cap, ..Make::default() });
    let a = small();
    let mut peer = crate::common::initiator(&a);
    let sge = [a.sge(0, 8)];
    let three = [sge[0]; 3];
    let wr = |wr_id, sges| SendWr {
        wr_id,
        op: read(Remote::default()),
        sges,
        flags: SendFlags::SIGNALED,
    };
    // SAFETY: the memory of the elements lives as long as the queue pair.
    let refused =
        unsafe { a.qp.post_send([wr(1, &sge[..]), wr(2, &sge), wr(3, &three), wr(4, &sge)]) }
            .unwrap_err();
    assert_eq!(refused.index, 2);
    assert!(matches!(refused.error, Error::TooManySges { given: 3, max: 2 }));
    // SAFETY: as above.
    let refused = unsafe { a.qp.post_send((0..5).map(|i| wr(i, &sge[..]))) }.unwrap_err();
    assert_eq!(refused.index, 2);
    assert!(matches!(refused.error, Error::QueueFull { depth: 4, .. }));
    for _ in 0..4 {
        peer.expect_fpdu().read_request();
    }
    a.recv(1, 0, 8);
    a.recv(2, 0, 8);
    assert!(matches!(a.try_recv(3, &[]).unwrap_err().error, Error::QueueFull { depth: 2, .. }));
}

#[test]
fn unsignaled_requests_free_queue_silently() {
    let cap = QpCap { max_send_wr: 8, ..QpCap::default() };
    let make = Make { cap, signal_all: false, ..Make::default() };
    let (a, b) = pair_of(End::made(make), End::new(), &ConnConfig::default());
    for round in 0..20 {
        for i in 0..7 {
            a.post(i, SendOp::Write { remote: b.remote(0) }, &[a.sge(0, 8)], SendFlags::empty())
                .unwrap();
        }
        a.post(
            100 + round,
            SendOp::Write { remote: b.remote(0) },
            &[a.sge(0, 8)],
            SendFlags::SIGNALED,
        )
        .unwrap();
        a.sent_ok(100 + round);
    }
    // An error is reported whether or not the request is signaled.
    a.post(
        7,
        SendOp::Write { remote: b.remote(0) },
        &[Sge { lkey: STag(1), ..a.sge(0, 8) }],
        SendFlags::empty(),
    )
    .unwrap();
    let wc = a.sent();
    assert_eq!((wc.wr_id, wc.status), (7, WcStatus::LocalProtection));
}

#[test]
fn fence_waits_for_reads() {
    let a = End::new();
    let mut peer = crate::common::initiator(&a);
    a.op(1, read(Remote::default()), 0, 4);
    a.post(2, SendOp::Send, &[a.sge(0, 4)], SendFlags::FENCE | SendFlags::SIGNALED).unwrap();
    let asked = peer.expect_fpdu().read_request();
    peer.expect_silence(50);
    peer.answer(&asked, b"abcd");
    assert_eq!(
        peer.expect_fpdu().payload(),
        b"abcd",
        "the fenced Send carries what the Read brought"
    );
    a.sent_ok(1);
    a.sent_ok(2);
}

#[test]
fn completion_queue_overflow_reported() {
    let (a, b) =
        pair_of(End::made(Make { cqe: 2, ..Make::default() }), End::new(), &ConnConfig::default());
    for i in 0..3 {
        a.op(i, SendOp::Write { remote: b.remote(0) }, 0, 8);
        a.device.pump();
    }
    assert_eq!(a.async_event(), AsyncEvent::CqError { cq: a.scq.num() });
    a.ended();
    assert_eq!(a.qp.state(), QpState::Err);
    assert!(b.ended().reason.unwrap().from_peer);
}

#[test]
fn completion_queue_can_be_resized() {
    let (a, b) =
        pair_of(End::made(Make { cqe: 2, ..Make::default() }), End::new(), &ConnConfig::default());
    a.scq.resize(16).unwrap();
    for i in 0..10 {
        a.op(i, SendOp::Write { remote: b.remote(0) }, 0, 8);
    }
    until("a completion is missing", || a.scq.len() == 10);
    assert!(matches!(a.scq.resize(9), Err(Error::Limit { .. })));
    a.scq.resize(10).unwrap();
    for i in 0..10 {
        a.sent_ok(i);
    }
    assert!(a.scq.resize(0).is_err());
}

fn with_channel(device: &Device) -> (End, Arc<CompChannel>) {
    let channel: Arc<CompChannel> = Arc::default();
    let pd = device.alloc_pd().unwrap();
    let mut end = End::make(device, &pd, Make::default());
    let rcq = device
        .create_cq(64, CqConfig { channel: Some(channel.clone()), timestamps: true, shard: None })
        .unwrap();
    let init = QpInit::new(&end.scq, &rcq);
    end.qp = pd.create_qp(init).unwrap();
    end.rcq = rcq;
    (end, channel)
}

#[test]
fn notification_of_any_or_only_solicited() {
    let (b, channel) = with_channel(&device());
    let (a, b) = pair_of(End::new(), b, &ConnConfig::default());
    for i in 0..6 {
        b.recv(i, i * 64, 64);
    }
    b.rcq.arm(Arm::Solicited);
    a.send(1, 0, 4);
    assert!(b.received_ok(0).timestamp_ns > 0);
    assert!(channel.is_empty());
    a.post(2, SendOp::Send, &[a.sge(0, 4)], SendFlags::SOLICITED | SendFlags::SIGNALED).unwrap();
    let cq = wait(&b.device, |cx| channel.poll_pop(cx)).unwrap();
    assert!(Arc::ptr_eq(&cq.upgrade().unwrap(), &b.rcq));
    b.received_ok(1);
    // The queue is not armed, so there is no event.
    a.send(3, 0, 4);
    b.received_ok(2);
    assert!(channel.is_empty());
    b.rcq.arm(Arm::Any);
    b.rcq.arm(Arm::Solicited);
    a.send(4, 0, 4);
    wait(&b.device, |cx| channel.poll_pop(cx)).unwrap();
    b.received_ok(3);
    // An error counts as solicited.
    b.rcq.arm(Arm::Solicited);
    drop(a);
    wait(&b.device, |cx| channel.poll_pop(cx)).unwrap();
}

/// Connects two ends; the second one takes its receives from a shared queue that contains
/// `receives` receives.
fn pair_with_srq(receives: u64) -> (End, End, Arc<uiw_verbs::Srq>) {
    let device = device();
    let pd = device.alloc_pd().unwrap();
    let srq = pd.create_srq(SrqAttr { max_wr: 8, max_sge: 1, limit: 0 }).unwrap();
    let b = End::make(&device, &pd, Make { srq: Some(srq.clone()), ..Make::default() });
    let (a, b) = pair_of(End::new(), b, &ConnConfig::default());
    let sge = [b.sge(0, 64)];
    // SAFETY: the region lives as long as the connection, and nothing else accesses it.
    unsafe { srq.post_recv((0..receives).map(|wr_id| RecvWr { wr_id, sges: &sge })) }.unwrap();
    (a, b, srq)
}

#[test]
fn shared_receive_queue_limit() {
    let (a, b, srq) = pair_with_srq(4);
    let device = b.device.clone();
    srq.modify(None, Some(3)).unwrap();
    assert!(srq.modify(None, Some(9)).is_err());
    a.send(1, 0, 4);
    b.received_ok(0);
    assert!(device.async_events().is_empty());
    a.send(2, 0, 4);
    b.received_ok(1);
    assert_eq!(b.async_event(), AsyncEvent::SrqLimitReached { srq: srq.num() });
    assert_eq!(srq.query().limit, 0);
    a.send(3, 0, 4);
    b.received_ok(2);
    assert!(device.async_events().is_empty(), "once");
    assert!(b.try_recv(9, &[]).is_err(), "receives go to the shared queue");
    b.qp.modify(QpState::Err).unwrap();
    assert_eq!(b.async_event(), AsyncEvent::LastWqeReached { qp_num: b.qp.num() });
    assert_eq!(srq.users(), 1);
}

/// A program destroys the queue pair when the event has come.
#[test]
fn last_receive_reported_without_connection() {
    let device = device();
    let pd = device.alloc_pd().unwrap();
    let srq = pd.create_srq(SrqAttr { max_wr: 8, max_sge: 1, limit: 0 }).unwrap();
    let end = End::make(&device, &pd, Make { srq: Some(srq), ..Make::default() });
    for _ in 0..2 {
        end.qp.modify(QpState::Err).unwrap();
    }
    assert_eq!(end.async_event(), AsyncEvent::LastWqeReached { qp_num: end.qp.num() });
    assert!(device.async_events().is_empty(), "once");
}

// [test:RFC5040-8.1.1-07]
#[test]
fn deregistration_under_traffic() {
    let (a, b) = tcp_pair();
    let target = memory(&b.pd, 1 << 20, ALL);
    let remote = Remote { addr: target.addr(), rkey: target.rkey() };
    let big = memory(&a.pd, 1 << 20, ALL);
    let sge = [Sge { addr: big.addr(), length: 1 << 20, lkey: big.lkey() }];
    for i in 0..20 {
        a.post(i, SendOp::Write { remote }, &sge, SendFlags::SIGNALED).unwrap();
    }
    a.device.pump();
    target.deregister().map_err(|(e, _)| e).unwrap();
    let reason = a.ended().reason;
    if let Some(reason) = reason {
        assert_eq!((reason.from_peer, reason.layer, reason.etype, reason.code), (true, 1, 1, 0));
    }
    // The memory of a source is deregistered as well, while the peer still exists.
    let (a, b) = tcp_pair();
    let source = memory(&a.pd, 8 << 20, Access::LOCAL_WRITE);
    let target = memory(&b.pd, 8 << 20, ALL);
    let remote = Remote { addr: target.addr(), rkey: target.rkey() };
    let sge = [Sge { addr: source.addr(), length: 8 << 20, lkey: source.lkey() }];
    a.post(1, SendOp::Write { remote }, &sge, SendFlags::SIGNALED).unwrap();
    source.deregister().map_err(|(e, _)| e).unwrap();
    let _ = a.sent();
}

/// With several connections, each one sends a single batch per turn.
#[test]
fn terminate_follows_deregistration_of_queued_source() {
    let device = device();
    let options = ConnConfig::default().crc(false).capabilities(CapabilityExchange::Off);
    let pairs = [(); 5].map(|()| pair_of(End::on(&device), End::new(), &options));
    let (a, b) = &pairs[0];
    // SAFETY: nobody else accesses the memory.
    let memory = unsafe { Memory::owned(16 << 10).unwrap().exclusive() };
    let source = a.pd.register_raw(memory, 0, Access::LOCAL_WRITE).unwrap();
    change_link(|link| link.capacity = 20_000);
    // The socket has no room for all of these, which are copied, and for the last Write, which is
    // sent from its memory.
    for id in 0..8 {
        a.op(id, SendOp::Write { remote: b.remote(0) }, 0, 4096);
    }
    let sge = [Sge { addr: source.addr(), length: 16 << 10, lkey: source.lkey() }];
    a.post(8, SendOp::Write { remote: b.remote(0) }, &sge, SendFlags::SIGNALED).unwrap();
    a.device.pump();
    source.deregister().map_err(|(e, _)| e).unwrap();
    let reason = b.ended().reason.expect("a Terminate");
    assert_eq!((reason.from_peer, reason.layer, reason.etype, reason.code), (true, 0, 0, 0));
}

fn new_key(stag: STag, key: u8) -> STag {
    STag::from_parts(stag.index(), key)
}

// [test:RFC5040-8.1.1-06] [test:RFC5041-8.3.1-06]
#[test]
fn windows_of_both_types() {
    for kind in [WindowType::One, WindowType::Two] {
        let (a, b) = pair();
        let window = b.pd.alloc_window(kind).unwrap();
        let bind = Bind {
            window: window.stag(),
            new_stag: new_key(window.stag(), window.stag().key().wrapping_add(1)),
            region: b.mr.rkey(),
            addr: b.mr.addr() + 100,
            length: 50,
            access: Access::REMOTE_WRITE,
        };
        b.post(1, SendOp::Bind(bind), &[], SendFlags::SIGNALED).unwrap();
        assert_eq!(b.sent_ok(1).opcode, WcOpcode::Bind);
        let remote = Remote { addr: b.mr.addr() + 100, rkey: window.stag() };
        a.op(1, SendOp::Write { remote }, 0, 50);
        a.sent_ok(1);
        // A window grants only its own right and range.
        a.op(2, read(remote), 0, 8);
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status), (2, WcStatus::RemoteAccess), "{kind:?}");
    }
}

/// Binds `window` as `new_stag` to the first 64 bytes of the region of `end`.
fn bind(end: &End, window: &RawMw, new_stag: STag, access: Access) {
    let bind = Bind {
        window: window.stag(),
        new_stag,
        region: end.mr.rkey(),
        addr: end.mr.addr(),
        length: 64,
        access,
    };
    end.post(1, SendOp::Bind(bind), &[], SendFlags::SIGNALED).unwrap();
    end.sent_ok(1);
}

// [test:RFC5040-5.3-15] [test:RFC5040-8.1.1-08]
#[test]
fn type_2_window_invalidated_by_send() {
    let (a, b) = pair();
    let window = b.pd.alloc_window(WindowType::Two).unwrap();
    let stag = new_key(window.stag(), 0x77);
    bind(&b, &window, stag, Access::REMOTE_READ | Access::REMOTE_WRITE);
    assert_eq!(window.stag(), stag);
    let remote = Remote { addr: b.mr.addr(), rkey: stag };
    a.op(1, read(remote), 0, 64);
    a.sent_ok(1);
    b.recv(5, 1000, 64);
    a.op(2, SendOp::SendInvalidate { stag }, 0, 4);
    assert_eq!(b.received_ok(5).invalidated, Some(stag));
    a.sent_ok(2);
    a.op(3, read(remote), 0, 64);
    assert_eq!(a.sent().status, WcStatus::RemoteAccess);
    // A peer may not invalidate an ordinary region.
    let (a, b) = pair();
    b.recv(5, 1000, 64);
    a.op(2, SendOp::SendInvalidate { stag: b.mr.rkey() }, 0, 4);
    let reason = b.ended().reason.unwrap();
    assert_eq!((reason.from_peer, reason.layer, reason.etype, reason.code), (false, 0, 1, 9));
    assert_eq!(b.received().status, WcStatus::Flushed);
}

/// Two streams belong to the same protection domain; a window that one of them has bound is not
/// accessible to the other.
// [test:RFC5041-8.2-02] [test:RFC5041-8.3.1-03] [test:RFC5040-7.2-10]
#[test]
fn type_2_window_serves_one_stream() {
    for reads in [false, true] {
        let (a, b) = pair();
        let window = b.pd.alloc_window(WindowType::Two).unwrap();
        let stag = new_key(window.stag(), 0x21);
        bind(&b, &window, stag, Access::REMOTE_READ | Access::REMOTE_WRITE);
        let other = End::make(&b.device, &b.pd, Make::default());
        let mut peer = responder(&other);
        if reads {
            peer.read(stag.0, b.mr.addr(), 8);
            peer.expect_terminate(0, 1, 3);
        } else {
            peer.write(stag.0, b.mr.addr(), b"x");
            peer.expect_terminate(1, 1, 2);
            assert_eq!(peek(&b.mr, 0, 1), [0]);
        }
        assert!(matches!(other.async_event(), AsyncEvent::QpAccessError { .. }));
        a.op(1, read(Remote { addr: b.mr.addr(), rkey: stag }), 0, 8);
        a.sent_ok(1);
    }
}

/// Sends a Send with Invalidate for `stag` of `b` to a queue pair of `pd` on the device of `b`. The
/// message must be refused and use up its receive, and `a` must still be able to access the memory
/// `still`.
fn refuses_to_invalidate((a, b): (&End, &End), pd: &Pd, stag: STag, still: Option<Remote>) {
    let other = End::make(&b.device, pd, Make::default());
    other.recv(1, 0, 64);
    let mut peer = responder(&other);
    peer.fpdu(&untagged(Opcode::SendInvalidate, 0, 1, 0, true, stag.0, b"x"));
    peer.expect_terminate(0, 1, 9);
    assert_ne!(other.received().status, WcStatus::Success);
    if let Some(remote) = still {
        a.op(7, read(remote), 0, 8);
        a.sent_ok(7);
    }
}

// [test:RFC5040-5.3-14]
#[test]
fn remote_invalidate_of_other_stream_rejected() {
    let (a, b) = pair();
    let other_pd = b.device.alloc_pd().unwrap();
    let remote = |stag: STag| Some(Remote { addr: b.mr.addr(), rkey: stag });
    // The window is bound to another stream, or not bound, or has a different key.
    let window = b.pd.alloc_window(WindowType::Two).unwrap();
    refuses_to_invalidate((&a, &b), &b.pd, window.stag(), None);
    let stag = new_key(window.stag(), 0x31);
    bind(&b, &window, stag, Access::REMOTE_READ);
    for pd in [&b.pd, &other_pd] {
        refuses_to_invalidate((&a, &b), pd, stag, remote(stag));
        refuses_to_invalidate((&a, &b), pd, new_key(stag, 0x30), remote(stag));
    }
    // All streams of the protection domain share this window.
    let window = b.pd.alloc_window(WindowType::One).unwrap();
    bind(
        &b,
        &window,
        new_key(window.stag(), window.stag().key().wrapping_add(1)),
        Access::REMOTE_READ,
    );
    for pd in [&b.pd, &other_pd] {
        refuses_to_invalidate((&a, &b), pd, window.stag(), remote(window.stag()));
    }
    // A fast registration belongs to the stream that posted it, whose peer may invalidate it.
    let fast = b.pd.alloc_fast(64).unwrap();
    let (stag, addr, access) = (new_key(fast.stag(), 9), b.mr.addr(), Access::REMOTE_READ);
    let register = FastRegister { stag, addr, length: 64, base: addr, access };
    b.post(1, SendOp::FastRegister(register), &[], SendFlags::SIGNALED).unwrap();
    b.sent_ok(1);
    for pd in [&b.pd, &other_pd] {
        refuses_to_invalidate((&a, &b), pd, stag, remote(stag));
    }
    b.recv(5, 1000, 64);
    a.op(2, SendOp::SendInvalidate { stag }, 0, 4);
    assert_eq!(b.received_ok(5).invalidated, Some(stag));
}

/// Lenient invalidation applies only to regions in the protection domain of the stream that no
/// other object depends on.
#[test]
fn lenient_invalidation_spares_shared_stags() {
    let lenient =
        crate::simulation::device_with(uiw_verbs::DeviceConfig::default().lenient_invalidate(true));
    let (a, b) = pair_of(End::new(), End::on(&lenient), &ConnConfig::default());
    let other_pd = b.device.alloc_pd().unwrap();
    let region = b.mr.rkey();
    refuses_to_invalidate((&a, &b), &other_pd, region, Some(b.remote(0)));
    let window = b.pd.alloc_window(WindowType::Two).unwrap();
    bind(&b, &window, new_key(window.stag(), 5), Access::REMOTE_READ);
    refuses_to_invalidate((&a, &b), &b.pd, region, Some(b.remote(0)));
    // A region can be invalidated only once.
    let own = memory(&b.pd, 64, ALL);
    let twice = End::make(&b.device, &b.pd, Make::default());
    twice.recv(1, 0, 64);
    let mut peer = responder(&twice);
    peer.fpdu(&untagged(Opcode::SendInvalidate, 0, 1, 0, true, own.rkey().0, b""));
    assert_eq!(twice.received_ok(1).invalidated, Some(own.rkey()));
    refuses_to_invalidate((&a, &b), &b.pd, own.rkey(), None);
}

/// For STags that a program may not invalidate itself, the status reports an error and the STags do
/// not change.
#[test]
fn local_invalidate_of_other_stream_rejected() {
    for what in 0..5 {
        let (a, b) = pair();
        let other = b.device.alloc_pd().unwrap();
        let (one, two) = (
            b.pd.alloc_window(WindowType::One).unwrap(),
            b.pd.alloc_window(WindowType::Two).unwrap(),
        );
        let foreign = other.alloc_window(WindowType::Two).unwrap();
        let server = End::make(&b.device, &b.pd, Make::default());
        let (client, server) = pair_of(End::new(), server, &ConnConfig::default());
        bind(&server, &two, new_key(two.stag(), 8), Access::REMOTE_READ);
        let stag =
            [one.stag(), two.stag(), foreign.stag(), b.mr.rkey(), new_key(two.stag(), 7)][what];
        b.post(3, SendOp::LocalInvalidate { stag }, &[], SendFlags::SIGNALED).unwrap();
        let wc = b.sent();
        assert_eq!((wc.wr_id, wc.status), (3, WcStatus::LocalProtection), "{what}");
        client.op(4, read(Remote { addr: server.mr.addr(), rkey: two.stag() }), 0, 8);
        client.sent_ok(4);
        drop(a);
    }
}

/// A batch of segments keeps the memory they name pinned. A message that invalidates this memory
/// may be part of the batch.
#[test]
fn writes_before_invalidation_in_batch() {
    let (a, b) = pair();
    for round in 0..20u8 {
        let window = b.pd.alloc_window(WindowType::Two).unwrap();
        let stag = new_key(window.stag(), round.wrapping_add(1));
        bind(&b, &window, stag, Access::REMOTE_WRITE);
        let remote = Remote { addr: b.mr.addr(), rkey: stag };
        b.recv(9, 1000, 64);
        let sges = [a.sge(0, 32)];
        let wr = |wr_id, op| SendWr { wr_id, op, sges: &sges, flags: SendFlags::SIGNALED };
        let chain = [
            wr(1, SendOp::Write { remote }),
            wr(2, SendOp::Write { remote }),
            wr(3, SendOp::SendInvalidate { stag }),
        ];
        // SAFETY: the memory is kept until the test's end.
        unsafe { a.qp.post_send(chain) }.unwrap();
        assert_eq!(b.received_ok(9).invalidated, Some(stag));
        for wr_id in 1..=3 {
            a.sent_ok(wr_id);
        }
    }
}

/// A program unbinds it without naming a region.
#[test]
fn type_1_window_unbound() {
    let (a, b) = pair();
    let window = b.pd.alloc_window(WindowType::One).unwrap();
    bind(&b, &window, new_key(window.stag(), 3), Access::REMOTE_READ);
    let bound = window.stag();
    let unbind = Bind {
        window: bound,
        new_stag: new_key(bound, 4),
        region: STag(0),
        addr: 0,
        length: 0,
        access: Access::empty(),
    };
    b.post(2, SendOp::Bind(unbind), &[], SendFlags::SIGNALED).unwrap();
    b.sent_ok(2);
    a.op(3, read(Remote { addr: b.mr.addr(), rkey: bound }), 0, 8);
    assert_eq!(a.sent().status, WcStatus::RemoteAccess);
}

#[test]
fn domain_of_other_device_refused() {
    let (a, mut b) = pair();
    let refused = b.mr.rereg(Some(&a.pd), None, None).unwrap_err();
    assert!(matches!(refused, uiw_mem::ReregError::OtherDevice));
}

// [test:RFC5040-8.1.1-05] [test:RFC5041-8.3.1-05]
#[test]
fn window_that_is_destroyed_is_revoked() {
    let (a, b) = pair();
    let window = b.pd.alloc_window(WindowType::Two).unwrap();
    let stag = new_key(window.stag(), 3);
    bind(&b, &window, stag, Access::REMOTE_READ);
    drop(window);
    a.op(3, read(Remote { addr: b.mr.addr(), rkey: stag }), 0, 8);
    assert_eq!(a.sent().status, WcStatus::RemoteAccess);
}

#[test]
fn fast_register_and_local_invalidate() {
    let (a, b) = pair();
    let fast = b.pd.alloc_fast(4096).unwrap();
    let stag = new_key(fast.stag(), 9);
    let register = FastRegister {
        stag,
        addr: b.mr.addr(),
        length: 4096,
        base: 0x10_0000,
        access: Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE,
    };
    b.post(1, SendOp::FastRegister(register), &[], SendFlags::SIGNALED).unwrap();
    b.sent_ok(1);
    fill(&a.mr, 0, b"fast");
    let remote = Remote { addr: 0x10_0000, rkey: stag };
    a.op(1, SendOp::Write { remote }, 0, 4);
    a.op(2, read(remote), 100, 4);
    a.sent_ok(1);
    a.sent_ok(2);
    assert_eq!(peek(&b.mr, 0, 4), b"fast");
    // The memory is the sink of a Read that invalidates it.
    fill(&a.mr, 500, b"back");
    let sink = [Sge { addr: 0x10_0000, length: 4, lkey: stag }];
    let op = SendOp::Read { remote: a.remote(500), invalidate: Some(stag) };
    b.post(2, op, &sink, SendFlags::SIGNALED).unwrap();
    b.sent_ok(2);
    assert_eq!(peek(&b.mr, 0, 4), b"back");
    let again = FastRegister { stag: new_key(stag, 10), ..register };
    b.post(3, SendOp::FastRegister(again), &[], SendFlags::SIGNALED).unwrap();
    b.sent_ok(3);
    b.post(4, SendOp::LocalInvalidate { stag: again.stag }, &[], SendFlags::SIGNALED).unwrap();
    b.sent_ok(4);
    a.op(3, SendOp::Write { remote: Remote { addr: 0x10_0000, rkey: again.stag } }, 0, 4);
    let reason = a.ended().reason.unwrap();
    assert_eq!((reason.layer, reason.etype, reason.code), (1, 1, 0));
}

#[test]
fn every_transition() {
    let end = End::new();
    let send = || end.post(1, SendOp::Send, &[], SendFlags::SIGNALED).map_err(|e| e.error);
    assert_eq!(end.qp.state(), QpState::Init);
    assert!(matches!(send(), Err(Error::State { .. })));
    for to in [QpState::Rts, QpState::Sqd, QpState::Sqe] {
        assert!(matches!(end.qp.modify(to), Err(Error::Transition { .. })), "{to}");
    }
    end.qp.modify(QpState::Rtr).unwrap();
    assert!(matches!(send(), Err(Error::State { .. })));
    let (_peer, _) = requested(&end, &plain());
    end.qp.modify(QpState::Rts).unwrap();
    assert!(matches!(end.qp.modify(QpState::Sqd), Err(Error::NotConnected)));
    end.qp.modify(QpState::Err).unwrap();
    end.failed();
    send().unwrap();
    assert_eq!(end.sent().status, WcStatus::Flushed);
    end.recv(2, 0, 8);
    assert_eq!(end.received().status, WcStatus::Flushed);
    for to in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd] {
        assert!(end.qp.modify(to).is_err());
    }
    end.qp.modify(QpState::Reset).unwrap();
    assert!(end.try_recv(1, &[]).is_err());
    assert!(send().is_err());
    end.qp.modify(QpState::Err).unwrap();
    end.recv(3, 0, 8);
    assert_eq!(end.received().status, WcStatus::Flushed);
    end.qp.modify(QpState::Reset).unwrap();
    assert!(end.try_recv(1, &[]).is_err());
    end.qp.modify(QpState::Init).unwrap();
    end.recv(3, 0, 8);
}

#[test]
fn drained_queue_resumes() {
    let (a, b) = pair();
    b.recv(1, 0, 64);
    b.recv(2, 100, 64);
    a.send(1, 0, 8);
    a.sent_ok(1);
    a.qp.modify(QpState::Sqd).unwrap();
    assert_eq!(a.async_event(), AsyncEvent::SqDrained { qp_num: a.qp.num() });
    a.send(2, 0, 8);
    b.received_ok(1);
    a.nothing_more();
    // Receiving continues while the send queue is drained.
    a.recv(7, 0, 8);
    b.send(9, 0, 8);
    a.received_ok(7);
    a.qp.modify(QpState::Rts).unwrap();
    a.sent_ok(2);
    b.received_ok(2);
}

/// Its requests wait for the program, so the queue pair is of no use for another connection.
#[test]
fn drained_queue_pair_ends_with_connection() {
    let end = End::new();
    let mut peer = responder_opt(&end, &plain().outlives_peer(true));
    end.qp.modify(QpState::Sqd).unwrap();
    peer.fin();
    end.ended();
    assert_eq!(end.qp.state(), QpState::Err);
}

#[test]
fn element_resolved_to_addresses() {
    let end = End::new();
    let addresses = end.pd.resolve(end.sge(8, 4), true).unwrap();
    assert_eq!(addresses, end.sge(8, 4).addr as usize..end.sge(12, 0).addr as usize);
}

/// The completion queues have less room than there are requests, because a program need not signal
/// each of them.
#[test]
fn reset_or_destroyed_queue_pair_completes_nothing() {
    for destroys in [false, true] {
        let end = End::made(Make { cqe: 2, ..Make::default() });
        let (a, _b) = pair_of(end, End::new(), &ConnConfig::default());
        (0..8).for_each(|id| a.recv(id, 0, 8));
        let End { qp, device, rcq, .. } = a;
        match destroys {
            true => drop(qp),
            false => qp.modify(QpState::Reset).unwrap(),
        }
        assert!(device.async_events().is_empty() && rcq.is_empty());
    }
}

#[test]
fn queue_pair_is_new_after_reset() {
    let end = End::new();
    let limits = |end: &End| (end.qp.query().ord, end.qp.query().ird);
    let new = limits(&end);
    let (a, b) = pair_of(end, End::new(), &ConnConfig::default().ord(0).ird(0));
    assert_eq!(limits(&a), (0, 0));
    a.recv(1, 0, 8);
    a.qp.modify(QpState::Reset).unwrap();
    assert_eq!(limits(&a), new);
    a.qp.modify(QpState::Init).unwrap();
    b.ended();
    a.ended();
    assert!(a.rcq.is_empty() && a.scq.is_empty());
    let (a, c) = pair_of(a, End::new(), &ConnConfig::default());
    c.recv(1, 0, 8);
    a.send(5, 0, 8);
    a.sent_ok(5);
    c.received_ok(1);
    a.recv(2, 0, 8);
    c.send(6, 0, 8);
    a.received_ok(2);
}

// [test:RFC5041-6.2.1-01a] [test:RFC5040-5.5-09]
#[test]
fn disconnect_sends_what_was_posted() {
    let (a, b) = pair();
    for i in 0..50 {
        b.recv(i, i * 64, 64);
    }
    for i in 0..50 {
        a.send(i, 0, 64);
    }
    a.op(50, read(b.remote(0)), 0, 64);
    a.qp.disconnect().unwrap();
    a.post(51, SendOp::Send, &[], SendFlags::SIGNALED).unwrap();
    for i in 0..=50 {
        a.sent_ok(i);
    }
    assert_eq!(a.sent().status, WcStatus::Flushed);
    for i in 0..50 {
        b.received_ok(i);
    }
    assert!(a.ended().orderly && b.ended().orderly);
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Err));
    assert!(a.device.async_events().is_empty() && b.device.async_events().is_empty());
    // Both ends disconnect at the same time.
    let (a, b) = pair();
    let _ = (a.qp.disconnect(), b.qp.disconnect());
    assert!(a.ended().orderly && b.ended().orderly);
}

#[test]
fn objects_dropped_in_any_order() {
    for order in 0..6 {
        let (a, b) = tcp_pair();
        for i in 0..20 {
            b.recv(i, 0, 64);
            a.op(i, SendOp::Write { remote: b.remote(0) }, 0, 60_000);
            a.op(100 + i, read(b.remote(0)), 0, 60_000);
        }
        let End { qp, device, pd, scq, rcq, channel, mr } = a;
        match order {
            0 => drop((mr, pd, scq, rcq, channel, device, qp)),
            1 => drop((qp, device, channel, rcq, scq, pd, mr)),
            2 => drop((device, mr, qp, scq, pd, rcq, channel)),
            3 => drop((scq, rcq, mr, pd, device, channel, qp)),
            4 => {
                drop(b);
                drop((qp, device, pd, scq, rcq, channel, mr));
                continue;
            }
            _ => drop((channel, pd, qp, mr, device, rcq, scq)),
        }
        b.ended();
    }
}

#[test]
fn queue_pair_limit_released() {
    let limits = uiw_verbs::Limits::default().max_qp(2).max_cq(4).max_pd(3);
    let device = crate::simulation::device(limits);
    for _ in 0..4 {
        let (a, b) = (End::on(&device), End::on(&device));
        assert!(device.create_cq(1, CqConfig::default()).is_err());
        let (a, b) = pair_of(a, b, &ConnConfig::default());
        assert!(matches!(a.pd.create_qp(QpInit::new(&a.scq, &a.rcq)), Err(Error::Limit { .. })));
        drop((a, b));
    }
}

#[test]
fn ipv6_wildcard_and_many_listeners() {
    let options = Arc::new(ConnConfig::default());
    let bind = |end: &End, address: &str| {
        Listener::bind(&end.device, address.parse().unwrap(), 8, &options, &end.channel)
    };
    let server = End::tcp();
    let listeners: Vec<_> = (0..100).map(|_| bind(&server, "127.0.0.1:0").unwrap()).collect();
    let client = End::tcp();
    client.connect(listeners[77].local_addr(), &options);
    server.accept(server.request());
    client.established();
    for (listen, host) in [("[::1]:0", "::1"), ("0.0.0.0:0", "127.0.0.1"), ("[::]:0", "::1")] {
        let server = End::tcp();
        let Ok(listener) = bind(&server, listen) else { continue };
        let client = End::tcp();
        client.connect(
            (host.parse::<std::net::IpAddr>().unwrap(), listener.local_addr().port()).into(),
            &options,
        );
        let request = server.request();
        assert_eq!(request.local_addr().ip().to_string(), host);
        server.accept(request);
        client.established();
        server.established();
    }
}

#[test]
fn last_bytes_become_visible_last() {
    let (a, b) = tcp_pair();
    for len in [8usize, 9, 64, 1000, 5000] {
        fill(&b.mr, 0, &vec![0; len]);
        fill(&a.mr, 0, &vec![0xEE; len]);
        a.op(1, SendOp::Write { remote: b.remote(0) }, 0, len as u32);
        while peek(&b.mr, len - 1, 1) != [0xEE] {
            std::thread::yield_now();
        }
        assert!(peek(&b.mr, 0, len).iter().all(|o| *o == 0xEE), "{len}");
        a.sent_ok(1);
    }
}

#[test]
fn write_with_immediate_counts_its_bytes() {
    let (a, b) = pair();
    for (i, len) in [0u32, 1, 1000, 60_000].into_iter().enumerate() {
        b.recv(i as u64, 0, 0);
        a.op(1, SendOp::WriteImm { remote: b.remote(0), imm: 7 + len }, 0, len);
        let wc = b.received_ok(i as u64);
        assert_eq!((wc.byte_len, wc.imm, wc.opcode), (len, Some(7 + len), WcOpcode::RecvWriteImm));
        a.sent_ok(1);
    }
}

#[test]
fn stopped_peer_reset_after_close_timeout() {
    let end = End::new();
    let close_timeout = Duration::from_millis(100);
    let options = plain().close_timeout(close_timeout);
    let mut peer = responder_opt(&end, &options);
    end.op(1, read(Remote::default()), 0, 8);
    peer.expect_fpdu();
    let start = now();
    end.qp.disconnect().unwrap();
    assert!(!end.ended().orderly);
    assert_eq!(now() - start, close_timeout);
    assert_ne!(next_wc(&end.device, &end.scq).status, WcStatus::Success);
}

#[test]
fn request_outlives_its_listener() {
    let (a, b) = (End::new(), End::new());
    let options = ConnConfig::default();
    let listener = b.listen(&options);
    a.connect(listener.local_addr(), &options);
    let request = b.request();
    drop(listener);
    b.accept(request);
    a.established();
    b.established();
}

#[test]
fn large_messages_from_private_memory() {
    for (stable_tx, one_pass) in [
        (StableTx::Off, true),
        (StableTx::Off, false),
        (StableTx::Writes, false),
        (StableTx::On, false),
    ] {
        let options = ConnConfig::default().stable_tx(stable_tx).copy_with_crc(one_pass);
        let private =
            || End::made(Make { memory: 3 << 20, access: Access::LOCAL_WRITE, ..Make::default() });
        let (a, b) = pair_of(private(), private(), &options);
        let data = pattern(3 << 20);
        fill(&a.mr, 0, &data);
        b.try_recv(1, &[b.sge(0, 1 << 20), b.sge(1 << 20, 2 << 20)]).unwrap();
        let sges = [a.sge(0, 100_001), a.sge(100_001, 3), a.sge(100_004, (3 << 20) - 100_004)];
        a.post(1, SendOp::Send, &sges, SendFlags::SIGNALED).unwrap();
        assert_eq!(b.received_ok(1).byte_len, 3 << 20);
        a.sent_ok(1);
        assert!(peek(&b.mr, 0, 3 << 20) == data);
    }
}

#[test]
fn queues_of_no_depth() {
    let cap =
        QpCap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline: 0 };
    let a = End::made(Make { cap, ..Make::default() });
    assert!(matches!(a.try_recv(1, &[]).unwrap_err().error, Error::QueueFull { depth: 0, .. }));
    let (a, _b) = pair_of(a, End::new(), &ConnConfig::default());
    assert!(a.post(1, SendOp::Send, &[], SendFlags::SIGNALED).is_err());
}

#[test]
fn closing_queue_pair_not_drained() {
    let a = End::new();
    let mut peer = crate::common::initiator(&a);
    // ORD is 4, so two of the Reads have not been sent when the close begins.
    for id in 0..6 {
        a.op(id, read(Remote::default()), 0, 4);
    }
    let mut asked: Vec<_> = (0..4).map(|_| peer.expect_fpdu().read_request()).collect();
    a.qp.disconnect().unwrap();
    a.qp.modify(QpState::Sqd).unwrap();
    assert!(matches!(a.qp.modify(QpState::Rts), Err(Error::NotConnected)));
    assert_eq!(a.qp.state(), QpState::Sqd);
    for id in 0..6usize {
        peer.answer(&asked[id], b"data");
        a.sent_ok(id as u64);
        if id < 2 {
            asked.push(peer.expect_fpdu().read_request());
        }
    }
    peer.expect_close();
    peer.fin();
    assert!(a.ended().orderly);
}

#[test]
fn receive_completion_queue_overflow() {
    let (a, b) =
        pair_of(End::new(), End::made(Make { cqe: 1, ..Make::default() }), &ConnConfig::default());
    for i in 0..3 {
        b.recv(i, 0, 64);
        a.send(i, 0, 4);
    }
    assert_eq!(b.async_event(), AsyncEvent::CqError { cq: b.rcq.num() });
    assert!(!b.ended().orderly);
}

/// A responder that may not send yet may bind a window.
#[test]
fn local_requests_independent_of_peer() {
    let end = End::new();
    let asked = crate::peer::request(1);
    let (mut peer, _) = crate::common::responder_with(&end, &plain(), &asked);
    end.established();
    let window = end.pd.alloc_window(WindowType::Two).unwrap();
    bind(&end, &window, new_key(window.stag(), 1), Access::REMOTE_READ);
    end.send(2, 0, 8);
    peer.expect_silence(30);
    peer.empty_write();
    peer.expect_fpdu();
    end.sent_ok(2);
}

/// A program need not read asynchronous events, and peers can cause one with every connection.
#[test]
fn unread_events_dropped_with_object() {
    let none_is_left = |device: &Device| {
        until("an event is left", || device.async_events().is_empty());
    };
    let end = End::new();
    let device = end.device.clone();
    let mut peer = responder(&end);
    // The CRC of this FPDU is wrong.
    peer.raw(&[0; 64]);
    assert!(!end.ended().orderly);
    assert_eq!(device.async_events().len(), 1);
    drop(end);
    none_is_left(&device);

    let (a, b) =
        pair_of(End::new(), End::made(Make { cqe: 1, ..Make::default() }), &ConnConfig::default());
    let device = b.device.clone();
    for i in 0..3 {
        b.recv(i, 0, 64);
        a.send(i, 0, 4);
    }
    assert!(!b.ended().orderly);
    assert!(!device.async_events().is_empty());
    drop(b);
    none_is_left(&device);

    let (a, b, srq) = pair_with_srq(2);
    let device = b.device.clone();
    srq.modify(None, Some(2)).unwrap();
    a.send(1, 0, 4);
    b.received_ok(0);
    assert_eq!(device.async_events().len(), 1);
    drop((b, srq));
    none_is_left(&device);
}

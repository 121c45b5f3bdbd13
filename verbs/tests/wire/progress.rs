//! Tests which thread makes progress: no operation depends on a further call of the application,
//! and an idle process does not spin.

use crate::common::{End, Make, fill, loopback, memory, pair_of, peek, tcp_pair};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};
use uiw_verbs::{
    Arm, CapabilityExchange, CompChannel, ConnConfig, CqConfig, Device, QpCap, QpInit, RecvWr,
    Remote, SendFlags, SendOp, SendWr, Sge,
};

struct NotifiedQueue {
    end: End,
    channel: Arc<CompChannel>,
}

fn notified() -> NotifiedQueue {
    let mut end = End::tcp();
    let channel: Arc<CompChannel> = Arc::default();
    let cq = end
        .device
        .create_cq(256, CqConfig { channel: Some(channel.clone()), timestamps: false, shard: None })
        .unwrap();
    let init = QpInit::new(&end.scq, &cq);
    end.qp = end.pd.create_qp(init).unwrap();
    end.rcq = cq;
    NotifiedQueue { end, channel }
}

/// Connects two ends. The receive queue of the second one has a channel, whose descriptor is in use.
fn pair_with_channel() -> (End, End, Arc<CompChannel>) {
    let NotifiedQueue { end, channel } = notified();
    let (peer, end) = pair_of(End::tcp(), end, &ConnConfig::default());
    channel.fd().unwrap();
    (peer, end, channel)
}

/// Runs a ping-pong between two threads that sleep in their own epoll set: each polls until the
/// queue is empty, arms it, polls again and sleeps. A single lost wake-up makes it hang.
fn event_driven_ping_pong(edge: bool, rounds: u64) {
    let (a, b) = (notified(), notified());
    let (ac, bc) = (a.channel, b.channel);
    let (a, b) = pair_of(a.end, b.end, &ConnConfig::default());
    let play = move |end: End, channel: Arc<CompChannel>, serves: bool| {
        // SAFETY: plain system calls on live descriptors, with live buffers.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(set >= 0);
        let events = libc::EPOLLIN as u32 | if edge { libc::EPOLLET as u32 } else { 0 };
        let mut event = libc::epoll_event { events, u64: 0 };
        let fd = channel.fd().unwrap();
        // SAFETY: as above.
        let added = unsafe {
            libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd.as_fd().as_raw_fd(), &raw mut event)
        };
        assert_eq!(added, 0);
        for i in 0..64 {
            end.recv(i, 0, 64);
        }
        if serves {
            end.send(0, 100, 8);
        }
        let mut got = 0;
        let mut out = Vec::new();
        while got < rounds {
            out.clear();
            end.scq.poll(&mut out, 16);
            out.clear();
            if end.rcq.poll(&mut out, 16) == 0 {
                end.rcq.arm(Arm::Any);
                if end.rcq.poll(&mut out, 16) == 0 {
                    // SAFETY: as above.
                    let ready = unsafe { libc::epoll_wait(set, &raw mut event, 1, 20_000) };
                    assert_eq!(ready, 1, "no event within 20 s in round {got}");
                    while channel.try_pop().is_some() {}
                    continue;
                }
            }
            for wc in &out {
                assert_eq!(wc.status, uiw_verbs::WcStatus::Success);
                got += 1;
                end.recv(wc.wr_id, 0, 64);
                if !serves || got < rounds {
                    end.send(got, 100, 8);
                }
            }
        }
        // SAFETY: as above.
        unsafe { libc::close(set) };
        end
    };
    let other = std::thread::spawn(move || play(b, bc, false));
    let a = play(a, ac, true);
    let b = other.join().unwrap();
    drop((a, b));
}

#[test]
fn wake_ups_not_lost_level_triggered() {
    event_driven_ping_pong(false, 10_000);
}

#[test]
fn wake_ups_not_lost_edge_triggered() {
    event_driven_ping_pong(true, 10_000);
}

/// Returns whether the channel becomes readable within a time in milliseconds.
fn is_readable_within(channel: &CompChannel, timeout: i32) -> bool {
    let mut polled =
        libc::pollfd { fd: channel.fd().unwrap().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `polled` is a single descriptor that can be written to.
    unsafe { libc::poll(&raw mut polled, 1, timeout) == 1 }
}

/// Returns whether the channel becomes readable within 20 s.
fn is_readable(channel: &CompChannel) -> bool {
    is_readable_within(channel, 20_000)
}

/// Returns whether a program that waited on the channel now would sleep.
fn is_asleep(channel: &CompChannel) -> bool {
    !is_readable_within(channel, 0)
}

/// Sleeps until the hint of the last wait has expired: shortly after a wait in one of the engine's
/// calls, arming a queue does not make a program the owner.
fn expire_own_wait_hint() {
    std::thread::sleep(Duration::from_millis(15));
}

/// Arrivals that complete nothing end the sleep of a program that has armed a queue, and the
/// program gets an event each time.
#[test]
fn readable_channel_has_an_event() {
    let (writer, target, channel) = pair_with_channel();
    let remote = target.remote(128);
    for round in 0..5 {
        // Each spurious wake-up makes the pause longer.
        expire_own_wait_hint();
        target.recv(round, 0, 64);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..20 {
                    writer.op(i, SendOp::Write { remote }, 0, 64);
                    writer.sent_ok(i);
                    std::thread::sleep(Duration::from_micros(300));
                }
                writer.send(0, 0, 8);
                writer.sent_ok(0);
            });
            let mut out = Vec::new();
            loop {
                target.rcq.arm(Arm::Any);
                if target.rcq.poll(&mut out, 1) > 0 {
                    break;
                }
                assert!(is_readable(&channel), "no event within 20 s");
                assert!(channel.try_pop().is_some(), "readable, and no event");
            }
            assert_eq!(out[0].wr_id, round);
        });
        while channel.try_pop().is_some() {}
    }
}

#[test]
fn sleep_lasts_until_solicited_completion() {
    let (sender, target, channel) = pair_with_channel();
    for round in 0..5 {
        expire_own_wait_hint();
        target.recv(0, 0, 64);
        target.recv(1, 0, 64);
        target.rcq.arm(Arm::Solicited);
        sender.send(0, 0, 8);
        assert!(
            !is_readable_within(&channel, 20),
            "event for an unsolicited message in round {round}"
        );
        sender.sent_ok(0);
        let flags = SendFlags::SOLICITED | SendFlags::SIGNALED;
        sender.post(1, SendOp::Send, &[sender.sge(0, 8)], flags).unwrap();
        assert!(is_readable(&channel), "no event within 20 s");
        assert!(channel.try_pop().is_some(), "readable, and no event");
        sender.sent_ok(1);
        target.received_ok(0);
        target.received_ok(1);
    }
}

/// The empty poll between arming and sleeping does not read the socket, because the sleep ends if
/// the socket has data. The next poll reads it.
#[test]
fn poll_after_arming_leaves_arrivals() {
    let (sender, target, channel) = pair_with_channel();
    let mut out = Vec::new();
    // The background thread may be faster than the polls.
    let left = (0..200).any(|i| {
        expire_own_wait_hint();
        target.recv(i, 0, 64);
        target.rcq.arm(Arm::Any);
        sender.send(i, 0, 8);
        assert!(is_readable(&channel), "no event within 20 s");
        let polls = [target.rcq.poll(&mut out, 1), target.rcq.poll(&mut out, 1)];
        sender.sent_ok(i);
        while channel.try_pop().is_some() {}
        while out.is_empty() {
            target.rcq.poll(&mut out, 1);
        }
        out.clear();
        polls == [0, 1]
    });
    assert!(left, "every poll after arming read the socket");
}

/// The empty poll between arming and sleeping sends posted requests that are coalesced; otherwise
/// they would wait for a timer.
#[test]
fn poll_after_arming_sends_posts() {
    let (target, sender, channel) = pair_with_channel();
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    let mut rounds = || {
        let mut rounds_sent = 0;
        for i in 0..200 {
            expire_own_wait_hint();
            target.recv(i, 0, 64);
            target.recv(i, 64, 64);
            sender.rcq.arm(Arm::Any);
            // The second request is coalesced, because the completion of the first one has not been
            // taken.
            sender.send(i, 100, 8);
            sender.send(i, 100, 8);
            assert_eq!(sender.rcq.poll(&mut sent, 1), 0);
            // Data passed to loopback is available immediately.
            while target.rcq.poll(&mut received, 16) > 0 {}
            rounds_sent += u32::from(received.len() == 2);
            while received.len() < 2 {
                target.rcq.poll(&mut received, 16);
            }
            received.clear();
            sender.sent_ok(i);
            sender.sent_ok(i);
            while channel.try_pop().is_some() {}
        }
        rounds_sent
    };
    // If other processes keep the processors busy, loopback may deliver the data after the poll in
    // many rounds.
    let rounds_sent = (0..8).map(|_| rounds()).find(|sent| *sent > 100);
    assert!(rounds_sent.is_some(), "polls after arming left requests unsent in most rounds");
}

/// A program posts a request, polls its queue until it is empty and sleeps in poll(2). Once this
/// pattern has been observed, the completion of the request does not end the sleep. Arriving data
/// does, and so does a completion that the program has not polled.
#[test]
fn polled_completion_does_not_end_sleep() {
    let NotifiedQueue { end, channel } = notified();
    channel.fd().unwrap();
    let peer = End::tcp();
    let mut end = end;
    let init = QpInit::new(&end.rcq, &end.rcq);
    end.qp = end.pd.create_qp(init).unwrap();
    let (peer, target) = pair_of(peer, end, &ConnConfig::default());
    let mut out = Vec::new();
    expire_own_wait_hint();
    let mut round = |i: u64| {
        target.recv(i, 0, 64);
        peer.recv(i, 0, 64);
        target.rcq.arm(Arm::Any);
        target.send(i, 100, 8);
        target.rcq.poll(&mut out, 16);
        let undisturbed = is_asleep(&channel);
        peer.received_ok(i);
        peer.send(i, 0, 8);
        while out.len() < 2 {
            assert!(is_readable(&channel), "no event within 20 s");
            assert!(channel.try_pop().is_some(), "readable, and no event");
            target.rcq.arm(Arm::Any);
            target.rcq.poll(&mut out, 16);
        }
        peer.sent_ok(i);
        out.clear();
        undisturbed
    };
    // On a busy machine the background thread sometimes makes progress for up to a second and
    // signals the channel in the meantime.
    let mut most = 0;
    let begun = Instant::now();
    while most < 150 && begun.elapsed() < Duration::from_secs(20) {
        most = most.max((0..200).filter(|i| round(*i)).count());
    }
    assert!(
        most >= 150,
        "a completion that was polled ended at least {} sleeps of each 200",
        200 - most
    );
    target.recv(2000, 0, 64);
    peer.recv(2000, 0, 64);
    while channel.try_pop().is_some() {}
    target.rcq.arm(Arm::Any);
    target.send(2000, 100, 8);
    assert!(is_readable(&channel), "no event of a completion that was not polled within 20 s");
    assert!(channel.try_pop().is_some());
    assert_eq!(target.rcq.poll(&mut out, 16), 1);
}

/// If a program arms a queue and then computes instead of sleeping, its peer is delayed only until
/// the background thread takes over.
#[test]
fn sleepless_armed_program_replaced() {
    let (reader, target, channel) = pair_with_channel();
    target.recv(1, 0, 64);
    let remote = target.remote(128);
    for _ in 0..3 {
        expire_own_wait_hint();
        target.rcq.arm(Arm::Any);
        // The target's program makes no calls in the meantime.
        for i in 0..20 {
            reader.op(i, SendOp::Read { remote, invalidate: None }, 0, 64);
            reader.sent_ok(i);
        }
        // It gets an event if its descriptor became readable.
        while channel.try_pop().is_some() {}
    }
}

#[test]
fn several_pollers_share_a_queue() {
    let (a, b) = tcp_pair();
    let total = 4000u64;
    let taken = AtomicU64::new(0);
    let sum = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut out = Vec::new();
                while taken.load(Ordering::SeqCst) < total {
                    out.clear();
                    let got = b.rcq.poll(&mut out, 3);
                    for wc in &out {
                        sum.fetch_add(wc.wr_id, Ordering::SeqCst);
                        if wc.wr_id + 100 < total {
                            b.recv(wc.wr_id + 100, 0, 64);
                        }
                    }
                    taken.fetch_add(got as u64, Ordering::SeqCst);
                }
            });
        }
        for i in 0..100 {
            b.recv(i, 0, 64);
        }
        for i in 0..total {
            a.send(i, 0, 16);
            a.sent_ok(i);
        }
    });
    assert_eq!(sum.load(Ordering::SeqCst), total * (total - 1) / 2, "each once");
}

#[test]
fn sleeping_application_serves_peer() {
    let (a, b) = tcp_pair();
    fill(&b.mr, 0, b"served");
    // `b` makes no further calls.
    a.op(1, SendOp::Read { remote: b.remote(0), invalidate: None }, 100, 6);
    a.sent_ok(1);
    assert_eq!(peek(&a.mr, 100, 6), b"served");
    a.op(2, SendOp::Write { remote: b.remote(50) }, 100, 6);
    a.op(3, SendOp::FetchAdd { remote: b.remote(64), add: 5, mask: 0 }, 200, 8);
    a.sent_ok(2);
    a.sent_ok(3);
    assert_eq!(peek(&b.mr, 50, 6), b"served");
}

/// Coalesced posts are sent without any further call of the poster.
#[test]
fn coalesced_posts_sent_without_call() {
    let (a, b) = tcp_pair();
    for i in 0..100 {
        b.recv(i, 0, 64);
    }
    for i in 0..100 {
        a.send(i, 0, 16);
    }
    for i in 0..100 {
        b.received_ok(i);
    }
}

/// Connects two ends with settings under which no timer wakes a thread: neither for a capability
/// request nor for a waiting Send.
fn without_timers() -> (End, End) {
    let options = ConnConfig::default()
        .capabilities(CapabilityExchange::Off)
        .no_receive_timeout(Duration::MAX)
        .startup_timeout(Duration::from_secs(3600));
    pair_of(End::tcp(), End::tcp(), &options)
}

/// After a single poll the program may never poll again, so its requests must be sent without
/// another poll. The background thread sleeps in the stack's descriptor at that time, because it
/// was driving while no thread polled.
#[test]
fn posts_after_single_poll_sent() {
    let (a, b) = without_timers();
    for i in 0..20 {
        b.recv(i, 0, 64);
    }
    // This is long enough for all threads to fall asleep.
    std::thread::sleep(Duration::from_millis(50));
    let mut out = Vec::new();
    a.scq.poll(&mut out, 1);
    for i in 0..20 {
        a.send(i, 0, 8);
    }
    for i in 0..20 {
        b.received_ok(i);
    }
}

/// Like the previous test for receives: a stream that waits for a receive continues, although the
/// program, which has polled once, makes no further call.
#[test]
fn receives_after_single_poll_used() {
    let (a, b) = without_timers();
    a.send(1, 0, 8);
    a.sent_ok(1);
    std::thread::sleep(Duration::from_millis(50));
    let mut out = Vec::new();
    b.rcq.poll(&mut out, 1);
    assert!(out.is_empty());
    b.recv(2, 0, 8);
    let deadline = Instant::now() + Duration::from_secs(20);
    while b.rcq.is_empty() {
        assert!(Instant::now() < deadline, "the receive that was posted is not used");
        std::thread::yield_now();
    }
    b.received_ok(2);
}

#[test]
fn thousand_connections_on_one_driver() {
    let server = Device::open().unwrap();
    let client = Device::open().unwrap();
    let options = Arc::new(ConnConfig::default());
    let (sc, cc) = (Arc::default(), Arc::default());
    let listener = uiw_verbs::cm::Listener::bind(&server, loopback(), 4096, &options, &sc).unwrap();
    let make = |device: &Device| {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(2048, CqConfig::default()).unwrap();
        let mr = memory(&pd, 4096, crate::common::ALL);
        let qps: Vec<_> = (0..1000)
            .map(|_| {
                let (send_cq, recv_cq) = (cq.clone(), cq.clone());
                let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, ..QpCap::default() };
                let qp = pd
                    .create_qp(QpInit::new(&send_cq, &recv_cq).cap(cap).signal_all(false))
                    .unwrap();
                let sges = [Sge { addr: mr.addr(), length: 64, lkey: mr.lkey() }];
                // SAFETY: the memory is accessed only through copies, and it outlives the queue
                // pairs.
                unsafe { qp.post_recv([RecvWr { wr_id: 1, sges: &sges }]) }.unwrap();
                qp
            })
            .collect();
        (cq, qps, mr)
    };
    let (scq, sqps, smr) = make(&server);
    let (ccq, cqps, cmr) = make(&client);
    for chunk in 0..10 {
        for qp in &cqps[chunk * 100..][..100] {
            uiw_verbs::cm::connect(qp, None, listener.local_addr(), &options, b"", &cc).unwrap();
        }
        for qp in &sqps[chunk * 100..][..100] {
            let request = loop {
                match crate::common::next_event(&server, &sc) {
                    uiw_verbs::cm::CmEventKind::ConnectRequest(request) => break request,
                    uiw_verbs::cm::CmEventKind::Established(_) => {}
                    other => panic!("{other:?}"),
                }
            };
            request.accept(qp, None, b"", None).unwrap();
        }
        for _ in 0..100 {
            let event = crate::common::next_event(&client, &cc);
            assert!(matches!(event, uiw_verbs::cm::CmEventKind::Established(_)), "{event:?}");
        }
    }
    let ping = |qps: &[uiw_verbs::Qp], mr: &uiw_verbs::RawMr| {
        for qp in qps {
            let sges = [Sge { addr: mr.addr() + 1000, length: 64, lkey: mr.lkey() }];
            let wr = SendWr { wr_id: 2, op: SendOp::Send, sges: &sges, flags: SendFlags::empty() };
            // SAFETY: as above.
            unsafe { qp.post_send([wr]) }.unwrap();
        }
    };
    ping(&cqps, &cmr);
    for _ in 0..1000 {
        assert_eq!(crate::common::next_wc(&server, &scq).status, uiw_verbs::WcStatus::Success);
    }
    ping(&sqps, &smr);
    for _ in 0..1000 {
        assert_eq!(crate::common::next_wc(&client, &ccq).status, uiw_verbs::WcStatus::Success);
    }
    drop((cqps, sqps));
}

/// Returns the processor time used by the threads named `uiw-driver` that serve an idle pair of
/// devices.
fn driver_time(threads: &[u32]) -> Duration {
    let mut ticks = 0u64;
    for thread in threads {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat"))
            .unwrap_or_default();
        ticks += stat.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    }
    Duration::from_nanos(ticks)
}

/// An idle connection uses no processor time. Other tests run in this process, so the measurement
/// is made in a process of its own.
#[test]
fn idle_process_takes_no_processor_time() {
    if std::env::var_os("UIW_IDLE").is_none() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "progress::idle_process_takes_no_processor_time", "--nocapture"])
            .env("UIW_IDLE", "1")
            // The output is captured, because it must not mix with the output of this process.
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let (a, b) = tcp_pair();
    b.recv(1, 0, 64);
    a.send(1, 0, 8);
    b.received_ok(1);
    a.sent_ok(1);
    b.rcq.arm(Arm::Any);
    std::thread::sleep(Duration::from_millis(1200));
    let threads: Vec<u32> = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .collect();
    let before = driver_time(&threads);
    std::thread::sleep(Duration::from_secs(2));
    let used = driver_time(&threads) - before;
    assert!(used < Duration::from_millis(20), "{used:?}");
}

/// A stream that stalls because no receive is posted does not delay another stream.
#[test]
fn stalled_stream_delays_no_other() {
    let server = Device::open().unwrap();
    let client = Device::open().unwrap();
    let options = ConnConfig::default().no_receive_timeout(Duration::from_secs(60));
    let make = Make::default;
    let (a1, b1) = pair_of(
        End::make(&client, &client.alloc_pd().unwrap(), make()),
        End::make(&server, &server.alloc_pd().unwrap(), make()),
        &options,
    );
    let (a2, b2) = pair_of(
        End::make(&client, &client.alloc_pd().unwrap(), make()),
        End::make(&server, &server.alloc_pd().unwrap(), make()),
        &options,
    );
    for i in 0..20 {
        a1.send(i, 0, 60_000);
    }
    for i in 0..50 {
        b2.recv(i, 0, 64);
        a2.send(i, 0, 64);
        b2.received_ok(i);
        a2.op(1000, SendOp::Read { remote: Remote { ..b2.remote(0) }, invalidate: None }, 0, 64);
        a2.sent_ok(i);
        a2.sent_ok(1000);
    }
    for i in 0..20 {
        b1.recv(i, 0, 64_000);
        assert_eq!(b1.received_ok(i).byte_len, 60_000);
    }
    for i in 0..20 {
        a1.sent_ok(i);
    }
}

/// Each attempt is followed by a wake-up, as for a thread that waits next to busy connections.
#[test]
fn wait_unaffected_by_foreign_wakeups() {
    let device = Device::open().unwrap();
    let begun = Instant::now();
    let mut attempts = 0;
    let waited = device.wait(Some(begun + Duration::from_millis(20)), |cx| {
        attempts += 1;
        cx.waker().wake_by_ref();
        // If the wait did not observe its own timeout, it would end here.
        if begun.elapsed() < Duration::from_secs(5) { Poll::Pending } else { Poll::Ready(()) }
    });
    assert_eq!(waited, None, "after {attempts} attempts");
    assert!(attempts > 1);
}

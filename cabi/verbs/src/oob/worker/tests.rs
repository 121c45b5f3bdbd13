//! Two workers in one process, each with its own engine, like those of two processes.

use super::*;
use crate::device::gid;
use crate::oob::pair_info::PairEnd;
use std::fs;
use std::net::Ipv4Addr;
use uiw_cabi_core::abi::ibv_gid;
use uiw_verbs::cm::Listener;
use uiw_verbs::{CqConfig, Device, QpInit, SendFlags, SendOp, SendWr};

const IP: Ipv4Addr = Ipv4Addr::LOCALHOST;

struct TestSide {
    device: Device,
    worker: Arc<Worker>,
    _listener: Listener,
    port: u16,
    number: u32,
    cq: Arc<uiw_verbs::Cq>,
    qp: Arc<uiw_verbs::Qp>,
}

impl TestSide {
    fn new() -> Self {
        let device = Device::open().unwrap();
        let worker = Worker::start(&device).unwrap();
        let options = worker.options();
        let listener =
            Listener::bind(&device, (IP, 0).into(), 16, options, worker.channel()).unwrap();
        let port = listener.local_addr().port();
        let number = u32::from(port) << 8 | 7;
        let cq = device.create_cq(64, CqConfig::default()).unwrap();
        let init = QpInit::new(&cq, &cq).num(number);
        let qp = Arc::new(device.alloc_pd().unwrap().create_qp(init).unwrap());
        Self { device, worker, _listener: listener, port, number, cq, qp }
    }

    /// Returns two sides. The first one has the smaller number.
    fn two() -> [Self; 2] {
        let mut sides = [Self::new(), Self::new()];
        sides.sort_by_key(|side| side.number);
        sides
    }

    fn end(&self) -> PairEnd {
        PairEnd { qp_num: self.number, gid: local() }
    }

    /// Enters RTR and RTS, with `peer` as the peer.
    fn enter_rts(&self, peer: &Self) {
        let target = Target {
            own: self.end(),
            peer: peer.end(),
            local: (IP, 0).into(),
            remote: (IP, peer.port).into(),
            is_self: false,
            unreliable: false,
            expected_psn: 0,
            first_psn: Some(0),
        };
        self.qp.modify(QpState::Rtr).unwrap();
        self.worker.connect(self.number, &self.qp, &Arc::default(), target);
        self.qp.modify(QpState::Rts).unwrap();
    }

    /// Calls `body` with the state of the pair, if there is one.
    fn with_pair<T>(&self, body: impl FnOnce(&mut PairState) -> T) -> Option<T> {
        let pair = self.worker.pair(self.number)?;
        pair.lock().as_mut().map(body)
    }

    /// Connects now, without the responder's delay.
    fn hurry(&self) {
        self.with_pair(|pair| pair.next_attempt = Some(Instant::now()));
        self.worker.wake();
    }

    fn connects(&self) -> bool {
        self.with_pair(|pair| matches!(pair.phase, Phase::Connecting(_))) == Some(true)
    }

    fn is_established(&self) -> bool {
        self.with_pair(|pair| matches!(pair.phase, Phase::Established(_))) == Some(true)
    }

    /// Sends a message of no bytes, and waits for its arrival.
    fn sends_to(&self, peer: &Self) {
        // SAFETY: the requests have no elements and no inline data, and none of them is a
        // `FastRegister`, so the engine gets no memory for which `post_send` and `post_recv` have a
        // rule.
        unsafe {
            peer.qp.post_recv([uiw_verbs::RecvWr { wr_id: 1, sges: &[] }]).unwrap();
            let wr = SendWr { wr_id: 2, op: SendOp::Send, sges: &[], flags: SendFlags::SIGNALED };
            self.qp.post_send([wr]).unwrap();
        }
        for side in [self, peer] {
            let mut out = Vec::new();
            until(|| {
                side.device.pump();
                side.cq.poll(&mut out, 1) == 1
            });
            assert_eq!(out[0].status, WcStatus::Success);
        }
    }
}

fn local() -> ibv_gid {
    gid::from_address(IP.into())
}

fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "it did not happen");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the number of established TCP connections to `port` on loopback. A connection may be
/// counted twice while other tests open and close sockets, because the kernel's table is read in
/// parts.
fn established(port: u16) -> usize {
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let accepted = |line: &&str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let own = words[1].rsplit_once(':').map(|(_, hex)| u16::from_str_radix(hex, 16));
        own == Some(Ok(port)) && words[3] == "01"
    };
    table.lines().skip(1).filter(accepted).count()
}

/// If both ends connect at the same time, the connection of the smaller number is kept.
#[test]
fn simultaneous_connections_keep_smaller_number() {
    for _ in 0..20 {
        let [smaller, larger] = &TestSide::two();
        larger.enter_rts(smaller);
        {
            // The peer's thread accepts no connection before it has connected itself.
            let _stopped = larger.worker.pending.lock();
            smaller.enter_rts(larger);
            until(|| smaller.connects());
            larger.with_pair(|pair| larger.worker.initiate(larger.number, pair)).unwrap();
        }
        until(|| smaller.is_established() && larger.is_established());
        smaller.sends_to(larger);
        larger.sends_to(smaller);
        // The connection that the smaller number made is kept. The sockets of the other one may
        // close later.
        until(|| established(smaller.port) == 0 && established(larger.port) == 1);
    }
}

/// A connection that arrives before the queue pair is ready waits, at either end.
#[test]
fn early_connection_accepted_later() {
    let [smaller, larger] = &TestSide::two();
    larger.enter_rts(smaller);
    larger.hurry();
    until(|| !smaller.worker.pending.lock().0.is_empty());
    smaller.enter_rts(larger);
    until(|| smaller.is_established() && larger.is_established());
    larger.sends_to(smaller);
    until(|| established(smaller.port) == 1);
}

/// If connections cannot reach the port of the larger number, that end connects and is accepted.
#[test]
fn larger_number_connects_instead_of_smaller() {
    let [smaller, larger] = &TestSide::two();
    smaller.enter_rts(larger);
    smaller.with_pair(|pair| {
        // No listener has this port.
        pair.target.remote.set_port(1);
        if let Phase::Connecting(conn) = pair.phase {
            cm::abandon(&pair.qp);
            smaller.worker.tables.lock().conns.remove(&conn);
            pair.retry_later();
        }
    });
    larger.enter_rts(smaller);
    until(|| smaller.is_established() && larger.is_established());
    smaller.sends_to(larger);
    until(|| established(smaller.port) == 1);
}

/// A thread that posts to, moves or destroys a queue pair does not wait while the worker's thread
/// is in a call of the engine for another one.
#[test]
fn pairs_do_not_wait_for_others() {
    let (a, b) = (TestSide::new(), TestSide::new());
    a.enter_rts(&b);
    b.enter_rts(&a);
    until(|| a.is_established() && b.is_established());
    let other = a.number ^ 1;
    let target = a.with_pair(|pair| pair.target).unwrap();
    // This simulates that the thread is in a call of the engine for the pair `other`.
    let busy = Arc::new(Mutex::new(None));
    let mut tables = a.worker.tables.lock();
    tables.pairs.insert(other, Arc::clone(&busy));
    tables.unconnected.insert(other);
    drop(tables);
    let (working, pending) = (busy.lock(), a.worker.pending.lock());
    let is_connecting = || a.with_pair(|pair| pair.connecting.load(Ordering::Relaxed)).unwrap();
    a.with_pair(|pair| pair.connecting.store(true, Ordering::Relaxed));
    a.worker.note_post(a.number);
    assert!(!is_connecting(), "a connection is established");
    a.worker.enter_rts(a.number, Some(0), RetryPolicy::UNLIMITED);
    a.worker.forget(a.number);
    a.worker.connect(a.number, &a.qp, &Arc::default(), target);
    a.worker.note_post(a.number);
    a.worker.forget(a.number);
    drop((working, pending));
}

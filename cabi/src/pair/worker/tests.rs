//! Two workers in one process, each with an engine of its own, as two processes have them.

use super::*;
use crate::abi::ibv_gid;
use crate::device::gid;
use crate::pair::hello::End;
use std::fs;
use std::net::Ipv4Addr;
use verbs::cm::Listener;
use verbs::{CqOptions, Device, QpCap, QpInit, SendFlags, SendOp, SendWr};

const IP: Ipv4Addr = Ipv4Addr::LOCALHOST;

struct Side {
    device: Device,
    worker: Arc<Worker>,
    _listener: Listener,
    port: u16,
    number: u32,
    cq: Arc<verbs::Cq>,
    qp: Arc<verbs::Qp>,
}

impl Side {
    fn new() -> Self {
        let device = Device::open().unwrap();
        let worker = Worker::start(&device).unwrap();
        let options = Arc::new(worker.options());
        let listener = Listener::bind(&device, (IP, 0).into(), 16, &options, worker.channel()).unwrap();
        let port = listener.local_addr().port();
        let number = u32::from(port) << 8 | 7;
        let cq = device.create_cq(64, CqOptions::default()).unwrap();
        let init = QpInit {
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            cap: QpCap::default(),
            signal_all: true,
            num: Some(number),
        };
        let qp = Arc::new(device.alloc_pd().unwrap().create_qp(init).unwrap());
        Self { device, worker, _listener: listener, port, number, cq, qp }
    }

    fn end(&self) -> End {
        End { qp_num: self.number, gid: local() }
    }

    /// RTR and RTS, towards `peer`.
    fn ready(&self, peer: &Self) {
        let target = Target {
            own: self.end(),
            peer: peer.end(),
            local: (IP, 0).into(),
            remote: (IP, peer.port).into(),
            itself: false,
            expects: 0,
            begins: Some(0),
        };
        self.qp.modify(QpState::Rtr).unwrap();
        self.worker.want(self.number, &self.qp, &Arc::default(), target);
        self.qp.modify(QpState::Rts).unwrap();
    }

    /// Calls now, whoever's turn it is.
    fn hurry(&self) {
        if let Some(pair) = self.worker.state.lock().pairs.get_mut(&self.number) {
            pair.next = Some(Instant::now());
        }
        self.worker.wake();
    }

    fn calls(&self) -> bool {
        let state = self.worker.state.lock();
        state.pairs.get(&self.number).is_some_and(|pair| matches!(pair.phase, Phase::Calling(_)))
    }

    fn stands(&self) -> bool {
        let state = self.worker.state.lock();
        state.pairs.get(&self.number).is_some_and(|pair| matches!(pair.phase, Phase::Standing(_)))
    }

    /// A message without octets reaches the peer.
    fn sends_to(&self, peer: &Self) {
        // SAFETY: no memory is named.
        unsafe {
            peer.qp.post_recv([verbs::RecvWr { wr_id: 1, sges: &[] }]).unwrap();
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
        assert!(Instant::now() < end, "it does not happen");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Connections from somewhere to `port` on loopback that stand.
fn standing(port: u16) -> usize {
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let accepted = |line: &&str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let own = words[1].rsplit_once(':').map(|(_, hex)| u16::from_str_radix(hex, 16));
        own == Some(Ok(port)) && words[3] == "01"
    };
    table.lines().skip(1).filter(accepted).count()
}

/// Both ends call at the same time: the call of the smaller number is the one that stays.
#[test]
fn of_two_calls_that_of_the_smaller_number_survives() {
    for _ in 0..20 {
        let (a, b) = (Side::new(), Side::new());
        let (smaller, larger) = if a.number < b.number { (&a, &b) } else { (&b, &a) };
        larger.ready(smaller);
        {
            // Its worker takes no call before it has called itself.
            let mut state = larger.worker.state.lock();
            smaller.ready(larger);
            until(|| smaller.calls());
            state.call(larger.number, &larger.worker);
        }
        until(|| a.stands() && b.stands());
        smaller.sends_to(larger);
        larger.sends_to(smaller);
        until(|| standing(smaller.port) == 0);
        assert_eq!(standing(larger.port), 1, "the connection is the one that the smaller number made");
    }
}

/// A call that comes before the queue pair is ready for it waits, whoever makes it.
#[test]
fn an_early_call_is_answered_later() {
    let (a, b) = (Side::new(), Side::new());
    let (smaller, larger) = if a.number < b.number { (&a, &b) } else { (&b, &a) };
    larger.ready(smaller);
    larger.hurry();
    until(|| !smaller.worker.state.lock().callers.is_empty());
    smaller.ready(larger);
    until(|| a.stands() && b.stands());
    larger.sends_to(smaller);
    assert_eq!(standing(smaller.port), 1);
}

/// Nobody answers at the larger number's port: the larger number calls, and is answered.
#[test]
fn the_larger_number_calls_where_the_smaller_one_cannot() {
    let (a, b) = (Side::new(), Side::new());
    let (smaller, larger) = if a.number < b.number { (&a, &b) } else { (&b, &a) };
    smaller.ready(larger);
    {
        // Where nobody listens.
        let mut state = smaller.worker.state.lock();
        let pair = state.pairs.get_mut(&smaller.number).unwrap();
        pair.target.remote.set_port(1);
        if let Phase::Calling(conn) = pair.phase {
            cm::abandon(&pair.qp);
            state.conns.remove(&conn);
            state.pairs.get_mut(&smaller.number).unwrap().again();
        }
    }
    larger.ready(smaller);
    until(|| a.stands() && b.stands());
    smaller.sends_to(larger);
    assert_eq!(standing(smaller.port), 1);
}

//! What a queue pair receives when many datagrams come in one message of the kernel.

use crate::common::{Make, next_wc, peek};
use crate::datagrams::{LOCALHOST, QKEY, Ud};
use crate::transport::pass;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use uiw_datagram::{Header, OVERHEAD, Qpn};
use uiw_llp::tcp::TcpStack;
use uiw_llp::{DatagramSocket, Outgoing, Stack as _, Token};
use uiw_verbs::{
    Cq, CqOptions, Device, Pd, Qp, QpCap, QpInit, QpState, RecvWr, Srq, SrqAttr, Wc, WcOpcode, WcStatus,
};

/// Receives of a queue pair, and bytes of each.
const RECEIVES: u32 = 64;
const ROOM: u32 = 128;
/// Bytes of each payload but the last.
const PAYLOAD: usize = 24;
/// Datagrams of one run.
const RUN: u64 = 60;

/// A peer that sends what it likes.
struct Peer {
    socket: Box<dyn DatagramSocket>,
    to: SocketAddr,
    _stack: TcpStack,
}

impl Peer {
    fn new(to: SocketAddr) -> Self {
        let mut stack = TcpStack::new().unwrap();
        let socket = stack.bind_datagrams((LOCALHOST, 0).into(), &Default::default(), Token(1)).unwrap();
        Self { socket, to, _stack: stack }
    }

    fn qpn(&self) -> Qpn {
        Qpn::new(self.socket.local_addr().port(), 5)
    }

    /// A datagram whose payload begins with its number.
    fn datagram(&self, number: u64, len: usize, change: impl FnOnce(&mut Header)) -> Vec<u8> {
        let mut header = Header {
            epoch: 1,
            destination: Qpn::from_raw(0),
            source: self.qpn(),
            qkey: QKEY,
            msn: number as u32,
            solicited: false,
            immediate: None,
        };
        change(&mut header);
        let mut bytes = header.emit().to_vec();
        bytes.extend((0..len).map(|at| number.to_le_bytes().get(at).copied().unwrap_or(number as u8)));
        bytes.extend_from_slice(&uiw_datagram::crc(&bytes));
        bytes
    }

    /// Sends datagrams of one length, but for the last, in one message.
    fn send(&mut self, datagrams: &[Vec<u8>]) {
        let bytes = datagrams.concat();
        let item = |run: &[Vec<u8>]| Outgoing { count: run.len(), ..Outgoing::new(self.to, run[0].len()) };
        let items: Vec<_> = datagrams.chunk_by(|one, next| one.len() == next.len()).map(item).collect();
        assert_eq!(self.socket.send(&bytes, &items).unwrap(), datagrams.len());
    }
}

/// What becomes of the datagram of a number.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fate {
    /// The first queue pair receives it, or the second.
    Received(usize),
    BadCrc,
    BadQkey,
    NoQueuePair,
}

fn fate(number: u64) -> Fate {
    match number % 12 {
        3 => Fate::BadCrc,
        5 | 6 => Fate::Received(1),
        7 => Fate::BadQkey,
        10 => Fate::NoQueuePair,
        _ => Fate::Received(0),
    }
}

/// Where messages are received.
enum Source {
    Own,
    NewestFirst,
    Shared(Arc<Srq>),
}

/// A queue pair with a completion queue of its own.
struct Receiver {
    qp: Qp,
    cq: Arc<Cq>,
    source: Source,
    /// Numbers of the receives that are posted, oldest first.
    posted: Vec<u64>,
    next: u64,
    /// Where its memory begins in the region.
    at: u64,
}

impl Receiver {
    fn new(ud: &Ud, source: Source, at: u64) -> Self {
        let port = ud.end.qp.datagram_port().unwrap();
        let shard = CqOptions { shard: Some(ud.end.rcq.shard()), ..CqOptions::default() };
        let cq = ud.end.device.create_cq(RECEIVES, shard).unwrap();
        let cap = QpCap { max_recv_wr: RECEIVES, ..QpCap::default() };
        let init = QpInit::new(&ud.end.scq, &cq).cap(cap);
        let init = match &source {
            Source::Own => init,
            Source::NewestFirst => init.newest_receive_first(),
            Source::Shared(srq) => init.srq(Some(Arc::clone(srq))),
        };
        let qp = ud.end.pd.create_ud_qp(init, port).unwrap();
        qp.set_qkey(QKEY).unwrap();
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            qp.modify(state).unwrap();
        }
        Self { qp, cq, source, posted: Vec::new(), next: 0, at }
    }

    /// Posts receives until as many are there as there may be.
    fn fill(&mut self, ud: &Ud) {
        while self.posted.len() < RECEIVES as usize {
            let offset = self.at + self.next % u64::from(RECEIVES) * u64::from(ROOM);
            let (wr_id, sges) = (self.next, [ud.end.sge(offset, ROOM)]);
            // SAFETY: the region lives longer than the queue pair.
            unsafe {
                match &self.source {
                    Source::Shared(srq) => srq.post_recv([RecvWr { wr_id, sges: &sges }]),
                    _ => self.qp.post_recv([RecvWr { wr_id, sges: &sges }]),
                }
            }
            .unwrap();
            self.posted.push(self.next);
            self.next += 1;
        }
    }

    /// The next message is the datagram of this number.
    fn received(&mut self, ud: &Ud, number: u64, from: Qpn, len: usize) {
        let wc = next_wc(&ud.end.device, &self.cq);
        let newest = matches!(self.source, Source::NewestFirst);
        let wr_id = if newest { self.posted.pop().unwrap() } else { self.posted.remove(0) };
        let expected = Wc {
            wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len: 40 + len as u32,
            imm: (number % 12 == 8).then_some(number as u32),
            qp_num: self.qp.num(),
            datagram_from: Some(from.raw()),
            ..wc
        };
        assert_eq!(wc, expected, "datagram {number}");
        let offset = self.at + wr_id % u64::from(RECEIVES) * u64::from(ROOM);
        let payload = peek(&ud.end.mr, offset as usize + 40, len);
        assert!(payload.iter().skip(8).all(|byte| *byte == number as u8), "datagram {number}: {payload:?}");
        assert_eq!(payload[..8], number.to_le_bytes(), "datagram {number}");
    }
}

/// Each datagram of a run is looked at by itself: neither is one lost because of its neighbours, nor one taken that would not be taken alone. The
/// queues wrap between the rounds, and in the middle of a run.
fn datagrams_of_a_run(sources: impl FnOnce(&Pd) -> [Source; 2]) {
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let ud = Ud::made(&device, &pd, LOCALHOST, Make::default());
    let mut peer = Peer::new(ud.socket_address());
    let mut receivers = sources(&pd)
        .into_iter()
        .enumerate()
        .map(|(index, source)| Receiver::new(&ud, source, index as u64 * u64::from(RECEIVES * ROOM)))
        .collect::<Vec<_>>();
    let (mut number, mut dropped) = (0, 0);
    for _ in 0..4 {
        receivers.iter_mut().for_each(|receiver| receiver.fill(&ud));
        let first = number;
        let mut datagrams = Vec::new();
        let len = |number: u64| if number + 1 == first + RUN { 9 } else { PAYLOAD };
        while number < first + RUN {
            let to = match fate(number) {
                Fate::Received(1) => receivers[1].qp.num(),
                // The port's highest queue pair has another number.
                Fate::NoQueuePair => receivers[0].qp.num() | 0xff,
                _ => receivers[0].qp.num(),
            };
            let mut datagram = peer.datagram(number, len(number), |header| {
                header.destination = Qpn::from_raw(to);
                header.solicited = number % 12 == 9;
                header.immediate = (number % 12 == 8).then_some(number as u32);
                header.qkey = if fate(number) == Fate::BadQkey { QKEY + 1 } else { QKEY };
            });
            if fate(number) == Fate::BadCrc {
                datagram[OVERHEAD] ^= 1;
            }
            dropped += u64::from(!matches!(fate(number), Fate::Received(_)));
            datagrams.push(datagram);
            number += 1;
        }
        peer.send(&datagrams);
        for number in first..number {
            if let Fate::Received(index) = fate(number) {
                receivers[index].received(&ud, number, peer.qpn(), len(number));
            }
        }
        ud.dropped(dropped);
    }
    for receiver in &receivers {
        pass(&device, Duration::from_millis(5));
        assert_eq!(receiver.cq.poll(&mut Vec::new(), 1), 0);
    }
    let of = |fate_of: Fate| (0..number).filter(|number| fate(*number) == fate_of).count() as u64;
    let counts = ud.counts();
    assert_eq!(counts.received, of(Fate::Received(0)) + of(Fate::Received(1)));
    assert_eq!((counts.bad_crc, counts.bad_qkey), (of(Fate::BadCrc), of(Fate::BadQkey)));
    assert_eq!(counts.no_queue_pair, of(Fate::NoQueuePair));
}

#[test]
fn datagrams_of_a_run_go_into_own_receives() {
    datagrams_of_a_run(|_| [Source::Own, Source::NewestFirst]);
}

#[test]
fn datagrams_of_a_run_go_into_shared_receives() {
    datagrams_of_a_run(|pd| {
        let attr = SrqAttr { max_wr: RECEIVES, max_sge: 1, limit: 0 };
        [Source::Shared(pd.create_srq(attr).unwrap()), Source::Own]
    });
}

/// A run for which there are too few receives, and one in whose middle the queue pair ends.
#[test]
fn a_run_may_outlast_the_receives_and_the_queue_pair() {
    let ud = Ud::kernel();
    let mut peer = Peer::new(ud.socket_address());
    let to = Qpn::from_raw(ud.end.qp.num());
    let run = |peer: &Peer, count: u64| -> Vec<_> {
        (0..count).map(|number| peer.datagram(number, PAYLOAD, |header| header.destination = to)).collect()
    };
    for wr_id in 0..5 {
        ud.end.recv(wr_id, wr_id * 128, 128);
    }
    let datagrams = run(&peer, 12);
    peer.send(&datagrams);
    for wr_id in 0..5 {
        ud.end.received_ok(wr_id);
    }
    ud.dropped(7);
    assert_eq!(ud.counts().no_receive, 7);
    for wr_id in 0..8 {
        ud.end.recv(wr_id, wr_id * 128, if wr_id == 5 { 20 } else { 128 });
    }
    peer.send(&datagrams);
    for wr_id in 0..5 {
        ud.end.received_ok(wr_id);
    }
    let failed = ud.end.received();
    assert_eq!((failed.wr_id, failed.status), (5, WcStatus::LocalLength));
    for wr_id in 6..8 {
        let flushed = ud.end.received();
        assert_eq!((flushed.wr_id, flushed.status), (wr_id, WcStatus::Flushed));
    }
    ud.dropped(7 + 7);
    assert_eq!(ud.end.qp.state(), QpState::Err);
    let counts = ud.counts();
    assert_eq!((counts.received, counts.bad_receive, counts.no_queue_pair), (10, 1, 6));
    ud.end.nothing_more();
}

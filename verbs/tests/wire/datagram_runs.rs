//! Tests a queue pair that receives many datagrams in a single kernel message.

use crate::common::{Make, fill, memory, next_wc, peek};
use crate::datagrams::{LOCALHOST, QKEY, Ud};
use crate::transport::pass;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use uiw_datagram::{Grh, Header, OVERHEAD, Qpn};
use uiw_llp::tcp::TcpStack;
use uiw_llp::{DATAGRAM_BUFFER, DatagramSocket, Incoming, Outgoing, StackExtensions, Token};
use uiw_verbs::{
    Access, AddressHandle, Cq, CqConfig, Destination, Device, Pd, Qp, QpCap, QpInit, QpState,
    RecvWr, STag, SendFlags, SendOp, SendWr, Sge, Srq, SrqAttr, Wc, WcOpcode, WcStatus,
};

/// Number of receives of a queue pair, and the length of each in bytes.
const RECEIVES: u32 = 64;
const ROOM: u32 = 128;
/// Length of every payload except the last, in bytes.
const PAYLOAD: usize = 24;
/// Number of datagrams in a run.
const RUN: u64 = 60;

/// Peer that can send arbitrary datagrams.
struct RawPeer {
    socket: Box<dyn DatagramSocket>,
    to: SocketAddr,
    _stack: TcpStack,
}

impl RawPeer {
    fn new(to: SocketAddr) -> Self {
        let mut stack = TcpStack::new().unwrap();
        let socket =
            stack.bind_datagrams((LOCALHOST, 0).into(), &Default::default(), Token(1)).unwrap();
        Self { socket, to, _stack: stack }
    }

    fn qpn(&self) -> Qpn {
        Qpn::new(self.socket.local_addr().port(), 5)
    }

    /// Returns a datagram whose payload begins with its number.
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
        bytes.extend(
            (0..len).map(|at| number.to_le_bytes().get(at).copied().unwrap_or(number as u8)),
        );
        bytes.extend_from_slice(&uiw_datagram::crc(&bytes));
        bytes
    }

    /// Waits for the next `count` datagrams.
    fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut buffer = vec![0; 16 * DATAGRAM_BUFFER];
        let mut datagrams = Vec::new();
        for _ in 0..2000 {
            let mut incoming = Vec::new();
            match self.socket.recv(&mut buffer, &mut incoming) {
                Ok(_) => {
                    datagrams.extend(
                        incoming.iter().flat_map(Incoming::each).map(|at| buffer[at].to_vec()),
                    );
                }
                Err(_) if datagrams.len() < count => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => break,
            }
        }
        assert_eq!(datagrams.len(), count);
        datagrams
    }

    /// Sends datagrams of equal length, except for the last one, in a single message.
    fn send(&mut self, datagrams: &[Vec<u8>]) {
        let bytes = datagrams.concat();
        let item =
            |run: &[Vec<u8>]| Outgoing { count: run.len(), ..Outgoing::new(self.to, run[0].len()) };
        let items: Vec<_> =
            datagrams.chunk_by(|one, next| one.len() == next.len()).map(item).collect();
        assert_eq!(self.socket.send(&bytes, &items).unwrap(), datagrams.len());
    }
}

/// Expected treatment of a datagram.
#[derive(Clone, Copy, PartialEq, Debug)]
enum DatagramFate {
    /// The queue pair with this index, 0 or 1, receives it.
    Received(usize),
    BadCrc,
    BadQkey,
    NoQueuePair,
}

fn fate(number: u64) -> DatagramFate {
    match number % 12 {
        3 => DatagramFate::BadCrc,
        5 | 6 => DatagramFate::Received(1),
        7 => DatagramFate::BadQkey,
        10 => DatagramFate::NoQueuePair,
        _ => DatagramFate::Received(0),
    }
}

/// Queue from which a queue pair takes its receives.
enum ReceiveSource {
    Own,
    NewestFirst,
    Shared(Arc<Srq>),
}

/// Queue pair with a completion queue of its own.
struct UdReceiver {
    qp: Qp,
    cq: Arc<Cq>,
    source: ReceiveSource,
    /// Request numbers of the posted receives, oldest first.
    posted: Vec<u64>,
    next: u64,
    /// Offset of its memory in the region.
    at: u64,
}

impl UdReceiver {
    fn new(ud: &Ud, source: ReceiveSource, at: u64) -> Self {
        let port = ud.end.qp.datagram_port().unwrap();
        let shard = CqConfig { shard: Some(ud.end.rcq.shard()), ..CqConfig::default() };
        let cq = ud.end.device.create_cq(RECEIVES, shard).unwrap();
        let cap = QpCap { max_recv_wr: RECEIVES, ..QpCap::default() };
        let init = QpInit::new(&ud.end.scq, &cq).cap(cap);
        let init = match &source {
            ReceiveSource::Own => init,
            ReceiveSource::NewestFirst => init.newest_receive_first(),
            ReceiveSource::Shared(srq) => init.srq(Some(Arc::clone(srq))),
        };
        let qp = ud.end.pd.create_ud_qp(init, port).unwrap();
        qp.set_qkey(QKEY).unwrap();
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            qp.modify(state).unwrap();
        }
        Self { qp, cq, source, posted: Vec::new(), next: 0, at }
    }

    /// Posts receives until the maximum is reached.
    fn fill(&mut self, ud: &Ud) {
        while self.posted.len() < RECEIVES as usize {
            let offset = self.at + self.next % u64::from(RECEIVES) * u64::from(ROOM);
            let (wr_id, sges) = (self.next, [ud.end.sge(offset, ROOM)]);
            // SAFETY: the region outlives the queue pair.
            unsafe {
                match &self.source {
                    ReceiveSource::Shared(srq) => srq.post_recv([RecvWr { wr_id, sges: &sges }]),
                    _ => self.qp.post_recv([RecvWr { wr_id, sges: &sges }]),
                }
            }
            .unwrap();
            self.posted.push(self.next);
            self.next += 1;
        }
    }

    /// Checks that the next message is the datagram with this number.
    fn received(&mut self, ud: &Ud, number: u64, from: Qpn, len: usize) {
        let wc = next_wc(&ud.end.device, &self.cq);
        let newest = matches!(self.source, ReceiveSource::NewestFirst);
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
        assert!(
            payload.iter().skip(8).all(|byte| *byte == number as u8),
            "datagram {number}: {payload:?}"
        );
        assert_eq!(payload[..8], number.to_le_bytes(), "datagram {number}");
    }
}

/// Each datagram of a run is checked separately: none is lost because of its neighbours, and none
/// is accepted that would be refused on its own. The queues wrap between the rounds and in the
/// middle of a run.
fn datagrams_of_a_run(sources: impl FnOnce(&Pd) -> [ReceiveSource; 2]) {
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let ud = Ud::made(&device, &pd, LOCALHOST, Make::default());
    let mut peer = RawPeer::new(ud.socket_address());
    let mut receivers = sources(&pd)
        .into_iter()
        .enumerate()
        .map(|(index, source)| {
            UdReceiver::new(&ud, source, index as u64 * u64::from(RECEIVES * ROOM))
        })
        .collect::<Vec<_>>();
    // Indices of queue pairs are random, so an unused one has to be found.
    let present = [ud.end.qp.num(), receivers[0].qp.num(), receivers[1].qp.num()];
    let absent =
        (0..4).map(|index| present[0] & !0xff | index).find(|qpn| !present.contains(qpn)).unwrap();
    let (mut number, mut dropped) = (0, 0);
    for _ in 0..4 {
        receivers.iter_mut().for_each(|receiver| receiver.fill(&ud));
        let first = number;
        let mut datagrams = Vec::new();
        let len = |number: u64| if number + 1 == first + RUN { 9 } else { PAYLOAD };
        while number < first + RUN {
            let to = match fate(number) {
                DatagramFate::Received(1) => receivers[1].qp.num(),
                DatagramFate::NoQueuePair => absent,
                _ => receivers[0].qp.num(),
            };
            let mut datagram = peer.datagram(number, len(number), |header| {
                header.destination = Qpn::from_raw(to);
                header.solicited = number % 12 == 9;
                header.immediate = (number % 12 == 8).then_some(number as u32);
                header.qkey = if fate(number) == DatagramFate::BadQkey { QKEY + 1 } else { QKEY };
            });
            if fate(number) == DatagramFate::BadCrc {
                datagram[OVERHEAD] ^= 1;
            }
            dropped += u64::from(!matches!(fate(number), DatagramFate::Received(_)));
            datagrams.push(datagram);
            number += 1;
        }
        peer.send(&datagrams);
        for number in first..number {
            if let DatagramFate::Received(index) = fate(number) {
                receivers[index].received(&ud, number, peer.qpn(), len(number));
            }
        }
        ud.dropped(dropped);
    }
    for receiver in &receivers {
        pass(&device, Duration::from_millis(5));
        assert_eq!(receiver.cq.poll(&mut Vec::new(), 1), 0);
    }
    let of = |fate_of: DatagramFate| {
        (0..number).filter(|number| fate(*number) == fate_of).count() as u64
    };
    let counts = ud.counts();
    assert_eq!(counts.received, of(DatagramFate::Received(0)) + of(DatagramFate::Received(1)));
    assert_eq!(
        (counts.bad_crc, counts.bad_qkey),
        (of(DatagramFate::BadCrc), of(DatagramFate::BadQkey))
    );
    assert_eq!(counts.no_queue_pair, of(DatagramFate::NoQueuePair));
}

#[test]
fn datagram_run_fills_own_receives() {
    datagrams_of_a_run(|_| [ReceiveSource::Own, ReceiveSource::NewestFirst]);
}

#[test]
fn datagram_run_fills_shared_receives() {
    datagrams_of_a_run(|pd| {
        let attr = SrqAttr { max_wr: RECEIVES, max_sge: 1, limit: 0 };
        [ReceiveSource::Shared(pd.create_srq(attr).unwrap()), ReceiveSource::Own]
    });
}

/// Tests a run for which there are too few receives, and one during which the queue pair leaves the
/// receiving state.
#[test]
fn datagram_run_outlasts_receives() {
    let ud = Ud::kernel();
    let mut peer = RawPeer::new(ud.socket_address());
    let to = Qpn::from_raw(ud.end.qp.num());
    let run = |peer: &RawPeer, count: u64| -> Vec<_> {
        (0..count)
            .map(|number| peer.datagram(number, PAYLOAD, |header| header.destination = to))
            .collect()
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

/// Memory of a request in a chain.
#[derive(Clone, Copy, Debug)]
enum ChainRequest {
    /// Number of bytes at an offset of one of two regions.
    One(usize, u64, u32),
    /// Eight bytes of each region.
    Two,
    Inline,
    Empty,
}

/// Datagrams that are built together contain the bytes, the flags and the immediate of their own
/// requests, and are sent in order.
#[test]
fn datagram_chain_uses_own_memory() {
    let ud = Ud::kernel();
    let mut peer = RawPeer::new(ud.socket_address());
    let other = memory(&ud.end.pd, 4096, Access::LOCAL_WRITE);
    let regions = [&ud.end.mr, &other];
    for (region, first) in regions.iter().zip([0u8, 100]) {
        let bytes: Vec<u8> =
            (0..=255).map(|at: u8| at.wrapping_mul(3).wrapping_add(first)).collect();
        fill(region, 0, &bytes);
    }
    let sge = |region: usize, offset: u64, length| {
        let region = regions[region];
        Sge { addr: region.addr() + offset, length, lkey: region.lkey() }
    };
    let inline = [5u8; 16];
    let elements = |request| match request {
        ChainRequest::One(region, offset, len) => vec![sge(region, offset, len)],
        ChainRequest::Two => vec![sge(0, 3, 8), sge(1, 1, 8)],
        ChainRequest::Inline => {
            vec![Sge { addr: inline.as_ptr() as u64, length: 16, lkey: STag(0) }]
        }
        ChainRequest::Empty => vec![],
    };
    let expected = |request| match request {
        ChainRequest::One(region, offset, len) => {
            peek(regions[region], offset as usize, len as usize)
        }
        ChainRequest::Two => [peek(regions[0], 3, 8), peek(regions[1], 1, 8)].concat(),
        ChainRequest::Inline => inline.to_vec(),
        ChainRequest::Empty => vec![],
    };
    let chain: Vec<_> = (0..100u64)
        .map(|number| match number % 16 {
            0..=4 => ChainRequest::One(0, number, 16),
            5 | 6 => ChainRequest::One(1, number, 16),
            7 => ChainRequest::Two,
            8 | 9 => ChainRequest::Inline,
            10 => ChainRequest::One(1, 2, 33),
            11 => ChainRequest::Empty,
            _ => ChainRequest::One(0, 8 * (number % 8), 16),
        })
        .collect();
    let imm = |number: u64| (number % 16 == 3 || number % 16 == 6).then_some(number as u32);
    let ah = AddressHandle::new(LOCALHOST, LOCALHOST, 0);
    let to = Destination { ah, qpn: peer.qpn().raw(), qkey: QKEY };
    let lists: Vec<_> = chain.iter().map(|request| elements(*request)).collect();
    let requests = lists.iter().zip(&chain).zip(0u64..).map(|((sges, request), number)| {
        let inline = if matches!(request, ChainRequest::Inline) {
            SendFlags::INLINE
        } else {
            SendFlags::empty()
        };
        let solicited = if number % 16 == 4 { SendFlags::SOLICITED } else { SendFlags::empty() };
        let op = SendOp::Datagram { to, imm: imm(number) };
        SendWr { wr_id: number, op, sges, flags: SendFlags::SIGNALED | inline | solicited }
    });
    // SAFETY: the regions live as long as the queue pair, and nothing writes to them.
    unsafe { ud.end.qp.post_send(requests) }.unwrap();
    for number in 0..100 {
        ud.end.sent_ok(number);
    }
    let received = peer.receive(100);
    for ((bytes, request), number) in received.iter().zip(&chain).zip(0u64..) {
        let (header, payload) = Header::parse(bytes).unwrap();
        assert_eq!(payload, expected(*request), "{number}: {request:?}");
        assert_eq!((header.msn, header.immediate), (number as u32 + 1, imm(number)), "{request:?}");
        assert_eq!(header.solicited, number % 16 == 4, "{number}: {request:?}");
    }
    // Requests before one with invalid memory are sent.
    let (good, bad) = ([sge(1, 0, 16)], [sge(1, 4090, 16)]);
    let requests = (0..8).map(|wr_id| {
        let op = SendOp::Datagram { to, imm: None };
        SendWr {
            wr_id,
            op,
            sges: if wr_id == 5 { &bad } else { &good },
            flags: SendFlags::SIGNALED,
        }
    });
    // SAFETY: as above.
    unsafe { ud.end.qp.post_send(requests) }.unwrap();
    for number in 0..5 {
        ud.end.sent_ok(number);
    }
    for (wr_id, status) in
        [(5, WcStatus::LocalProtection), (6, WcStatus::Flushed), (7, WcStatus::Flushed)]
    {
        let wc = ud.end.sent();
        assert_eq!((wc.wr_id, wc.status), (wr_id, status));
    }
    assert_eq!(peer.receive(5).len(), 5);
    assert_eq!(ud.end.qp.state(), QpState::Sqe);
}

/// The receives used by one run may refer to several regions and several elements.
#[test]
fn datagram_run_follows_receives() {
    let ud = Ud::kernel();
    let mut peer = RawPeer::new(ud.socket_address());
    let other = memory(&ud.end.pd, 64 << 10, Access::LOCAL_WRITE);
    let regions = [&ud.end.mr, &other];
    let to = Qpn::from_raw(ud.end.qp.num());
    let parts = |number: u64| -> Vec<(usize, u64, u32)> {
        let at = number * u64::from(ROOM);
        match number % 8 {
            0..=2 => vec![(0, at, ROOM)],
            3 | 4 => vec![(1, at + number, 40 + PAYLOAD as u32)],
            5 => vec![(0, at, 41), (1, at, 7), (0, at + 64, 40)],
            6 => vec![(1, at, 39), (1, at + 50, 60)],
            _ => vec![(1, at, ROOM)],
        }
    };
    for number in 0..RUN {
        let sges = parts(number).into_iter().map(|(region, offset, length)| {
            let region = regions[region];
            Sge { addr: region.addr() + offset, length, lkey: region.lkey() }
        });
        ud.end.try_recv(number, &sges.collect::<Vec<_>>()).unwrap();
    }
    let run = |number| peer.datagram(number, PAYLOAD, |header| header.destination = to);
    let datagrams: Vec<_> = (0..RUN).map(run).collect();
    peer.send(&datagrams);
    for (number, datagram) in (0..RUN).zip(&datagrams) {
        ud.end.received_ok(number);
        let placed = parts(number)
            .into_iter()
            .flat_map(|(region, offset, len)| peek(regions[region], offset as usize, len as usize));
        let placed: Vec<u8> = placed.take(40 + PAYLOAD).collect();
        assert_eq!(placed[40..], datagram[Header::LEN..][..PAYLOAD], "datagram {number}");
        let grh = Grh::parse(placed[..40].try_into().unwrap()).unwrap();
        assert_eq!((grh.source, grh.destination), (LOCALHOST, LOCALHOST), "datagram {number}");
    }
    ud.end.nothing_more();
}

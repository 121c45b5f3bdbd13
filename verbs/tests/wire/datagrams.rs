//! Tests UD queue pairs with each other and with a socket that sends arbitrary datagrams.

use crate::common::{End, Make, fill, next_wc, pattern, peek};
use crate::transport::pass;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use uiw_datagram::{Grh, Header, Qpn};
use uiw_testkit::sim::DatagramFaults;
use uiw_verbs::cm::{CmChannel, CmEventKind, SidrHandle, SidrListener};
use uiw_verbs::{
    AddressHandle, CqConfig, DatagramPort, Destination, Device, Error, Pd, QpCap, QpInit, QpState,
    SendFlags, SendOp, Srq, SrqAttr, Wc, WcOpcode, WcStatus,
};

pub(crate) const QKEY: u32 = 0x1111_2222;
const MTU: usize = 1024;
pub(crate) const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// UD queue pair in RTS with all its objects.
pub(crate) struct Ud {
    pub(crate) end: End,
    address: IpAddr,
}

impl Ud {
    fn on(device: &Device, address: IpAddr, make: Make) -> Self {
        let pd = device.alloc_pd().unwrap();
        Self::made(device, &pd, address, make)
    }

    pub(crate) fn made(device: &Device, pd: &Pd, address: IpAddr, make: Make) -> Self {
        let end = End::with_qp(device, pd, make, |init, rcq| {
            let addresses = [SocketAddr::new(address, 0)];
            let port = DatagramPort::bind(device, &addresses, rcq.shard(), MTU)?;
            pd.create_ud_qp(init, &port)
        });
        let ud = Self { end, address };
        ud.start();
        ud
    }

    fn start(&self) {
        assert_eq!(self.end.qp.state(), QpState::Reset);
        self.end.qp.set_qkey(QKEY).unwrap();
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.end.qp.modify(state).unwrap();
        }
    }

    pub(crate) fn kernel() -> Self {
        Self::on(&Device::open().unwrap(), LOCALHOST, Make::default())
    }

    /// Returns the destination at which `self` reaches `peer`.
    fn to(&self, peer: &Self) -> Destination {
        let ah = AddressHandle::new(self.address, peer.address, 0);
        Destination { ah, qpn: peer.end.qp.num(), qkey: QKEY }
    }

    fn send(&self, wr_id: u64, to: Destination, length: u32) {
        self.post(wr_id, to, None, length, SendFlags::SIGNALED);
    }

    /// Like `send`, and waits for the completion.
    fn send_ok(&self, wr_id: u64, to: Destination, length: u32) {
        self.send(wr_id, to, length);
        self.end.sent_ok(wr_id);
    }

    fn post(&self, wr_id: u64, to: Destination, imm: Option<u32>, length: u32, flags: SendFlags) {
        let op = SendOp::Datagram { to, imm };
        self.end.post(wr_id, op, &[self.end.sge(0, length)], flags).unwrap();
    }

    pub(crate) fn counts(&self) -> uiw_verbs::DatagramCounts {
        self.end.qp.datagram_port().unwrap().counts()
    }

    pub(crate) fn socket_address(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.end.qp.datagram_port().unwrap().number())
    }

    /// Drives the device until `count` datagrams have been dropped.
    pub(crate) fn dropped(&self, count: u64) {
        for _ in 0..2000 {
            if self.counts().dropped() >= count {
                break;
            }
            pass(&self.end.device, Duration::from_millis(1));
        }
        assert_eq!(self.counts().dropped(), count, "{:?}", self.counts());
    }
}

fn is_received(wc: &Wc, from: &Ud, len: u32) {
    assert_eq!(
        (wc.status, wc.opcode, wc.byte_len),
        (WcStatus::Success, WcOpcode::Recv, len + 40),
        "{wc:?}"
    );
    assert_eq!(wc.datagram_from, Some(from.end.qp.num()));
}

#[test]
fn messages_arrive_behind_a_route_header() {
    let (a, b) = (Ud::kernel(), Ud::kernel());
    let bytes = pattern(MTU);
    fill(&a.end.mr, 0, &bytes);
    for (id, len) in [(1, 0), (2, 1), (3, 777), (4, MTU as u32)] {
        b.end.recv(id, 0, 4096);
        let imm = (id % 2 == 0).then_some(id as u32 * 7);
        a.post(id, a.to(&b), imm, len, SendFlags::SIGNALED | SendFlags::SOLICITED);
        a.end.sent_ok(id);
        let wc = b.end.received_ok(id);
        is_received(&wc, &a, len);
        assert_eq!(wc.imm, imm);
        let placed = peek(&b.end.mr, 0, 40 + len as usize);
        let grh = Grh::parse(placed[..40].try_into().unwrap()).unwrap();
        assert_eq!(grh, Grh { len: len as u16, source: LOCALHOST, destination: LOCALHOST });
        assert_eq!(placed[40..], bytes[..len as usize]);
    }
    assert_eq!((a.counts().sent, b.counts().received, b.counts().dropped()), (4, 4, 0));
    a.end.nothing_more();
    b.end.nothing_more();
}

#[test]
fn messages_ordered_on_loopback() {
    let cap = QpCap { max_recv_wr: 1024, max_send_wr: 1024, ..QpCap::default() };
    let make = || Make { cap, memory: 2 << 20, ..Make::default() };
    let a = Ud::on(&Device::open().unwrap(), LOCALHOST, make());
    let b = Ud::on(&Device::open().unwrap(), LOCALHOST, make());
    const ROUNDS: u64 = 20;
    const BATCH: u64 = 100;
    for round in 0..ROUNDS {
        for i in 0..BATCH {
            b.end.recv(round * BATCH + i, i * 2048, 2048);
        }
        for i in 0..BATCH {
            // The lengths form runs of equal length, which the kernel takes as one message, and
            // other lengths.
            let len = if i % 10 < 7 { 512 } else { 100 + i as u32 };
            fill(&a.end.mr, i as usize * 2048, &(round * BATCH + i).to_le_bytes());
            let op = SendOp::Datagram { to: a.to(&b), imm: None };
            a.end.post(i, op, &[a.end.sge(i * 2048, len)], SendFlags::SIGNALED).unwrap();
        }
        for i in 0..BATCH {
            a.end.sent_ok(i);
        }
        for i in 0..BATCH {
            let wc = b.end.received_ok(round * BATCH + i);
            is_received(&wc, &a, if i % 10 < 7 { 512 } else { 100 + i as u32 });
            assert_eq!(
                peek(&b.end.mr, i as usize * 2048 + 40, 8),
                (round * BATCH + i).to_le_bytes()
            );
        }
    }
    assert_eq!(b.counts().dropped(), 0);
}

/// In these batches, destinations, lengths, immediates and flags change with every request or only
/// after several requests.
#[test]
fn requests_to_several_queue_pairs_ordered() {
    const BATCH: usize = 100;
    let cap = QpCap { max_recv_wr: 256, max_send_wr: 256, ..QpCap::default() };
    let make = || Make { cap, memory: 1 << 20, signal_all: false, ..Make::default() };
    let ends = [(); 3].map(|()| Ud::on(&Device::open().unwrap(), LOCALHOST, make()));
    let [a, peers @ ..] = &ends;
    let mut state = 7_u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    for round in 0..20_u64 {
        for (id, peer) in (0..BATCH as u64).flat_map(|id| peers.iter().map(move |peer| (id, peer)))
        {
            peer.end.recv(id, id * 1024, 1024);
        }
        let (mut expected, mut reported) = ([const { Vec::new() }; 2], Vec::new());
        let (mut to, mut len, mut imm, mut flags) = (0, 8, None, SendFlags::empty());
        for id in 0..BATCH as u64 {
            match next(8) {
                0 => to = 1 - to,
                1 => len = next(3) as u32 * 40,
                2 => imm = imm.is_none().then_some(id as u32),
                3 => flags ^= SendFlags::SOLICITED,
                4 => flags ^= SendFlags::INLINE,
                5 => flags ^= SendFlags::SIGNALED,
                _ => {}
            }
            if id as usize == BATCH - 1 {
                flags |= SendFlags::SIGNALED;
            }
            let bytes = [(round * 100 + id).to_le_bytes(); 10].concat();
            fill(&a.end.mr, id as usize * 128, &bytes);
            let op = SendOp::Datagram { to: a.to(&peers[to]), imm };
            a.end.post(id, op, &[a.end.sge(id * 128, len)], flags).unwrap();
            expected[to].push((imm, bytes[..len as usize].to_vec()));
            reported.extend(flags.contains(SendFlags::SIGNALED).then_some(id));
        }
        for id in reported {
            a.end.sent_ok(id);
        }
        for (peer, expected) in peers.iter().zip(&expected) {
            for (id, (imm, bytes)) in expected.iter().enumerate() {
                let wc = peer.end.received_ok(id as u64);
                is_received(&wc, a, bytes.len() as u32);
                assert_eq!(wc.imm, *imm);
                assert_eq!(
                    peek(&peer.end.mr, id * 1024 + 40, bytes.len()),
                    bytes[..],
                    "{round} {id}"
                );
            }
            peer.end.nothing_more();
            // The remaining receives would be used in the next round, so they are flushed.
            for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts] {
                peer.end.qp.modify(state).unwrap();
            }
        }
        assert_eq!(a.end.scq.poll(&mut Vec::new(), 1), 0);
    }
}

#[test]
fn queue_pair_reaches_itself_and_port() {
    let device = Device::open().unwrap();
    let a = Ud::on(&device, LOCALHOST, Make::default());
    a.end.recv(1, 0, 4096);
    a.send_ok(2, a.to(&a), 64);
    is_received(&a.end.received_ok(1), &a, 64);
    let init = QpInit::new(&a.end.scq, &a.end.rcq).signal_all(true);
    let other = a.end.pd.create_ud_qp(init.clone(), a.end.qp.datagram_port().unwrap()).unwrap();
    assert_eq!(other.num() >> 8, a.end.qp.num() >> 8);
    assert_ne!(other.num(), a.end.qp.num());
    let taken =
        a.end.pd.create_ud_qp(init.clone().num(other.num()), other.datagram_port().unwrap());
    assert!(matches!(taken, Err(Error::QpNumberTaken { .. })));
    let foreign = init.num(other.num() ^ 0x100);
    assert!(matches!(
        a.end.pd.create_ud_qp(foreign, other.datagram_port().unwrap()),
        Err(Error::QpNumber { .. })
    ));
    let to = Destination { qpn: other.num(), ..a.to(&a) };
    a.send_ok(3, to, 64);
    a.dropped(1);
    assert_eq!(a.counts().no_queue_pair, 1, "it is in RESET");
}

#[test]
fn mismatched_datagrams_dropped_and_counted() {
    let (a, b) = (Ud::kernel(), Ud::kernel());
    b.end.recv(1, 0, 4096);
    let mut drops = 0;
    let mut expect = |what: &dyn Fn(uiw_verbs::DatagramCounts) -> u64, to: Destination| {
        a.send_ok(9, to, 32);
        drops += 1;
        b.dropped(drops);
        assert_eq!(what(b.counts()), 1, "{:?}", b.counts());
    };
    let to = a.to(&b);
    expect(&|counts| counts.bad_qkey, Destination { qkey: QKEY + 1, ..to });
    expect(&|counts| counts.no_queue_pair, Destination { qpn: to.qpn ^ 1, ..to });
    // The valid datagram still finds the receive; the next one finds none.
    a.send_ok(2, to, 32);
    is_received(&b.end.received_ok(1), &a, 32);
    expect(&|counts| counts.no_receive, to);
    let drops_so_far = drops;
    // If the highest bit of the Q_Key is set, the sender's own Q_Key is used.
    b.end.recv(3, 0, 4096);
    a.send_ok(4, Destination { qkey: 0x8000_0000, ..to }, 32);
    is_received(&b.end.received_ok(3), &a, 32);
    // This also holds after the own Q_Key has been changed, and after it has been restored.
    let own = Destination { qkey: 0x8000_0000, ..to };
    a.end.qp.set_qkey(QKEY + 1).unwrap();
    b.end.recv(6, 0, 4096);
    a.send_ok(7, own, 32);
    b.dropped(drops_so_far + 1);
    a.end.qp.set_qkey(QKEY).unwrap();
    a.send_ok(8, own, 32);
    is_received(&b.end.received_ok(6), &a, 32);
    // The destination names no port, so the datagram cannot be sent.
    a.send_ok(5, Destination { qpn: 1, ..to }, 32);
    assert_eq!(a.counts().unsent, 1);
}

#[test]
fn forged_source_dropped_without_answer() {
    let b = Ud::kernel();
    b.end.recv(1, 0, 4096);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let own = socket.local_addr().unwrap().port();
    let header = Header {
        epoch: 1,
        destination: Qpn::from_raw(b.end.qp.num()),
        source: Qpn::new(own, 3),
        qkey: QKEY,
        msn: 1,
        solicited: false,
        immediate: None,
    };
    let send = |header: &Header, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = header.emit().to_vec();
        bytes.extend_from_slice(b"payload");
        bytes.extend_from_slice(&uiw_datagram::crc(&bytes));
        change(&mut bytes);
        socket.send_to(&bytes, b.socket_address()).unwrap();
    };
    send(&Header { source: Qpn::new(own ^ 1, 3), ..header }, &|_| {});
    b.dropped(1);
    assert_eq!(b.counts().bad_source, 1);
    send(&header, &|bytes| bytes[40] ^= 1);
    b.dropped(2);
    assert_eq!(b.counts().bad_crc, 1);
    send(&header, &|bytes| bytes.truncate(20));
    b.dropped(3);
    assert_eq!(b.counts().malformed, 1);
    // The multicast queue pair number is not valid at the port of a queue pair.
    send(&Header { destination: Qpn::MULTICAST, ..header }, &|_| {});
    b.dropped(4);
    send(&header, &|_| {});
    let wc = b.end.received_ok(1);
    assert_eq!((wc.byte_len, wc.datagram_from), (47, Some(header.source.raw())));
    let mut buffer = [0; 2048];
    let answer = socket.recv_from(&mut buffer).unwrap_err();
    assert_eq!(answer.kind(), std::io::ErrorKind::WouldBlock);
}

/// Creates a socket to which UD queue pairs can send, and returns it with its queue pair number.
fn plain_socket() -> (UdpSocket, u32) {
    let socket = UdpSocket::bind((LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, Qpn::new(port, 5).raw())
}

/// The socket receives the headers of the right requests, in whatever batches they were built.
#[test]
fn headers_are_those_of_their_requests() {
    let a = Ud::kernel();
    let (socket, qpn) = plain_socket();
    let to = Destination { ah: AddressHandle::new(LOCALHOST, LOCALHOST, 0), qpn, qkey: 7 };
    let requests = [
        (None, false),
        (None, false),
        (Some(1), false),
        (Some(2), false),
        (Some(2), true),
        (Some(2), true),
        (None, true),
        (None, false),
    ];
    let mut epochs = Vec::new();
    for _ in 0..2 {
        for (id, (imm, solicited)) in requests.into_iter().enumerate() {
            let solicited = if solicited { SendFlags::SOLICITED } else { SendFlags::empty() };
            a.post(id as u64, to, imm, 8, SendFlags::SIGNALED | solicited);
        }
        for (id, (immediate, solicited)) in requests.into_iter().enumerate() {
            a.end.sent_ok(id as u64);
            let mut bytes = [0; 2048];
            let len = socket.recv(&mut bytes).unwrap();
            let (header, payload) = Header::parse(&bytes[..len]).unwrap();
            let expected = Header {
                epoch: *epochs.first().unwrap_or(&header.epoch),
                destination: Qpn::from_raw(qpn),
                source: Qpn::from_raw(a.end.qp.num()),
                qkey: 7,
                msn: id as u32 + 1,
                solicited,
                immediate,
            };
            assert_eq!((header, payload.len()), (expected, 8));
            epochs.push(header.epoch);
        }
        let before = std::mem::take(&mut epochs)[0];
        a.end.qp.modify(QpState::Reset).unwrap();
        a.start();
        a.send_ok(9, to, 0);
        let mut bytes = [0; 2048];
        let len = socket.recv(&mut bytes).unwrap();
        let header = Header::parse(&bytes[..len]).unwrap().0;
        assert_eq!(header.msn, 1);
        assert_ne!(header.epoch, before, "another one at each transition to RTS");
        a.end.qp.modify(QpState::Reset).unwrap();
        a.start();
    }
}

/// When the socket of a group is closed, the sockets after it move in the list.
#[test]
fn datagrams_sent_from_named_address() {
    let a = Ud::kernel();
    let group: IpAddr = "239.77.1.11".parse().unwrap();
    let other: IpAddr = "127.0.0.2".parse().unwrap();
    a.end.qp.attach_multicast(group, LOCALHOST, 0).unwrap();
    a.end.qp.datagram_port().unwrap().add_address(other, 0).unwrap();
    let (socket, qpn) = plain_socket();
    let mut last = other;
    for round in 0..3 {
        if round == 1 {
            a.end.qp.detach_multicast(group, LOCALHOST, 0).unwrap();
        }
        // The first address equals the last one of the previous round; runs of equal addresses
        // follow in the same batch.
        let from = [last, LOCALHOST, LOCALHOST, other, LOCALHOST, other, other];
        for (id, local) in from.into_iter().enumerate() {
            let to = Destination { ah: AddressHandle::new(local, LOCALHOST, 0), qpn, qkey: 7 };
            a.send(id as u64, to, 8);
        }
        for (id, local) in from.into_iter().enumerate() {
            a.end.sent_ok(id as u64);
            assert_eq!(socket.recv_from(&mut [0; 2048]).unwrap().1.ip(), local, "{round} {id}");
        }
        last = from[from.len() - 1];
    }
}

#[test]
fn long_send_and_short_receive_errors() {
    let (a, b) = (Ud::kernel(), Ud::kernel());
    a.post(1, a.to(&b), None, MTU as u32 + 1, SendFlags::SIGNALED);
    let wc = a.end.sent();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::LocalLength));
    assert_eq!(a.end.qp.state(), QpState::Sqe);
    a.send(2, a.to(&b), 8);
    assert_eq!(a.end.sent().status, WcStatus::Flushed);
    // Receives continue to work.
    a.end.recv(3, 0, 4096);
    b.send(4, b.to(&a), 8);
    is_received(&a.end.received_ok(3), &b, 8);
    a.end.qp.modify(QpState::Rts).unwrap();
    b.end.recv(5, 0, 47);
    b.end.recv(6, 0, 4096);
    a.send_ok(7, a.to(&b), 8);
    let wc = b.end.received();
    assert_eq!((wc.wr_id, wc.status), (5, WcStatus::LocalLength));
    let wc = b.end.received();
    assert_eq!((wc.wr_id, wc.status), (6, WcStatus::Flushed));
    assert_eq!(b.end.qp.state(), QpState::Err);
    a.send_ok(8, a.to(&b), 8);
    b.dropped(2);
}

#[test]
fn states_are_those_of_verbs() {
    let a = Ud::kernel();
    let b = Ud::kernel();
    b.end.qp.modify(QpState::Reset).unwrap();
    assert!(b.end.try_recv(1, &[]).is_err(), "nothing is posted in RESET");
    b.end.qp.modify(QpState::Init).unwrap();
    b.end.recv(1, 0, 4096);
    let op = SendOp::Datagram { to: b.to(&a), imm: None };
    assert!(b.end.post(1, op, &[], SendFlags::SIGNALED).is_err(), "no sends in INIT");
    a.send_ok(2, a.to(&b), 8);
    b.dropped(1);
    b.end.qp.modify(QpState::Rtr).unwrap();
    a.send_ok(3, a.to(&b), 8);
    is_received(&b.end.received_ok(1), &a, 8);
    b.end.qp.modify(QpState::Rts).unwrap();
    b.end.qp.modify(QpState::Sqd).unwrap();
    b.send(4, b.to(&a), 8);
    pass(&b.end.device, Duration::from_millis(5));
    assert!(b.end.scq.is_empty());
    a.end.recv(5, 0, 4096);
    b.end.qp.modify(QpState::Rts).unwrap();
    b.end.sent_ok(4);
    is_received(&a.end.received_ok(5), &b, 8);
    b.end.recv(6, 0, 4096);
    b.end.qp.modify(QpState::Err).unwrap();
    let wc = b.end.received();
    assert_eq!((wc.wr_id, wc.status), (6, WcStatus::Flushed));
    assert!(b.end.post(7, SendOp::Send, &[], SendFlags::SIGNALED).is_err(), "not a datagram");
}

#[test]
fn receives_come_from_a_shared_queue() {
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let srq: Arc<Srq> = pd.create_srq(SrqAttr { max_wr: 8, max_sge: 2, limit: 0 }).unwrap();
    let make = || Make { srq: Some(Arc::clone(&srq)), ..Make::default() };
    let (a, b) = (Ud::kernel(), Ud::made(&device, &pd, LOCALHOST, make()));
    // SAFETY: the region lives as long as the queue pair.
    unsafe {
        srq.post_recv([uiw_verbs::RecvWr {
            wr_id: 9,
            sges: &[b.end.sge(0, 30), b.end.sge(100, 400)],
        }])
    }
    .unwrap();
    fill(&a.end.mr, 0, &pattern(64));
    a.send(1, a.to(&b), 64);
    is_received(&next_wc(&b.end.device, &b.end.rcq), &a, 64);
    assert_eq!(peek(&b.end.mr, 110, 64), pattern(64), "the route header is in two elements");
    a.send(2, a.to(&b), 64);
    b.dropped(1);
    assert_eq!(b.counts().no_receive, 1);
}

#[test]
fn members_of_a_group_receive_copies() {
    let device = Device::open().unwrap();
    let (a, b, c) = (
        Ud::kernel(),
        Ud::on(&device, LOCALHOST, Make::default()),
        Ud::on(&device, LOCALHOST, Make::default()),
    );
    let group: IpAddr = "239.77.1.9".parse().unwrap();
    let other: IpAddr = "239.77.1.10".parse().unwrap();
    for (ud, group) in [(&b, group), (&c, group), (&a, other)] {
        ud.end.qp.attach_multicast(group, LOCALHOST, 0).unwrap();
        ud.end.recv(1, 0, 4096);
    }
    fill(&a.end.mr, 0, b"to the group");
    let to =
        Destination { ah: AddressHandle::new(LOCALHOST, group, 0), qpn: 0xFF_FFFF, qkey: QKEY };
    a.send_ok(2, to, 12);
    for ud in [&b, &c] {
        is_received(&ud.end.received_ok(1), &a, 12);
        let placed = peek(&ud.end.mr, 0, 52);
        assert_eq!(Grh::parse(placed[..40].try_into().unwrap()).unwrap().destination, group);
        assert_eq!(&placed[40..], b"to the group");
    }
    b.end.qp.detach_multicast(group, LOCALHOST, 0).unwrap();
    assert!(b.end.qp.detach_multicast(group, LOCALHOST, 0).is_err(), "not attached any more");
    for ud in [&b, &c] {
        ud.end.recv(3, 0, 4096);
    }
    a.send_ok(4, to, 12);
    is_received(&c.end.received_ok(3), &a, 12);
    b.end.nothing_more();
    a.end.nothing_more();
}

/// Creates two queue pairs on the simulated network.
fn simulated() -> (Ud, Ud) {
    let address = crate::simulation::any_port().ip();
    let cap = QpCap { max_send_wr: 512, max_recv_wr: 512, ..QpCap::default() };
    let make = || Make { cap, memory: 1 << 20, ..Make::default() };
    (
        Ud::on(&crate::common::device(), address, make()),
        Ud::on(&crate::common::device(), address, make()),
    )
}

#[test]
fn impaired_datagrams_arrive_whole() {
    const MESSAGES: u64 = 400;
    let (a, b) = simulated();
    crate::simulation::change_link(|link| {
        link.latency = Duration::from_millis(1);
        link.capacity = 1 << 20;
        link.datagrams = DatagramFaults { loss: 100_000, duplicate: 100_000, reorder: 100_000 };
    });
    for id in 0..512 {
        b.end.recv(id, id * 2048, 2048);
    }
    for id in 0..MESSAGES {
        fill(&a.end.mr, 0, &id.to_le_bytes());
        a.send_ok(id, a.to(&b), 8 + id as u32);
    }
    pass(&b.end.device, Duration::from_secs(1));
    let mut completions = Vec::new();
    b.end.rcq.poll(&mut completions, 512);
    let mut came = Vec::new();
    for wc in &completions {
        let place = (wc.wr_id * 2048) as usize;
        let id = u64::from_le_bytes(peek(&b.end.mr, place + 40, 8).try_into().unwrap());
        is_received(wc, &a, 8 + id as u32);
        came.push(id);
    }
    let mut different = came.clone();
    different.sort_unstable();
    assert_ne!(different, came, "some came out of order");
    different.dedup();
    assert!(different.len() < came.len(), "some came twice");
    assert!(
        different.len() < MESSAGES as usize && different.len() > MESSAGES as usize / 2,
        "{}",
        different.len()
    );
    assert_eq!((b.counts().received, b.counts().dropped()), (came.len() as u64, 0));
}

/// Datagrams for which UDP has no room stay in the bounded send queue, and are sent when there is
/// room.
#[test]
fn sends_wait_for_room() {
    let (a, b) = simulated();
    crate::simulation::change_link(|link| {
        link.latency = Duration::from_millis(10);
        link.capacity = 4096;
    });
    for id in 0..64 {
        b.end.recv(id, id * 2048, 2048);
    }
    let to = a.to(&b);
    for id in 0..64 {
        a.send(id, to, 1000);
    }
    // The clock stands still: sent datagrams are in flight, and the other requests are outstanding.
    crate::simulation::run_until_idle();
    let mut completed = Vec::new();
    a.end.scq.poll(&mut completed, 64);
    assert!((1..=8).contains(&completed.len()), "{} left at once", completed.len());
    for id in completed.len() as u64..64 {
        a.end.sent_ok(id);
    }
    for id in 0..64 {
        is_received(&b.end.received_ok(id), &a, 1000);
    }
    assert_eq!(a.counts().sent, 64);
    // Requests of a destroyed queue pair are not sent later.
    for id in 0..64 {
        a.send(id, to, 1000);
    }
    drop(a);
    b.end.nothing_more();
}

/// Queue pairs of one port share its room: one that sends a lot does not block the other.
#[test]
fn queue_pairs_waiting_for_room_alternate() {
    let (a, b) = simulated();
    crate::simulation::change_link(|link| {
        link.latency = Duration::from_millis(10);
        link.capacity = 4096;
    });
    let cap = QpCap { max_send_wr: 512, max_recv_wr: 1, ..QpCap::default() };
    let init = QpInit::new(&a.end.scq, &a.end.rcq).cap(cap);
    let other = a.end.pd.create_ud_qp(init, a.end.qp.datagram_port().unwrap()).unwrap();
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        other.modify(state).unwrap();
    }
    let to = a.to(&b);
    for id in 0..200 {
        a.send(id, to, 1000);
    }
    crate::simulation::run_until_idle();
    let op = SendOp::Datagram { to, imm: None };
    let sge = a.end.sge(0, 1000);
    let wr = uiw_verbs::SendWr { wr_id: 1000, op, sges: &[sge], flags: SendFlags::SIGNALED };
    // SAFETY: the region lives as long as the queue pair.
    unsafe { other.post_send([wr]) }.unwrap();
    let mut before = 0;
    loop {
        let wc = a.end.sent();
        if wc.wr_id == 1000 {
            break;
        }
        before += 1;
    }
    assert!(before < 100, "{before} sends of one queue pair left in front of one of the other");
    // The remaining requests complete as well.
    for _ in before..200 {
        assert_eq!(a.end.sent().status, WcStatus::Success);
    }
}

/// 0xFFFFFF is the destination of every multicast message, so no queue pair has this number.
#[test]
fn group_number_not_assigned() {
    let address = crate::simulation::any_port().ip();
    let device = crate::common::device();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(8, CqConfig::default()).unwrap();
    let port =
        DatagramPort::bind(&device, &[SocketAddr::new(address, 65535)], cq.shard(), MTU).unwrap();
    let named = pd.create_ud_qp(QpInit::new(&cq, &cq).num(0x00FF_FFFF), &port);
    assert!(matches!(named, Err(Error::QpNumber { num: 0x00FF_FFFF })), "{named:?}");
    let all: Vec<_> =
        (0..255).map(|_| pd.create_ud_qp(QpInit::new(&cq, &cq), &port).unwrap()).collect();
    assert!(all.iter().all(|qp| qp.num() != 0x00FF_FFFF));
    assert!(matches!(
        pd.create_ud_qp(QpInit::new(&cq, &cq), &port),
        Err(Error::QpNumberTaken { .. })
    ));
}

#[test]
fn only_group_addresses_attached() {
    let a = Ud::kernel();
    let attached = a.end.qp.attach_multicast(LOCALHOST, LOCALHOST, 0);
    assert!(matches!(attached, Err(Error::Misuse(_))), "{attached:?}");
}

/// Returns a SIDR request with this transaction number, which any host can send.
fn sidr_request(number: u64) -> [u8; uiw_datagram::sidr::LEN] {
    uiw_datagram::sidr::Request { transaction: number, private_data: b"flood" }.emit().unwrap()
}

/// The number of undecided requests is limited, with a lower limit per address. Decided requests
/// are replaced by new ones.
#[test]
fn sidr_flood_leaves_room_for_others() {
    let device = Device::open().unwrap();
    let channel = Arc::<CmChannel>::default();
    let listener = SidrListener::bind(&device, &["0.0.0.0:0".parse().unwrap()], &channel).unwrap();
    let port = listener.local_addr().port();
    let from = |address: &str| UdpSocket::bind((address, 0)).unwrap();
    let (flooder, honest) = (from("127.0.0.1"), from("127.0.0.2"));
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let pass = || pass(&device, Duration::from_millis(1));
    for number in 0..4000 {
        flooder.send_to(&sidr_request(number), to).unwrap();
        if number % 100 == 99 {
            pass();
        }
    }
    let take = || {
        let mut requests = Vec::new();
        while let Some(event) = channel.try_pop() {
            let CmEventKind::SidrRequest(request) = event.kind else { panic!("{event:?}") };
            requests.push(request);
        }
        requests
    };
    let next = |what: &str| {
        let found = (0..2000).find_map(|_| {
            pass();
            channel.try_pop()
        });
        let CmEventKind::SidrRequest(request) = found.expect(what).kind else { panic!("{what}") };
        request
    };
    for _ in 0..50 {
        pass();
    }
    let undecided = take();
    assert!(
        (64..=128).contains(&undecided.len()),
        "{} requests of one address wait",
        undecided.len()
    );
    // Requests from another address are accepted, however long the first ones stay undecided.
    honest.send_to(&sidr_request(1), to).unwrap();
    let request = next("a request of another address");
    assert_eq!(request.peer_addr().ip().to_string(), "127.0.0.2");
    request.reject(b"").unwrap();
    // There are far more decided requests than remembered replies; no new request is refused for
    // that.
    drop(undecided);
    for number in 0..3000 {
        flooder.send_to(&sidr_request(10_000 + number), to).unwrap();
        next("a request after many decided ones").reject(b"").unwrap();
    }
    // The reply to the last request is remembered and is repeated without another event.
    flooder.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut buffer = [0; 512];
    flooder.set_nonblocking(true).unwrap();
    while flooder.recv_from(&mut buffer).is_ok() {}
    flooder.set_nonblocking(false).unwrap();
    flooder.send_to(&sidr_request(12_999), to).unwrap();
    let len = (0..2000).find_map(|_| {
        pass();
        flooder.set_nonblocking(true).unwrap();
        flooder.recv_from(&mut buffer).ok()
    });
    assert_eq!(len.expect("a repeated reply").0, uiw_datagram::sidr::LEN);
    assert!(channel.try_pop().is_none());
}

#[test]
fn sidr_resolves_despite_losses() {
    let (a, b) = simulated();
    crate::simulation::change_link(|link| {
        link.latency = Duration::from_millis(5);
        link.datagrams = DatagramFaults { loss: 400_000, duplicate: 300_000, reorder: 0 };
    });
    let channel = Arc::<CmChannel>::default();
    let listener =
        SidrListener::bind(&b.end.device, &[SocketAddr::new(b.address, 0)], &b.end.channel)
            .unwrap();
    let from = SocketAddr::new(a.address, 0);
    let ask = |data: &[u8]| {
        SidrHandle::request(&a.end.device, from, listener.local_addr(), data, &channel).unwrap()
    };
    for round in 0..20u8 {
        let handle = ask(&[round; 100]);
        let CmEventKind::SidrRequest(request) = b.end.event() else { panic!("not a request") };
        assert_eq!(
            (request.listener(), request.private_data()),
            (listener.id(), &[round; 100][..])
        );
        let rejects = round % 4 == 3;
        if rejects {
            request.reject(b"no").unwrap();
        } else {
            request.accept(b.end.qp.num(), QKEY, b"yes").unwrap();
        }
        let event =
            crate::transport::wait(&a.end.device, |cx| channel.poll_pop(cx)).expect("an answer");
        assert_eq!(event.id, handle.id());
        match event.kind {
            CmEventKind::SidrResolved(info) if !rejects => {
                assert_eq!(
                    (info.qpn, info.qkey, &info.private_data[..]),
                    (b.end.qp.num(), QKEY, &b"yes"[..])
                );
            }
            CmEventKind::Failed(Error::Rejected { private_data, .. }) if rejects => {
                assert_eq!(private_data, b"no");
            }
            other => panic!("{other:?}"),
        }
    }
    // Repetitions of a request cause no second event.
    pass(&b.end.device, Duration::from_secs(40));
    assert!(b.end.channel.is_empty() && channel.is_empty());
    // Nothing answers any more, so the requester gives up.
    let gone = listener.local_addr();
    drop(listener);
    let handle = SidrHandle::request(&a.end.device, from, gone, b"", &channel).unwrap();
    let event = crate::transport::wait_for(&a.end.device, Duration::from_secs(60), |cx| {
        channel.poll_pop(cx)
    });
    let event = event.expect("a failure");
    assert!(
        matches!(event.kind, CmEventKind::Failed(Error::TimedOut { .. }))
            && event.id == handle.id()
    );
    assert!(
        SidrHandle::request(&a.end.device, from, gone, &[0; 181], &channel).is_err(),
        "too much data"
    );
}

#[test]
fn device_counters_include_datagrams() {
    let (a, b) = (Ud::kernel(), Ud::kernel());
    for id in 0..3 {
        b.end.recv(id, 0, 4096);
        a.send_ok(id, a.to(&b), 100);
        b.end.received_ok(id);
    }
    // Send to itself, to a group, to no port, with a wrong Q_Key, to an unknown queue pair, and
    // without a receive.
    a.end.recv(4, 0, 4096);
    a.send_ok(4, a.to(&a), 7);
    a.end.received_ok(4);
    let group = AddressHandle::new(LOCALHOST, "239.77.1.11".parse().unwrap(), 0);
    for to in [
        Destination { ah: group, qpn: 0xFF_FFFF, qkey: QKEY },
        Destination { qpn: 1, ..a.to(&b) },
        Destination { qkey: QKEY + 1, ..a.to(&b) },
        Destination { qpn: b.end.qp.num() ^ 1, ..a.to(&b) },
        a.to(&b),
    ] {
        a.send_ok(5, to, 20);
    }
    b.dropped(3);
    let of = |ud: &Ud| {
        let counters = ud.end.device.counters();
        let [pair] = &counters.datagram_queue_pairs[..] else { panic!("{counters:?}") };
        assert_eq!((pair.qp_num, pair.local), (ud.end.qp.num(), ud.socket_address()));
        assert_eq!(pair.datagrams.traffic, counters.total().datagrams.traffic);
        assert!(counters.connections.is_empty() && counters.total().established == 0);
        (counters.total().datagrams, *pair)
    };
    let count = |count: uiw_verbs::counters::Count| (count.messages, count.bytes);
    let (all, _) = of(&a);
    assert_eq!((count(all.traffic.sent), count(all.traffic.received)), ((8, 387), (1, 7)));
    let others = all.with_other_devices();
    assert_eq!((count(others.sent), count(others.received)), ((6, 360), (0, 0)));
    assert_eq!(all.unsent, 1);
    let (all, own) = of(&b);
    assert_eq!(
        (count(all.traffic.received), count(all.with_other_devices().received)),
        ((3, 300), (3, 300))
    );
    assert_eq!((all.bad_qkey, all.no_receive, all.no_queue_pair, all.bad_crc), (1, 1, 1, 0));
    assert_eq!(
        (own.datagrams.bad_qkey, own.datagrams.no_receive, own.datagrams.no_queue_pair),
        (1, 1, 0)
    );
    assert_eq!(all.dropped().iter().map(|(_, count)| count).sum::<u64>(), b.counts().dropped());
}

//! Datagrams: a socket sends valid and invalid datagrams to a UD queue pair and a SIDR listener on
//! a simulated network. The fuzz target knows which ones must be delivered; all others must be
//! dropped, counted, and not answered.

use crate::input::Input;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use uiw_datagram::sidr::{self, Reply, Request};
use uiw_datagram::{DatagramError, Header, Qpn, crc};
use uiw_llp::{
    DATAGRAM_BUFFER, DatagramConfig, DatagramSocket, Incoming, Interest, Outgoing, Token,
    TransportStack,
};
use uiw_testkit::sim::Network;
use uiw_verbs::cm::{CmChannel, CmEventKind, SidrListener};
use uiw_verbs::{
    Access, Cq, CqConfig, DatagramPort, Device, DeviceConfig, Memory, Progress, Qp, QpInit,
    QpState, RawMr, RecvWr, Sge, Wc, WcStatus,
};

const OURS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const THEIRS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// Maximum number of steps of an input.
const STEPS: usize = 60;
/// Size in bytes of the memory of each receive.
const PLACE: u64 = 8192;
const PLACES: u64 = 16;

/// Receiving end, and the state that it is expected to have.
struct FuzzedTarget {
    network: Network,
    device: Device,
    qp: Qp,
    cq: Arc<Cq>,
    mr: RawMr,
    /// Posted receives: number and length in bytes.
    posted: VecDeque<(u64, u32)>,
    next: u64,
    qkey: u32,
    alive: bool,
    dropped: u64,
}

/// End that sends datagrams according to the input.
struct FuzzedSender {
    socket: Box<dyn DatagramSocket>,
    peer: SocketAddr,
}

impl FuzzedSender {
    fn new(stack: &mut dyn TransportStack, token: u64, peer: SocketAddr) -> Self {
        let local = SocketAddr::new(THEIRS, 0);
        let mut socket =
            stack.bind_datagrams(local, &DatagramConfig::default(), Token(token)).expect("a port");
        socket.set_interest(Interest::READ).expect("a socket");
        Self { socket, peer }
    }

    fn port(&self) -> u16 {
        self.socket.local_addr().port()
    }

    fn send(&mut self, bytes: &[u8]) {
        let sent = self.socket.send(bytes, &[Outgoing::new(self.peer, bytes.len())]);
        assert_eq!(sent.expect("room"), 1);
    }

    /// Receives all answers.
    fn receive(&mut self) -> Vec<Vec<u8>> {
        let (mut buffer, mut incoming) = (vec![0; DATAGRAM_BUFFER], Vec::new());
        let mut all = Vec::new();
        while self.socket.recv(&mut buffer, &mut incoming).is_ok() {
            let runs = incoming.drain(..);
            all.extend(
                runs.flat_map(|run: Incoming| run.each()).map(|bytes| buffer[bytes].to_vec()),
            );
        }
        all
    }
}

impl FuzzedTarget {
    fn new(network: &Network) -> Self {
        let options = DeviceConfig::default().progress(Progress::Manual);
        let device = Device::with_stack(Box::new(network.stack(OURS)), options).expect("a device");
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(256, CqConfig::default()).expect("a queue");
        let port = DatagramPort::bind(&device, &[SocketAddr::new(OURS, 0)], cq.shard(), 4096)
            .expect("a port");
        let init = QpInit::new(&cq, &cq).signal_all(true);
        let qp = pd.create_ud_qp(init, &port).expect("a queue pair");
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            qp.modify(state).expect("the transition");
        }
        let memory = Memory::owned((PLACE * PLACES) as usize).expect("memory");
        let base = memory.as_ptr() as u64;
        let mr = pd.register_raw(memory, base, Access::LOCAL_WRITE).expect("a region");
        let (network, posted) = (network.clone(), VecDeque::new());
        Self { network, device, qp, cq, mr, posted, next: 0, qkey: 0, alive: true, dropped: 0 }
    }

    fn post(&mut self, length: u32) {
        if self.posted.len() as u64 == PLACES || !self.alive {
            return;
        }
        let wr_id = self.next;
        self.next += 1;
        let sge =
            Sge { addr: self.mr.addr() + wr_id % PLACES * PLACE, length, lkey: self.mr.lkey() };
        // SAFETY: the region exists as long as the queue pair, and is only read by copying.
        unsafe { self.qp.post_recv([RecvWr { wr_id, sges: &[sge] }]) }.expect("room for a receive");
        self.posted.push_back((wr_id, length));
    }

    fn pump(&self) {
        while self.network.step() {}
        while self.device.pump() > 0 {}
    }

    fn completions(&self) -> Vec<Wc> {
        let mut out = Vec::new();
        self.cq.poll(&mut out, 64);
        out
    }

    /// Checks the result of a datagram. `message` is the message that must be delivered if the
    /// datagram is valid.
    fn check(&mut self, message: Option<(&Header, &[u8])>) {
        self.pump();
        let got = self.completions();
        let message = message.filter(|(header, _)| self.alive && header.qkey == self.qkey);
        let taken = message.and_then(|message| Some((message, self.posted.pop_front()?)));
        let Some(((header, payload), (wr_id, room))) = taken else {
            self.dropped += 1;
            assert!(got.is_empty(), "{got:?}");
            return self.check_counts();
        };
        let len = payload.len() as u32 + 40;
        if len > room {
            self.alive = false;
            self.dropped += 1;
            let flushed = self.posted.drain(..).map(|(wr_id, _)| (wr_id, WcStatus::Flushed));
            let expected: Vec<_> =
                [(wr_id, WcStatus::LocalLength)].into_iter().chain(flushed).collect();
            let got: Vec<_> = got.iter().map(|wc| (wc.wr_id, wc.status)).collect();
            assert_eq!(got, expected);
            assert_eq!(self.qp.state(), QpState::Err);
            return self.check_counts();
        }
        let [wc] = got[..] else { panic!("{got:?}") };
        assert_eq!(
            (wc.wr_id, wc.status, wc.byte_len, wc.imm),
            (wr_id, WcStatus::Success, len, header.immediate)
        );
        assert_eq!(wc.datagram_from, Some(header.source.raw()));
        let mut placed = vec![0; payload.len()];
        let at = (wr_id % PLACES * PLACE) as usize + 40;
        let span = self.mr.region().span(at, placed.len()).expect("a span");
        span.pin().expect("memory").copy_to(0, &mut placed).expect("mapped memory");
        assert_eq!(placed, payload);
        self.check_counts();
    }

    fn check_counts(&self) {
        let counts = self.qp.datagram_port().expect("a UD queue pair").counts();
        assert_eq!(counts.dropped(), self.dropped, "{counts:?}");
        assert_eq!(counts.sent, 0);
    }
}

/// Runs an input, which consists of steps.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let network = Network::new(1);
    let mut target = FuzzedTarget::new(&network);
    let channel = Arc::<CmChannel>::default();
    let at = [SocketAddr::new(OURS, 0)];
    let listener = SidrListener::bind(&target.device, &at, &channel).expect("a listener");
    let mut stack = network.stack(THEIRS);
    let number = target.qp.datagram_port().expect("a UD queue pair").number();
    let mut sender = FuzzedSender::new(&mut stack, 1, SocketAddr::new(OURS, number));
    let mut asker = FuzzedSender::new(&mut stack, 2, listener.local_addr());
    let mut answered = VecDeque::new();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.below(8) {
            0 | 1 => target.post(u32::from(input.u16()) % (PLACE as u32)),
            2 => {
                target.qkey = input.u32() & 3;
                target.qp.set_qkey(target.qkey).expect("a UD queue pair");
            }
            3 => {
                let raw = input.below(200);
                let raw = input.take(raw);
                sender.send(raw);
                // Arbitrary bytes hardly ever have a correct CRC, so none of these datagrams is
                // expected to be valid.
                let valid = Header::parse(raw)
                    .ok()
                    .filter(|(header, _)| header.check_source(sender.port()).is_ok());
                assert!(valid.is_none(), "a CRC of the input's own");
                target.check(None);
            }
            4 => ask(&mut input, &mut target, &channel, &mut asker, &mut answered),
            _ => message(&mut input, &mut target, &mut sender),
        }
        assert!(sender.receive().is_empty(), "no message is answered");
    }
    drop(listener);
}

/// Sends a message with at most one error.
fn message(input: &mut Input<'_>, target: &mut FuzzedTarget, sender: &mut FuzzedSender) {
    let source = Qpn::new(sender.port(), input.u8());
    let header = Header {
        epoch: input.u32(),
        destination: Qpn::from_raw(target.qp.num()),
        source,
        qkey: input.u32() & 3,
        msn: input.u32(),
        solicited: input.bool(),
        immediate: input.bool().then(|| input.u32()),
    };
    let len = input.below(4097);
    let payload: Vec<u8> = (0..len).map(|at| (at * 7) as u8 ^ len as u8).collect();
    let wrong = input.below(20);
    let mut bytes = header.emit().to_vec();
    bytes.extend_from_slice(&payload);
    let mut valid = false;
    let change =
        |at: usize, bytes: &mut Vec<u8>, input: &mut Input<'_>| bytes[at] ^= input.u8().max(1);
    match wrong {
        0 => change(0, &mut bytes, input),
        1 => change(1, &mut bytes, input),
        // These are the index and the port of the destination's queue pair number.
        2 => change(11, &mut bytes, input),
        3 => change(9, &mut bytes, input),
        4 => change(13, &mut bytes, input),
        5 => bytes[20] ^= input.pick(&[0x80, 0x40, 0x01, 0x02]),
        6 => {
            bytes[21] =
                bytes[21] & !0xF | input.pick(&[0, 1, 2, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        }
        7 => bytes[21] ^= input.pick(&[0x40, 0x80, 0xC0]),
        8 => change(29, &mut bytes, input),
        9 => change(37, &mut bytes, input),
        10 => bytes.resize(Header::LEN + 4097, 0),
        11 => bytes.truncate(input.below(Header::LEN)),
        // Reserved bits, which are not checked.
        12 => {
            let at = input.pick(&[2, 3, 8, 12]);
            change(at, &mut bytes, input);
            valid = true;
        }
        _ => valid = true,
    }
    let mut field = crc(&bytes);
    if wrong == 13 {
        field[input.below(4)] ^= input.u8().max(1);
        valid = false;
    }
    bytes.extend_from_slice(&field);
    sender.send(&bytes);
    target.check(valid.then_some((&header, &payload)));
}

/// Sends a request for the queue pair, valid or invalid, new or repeated.
fn ask(
    input: &mut Input<'_>,
    target: &mut FuzzedTarget,
    channel: &Arc<CmChannel>,
    asker: &mut FuzzedSender,
    answered: &mut VecDeque<(u64, Vec<u8>)>,
) {
    let transaction = u64::from(input.u8() & 7);
    let private = input.below(181);
    let private = input.take(private).to_vec();
    let mut bytes =
        Request { transaction, private_data: &private }.emit().expect("it fits").to_vec();
    let wrong = input.below(8);
    match wrong {
        0 => bytes[input.below(2)] ^= input.u8().max(1),
        1 => bytes[2] = input.u8().max(1),
        2 => bytes[3] = 181 + input.u8() % 75,
        3 => bytes.truncate(input.below(sidr::LEN)),
        4 => bytes.push(0),
        _ => {}
    }
    if wrong < 5 {
        let end = bytes.len().saturating_sub(4);
        let field = crc(&bytes[..end]);
        bytes.truncate(end);
        bytes.extend_from_slice(&field);
    }
    let known =
        answered.iter().find(|(number, _)| *number == transaction).map(|(_, reply)| reply.clone());
    asker.send(&bytes);
    target.pump();
    let event = channel.try_pop();
    if wrong < 5 {
        assert!(event.is_none() && asker.receive().is_empty(), "a wrong request has no effect");
        return;
    }
    if let Some(reply) = known {
        assert!(event.is_none());
        assert_eq!(asker.receive(), [reply], "the reply is repeated");
        return;
    }
    let Some(CmEventKind::SidrRequest(request)) = event.map(|event| event.kind) else {
        panic!("no request")
    };
    assert_eq!(request.private_data(), private);
    if input.bool() {
        request.accept(target.qp.num(), target.qkey, b"yes").expect("it fits");
    } else {
        drop(request);
    }
    let mut replies = asker.receive();
    let reply = replies.pop().expect("a reply");
    assert!(replies.is_empty() && reply.len() == sidr::LEN);
    let parsed: Result<Reply<'_>, DatagramError> = Reply::parse(&reply);
    assert_eq!(parsed.expect("a valid reply").transaction, transaction);
    answered.push_back((transaction, reply));
}

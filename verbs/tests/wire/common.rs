//! One of our own ends in a test: a queue pair with all its objects, on a device of its own.

use crate::peer::{Peer, Port, enhanced, reply, request, with};
use crate::simulation;
use crate::transport::{any_port, pass, wait};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;
use uiw_mpa::wire::startup::Frame;
use uiw_verbs::cm::{self, CloseReason, CmChannel, CmEventKind, ConnInfo, ConnRequest};
use uiw_verbs::{
    Access, AsyncEvent, CapabilityExchange, ConnConfig, Cq, CqConfig, Device, Error, Limits,
    Memory, Pd, PostError, Qp, QpCap, QpInit, RawMr, RecvWr, SendFlags, SendOp, SendWr, Sge, Srq,
    Wc, WcStatus,
};

pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

pub(crate) fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Returns a loopback address on which nothing listens and that only this call returns. The system
/// does not assign the port of one address to sockets of other addresses, so no other test, in this
/// or another process, uses it before the caller does.
pub(crate) fn closed_addr() -> SocketAddr {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    // The host part is from the upper half of 127.0.0.0/8 and depends on the process and the call.
    let host =
        1 << 23 | (std::process::id() & 0xF_FFFF) << 3 | CALLS.fetch_add(1, Ordering::Relaxed) & 7;
    let ip = Ipv4Addr::from_bits(Ipv4Addr::new(127, 0, 0, 0).to_bits() | host);
    std::net::TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap()
}

/// Options for connections to a scripted peer: client-server model, and no messages that the engine
/// sends on its own.
pub(crate) fn plain() -> ConnConfig {
    ConnConfig::default()
        .peer_to_peer(false)
        .capabilities(CapabilityExchange::Off)
        .ird(4)
        .ord(4)
        .close_timeout(Duration::from_secs(2))
}

pub(crate) struct End {
    pub(crate) qp: Qp,
    pub(crate) device: Device,
    pub(crate) pd: Pd,
    pub(crate) scq: Arc<Cq>,
    pub(crate) rcq: Arc<Cq>,
    pub(crate) channel: Arc<CmChannel>,
    pub(crate) mr: RawMr,
}

pub(crate) struct Make {
    pub(crate) cap: QpCap,
    pub(crate) signal_all: bool,
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) memory: usize,
    pub(crate) access: Access,
    pub(crate) cqe: u32,
    pub(crate) shard: Option<usize>,
}

impl Default for Make {
    fn default() -> Self {
        Self {
            cap: QpCap::default(),
            signal_all: true,
            srq: None,
            memory: 64 << 10,
            access: ALL,
            cqe: 1024,
            shard: None,
        }
    }
}

pub(crate) fn memory(pd: &Pd, len: usize, access: Access) -> RawMr {
    let memory = Memory::owned(len).unwrap();
    let base = memory.as_ptr() as u64;
    pd.register_raw(memory, base, access).unwrap()
}

pub(crate) fn fill(mr: &RawMr, offset: usize, bytes: &[u8]) {
    mr.region().span(offset, bytes.len()).unwrap().pin().unwrap().copy_from(0, bytes).unwrap();
}

pub(crate) fn peek(mr: &RawMr, offset: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    mr.region().span(offset, len).unwrap().pin().unwrap().copy_to(0, &mut out).unwrap();
    out
}

pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + (i >> 8) * 7) as u8).collect()
}

pub(crate) fn next_event(device: &Device, channel: &CmChannel) -> CmEventKind {
    wait(device, |cx| channel.poll_pop(cx)).expect("an event").kind
}

pub(crate) fn next_request(device: &Device, channel: &CmChannel) -> ConnRequest {
    match next_event(device, channel) {
        CmEventKind::ConnectRequest(request) => request,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn next_wc(device: &Device, cq: &Cq) -> Wc {
    let mut out = Vec::new();
    let got = wait(device, |cx| {
        if cq.poll(&mut out, 1) == 1 {
            return Poll::Ready(());
        }
        cq.poll_ready(cx).map(|()| ())
    });
    got.expect("a completion");
    if out.is_empty() {
        assert_eq!(cq.poll(&mut out, 1), 1);
    }
    out[0]
}

/// Creates a device on the simulated network.
pub(crate) fn device() -> Device {
    simulation::device(Limits::default())
}

impl End {
    /// Creates an end on the simulated network.
    pub(crate) fn new() -> Self {
        Self::on(&device())
    }

    /// Creates an end on the kernel's TCP.
    pub(crate) fn tcp() -> Self {
        Self::on(&Device::open().unwrap())
    }

    pub(crate) fn on(device: &Device) -> Self {
        let pd = device.alloc_pd().unwrap();
        Self::make(device, &pd, Make::default())
    }

    pub(crate) fn made(make: Make) -> Self {
        let device = device();
        let pd = device.alloc_pd().unwrap();
        Self::make(&device, &pd, make)
    }

    pub(crate) fn tcp_made(make: Make) -> Self {
        let device = Device::open().unwrap();
        let pd = device.alloc_pd().unwrap();
        Self::make(&device, &pd, make)
    }

    pub(crate) fn make(device: &Device, pd: &Pd, make: Make) -> Self {
        Self::with_qp(device, pd, make, |init, _| pd.create_qp(init))
    }

    /// Creates an end whose queue pair is created by `create` and uses the completion queue for
    /// receives that `create` gets.
    pub(crate) fn with_qp(
        device: &Device,
        pd: &Pd,
        make: Make,
        create: impl FnOnce(QpInit, &Cq) -> Result<Qp, Error>,
    ) -> Self {
        let scq = device.create_cq(make.cqe, CqConfig::default()).unwrap();
        let shard = CqConfig { shard: make.shard, ..CqConfig::default() };
        let rcq = device.create_cq(make.cqe, shard).unwrap();
        let init = QpInit::new(&scq, &rcq).cap(make.cap).signal_all(make.signal_all).srq(make.srq);
        let qp = create(init, &rcq).unwrap();
        let mr = memory(pd, make.memory, make.access);
        Self { qp, device: device.clone(), pd: pd.clone(), scq, rcq, channel: Arc::default(), mr }
    }

    pub(crate) fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.mr.addr() + offset, length, lkey: self.mr.lkey() }
    }

    pub(crate) fn post(
        &self,
        wr_id: u64,
        op: SendOp,
        sges: &[Sge],
        flags: SendFlags,
    ) -> Result<(), PostError> {
        // SAFETY: tests keep the memory of posted requests, and only access it through copies.
        unsafe { self.qp.post_send([SendWr { wr_id, op, sges, flags }]) }
    }

    pub(crate) fn send(&self, wr_id: u64, offset: u64, length: u32) {
        self.post(wr_id, SendOp::Send, &[self.sge(offset, length)], SendFlags::SIGNALED).unwrap();
    }

    pub(crate) fn op(&self, wr_id: u64, op: SendOp, offset: u64, length: u32) {
        self.post(wr_id, op, &[self.sge(offset, length)], SendFlags::SIGNALED).unwrap();
    }

    pub(crate) fn recv(&self, wr_id: u64, offset: u64, length: u32) {
        self.try_recv(wr_id, &[self.sge(offset, length)]).unwrap();
    }

    pub(crate) fn try_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        // SAFETY: as in `post`.
        unsafe { self.qp.post_recv([RecvWr { wr_id, sges }]) }
    }

    pub(crate) fn sent(&self) -> Wc {
        next_wc(&self.device, &self.scq)
    }

    pub(crate) fn received(&self) -> Wc {
        next_wc(&self.device, &self.rcq)
    }

    /// Asserts that the next send completion is that of `wr_id` with success, and returns it.
    pub(crate) fn sent_ok(&self, wr_id: u64) -> Wc {
        let wc = self.sent();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success), "{wc:?}");
        wc
    }

    pub(crate) fn received_ok(&self, wr_id: u64) -> Wc {
        let wc = self.received();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success), "{wc:?}");
        wc
    }

    pub(crate) fn async_event(&self) -> AsyncEvent {
        wait(&self.device, |cx| self.device.async_events().poll_pop(cx))
            .expect("an asynchronous event")
    }

    pub(crate) fn event(&self) -> CmEventKind {
        next_event(&self.device, &self.channel)
    }

    pub(crate) fn established(&self) -> ConnInfo {
        match self.event() {
            CmEventKind::Established(info) => info,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn failed(&self) -> Error {
        match self.event() {
            CmEventKind::Failed(error) => error,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn ended(&self) -> CloseReason {
        match self.event() {
            CmEventKind::Disconnected(ending) => ending,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn connect(&self, to: SocketAddr, options: &ConnConfig) {
        self.connect_with(to, options, b"").unwrap();
    }

    pub(crate) fn connect_with(
        &self,
        to: SocketAddr,
        options: &ConnConfig,
        private_data: &[u8],
    ) -> Result<(), Error> {
        cm::connect(&self.qp, None, to, &Arc::new(options.clone()), private_data, &self.channel)
            .map(drop)
    }

    pub(crate) fn listen(&self, options: &ConnConfig) -> cm::Listener {
        let address = any_port(&self.device);
        cm::Listener::bind(&self.device, address, 64, &Arc::new(options.clone()), &self.channel)
            .unwrap()
    }

    pub(crate) fn request(&self) -> ConnRequest {
        next_request(&self.device, &self.channel)
    }

    pub(crate) fn accept(&self, request: ConnRequest) {
        request.accept(&self.qp, None, b"", None).unwrap();
    }

    pub(crate) fn remote(&self, offset: u64) -> uiw_verbs::Remote {
        uiw_verbs::Remote { addr: self.mr.addr() + offset, rkey: self.mr.rkey() }
    }

    /// Asserts that no completion and no event is pending.
    pub(crate) fn nothing_more(&self) {
        pass(&self.device, Duration::from_millis(20));
        let mut out = Vec::new();
        self.scq.poll(&mut out, 16);
        self.rcq.poll(&mut out, 16);
        assert!(out.is_empty(), "{out:?}");
        assert!(self.channel.is_empty(), "{:?}", self.channel.try_pop());
        assert!(
            self.device.async_events().is_empty(),
            "{:?}",
            self.device.async_events().try_pop()
        );
    }
}

/// Accepts a scripted initiator at one of our ends. The connection is in Full Operation, and the
/// initiator has not sent an FPDU.
pub(crate) fn responder_with(end: &End, options: &ConnConfig, request: &Frame) -> (Peer, Frame) {
    let listener = end.listen(options);
    let mut peer = Peer::requesting(listener.local_addr(), request);
    end.accept(end.request());
    let reply = peer.startup_frame();
    peer.full(reply.crc || request.crc, reply.markers, request.markers);
    (peer, reply)
}

/// Like [`responder_with`], with plain options and after the first FPDU has been exchanged.
pub(crate) fn responder(end: &End) -> Peer {
    responder_opt(end, &plain())
}

pub(crate) fn responder_opt(end: &End, options: &ConnConfig) -> Peer {
    let (mut peer, _) = responder_with(end, options, &with(request(2), enhanced(4, 4)));
    end.established();
    peer.empty_write();
    peer
}

/// Connects one of our ends to a scripted responder; the connection is in Full Operation.
pub(crate) fn initiator(end: &End) -> Peer {
    initiator_opt(end, &plain())
}

pub(crate) fn initiator_opt(end: &End, options: &ConnConfig) -> Peer {
    initiator_with(end, options, |_| with(reply(2), enhanced(4, 4))).0
}

pub(crate) fn initiator_with(
    end: &End,
    options: &ConnConfig,
    answer: impl FnOnce(&Frame) -> Frame,
) -> (Peer, Frame) {
    let (mut peer, request) = requested(end, options);
    let reply = answer(&request);
    peer.raw(&reply.emit());
    peer.full(reply.crc || request.crc, request.markers, reply.markers);
    end.established();
    (peer, request)
}

/// Returns a scripted responder that has received the Request of one of our ends.
pub(crate) fn requested(end: &End, options: &ConnConfig) -> (Peer, Frame) {
    let port = if simulation::is_simulated(&end.device) { Port::new() } else { Port::tcp() };
    end.connect(port.addr(), options);
    let mut peer = port.accept();
    let request = peer.startup_frame();
    (peer, request)
}

/// Connects two of our ends, each on a device of its own, on the simulated network.
pub(crate) fn pair() -> (End, End) {
    pair_of(End::new(), End::new(), &ConnConfig::default())
}

/// Like [`pair`], but on the kernel's TCP.
pub(crate) fn tcp_pair() -> (End, End) {
    pair_of(End::tcp(), End::tcp(), &ConnConfig::default())
}

pub(crate) fn pair_of(client: End, server: End, options: &ConnConfig) -> (End, End) {
    let listener = server.listen(options);
    client.connect(listener.local_addr(), options);
    server.accept(server.request());
    client.established();
    server.established();
    (client, server)
}

//! A poll of an idle queue pair's queue moves nothing of queue pairs on other shards, counted by a stack that notes which thread moves
//! how many bytes.

use llp::tcp::TcpStack;
use llp::{Event, Interest, ListenOptions, Listener, Stack, Stream, StreamInfo, StreamOptions, Token};
use mem::{IoVec, IoVecMut};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Instant;
use verbs::cm::{self, CmChannel, CmEventKind};
use verbs::{
    Access, ConnOptions, Cq, CqOptions, Device, DeviceOptions, Memory, Pd, Qp, QpCap, QpInit, RawMr, RecvWr,
    SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus,
};

/// Bytes that each thread has sent and received.
#[derive(Clone, Default)]
struct Counts(Arc<Mutex<HashMap<ThreadId, u64>>>);

impl Counts {
    fn add(&self, bytes: usize) {
        *self.0.lock().unwrap().entry(thread::current().id()).or_default() += bytes as u64;
    }

    fn of(&self, thread: ThreadId) -> u64 {
        self.0.lock().unwrap().get(&thread).copied().unwrap_or(0)
    }
}

/// Counts what passes through `inner`.
struct Counting<T> {
    inner: T,
    counts: Counts,
}

impl Stack for Counting<Box<dyn Stack>> {
    fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenOptions,
        token: Token,
    ) -> io::Result<Box<dyn Listener>> {
        let inner = self.inner.listen(local, options, token)?;
        Ok(Box::new(Counting { inner, counts: self.counts.clone() }))
    }

    fn connect(
        &mut self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        options: &StreamOptions,
        token: Token,
    ) -> io::Result<Box<dyn Stream>> {
        let inner = self.inner.connect(local, peer, options, token)?;
        Ok(Box::new(Counting { inner, counts: self.counts.clone() }))
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        self.inner.poll(events)
    }

    fn wait_fd(&self) -> Option<Arc<OwnedFd>> {
        self.inner.wait_fd()
    }

    fn deadline(&self) -> Option<Instant> {
        self.inner.deadline()
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn shard(&self) -> io::Result<Option<Box<dyn Stack>>> {
        let counted = |inner| Box::new(Counting { inner, counts: self.counts.clone() }) as Box<dyn Stack>;
        Ok(self.inner.shard()?.map(counted))
    }

    fn adopt(&mut self, stream: &mut Box<dyn Stream>, token: Token) -> io::Result<()> {
        let counting = stream.downcast_mut::<Counting<Box<dyn Stream>>>();
        self.inner.adopt(&mut counting.ok_or(io::ErrorKind::InvalidInput)?.inner, token)
    }
}

impl Listener for Counting<Box<dyn Listener>> {
    fn accept(&mut self, token: Token) -> io::Result<Box<dyn Stream>> {
        let inner = self.inner.accept(token)?;
        Ok(Box::new(Counting { inner, counts: self.counts.clone() }))
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }
}

impl Stream for Counting<Box<dyn Stream>> {
    fn send(&mut self, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        self.inner.send(bufs).inspect(|bytes| self.counts.add(*bytes))
    }

    fn recv(&mut self, bufs: &mut [IoVecMut<'_>]) -> io::Result<usize> {
        self.inner.recv(bufs).inspect(|bytes| self.counts.add(*bytes))
    }

    fn set_interest(&mut self, interest: Interest) -> io::Result<()> {
        self.inner.set_interest(interest)
    }

    fn connect_result(&mut self) -> io::Result<bool> {
        self.inner.connect_result()
    }

    fn shutdown(&mut self) -> io::Result<()> {
        self.inner.shutdown()
    }

    fn abort(&mut self) {
        self.inner.abort();
    }

    fn detach(&mut self) -> io::Result<()> {
        self.inner.detach()
    }

    fn emss(&self) -> usize {
        self.inner.emss()
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.inner.peer_addr()
    }

    fn info(&self) -> StreamInfo {
        self.inner.info()
    }
}

const BYTES: u32 = 1 << 16;
const WINDOW: u64 = 32;
/// Messages that the busy connection moves while the idle queue is polled.
const MESSAGES: u64 = 2000;

struct End {
    qp: Qp,
    mr: RawMr,
    _pd: Pd,
}

impl End {
    fn new(device: &Device, cq: &Arc<Cq>) -> Self {
        let pd = device.alloc_pd().unwrap();
        let init = QpInit {
            send_cq: Arc::clone(cq),
            recv_cq: Arc::clone(cq),
            srq: None,
            cap: QpCap { max_send_wr: 128, max_recv_wr: 128, ..QpCap::default() },
            signal_all: true,
            num: None,
        };
        let qp = pd.create_qp(init).unwrap();
        let memory = Memory::owned(BYTES as usize).unwrap();
        let base = memory.as_ptr() as u64;
        let mr = pd.register_raw(memory, base, Access::LOCAL_WRITE).unwrap();
        Self { qp, mr, _pd: pd }
    }

    fn sge(&self) -> Sge {
        Sge { addr: self.mr.addr(), length: BYTES, lkey: self.mr.lkey() }
    }

    fn send(&self) {
        let sges = [self.sge()];
        let wr = SendWr { wr_id: 0, op: SendOp::Send, sges: &sges, flags: SendFlags::empty() };
        // SAFETY: the region is the engine's own memory, which outlives the queue pair and is not looked at.
        unsafe { self.qp.post_send([wr]) }.unwrap();
    }

    fn recv(&self) {
        // SAFETY: as in `send`.
        unsafe { self.qp.post_recv([RecvWr { wr_id: 0, sges: &[self.sge()] }]) }.unwrap();
    }
}

/// Both ends of a connection on one completion queue.
struct Pair {
    cq: Arc<Cq>,
    a: End,
    b: End,
}

impl Pair {
    fn connect(device: &Device) -> Self {
        let cq = device.create_cq(1024, CqOptions::default()).unwrap();
        let (a, b) = (End::new(device, &cq), End::new(device, &cq));
        let (options, channel) = (Arc::new(ConnOptions::default()), Arc::new(CmChannel::default()));
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = cm::Listener::bind(device, any, 1, &options, &channel).unwrap();
        cm::connect(&a.qp, None, listener.local_addr(), &options, b"", &channel).unwrap();
        let mut established = 0;
        while established < 2 {
            match device.wait(None, |cx| channel.poll_pop(cx)).unwrap().kind {
                CmEventKind::ConnectRequest(request) => {
                    request.accept(&b.qp, None, b"", None).unwrap();
                }
                CmEventKind::Established(_) => established += 1,
                other => panic!("{other:?}"),
            }
        }
        // A message from the responder comes behind everything that start-up and the capability exchange bring.
        a.recv();
        b.send();
        let mut completed = 0;
        while completed < 2 {
            completed += cq.poll_with(2, |wc| assert_eq!(wc.status, WcStatus::Success));
        }
        Self { cq, a, b }
    }

    fn flood(&self, moved: &AtomicU64, stop: &AtomicBool) {
        (0..2 * WINDOW).for_each(|_| self.b.recv());
        (0..WINDOW).for_each(|_| self.a.send());
        while !stop.load(Ordering::Relaxed) {
            let (mut sent, mut received) = (0, 0);
            self.cq.poll_with(16, |wc| {
                assert_eq!(wc.status, WcStatus::Success);
                *if wc.opcode == WcOpcode::Recv { &mut received } else { &mut sent } += 1;
            });
            (0..received).for_each(|_| self.b.recv());
            (0..sent).for_each(|_| self.a.send());
            moved.fetch_add(received, Ordering::Relaxed);
        }
    }
}

#[test]
fn poll_of_an_idle_queue_moves_nothing_of_another_shard() {
    let counts = Counts::default();
    let inner: Box<dyn Stack> = Box::new(TcpStack::new().unwrap());
    let options = DeviceOptions { shards: Some(2), ..DeviceOptions::default() };
    let device = Device::with_stack(Box::new(Counting { inner, counts: counts.clone() }), options).unwrap();
    let (busy, idle) = (Pair::connect(&device), Pair::connect(&device));
    let (moved, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| busy.flood(&moved, &stop));
        let me = thread::current().id();
        while moved.load(Ordering::Relaxed) < WINDOW {
            thread::yield_now();
        }
        let before = counts.of(me);
        while moved.load(Ordering::Relaxed) < MESSAGES {
            assert_eq!(idle.cq.poll_with(16, |_| {}), 0);
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(counts.of(me) - before, 0, "bytes of another queue pair");
    });
}

//! A poll of an idle queue pair's queue moves nothing of queue pairs on other shards, counted by a stack that notes which thread moves
//! how many bytes.

use llp::tcp::TcpStack;
use llp::wrap::{Origin, StackHooks, StreamHooks, WrappedStack};
use llp::{Stream, Token};
use mem::{IoVec, IoVecMut};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
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

impl StackHooks for Counts {
    type Stream = Self;

    fn stream(&self, _: &dyn Stream, _: Origin, _: Token) -> Self {
        self.clone()
    }
}

impl StreamHooks for Counts {
    fn send(&mut self, inner: &mut dyn Stream, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        inner.send(bufs).inspect(|bytes| self.add(*bytes))
    }

    fn recv(&mut self, inner: &mut dyn Stream, bufs: &mut [IoVecMut<'_>]) -> io::Result<usize> {
        inner.recv(bufs).inspect(|bytes| self.add(*bytes))
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
    let stack = WrappedStack { inner: Box::new(TcpStack::new().unwrap()), hooks: counts.clone() };
    let options = DeviceOptions { shards: Some(2), ..DeviceOptions::default() };
    let device = Device::with_stack(Box::new(stack), options).unwrap();
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

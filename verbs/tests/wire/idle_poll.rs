//! A poll of an idle queue pair's completion queue drives only the shard of that queue pair. The
//! stack used here counts the calls on streams and the bytes they move, per thread.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use uiw_llp::tcp::TcpStack;
use uiw_llp::wrap::{Origin, StackHooks, StreamHooks, WrappedStack};
use uiw_llp::{Token, TransportStream};
use uiw_mem::{IoVec, IoVecMut};
use uiw_verbs::cm::{self, CmChannel, CmEventKind};
use uiw_verbs::{
    Access, ConnConfig, Cq, CqConfig, Device, DeviceConfig, Memory, Pd, Progress, Qp, QpCap,
    QpInit, RawMr, RecvWr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus,
};

/// Calls and bytes of one thread on the streams of one pair.
#[derive(Clone, Copy, Debug, Default)]
struct MovedBytes {
    /// Number of calls that send or receive.
    calls: u64,
    /// Number of bytes sent and received.
    bytes: u64,
}

/// Counts per thread and pair.
#[derive(Clone, Default)]
struct ThreadCounts {
    moved: Arc<Mutex<HashMap<(ThreadId, usize), MovedBytes>>>,
    /// Pair to which new streams belong.
    pair: Arc<AtomicUsize>,
}

impl ThreadCounts {
    /// Returns the counts of the calling thread for the streams of `pair`.
    fn of(&self, pair: usize) -> MovedBytes {
        self.moved.lock().unwrap().get(&(thread::current().id(), pair)).copied().unwrap_or_default()
    }
}

impl StackHooks for ThreadCounts {
    type Stream = CountedStream;

    fn stream(&self, _: &dyn TransportStream, _: Origin, _: Token) -> CountedStream {
        CountedStream { counts: self.clone(), pair: self.pair.load(Ordering::SeqCst) }
    }
}

/// Stream that belongs to a pair.
struct CountedStream {
    counts: ThreadCounts,
    pair: usize,
}

impl CountedStream {
    fn add(&self, moved: &io::Result<usize>) {
        let mut counts = self.counts.moved.lock().unwrap();
        let count = counts.entry((thread::current().id(), self.pair)).or_default();
        count.calls += 1;
        count.bytes += *moved.as_ref().unwrap_or(&0) as u64;
    }
}

impl StreamHooks for CountedStream {
    fn send(&mut self, inner: &mut dyn TransportStream, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        let moved = inner.send(bufs);
        self.add(&moved);
        moved
    }

    fn recv(
        &mut self,
        inner: &mut dyn TransportStream,
        bufs: &mut [IoVecMut<'_>],
    ) -> io::Result<usize> {
        let moved = inner.recv(bufs);
        self.add(&moved);
        moved
    }
}

/// Creates a device with two shards and a pair on each of them; a pair has the number of its shard.
fn device_with_pairs(progress: Progress) -> (ThreadCounts, [PolledPair; 2]) {
    let counts = ThreadCounts::default();
    let stack = WrappedStack { inner: Box::new(TcpStack::new().unwrap()), hooks: counts.clone() };
    let options = DeviceConfig::default().shards(2).progress(progress);
    let device = Device::with_stack(Box::new(stack), options).unwrap();
    let pairs = [0, 1].map(|shard| {
        counts.pair.store(shard, Ordering::SeqCst);
        PolledPair::connect(&device, shard)
    });
    (counts, pairs)
}

const BYTES: u32 = 1 << 16;
const WINDOW: u64 = 32;
/// Number of messages that the busy connection transfers while the idle queue is polled.
const MESSAGES: u64 = 2000;

struct PolledEnd {
    qp: Qp,
    mr: RawMr,
    _pd: Pd,
}

impl PolledEnd {
    fn new(device: &Device, cq: &Arc<Cq>) -> Self {
        let pd = device.alloc_pd().unwrap();
        let init = QpInit::new(&Arc::clone(cq), &Arc::clone(cq)).cap(QpCap {
            max_send_wr: 128,
            max_recv_wr: 128,
            ..QpCap::default()
        });
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
        // SAFETY: the engine owns the memory of the region, which outlives the queue pair and is
        // not accessed here.
        unsafe { self.qp.post_send([wr]) }.unwrap();
    }

    fn recv(&self) {
        // SAFETY: as in `send`.
        unsafe { self.qp.post_recv([RecvWr { wr_id: 0, sges: &[self.sge()] }]) }.unwrap();
    }
}

/// Both ends of a connection, which share a completion queue.
struct PolledPair {
    cq: Arc<Cq>,
    a: PolledEnd,
    b: PolledEnd,
}

impl PolledPair {
    fn connect(device: &Device, shard: usize) -> Self {
        let options = CqConfig { shard: Some(shard), ..CqConfig::default() };
        let cq = device.create_cq(1024, options).unwrap();
        let (a, b) = (PolledEnd::new(device, &cq), PolledEnd::new(device, &cq));
        let (options, channel) = (Arc::new(ConnConfig::default()), Arc::new(CmChannel::default()));
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
        // A message from the responder arrives after all messages of the start-up and the
        // capability exchange.
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
fn idle_poll_moves_no_other_shard() {
    let (counts, [busy, idle]) = device_with_pairs(Progress::default());
    let (moved, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| busy.flood(&moved, &stop));
        while moved.load(Ordering::Relaxed) < WINDOW {
            thread::yield_now();
        }
        let before = counts.of(0);
        while moved.load(Ordering::Relaxed) < MESSAGES {
            assert_eq!(idle.cq.poll_with(16, |_| {}), 0);
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(counts.of(0).bytes, before.bytes, "bytes of another queue pair");
    });
}

/// No other thread takes the lock of a shard here, so every poll gets the locks that it tries.
#[test]
fn idle_poll_drives_own_shard_only() {
    let (counts, pairs) = device_with_pairs(Progress::Manual);
    for (own, pair) in pairs.iter().enumerate() {
        let before = [0, 1].map(|pair| counts.of(pair).calls);
        for _ in 0..100 {
            assert_eq!(pair.cq.poll_with(16, |_| {}), 0);
        }
        let calls = [0, 1].map(|pair| counts.of(pair).calls - before[pair]);
        assert_eq!(calls[1 - own], 0, "calls on the streams of another shard");
        assert!(calls[own] >= 100, "{} calls on its own streams", calls[own]);
    }
}

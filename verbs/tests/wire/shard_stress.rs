//! Many threads create and destroy queue pairs in any state on every shard of a device, while other
//! threads poll the completion queues and post to the shared receive queue used by all of them.

use crate::common::{ALL, memory, next_event};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uiw_llp::tcp::TcpStack;
use uiw_verbs::cm::{self, CmChannel, CmEventKind};
use uiw_verbs::{
    ConnConfig, Cq, CqConfig, Device, DeviceConfig, Pd, Qp, QpInit, QpState, RawMr, RecvWr, Remote,
    SendFlags, SendOp, SendWr, Sge, Srq, SrqAttr,
};

const FOR: Duration = Duration::from_secs(2);
const THREADS: u64 = 4;
/// Capacity of the shared receive queue.
const SRQ_DEPTH: u32 = 64;

/// Objects that all threads share.
struct SharedObjects {
    device: Device,
    pd: Pd,
    cqs: Vec<Arc<Cq>>,
    srq: Arc<Srq>,
    mr: RawMr,
    stop: AtomicBool,
    completions: AtomicU64,
}

impl SharedObjects {
    fn new(shards: usize) -> Self {
        let options = DeviceConfig::default().shards(shards);
        let device = Device::with_stack(Box::new(TcpStack::new().unwrap()), options).unwrap();
        let pd = device.alloc_pd().unwrap();
        let cqs = (0..3)
            .map(|n| {
                let shard = Some(n % device.shards());
                device.create_cq(1 << 14, CqConfig { shard, ..CqConfig::default() }).unwrap()
            })
            .collect();
        let srq = pd.create_srq(SrqAttr { max_wr: SRQ_DEPTH, max_sge: 1, limit: 0 }).unwrap();
        let mr = memory(&pd, 64 << 10, ALL);
        Self {
            device,
            pd,
            cqs,
            srq,
            mr,
            stop: AtomicBool::new(false),
            completions: AtomicU64::new(0),
        }
    }

    fn sge(&self, length: u32) -> Sge {
        Sge { addr: self.mr.addr(), length, lkey: self.mr.lkey() }
    }

    fn qp(&self, random: &mut XorShift) -> Qp {
        let send_cq = Arc::clone(&self.cqs[random.below(3)]);
        let recv_cq = Arc::clone(&self.cqs[random.below(3)]);
        let srq = (random.below(2) == 0).then(|| Arc::clone(&self.srq));
        let own = srq.is_none();
        let init = QpInit::new(&send_cq, &recv_cq).signal_all(random.below(2) == 0).srq(srq);
        let qp = self.pd.create_qp(init).unwrap();
        for wr_id in 0..if own { 8 } else { 0 } {
            // SAFETY: the region outlives every queue pair, and this program does not access its
            // bytes.
            unsafe { qp.post_recv([RecvWr { wr_id, sges: &[self.sge(4096)] }]).unwrap() };
        }
        qp
    }

    /// Posts as many requests as there is room for; a queue pair in the error state flushes them.
    fn post(&self, qp: &Qp, random: &mut XorShift) {
        let remote = Remote { addr: self.mr.addr(), rkey: self.mr.rkey() };
        for wr_id in 0..random.below(12) as u64 {
            let (op, len) = match random.below(4) {
                0 => (SendOp::Write { remote }, 30_000),
                1 => (SendOp::Read { remote, invalidate: None }, 20_000),
                _ => (SendOp::Send, random.below(2000) as u32),
            };
            let wr = SendWr { wr_id, op, sges: &[self.sge(len)], flags: SendFlags::SIGNALED };
            // SAFETY: as above. The queue may be full, so an error is ignored.
            let _ = unsafe { qp.post_send([wr]) };
        }
    }
}

/// xorshift generator.
struct XorShift(u64);

impl XorShift {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// Connects two queue pairs and ends them in a random way.
fn one(common: &SharedObjects, random: &mut XorShift) {
    let (a, b) = (common.qp(random), common.qp(random));
    let (a_channel, b_channel) = (Arc::<CmChannel>::default(), Arc::<CmChannel>::default());
    let options = Arc::new(
        ConnConfig::default()
            .acknowledged(random.below(3) == 0)
            .no_receive_timeout(Duration::from_millis(20))
            .close_timeout(Duration::from_millis(200)),
    );
    let any = "127.0.0.1:0".parse().unwrap();
    let listener = cm::Listener::bind(&common.device, any, 4, &options, &b_channel).unwrap();
    cm::connect(&a, None, listener.local_addr(), &options, b"", &a_channel).unwrap();
    match random.below(12) {
        0 => return drop(a),
        1 => return drop(listener),
        2 => return cm::abandon(&a),
        _ => {}
    }
    let request = match next_event(&common.device, &b_channel) {
        CmEventKind::ConnectRequest(request) => request,
        other => panic!("{other:?}"),
    };
    if random.below(10) == 0 {
        drop(request);
        let event = next_event(&common.device, &a_channel);
        return assert!(matches!(event, CmEventKind::Failed(_)), "{event:?}");
    }
    // The peer may have gone in the meantime.
    if request.accept(&b, None, b"", None).is_err() {
        return;
    }
    for channel in [&a_channel, &b_channel] {
        match next_event(&common.device, channel) {
            CmEventKind::Established(_) => {}
            // The peer gave up the connection.
            CmEventKind::Failed(_) => return,
            other => panic!("{other:?}"),
        }
    }
    common.post(&a, random);
    common.post(&b, random);
    match random.below(6) {
        0 => drop(a),
        1 => drop(b),
        2 => {
            a.modify(QpState::Err).unwrap();
            let end = next_event(&common.device, &b_channel);
            assert!(matches!(end, CmEventKind::Disconnected(_)), "{end:?}");
        }
        3 => {
            b.modify(QpState::Reset).unwrap();
            let end = next_event(&common.device, &a_channel);
            assert!(matches!(end, CmEventKind::Disconnected(_)), "{end:?}");
            let _ = b.modify(QpState::Init);
        }
        4 => {
            let _ = a.modify(QpState::Sqd);
            common.post(&a, random);
            let _ = a.modify(QpState::Rts);
        }
        _ => {
            let _ = a.disconnect();
            for channel in [&a_channel, &b_channel] {
                let end = next_event(&common.device, channel);
                assert!(matches!(end, CmEventKind::Disconnected(_)), "{end:?}");
            }
        }
    }
}

fn poll(common: &SharedObjects, queues: &[Arc<Cq>]) {
    let mut out = Vec::new();
    while !common.stop.load(Ordering::SeqCst) {
        for cq in queues {
            cq.poll(&mut out, 64);
        }
        common.completions.fetch_add(out.len() as u64, Ordering::Relaxed);
        out.clear();
        std::thread::yield_now();
    }
}

fn refill(common: &SharedObjects) {
    while !common.stop.load(Ordering::SeqCst) {
        // SAFETY: as above. The queue may be full, so an error is ignored.
        let _ = unsafe { common.srq.post_recv([RecvWr { wr_id: 0, sges: &[common.sge(4096)] }]) };
        let _ = common.srq.modify(None, Some(SRQ_DEPTH / 2));
        while common.device.async_events().try_pop().is_some() {}
        std::thread::yield_now();
    }
}

#[test]
fn queue_pairs_created_on_all_shards() {
    for shards in [1, 3, 64] {
        let common = SharedObjects::new(shards);
        std::thread::scope(|scope| {
            let common = &common;
            scope.spawn(move || poll(common, &common.cqs));
            scope.spawn(move || poll(common, &common.cqs[1..]));
            scope.spawn(move || refill(common));
            let workers: Vec<_> = (0..THREADS)
                .map(|n| {
                    scope.spawn(move || {
                        let mut random =
                            XorShift(0x9E37_79B9_7F4A_7C15 ^ (n << 32) ^ shards as u64);
                        let end = Instant::now() + FOR;
                        let mut rounds = 0u64;
                        while Instant::now() < end {
                            one(common, &mut random);
                            rounds += 1;
                        }
                        rounds
                    })
                })
                .collect();
            let results: Vec<_> =
                workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            common.stop.store(true, Ordering::SeqCst);
            for result in results {
                assert!(result.expect("a worker that got all its events") > 0);
            }
        });
        assert!(common.completions.load(Ordering::Relaxed) > 0);
    }
}

//! `threads PATTERN SECONDS THREADS DEVICES QUEUES`: threads of which each drives both ends of a
//! connection of its own.
//!
//! The threads share one device, or have a device each. QUEUES: 1, a completion queue a thread; 2,
//! one for each of its ends. Prints rounds (round trips or messages) a second of all together
//! (`cargo xtask bench scaling`, which also builds it against older engines: only what has long
//! been public is used here).

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uiw_verbs::cm::{self, CmChannel, CmEventKind};
use uiw_verbs::{
    Access, ConnConfig, Cq, CqConfig, Device, Memory, Pd, Qp, QpCap, QpInit, RawMr, RecvWr,
    SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus,
};

/// Operation of a thread.
#[derive(Clone, Copy)]
struct ThreadPattern {
    name: &'static str,
    bytes: u32,
    /// Sends under way; one is a ping-pong.
    window: u32,
}

const PATTERNS: &[ThreadPattern] = &[
    ThreadPattern { name: "ping-pong", bytes: 64, window: 1 },
    ThreadPattern { name: "send-64", bytes: 64, window: 32 },
    ThreadPattern { name: "send-64K", bytes: 1 << 16, window: 32 },
];

/// Warm-up before counting: TCP's buffers grow, and the engine learns that it is polled.
const WARM_UP: Duration = Duration::from_millis(150);

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let number = |at: usize| args.get(at)?.parse::<usize>().ok().filter(|number| *number > 0);
    let pattern =
        args.first().and_then(|name| PATTERNS.iter().find(|pattern| pattern.name == *name));
    let seconds = args.get(1).and_then(|seconds| seconds.parse().ok());
    let (Some(pattern), Some(seconds), Some(threads), Some(devices), Some(queues @ 1..=2)) =
        (pattern, seconds, number(2), number(3), number(4))
    else {
        eprintln!(
            "usage: threads PATTERN SECONDS THREADS DEVICES QUEUES, where PATTERN is one of:"
        );
        PATTERNS.iter().for_each(|pattern| eprintln!("  {}", pattern.name));
        return ExitCode::from(2);
    };
    let devices: Vec<_> = (0..devices).map(|_| Device::open().expect("a device")).collect();
    let counters: Vec<_> = (0..threads).map(|_| ThreadCounter::default()).collect();
    let stop = AtomicBool::new(false);
    let rate = std::thread::scope(|scope| {
        // Most programs create their queues like this: the thread that creates them is not the one
        // that polls them.
        let connect = |device| ThreadPair::connect(device, queues, pattern);
        let pairs: Vec<_> = devices.iter().cycle().take(threads).map(connect).collect();
        for (counter, pair) in counters.iter().zip(pairs) {
            let stop = &stop;
            scope.spawn(move || pair.drive(pattern, counter, stop));
        }
        std::thread::sleep(WARM_UP);
        let sum =
            || counters.iter().map(|counter| counter.rounds.load(Ordering::Relaxed)).sum::<u64>();
        let (begun, before) = (Instant::now(), sum());
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let rate = (sum() - before) as f64 / begun.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        rate
    });
    println!("{{\"rate\": {rate}}}");
    ExitCode::SUCCESS
}

/// Count of a thread, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct ThreadCounter {
    rounds: AtomicU64,
}

impl ThreadCounter {
    /// Only the thread itself counts.
    fn add(&self, rounds: u64) {
        self.rounds.store(self.rounds.load(Ordering::Relaxed) + rounds, Ordering::Relaxed);
    }
}

struct ThreadEnd {
    qp: Qp,
    _pd: Pd,
    mr: RawMr,
    cq: Arc<Cq>,
}

impl ThreadEnd {
    fn new(device: &Device, cq: Arc<Cq>, pattern: &ThreadPattern) -> Self {
        let pd = device.alloc_pd().expect("a protection domain");
        let depth = 4 * pattern.window;
        let init = QpInit::new(&cq, &cq).cap(QpCap {
            max_send_wr: depth,
            max_recv_wr: depth,
            ..QpCap::default()
        });
        let qp = pd.create_qp(init).expect("a queue pair");
        let memory = Memory::owned(pattern.bytes as usize).expect("memory");
        let base = memory.as_ptr() as u64;
        let mr = pd.register_raw(memory, base, Access::LOCAL_WRITE).expect("a region");
        Self { qp, _pd: pd, mr, cq }
    }

    fn sge(&self, length: u32) -> Sge {
        Sge { addr: self.mr.addr(), length, lkey: self.mr.lkey() }
    }

    fn send(&self, length: u32) {
        let sges = [self.sge(length)];
        let wr = SendWr { wr_id: 0, op: SendOp::Send, sges: &sges, flags: SendFlags::empty() };
        // SAFETY: the region is the engine's own memory, and nothing reads it.
        unsafe { self.qp.post_send([wr]) }.expect("room in the send queue");
    }

    fn recv(&self, length: u32) {
        // SAFETY: as in `send`.
        unsafe { self.qp.post_recv([RecvWr { wr_id: 0, sges: &[self.sge(length)] }]) }
            .expect("room");
    }
}

/// Completions of Sends, and of receives.
#[derive(Default)]
struct SentAndReceived {
    sent: u64,
    received: u64,
}

struct ThreadPair {
    a: ThreadEnd,
    b: ThreadEnd,
}

impl ThreadPair {
    fn connect(device: &Device, queues: usize, pattern: &ThreadPattern) -> Self {
        let cq = || device.create_cq(1024, CqConfig::default()).expect("a completion queue");
        let first = cq();
        let second = if queues == 1 { Arc::clone(&first) } else { cq() };
        let (a, b) =
            (ThreadEnd::new(device, first, pattern), ThreadEnd::new(device, second, pattern));
        let (options, channel) = (Arc::new(ConnConfig::default()), Arc::new(CmChannel::default()));
        let any = "127.0.0.1:0".parse().expect("an address");
        let listener = cm::Listener::bind(device, any, 1, &options, &channel).expect("a listener");
        let to = listener.local_addr();
        cm::connect(&a.qp, None, to, &options, b"", &channel).expect("a connection");
        let mut established = 0;
        while established < 2 {
            match device.wait(None, |cx| channel.poll_pop(cx)).map(|event| event.kind) {
                Some(CmEventKind::ConnectRequest(request)) => {
                    request.accept(&b.qp, None, b"", None).expect("an accepted connection");
                }
                Some(CmEventKind::Established(_)) => established += 1,
                other => panic!("{other:?}"),
            }
        }
        Self { a, b }
    }

    fn drive(&self, pattern: &ThreadPattern, counter: &ThreadCounter, stop: &AtomicBool) {
        if pattern.window > 1 {
            return self.stream(pattern, counter, stop);
        }
        while !stop.load(Ordering::Relaxed) {
            self.ping_pong(pattern.bytes);
            counter.add(1);
        }
    }

    fn ping_pong(&self, bytes: u32) {
        for (from, to) in [(&self.a, &self.b), (&self.b, &self.a)] {
            to.recv(bytes);
            from.send(bytes);
            let mut done = SentAndReceived::default();
            while done.received == 0 {
                take(&to.cq, &mut done);
            }
            while done.sent == 0 {
                take(&from.cq, &mut done);
            }
        }
    }

    /// Keeps the window full until it is stopped.
    fn stream(&self, pattern: &ThreadPattern, counter: &ThreadCounter, stop: &AtomicBool) {
        let Self { a, b } = self;
        (0..2 * pattern.window).for_each(|_| b.recv(pattern.bytes));
        (0..pattern.window).for_each(|_| a.send(pattern.bytes));
        while !stop.load(Ordering::Relaxed) {
            let mut done = SentAndReceived::default();
            take(&b.cq, &mut done);
            if !Arc::ptr_eq(&a.cq, &b.cq) {
                take(&a.cq, &mut done);
            }
            (0..done.received).for_each(|_| b.recv(pattern.bytes));
            (0..done.sent).for_each(|_| a.send(pattern.bytes));
            counter.add(done.received);
        }
    }
}

/// Takes what has completed.
fn take(cq: &Cq, done: &mut SentAndReceived) {
    cq.poll_with(16, |wc| {
        assert_eq!(wc.status, WcStatus::Success);
        match wc.opcode {
            WcOpcode::Recv => done.received += 1,
            _ => done.sent += 1,
        }
    });
}

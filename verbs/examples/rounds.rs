//! `rounds CASE N`: both ends of one connection in one thread, N rounds of one kind over the
//! kernel's TCP.
//!
//! Made for counting instructions: nothing here sleeps, reads the clock or has a thread of its own,
//! so that the difference of two runs with different N is the cost of a round
//! (`cargo xtask bench instructions`).

use std::process::ExitCode;
use std::sync::Arc;
use uiw_verbs::cm::{self, CmChannel, CmEventKind};
use uiw_verbs::{
    Access, ConnConfig, Cq, CqConfig, Device, DeviceConfig, FpduSize, Memory, Pd, Progress, Qp,
    QpCap, QpInit, RawMr, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, WcStatus,
};

/// Operation of a round.
struct RoundCase {
    name: &'static str,
    round: fn(&RoundEnd, &RoundEnd),
    options: fn(&mut ConnConfig),
}

const fn case(name: &'static str, round: fn(&RoundEnd, &RoundEnd)) -> RoundCase {
    RoundCase { name, round, options: |_| {} }
}

const CASES: &[RoundCase] = &[
    case("send-64-ping-pong", ping_pong),
    case("write-64", |a, b| stream(a, b, write, 64, 1)),
    case("write-64-chain", |a, b| stream(a, b, write, 64, 16)),
    case("send-64", |a, b| stream(a, b, send, 64, 1)),
    case("send-64-chain", |a, b| stream(a, b, send, 64, 16)),
    case("read-64", |a, b| stream(a, b, read, 64, 1)),
    case("fetch-add", |a, b| stream(a, b, fetch_add, 8, 1)),
    case("write-64000", |a, b| stream(a, b, write, 64_000, 1)),
    case("write-1M", |a, b| stream(a, b, write, 1 << 20, 1)),
    RoundCase {
        options: |options| options.fpdu = FpduSize::Fixed(1418),
        ..case("write-1M-small-fpdus", |a, b| stream(a, b, write, 1 << 20, 1))
    },
    RoundCase {
        options: |options| options.markers = true,
        ..case("write-1M-markers", |a, b| stream(a, b, write, 1 << 20, 1))
    },
    case("read-1M", |a, b| stream(a, b, read, 1 << 20, 1)),
];

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let found = args.first().and_then(|name| CASES.iter().find(|case| case.name == *name));
    let rounds = args.get(1).and_then(|n| n.parse().ok());
    let (Some(case), Some(rounds)) = (found, rounds) else {
        eprintln!("usage: rounds CASE N, where CASE is one of:");
        CASES.iter().for_each(|case| eprintln!("  {}", case.name));
        return ExitCode::from(2);
    };
    let mut options = ConnConfig::default();
    (case.options)(&mut options);
    let (a, b) = connect(options);
    for _ in 0..rounds {
        (case.round)(&a, &b);
    }
    ExitCode::SUCCESS
}

/// Requests under way; a stream's round posts and completes as many.
const DEPTH: u64 = 128;
const MEMORY: usize = 1 << 20;

struct RoundEnd {
    qp: Qp,
    device: Device,
    _pd: Pd,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    channel: Arc<CmChannel>,
    mr: RawMr,
}

impl RoundEnd {
    fn new() -> Self {
        let stack = uiw_llp::tcp::TcpStack::new().expect("the kernel's TCP");
        let options = DeviceConfig::default().progress(Progress::Manual);
        let device = Device::with_stack(Box::new(stack), options);
        let device = device.expect("a device");
        let pd = device.alloc_pd().expect("a protection domain");
        let cq = || device.create_cq(1024, CqConfig::default()).expect("a completion queue");
        let (send_cq, recv_cq) = (cq(), cq());
        let init = QpInit::new(&send_cq, &recv_cq).cap(QpCap {
            max_send_wr: 256,
            max_recv_wr: 256,
            ..QpCap::default()
        });
        let qp = pd.create_qp(init).expect("a queue pair");
        let memory = Memory::owned(MEMORY).expect("memory");
        let base = memory.as_ptr() as u64;
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let mr = pd.register_raw(memory, base, access).expect("a region");
        Self { qp, device, _pd: pd, send_cq, recv_cq, channel: Arc::default(), mr }
    }

    fn sge(&self, length: u32) -> Sge {
        Sge { addr: self.mr.addr(), length, lkey: self.mr.lkey() }
    }

    fn remote(&self) -> Remote {
        Remote { addr: self.mr.addr(), rkey: self.mr.rkey() }
    }

    fn post(&self, op: SendOp, length: u32, chain: u64) {
        let sges = [self.sge(length)];
        let wrs =
            (0..chain).map(|wr_id| SendWr { wr_id, op, sges: &sges, flags: SendFlags::empty() });
        // SAFETY: the region is the engine's own memory, and nothing reads it.
        unsafe { self.qp.post_send(wrs) }.expect("room in the send queue");
    }

    fn recv(&self, length: u32) {
        // SAFETY: as in `post`.
        unsafe { self.qp.post_recv([RecvWr { wr_id: 0, sges: &[self.sge(length)] }]) }
            .expect("room");
    }
}

/// Takes what has completed.
fn take(cq: &Cq) -> u64 {
    cq.poll_with(16, |wc| assert_eq!(wc.status, WcStatus::Success)) as u64
}

fn write(to: Remote) -> SendOp {
    SendOp::Write { remote: to }
}

fn send(_: Remote) -> SendOp {
    SendOp::Send
}

fn read(from: Remote) -> SendOp {
    SendOp::Read { remote: from, invalidate: None }
}

fn fetch_add(at: Remote) -> SendOp {
    SendOp::FetchAdd { remote: at, add: 1, mask: 0 }
}

fn ping_pong(a: &RoundEnd, b: &RoundEnd) {
    for (from, to) in [(a, b), (b, a)] {
        to.recv(64);
        from.post(SendOp::Send, 64, 1);
        while take(&to.recv_cq) == 0 {}
        while take(&from.send_cq) == 0 {}
    }
}

/// [`DEPTH`] requests from `a` to `b`, or as many as make 1 MiB.
fn stream(a: &RoundEnd, b: &RoundEnd, op: fn(Remote) -> SendOp, length: u32, chain: u64) {
    let op = op(b.remote());
    let sends = matches!(op, SendOp::Send);
    let requests = DEPTH.min((1 << 20) / u64::from(length)).max(1);
    if sends {
        (0..requests).for_each(|_| b.recv(length));
    }
    for _ in 0..requests / chain {
        a.post(op, length, chain);
    }
    let (mut sent, mut received) = (0, if sends { 0 } else { requests });
    while sent < requests || received < requests {
        sent += take(&a.send_cq);
        received += take(&b.recv_cq);
    }
}

fn connect(options: ConnConfig) -> (RoundEnd, RoundEnd) {
    let (a, b) = (RoundEnd::new(), RoundEnd::new());
    let options = Arc::new(options);
    let any = "127.0.0.1:0".parse().expect("an address");
    let listener = cm::Listener::bind(&b.device, any, 1, &options, &b.channel).expect("a listener");
    let to = listener.local_addr();
    cm::connect(&a.qp, None, to, &options, b"", &a.channel).expect("a connection");
    let mut established = 0;
    while established < 2 {
        a.device.pump();
        b.device.pump();
        for end in [&a, &b] {
            match end.channel.try_pop().map(|event| event.kind) {
                Some(CmEventKind::ConnectRequest(request)) => {
                    request.accept(&b.qp, None, b"", None).expect("an accepted connection");
                }
                Some(CmEventKind::Established(_)) => established += 1,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
    }
    (a, b)
}

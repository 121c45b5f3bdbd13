//! `datagrams [ROUNDS]`: UD queue pairs beside a UDP socket, over loopback between two processes
//! (`cargo xtask bench datagrams`).
//!
//! The socket sends and receives datagrams of the same length by the same calls (sendmmsg with
//! UDP_SEGMENT, recvmmsg with UDP_GRO) and computes the CRC at both ends. Rates are those at which
//! less than 0.1 per cent is lost: each stack is paced, faster in steps until more is lost. Both
//! spin; only ratios within a round are meaningful. Prints messages a second and microseconds of
//! each round, ours and those of UDP.

use std::io::{BufRead, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use uiw_llp::tcp::TcpStack;
use uiw_llp::{
    DATAGRAM_BUFFER, DatagramConfig, DatagramSocket, Incoming, Outgoing, StackExtensions, Token,
};
use uiw_verbs::{
    Access, AddressHandle, Cq, CqConfig, DatagramPort, Destination, Device, Memory, Pd, Qp, QpCap,
    QpInit, QpState, RawMr, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc,
};

/// Bytes of payload, and of the whole datagram.
const PAYLOAD: usize = 64;
const LEN: usize = PAYLOAD + uiw_datagram::OVERHEAD;
/// Messages that are posted, or passed to the socket, at a time.
const BURST: usize = 128;
/// Receives that are posted; the socket's buffer is the system's.
const RECEIVES: u32 = 4096;
const BUFFERS: usize = 16;
const QKEY: u32 = 0x1111;
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Duration of a rate, number of attempts, part that has to be delivered, and growth of the rate.
const SLICE: Duration = Duration::from_millis(10);
const TRIES: usize = 20;
const KEPT: f64 = 0.97;
const STEP: f64 = 1.02;
/// Number of rates that have to fail.
const FAILURES: usize = 6;
/// Duration of one series of round trips.
const SERIES: Duration = Duration::from_millis(200);
/// Allowed loss.
const LOSS: f64 = 0.001;
/// Time without datagrams after which none is expected.
const QUIET: Duration = Duration::from_millis(2);

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some(name @ ("uiw" | "udp")) => {
            stay_on(1);
            if name == "uiw" { child(&mut VerbsStack::new()) } else { child(&mut UdpStack::new()) }
        }
        rounds => {
            let rounds =
                rounds.map_or(Some(9), |rounds| rounds.parse().ok().filter(|rounds| *rounds > 0));
            let Some(rounds) = rounds else {
                eprintln!("usage: datagrams [ROUNDS]");
                return ExitCode::from(2);
            };
            stay_on(0);
            compare(rounds)
        }
    }
}

/// Each process has a processor of its own, where there are two.
fn stay_on(processor: usize) {
    let mut one = rustix::thread::CpuSet::new();
    one.set(processor);
    let _ = rustix::thread::sched_setaffinity(None, &one);
}

/// One end of a stack.
trait StackEnd {
    /// Returns the name that others send to: a port, and a number that means something to the
    /// stack.
    fn name(&self) -> u32;
    /// Sends `count` messages; waits for room.
    fn send(&mut self, to: u32, count: usize);
    /// Runs between two bursts.
    fn idle(&mut self);
    /// Receives what is there, and says how many messages.
    fn receive(&mut self) -> usize;
}

struct VerbsStack {
    _device: Device,
    _pd: Pd,
    qp: Qp,
    scq: Arc<Cq>,
    rcq: Arc<Cq>,
    mr: RawMr,
    found: Vec<Wc>,
    /// Sends whose completion was not seen.
    open: usize,
}

impl VerbsStack {
    fn new() -> Self {
        let device = Device::open().expect("a device");
        let pd = device.alloc_pd().expect("a protection domain");
        let cq = |depth| device.create_cq(depth, CqConfig::default()).expect("a completion queue");
        let (scq, rcq) = (cq(1024), cq(2 * RECEIVES));
        let port = DatagramPort::bind(&device, &[SocketAddr::new(HERE, 0)], rcq.shard(), 1024)
            .expect("a port");
        let cap = QpCap { max_send_wr: 1024, max_recv_wr: RECEIVES, ..QpCap::default() };
        let qp = pd
            .create_ud_qp(QpInit::new(&scq, &rcq).cap(cap).signal_all(false), &port)
            .expect("a queue pair");
        qp.set_qkey(QKEY).expect("it is UD");
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            qp.modify(state).expect("a state");
        }
        let memory = Memory::owned(4096).expect("memory");
        let base = memory.as_ptr() as u64;
        let mr = pd.register_raw(memory, base, Access::LOCAL_WRITE).expect("a region");
        let mut end =
            Self { _device: device, _pd: pd, qp, scq, rcq, mr, found: Vec::new(), open: 0 };
        end.post(RECEIVES as usize);
        end
    }

    /// Posts receives, all to the same memory, as nothing looks at it.
    fn post(&mut self, count: usize) {
        let sges = [Sge { addr: self.mr.addr(), length: 2048, lkey: self.mr.lkey() }];
        let wrs = (0..count).map(|_| RecvWr { wr_id: 0, sges: &sges });
        // SAFETY: the region is the engine's own memory, and nothing reads it.
        unsafe { self.qp.post_recv(wrs) }.expect("room for receives");
    }
}

impl StackEnd for VerbsStack {
    fn name(&self) -> u32 {
        self.qp.num()
    }

    fn send(&mut self, to: u32, count: usize) {
        while self.open + count > 1024 {
            self.idle();
        }
        let to = Destination { ah: AddressHandle::new(HERE, HERE, 0), qpn: to, qkey: QKEY };
        let sges =
            [Sge { addr: self.mr.addr() + 2048, length: PAYLOAD as u32, lkey: self.mr.lkey() }];
        let op = SendOp::Datagram { to, imm: None };
        // The last one's completion stands for all.
        let wrs = (0..count).map(|at| SendWr {
            wr_id: count as u64,
            op,
            sges: &sges,
            flags: if at + 1 == count { SendFlags::SIGNALED } else { SendFlags::empty() },
        });
        // SAFETY: as in `post`.
        unsafe { self.qp.post_send(wrs) }.expect("room for sends");
        self.open += count;
    }

    fn idle(&mut self) {
        self.found.clear();
        self.scq.poll(&mut self.found, 256);
        self.open -= self.found.iter().map(|wc| wc.wr_id as usize).sum::<usize>();
    }

    fn receive(&mut self) -> usize {
        if self.open > 0 {
            self.idle();
        }
        self.found.clear();
        let count = self.rcq.poll(&mut self.found, 256);
        assert!(self.found.iter().all(|wc| wc.byte_len == PAYLOAD as u32 + 40), "another length");
        if count > 0 {
            self.post(count);
        }
        count
    }
}

struct UdpStack {
    _stack: TcpStack,
    socket: Box<dyn DatagramSocket>,
    out: Vec<u8>,
    buffer: Vec<u8>,
    incoming: Vec<Incoming>,
    payload: [u8; LEN - uiw_datagram::CRC_LEN],
}

impl UdpStack {
    fn new() -> Self {
        let mut stack = TcpStack::new().expect("a stack");
        let options = DatagramConfig::default();
        let socket =
            stack.bind_datagrams(SocketAddr::new(HERE, 0), &options, Token(1)).expect("a socket");
        let buffer = vec![0; BUFFERS * DATAGRAM_BUFFER];
        let payload = [7; LEN - uiw_datagram::CRC_LEN];
        Self { _stack: stack, socket, out: Vec::new(), buffer, incoming: Vec::new(), payload }
    }
}

impl StackEnd for UdpStack {
    fn name(&self) -> u32 {
        self.socket.local_addr().port().into()
    }

    fn send(&mut self, to: u32, count: usize) {
        let peer = SocketAddr::new(HERE, to as u16);
        self.out.clear();
        for _ in 0..count {
            let start = self.out.len();
            self.out.extend_from_slice(&self.payload);
            let crc = uiw_datagram::crc(&self.out[start..]);
            self.out.extend_from_slice(&crc);
        }
        let mut done = 0;
        while done < count {
            let rest = Outgoing { count: count - done, ..Outgoing::new(peer, LEN) };
            done += self.socket.send(&self.out[done * LEN..], &[rest]).unwrap_or(0);
        }
    }

    fn idle(&mut self) {}

    fn receive(&mut self) -> usize {
        self.incoming.clear();
        if self.socket.recv(&mut self.buffer, &mut self.incoming).is_err() {
            return 0;
        }
        let mut count = 0;
        for bytes in self.incoming.iter().flat_map(Incoming::each) {
            let (bytes, crc) = self.buffer[bytes].split_at(LEN - uiw_datagram::CRC_LEN);
            assert_eq!(uiw_datagram::crc(bytes), crc, "a CRC");
            count += 1;
        }
        count
    }
}

/// Command to the other process.
const STOPPED: u8 = 0;
const COUNTING: u8 = 1;
const ANSWERING: u8 = 2;
const OVER: u8 = 3;

/// The other process: counts messages, or answers each, as the lines of its standard input say. It
/// sleeps otherwise.
fn child(end: &mut dyn StackEnd) -> ExitCode {
    println!("{}", end.name());
    let mode = Arc::new(AtomicU8::new(STOPPED));
    let (of_thread, main) = (Arc::clone(&mode), std::thread::current());
    let mut to = String::new();
    std::io::stdin().read_line(&mut to).expect("a line");
    let to = to.trim().parse().expect("a name");
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let next = match line.as_deref() {
                Ok("count") => COUNTING,
                Ok("answer") => ANSWERING,
                Ok("stop") => STOPPED,
                _ => break,
            };
            of_thread.store(next, Ordering::Relaxed);
            main.unpark();
        }
        of_thread.store(OVER, Ordering::Relaxed);
        main.unpark();
    });
    loop {
        let now = mode.load(Ordering::Relaxed);
        match now {
            STOPPED => {
                std::thread::park();
                continue;
            }
            OVER => return ExitCode::SUCCESS,
            _ => println!("ready"),
        }
        let mut received = 0;
        let (mut first, mut last) = (None, Instant::now());
        // What waits at the end of the mode is received too.
        while mode.load(Ordering::Relaxed) == now || last.elapsed() < QUIET {
            let count = end.receive();
            if count == 0 {
                continue;
            }
            received += count;
            last = Instant::now();
            first.get_or_insert(last);
            if now == ANSWERING {
                end.send(to, count);
            }
        }
        let micros = first.map_or(0, |first| last.duration_since(first).as_micros());
        println!("{received}\n{micros}");
    }
}

/// A stack with its other process.
struct StackPair {
    end: Box<dyn StackEnd>,
    child: Child,
    said: BufReader<std::process::ChildStdout>,
    to: u32,
    /// The highest rate at which little enough was lost.
    rate: f64,
}

impl StackPair {
    fn new(name: &str, end: Box<dyn StackEnd>) -> Self {
        let own = std::env::current_exe().expect("a path");
        let child =
            Command::new(own).arg(name).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("a process");
        let said = BufReader::new(child.stdout.take().expect("its output"));
        let mut stack = Self { end, child, said, to: 0, rate: 1e6 };
        stack.to = stack.number() as u32;
        stack.say(&stack.end.name().to_string());
        stack
    }

    fn say(&self, line: &str) {
        let mut stdin = self.child.stdin.as_ref().expect("its input");
        writeln!(stdin, "{line}").expect("it lives");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    fn number(&mut self) -> u64 {
        self.line().parse().expect("a number")
    }

    fn begin(&mut self, mode: &str) {
        self.say(mode);
        assert_eq!(self.line(), "ready");
    }

    /// The messages that the other process has received, and the seconds that it took.
    fn end(&mut self) -> (u64, f64) {
        self.say("stop");
        (self.number(), self.number() as f64 / 1e6)
    }

    /// Sends at a rate: messages sent and delivered a second, and the part that was lost.
    fn paced(&mut self, rate: f64) -> (f64, f64, f64) {
        self.begin("count");
        let begun = Instant::now();
        let mut sent = 0_u64;
        while begun.elapsed() < SLICE {
            let due = begun + Duration::from_secs_f64(sent as f64 / rate);
            while Instant::now() < due {
                self.end.idle();
            }
            self.end.send(self.to, BURST);
            sent += BURST as u64;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let settled = Instant::now() + Duration::from_millis(5);
        while Instant::now() < settled {
            self.end.idle();
        }
        let (received, receiving) = self.end();
        let lost = sent.saturating_sub(received) as f64 / sent as f64;
        (sent as f64 / seconds, received as f64 / receiving.max(seconds), lost)
    }

    /// Returns whether messages are sent and delivered at this rate, and too few are lost; in one
    /// of several short slices, as other programs take the processors in others.
    fn keeps(&mut self, rate: f64) -> bool {
        (0..TRIES).any(|_| {
            let (sent, delivered, lost) = self.paced(rate);
            lost < LOSS && sent.min(delivered) >= KEPT * rate
        })
    }

    /// The highest rate that it keeps.
    fn delivered(&mut self) -> f64 {
        // From below the rate that was the highest before; lower where not even that is possible.
        let mut rate = 0.9 * self.rate;
        while !self.keeps(rate) {
            rate *= 0.8;
        }
        // A rate that fails may fail because of another program: some higher ones are tried before
        // it is believed.
        let mut next = rate;
        for _ in 0..FAILURES {
            next *= STEP;
            while self.keeps(next) {
                rate = next;
                next *= STEP;
            }
        }
        self.rate = rate;
        rate
    }

    /// The median half round trip, in microseconds.
    fn half_round_trip(&mut self) -> f64 {
        self.begin("answer");
        let begun = Instant::now();
        let mut times = Vec::new();
        while begun.elapsed() < SERIES {
            let sent = Instant::now();
            self.end.send(self.to, 1);
            let late = sent + Duration::from_millis(200);
            while self.end.receive() == 0 && Instant::now() < late {}
            times.push(sent.elapsed());
        }
        self.end();
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6 / 2.0
    }
}

impl Drop for StackPair {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn compare(rounds: usize) -> ExitCode {
    let mut stacks = [
        StackPair::new("uiw", Box::new(VerbsStack::new())),
        StackPair::new("udp", Box::new(UdpStack::new())),
    ];
    // To find the rates about which the rounds look.
    for stack in &mut stacks {
        stack.delivered();
    }
    for round in 0..rounds {
        let (mut rates, mut times) = ([0.0; 2], [0.0; 2]);
        for step in 0..2 {
            let at = (round + step) % 2;
            rates[at] = stacks[at].delivered();
            times[at] = stacks[at].half_round_trip();
        }
        println!("{{\"delivered\": {rates:?}, \"half_round_trip_us\": {times:?}}}");
    }
    ExitCode::SUCCESS
}

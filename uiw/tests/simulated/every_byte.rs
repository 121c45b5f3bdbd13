//! Tests in which both ends run a script of all operations, over a link with delays and splits. The
//! connection is reset, closed or stalled after each byte of either direction.
//!
//! In all cases, each request must complete once and in order (unsignaled ones together with the
//! next), received messages must be complete and correct, and a successful Read or atomic must have
//! been performed. A successful Write or Send only means that TCP has accepted it.
//!
//! To repeat one case: `UIW_CASE='reset 1 1234' cargo test -p uiw --test simulated every_byte`.

use std::sync::Arc;
use std::time::Duration;

use uiw::raw::cm::{self, CmChannel, CmEventKind};
use uiw::raw::{
    Access, Bind, CapabilityExchange, ConnConfig, Cq, CqConfig, Device, FastMr, FastRegister,
    Memory, Pd, Qp, QpCap, QpInit, QpState, RawMr, RawMw, RecvWr, Remote, STag, SendFlags, SendOp,
    SendWr, Sge, Wc, WcOpcode, WcStatus, WindowType,
};
use uiw_testkit::sim::{Link, Split};

use crate::link::{CLIENT, SERVER, Simulation};

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// Offset of the bytes written by the peer, in an end's memory.
const TARGET: u64 = 0;
const WORDS: u64 = 1024;
const SOURCE: u64 = 1100;
const SINK: u64 = 2048;
const RECEIVES: u64 = 4096;
const LEN: usize = 8192;

/// Fault of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkFault {
    Whole,
    Reset,
    Fin,
    Stall,
}

#[derive(Clone, Copy, Debug)]
struct CutCase {
    fate: LinkFault,
    /// Direction of the fault: 0 for bytes from the client, 1 for bytes from the server.
    from: usize,
    at: u64,
}

/// Request, its element as offset and length, and whether it is signaled.
type Step = (SendOp, [(u64, u32); 1], bool);

/// End of the connection, with its requests and their results.
struct RequestEnd {
    qp: Qp,
    scq: Arc<Cq>,
    rcq: Arc<Cq>,
    channel: Arc<CmChannel>,
    mr: RawMr,
    window: RawMw,
    window_stag: STag,
    fast: [FastMr; 2],
    sent: Vec<Wc>,
    received: Vec<Wc>,
    /// Posted requests by number: true if the request is signaled.
    posted: Vec<bool>,
    over: bool,
    established: bool,
}

fn byte(n: usize) -> u8 {
    (n * 7 + n / 251) as u8 | 1
}

impl RequestEnd {
    fn new(device: &Device, pd: &Pd) -> Self {
        let scq = device.create_cq(64, CqConfig::default()).unwrap();
        let rcq = device.create_cq(64, CqConfig::default()).unwrap();
        let init = QpInit::new(&scq, &rcq)
            .cap(QpCap { max_send_wr: 32, max_recv_wr: 8, ..QpCap::default() })
            .signal_all(false);
        let qp = pd.create_qp(init).unwrap();
        let memory = Memory::owned(LEN).unwrap();
        let base = memory.as_ptr() as u64;
        let mr = pd.register_raw(memory, base, ALL).unwrap();
        let window = pd.alloc_window(WindowType::Two).unwrap();
        let window_stag = STag(window.stag().0 ^ 0x55);
        let fast = [0; 2].map(|_| pd.alloc_fast(64).unwrap());
        let this = Self {
            qp,
            scq,
            rcq,
            channel: Arc::default(),
            mr,
            window,
            window_stag,
            fast,
            sent: Vec::new(),
            received: Vec::new(),
            posted: Vec::new(),
            over: false,
            established: false,
        };
        let source: Vec<u8> = (0..900).map(byte).collect();
        this.mr
            .region()
            .span(SOURCE as usize, 900)
            .unwrap()
            .pin()
            .unwrap()
            .copy_from(0, &source)
            .unwrap();
        for wr_id in 0..6 {
            let sges = [this.sge(RECEIVES + wr_id * 256, 256)];
            // SAFETY: the memory exists as long as the end, and is only read by copying.
            unsafe { this.qp.post_recv([RecvWr { wr_id, sges: &sges }]) }.unwrap();
        }
        this
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.mr.addr() + offset, length, lkey: self.mr.lkey() }
    }

    fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.mr
            .region()
            .span(offset as usize, len)
            .unwrap()
            .pin()
            .unwrap()
            .copy_to(0, &mut out)
            .unwrap();
        out
    }

    fn word(&self, n: u64) -> u64 {
        u64::from_ne_bytes(self.peek(WORDS + 8 * n, 8).try_into().unwrap())
    }

    fn post(&mut self, op: SendOp, sges: &[Sge], signaled: bool) {
        let wr_id = self.posted.len() as u64;
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        // SAFETY: as in `new`.
        if unsafe { self.qp.post_send([SendWr { wr_id, op, sges, flags }]) }.is_ok() {
            self.posted.push(signaled);
        }
    }

    fn bind(&mut self) {
        let bind = Bind {
            window: self.window.stag(),
            new_stag: self.window_stag,
            region: STag(self.mr.rkey().0),
            addr: self.mr.addr(),
            length: 64,
            access: Access::REMOTE_READ,
        };
        self.post(SendOp::Bind(bind), &[], true);
    }

    /// Posts each operation, some of them unsignaled.
    fn script(&mut self, peer: (u64, u32, STag)) {
        let (addr, rkey, window) = peer;
        let at = |offset| Remote { addr: addr + offset, rkey: STag(rkey) };
        let (source, sink) = (|at, len| [(SOURCE + at, len)], |at, len| [(SINK + at, len)]);
        let fast = |n: usize, this: &Self| FastRegister {
            stag: this.fast[n].stag(),
            addr: this.mr.addr() + SINK + 1000,
            length: 64,
            base: 0,
            access: Access::LOCAL_WRITE,
        };
        let registers = [fast(0, self), fast(1, self)];
        let word = |n: u64| at(WORDS + 8 * n);
        let swap = SendOp::CmpSwap {
            remote: word(1),
            compare: 0,
            compare_mask: !0,
            swap: 77,
            swap_mask: !0,
        };
        let steps: [Step; 15] = [
            (SendOp::Write { remote: at(TARGET) }, source(0, 300), false),
            (SendOp::Send, source(10, 100), true),
            (SendOp::Read { remote: at(SOURCE + 20), invalidate: None }, sink(0, 150), true),
            (SendOp::FetchAdd { remote: word(0), add: 1, mask: 0 }, sink(200, 8), true),
            (SendOp::WriteImm { remote: at(TARGET + 300), imm: 0x1234 }, source(0, 40), false),
            (SendOp::SendInvalidate { stag: window }, source(30, 50), true),
            (swap, sink(208, 8), true),
            (SendOp::SendImm { imm: 0x5678 }, source(40, 30), false),
            (SendOp::FastRegister(registers[0]), [(0, 0)], false),
            (
                SendOp::Read { remote: at(SOURCE), invalidate: Some(registers[0].stag) },
                sink(300, 90),
                true,
            ),
            (SendOp::AtomicWrite { remote: word(2) }, source(0, 8), false),
            (SendOp::FastRegister(registers[1]), [(0, 0)], false),
            (SendOp::LocalInvalidate { stag: registers[1].stag }, [(0, 0)], false),
            (SendOp::Send, source(0, 0), false),
            (SendOp::Write { remote: at(TARGET) }, source(0, 8), true),
        ];
        for (op, [(offset, len)], signaled) in steps {
            let sge = [self.sge(offset, len)];
            self.post(op, if op.is_local() { &[] } else { &sge }, signaled);
        }
    }

    fn poll(&mut self) {
        self.scq.poll(&mut self.sent, 64);
        self.rcq.poll(&mut self.received, 64);
        while let Some(event) = self.channel.try_pop() {
            match event.kind {
                CmEventKind::ConnectRequest(request) => {
                    let _ = request.accept(&self.qp, None, b"", None);
                }
                CmEventKind::Established(_) => self.established = true,
                CmEventKind::Failed(_) | CmEventKind::Disconnected(_) => self.over = true,
                CmEventKind::Posted(_)
                | CmEventKind::ListenerDown { .. }
                | CmEventKind::SidrRequest(_)
                | CmEventKind::SidrResolved(_) => {
                    panic!("there are no notes and no datagrams, and a simulated link stays up")
                }
            }
        }
    }

    /// Returns whether all requests posted so far have completed.
    fn done(&self) -> bool {
        let signaled = self.posted.iter().rposition(|signaled| *signaled);
        signaled.is_none_or(|last| self.sent.last().is_some_and(|wc| wc.wr_id as usize >= last))
    }

    fn check(&self, peer: &Self) {
        let mut next = 0;
        let mut failed = false;
        for wc in &self.sent {
            let id = wc.wr_id as usize;
            assert!(id >= next, "{wc:?} behind request {next}");
            for skipped in next..id {
                assert!(
                    !self.posted[skipped] && !failed,
                    "request {skipped} completes with {wc:?}"
                );
            }
            let success = wc.status == WcStatus::Success;
            assert!(!success || !failed && self.posted[id], "{wc:?}");
            failed |= !success;
            next = id + 1;
        }
        assert!(
            self.posted[next..].iter().all(|signaled| !signaled && !failed),
            "request {next} never completes"
        );
        let succeeded =
            |id: u64| self.sent.iter().any(|wc| wc.wr_id == id && wc.status == WcStatus::Success);
        let source = |at: usize, len: usize| (at..at + len).map(byte).collect::<Vec<_>>();
        assert!(!succeeded(3) || self.peek(SINK, 150) == source(20, 150), "a Read that succeeded");
        assert!(
            !succeeded(10) || self.peek(SINK + 300, 90) == source(0, 90),
            "a Read with invalidation"
        );
        let words: Vec<u64> = [200, 208]
            .iter()
            .map(|at| u64::from_ne_bytes(self.peek(SINK + at, 8).try_into().unwrap()))
            .collect();
        assert!(!succeeded(4) || (words[0], peer.word(0)) == (0, 1), "a FetchAdd that succeeded");
        assert!(!succeeded(7) || (words[1], peer.word(1)) == (0, 77), "a CmpSwap that succeeded");
        assert!(peer.word(0) <= 1 && [0, 77].contains(&peer.word(1)), "nothing is executed twice");
        self.check_received(&source);
    }

    fn check_received(&self, source: &dyn Fn(usize, usize) -> Vec<u8>) {
        assert_eq!(self.received.len(), 6, "every receive completes once: {:?}", self.received);
        let invalidated = Some(self.window_stag.0);
        let expected = [
            (WcOpcode::Recv, 100, None, None, 10),
            (WcOpcode::RecvWriteImm, 40, Some(0x1234), None, 0),
            (WcOpcode::Recv, 50, None, invalidated, 30),
            (WcOpcode::Recv, 30, Some(0x5678), None, 40),
            (WcOpcode::Recv, 0, None, None, 0),
        ];
        let mut failed = false;
        for (n, wc) in self.received.iter().enumerate() {
            assert_eq!(wc.wr_id, n as u64);
            if wc.status != WcStatus::Success {
                failed = true;
                continue;
            }
            assert!(!failed, "{wc:?}");
            let (opcode, len, imm, stag, at) = expected[n];
            assert_eq!(
                (wc.opcode, wc.byte_len, wc.imm, wc.invalidated),
                (opcode, len, imm, stag.map(STag)),
                "message {n}"
            );
            // The Write before the message has been placed.
            assert!(self.peek(TARGET + 8, 292) == source(8, 292), "message {n}");
            if opcode == WcOpcode::Recv {
                assert!(
                    self.peek(RECEIVES + 256 * n as u64, len as usize) == source(at, len as usize)
                );
            }
        }
    }
}

/// Runs a case. Returns the number of bytes in each direction, and whether a request failed.
fn run(case: CutCase) -> ([u64; 2], bool) {
    let random = case.at % 3;
    let split =
        if random == 0 { Split::Whole } else { Split::Random(if random == 1 { 40 } else { 700 }) };
    let latency = Duration::from_micros(case.at % 5 * 70);
    let link = Link { recv_split: split, send_split: split, latency, ..Link::default() };
    let simulation = Simulation::new(case.at, link);
    let ips = [CLIENT, SERVER];
    simulation.network().change_link(ips[case.from], ips[1 - case.from], |link| match case.fate {
        LinkFault::Reset => link.cut_at = Some(case.at),
        LinkFault::Fin => link.fin_at = Some(case.at),
        LinkFault::Whole | LinkFault::Stall => {}
    });
    let options = Arc::new(ConnConfig::default().capabilities(CapabilityExchange::On));
    let (client, server) = (simulation.client.as_raw(), simulation.server.as_raw());
    let (client_pd, server_pd) = (client.alloc_pd().unwrap(), server.alloc_pd().unwrap());
    let mut ends = [RequestEnd::new(client, &client_pd), RequestEnd::new(server, &server_pd)];
    let at = (SERVER, 4791).into();
    let _listener = cm::Listener::bind(server, at, 4, &options, &ends[1].channel).unwrap();
    cm::connect(&ends[0].qp, None, at, &options, b"", &ends[0].channel).unwrap();
    let mut rounds = 0;
    let mut go = |ends: &mut [RequestEnd; 2], until: &dyn Fn(&[RequestEnd; 2]) -> bool| {
        let begun = simulation.network().now();
        let mut idle = 0;
        loop {
            rounds += 1;
            if case.fate == LinkFault::Stall && (rounds == case.at || rounds == case.at + 40) {
                simulation.network().stall(ips[case.from], ips[1 - case.from], rounds == case.at);
            }
            let moved = simulation.round();
            ends.iter_mut().for_each(RequestEnd::poll);
            if until(ends) || simulation.network().now() - begun > Duration::from_secs(60) {
                return;
            }
            idle = if moved { 0 } else { idle + 1 };
            if idle > 2 {
                simulation.network().advance(Duration::from_millis(5));
            }
        }
    };
    let over = |ends: &[RequestEnd; 2]| ends.iter().any(|end| end.over);
    go(&mut ends, &|ends| over(ends) || ends.iter().all(|end| end.established));
    if !over(&ends) {
        ends.iter_mut().for_each(RequestEnd::bind);
        go(&mut ends, &|ends| ends.iter().all(RequestEnd::done));
        let marks =
            [&ends[0], &ends[1]].map(|end| (end.mr.addr(), end.mr.rkey().0, end.window_stag));
        ends[0].script(marks[1]);
        ends[1].script(marks[0]);
        go(&mut ends, &|ends| {
            ends.iter().all(|end| end.over || end.done() && end.received.len() >= 5)
        });
    }
    let sent = [&ends[0], &ends[1]]
        .map(|end| end.qp.path().and_then(|path| path.stream.bytes_acked).unwrap_or(0));
    for end in &ends {
        let _ = end.qp.disconnect();
    }
    go(&mut ends, &|ends| ends.iter().all(|end| end.over));
    for end in &ends {
        let _ = end.qp.modify(QpState::Err);
    }
    go(&mut ends, &|ends| ends.iter().all(|end| end.done() && end.received.len() >= 6));
    let [client, server] = &ends;
    client.check(server);
    server.check(client);
    if case.fate == LinkFault::Whole || case.fate == LinkFault::Stall {
        for end in &ends {
            assert!(end.sent.iter().all(|wc| wc.status == WcStatus::Success), "{:?}", end.sent);
            assert_eq!(end.received.iter().filter(|wc| wc.status == WcStatus::Success).count(), 5);
        }
    }
    let failed = ends.iter().flat_map(|end| &end.sent).any(|wc| wc.status != WcStatus::Success);
    (sent, failed)
}

fn every(fate: LinkFault, from: usize) {
    if let Ok(wanted) = std::env::var("UIW_CASE") {
        let mut words = wanted.split(' ');
        if words.next() == Some(&format!("{fate:?}").to_lowercase())
            && words.next() == Some(&from.to_string())
        {
            run(CutCase {
                fate,
                from,
                at: words.next().and_then(|at| at.parse().ok()).expect("a byte"),
            });
        }
        return;
    }
    let whole = run(CutCase { fate: LinkFault::Whole, from, at: 0 }).0[from];
    assert!(whole > 1000, "{whole} bytes are no script");
    // Stalls are counted in rounds of the simulation.
    let until = if fate == LinkFault::Stall { 400 } else { whole + 10 };
    let mut broken = 0;
    for at in 0..until {
        let case = CutCase { fate, from, at };
        let Ok((_, failed)) = std::panic::catch_unwind(|| run(case)) else {
            let fate = format!("{fate:?}").to_lowercase();
            panic!(
                "again: UIW_CASE='{fate} {from} {at}' cargo test -p uiw --test simulated every_byte"
            );
        };
        broken += u64::from(failed);
    }
    assert!(
        fate == LinkFault::Stall || broken > whole / 2,
        "only {broken} of {whole} bytes hit a request"
    );
}

// [test:RFC5041-3-04]
#[test]
fn reset_of_what_the_client_sends() {
    every(LinkFault::Reset, 0);
}

// [test:RFC5041-3-04]
#[test]
fn reset_of_what_the_server_sends() {
    every(LinkFault::Reset, 1);
}

#[test]
fn fin_of_what_the_client_sends() {
    every(LinkFault::Fin, 0);
}

#[test]
fn fin_of_what_the_server_sends() {
    every(LinkFault::Fin, 1);
}

#[test]
fn stall_of_what_the_client_sends() {
    every(LinkFault::Stall, 0);
}

#[test]
fn stall_of_what_the_server_sends() {
    every(LinkFault::Stall, 1);
}

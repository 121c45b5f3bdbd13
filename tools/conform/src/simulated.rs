//! Runs the cases against a listener of uiw on a simulated network with a virtual clock. Each byte
//! passes the whole engine; waits are exact and take no time.

use super::cases;
use super::link::{Network, Pipe};
use super::listener;
use super::session::Target;
use super::verdict::lacks;
use super::{requirements, steps};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use uiw::{ConnConfig, Connection, ConnectionConfig, Device, DeviceConfig, Progress};
use uiw_cases::{Case, CaseCondition};
use uiw_llp::{Token, TransportConfig, TransportStack as _, TransportStream};
use uiw_mem::{IoVec, IoVecMut};
use uiw_testkit::sim::{self, Link, Split};

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
/// Number of rounds without work after which a device is idle. A device with few connections polls
/// its stack only in one of 32 rounds.
const QUIET_ROUNDS: usize = 33;
/// Maximum number of rounds with work while the clock stands still. More are a livelock.
const MAX_ROUNDS: usize = 1_000_000;
const STALL: Duration = Duration::from_secs(10);

static SIMULATED: Network = Network { connect: SimPipe::connect, now, pause };

type Task = Pin<Box<dyn Future<Output = ()>>>;
type Accepting = Pin<Box<dyn Future<Output = uiw::Result<Connection>>>>;

/// Network, listener and accepted connections.
struct SimulatedWorld {
    network: sim::Network,
    device: Device,
    listener: Rc<uiw::Listener>,
    accepting: Accepting,
    /// Tasks that each read a connection to its end.
    readers: Vec<Task>,
    /// True if connections are closed as soon as they are accepted.
    closes: bool,
}

thread_local! {
    static WORLD: RefCell<Option<SimulatedWorld>> = const { RefCell::new(None) };
}

fn world<T>(with: impl FnOnce(&mut SimulatedWorld) -> T) -> T {
    WORLD.with_borrow_mut(|world| with(world.as_mut().expect("the test has made it")))
}

async fn accept(listener: Rc<uiw::Listener>) -> uiw::Result<Connection> {
    listener.accept().await
}

/// Creates a network for this thread with a listener, and returns the target for cases.
fn listen(options: ConnConfig, link: Link) -> Target {
    let network = sim::Network::new(1);
    network.set_default_link(link);
    let manual = DeviceConfig::default().progress(Progress::Manual);
    let device = Device::with_stack(Box::new(network.stack(HOST)), manual).unwrap();
    let settings = ConnectionConfig::default().options(options).recv_size(4096);
    let pd = device.alloc_pd().unwrap();
    let listener = Rc::new(uiw::Listener::bind(&pd, SocketAddr::new(HOST, 0), &settings).unwrap());
    let address = listener.local_addr();
    let accepting = Box::pin(accept(Rc::clone(&listener)));
    WORLD.set(Some(SimulatedWorld {
        network,
        device,
        listener,
        accepting,
        readers: Vec::new(),
        closes: false,
    }));
    Target { network: &SIMULATED, address, stall: STALL, enhanced: true }
}

impl SimulatedWorld {
    fn pump(&self) -> bool {
        (0..QUIET_ROUNDS).any(|_| self.device.pump() > 0)
    }

    /// Runs the listener and its connections once. Returns whether there was work.
    fn round(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let mut moved = self.pump();
        while let Poll::Ready(accepted) = self.accepting.as_mut().poll(&mut cx) {
            moved = true;
            self.accepting = Box::pin(accept(Rc::clone(&self.listener)));
            if let Ok(connection) = accepted
                && !self.closes
            {
                let read = async move { while let Ok(Some(_)) = connection.recv().await {} };
                self.readers.push(Box::pin(read));
            }
        }
        self.readers.retain_mut(|reader| reader.as_mut().poll(&mut cx).is_pending());
        // Accepted or ended connections may have something to send.
        moved | self.pump()
    }

    /// Moves the clock to the next deadline, but not beyond `until`. Returns false if `until` was
    /// already reached.
    fn advance(&mut self, until: Instant) -> bool {
        let now = self.network.now();
        if now >= until {
            return false;
        }
        let next = self.device.deadline().into_iter().chain(self.network.next_event()).min();
        let step = next.unwrap_or(until).min(until).saturating_duration_since(now);
        self.network.advance(step.max(Duration::from_micros(1)));
        true
    }
}

fn now() -> Instant {
    world(|world| world.network.now())
}

fn pause(time: Duration) {
    let _: Option<()> = wait(now() + time, || None);
}

/// Runs the listener until `ready` returns a value, or until the given time.
fn wait<T>(until: Instant, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let mut rounds = 0;
    loop {
        if let Some(value) = ready() {
            return Some(value);
        }
        if world(SimulatedWorld::round) {
            rounds += 1;
            assert!(rounds < MAX_ROUNDS, "the device does not come to rest");
        } else if !world(|world| world.advance(until)) {
            return None;
        } else {
            rounds = 0;
        }
    }
}

/// Returns `None` if the operation would block.
fn unless_blocked<T>(result: io::Result<T>) -> Option<io::Result<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        result => Some(result),
    }
}

struct SimPipe(Box<dyn TransportStream>);

impl std::fmt::Debug for SimPipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimPipe").finish_non_exhaustive()
    }
}

impl SimPipe {
    fn connect(to: SocketAddr, within: Duration) -> io::Result<Box<dyn Pipe>> {
        let mut stack = world(|world| world.network.stack(HOST));
        let mut stream = stack.connect(None, to, &TransportConfig::default(), Token(0))?;
        let connected = || stream.connect_result().map(|done| done.then_some(())).transpose();
        wait(now() + within, connected).ok_or(ErrorKind::TimedOut)??;
        Ok(Box::new(Self(stream)))
    }
}

impl Pipe for SimPipe {
    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = wait(now() + STALL, || unless_blocked(self.0.send(&[IoVec::from(bytes)])));
            bytes = &bytes[sent.ok_or(ErrorKind::TimedOut)??..];
        }
        Ok(())
    }

    fn read(&mut self, bytes: &mut [u8], until: Instant) -> io::Result<Option<usize>> {
        wait(until, || unless_blocked(self.0.recv(&mut [IoVecMut::from(&mut *bytes)]))).transpose()
    }

    fn fin(&mut self) {
        let _ = self.0.shutdown();
    }

    fn reset(mut self: Box<Self>) {
        self.0.abort();
    }
}

/// Result of a run.
#[derive(Default)]
struct RunFindings {
    ran: usize,
    requirements: BTreeSet<String>,
    /// Violations and stopped cases, with the frames.
    wrong: Vec<String>,
}

/// Runs cases, each against its own listener.
fn run_cases(options: &ConnConfig, link: &Link, cases: &[Case]) -> RunFindings {
    let listener = listener::ask(&mut listen(options.clone(), link.clone()), false).unwrap();
    let mut found = RunFindings::default();
    for case in cases.iter().filter(|case| lacks(case, &listener).is_none()) {
        let outcome = steps::run(&listen(options.clone(), link.clone()), case);
        found.ran += 1;
        let broken =
            outcome.judged.0.iter().filter_map(|(id, broken)| Some((id, broken.as_ref()?)));
        let mut wrong: Vec<String> = broken.map(|(id, what)| format!("{id}: {what}")).collect();
        wrong.extend(outcome.stopped);
        if !wrong.is_empty() {
            let frames = outcome.transcript.join("\n");
            found.wrong.push(format!("{}: {}\n{frames}", case.name, wrong.join("; ")));
        }
        found.requirements.extend(outcome.judged.0.into_keys());
    }
    found
}

fn paths() -> [Link; 3] {
    // Segments have the size of kernel TCP on the loopback interface.
    let plain = Link { emss: 65_483, ..Link::default() };
    let sent = Link { send_split: Split::Random(9), ..plain.clone() };
    let long = Link { latency: Duration::from_millis(50), ..Link::default() };
    [plain, sent, long]
}

#[test]
fn cases_without_partner_pass() {
    let cases = cases::built_in().unwrap();
    for link in paths() {
        for (options, least) in [
            (ConnConfig::default(), (60, 130)),
            (ConnConfig::default().markers(true).crc(false), (65, 130)),
        ] {
            let RunFindings { ran, requirements: shown, wrong } =
                run_cases(&options, &link, &cases);
            assert!(wrong.is_empty(), "over {link:?}:\n{}", wrong.join("\n\n"));
            let table = requirements::all();
            assert!(shown.iter().all(|id| table.iter().any(|row| row.id == *id)));
            assert!(
                ran >= least.0 && shown.len() >= least.1,
                "{ran} cases, {} requirements",
                shown.len()
            );
        }
    }
}

/// Negative vectors that this listener cannot judge: they need memory at their STags, or a
/// connection without a receive.
const NEEDS_MEMORY: [&str; 7] = [
    "tagged-to-wrap",
    "tagged-bounds",
    "read-bounds",
    "read-to-wrap",
    "atomic-unaligned",
    "mo-beyond-buffer",
    "send-no-buffer",
];

#[test]
fn negative_vectors_are_refused() {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/data/vectors/negative.case");
    let mut cases = cases::load(&file).unwrap();
    cases.retain(|case| NEEDS_MEMORY.iter().all(|name| case.name != format!("negative/{name}")));
    let (markers, plain): (Vec<Case>, Vec<Case>) =
        cases.into_iter().partition(|case| case.needs.contains(&CaseCondition::MarkersAsked));
    assert_eq!((plain.len(), markers.len()), (17, 2));
    for (cases, asks) in [(plain, false), (markers, true)] {
        let found = run_cases(&ConnConfig::default().markers(asks), &Link::default(), &cases);
        assert_eq!((found.ran, found.wrong.as_slice()), (cases.len(), &[][..]));
    }
}

#[test]
fn wrong_expectation_reported_broken() {
    let text = "case a/b \"c\"\n  start\n  > read-request sink-stag 7\n  < read-response stag 8 [RFC5040-4.4-02]\n\
                case a/d \"e\"\n  start\n  > write crc-xor 1\n  < terminate codes 2/0/3\n";
    let cases = uiw_cases::parse("f", text).unwrap();
    let wrong = run_cases(&ConnConfig::default(), &Link::default(), &cases).wrong;
    let [stag, codes] = wrong.as_slice() else { panic!("{wrong:?}") };
    assert!(stag.contains("RFC5040-4.4-02: stag of the read-response is 7, 8 is due"), "{stag}");
    assert!(codes.contains("f:8: ") && codes.contains("2/0/0x02"), "{codes}");
}

/// A program that accepts and closes breaks no requirement.
#[test]
fn close_after_accept_not_judged() {
    let case = &uiw_cases::parse("f", "case a/b \"c\"\n  start a 0\n").unwrap()[0];
    let target = listen(ConnConfig::default(), Link::default());
    world(|world| world.closes = true);
    let outcome = steps::run(&target, case);
    assert!(outcome.stopped.unwrap().contains("the end of the stream"), "{:?}", outcome.transcript);
    assert_eq!(outcome.judged.broken(), [""; 0]);
}

/// Checking each Marker is optional (RFC 5044 section 8).
#[test]
fn accepted_marker_not_judged() {
    for (xor, is_refused) in [("0x40", true), ("0", false)] {
        let text = include_str!("cases/markers.case")
            .replace("marker-xor 0x40", &format!("marker-xor {xor}"));
        let mut cases = uiw_cases::parse("f", &text).unwrap();
        cases.retain(|case| case.name == "markers/received-wrong");
        let found = run_cases(&ConnConfig::default().markers(true), &Link::default(), &cases);
        assert_eq!((found.ran, found.wrong.as_slice()), (1, &[][..]));
        assert_eq!(found.requirements.contains("RFC5044-8-04"), is_refused);
    }
}

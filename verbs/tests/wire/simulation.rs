//! The simulated network of a test: its devices, the streams of its scripted peers, and their
//! virtual clock. One thread drives all of it: a wait runs the devices until nothing moves any
//! more, and then moves the clock to the next deadline.

use crate::peer::TIMEOUT;
use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use uiw_llp::{ListenConfig, Token, TransportConfig, TransportListener, TransportStack, TransportStream};
use uiw_mem::{IoVec, IoVecMut};
use uiw_testkit::sim::{Link, Network};
use uiw_verbs::{Device, DeviceConfig, Limits, Progress};

/// The address of every device and peer, which share its ports.
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
/// EMSS of the kernel's TCP on its loopback interface.
const EMSS: usize = 65_483;
/// Rounds without work after which a device is idle. While it has few connections it asks its stack
/// in one of 32.
const QUIET_ROUNDS: usize = 33;
/// Rounds in which something moves while the clock stands still, at most: more is a livelock.
const MAX_ROUNDS: usize = 1_000_000;

struct SimulatedNetwork {
    network: Network,
    devices: RefCell<Vec<Device>>,
}

thread_local! {
    static SIMULATION: SimulatedNetwork = {
        let network = Network::new(1);
        network.set_default_link(Link { emss: EMSS, ..Link::default() });
        SimulatedNetwork { network, devices: RefCell::default() }
    };
}

/// A device on the network of this thread.
pub(crate) fn device(limits: Limits) -> Device {
    device_with(DeviceConfig::default().limits(limits))
}

/// The same with any options; the test's thread drives.
pub(crate) fn device_with(options: DeviceConfig) -> Device {
    SIMULATION.with(|simulation| {
        let options = options.progress(Progress::Manual);
        let device = Device::with_stack(Box::new(simulation.network.stack(HOST)), options).unwrap();
        simulation.devices.borrow_mut().push(device.clone());
        device
    })
}

/// Changes the link of this thread's network, which every device and peer uses in both directions.
pub(crate) fn change_link(change: impl FnOnce(&mut Link)) {
    SIMULATION.with(|simulation| simulation.network.change_link(HOST, HOST, change));
}

/// Returns whether the device is on a simulated network: the kernel's TCP has a descriptor to wait
/// with.
pub(crate) fn is_simulated(device: &Device) -> bool {
    device.wait_fds().is_empty()
}

/// An address of the network, with a port that the network chooses.
pub(crate) fn any_port() -> SocketAddr {
    SocketAddr::new(HOST, 0)
}

/// Returns whether the address is one of the network.
pub(crate) fn is_address(address: SocketAddr) -> bool {
    address.ip() == HOST
}

/// The virtual time.
pub(crate) fn now() -> Instant {
    SIMULATION.with(|simulation| simulation.network.now())
}

/// Runs the devices until `ready` has something, for at most `timeout` of virtual time.
pub(crate) fn wait<T>(timeout: Duration, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let until = now() + timeout;
    let mut rounds = 0;
    loop {
        // What moved in a round may be what is waited for, and is looked at before the next one.
        if let Some(value) = ready() {
            return Some(value);
        }
        if round() {
            rounds += 1;
            assert!(rounds < MAX_ROUNDS, "the devices do not come to rest");
        } else if !advance(until) {
            return None;
        } else {
            rounds = 0;
        }
    }
}

/// Runs the devices until `done`.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    wait(TIMEOUT, || done().then_some(())).expect(what);
}

/// [`Device::wait_idle`] for at most `timeout` of virtual time.
pub(crate) fn wait_idle(device: &Device, timeout: Duration) -> bool {
    wait(timeout, || device.wait_idle(Duration::ZERO).then_some(())).is_some()
}

/// Runs the devices until nothing moves any more; the clock stands still.
pub(crate) fn run_until_idle() {
    assert!((0..MAX_ROUNDS).any(|_| !round()), "the devices do not come to rest");
}

/// Runs every device until one of them has moved something; false when all are idle.
fn round() -> bool {
    // A round may run wakers, which may make devices.
    let devices = SIMULATION.with(|simulation| simulation.devices.borrow().clone());
    (0..QUIET_ROUNDS).any(|_| devices.iter().map(Device::pump).sum::<usize>() > 0)
}

/// Moves the clock to the next deadline, at most to `until`. False when that is reached already.
fn advance(until: Instant) -> bool {
    SIMULATION.with(|simulation| {
        let now = simulation.network.now();
        if now >= until {
            return false;
        }
        let deadlines = simulation.devices.borrow();
        let next = deadlines.iter().filter_map(Device::deadline).chain(simulation.network.next_event()).min();
        let step = next.unwrap_or(until).min(until).saturating_duration_since(now);
        // A deadline of the past is one that its device has not come to yet.
        simulation.network.advance(step.max(Duration::from_micros(1)));
        true
    })
}

/// One end of a stream, with calls that block: they run the devices meanwhile.
pub(crate) struct SimStream {
    stream: Box<dyn TransportStream>,
    timeout: Duration,
}

impl SimStream {
    fn new(stream: Box<dyn TransportStream>) -> Self {
        Self { stream, timeout: TIMEOUT }
    }

    pub(crate) fn connect(to: SocketAddr) -> io::Result<Self> {
        let mut stack = SIMULATION.with(|simulation| simulation.network.stack(HOST));
        let mut stream = stack.connect(None, to, &TransportConfig::default(), Token(0))?;
        let connected = wait(TIMEOUT, || stream.connect_result().map(|done| done.then_some(())).transpose());
        connected.ok_or(ErrorKind::TimedOut)??;
        Ok(Self::new(stream))
    }

    /// The time that a read waits.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Sends a FIN.
    pub(crate) fn shutdown(&mut self) -> io::Result<()> {
        self.stream.shutdown()
    }

    /// Sends a RST.
    pub(crate) fn abort(mut self) {
        self.stream.abort();
    }
}

/// `None` for what would block.
fn unless_blocked<T>(result: io::Result<T>) -> Option<io::Result<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        result => Some(result),
    }
}

impl io::Read for SimStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let stream = &mut self.stream;
        wait(self.timeout, || unless_blocked(stream.recv(&mut [IoVecMut::from(&mut *bytes)])))
            .unwrap_or_else(|| Err(ErrorKind::WouldBlock.into()))
    }
}

impl io::Write for SimStream {
    /// The devices take in what one call sends before the next one.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stream = &mut self.stream;
        let sent = wait(TIMEOUT, || unless_blocked(stream.send(&[IoVec::from(bytes)])));
        run_until_idle();
        sent.unwrap_or_else(|| Err(ErrorKind::WouldBlock.into()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A listening port.
pub(crate) struct SimPort(Mutex<Box<dyn TransportListener>>);

impl SimPort {
    pub(crate) fn new() -> Self {
        let mut stack = SIMULATION.with(|simulation| simulation.network.stack(HOST));
        Self(Mutex::new(stack.listen(any_port(), &ListenConfig::default(), Token(0)).unwrap()))
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.0.lock().unwrap().local_addr()
    }

    /// The next connection that comes within `timeout`.
    pub(crate) fn accept(&self, timeout: Duration) -> Option<SimStream> {
        let accepted = wait(timeout, || unless_blocked(self.0.lock().unwrap().accept(Token(0))))?;
        Some(SimStream::new(accepted.unwrap()))
    }
}

//! Simulated network of a test: its devices, the streams of its scripted peers and a virtual clock.
//! A single thread drives everything: a wait runs the devices until nothing changes any more, and
//! then advances the clock to the next deadline.

use crate::peer::TIMEOUT;
use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use uiw_llp::{
    ListenConfig, Token, TransportConfig, TransportListener, TransportStack, TransportStream,
};
use uiw_mem::{IoVec, IoVecMut};
use uiw_testkit::sim::{Link, Network};
use uiw_verbs::{Device, DeviceConfig, Limits, Progress};

/// Address of every device and peer; they share its ports.
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
/// EMSS of the kernel's TCP on its loopback interface.
const EMSS: usize = 65_483;
/// Maximum number of rounds with work while the clock stands still; more rounds mean a livelock.
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

/// Creates a device on the network of this thread.
pub(crate) fn device(limits: Limits) -> Device {
    device_with(DeviceConfig::default().limits(limits))
}

/// Like [`device`], but with arbitrary options; the test's thread drives it.
pub(crate) fn device_with(options: DeviceConfig) -> Device {
    SIMULATION.with(|simulation| {
        let options = options.progress(Progress::Manual);
        let device = Device::with_stack(Box::new(simulation.network.stack(HOST)), options).unwrap();
        simulation.devices.borrow_mut().push(device.clone());
        device
    })
}

/// Changes the link of this thread's network, which all devices and peers use in both directions.
pub(crate) fn change_link(change: impl FnOnce(&mut Link)) {
    SIMULATION.with(|simulation| simulation.network.change_link(HOST, HOST, change));
}

/// Returns whether the device is on a simulated network. Only the kernel's TCP has a descriptor to
/// wait with.
pub(crate) fn is_simulated(device: &Device) -> bool {
    device.wait_fds().is_empty()
}

/// Returns an address of the network whose port the network chooses.
pub(crate) fn any_port() -> SocketAddr {
    SocketAddr::new(HOST, 0)
}

/// Returns whether the address is one of the network.
pub(crate) fn is_address(address: SocketAddr) -> bool {
    address.ip() == HOST
}

/// Returns the virtual time.
pub(crate) fn now() -> Instant {
    SIMULATION.with(|simulation| simulation.network.now())
}

/// Runs the devices until `ready` returns a value, for at most `timeout` of virtual time.
pub(crate) fn wait<T>(timeout: Duration, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let until = now() + timeout;
    let mut rounds = 0;
    loop {
        // A round may produce the awaited result, so check before the next round.
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

/// Runs the devices until `done` returns true.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    wait(TIMEOUT, || done().then_some(())).expect(what);
}

/// Like [`Device::wait_idle`], for at most `timeout` of virtual time.
pub(crate) fn wait_idle(device: &Device, timeout: Duration) -> bool {
    wait(timeout, || device.wait_idle(Duration::ZERO).then_some(())).is_some()
}

/// Runs the devices until nothing changes any more; the clock stands still.
pub(crate) fn run_until_idle() {
    assert!((0..MAX_ROUNDS).any(|_| !round()), "the devices do not come to rest");
}

/// Runs all devices until one of them has done some work; returns false if all are idle.
fn round() -> bool {
    // A round may run wakers that create devices.
    let devices = SIMULATION.with(|simulation| simulation.devices.borrow().clone());
    devices.iter().map(Device::pump).sum::<usize>() > 0
}

/// Advances the clock to the next deadline, but not beyond `until`. Returns false if `until` has
/// been reached.
fn advance(until: Instant) -> bool {
    SIMULATION.with(|simulation| {
        let now = simulation.network.now();
        if now >= until {
            return false;
        }
        let deadlines = simulation.devices.borrow();
        let next = deadlines
            .iter()
            .filter_map(Device::deadline)
            .chain(simulation.network.next_event())
            .min();
        let step = next.unwrap_or(until).min(until).saturating_duration_since(now);
        // A deadline in the past belongs to a device that has not processed it yet.
        simulation.network.advance(step.max(Duration::from_micros(1)));
        true
    })
}

/// One end of a stream with blocking calls, which run the devices in the meantime.
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
        let connected =
            wait(TIMEOUT, || stream.connect_result().map(|done| done.then_some(())).transpose());
        connected.ok_or(ErrorKind::TimedOut)??;
        Ok(Self::new(stream))
    }

    /// Sets the timeout of reads.
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

/// Returns `None` if the operation would block.
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
    /// Runs the devices after each call, so that they process its data before the next call.
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

/// Port that listens on the simulated network.
pub(crate) struct SimPort(Mutex<Box<dyn TransportListener>>);

impl SimPort {
    pub(crate) fn new() -> Self {
        let mut stack = SIMULATION.with(|simulation| simulation.network.stack(HOST));
        Self(Mutex::new(stack.listen(any_port(), &ListenConfig::default(), Token(0)).unwrap()))
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.0.lock().unwrap().local_addr()
    }

    /// Waits for the next connection for at most `timeout`.
    pub(crate) fn accept(&self, timeout: Duration) -> Option<SimStream> {
        let accepted = wait(timeout, || unless_blocked(self.0.lock().unwrap().accept(Token(0))))?;
        Some(SimStream::new(accepted.unwrap()))
    }
}

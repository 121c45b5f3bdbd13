//! Simulation of two devices on one medium, driven by one thread.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use uiw::{
    Connection, ConnectionConfig, Device, DeviceConfig, Limits, Listener, Pd, Progress, Result,
};
use uiw_impair::wan::{Direction, Profile};
use uiw_llp::{Clock, TransportStack};
use uiw_smol::pipe::{PipeLink, pipe};
use uiw_smol::{SmolConfig, SmolStack};
use uiw_testkit::sim::{Link, Network};

pub(crate) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub(crate) const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// Virtual time after which a run counts as stuck.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Medium between the two stacks.
enum LinkMedium {
    /// Simulated byte streams.
    Streams(Network),
    /// smoltcp at both ends, whose frames use an emulated path.
    Frames(Clock),
}

pub(crate) struct Simulation {
    medium: LinkMedium,
    pub(crate) client: Device,
    pub(crate) server: Device,
}

impl Simulation {
    pub(crate) fn new(seed: u64, link: Link) -> Self {
        let network = Network::new(seed);
        network.set_default_link(link);
        let (client, server) = (device(network.stack(CLIENT)), device(network.stack(SERVER)));
        Self { medium: LinkMedium::Streams(network), client, server }
    }

    /// Creates a simulation in which the server has these limits.
    pub(crate) fn limited(seed: u64, link: Link, limits: Limits) -> Self {
        let simulation = Self::new(seed, link);
        let options = DeviceConfig::default().progress(Progress::Manual).limits(limits);
        let server =
            Device::with_stack(Box::new(simulation.network().stack(SERVER)), options).unwrap();
        Self { server, ..simulation }
    }

    /// Replaces the client by a new one. Returns the previous client, which is no longer driven.
    pub(crate) fn with_other_client(self) -> (Self, Device) {
        let client = device(self.network().stack(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3))));
        let Self { medium, client: before, server } = self;
        (Self { medium, client, server }, before)
    }

    /// Creates a simulation with smoltcp at both ends, with frames of up to `mtu` bytes and socket
    /// buffers of `buffer` bytes.
    pub(crate) fn frames(seed: u64, profile: &Profile, mtu: usize, buffer: usize) -> Self {
        let clock = Clock::virtual_time();
        let (a, b) = pipe(mtu).unwrap();
        let stack = |link: PipeLink, ip, seed| {
            let link = link.through(Direction::new(profile, seed).unwrap(), &clock);
            let config = SmolConfig { buffer, ..SmolConfig::new(ip, 24) };
            device(SmolStack::with_clock(link, &config, clock.clone()).unwrap())
        };
        let (client, server) = (stack(a, CLIENT, seed), stack(b, SERVER, !seed));
        Self { medium: LinkMedium::Frames(clock), client, server }
    }

    /// Returns the network of streams.
    pub(crate) fn network(&self) -> &Network {
        match &self.medium {
            LinkMedium::Streams(network) => network,
            LinkMedium::Frames(_) => panic!("this simulation has frames"),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        match &self.medium {
            LinkMedium::Streams(network) => network.now(),
            LinkMedium::Frames(clock) => clock.now(),
        }
    }

    /// Advances the clock to the next event, at most by some milliseconds.
    fn advance(&self) {
        let devices = [&self.client, &self.server];
        let next = match &self.medium {
            LinkMedium::Streams(network) => network.next_event(),
            LinkMedium::Frames(_) => devices.iter().filter_map(|device| device.deadline()).min(),
        };
        let step = next.map_or(Duration::MAX, |at| at.saturating_duration_since(self.now()));
        let step = step.clamp(Duration::from_micros(1), Duration::from_millis(5));
        match &self.medium {
            LinkMedium::Streams(network) => network.advance(step),
            LinkMedium::Frames(clock) => clock.advance(step),
        }
    }

    /// Returns the time of the next event: on the network of streams, or a timer of a device.
    fn next_due(&self) -> Option<Instant> {
        let timers = [&self.client, &self.server].into_iter().filter_map(Device::deadline);
        timers.chain(self.network().next_event()).min()
    }

    /// Advances the clock to the next event.
    fn step(&self, network: &Network) -> bool {
        let now = network.now();
        match (self.next_due(), network.next_event()) {
            (Some(timer), Some(next)) if now < timer && timer < next => {
                network.advance(timer - now);
                true
            }
            _ => network.step(),
        }
    }

    /// Runs one round of both drivers and the network. Returns `false` if there was no work.
    pub(crate) fn round(&self) -> bool {
        let work = self.client.pump() + self.server.pump();
        let moved = match &self.medium {
            LinkMedium::Streams(network) => self.step(network),
            LinkMedium::Frames(_) => false,
        };
        work > 0 || moved
    }

    /// Runs both futures to completion.
    ///
    /// # Panics
    /// Panics if they are not complete after [`TIMEOUT`] of virtual time.
    pub(crate) fn run<A: Future, B: Future>(&self, a: A, b: B) -> (A::Output, B::Output) {
        self.run_with(a, b, |_| {})
    }

    /// Like [`Simulation::run`], but calls `each` before each round, with the number of the round.
    pub(crate) fn run_with<A: Future, B: Future>(
        &self,
        a: A,
        b: B,
        mut each: impl FnMut(u64),
    ) -> (A::Output, B::Output) {
        let (mut a, mut b) = (pin!(a), pin!(b));
        let (mut done_a, mut done_b) = (None, None);
        let start = self.now();
        let mut idle = 0;
        for round in 0.. {
            each(round);
            let before = done_a.is_some() || done_b.is_some();
            poll_once(a.as_mut(), &mut done_a);
            poll_once(b.as_mut(), &mut done_b);
            if done_a.is_some() && done_b.is_some() {
                break;
            }
            let moved = self.round() || before != (done_a.is_some() || done_b.is_some());
            idle = if moved { 0 } else { idle + 1 };
            if idle > 2 {
                // There is no work now, so the clock advances.
                self.advance();
            }
            assert!(self.now() - start < TIMEOUT, "the conversation is stuck");
        }
        match (done_a, done_b) {
            (Some(a), Some(b)) => (a, b),
            _ => unreachable!(),
        }
    }

    /// Connects and returns the two ends.
    pub(crate) fn connect(&self, settings: &ConnectionConfig) -> (End, End) {
        let (client, server) = self.try_connect(settings);
        (client.unwrap(), server.unwrap())
    }

    /// Tries to connect, and returns the two ends. The server's end is `None` if the client never
    /// reached the server.
    pub(crate) fn try_connect(&self, settings: &ConnectionConfig) -> (Result<End>, Option<End>) {
        let (client_pd, server_pd) =
            (self.client.alloc_pd().unwrap(), self.server.alloc_pd().unwrap());
        let listener = Listener::bind(&server_pd, SocketAddr::new(SERVER, 4791), settings).unwrap();
        let address = listener.local_addr();
        let tried = Cell::new(false);
        let (client, server) = self.run(
            async {
                let connected = Connection::connect(&client_pd, address, settings).await;
                tried.set(true);
                connected
            },
            async {
                let mut accepting = pin!(async {
                    let incoming = listener.incoming().await.unwrap();
                    incoming.accept(&server_pd, settings).await.ok()
                });
                // The server may never see a client that failed, so it waits for a limited time.
                let timeout = Duration::from_secs(20);
                let start = self.now();
                poll_fn(|cx| match accepting.as_mut().poll(cx) {
                    Poll::Pending if tried.get() && self.now() - start > timeout => {
                        Poll::Ready(None)
                    }
                    polled => polled,
                })
                .await
            },
        );
        (client.map(|c| (client_pd, c)), server.map(|s| (server_pd, s)))
    }
}

fn device(stack: impl TransportStack + 'static) -> Device {
    let options = DeviceConfig::default().progress(Progress::Manual);
    Device::with_stack(Box::new(stack), options).unwrap()
}

/// End of a connection.
pub(crate) type End = (Pd, Connection);

fn poll_once<F: Future>(future: Pin<&mut F>, done: &mut Option<F::Output>) {
    if done.is_none()
        && let Poll::Ready(output) = future.poll(&mut Context::from_waker(Waker::noop()))
    {
        *done = Some(output);
    }
}

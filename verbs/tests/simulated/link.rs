//! Two devices on one simulated network, driven by one thread.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use llp::sim::{Link, Network};
use verbs::{ConnSettings, Connection, Device, DeviceOptions, Listener, Pd, Progress, Result};

pub(crate) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub(crate) const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// Virtual time after which a conversation counts as stuck.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Simulation {
    pub(crate) network: Network,
    pub(crate) client: Device,
    pub(crate) server: Device,
}

impl Simulation {
    pub(crate) fn new(seed: u64, link: Link) -> Self {
        let network = Network::new(seed);
        network.set_default_link(link);
        let device = |ip: IpAddr| {
            let options = DeviceOptions { progress: Progress::Manual, ..DeviceOptions::default() };
            Device::with_stack(Box::new(network.stack(ip)), options).unwrap()
        };
        let (client, server) = (device(CLIENT), device(SERVER));
        Self { network, client, server }
    }

    /// One round of both drivers and the network. False when nothing moved.
    pub(crate) fn round(&self) -> bool {
        let work = self.client.pump() + self.server.pump();
        let moved = self.network.step();
        work > 0 || moved
    }

    /// Runs both futures to their ends.
    ///
    /// # Panics
    /// When they are not over after [`PATIENCE`] of virtual time.
    pub(crate) fn run<A: Future, B: Future>(&self, a: A, b: B) -> (A::Output, B::Output) {
        let (mut a, mut b) = (pin!(a), pin!(b));
        let (mut done_a, mut done_b) = (None, None);
        let start = self.network.now();
        let mut idle = 0;
        loop {
            let before = done_a.is_some() || done_b.is_some();
            poll_once(a.as_mut(), &mut done_a);
            poll_once(b.as_mut(), &mut done_b);
            if done_a.is_some() && done_b.is_some() {
                break;
            }
            let moved = self.round() || before != (done_a.is_some() || done_b.is_some());
            idle = if moved { 0 } else { idle + 1 };
            if idle > 2 {
                // Nothing to do now: on to whatever comes next, at most some milliseconds further.
                let next = self.network.next_event().map(|at| at - self.network.now());
                let step = next.unwrap_or(Duration::MAX).min(Duration::from_millis(5));
                self.network.advance(step.max(Duration::from_micros(1)));
            }
            assert!(self.network.now() - start < PATIENCE, "the conversation is stuck");
        }
        match (done_a, done_b) {
            (Some(a), Some(b)) => (a, b),
            _ => unreachable!(),
        }
    }

    /// Both ends of one connection.
    pub(crate) fn connect(&self, settings: &ConnSettings) -> (End, End) {
        let (client, server) = self.try_connect(settings);
        (client.unwrap(), server.unwrap())
    }

    /// Both ends of a connection that may not come to be. The server's is none when the client never reached it.
    pub(crate) fn try_connect(&self, settings: &ConnSettings) -> (Result<End>, Option<End>) {
        let (client_pd, server_pd) = (self.client.alloc_pd().unwrap(), self.server.alloc_pd().unwrap());
        let listener =
            Listener::bind(&self.server, SocketAddr::new(SERVER, 4791), &settings.options).unwrap();
        let address = listener.local_addr();
        let tried = Cell::new(false);
        let (client, server) = self.run(
            async {
                let connected = Connection::connect(&self.client, &client_pd, address, settings).await;
                tried.set(true);
                connected
            },
            async {
                let mut accepting = pin!(async {
                    let incoming = listener.accept().await;
                    incoming.accept(&server_pd, settings).await.ok()
                });
                // A client that failed may never have been heard of: its time is over then.
                let patience = Duration::from_secs(20);
                let start = self.network.now();
                poll_fn(|cx| match accepting.as_mut().poll(cx) {
                    Poll::Pending if tried.get() && self.network.now() - start > patience => {
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

/// One end of a connection.
pub(crate) type End = (Pd, Connection);

fn poll_once<F: Future>(future: Pin<&mut F>, done: &mut Option<F::Output>) {
    if done.is_none()
        && let Poll::Ready(output) = future.poll(&mut Context::from_waker(Waker::noop()))
    {
        *done = Some(output);
    }
}

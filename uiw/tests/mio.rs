//! A device in an event loop of mio, as its module documents it.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use uiw::{Connection, ConnectionConfig, Device, DeviceConfig, Listener, Progress};

/// Time-out for events that happen soon on any machine.
const TIMEOUT: Duration = Duration::from_secs(60);

struct EventLoop {
    device: Device,
    poll: mio::Poll,
}

impl EventLoop {
    fn new() -> Self {
        let mut device =
            Device::open_with(DeviceConfig::default().progress(Progress::Manual)).unwrap();
        let poll = mio::Poll::new().unwrap();
        poll.registry().register(&mut device, mio::Token(0), mio::Interest::READABLE).unwrap();
        Self { device, poll }
    }

    fn run<F: Future>(&mut self, future: F) -> F::Output {
        let (mut future, end) = (pin!(future), Instant::now() + TIMEOUT);
        let mut events = mio::Events::with_capacity(16);
        loop {
            while self.device.pump() > 0 {}
            if let Poll::Ready(output) =
                future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                return output;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "nothing has happened for {TIMEOUT:?}");
            let next =
                self.device.deadline().map(|at| at.saturating_duration_since(Instant::now()));
            self.poll.poll(&mut events, Some(next.map_or(left, |next| next.min(left)))).unwrap();
        }
    }
}

#[test]
fn further_connections_established() {
    let mut events = EventLoop::new();
    let (pd, config) = (events.device.alloc_pd().unwrap(), ConnectionConfig::default());
    let listener = Listener::bind(&pd, "127.0.0.1:0".parse().unwrap(), &config).unwrap();
    let address = listener.local_addr();
    let other = Device::open().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let pd = other.alloc_pd().unwrap();
            let mut connections = Vec::new();
            for _ in 0..4 {
                let connection =
                    other.block_on(Connection::connect(&pd, address, &config)).unwrap();
                // The event loop is idle when the next connection arrives.
                other.block_on(connection.recv()).unwrap().unwrap();
                connections.push(connection);
            }
        });
        let accepted: Vec<_> = (0..4)
            .map(|_| {
                let connection = events.run(listener.accept()).unwrap();
                events.run(connection.send_copy(b"accepted")).unwrap();
                connection
            })
            .collect();
        for connection in accepted {
            assert!(events.run(connection.recv()).unwrap().is_none(), "the peer has closed");
        }
    });
}

#[test]
fn further_connections_opened() {
    let mut events = EventLoop::new();
    let (pd, config) = (events.device.alloc_pd().unwrap(), ConnectionConfig::default());
    let other = Device::open().unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&other.alloc_pd().unwrap(), any, &config).unwrap();
    let address = listener.local_addr();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..4).map(|_| other.block_on(listener.accept()).unwrap()).collect::<Vec<_>>()
        });
        let open = |_| events.run(Connection::connect(&pd, address, &config)).unwrap();
        drop((0..4).map(open).collect::<Vec<_>>());
    });
}

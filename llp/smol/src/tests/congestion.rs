//! Speed at which the congestion window opens, on a virtual clock.

use super::{LISTENER, TestWorld, address};
use crate::pipe::{PipeLink, pipe};
use crate::{SmolConfig, SmolStack};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;
use uiw_impair::wan::{Direction, Profile};
use uiw_llp::{Clock, StreamChange, Token, TransportConfig, TransportStack};
use uiw_mem::{IoVec, IoVecMut};

/// Returns the rate in bytes per second over a path of `profile` in both directions, in `time`
/// after the handshake. Each end has buffers of `buffer` bytes, and is polled every `step`, as on a
/// busy machine, so everything that has arrived since is acknowledged at once.
fn rate(profile: &Profile, buffer: usize, step: Duration, time: Duration) -> f64 {
    let clock = Clock::virtual_time();
    let (a, b) = pipe(1500).unwrap();
    let stack = |link: PipeLink, host: u8| {
        let link = link.through(Direction::new(profile, u64::from(host)).unwrap(), &clock);
        let config = SmolConfig { buffer, ..SmolConfig::new(address(host, false), 24) };
        SmolStack::with_clock(link, &config, clock.clone()).unwrap()
    };
    let mut world = TestWorld {
        stacks: [stack(a, 1), stack(b, 2)],
        events: [Vec::new(), Vec::new()],
        v6: false,
    };
    let mut listener = world.listen(4791, 1);
    let to = SocketAddr::new(address(2, false), 4791);
    let mut client =
        world.stacks[0].connect(None, to, &TransportConfig::default(), Token(1)).unwrap();
    let tick = |world: &mut TestWorld| {
        clock.advance(step);
        world.step();
    };
    let mut server = loop {
        match listener.accept(LISTENER) {
            Ok(stream) => break stream,
            Err(_) => tick(&mut world),
        }
    };
    let (block, mut into, mut came) = (vec![7; 1 << 20], vec![0; 1 << 20], 0);
    let begin = clock.now();
    while clock.now() - begin < time {
        tick(&mut world);
        while let Ok(1..) = client.send(&[IoVec::from(&block[..])]) {}
        loop {
            match server.recv(&mut [IoVecMut::from(&mut into[..])]) {
                Ok(count) => came += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    came as f64 / time.as_secs_f64()
}

/// Returns a path with 1 Gbit/s and a round trip of 10 ms.
fn long_path() -> Profile {
    Profile {
        delay: Duration::from_millis(5),
        rate: Some(1_000_000_000),
        queue: Some(1_500_000),
        ..Profile::default()
    }
}

/// Acknowledgements of dozens of segments open the window in the same way as one acknowledgement
/// for each segment.
#[test]
fn long_path_filled_soon() {
    let line = 125e6;
    let rate = rate(&long_path(), 2 << 20, Duration::from_millis(1), Duration::from_secs(1));
    assert!(rate > 0.75 * line, "{:.3} of the line in the first second", rate / line);
}

#[test]
fn acceptor_chooses_own_congestion_control() {
    let mut world = TestWorld::new(1500, false);
    let (_client, mut server) = world.pair();
    assert_eq!(server.info().congestion.as_deref(), Some("cubic"));
    server
        .configure(&StreamChange { congestion: Some("reno"), ..StreamChange::default() })
        .unwrap();
    assert_eq!(server.info().congestion.as_deref(), Some("reno"));
    assert_eq!(
        server
            .configure(&StreamChange { congestion: Some("bbr"), ..StreamChange::default() })
            .unwrap_err()
            .kind(),
        ErrorKind::InvalidInput
    );
}

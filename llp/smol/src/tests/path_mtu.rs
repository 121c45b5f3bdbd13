//! Paths that silently lose long packets, on a virtual clock.

use super::{LISTENER, TestWorld, address};
use crate::pipe::{PipeLink, pipe};
use crate::{SmolConfig, SmolStack};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;
use uiw_impair::wan::{Direction, Profile};
use uiw_llp::{Clock, Token, TransportConfig, TransportStack};
use uiw_mem::{IoVec, IoVecMut};

/// Returns a byte that depends on its position.
fn byte(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

/// Transfers `len` bytes in packets of `mtu` bytes over a path of `profile`, and checks them.
/// Returns the time, and the EMSS and the path MTU afterwards.
fn transfer(profile: &Profile, mtu: usize, v6: bool, len: usize) -> (Duration, usize, Option<u32>) {
    let clock = Clock::virtual_time();
    let (a, b) = pipe(mtu).unwrap();
    let stack = |link: PipeLink, host: u8| {
        let link = link.through(Direction::new(profile, u64::from(host)).unwrap(), &clock);
        let config = SmolConfig::new(address(host, v6), if v6 { 64 } else { 24 });
        SmolStack::with_clock(link, &config, clock.clone()).unwrap()
    };
    let mut world =
        TestWorld { stacks: [stack(a, 1), stack(b, 2)], events: [Vec::new(), Vec::new()], v6 };
    let mut listener = world.listen(4791, 1);
    let to = SocketAddr::new(address(2, v6), 4791);
    let mut client =
        world.stacks[0].connect(None, to, &TransportConfig::default(), Token(1)).unwrap();
    let begin = clock.now();
    let tick = |world: &mut TestWorld| {
        clock.advance(Duration::from_millis(1));
        world.step();
        assert!(clock.now() - begin < Duration::from_secs(120), "the connection is stuck");
    };
    let mut server = loop {
        match listener.accept(LISTENER) {
            Ok(stream) => break stream,
            Err(_) => tick(&mut world),
        }
    };
    let bytes: Vec<u8> = (0..len).map(byte).collect();
    let (mut into, mut sent, mut came) = (vec![0; 1 << 16], 0, 0);
    while came < len {
        tick(&mut world);
        while let Ok(count @ 1..) = client.send(&[IoVec::from(&bytes[sent..])]) {
            sent += count;
            if sent == len {
                break;
            }
        }
        loop {
            match server.recv(&mut [IoVecMut::from(&mut into[..])]) {
                Ok(count) => {
                    assert!(into[..count] == bytes[came..came + count], "at {came}");
                    came += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    (clock.now() - begin, client.emss(), client.info().path_mtu)
}

#[test]
fn connections_survive_path_mtu_black_hole() {
    let path = |max_packet| Profile {
        delay: Duration::from_millis(5),
        max_packet: Some(max_packet),
        ..Profile::default()
    };
    for (mtu, v6, max_packet, found) in [
        (1500, false, 1499, 1280),
        (1500, true, 1300, 1280),
        // Two steps, and three steps.
        (1500, false, 1279, 576),
        (9000, true, 1280, 1280),
        (9000, false, 576, 576),
    ] {
        // Two megabytes take several seconds in addition to the pauses, so that the whole segment
        // that probes the path is lost as well.
        let (took, emss, path_mtu) = transfer(&path(max_packet), mtu, v6, 2 << 20);
        assert!(took > Duration::from_millis(600), "{max_packet} of {mtu}: no packet was lost?");
        assert!(took < Duration::from_secs(60), "{max_packet} of {mtu}: {took:?}");
        let headers = if v6 { 60 } else { 40 };
        assert_eq!(
            (emss, path_mtu),
            (found - headers, Some(found as u32)),
            "{max_packet} of {mtu}"
        );
    }
    let (took, emss, path_mtu) = transfer(&path(1500), 1500, false, 2 << 20);
    assert_eq!((emss, path_mtu), (1460, Some(1500)));
    assert!(took < Duration::from_secs(2), "{took:?}");
}

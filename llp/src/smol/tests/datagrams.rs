//! Datagrams over pipes.

use super::{World, address, pipe};
use crate::smol::{SmolConfig, SmolStack};
use crate::{Clock, DATAGRAM_BUFFER, DatagramOptions, DatagramSocket, Outgoing, Stack as _, Token};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

fn send(socket: &mut dyn DatagramSocket, peer: SocketAddr, bytes: &[u8]) -> Result<(), ErrorKind> {
    let sent = socket.send(bytes, &[Outgoing { peer, len: bytes.len() }]);
    sent.map(|count| assert_eq!(count, 1)).map_err(|error| error.kind())
}

/// A datagram to an address that no host has, such as a reply to a forged one, is lost with what waits behind it; the socket goes on.
#[test]
fn an_address_that_no_host_has_does_not_keep_a_socket() {
    for v6 in [false, true] {
        let clock = Clock::virtual_time();
        let (a, b) = pipe(1500).unwrap();
        let stack = |link, host| {
            let config = SmolConfig::new(address(host, v6), if v6 { 64 } else { 24 });
            SmolStack::with_clock(link, &config, clock.clone()).unwrap()
        };
        let mut world = World { stacks: [stack(a, 1), stack(b, 2)], events: [Vec::new(), Vec::new()], v6 };
        let mut bind = |side: usize, token| {
            let at = SocketAddr::new(address(side as u8 + 1, v6), 0);
            world.stacks[side].bind_datagrams(at, &DatagramOptions::default(), Token(token)).unwrap()
        };
        let (mut one, mut other) = (bind(0, 1), bind(1, 2));
        let nobody = SocketAddr::new(address(77, v6), 9);
        // As many as the socket keeps, and one more.
        while send(&mut *one, nobody, &[1; 100]).is_ok() {}
        assert_eq!(send(&mut *one, other.local_addr(), b"no room"), Err(ErrorKind::WouldBlock));
        let mut buffer = vec![0; DATAGRAM_BUFFER];
        let arrived = (0..200).any(|_| {
            clock.advance(Duration::from_millis(50));
            world.step();
            let _ = send(&mut *one, other.local_addr(), b"here");
            world.step();
            let mut incoming = Vec::new();
            other.recv(&mut buffer, &mut incoming).is_ok()
        });
        assert!(arrived, "nothing leaves the socket within ten seconds");
        assert_eq!(&buffer[..4], b"here");
    }
}

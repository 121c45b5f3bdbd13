//! Backlogs of listeners, and the ports and addresses that they take.

use super::{LISTENER, TestWorld, address, kind, pattern, stacks_on_virtual_clock};
use crate::pipe::pipe;
use crate::{SmolConfig, SmolStack};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;
use uiw_llp::{Clock, ListenConfig, Token, TransportConfig, TransportStack as _};

/// On a virtual clock, because a setup that takes long may be replaced by another one.
#[test]
fn backlog_has_requested_length() {
    let clock = Clock::virtual_time();
    let mut world = stacks_on_virtual_clock(&clock);
    let mut listener = world.listen(4791, 150);
    let mut clients: Vec<_> = (0..200).map(|token| world.connect(4791, token)).collect();
    for _ in 0..1000 {
        clock.advance(Duration::from_millis(1));
        world.step();
    }
    let results =
        clients.iter_mut().map(|client| client.connect_result().expect("none is refused"));
    assert_eq!(results.filter(|is_connected| *is_connected).count(), 150, "the others wait");
    let mut accepted = Vec::new();
    world.until(|_| {
        clock.advance(Duration::from_millis(1));
        accepted.extend(listener.accept(Token(1000 + accepted.len() as u64)));
        accepted.len() == 200
    });
    // The connections are independent of each other.
    for (n, server) in accepted.iter_mut().take(150).enumerate().step_by(10) {
        let peer = server.peer_addr();
        let client = clients.iter_mut().find(|client| client.local_addr() == peer).unwrap();
        world.carry(&mut **client, &mut **server, &pattern(1000 + n));
    }
}

/// The handshakes begin before the first connection fills the backlog.
#[test]
fn established_connections_wait_for_backlog() {
    let mut world = TestWorld::new(1500, false);
    let mut listener = world.listen(4791, 1);
    let mut clients: Vec<_> = (0..20).map(|token| world.connect(4791, token)).collect();
    world.until(|_| clients.iter_mut().all(|client| client.connect_result().unwrap()));
    let mut servers: Vec<_> =
        (0..20).map(|token| world.accept(&mut *listener, 100 + token)).collect();
    for server in &mut servers {
        let peer = server.peer_addr();
        let client = clients.iter_mut().find(|client| client.local_addr() == peer).unwrap();
        world.carry(&mut **client, &mut **server, &pattern(1000));
    }
}

#[test]
fn unavailable_ports_and_addresses() {
    let mut world = TestWorld::new(1500, false);
    let _listener = world.listen(4791, 1);
    let options = ListenConfig::default();
    let stack = &mut world.stacks[1];
    assert_eq!(
        kind(stack.listen("10.9.0.2:4791".parse().unwrap(), &options, Token(9))),
        ErrorKind::AddrInUse
    );
    assert_eq!(
        kind(stack.listen("0.0.0.0:4791".parse().unwrap(), &options, Token(9))),
        ErrorKind::AddrInUse
    );
    let foreign = "10.9.9.9:1".parse().unwrap();
    assert_eq!(kind(stack.listen(foreign, &options, Token(9))), ErrorKind::AddrNotAvailable);
    let peer = "10.9.0.1:5".parse().unwrap();
    let stream = TransportConfig { congestion: Some("bbr".into()), ..TransportConfig::default() };
    assert_eq!(kind(stack.connect(None, peer, &stream, Token(9))), ErrorKind::InvalidInput);
    assert_eq!(
        kind(stack.connect(Some(foreign), peer, &TransportConfig::default(), Token(9))),
        ErrorKind::AddrNotAvailable
    );
    let options = TransportConfig::default();
    let mut connect =
        |peer: &str| kind(stack.connect(None, peer.parse().unwrap(), &options, Token(9)));
    assert_eq!(connect("10.9.1.1:5"), ErrorKind::NetworkUnreachable);
    assert_eq!(connect("[fd00::1]:5"), ErrorKind::NetworkUnreachable);
    for peer in ["0.0.0.0:5", "[::]:5", "224.0.0.1:5"] {
        assert_eq!(connect(peer), ErrorKind::AddrNotAvailable, "{peer}");
    }
    let base = SmolConfig::new(address(1, false), 24);
    let limited = ("255.255.255.255".parse().unwrap(), 24);
    for config in [
        SmolConfig { mac: [1, 0, 0, 0, 0, 1], ..base.clone() },
        SmolConfig { addresses: vec![limited], ..base.clone() },
        SmolConfig { gateways: vec!["10.8.0.1".parse().unwrap()], ..base },
    ] {
        let (link, _other) = pipe(1500).unwrap();
        assert_eq!(kind(SmolStack::new(link, &config)), ErrorKind::InvalidInput, "{config:?}");
    }
}

#[test]
fn listeners_share_port_unless_they_overlap() {
    let (link, _other) = pipe(1500).unwrap();
    let config = SmolConfig::new(address(1, true), 64);
    let addresses = vec![(address(1, false), 24), (address(1, true), 64)];
    let mut stack = SmolStack::new(link, &SmolConfig { addresses, ..config }).unwrap();
    let mut listen = |ip: &str, v6_only| {
        let options = ListenConfig {
            stream: TransportConfig { v6_only, ..Default::default() },
            ..Default::default()
        };
        stack.listen(SocketAddr::new(ip.parse().unwrap(), 4791), &options, LISTENER)
    };
    for (one, v6_only, other, overlap) in [
        ("::", true, "0.0.0.0", false),
        ("::", true, "10.9.0.1", false),
        ("::", true, "fd00::1", true),
        ("::", false, "0.0.0.0", true),
        ("::", false, "10.9.0.1", true),
        ("0.0.0.0", false, "fd00::1", false),
        ("10.9.0.1", false, "fd00::1", false),
        ("10.9.0.1", false, "0.0.0.0", true),
    ] {
        let pairs = [((one, v6_only), (other, false)), ((other, false), (one, v6_only))];
        for (first, second) in pairs {
            let _listener = listen(first.0, first.1).unwrap();
            let refused = listen(second.0, second.1).is_err();
            assert_eq!(refused, overlap, "{first:?} {second:?}");
        }
    }
}

//! Datagrams over pipes.

use super::{TestWorld, address, pipe};
use crate::link::{Frame as _, Link as _};
use crate::pipe::PipeLink;
use crate::{SmolConfig, SmolStack};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;
use std::time::Duration;
use uiw_llp::{
    Clock, DATAGRAM_BUFFER, DatagramConfig, DatagramSocket, Interest, Outgoing, StackExtensions,
    Token, TransportStack as _,
};

fn send(socket: &mut dyn DatagramSocket, peer: SocketAddr, bytes: &[u8]) -> Result<(), ErrorKind> {
    let sent = socket.send(bytes, &[Outgoing::new(peer, bytes.len())]);
    sent.map(|count| assert_eq!(count, 1)).map_err(|error| error.kind())
}

/// Creates two stacks on a virtual clock.
fn virtual_world(v6: bool) -> (TestWorld, Clock) {
    virtual_world_with(pipe(1500).unwrap(), v6)
}

fn virtual_world_with((a, b): (PipeLink, PipeLink), v6: bool) -> (TestWorld, Clock) {
    let clock = Clock::virtual_time();
    let stack = |link, host| {
        let config = SmolConfig::new(address(host, v6), if v6 { 64 } else { 24 });
        SmolStack::with_clock(link, &config, clock.clone()).unwrap()
    };
    let world =
        TestWorld { stacks: [stack(a, 1), stack(b, 2)], events: [Vec::new(), Vec::new()], v6 };
    (world, clock)
}

/// Binds a socket at the address of a stack.
fn bind(world: &mut TestWorld, side: u8) -> Box<dyn DatagramSocket> {
    let at = SocketAddr::new(address(side + 1, world.v6), 0);
    let stack = &mut world.stacks[usize::from(side)];
    stack.bind_datagrams(at, &DatagramConfig::default(), Token(side.into())).unwrap()
}

/// A datagram to an address that no host has, such as a reply to a forged one, is lost together
/// with the datagrams behind it. The socket continues to work.
#[test]
fn unreachable_address_releases_socket() {
    for v6 in [false, true] {
        let (mut world, clock) = virtual_world(v6);
        let (mut one, mut other) = (bind(&mut world, 0), bind(&mut world, 1));
        let nobody = SocketAddr::new(address(77, v6), 9);
        // The socket is filled, and one more datagram is sent.
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

/// Carries frames from one pipe to the other. Returns the hop limits of datagrams to `port`.
fn carry(from: &mut PipeLink, to: &mut PipeLink, port: u16) -> Vec<u8> {
    let mut found = Vec::new();
    while let Some(mut frame) = from.receive() {
        let bytes = frame.bytes();
        let (hops, udp) = match bytes[12..14] {
            [8, 0] if bytes[23] == 17 => (bytes[22], 34),
            [0x86, 0xdd] if bytes[20] == 17 => (bytes[21], 54),
            _ => (0, 0),
        };
        if udp != 0 && bytes[udp + 2..udp + 4] == port.to_be_bytes() {
            found.push(hops);
        }
        to.transmit(bytes.len(), &mut |out| {
            out.copy_from_slice(bytes);
            None
        });
        from.recycle(frame);
    }
    to.flush();
    found
}

/// A smoltcp socket has one hop limit for all its datagrams, so a datagram with another one waits
/// for those before it.
#[test]
fn datagrams_have_their_hop_limits() {
    const PORT: u16 = 9;
    for v6 in [false, true] {
        let clock = Clock::virtual_time();
        let ((a, mut wire_a), (b, mut wire_b)) = (pipe(1500).unwrap(), pipe(1500).unwrap());
        let stack = |link, host| {
            let config = SmolConfig::new(address(host, v6), if v6 { 64 } else { 24 });
            SmolStack::with_clock(link, &config, clock.clone()).unwrap()
        };
        let (mut one, mut other) = (stack(a, 1), stack(b, 2));
        let from = SocketAddr::new(address(1, v6), 0);
        let mut socket = one.bind_datagrams(from, &DatagramConfig::default(), Token(1)).unwrap();
        socket.set_interest(Interest { read: false, write: true }).unwrap();
        let peer = SocketAddr::new(address(2, v6), PORT);
        let group: IpAddr = if v6 { "ff15::77:1" } else { "239.77.0.1" }.parse().unwrap();
        let group = SocketAddr::new(group, PORT);
        let to = |peer, hop_limit| Outgoing {
            hop_limit: NonZeroU8::new(hop_limit),
            ..Outgoing::new(peer, 4)
        };
        let mut send = |datagrams: &[Outgoing]| {
            socket.send(&[5; 64][..datagrams.len() * 4], datagrams).map_err(|error| error.kind())
        };
        let mut is_writable = || {
            let mut events = Vec::new();
            one.poll(&mut events).unwrap();
            events.iter().any(|event| event.writable)
        };
        // The address of the neighbour is not known yet.
        assert_eq!(send(&[to(peer, 0), to(peer, 0), to(peer, 3), to(peer, 0)]), Ok(2));
        assert_eq!(send(&[to(peer, 3)]), Err(ErrorKind::WouldBlock));
        assert!(!is_writable(), "there is room for another hop limit");
        let mut sent = carry(&mut wire_a, &mut wire_b, PORT);
        other.poll(&mut Vec::new()).unwrap();
        carry(&mut wire_b, &mut wire_a, PORT);
        assert!(is_writable(), "those in front have left");
        let datagrams =
            [to(peer, 3), to(peer, 3), to(peer, 255), to(peer, 0), to(group, 0), to(group, 7)];
        let mut rest = &datagrams[..];
        while !rest.is_empty() {
            rest = &rest[send(rest).expect("a neighbour that is known")..];
        }
        sent.extend(carry(&mut wire_a, &mut wire_b, PORT));
        assert_eq!(sent, [64, 64, 3, 3, 255, 64, 1, 7], "{v6}");
    }
}

/// Returns the datagrams that `socket` receives within a second of the stacks' time; nothing else
/// arrives.
fn received(world: &mut TestWorld, clock: &Clock, socket: &mut dyn DatagramSocket) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; DATAGRAM_BUFFER];
    let mut all = Vec::new();
    for _ in 0..20 {
        world.step();
        let mut incoming = Vec::new();
        if socket.recv(&mut buffer, &mut incoming).is_ok() {
            all.extend(incoming.iter().map(|datagram| buffer[datagram.bytes.clone()].to_vec()));
        }
        clock.advance(Duration::from_millis(50));
    }
    all
}

/// The engine sleeps until the deadline, or until the descriptor is readable.
#[test]
fn gone_link_leaves_nothing_due() {
    let (a, b) = pipe(1500).unwrap();
    let scissors = a.scissors();
    let (mut world, clock) = virtual_world_with((a, b), false);
    let options = DatagramConfig { member: Some(address(1, false)), ..DatagramConfig::default() };
    let group = "239.77.0.1:5041".parse().unwrap();
    let _member = world.stacks[0].bind_datagrams(group, &options, Token(1)).unwrap();
    let mut other = bind(&mut world, 1);
    send(&mut *other, group, b"unread").unwrap();
    assert!(world.stacks[0].deadline().is_some(), "membership queries");
    scissors.cut();
    for _ in 0..3 {
        world.step();
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(world.stacks[0].deadline(), None);
}

/// Long datagrams use up the bytes of a socket before its number of datagrams.
#[test]
fn socket_without_bytes_is_not_writable() {
    let (mut world, clock) = virtual_world_with(pipe(9000).unwrap(), false);
    let mut socket = bind(&mut world, 0);
    let nobody = SocketAddr::new(address(99, false), 4791);
    let full = (0..64).find_map(|_| send(&mut *socket, nobody, &[0; 8900]).err());
    assert_eq!(full, Some(ErrorKind::WouldBlock));
    socket.set_interest(Interest::BOTH).unwrap();
    world.step();
    assert_eq!(world.reported(0, 0), None);
    clock.advance(Duration::from_secs(4));
    world.step();
    assert!(world.reported(0, 0).is_some_and(|event| event.writable), "they were given up");
    send(&mut *socket, nobody, &[0; 8900]).unwrap();
}

#[test]
fn datagram_waits_for_slow_neighbour() {
    for v6 in [false, true] {
        let (mut world, clock) = virtual_world(v6);
        let (mut one, mut other) = (bind(&mut world, 0), bind(&mut world, 1));
        send(&mut *one, other.local_addr(), b"patient").unwrap();
        for _ in 0..30 {
            clock.advance(Duration::from_millis(50));
            world.stacks[0].poll(&mut Vec::new()).unwrap();
        }
        assert_eq!(received(&mut world, &clock, &mut *other), [b"patient"], "{v6}");
    }
}

/// Returns packets to groups that arrived at the other end of a stack's pipe: the MAC and IP
/// address of the destination, the protocol after extension headers, and the hop limit.
fn sent_to_groups(end: &mut PipeLink) -> Vec<([u8; 6], IpAddr, u8, u8)> {
    let mut packets = Vec::<([u8; 6], IpAddr, u8, u8)>::new();
    while let Some(mut frame) = end.receive() {
        let bytes = frame.bytes();
        let mac = bytes[..6].try_into().unwrap();
        match bytes[12..14] {
            [8, 0] => {
                let to = <[u8; 4]>::try_from(&bytes[30..34]).unwrap();
                packets.push((mac, to.into(), bytes[23], bytes[22]));
            }
            [0x86, 0xdd] => {
                let to = <[u8; 16]>::try_from(&bytes[38..54]).unwrap();
                let protocol = if bytes[20] == 0 { bytes[54] } else { bytes[20] };
                packets.push((mac, to.into(), protocol, bytes[21]));
            }
            _ => {}
        }
        end.recycle(frame);
    }
    packets.retain(|(_, to, ..)| to.is_multicast());
    packets
}

/// General membership query of IGMP version 2 (RFC 2236) with a response time of one second, as
/// sent by a router.
const QUERY: [u8; 42] = [
    0x01, 0x00, 0x5e, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0, 0, 28, 0, 0, 0x40, 0, 1, 2, 0x8f,
    0xcd, 10, 9, 0, 9, 224, 0, 0, 1, 0x11, 10, 0xee, 0xf5, 0, 0, 0, 0,
];

#[test]
fn group_datagrams_have_one_hop() {
    const IGMP: u8 = 2;
    const UDP: u8 = 17;
    const ICMPV6: u8 = 58;
    for v6 in [false, true] {
        let clock = Clock::virtual_time();
        let (a, mut wire) = pipe(1500).unwrap();
        let config = SmolConfig::new(address(1, v6), if v6 { 64 } else { 24 });
        let mut stack = SmolStack::with_clock(a, &config, clock.clone()).unwrap();
        let group: IpAddr = if v6 { "ff15::77:1" } else { "239.77.0.1" }.parse().unwrap();
        let mac = if v6 { [0x33, 0x33, 0, 0x77, 0, 1] } else { [1, 0, 0x5e, 77, 0, 1] };
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (report_to, leave_to, protocol) = if v6 {
            (ip("ff02::16"), ip("ff02::16"), ICMPV6)
        } else {
            (group, ip("224.0.0.2"), IGMP)
        };
        let from = SocketAddr::new(address(1, v6), 0);
        let mut sender = stack.bind_datagrams(from, &DatagramConfig::default(), Token(2)).unwrap();
        // Discards the packets to the groups of neighbour discovery.
        sent_to_groups(&mut wire);
        let options = DatagramConfig { member: Some(address(1, v6)), ..DatagramConfig::default() };
        let member =
            stack.bind_datagrams(SocketAddr::new(group, 5041), &options, Token(1)).unwrap();
        let reports = |packets: Vec<([u8; 6], IpAddr, u8, u8)>, to: IpAddr| {
            packets
                .iter()
                .filter(|(_, at, kind, hops)| (*at, *kind, *hops) == (to, protocol, 1))
                .count()
        };
        assert_eq!(reports(sent_to_groups(&mut wire), report_to), 1, "joined");
        send(&mut *sender, SocketAddr::new(group, 5041), b"one hop").unwrap();
        assert_eq!(sent_to_groups(&mut wire), [(mac, group, UDP, 1)]);
        if !v6 {
            wire.transmit(QUERY.len(), &mut |frame| {
                frame.copy_from_slice(&QUERY);
                None
            });
            wire.flush();
            stack.poll(&mut Vec::new()).unwrap();
            for _ in 0..20 {
                let due = stack.deadline().expect("the report is due");
                clock.advance(due.saturating_duration_since(clock.now()));
                stack.poll(&mut Vec::new()).unwrap();
            }
            assert_eq!(reports(sent_to_groups(&mut wire), report_to), 1, "asked");
        }
        drop(member);
        assert_eq!(reports(sent_to_groups(&mut wire), leave_to), 1, "left");
    }
}

#[test]
fn group_members_receive_datagrams() {
    const PORT: u16 = 5041;
    for v6 in [false, true] {
        let (mut world, clock) = virtual_world(v6);
        let group: IpAddr = if v6 { "ff15::77:1" } else { "239.77.0.1" }.parse().unwrap();
        let other: IpAddr = if v6 { "ff15::77:2" } else { "239.77.0.2" }.parse().unwrap();
        let mut join = |side: usize, group, token| {
            let member = Some(address(side as u8 + 1, v6));
            let options = DatagramConfig { member, ..DatagramConfig::default() };
            world.stacks[side]
                .bind_datagrams(SocketAddr::new(group, PORT), &options, Token(token))
                .unwrap()
        };
        let (mut there, mut too, mut stranger) =
            (join(1, group, 2), join(1, group, 3), join(1, other, 4));
        let mut here = join(0, group, 5);
        let from = SocketAddr::new(address(1, v6), 0);
        let mut sender =
            world.stacks[0].bind_datagrams(from, &DatagramConfig::default(), Token(6)).unwrap();
        let to = SocketAddr::new(group, PORT);
        send(&mut *sender, to, b"to all").unwrap();
        for member in [&mut there, &mut too, &mut here] {
            assert_eq!(received(&mut world, &clock, &mut **member), [b"to all"], "{v6}");
            assert_eq!(
                send(&mut **member, to, b"back"),
                Err(ErrorKind::InvalidInput),
                "a group is no sender"
            );
        }
        assert!(received(&mut world, &clock, &mut *stranger).is_empty(), "another group's");
        drop(there);
        send(&mut *sender, to, b"again").unwrap();
        assert_eq!(received(&mut world, &clock, &mut *too), [b"again"], "the other one stays");
        drop(too);
        send(&mut *sender, to, b"nobody").unwrap();
        assert!(received(&mut world, &clock, &mut *stranger).is_empty());
    }
}

#[test]
fn group_joined_at_stack_address() {
    let mut world = TestWorld::new(1500, false);
    let mut join = |member: Option<&str>| {
        let member = member.map(|member| member.parse().unwrap());
        let options = DatagramConfig { member, ..DatagramConfig::default() };
        let at = "239.77.0.1:5041".parse().unwrap();
        world.stacks[0]
            .bind_datagrams(at, &options, Token(1))
            .map(drop)
            .map_err(|error| error.kind())
    };
    assert_eq!(join(None), Err(ErrorKind::InvalidInput));
    assert_eq!(join(Some("fd00::1")), Err(ErrorKind::InvalidInput));
    assert_eq!(join(Some("10.9.0.77")), Err(ErrorKind::AddrNotAvailable));
    assert_eq!(join(Some("10.9.0.1")), Ok(()));
}

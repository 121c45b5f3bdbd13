//! Runs the conformance kit on every stack of this crate, and on stacks that violate one guarantee
//! each.

mod defects;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::time::Duration;
use uiw_impair::fault::{FaultHooks, Faults, Split};
use uiw_impair::wan::{Direction, Profile};
use uiw_interop::stock::Network as Namespaces;
use uiw_llp::capture::{CaptureStack, PcapSink};
use uiw_llp::tcp::TcpStack;
use uiw_llp::{Clock, ListenConfig, Token, TransportConfig, TransportStack};
use uiw_smol::packet::PacketLink;
use uiw_smol::pipe::{PipeLink, pipe};
use uiw_smol::{SmolConfig, SmolStack};
use uiw_testkit::conformance::{self, Peers, Report};
use uiw_testkit::sim::{Link, Network};
use uiw_tls::{PinnedKeys, SecretKey, Tls, TlsConfig, TlsStack};

/// Checks that need a descriptor.
const DESCRIPTOR: &[&str] = &[
    "same_descriptor",
    "idle_descriptor",
    "woken_by_connection",
    "woken_by_bytes",
    "woken_by_fin",
    "woken_by_reset",
    "woken_by_interest",
    "woken_by_accept",
    "recv_wakes_for_others",
    "descriptor_of_the_driver",
];
const DATAGRAMS: &[&str] = &[
    "datagram_ports",
    "datagram_both_ways",
    "datagram_boundaries",
    "datagram_interest",
    "datagram_closed",
];
const TO_ITSELF: &[&str] = &["to_itself"];
const NO_SOCKET: &[&str] = &["take_socket"];
const READABLE: &[&str] = &["readable", "readable_has_room"];
const PEEKS: &[&str] = &[
    "peek_takes_nothing",
    "peek_and_consume",
    "peek_and_wait",
    "peek_at_the_fin",
    "peek_round_the_buffer",
];
const NO_SHARDS: &[&str] = &["without_shards"];
const SHARDS: &[&str] = &[
    "shard_of_its_own",
    "shard_outlives",
    "move_accepted",
    "move_wakes",
    "move_keeps_interest",
    "move_connecting",
    "move_with_fin",
    "move_back",
    "drop_detached",
    "refused_adoption",
    "shards_at_once",
];

/// Checks that all checks pass, except those for abilities that the stack does not have.
fn conforms(peers: impl FnMut() -> io::Result<Peers>, without: &[&[&str]]) {
    let report: Report = conformance::run(peers);
    assert!(report.is_conforming(), "{report}");
    let not_offered: Vec<_> = report.not_offered().collect();
    assert_eq!(not_offered, without.concat(), "{report}");
}

fn kernel(ip: IpAddr) -> io::Result<Peers> {
    Ok(Peers::new((TcpStack::new()?, ip), (TcpStack::new()?, ip)))
}

#[test]
fn kernel_tcp() {
    conforms(|| kernel(Ipv4Addr::LOCALHOST.into()), &[PEEKS, NO_SHARDS]);
}

#[test]
fn kernel_tcp_over_ipv6() {
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return uiw_interop::skip("IPv6");
    }
    conforms(|| kernel(Ipv6Addr::LOCALHOST.into()), &[PEEKS, NO_SHARDS]);
}

#[test]
fn kernel_mptcp() {
    if let Err(error) = TcpStack::multipath() {
        return uiw_interop::skip(&format!("MPTCP: {error}"));
    }
    let ip = Ipv4Addr::LOCALHOST;
    let multipath = || TcpStack::multipath().map(|stack| (stack, ip));
    conforms(|| Ok(Peers::new(multipath()?, multipath()?)), &[PEEKS, NO_SHARDS]);
    // The peer uses plain TCP, in both roles.
    conforms(|| Ok(Peers::new(multipath()?, (TcpStack::new()?, ip))), &[PEEKS, NO_SHARDS]);
    conforms(|| Ok(Peers::new((TcpStack::new()?, ip), multipath()?)), &[PEEKS, NO_SHARDS]);
}

#[test]
fn kernel_tcp_captured() {
    let stack = || -> io::Result<_> {
        Ok(CaptureStack::new(
            Box::new(TcpStack::new()?),
            PcapSink::new(Box::new(io::sink()))?,
            "one",
        ))
    };
    let ip = Ipv4Addr::LOCALHOST;
    conforms(|| Ok(Peers::new((stack()?, ip), (stack()?, ip))), &[PEEKS, NO_SHARDS]);
}

#[test]
fn kernel_tcp_in_small_pieces() {
    let faults = Faults {
        send_split: Split::Random(900),
        recv_split: Split::Random(900),
        ..Faults::default()
    };
    let stack =
        || -> io::Result<_> { Ok(FaultHooks::wrap(Box::new(TcpStack::new()?), 1, faults.clone())) };
    let ip = Ipv4Addr::LOCALHOST;
    conforms(|| Ok(Peers::new((stack()?, ip), (stack()?, ip))), &[PEEKS, NO_SHARDS]);
}

fn config(host: u8, v6: bool) -> SmolConfig {
    SmolConfig::new(address(host, v6), if v6 { 64 } else { 24 })
}

fn address(host: u8, v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host.into()).into()
    } else {
        [10, 9, 0, host].into()
    }
}

fn smoltcp((a, b): (PipeLink, PipeLink), clock: &Clock, v6: bool) -> io::Result<Peers> {
    let stack = |link, host| SmolStack::with_clock(link, &config(host, v6), clock.clone());
    Ok(Peers::new((stack(a, 1)?, address(1, v6)), (stack(b, 2)?, address(2, v6))))
}

#[test]
fn smoltcp_over_a_pipe() {
    conforms(
        || smoltcp(pipe(1500)?, &Clock::system(), false),
        &[TO_ITSELF, NO_SOCKET, READABLE, SHARDS],
    );
}

#[test]
fn smoltcp_over_a_pipe_and_ipv6() {
    conforms(
        || smoltcp(pipe(9000)?, &Clock::system(), true),
        &[TO_ITSELF, NO_SOCKET, READABLE, SHARDS],
    );
}

#[test]
fn smoltcp_over_rough_virtual_path() {
    let rough = Profile {
        delay: Duration::from_millis(3),
        rate: Some(1_000_000_000),
        loss: 0.003,
        reorder: 0.003,
        ..Profile::default()
    };
    let mut seed = 0;
    let peers = || {
        let clock = Clock::virtual_time();
        let (a, b) = pipe(1500)?;
        let mut through = |end: PipeLink| {
            seed += 1;
            Ok::<_, io::Error>(
                end.through(Direction::new(&rough, seed).map_err(io::Error::other)?, &clock),
            )
        };
        let peers = smoltcp((through(a)?, through(b)?), &clock, false)?;
        Ok(peers.with_clock(move |deadline| {
            if let Some(deadline) = deadline {
                clock.advance(deadline.saturating_duration_since(clock.now()));
            }
        }))
    };
    conforms(peers, &[DESCRIPTOR, TO_ITSELF, NO_SOCKET, READABLE, SHARDS]);
}

/// Two interfaces with a virtual cable between them, if they can be created.
#[test]
fn smoltcp_over_packet() {
    let Some(namespaces) = Namespaces::veth() else { return };
    let (ours, theirs): (IpAddr, IpAddr) = ([10, 77, 0, 12].into(), [10, 77, 0, 11].into());
    let (here, there) = (SmolConfig::new(ours, 24), SmolConfig::new(theirs, 24));
    let peers = || {
        let client = namespaces.inside_client(|| PacketLink::open("veth0", &here))?;
        let server = namespaces.inside_server(|| PacketLink::open("veth0", &there))?;
        Ok(Peers::new(
            (SmolStack::new(client, &here)?, ours),
            (SmolStack::new(server, &there)?, theirs),
        ))
    };
    conforms(peers, &[TO_ITSELF, NO_SOCKET, READABLE, SHARDS]);
}

fn simulated(link: &Link) -> Peers {
    let (a, b) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let network = Network::new(1);
    network.set_default_link(link.clone());
    let peers = Peers::new((network.stack(a), a), (network.stack(b), b));
    peers.with_clock(move |_| {
        network.step();
    })
}

#[test]
fn simulated_stack() {
    conforms(|| Ok(simulated(&Link::default())), &[DESCRIPTOR, NO_SOCKET, PEEKS, SHARDS]);
}

#[test]
fn simulated_stack_with_latency() {
    let link = Link {
        latency: Duration::from_millis(5),
        capacity: 10_000,
        send_split: Split::Random(700),
        recv_split: Split::Random(700),
        ..Link::default()
    };
    conforms(|| Ok(simulated(&link)), &[DESCRIPTOR, NO_SOCKET, PEEKS, SHARDS]);
}

/// Returns the configurations of two peers that accept each other.
fn tls_pair() -> io::Result<[Tls; 2]> {
    let keys = [SecretKey::generate(), SecretKey::generate()];
    let [a, b] = keys.map(|key| key.expect("a key"));
    let tls = |own: &SecretKey, peer: &SecretKey| {
        let mut pinned = PinnedKeys::default();
        pinned.add(peer.public_key(), "peer");
        Tls::new(TlsConfig::raw_keys(own, pinned).expect("a configuration"))
            .map_err(io::Error::other)
    };
    Ok([tls(&a, &b)?, tls(&b, &a)?])
}

/// Returns [`Peers`] of a kind, with TLS on top.
fn encrypted(
    a: (Box<dyn TransportStack>, IpAddr),
    b: (Box<dyn TransportStack>, IpAddr),
) -> io::Result<Peers> {
    let [client, server] = tls_pair()?;
    Ok(Peers::new((TlsStack::new(a.0, &client)?, a.1), (TlsStack::new(b.0, &server)?, b.1)))
}

#[test]
fn tls_over_kernel_tcp() {
    let ip = Ipv4Addr::LOCALHOST.into();
    let stack = || -> io::Result<Box<dyn TransportStack>> { Ok(Box::new(TcpStack::new()?)) };
    conforms(
        || encrypted((stack()?, ip), (stack()?, ip)),
        &[NO_SOCKET, READABLE, PEEKS, NO_SHARDS, DATAGRAMS],
    );
}

#[test]
fn tls_over_fragmented_kernel_tcp() {
    let faults = Faults {
        send_split: Split::Random(900),
        recv_split: Split::Random(900),
        ..Faults::default()
    };
    let stack = || -> io::Result<Box<dyn TransportStack>> {
        Ok(Box::new(FaultHooks::wrap(Box::new(TcpStack::new()?), 1, faults.clone())))
    };
    let ip = Ipv4Addr::LOCALHOST.into();
    conforms(
        || encrypted((stack()?, ip), (stack()?, ip)),
        &[NO_SOCKET, READABLE, PEEKS, NO_SHARDS, DATAGRAMS],
    );
}

/// Both ends are in one process, so they find each other and nothing is encrypted.
#[test]
fn tls_to_the_same_process() {
    let ip = Ipv4Addr::LOCALHOST;
    let peers = || {
        let [tls, _] = tls_pair()?;
        let stack = TlsStack::new(Box::new(TcpStack::new()?), &tls)?;
        let other = TlsStack::new(Box::new(TcpStack::new()?), &tls)?;
        Ok(Peers::new((stack, ip), (other, ip)))
    };
    conforms(peers, &[NO_SOCKET, READABLE, PEEKS, NO_SHARDS, DATAGRAMS]);
}

#[test]
fn tls_over_smoltcp() {
    let peers = || {
        let (a, b) = pipe(1500)?;
        let stack = |link, host| -> io::Result<(Box<dyn TransportStack>, IpAddr)> {
            let stack = SmolStack::with_clock(link, &config(host, false), Clock::system())?;
            Ok((Box::new(stack), address(host, false)))
        };
        encrypted(stack(a, 1)?, stack(b, 2)?)
    };
    conforms(peers, &[TO_ITSELF, NO_SOCKET, READABLE, PEEKS, SHARDS, DATAGRAMS]);
}

fn simulated_tls(link: &Link) -> io::Result<Peers> {
    let (a, b) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let network = Network::new(1);
    network.set_default_link(link.clone());
    let peers =
        encrypted((Box::new(network.stack(a)), a.into()), (Box::new(network.stack(b)), b.into()))?;
    Ok(peers.with_clock(move |_| {
        network.step();
    }))
}

#[test]
fn tls_over_the_simulated_stack() {
    conforms(
        || simulated_tls(&Link::default()),
        &[DESCRIPTOR, NO_SOCKET, READABLE, PEEKS, SHARDS, DATAGRAMS],
    );
}

#[test]
fn tls_over_simulated_stack_with_latency() {
    let link = Link {
        latency: Duration::from_millis(5),
        capacity: 10_000,
        send_split: Split::Random(700),
        recv_split: Split::Random(700),
        ..Link::default()
    };
    conforms(|| simulated_tls(&link), &[DESCRIPTOR, NO_SOCKET, READABLE, PEEKS, SHARDS, DATAGRAMS]);
}

/// The packets of two stacks that are not the kernel's may be on a wire, so they are encrypted
/// although both ends are in one process and use the same key, which is not pinned here.
#[test]
fn stacks_of_one_process_do_not_trust_addresses() {
    let [tls, _] = tls_pair().unwrap();
    let network = Network::new(1);
    let [a, b] = [1, 2].map(|host| Ipv4Addr::new(10, 0, 0, host));
    let mut server = TlsStack::new(Box::new(network.stack(b)), &tls).unwrap();
    let mut client = TlsStack::new(Box::new(network.stack(a)), &tls).unwrap();
    let mut listener = server.listen((b, 0).into(), &ListenConfig::default(), Token(1)).unwrap();
    let to = listener.local_addr();
    let mut stream = client.connect(None, to, &TransportConfig::default(), Token(2)).unwrap();
    let error = (0..1000).find_map(|_| {
        network.step();
        for stack in [&mut server, &mut client] {
            stack.poll(&mut Vec::new()).unwrap();
        }
        assert!(listener.accept(Token(3)).is_err());
        stream.connect_result().err()
    });
    assert!(error.is_some(), "the peer's key is not pinned");
    assert_eq!(stream.peer_identity(), None);
}

/// Properties on which a test harness may rely.
#[test]
fn names_unique_and_promises_sentences() {
    let mut names: Vec<_> = conformance::checks().map(conformance::Check::name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(conformance::checks().all(|check| check.promise().len() > 20));
}

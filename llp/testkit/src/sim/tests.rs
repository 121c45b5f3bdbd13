use std::{io::ErrorKind, net::Ipv4Addr};

use super::*;

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const LISTENER: Token = Token(1);
const CLIENT: Token = Token(2);
const SERVER: Token = Token(3);
const MS: Duration = Duration::from_millis(1);

struct SimPair {
    network: Network,
    a: SimStack,
    b: SimStack,
    client: Box<dyn TransportStream>,
    server: Box<dyn TransportStream>,
    listener: Box<dyn TransportListener>,
}

impl SimPair {
    fn new() -> Self {
        Self::with(1, Link::default())
    }

    fn with(seed: u64, link: Link) -> Self {
        let network = Network::new(seed);
        network.set_default_link(link);
        let (mut a, mut b) = (network.stack(A), network.stack(B));
        let mut listener = b.listen((B, 0).into(), &ListenConfig::default(), LISTENER).unwrap();
        let mut client =
            a.connect(None, listener.local_addr(), &TransportConfig::default(), CLIENT).unwrap();
        while network.step() {}
        assert!(client.connect_result().unwrap());
        let server = listener.accept(SERVER).unwrap();
        Self { network, a, b, client, server, listener }
    }
}

fn events(stack: &mut SimStack) -> Vec<(u64, bool, bool)> {
    let mut events = Vec::new();
    stack.poll(&mut events).unwrap();
    events.iter().map(|e| (e.token.0, e.readable, e.writable)).collect()
}

fn send(stream: &mut dyn TransportStream, bytes: &[u8]) -> io::Result<usize> {
    stream.send(&[IoVec::from(bytes)])
}

fn recv(stream: &mut dyn TransportStream, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let n = stream.recv(&mut [IoVecMut::from(&mut bytes[..])])?;
    bytes.truncate(n);
    Ok(bytes)
}

fn kind<T>(result: io::Result<T>) -> ErrorKind {
    result.map(drop).expect_err("an error was due").kind()
}

#[test]
fn connection_takes_round_trips() {
    let network = Network::new(1);
    network.set_default_link(Link { latency: 5 * MS, ..Link::default() });
    let (mut a, mut b) = (network.stack(A), network.stack(B));
    let began = network.now();
    let mut listener = b.listen((B, 4791).into(), &ListenConfig::default(), LISTENER).unwrap();
    let mut client =
        a.connect(None, (B, 4791).into(), &TransportConfig::default(), CLIENT).unwrap();
    assert_eq!(kind(send(&mut *client, b"early")), ErrorKind::WouldBlock);
    assert_eq!(kind(recv(&mut *client, 1)), ErrorKind::WouldBlock);
    network.advance(9 * MS);
    assert!(!client.connect_result().unwrap());
    assert_eq!((events(&mut a), events(&mut b)), (vec![], vec![]));
    assert_eq!(a.deadline(), Some(began + 10 * MS));
    network.advance(MS);
    assert_eq!(events(&mut a), [(2, false, true)]);
    assert!(client.connect_result().unwrap());
    assert_eq!(kind(listener.accept(SERVER)), ErrorKind::WouldBlock);
    assert!(network.step());
    assert_eq!(network.now(), began + 15 * MS);
    assert_eq!(events(&mut b), [(1, true, false)]);
    let server = listener.accept(SERVER).unwrap();
    assert_eq!(events(&mut b), []);
    assert_eq!(
        (server.peer_addr(), server.local_addr()),
        (client.local_addr(), client.peer_addr())
    );
    assert!(!network.step() && network.next_event().is_none());
    assert!(a.wait_fd().is_none() && a.deadline().is_none());
}

#[test]
fn closed_port_or_full_queue_refuses() {
    let network = Network::new(1);
    let (mut a, mut b) = (network.stack(A), network.stack(B));
    let options = TransportConfig::default();
    let mut none = a.connect(None, (B, 1).into(), &options, CLIENT).unwrap();
    assert_eq!(events(&mut a), [(2, true, true)]);
    for _ in 0..2 {
        assert_eq!(kind(none.connect_result()), ErrorKind::ConnectionRefused);
    }
    let listen = ListenConfig { backlog: 1, ..ListenConfig::default() };
    let listener = b.listen((B, 7).into(), &listen, LISTENER).unwrap();
    let mut first = a.connect(None, (B, 7).into(), &options, CLIENT).unwrap();
    let mut second = a.connect(None, (B, 7).into(), &options, CLIENT).unwrap();
    assert!(first.connect_result().unwrap());
    assert_eq!(kind(second.connect_result()), ErrorKind::ConnectionRefused);
    // Dropping a listener resets connections that were not accepted.
    drop(listener);
    assert_eq!(kind(recv(&mut *first, 1)), ErrorKind::ConnectionReset);
}

#[test]
fn addresses_are_checked() {
    let network = Network::new(1);
    let mut b = network.stack(B);
    let options = ListenConfig::default();
    let any = b.listen((Ipv4Addr::UNSPECIFIED, 7).into(), &options, LISTENER).unwrap();
    assert_eq!(any.local_addr(), (B, 7).into());
    assert_eq!(kind(b.listen((B, 7).into(), &options, LISTENER)), ErrorKind::AddrInUse);
    assert_eq!(kind(b.listen((A, 7).into(), &options, LISTENER)), ErrorKind::AddrNotAvailable);
    drop(any);
    let again = b.listen((B, 7).into(), &options, LISTENER).unwrap();
    let one = b.listen((B, 0).into(), &options, LISTENER).unwrap();
    let two = b.listen((B, 0).into(), &options, LISTENER).unwrap();
    assert!(one.local_addr() != two.local_addr() && one.local_addr() != again.local_addr());
}

#[test]
fn bytes_arrive_in_order_and_time() {
    let SimPair { network, mut a, mut b, mut client, mut server, listener: _listener } =
        SimPair::with(1, Link { latency: 2 * MS, ..Link::default() });
    assert_eq!(client.send(&[&b"one "[..], b"two"].map(IoVec::from)).unwrap(), 7);
    network.advance(MS);
    // A faster link does not let later data overtake.
    network.set_link(A, B, Link::default());
    send(&mut *client, b" three").unwrap();
    assert_eq!(events(&mut b), []);
    network.advance(MS);
    assert_eq!(events(&mut b), [(3, true, false)]);
    assert_eq!(recv(&mut *server, 5).unwrap(), b"one t");
    assert_eq!(events(&mut b), [(3, true, false)], "level-triggered");
    assert_eq!(recv(&mut *server, 50).unwrap(), b"wo three");
    assert_eq!(kind(recv(&mut *server, 50)), ErrorKind::WouldBlock);
    server.set_interest(Interest::BOTH).unwrap();
    assert_eq!(events(&mut b), [(3, false, true)]);
    client.set_interest(Interest::NONE).unwrap();
    assert_eq!(events(&mut a), []);
    let info = client.info();
    assert_eq!((info.bytes_acked, info.rtt_us, info.emss), (Some(13), Some(2000), Some(1448)));
    assert_eq!(server.info().bytes_received, Some(13));
}

#[test]
fn full_pipe_blocks() {
    let SimPair { mut a, mut client, mut server, .. } =
        SimPair::with(1, Link { capacity: 10, ..Link::default() });
    assert_eq!(send(&mut *client, &[1; 8]).unwrap(), 8);
    assert_eq!(send(&mut *client, &[2; 8]).unwrap(), 2);
    assert_eq!(kind(send(&mut *client, &[3; 8])), ErrorKind::WouldBlock);
    assert_eq!(events(&mut a), []);
    assert_eq!(recv(&mut *server, 9).unwrap().len(), 9);
    assert_eq!(events(&mut a), [(2, false, true)]);
    assert_eq!(send(&mut *client, &[3; 80]).unwrap(), 9);
}

#[test]
fn splits() {
    let link = Link { send_split: Split::Fixed(1), recv_split: Split::Fixed(3), ..Link::default() };
    let SimPair { mut client, mut server, .. } = SimPair::with(1, link);
    for byte in b"12345" {
        assert_eq!(send(&mut *client, &[*byte, 0, 0]).unwrap(), 1);
    }
    assert_eq!(recv(&mut *server, 50).unwrap(), b"123");
    assert_eq!(recv(&mut *server, 1).unwrap(), b"4");
    let random = Link { send_split: Split::Random(9), ..Link::default() };
    let lens = |seed| {
        let mut pair = SimPair::with(seed, random.clone());
        (0..40).map(|_| send(&mut *pair.client, &[0; 100]).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(lens(7), lens(7));
    assert_ne!(lens(7), lens(8));
    assert!(lens(7).iter().all(|len| (1..=9).contains(len)));
    assert!((1..=9).all(|len| lens(7).contains(&len)), "{:?}", lens(7));
}

#[test]
fn stall_loses_nothing() {
    let SimPair { network, mut client, mut server, .. } =
        SimPair::with(1, Link { latency: MS, ..Link::default() });
    network.stall(A, B, true);
    send(&mut *client, b"kept").unwrap();
    client.shutdown().unwrap();
    network.advance(100 * MS);
    assert!(!network.step());
    assert_eq!(kind(recv(&mut *server, 9)), ErrorKind::WouldBlock);
    send(&mut *server, b"back").unwrap();
    network.advance(MS);
    assert_eq!(recv(&mut *client, 9).unwrap(), b"back", "the other direction goes on");
    network.stall(A, B, false);
    assert_eq!(recv(&mut *server, 9).unwrap(), b"kept");
    assert_eq!(recv(&mut *server, 9).unwrap(), b"");
}

#[test]
fn cut_resets_after_byte() {
    let SimPair { network, mut a, mut b, mut client, mut server, .. } = SimPair::new();
    network.change_link(A, B, |link| link.cut_at = Some(5));
    assert_eq!(send(&mut *client, b"123").unwrap(), 3);
    assert_eq!(send(&mut *client, b"45678").unwrap(), 2);
    assert_eq!(kind(send(&mut *client, b"678")), ErrorKind::ConnectionReset);
    assert_eq!(kind(recv(&mut *client, 1)), ErrorKind::ConnectionReset);
    assert_eq!(events(&mut a), [(2, true, true)]);
    assert_eq!(events(&mut b), [(3, true, true)]);
    assert_eq!(recv(&mut *server, 9).unwrap(), b"12345");
    assert_eq!(kind(recv(&mut *server, 9)), ErrorKind::ConnectionReset);
    assert_eq!(kind(send(&mut *server, b"x")), ErrorKind::ConnectionReset);
}

#[test]
fn cut_at_once_and_at_zero() {
    let SimPair { network, mut client, mut server, .. } = SimPair::new();
    network.cut(B, A);
    assert_eq!(kind(recv(&mut *client, 1)), ErrorKind::ConnectionReset);
    assert_eq!(kind(send(&mut *server, b"x")), ErrorKind::ConnectionReset);
    let SimPair { mut client, mut server, .. } =
        SimPair::with(1, Link { cut_at: Some(0), ..Link::default() });
    assert_eq!(kind(send(&mut *client, b"x")), ErrorKind::ConnectionReset);
    assert_eq!(kind(recv(&mut *server, 1)), ErrorKind::ConnectionReset);
}

#[test]
fn fin_at_byte_hides_rest() {
    let SimPair { network, mut client, mut server, .. } = SimPair::new();
    network.change_link(A, B, |link| link.fin_at = Some(4));
    assert_eq!(send(&mut *client, b"123456").unwrap(), 6);
    assert_eq!(send(&mut *client, b"789").unwrap(), 3);
    assert_eq!(recv(&mut *server, 9).unwrap(), b"1234");
    assert_eq!(recv(&mut *server, 9).unwrap(), b"");
}

#[test]
fn shutdown_abort_and_drop() {
    let SimPair { mut client, mut server, .. } = SimPair::new();
    send(&mut *client, b"last").unwrap();
    client.shutdown().unwrap();
    client.shutdown().unwrap();
    assert_eq!(kind(send(&mut *client, b"x")), ErrorKind::BrokenPipe);
    assert_eq!(recv(&mut *server, 9).unwrap(), b"last");
    assert_eq!(recv(&mut *server, 9).unwrap(), b"");
    send(&mut *server, b"reply").unwrap();
    assert_eq!(recv(&mut *client, 9).unwrap(), b"reply");
    server.abort();
    assert_eq!(kind(recv(&mut *client, 1)), ErrorKind::ConnectionReset);
    assert_eq!(kind(recv(&mut *server, 1)), ErrorKind::NotConnected);
    assert_eq!(kind(server.shutdown()), ErrorKind::NotConnected);

    let SimPair { mut client, server, .. } = SimPair::new();
    drop(server);
    assert_eq!(recv(&mut *client, 1).unwrap(), b"", "a clean close is a FIN");
    let SimPair { mut b, mut client, server, .. } = SimPair::new();
    send(&mut *client, b"unread").unwrap();
    assert_eq!(events(&mut b), [(3, true, false)]);
    drop(server);
    assert_eq!(kind(recv(&mut *client, 1)), ErrorKind::ConnectionReset, "bytes were thrown away");
}

#[test]
fn bytes_for_closed_end_reset() {
    let SimPair { network, mut a, mut client, server, .. } = SimPair::new();
    drop(server);
    send(&mut *client, b"dropped").unwrap();
    while network.step() {}
    assert_eq!(events(&mut a), [(2, true, true)]);
    assert_eq!(kind(send(&mut *client, b"x")), ErrorKind::ConnectionReset);
}

#[test]
fn abandoned_attempt_removed() {
    let network = Network::new(1);
    network.set_default_link(Link { latency: MS, ..Link::default() });
    let (mut a, mut b) = (network.stack(A), network.stack(B));
    let mut listener = b.listen((B, 7).into(), &ListenConfig::default(), LISTENER).unwrap();
    drop(a.connect(None, (B, 7).into(), &TransportConfig::default(), CLIENT).unwrap());
    while network.step() {}
    assert_eq!(kind(listener.accept(SERVER)), ErrorKind::WouldBlock, "given up before it arrived");
    let late = a.connect(None, (B, 7).into(), &TransportConfig::default(), CLIENT).unwrap();
    network.advance(MS);
    drop(late);
    while network.step() {}
    let mut server = listener.accept(SERVER).unwrap();
    assert_eq!(kind(recv(&mut *server, 1)), ErrorKind::ConnectionReset);
}

#[test]
fn nothing_is_left_of_closed_connections() {
    let SimPair { network, client, server, listener, .. } = SimPair::new();
    assert_eq!(network.lock().ends(), 2);
    drop(client);
    drop(server);
    drop(listener);
    assert_eq!(network.lock().ends(), 0);
}

#[test]
fn two_stacks_may_share_an_address() {
    let network = Network::new(1);
    let (mut one, mut two) = (network.stack(A), network.stack(A));
    let mut listener = two.listen((A, 7).into(), &ListenConfig::default(), LISTENER).unwrap();
    let _client = one.connect(None, (A, 7).into(), &TransportConfig::default(), CLIENT).unwrap();
    assert_eq!(events(&mut two), [(1, true, false)]);
    assert_eq!(events(&mut one), [(2, false, true)]);
    listener.accept(SERVER).unwrap();
}

#[test]
fn loopback_stream_receives_own_bytes() {
    let network = Network::new(1);
    network.set_default_link(Link { latency: MS, capacity: 4, ..Link::default() });
    let mut stack = network.stack(A);
    let options = TransportConfig::default();
    let mut stream = stack.connect_self((A, 0).into(), &options, CLIENT).unwrap();
    assert_eq!(stream.local_addr(), stream.peer_addr());
    assert!(!stream.connect_result().unwrap(), "its SYN is under way");
    network.advance(MS);
    assert!(stream.connect_result().unwrap());
    assert_eq!(events(&mut stack), [(CLIENT.0, false, true)]);
    assert_eq!(
        kind(stack.connect_self(stream.local_addr(), &options, SERVER)),
        ErrorKind::AddrInUse
    );

    assert_eq!(send(&mut *stream, b"bytes").unwrap(), 4, "the capacity");
    assert_eq!(kind(send(&mut *stream, b"s")), ErrorKind::WouldBlock);
    assert_eq!(kind(recv(&mut *stream, 8)), ErrorKind::WouldBlock, "they are under way");
    network.advance(MS);
    assert_eq!(recv(&mut *stream, 8).unwrap(), b"byte");
    assert_eq!(send(&mut *stream, b"s").unwrap(), 1, "its reader has made room");
    stream.shutdown().unwrap();
    network.advance(MS);
    assert_eq!(recv(&mut *stream, 8).unwrap(), b"s");
    assert_eq!(recv(&mut *stream, 8).unwrap(), b"", "its own FIN");
    drop(stream);
    assert_eq!(network.lock().ends(), 0);

    let mut stream = stack.connect_self((A, 0).into(), &options, CLIENT).unwrap();
    network.advance(MS);
    stream.abort();
    assert_eq!(kind(recv(&mut *stream, 8)), ErrorKind::NotConnected);
    drop(stream);
    assert_eq!(network.lock().ends(), 0);
}

/// A caller that tries again from the same address still has its previous stream.
#[test]
fn aborted_stream_releases_addresses() {
    let network = Network::new(1);
    let (mut a, mut b) = (network.stack(A), network.stack(B));
    let (from, to) = ((A, 5000).into(), (B, 4791).into());
    let options = TransportConfig::default();
    let mut refused = a.connect(Some(from), to, &options, CLIENT).unwrap();
    while network.step() {}
    assert_eq!(kind(refused.connect_result()), ErrorKind::ConnectionRefused);
    assert_eq!(kind(a.connect(Some(from), to, &options, CLIENT)), ErrorKind::AddrInUse);
    refused.abort();
    let _listener = b.listen(to, &ListenConfig::default(), LISTENER).unwrap();
    let mut again = a.connect(Some(from), to, &options, CLIENT).unwrap();
    drop(refused);
    while network.step() {}
    assert!(again.connect_result().unwrap());
}

/// The stream is aborted while its request is in transit, and while the answer is.
#[test]
fn abort_ends_connection_attempt() {
    for (listens, ms) in [(false, 0), (false, 7), (true, 0), (true, 7)] {
        let network = Network::new(1);
        network.set_default_link(Link { latency: 5 * MS, ..Link::default() });
        let (mut a, mut b) = (network.stack(A), network.stack(B));
        let to = (B, 4791).into();
        let mut listener =
            listens.then(|| b.listen(to, &ListenConfig::default(), LISTENER).unwrap());
        let mut client = a.connect(None, to, &TransportConfig::default(), CLIENT).unwrap();
        network.advance(ms * MS);
        client.abort();
        while network.step() {}
        assert_eq!(kind(client.connect_result()), ErrorKind::NotConnected, "{listens} {ms}");
        assert_eq!(events(&mut a), []);
        match listener.as_mut().map(|listener| listener.accept(SERVER)) {
            Some(Ok(mut server)) => {
                assert_eq!(kind(recv(&mut *server, 9)), ErrorKind::ConnectionReset);
            }
            Some(Err(error)) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            None => {}
        }
    }
}

#[test]
fn reset_end_delivers_earlier_bytes() {
    let mut pair = SimPair::with(1, Link { latency: 5 * MS, ..Link::default() });
    let (local, peer) = (pair.client.local_addr(), pair.client.peer_addr());
    assert_eq!(pair.network.connections(A, B), [(local, peer)]);
    send(&mut *pair.client, b"late").unwrap();
    pair.network.delay(peer, local, 100 * MS);
    pair.network.reset_end(local, peer);
    assert_eq!(kind(recv(&mut *pair.client, 1)), ErrorKind::ConnectionReset);
    assert_eq!(pair.network.connections(A, B), []);
    pair.network.advance(104 * MS);
    assert_eq!(kind(recv(&mut *pair.server, 9)), ErrorKind::WouldBlock);
    pair.network.advance(MS);
    assert_eq!(recv(&mut *pair.server, 9).unwrap(), b"late");
    assert_eq!(kind(recv(&mut *pair.server, 9)), ErrorKind::WouldBlock, "it is not notified");
    pair.client.abort();
    pair.network.advance(10 * MS);
    assert_eq!(kind(recv(&mut *pair.server, 9)), ErrorKind::WouldBlock, "nor by the end itself");
    // When the end is closed, TCP answers received data with a reset.
    drop(pair.client);
    send(&mut *pair.server, b"answer").unwrap();
    pair.network.advance(10 * MS);
    assert_eq!(kind(recv(&mut *pair.server, 9)), ErrorKind::ConnectionReset);
}

#[test]
fn delayed_bytes_not_overtaken() {
    let mut pair = SimPair::with(1, Link { latency: 5 * MS, ..Link::default() });
    let (local, peer) = (pair.server.local_addr(), pair.server.peer_addr());
    send(&mut *pair.client, b"one ").unwrap();
    pair.network.delay(local, peer, 100 * MS);
    send(&mut *pair.client, b"two").unwrap();
    pair.network.advance(104 * MS);
    assert_eq!(kind(recv(&mut *pair.server, 9)), ErrorKind::WouldBlock);
    pair.network.advance(MS);
    assert_eq!(recv(&mut *pair.server, 9).unwrap(), b"one two");
}

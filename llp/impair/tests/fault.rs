//! Injected faults on the simulated network and on the kernel's TCP.

use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;

use uiw_impair::fault::{FaultHooks, FaultStack, Faults, Flip, Split};
use uiw_llp::tcp::TcpStack;
use uiw_llp::wrap::Origin;
use uiw_llp::{
    Event, ListenConfig, StackExtensions, Token, TransportConfig, TransportListener,
    TransportStack, TransportStream,
};
use uiw_mem::{IoVec, IoVecMut};
use uiw_testkit::sim::Network;

const IP: Ipv4Addr = Ipv4Addr::LOCALHOST;
const LISTENER: Token = Token(1);
const CLIENT: Token = Token(2);
const SERVER: Token = Token(3);

struct FaultPair {
    stack: FaultStack,
    client: Box<dyn TransportStream>,
    server: Box<dyn TransportStream>,
    _listener: Box<dyn TransportListener>,
}

/// Returns a pair whose connecting end has the faults.
fn pair_on(inner: Box<dyn TransportStack>, faults: Faults) -> FaultPair {
    let plan = move |origin, number| {
        assert_eq!(number, u64::from(origin == Origin::Accepted));
        if origin == Origin::Connected { faults.clone() } else { Faults::default() }
    };
    let mut stack = FaultHooks::wrap_with(inner, 5, plan);
    let mut listener = stack.listen((IP, 0).into(), &ListenConfig::default(), LISTENER).unwrap();
    let mut client =
        stack.connect(None, listener.local_addr(), &TransportConfig::default(), CLIENT).unwrap();
    let server = loop {
        match listener.accept(SERVER) {
            Ok(server) => break server,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    };
    while !client.connect_result().unwrap() {}
    FaultPair { stack, client, server, _listener: listener }
}

fn pair(faults: Faults) -> FaultPair {
    pair_on(Box::new(Network::new(1).stack(IP)), faults)
}

fn send(stream: &mut dyn TransportStream, bytes: &[u8]) -> io::Result<usize> {
    // There are two elements, the first of which is empty, so that positions are in the second one.
    stream.send(&[IoVec::from(&bytes[..0]), IoVec::from(bytes)])
}

fn recv(stream: &mut dyn TransportStream, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let (a, b) = bytes.split_at_mut(len / 2);
    let n = stream.recv(&mut [IoVecMut::from(a), IoVecMut::from(b)])?;
    bytes.truncate(n);
    Ok(bytes)
}

fn kind<T>(result: io::Result<T>) -> ErrorKind {
    result.map(drop).expect_err("an error was due").kind()
}

#[test]
fn none_changes_nothing() {
    let FaultPair { mut client, mut server, .. } = pair(Faults::default());
    assert_eq!(send(&mut *client, b"whole").unwrap(), 5);
    assert_eq!(recv(&mut *server, 9).unwrap(), b"whole");
    assert_eq!(kind(send(&mut *client, b"")), ErrorKind::InvalidInput);
    client.shutdown().unwrap();
    assert_eq!(recv(&mut *server, 9).unwrap(), b"");
}

#[test]
fn splits() {
    let faults =
        Faults { send_split: Split::Fixed(2), recv_split: Split::Fixed(3), ..Faults::default() };
    let FaultPair { mut client, mut server, .. } = pair(faults);
    assert_eq!(send(&mut *client, b"12345").unwrap(), 2);
    send(&mut *server, b"abcdefg").unwrap();
    assert_eq!(recv(&mut *client, 9).unwrap(), b"abc");
    assert_eq!(recv(&mut *client, 2).unwrap(), b"de");
    assert_eq!(recv(&mut *server, 9).unwrap(), b"12");
}

#[test]
fn flipped_bits_both_ways() {
    let flips =
        vec![Flip { byte: 0, mask: 1 }, Flip { byte: 3, mask: 0x80 }, Flip { byte: 7, mask: 0xFF }];
    let faults = Faults { flip_sent: flips.clone(), flip_received: flips, ..Faults::default() };
    let FaultPair { mut client, mut server, .. } = pair(faults);
    let bytes = [0u8; 10];
    let mut sent = 0;
    while sent < bytes.len() {
        sent += send(&mut *client, &bytes[sent..]).unwrap();
    }
    let changed = [1, 0, 0, 0x80, 0, 0, 0, 0xFF, 0, 0];
    assert_eq!(recv(&mut *server, 10).unwrap(), changed);
    send(&mut *server, &bytes).unwrap();
    let mut got = recv(&mut *client, 5).unwrap();
    got.extend(recv(&mut *client, 20).unwrap());
    assert_eq!(got, changed);
}

#[test]
fn cut_after_bytes_sent() {
    let faults = Faults { cut_sent: Some(4), ..Faults::default() };
    let FaultPair { mut stack, mut client, mut server, .. } = pair(faults);
    assert_eq!(send(&mut *client, b"123456").unwrap(), 4);
    let mut events = Vec::new();
    stack.poll(&mut events).unwrap();
    assert!(
        events.contains(&Event { token: CLIENT, readable: true, writable: true }),
        "{events:?}"
    );
    assert_eq!(stack.deadline(), Some(stack.now()));
    assert_eq!(kind(send(&mut *client, b"56")), ErrorKind::ConnectionReset);
    assert_eq!(kind(recv(&mut *client, 1)), ErrorKind::ConnectionReset);
    assert_eq!(recv(&mut *server, 9).unwrap(), b"1234");
    assert_eq!(kind(recv(&mut *server, 9)), ErrorKind::ConnectionReset);
    drop((client, server));
    events.clear();
    stack.poll(&mut events).unwrap();
    assert_eq!(events, []);
}

#[test]
fn cut_after_bytes_received() {
    let FaultPair { mut client, mut server, .. } =
        pair(Faults { cut_received: Some(3), ..Faults::default() });
    send(&mut *server, b"12345").unwrap();
    assert_eq!(recv(&mut *client, 9).unwrap(), b"123");
    assert_eq!(kind(recv(&mut *client, 9)), ErrorKind::ConnectionReset);
    assert_eq!(kind(send(&mut *server, b"x")), ErrorKind::ConnectionReset);
}

#[test]
fn fin_after_bytes_sent() {
    let FaultPair { mut client, mut server, .. } =
        pair(Faults { fin_sent: Some(3), ..Faults::default() });
    assert_eq!(send(&mut *client, b"12345").unwrap(), 3);
    assert_eq!(kind(send(&mut *client, b"45")), ErrorKind::BrokenPipe);
    assert_eq!(recv(&mut *server, 9).unwrap(), b"123");
    assert_eq!(recv(&mut *server, 9).unwrap(), b"");
    send(&mut *server, b"back").unwrap();
    assert_eq!(recv(&mut *client, 9).unwrap(), b"back");
}

#[test]
fn needless_would_block() {
    let FaultPair { mut client, .. } =
        pair(Faults { would_block_every: Some(3), ..Faults::default() });
    let outcomes: Vec<bool> = (0..9).map(|_| send(&mut *client, b"x").is_ok()).collect();
    assert_eq!(outcomes, [true, true, false, true, true, false, true, true, false]);
}

#[test]
fn on_the_kernels_tcp() {
    let faults = Faults { send_split: Split::Random(3), cut_sent: Some(20), ..Faults::default() };
    let FaultPair { mut client, mut server, .. } =
        pair_on(Box::new(TcpStack::new().unwrap()), faults);
    let mut sent = 0;
    let error = loop {
        match send(&mut *client, &[1; 30]) {
            Ok(n) => sent += n,
            Err(error) => break error,
        }
    };
    assert_eq!((sent, error.kind()), (20, ErrorKind::ConnectionReset));
    let error = loop {
        match recv(&mut *server, 9) {
            Ok(bytes) => assert!(!bytes.is_empty()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn faults_follow_stream_to_other_shard() {
    let cut = Faults { cut_sent: Some(4), ..Faults::default() };
    let FaultPair { mut stack, mut client, mut server, .. } =
        pair_on(Box::new(TcpStack::new().unwrap()), cut);
    let mut other = stack.shard().unwrap().unwrap();
    let moved = Token(4);
    assert_eq!(kind(other.adopt(&mut client, moved)), ErrorKind::InvalidInput, "not detached");
    client.detach().unwrap();
    other.adopt(&mut client, moved).unwrap();
    assert_eq!(send(&mut *client, b"12345").unwrap(), 4);
    let reported = |stack: &mut dyn TransportStack, token| {
        let mut events = Vec::new();
        stack.poll(&mut events).unwrap();
        events.iter().any(|event| event.token == token && event.readable && event.writable)
    };
    // The shard that has the stream reports the cut, and so does the next one when the stream moves
    // again.
    assert!(reported(&mut *other, moved) && other.deadline().is_some());
    assert!(!reported(&mut stack, CLIENT) && stack.deadline().is_none());
    client.detach().unwrap();
    assert!(!reported(&mut *other, moved) && other.deadline().is_none());
    stack.adopt(&mut client, CLIENT).unwrap();
    assert!(reported(&mut stack, CLIENT));
    assert_eq!(kind(send(&mut *client, b"x")), ErrorKind::ConnectionReset);
    client.abort();
    assert!(!reported(&mut stack, CLIENT));
    assert_eq!(kind(send(&mut *client, b"x")), ErrorKind::NotConnected);
    assert_eq!(recv(&mut *server, 9).unwrap(), b"1234");
    assert_eq!(kind(recv(&mut *server, 9)), ErrorKind::ConnectionReset);
}

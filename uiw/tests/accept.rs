//! Tests of a listener with peers that fail or are silent during their startup.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;
use uiw::blocking::{Connection, Listener};
use uiw::{ConnectionConfig, Device, ErrorKind};
use uiw_mpa::startup::ConfigError;
use uiw_mpa::wire::startup::{Enhanced, Frame, FrameKind};

fn server(settings: &ConnectionConfig) -> Listener {
    let pd = Device::open().unwrap().alloc_pd().unwrap();
    Listener::bind(&pd, "127.0.0.1:0".parse().unwrap(), settings).unwrap()
}

/// Connects a peer in peer-to-peer mode that has read the Reply. The responder waits for its first
/// message.
fn peer_after_reply(to: SocketAddr) -> TcpStream {
    let mut tcp = TcpStream::connect(to).unwrap();
    tcp.write_all(&request().emit()).unwrap();
    let mut reply = [0; 24];
    tcp.read_exact(&mut reply).unwrap();
    tcp
}

fn request() -> Frame {
    Frame {
        kind: FrameKind::Request,
        markers: false,
        crc: true,
        reject: false,
        enhanced: Some(Enhanced {
            peer_to_peer: true,
            rtr_write: true,
            ird: 4,
            ord: 4,
            ..Enhanced::default()
        }),
        reserved: 0,
        revision: 2,
        private_data: Vec::new(),
    }
}

/// Starts a client that sends `message` and waits for the end of the connection.
fn client(to: SocketAddr, message: &'static [u8]) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let device = Device::open().unwrap();
        let pd = device.alloc_pd().unwrap();
        let connection = Connection::connect(&pd, to, &ConnectionConfig::default()).unwrap();
        connection.send_copy(message).unwrap();
        connection.ended();
    })
}

/// Connects the peers in a new thread, because the listener replies only while it accepts.
fn attackers(to: SocketAddr, count: usize) -> thread::JoinHandle<Vec<TcpStream>> {
    thread::spawn(move || (0..count).map(|_| peer_after_reply(to)).collect())
}

#[test]
fn silent_peer_delays_no_other() {
    // The silent peers never time out in this test.
    let server = server(&ConnectionConfig::default().startup_timeout(Duration::from_secs(3600)));
    let to = server.local_addr();
    let silent = attackers(to, 20);
    let first = client(to, b"first");
    let connection = server.accept().unwrap();
    assert_eq!(*connection.recv().unwrap().unwrap(), *b"first");
    // Some of the silent peers may get their Reply only during another accept.
    let second = client(to, b"second");
    let other = server.accept().unwrap();
    assert_eq!(*other.recv().unwrap().unwrap(), *b"second");
    drop((connection, other));
    first.join().unwrap();
    second.join().unwrap();
    assert_eq!(server.failures(), 0);
    drop(server);
    drop(silent);
}

#[test]
fn close_after_reply_is_own_failure() {
    let server = server(&ConnectionConfig::default());
    let to = server.local_addr();
    let gone = thread::spawn(move || {
        let tcp = peer_after_reply(to);
        let from = tcp.local_addr().unwrap();
        drop(tcp);
        client(to, b"honest").join().unwrap();
        from
    });
    let connection = server.accept().unwrap();
    assert_eq!(*connection.recv().unwrap().unwrap(), *b"honest");
    drop(connection);
    let from = gone.join().unwrap();
    assert_eq!(server.failures(), 1);
    let failure = server.take_failure().unwrap();
    assert_eq!(failure.peer, from);
    assert!(server.take_failure().is_none());
    assert_eq!(server.failures(), 1, "taking one does not uncount it");
}

#[test]
fn unacceptable_settings_are_error() {
    let server = server(&ConnectionConfig::default().private_data([0; 600]));
    let to = server.local_addr();
    let peer = thread::spawn(move || {
        let mut tcp = TcpStream::connect(to).unwrap();
        tcp.write_all(&request().emit()).unwrap();
        let mut reply = [0; 24];
        tcp.read_exact(&mut reply).unwrap();
        Frame::parse(&reply).unwrap().unwrap().0
    });
    let error = server.accept().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Startup(ConfigError::PrivateDataTooLong { .. })),
        "{error:?}"
    );
    assert!(peer.join().unwrap().reject, "the peer is rejected");
}

#[test]
fn concurrent_accepts_get_connections() {
    let server = server(&ConnectionConfig::default());
    let to = server.local_addr();
    thread::scope(|scope| {
        let accepting: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let connection = server.accept().unwrap();
                    let number = connection.recv().unwrap().unwrap()[0];
                    drop(connection);
                    number
                })
            })
            .collect();
        let clients = [b"0", b"1", b"2"].map(|message| client(to, message));
        let mut numbers: Vec<_> =
            accepting.into_iter().map(|thread| thread.join().unwrap()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, *b"012");
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
}

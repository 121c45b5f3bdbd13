//! Peers without TLS, and connections within one process.

use super::*;
use uiw_llp::StackExtensions;

#[test]
fn clear_peer_closed_without_answer() {
    let (own, _) = pair_of_configs();
    let mut server = ServerStack::new(own);
    for first in [&b"MPA ID Req Frame"[..], b"\x15\x03\x03\0\x02", b"GET / HTTP/1.1\r\n", b"\0"] {
        let before = server.tls.counts().failed;
        let mut socket = std::net::TcpStream::connect(server.at()).unwrap();
        socket.write_all(first).unwrap();
        server.until("the end", |server| (server.tls.counts().failed > before).then_some(()));
        let mut got = Vec::new();
        assert_eq!(
            socket.read_to_end(&mut got).unwrap(),
            0,
            "{first:x?} is answered with {got:x?}"
        );
        assert!(server.listener.accept(SERVER).is_err());
    }
    assert_eq!(server.tls.counts().connections, 0);
}

#[test]
fn clear_listener_named() {
    let (_, theirs) = pair_of_configs();
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut client = ClientStack::new(listener.local_addr().unwrap(), theirs);
    let (mut socket, _) = loop {
        client.stack.poll(&mut Vec::new()).unwrap();
        listener.set_nonblocking(true).unwrap();
        match listener.accept() {
            Ok(accepted) => break accepted,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    };
    let mut flight = [0; 2];
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(LONGEST)).unwrap();
    client.stack.poll(&mut Vec::new()).unwrap();
    socket.read_exact(&mut flight).unwrap();
    assert_eq!(flight, [0x16, 3]);
    drop(socket);
    let error = client.failure();
    assert_eq!(tls_error(&error), TlsError::NoAnswer);
}

/// An acceptor in another process cannot claim to be in this one.
#[test]
fn forged_process_marker_refused() {
    let (_, theirs) = pair_of_configs();
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut client = ClientStack::new(listener.local_addr().unwrap(), theirs);
    let (mut socket, _) = listener.accept().unwrap();
    socket.write_all(&[0, b'c', b'l', b'e', b'a', b'r']).unwrap();
    let error = client.failure();
    assert!(matches!(tls_error(&error), TlsError::Protocol(_)), "{error}");
}

#[test]
fn ends_in_one_process_recognised() {
    let (own, _) = pair_of_configs();
    let mut server = ServerStack::new(own);
    // This is another shard of the same configuration, whose own key is not pinned, so TLS would
    // refuse the connection.
    let mut stack = TlsStack::new(Box::new(TcpStack::new().unwrap()), &server.tls).unwrap();
    let mut stream = stack.connect(None, server.at(), &TransportConfig::default(), CLIENT).unwrap();
    let mut accepted = None;
    server.until("the connection", |server| {
        stack.poll(&mut Vec::new()).unwrap();
        if accepted.is_none() {
            accepted = server.listener.accept(SERVER).ok();
        }
        (stream.connect_result().unwrap() && accepted.is_some()).then_some(())
    });
    let mut accepted = accepted.unwrap();
    for stream in [&stream, &accepted] {
        assert_eq!(stream.peer_identity().as_deref(), Some(&PeerIdentity::SameProcess));
    }
    assert_eq!(send(&mut *stream, b"there").unwrap(), 5);
    assert_eq!(server.until("the bytes", |_| recv(&mut *accepted, 9).ok()), b"there");
    assert_eq!((server.tls.counts().established, server.tls.counts().failed), (0, 0));
}

#[test]
fn datagrams_refused_unless_clear_allowed() {
    let (own, _) = pair_of_configs();
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let bind = |config: TlsConfig| {
        let tcp = Box::new(TcpStack::new().unwrap());
        let mut stack = TlsStack::new(tcp, &Tls::new(config).unwrap()).unwrap();
        stack.bind_datagrams(at, &DatagramConfig::default(), Token(9)).map(|socket| (socket, stack))
    };
    assert_eq!(bind(own.clone()).err().map(|error| error.kind()), Some(ErrorKind::Unsupported));
    let (mut socket, mut stack) = bind(own.clear_datagrams(true)).unwrap();
    socket.set_interest(Interest::READ).unwrap();
    let sender = std::net::UdpSocket::bind(at).unwrap();
    sender.send_to(b"datagram", socket.local_addr()).unwrap();
    let mut events = Vec::new();
    let end = Instant::now() + LONGEST;
    while events.is_empty() {
        stack.poll(&mut events).unwrap();
        assert!(Instant::now() < end);
    }
    assert_eq!(events[0].token, Token(9));
}

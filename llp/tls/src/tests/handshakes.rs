//! Handshakes that never complete.

use super::*;
use uiw_llp::StackExtensions;

/// Sends every prefix of a client's first flight, followed by nothing or by the end of the stream.
#[test]
fn truncated_handshakes_time_out() {
    let (own, theirs) = pair_of_configs();
    let mut server = ServerStack::new(own.handshake_timeout(Duration::from_millis(50)));
    let name = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
    let mut conn =
        rustls::ClientConnection::new(Arc::new(plain_config(&theirs, false)), name).unwrap();
    let mut flight = Vec::new();
    conn.write_tls(&mut flight).unwrap();
    let mut sockets = Vec::new();
    let lengths: Vec<_> = (0..60).chain((60..flight.len()).step_by(97)).collect();
    for (at, len) in lengths.iter().enumerate() {
        let mut socket = std::net::TcpStream::connect(server.at()).unwrap();
        socket.write_all(&flight[..*len]).unwrap();
        if at % 2 == 0 {
            socket.shutdown(std::net::Shutdown::Write).unwrap();
        }
        sockets.push(socket);
    }
    let all = lengths.len() as u64;
    server.until("every one ends", |server| {
        assert!(server.listener.accept(SERVER).is_err());
        (server.tls.counts().failed == all).then_some(())
    });
    let counts = server.tls.counts();
    assert_eq!((counts.connections, counts.handshakes, counts.buffered), (0, 0, 0));
}

/// Simulates a client of another protocol, which the server's key would also authenticate.
#[test]
fn client_of_another_protocol_is_refused() {
    let (own, theirs) = pair_of_configs();
    for (offered, is_accepted) in [
        (&[b"http/1.1".to_vec()][..], false),
        (&[b"h2".to_vec(), b"iwarp".to_vec()], true),
        (&[], true),
    ] {
        let mut server = ServerStack::new(own.clone());
        let mut config = plain_config(&theirs, false);
        config.alpn_protocols = offered.to_vec();
        let client = plain_client(server.at(), config, move |stream| {
            let mut byte = [0];
            let read = stream.read(&mut byte);
            assert_eq!(read.is_ok(), is_accepted, "{read:?}");
            assert_eq!(
                stream.conn.alpn_protocol().is_some(),
                stream.conn.alpn_protocol() == Some(b"iwarp")
            );
        });
        if is_accepted {
            let mut accepted = accept_plain(&mut server);
            accepted.shutdown().unwrap();
            server.until("the client's end", |server| {
                let mut events = Vec::new();
                server.stack.poll(&mut events).unwrap();
                client.is_finished().then_some(())
            });
        } else {
            server.until("the end", |server| (server.tls.counts().failed == 1).then_some(()));
        }
        client.join().unwrap();
    }
}

/// Sends bytes that are not a ClientHello.
#[test]
fn noise_is_refused_with_an_alert() {
    let (own, _) = pair_of_configs();
    let mut server = ServerStack::new(own);
    let mut socket = std::net::TcpStream::connect(server.at()).unwrap();
    socket.write_all(&[0x16, 3, 1, 0, 9, 1, 0, 0, 5, 9, 9, 9, 9, 9]).unwrap();
    server.until("the end", |server| (server.tls.counts().failed == 1).then_some(()));
    let mut got = Vec::new();
    socket.read_to_end(&mut got).unwrap();
    // The answer is a record with a fatal alert (RFC 8446 section 6).
    assert_eq!((got.first(), got.get(5)), (Some(&0x15), Some(&2)), "{got:x?}");
}

#[test]
fn half_handshakes_bounded() {
    const COUNT: usize = 10_000;
    const AT_ONCE: usize = 32;
    let (own, theirs) = pair_of_configs();
    let mut server = ServerStack::new(own.max_handshakes(AT_ONCE));
    let name = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
    let mut flight = Vec::new();
    let config = Arc::new(plain_config(&theirs, false));
    rustls::ClientConnection::new(config, name).unwrap().write_tls(&mut flight).unwrap();
    let at = server.at();
    let mut sockets = std::collections::VecDeque::new();
    let mut most = 0;
    for number in 0..COUNT {
        let mut socket = std::net::TcpStream::connect(at).unwrap();
        // A complete flight makes the server answer and wait, which costs a signature.
        let len = if number % 16 == 0 { flight.len() } else { number % flight.len() };
        // The connection may already be closed.
        let _ = socket.write_all(&flight[..len]);
        sockets.push_back(socket);
        if sockets.len() > 2 * AT_ONCE {
            sockets.pop_front();
        }
        server.poll();
        let counts = server.tls.counts();
        assert!(counts.handshakes <= AT_ONCE, "{counts:?}");
        most = most.max(counts.buffered);
    }
    assert!(most <= AT_ONCE * (64 << 10), "{most} bytes are buffered");
    let mut client = ClientStack::new(at, theirs);
    let accepted = connect(&mut server, &mut client);
    drop((accepted, client, sockets));
    server.until("nothing is left", |server| {
        let counts = server.tls.counts();
        (counts.connections == 0 && counts.buffered == 0).then_some(())
    });
}

#[test]
fn flood_evicts_own_handshakes() {
    let (own, _) = pair_of_configs();
    let mut server = ServerStack::new(own.max_handshakes(8));
    let other = (Ipv4Addr::new(127, 0, 0, 2), 0).into();
    let mut stack = TcpStack::new().unwrap();
    let mut first =
        stack.connect(Some(other), server.at(), &TransportConfig::default(), SERVER).unwrap();
    let progress = |server: &mut ServerStack, count| {
        server
            .until("handshakes", |server| (server.tls.counts().handshakes == count).then_some(()));
    };
    progress(&mut server, 1);
    let mut flood = Vec::new();
    for number in 0..20 {
        flood.push(std::net::TcpStream::connect(server.at()).unwrap());
        progress(&mut server, 8.min(2 + number));
        server.poll();
    }
    assert_eq!(recv(&mut *first, 1).unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut byte = [0];
    flood[0].set_read_timeout(Some(LONGEST)).unwrap();
    assert_eq!(flood[0].read(&mut byte).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn timeout_of_opened_socket_reported() {
    let (own, _) = pair_of_configs();
    let tls = Tls::new(own.handshake_timeout(Duration::from_millis(1))).unwrap();
    let mut stack = TlsStack::new(Box::new(TcpStack::new().unwrap()), &tls).unwrap();
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let _peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let socket = listener.accept().unwrap().0;
    let mut stream =
        stack.open_socket(socket.into(), None, &TransportConfig::default(), SERVER).unwrap();
    let end = Instant::now() + LONGEST;
    let mut events = Vec::new();
    while events.is_empty() {
        assert!(Instant::now() < end, "no event");
        stack.poll(&mut events).unwrap();
    }
    assert_eq!(events[0].token, SERVER);
    assert_eq!(tls_error(&recv(&mut *stream, 1).unwrap_err()), TlsError::HandshakeTimeout);
}

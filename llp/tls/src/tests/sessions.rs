//! Events on an established connection: key updates, ends, faults of the inner stream, memory.

use super::*;
use uiw_llp::StackExtensions;

/// Returns a server and a client with an established connection, and the server's end of it.
fn connected() -> (ServerStack, ClientStack, Box<dyn TransportStream>) {
    let (own, theirs) = pair_of_configs();
    let mut server = ServerStack::new(own);
    let mut client = ClientStack::new(server.at(), theirs);
    let accepted = connect(&mut server, &mut client);
    (server, client, accepted)
}

#[test]
fn key_updates_of_both_ends() {
    let (own, theirs) = pair_of_configs();
    let mut server = ServerStack::new(own);
    let client = plain_client(server.at(), plain_config(&theirs, false), |stream| {
        stream.conn.complete_io(&mut stream.sock).unwrap();
        for round in 0..20u8 {
            // This also requests a new key from the server (RFC 8446 section 4.6.3).
            stream.conn.refresh_traffic_keys().unwrap();
            stream.write_all(&[round; 1000]).unwrap();
            let mut back = [0; 1000];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(back, [round; 1000]);
        }
        stream.conn.send_close_notify();
        stream.flush().unwrap();
    });
    let mut accepted = accept_plain(&mut server);
    let mut echoed = 0;
    server.until("all rounds and the end", |_| match recv(&mut *accepted, 4000) {
        Ok(bytes) if bytes.is_empty() => Some(()),
        Ok(bytes) => {
            assert_eq!(send(&mut *accepted, &bytes).unwrap(), bytes.len());
            echoed += bytes.len();
            None
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
            None
        }
    });
    assert_eq!(echoed, 20_000);
    client.join().unwrap();
}

/// Each update costs the server a key derivation and an answer. rustls accepts 32 updates without
/// data between them.
#[test]
fn flood_of_key_updates_ends_connection() {
    let (own, theirs) = pair_of_configs();
    let mut server = ServerStack::new(own);
    let client = plain_client(server.at(), plain_config(&theirs, false), |stream| {
        stream.conn.complete_io(&mut stream.sock).unwrap();
        for _ in 0..33 {
            stream.conn.refresh_traffic_keys().unwrap();
            stream.flush().unwrap();
        }
        let _ = stream.sock.read(&mut [0; 9]);
    });
    let mut accepted = accept_plain(&mut server);
    let error = server.until("the end", |_| match recv(&mut *accepted, 100) {
        Ok(bytes) => panic!("{} bytes, or a FIN", bytes.len()),
        Err(error) => (error.kind() != ErrorKind::WouldBlock).then_some(error),
    });
    assert!(error.to_string().contains("TooManyKeyUpdateRequests"), "{error}");
    drop(accepted);
    client.join().unwrap();
}

#[test]
fn our_own_key_updates() {
    let (mut server, mut client, mut accepted) = connected();
    for round in 0..20u8 {
        stack::update_keys(&mut *client.stream);
        assert_eq!(send(&mut *client.stream, &[round; 50]).unwrap(), 50);
        let got = server.until("the bytes", |_| recv(&mut *accepted, 100).ok());
        assert_eq!(got, [round; 50]);
        assert_eq!(send(&mut *accepted, &got).unwrap(), 50);
        let back = server.until("the bytes back", |_| recv(&mut *client.stream, 100).ok());
        assert_eq!(back, [round; 50]);
    }
}

#[test]
fn fin_without_close_notify_rejected() {
    let (own, theirs) = pair_of_configs();
    let mut server = ServerStack::new(own);
    let client = plain_client(server.at(), plain_config(&theirs, false), |stream| {
        stream.write_all(b"last words").unwrap();
        stream.flush().unwrap();
        stream.sock.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = stream.sock.read(&mut [0; 9]);
    });
    let mut accepted = accept_plain(&mut server);
    let got = server.until("the bytes", |_| recv(&mut *accepted, 100).ok());
    assert_eq!(got, b"last words");
    let error = server.until("the end", |_| match recv(&mut *accepted, 100) {
        Ok(bytes) => panic!("{} bytes, or a FIN", bytes.len()),
        Err(error) => (error.kind() != ErrorKind::WouldBlock).then_some(error),
    });
    assert_eq!(tls_error(&error), TlsError::Truncated);
    assert_eq!(tls_error(&send(&mut *accepted, b"x").unwrap_err()), TlsError::Truncated);
    drop(accepted);
    client.join().unwrap();
}

/// No byte of a record can be changed in transit, and nothing hangs, wherever the stream is cut.
#[test]
fn faults_below_tls() {
    let (own, theirs) = pair_of_configs();
    let bytes: Vec<u8> = (0..40_000u32).map(|at| (at * 7) as u8).collect();
    // The handshake of the initiator has about 1.7 KiB.
    for at in (0..44_000u64).step_by(1777) {
        for kind in 0..3 {
            let faults = match kind {
                0 => Faults { flip_sent: vec![Flip { byte: at, mask: 0x10 }], ..Faults::default() },
                1 => Faults { cut_sent: Some(at), ..Faults::default() },
                _ => Faults { fin_sent: Some(at), ..Faults::default() },
            };
            let mut server =
                ServerStack::new(own.clone().handshake_timeout(Duration::from_secs(2)));
            let stack = FaultHooks::wrap(Box::new(TcpStack::new().unwrap()), at, faults);
            let mut client = ClientStack::with(
                Box::new(stack),
                server.at(),
                theirs.clone(),
                &TransportConfig::default(),
            );
            let (mut sent, mut got, mut accepted) =
                (0, Vec::new(), None::<Box<dyn TransportStream>>);
            let ended = server.until("the transfer ends, one way or the other", |server| {
                client.stack.poll(&mut Vec::new()).unwrap();
                if accepted.is_none() {
                    accepted = server.listener.accept(SERVER).ok();
                }
                if sent < bytes.len() && client.stream.connect_result().is_ok_and(|made| made) {
                    sent += send(&mut *client.stream, &bytes[sent..bytes.len().min(sent + 3000)])
                        .unwrap_or(0);
                }
                let failed =
                    server.tls.counts().failed > 0 || client.stream.connect_result().is_err();
                let Some(stream) = &mut accepted else { return failed.then_some(true) };
                match recv(&mut **stream, 9000) {
                    Ok(part) if part.is_empty() => {
                        panic!("a FIN that was not sent, behind {} bytes", got.len())
                    }
                    Ok(part) => got.extend(part),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => return Some(true),
                }
                (got.len() == bytes.len()).then_some(false)
            });
            assert_eq!(got, bytes[..got.len()], "fault {kind} at {at}");
            // The initiator sends more bytes than the plaintext has.
            assert!(ended || at > 40_000, "fault {kind} at {at} was not noticed");
        }
    }
}

#[test]
fn idle_connection_keeps_no_buffer() {
    let (mut server, mut client, mut accepted) = connected();
    let bytes = vec![7; 1 << 20];
    let (mut sent, mut got) = (0, 0);
    server.until("a megabyte", |_| {
        client.stack.poll(&mut Vec::new()).unwrap();
        if sent < bytes.len() {
            sent += send(&mut *client.stream, &bytes[sent..]).unwrap_or(0);
        }
        got += recv(&mut *accepted, 10_000).map_or(0, |part| part.len());
        (got == bytes.len()).then_some(())
    });
    assert_eq!(server.tls.counts().buffered, 0);
}

/// The end that sends was reset by its peer, which had not read everything.
#[test]
fn received_bytes_readable_after_failed_send() {
    let (mut server, mut client, mut accepted) = connected();
    send(&mut *client.stream, b"never read").unwrap();
    send(&mut *accepted, b"terminate").unwrap();
    drop(accepted);
    let error = server.until("the reset", |_| send(&mut *client.stream, b"x").err());
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
    assert_eq!(recv(&mut *client.stream, 100).unwrap(), b"terminate");
    assert_eq!(send(&mut *client.stream, b"x").unwrap_err().kind(), error.kind());
}

/// A program that exits calls only `drain`, and TCP has no room for the last records.
#[test]
fn drain_sends_waiting_records() {
    let (mut server, mut client, mut accepted) = connected();
    let (block, mut sent) = ([7; 100_000], 0);
    loop {
        match send(&mut *client.stream, &block) {
            Ok(count) => sent += count,
            Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    drop(client.stream);
    let (mut received, mut ended, mut drained) = (0, false, false);
    server.until("the last bytes", |_| {
        drained = drained || client.stack.drain();
        match recv(&mut *accepted, 200_000) {
            Ok(bytes) if bytes.is_empty() => ended = true,
            Ok(bytes) => received += bytes.len(),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        (drained && ended).then_some(())
    });
    assert_eq!(received, sent);
}

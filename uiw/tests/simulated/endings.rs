//! Tests of the results of operations when a connection is closed, lost or aborted.

use std::io;
use std::time::Duration;
use uiw::{Access, ByteStream, ConnectionConfig, Error, ErrorKind};
use uiw_testkit::sim::Link;

use crate::link::{CLIENT, SERVER, Simulation};

fn connected(settings: &ConnectionConfig) -> (Simulation, uiw::Connection, uiw::Connection) {
    let simulation = Simulation::new(1, Link::default());
    let ((_, client), (_, server)) = simulation.connect(settings);
    (simulation, client, server)
}

fn check_closed(error: Error) {
    assert!(matches!(error.kind(), ErrorKind::Closed { .. }), "{error:?}");
    assert!(error.to_string().ends_with(": the connection is closed"), "{error}");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn operations_after_close_fail_with_closed() {
    let (simulation, client, server) = connected(&ConnectionConfig::default());
    let (from_client, from_server) = simulation.run(
        async {
            assert!(client.disconnect().await.unwrap().is_closed());
            check_closed(client.disconnect().await.unwrap_err());
            client.send_copy(b"late").await.unwrap_err()
        },
        async {
            assert!(server.recv().await.unwrap().is_none());
            server.send_copy(&[0; 1000]).await.unwrap_err()
        },
    );
    check_closed(from_client);
    check_closed(from_server);
}

/// The peer closes before it has answered.
#[test]
fn read_under_way_fails_with_closed() {
    let simulation =
        Simulation::new(1, Link { latency: Duration::from_millis(20), ..Link::default() });
    let ((pd, client), (server_pd, server)) = simulation.connect(&ConnectionConfig::default());
    let memory = server_pd.share(8, Access::REMOTE_READ).unwrap();
    let closing = server.disconnect();
    let read = client.read(pd.register(vec![0; 8]).unwrap(), memory.remote(0..8).unwrap());
    let (failed, _) = simulation.run(read, closing);
    check_closed(failed.unwrap_err().error);
}

#[test]
fn reset_is_an_error() {
    let (simulation, client, server) = connected(&ConnectionConfig::default());
    simulation.network().cut(CLIENT, SERVER);
    let (received, sent) = simulation.run(server.recv(), async {
        client.ended().await;
        client.send_copy(b"late").await
    });
    for error in [received.unwrap_err(), sent.unwrap_err()] {
        assert!(
            matches!(error.kind(), ErrorKind::Ended { reason, .. } if !reason.orderly),
            "{error:?}"
        );
        assert!(error.to_string().ends_with(": connection lost"), "{error}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::ConnectionReset);
    }
}

/// A peer that receives nothing, like a stopped process, prevents a Write from ever completing.
#[test]
fn abort_ends_operations_at_once() {
    let simulation = Simulation::new(1, Link { capacity: 2_000, ..Link::default() });
    let ((pd, client), (_, server)) = simulation.connect(&ConnectionConfig::default());
    simulation.network().stall(CLIENT, SERVER, true);
    let send = client.send(pd.register(vec![7; 100_000]).unwrap());
    let start = simulation.now();
    let (failed, ending) = simulation.run(send, async { client.abort().await });
    assert!(simulation.now() - start < Duration::from_secs(1));
    assert!(!ending.is_closed());
    let failed = failed.unwrap_err();
    assert_eq!(failed.buffer.len(), 100_000);
    let ended = |error: &Error| matches!(error.kind(), ErrorKind::Ended { .. });
    assert!(
        ended(&failed.error) && failed.error.to_string().ends_with(": aborted by this end"),
        "{failed}"
    );
    let (received, _) = simulation.run(client.recv(), async {});
    assert!(ended(&received.unwrap_err()));
    drop(server);
}

#[test]
fn abort_is_error_at_peer() {
    let (simulation, client, server) = connected(&ConnectionConfig::default());
    let (received, _) = simulation.run(server.recv(), async { client.abort().await });
    let error = received.unwrap_err().to_string();
    assert!(error.contains("the peer terminated the stream"), "{error}");
    assert_eq!(
        error.matches("0x").count(),
        1,
        "the codes of the Terminate are there once: {error}"
    );
    // Both ends know the reason, and another abort has no effect.
    let (again, later) =
        simulation.run(async { client.abort().await }, async { server.abort().await });
    assert!(!again.is_closed() && !later.is_closed());
}

#[test]
fn byte_stream_without_end_is_error() {
    let (simulation, client, server) = connected(&ConnectionConfig::default());
    let ((), error) = simulation.run(
        async {
            let mut stream = ByteStream::new(client).unwrap();
            assert_eq!(stream.write(b"half of it").await.unwrap(), 10);
            stream.flush().await.unwrap();
            // The system closes the connection like this for a process that was killed.
            stream.connection().disconnect().await.unwrap();
        },
        async {
            let mut stream = ByteStream::new(server).unwrap();
            let mut piece = [0; 100];
            assert_eq!(stream.read(&mut piece).await.unwrap(), 10);
            for _ in 0..2 {
                let error = stream.read(&mut piece).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
            }
            stream.read(&mut piece).await.unwrap_err()
        },
    );
    assert_eq!(error.to_string(), "the connection was closed before the end of the byte stream");
}

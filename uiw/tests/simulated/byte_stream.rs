//! Tests of byte streams: all sizes, both directions at the same time, shutdowns, and peers that
//! violate the format.

use std::io;

use uiw::{Access, ByteStream, Connection, ConnectionConfig};
use uiw_testkit::sim::{Link, Split};

use crate::link::Simulation;

fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(31) >> 3) as u8 ^ seed).collect()
}

async fn write_all(stream: &mut ByteStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let written = stream.write(bytes).await.unwrap();
        assert!(written > 0);
        bytes = &bytes[written..];
    }
}

async fn read_all(stream: &mut ByteStream, piece: usize) -> Vec<u8> {
    let mut all = Vec::new();
    let mut piece = vec![0; piece];
    loop {
        match stream.read(&mut piece).await.unwrap() {
            0 => return all,
            read => all.extend(&piece[..read]),
        }
    }
}

/// Returns settings with small windows, so that credits are exchanged often.
fn settings() -> ConnectionConfig {
    ConnectionConfig::default().recv_depth(4).recv_size(108).send_depth(2)
}

#[test]
fn written_bytes_read_back() {
    for (seed, piece, split) in
        [(1, 1, Split::Whole), (2, 7, Split::Random(50)), (3, 5_000, Split::Fixed(1))]
    {
        let simulation =
            Simulation::new(seed, Link { capacity: 300, recv_split: split, ..Link::default() });
        let ((_, client), (_, server)) = simulation.connect(&settings());
        let sent = bytes(seed as u8, 20_000);
        let (_, received) = simulation.run(
            async {
                let mut stream = ByteStream::new(client).unwrap();
                for part in sent.chunks(777) {
                    write_all(&mut stream, part).await;
                }
                stream.shutdown().await.unwrap();
                let refused = stream.write(b"more").await.unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::BrokenPipe);
                assert!(
                    read_all(&mut stream, 10).await.is_empty(),
                    "the other direction was ended too"
                );
            },
            async {
                let mut stream = ByteStream::new(server).unwrap();
                let received = read_all(&mut stream, piece).await;
                stream.shutdown().await.unwrap();
                stream.connection().ended().await;
                received
            },
        );
        assert!(received == sent, "seed {seed}");
    }
}

/// The request and the answer are longer than many windows. If each end wrote all of its bytes
/// before it reads, both would block, so one end reads while it writes.
#[test]
fn echo_of_any_length() {
    let simulation = Simulation::new(7, Link { capacity: 300, ..Link::default() });
    let ((_, client), (_, server)) = simulation.connect(&settings());
    let sent = bytes(9, 10_000);
    simulation.run(
        async {
            let mut stream = ByteStream::new(client).unwrap();
            let mut back: Vec<u8> = Vec::new();
            for part in sent.chunks(150) {
                write_all(&mut stream, part).await;
                let mut piece = [0; 150];
                let mut missing = part.len();
                while missing > 0 {
                    let read = stream.read(&mut piece[..missing]).await.unwrap();
                    back.extend(&piece[..read]);
                    missing -= read;
                }
            }
            stream.shutdown().await.unwrap();
            assert!(back == sent);
            assert!(read_all(&mut stream, 9).await.is_empty());
        },
        async {
            let mut stream = ByteStream::new(server).unwrap();
            let mut piece = [0; 64];
            loop {
                match stream.read(&mut piece).await.unwrap() {
                    0 => break,
                    read => write_all(&mut stream, &piece[..read]).await,
                }
            }
            stream.shutdown().await.unwrap();
            stream.connection().ended().await;
        },
    );
}

/// Other operations of the connection continue while the reader does nothing and the writer has
/// used all its credits.
#[test]
fn busy_reader_stops_bytes_only() {
    let simulation = Simulation::new(1, Link::default());
    let ((client_pd, client), (server_pd, server)) = simulation.connect(&settings());
    let memory = server_pd.share(64, Access::REMOTE_READ | Access::REMOTE_ATOMIC).unwrap();
    let remote = memory.remote(0..64).unwrap();
    simulation.run(
        async {
            let mut stream = ByteStream::new(client).unwrap();
            // The window allows two messages.
            write_all(&mut stream, &[1; 200]).await;
            {
                let mut third = std::pin::pin!(stream.write(&[2; 100]));
                let cx = &mut std::task::Context::from_waker(std::task::Waker::noop());
                for _ in 0..10 {
                    assert!(third.as_mut().poll(cx).is_pending());
                }
            }
            let buffer = client_pd.register(vec![0; 64]).unwrap();
            stream.connection().read(buffer, remote).await.unwrap();
            assert_eq!(
                stream.connection().fetch_add(remote.slice(0..8).unwrap(), 1).await.unwrap(),
                0
            );
            stream.connection().disconnect().await.unwrap();
        },
        async {
            let stream = ByteStream::new(server).unwrap();
            stream.connection().ended().await;
        },
    );
}

/// Sends messages as a peer that does not use byte streams, and returns the error of the stream.
fn refused(messages: &[&[u8]]) -> String {
    let simulation = Simulation::new(1, Link::default());
    // The receives are longer than the payloads that a byte stream announces.
    let ((_, client), (_, server)) =
        simulation.connect(&ConnectionConfig::default().recv_size(300 << 10));
    let (_, error) = simulation.run(
        async {
            for message in messages {
                client.send_copy(message).await.unwrap();
            }
            client.ended().await
        },
        async {
            let mut stream = ByteStream::new(server).unwrap();
            let mut piece = [0; 100];
            let error = loop {
                match stream.read(&mut piece).await {
                    Ok(0) => panic!("an end"),
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            stream.connection().disconnect().await.unwrap();
            error
        },
    );
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    error.to_string()
}

#[test]
fn format_violation_named() {
    const FIRST: &[u8] = &[1, 0, 0, 0, 0, 0, 0, 9, 0, 0, 1, 0];
    assert!(refused(&[b"short"]).contains("shorter than the header"));
    assert!(refused(&[b"version of 12"]).contains("version 118"));
    assert!(refused(&[&[1, 0, 0, 0, 0, 0, 0, 9]]).contains("a payload of 0 bytes"));
    assert!(refused(&[FIRST, &[1, 9, 0, 0, 0, 0, 0, 0]]).contains("flags 0x09"));
    assert!(refused(&[FIRST, &[1, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]]).contains("credits"));
    let long = [&[1, 0, 0, 0, 0, 0, 0, 0][..], &[0; (256 << 10) + 1]].concat();
    assert!(
        refused(&[FIRST, &long])
            .contains("262145 bytes is longer than the announced maximum of 262144")
    );
}

/// A peer that only reads may shut down its direction with its first message.
#[test]
fn end_in_first_message_read() {
    const FIRST_AND_LAST: &[u8] = &[1, 1, 0, 0, 0, 0, 0, 9, 0, 0, 1, 0];
    let simulation = Simulation::new(1, Link::default());
    let ((_, client), (_, server)) = simulation.connect(&ConnectionConfig::default());
    simulation.run(
        async {
            client.send_copy(FIRST_AND_LAST).await.unwrap();
            client.ended().await
        },
        async {
            let mut stream = ByteStream::new(server).unwrap();
            assert_eq!(stream.read(&mut [0; 100]).await.unwrap(), 0);
            assert_eq!(stream.write(b"an answer").await.unwrap(), 9);
            stream.flush().await.unwrap();
            stream.connection().disconnect().await.unwrap();
        },
    );
}

#[test]
fn connection_with_few_receives_refused() {
    let simulation = Simulation::new(1, Link::default());
    let ((_, client), (_, _server)) =
        simulation.connect(&ConnectionConfig::default().recv_depth(3));
    let refused = |connection: Connection| ByteStream::new(connection).unwrap_err().to_string();
    assert!(refused(client).contains("receive depth"));
}

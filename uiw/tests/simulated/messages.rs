//! Tests of messages: busy receivers, messages longer than a receive buffer, and ends of
//! connections.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use uiw::{Connection, ConnectionConfig, ErrorKind, Limits, WcStatus};
use uiw_testkit::sim::{Link, Split};

use crate::link::{CLIENT, SERVER, Simulation};

const HOUR: Duration = Duration::from_secs(3600);

fn message(number: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(31) ^ number) as u8).collect()
}

/// Sends all messages, and then closes the connection.
async fn send_all(connection: &Connection, lengths: &[usize]) {
    for (number, len) in lengths.iter().enumerate() {
        connection.send_copy(&message(number as u32, *len)).await.unwrap();
    }
    assert!(connection.disconnect().await.unwrap().orderly);
}

/// Receives all messages, and then the end of the connection.
async fn receive_all(connection: &Connection, lengths: &[usize]) {
    for (number, len) in lengths.iter().enumerate() {
        let received = connection.recv().await.unwrap().expect("a message");
        assert!(*received == message(number as u32, *len), "message {number} of {len} bytes");
    }
    assert!(connection.recv().await.unwrap().is_none(), "closed in order");
    assert!(connection.recv().await.unwrap().is_none(), "and so it stays");
}

/// Advances the clock by `time` while both devices run.
fn pass(simulation: &Simulation, time: Duration) {
    simulation.network().advance(time);
    for _ in 0..4 {
        simulation.client.pump();
        simulation.server.pump();
        simulation.network().step();
    }
}

/// The sender waits for any length of time, as with TCP, and nothing is lost.
#[test]
fn busy_receiver_loses_nothing() {
    let simulation = Simulation::new(1, Link { capacity: 2_000, ..Link::default() });
    let ((_, client), (_, server)) =
        simulation.connect(&ConnectionConfig::default().recv_depth(4).send_depth(8));
    let lengths = [100; 100];
    let mut sending = pin!(async {
        for number in 0..100 {
            client.send_copy(&message(number, 100)).await.unwrap();
        }
        client
    });
    let cx = &mut Context::from_waker(Waker::noop());
    for _ in 0..48 {
        assert!(
            sending.as_mut().poll(cx).is_pending(),
            "more was taken than four receives and the link hold"
        );
        pass(&simulation, HOUR);
    }
    simulation.run(
        async { assert!(sending.await.disconnect().await.unwrap().orderly) },
        receive_all(&server, &lengths),
    );
}

/// Both ends send messages at the same time, which arrive byte by byte and in lumps. Their lengths
/// are close to that of a receive buffer and much longer.
#[test]
fn messages_of_any_length_to_limit() {
    let settings = ConnectionConfig::default().recv_size(1000).recv_depth(3).max_message(100_000);
    let lengths =
        [0, 1, 999, 1000, 1001, 5, 2000, 2001, 100_000, 0, 99_999, 1, 1000, 3, 100_000, 100_000];
    for (seed, split) in [(1, Split::Whole), (2, Split::Random(700)), (3, Split::Random(30_000))] {
        let simulation = Simulation::new(seed, Link { recv_split: split, ..Link::default() });
        let ((_, client), (_, server)) = simulation.connect(&settings);
        simulation.run(send_all(&client, &lengths), receive_all(&server, &lengths));
    }
}

#[test]
fn message_beyond_limit_ends_connection() {
    let settings = ConnectionConfig::default().recv_size(1000).max_message(2000);
    let simulation = Simulation::new(1, Link::default());
    let ((_, client), (_, server)) = simulation.connect(&settings);
    let (sender, receiver) = simulation.run(
        async {
            client.send_copy(&[1; 2000]).await.unwrap();
            let _ = client.send_copy(&[2; 2001]).await;
            client.ended().await
        },
        async {
            assert_eq!(server.recv().await.unwrap().expect("the first")[..], [1; 2000]);
            server.recv().await.unwrap_err()
        },
    );
    let reason = sender.reason.expect("a Terminate");
    assert!(reason.from_peer && !sender.orderly, "{reason:?}");
    // RFC 5041 section 7.2: DDP message too long for available buffer.
    assert_eq!((reason.layer, reason.etype, reason.code), (1, 2, 5));
    let ErrorKind::Completed { status: WcStatus::LocalLength, .. } = receiver.kind() else {
        panic!("{receiver:?}")
    };
    let said = receiver.to_string();
    assert!(said.contains("2001 bytes, and there is room for 2000"), "{said}");
}

#[test]
fn unfinished_message_over_limit_ends_connection() {
    let settings = ConnectionConfig::default().recv_size(1000).max_message(100_000);
    let limits = Limits::default().max_unfinished_bytes(50_000);
    let simulation = Simulation::limited(1, Link::default(), limits);
    let ((_, first), (_, first_server)) = simulation.connect(&settings);
    let ((_, second), (_, second_server)) = simulation.connect(&settings);
    // A message that has arrived completely no longer counts.
    for _ in 0..3 {
        simulation.run(async { first.send_copy(&[1; 40_000]).await.unwrap() }, async {
            assert_eq!(first_server.recv().await.unwrap().unwrap().len(), 40_000);
        });
    }
    simulation.run(
        async {
            let _ = first.send_copy(&[2; 60_000]).await;
            assert!(!first.ended().await.orderly);
        },
        async {
            let error = first_server.recv().await.err().unwrap();
            assert!(matches!(error.kind(), ErrorKind::Ended { .. }), "{error:?}");
        },
    );
    simulation.run(send_all(&second, &[40_000, 7]), receive_all_of(&second_server, 2));
}

/// Receives `count` messages, and then the end of the connection.
async fn receive_all_of(connection: &Connection, count: usize) {
    for _ in 0..count {
        connection.recv().await.unwrap().expect("a message");
    }
    assert!(connection.recv().await.unwrap().is_none());
}

/// Peers that become silent during long messages make room for a peer that does not.
#[test]
fn silent_peers_release_message_memory() {
    let settings = ConnectionConfig::default().recv_size(1000).max_message(100_000);
    let limits = Limits::default().max_unfinished_bytes(350_000);
    let simulation = Simulation::limited(1, Link { capacity: 4_000, ..Link::default() }, limits);
    let silent: Vec<_> = (0..4).map(|_| simulation.connect(&settings)).collect();
    let cx = &mut Context::from_waker(Waker::noop());
    let mut sending: Vec<_> =
        silent.iter().map(|((_, client), _)| Box::pin(client.send_copy(&[3; 90_000]))).collect();
    // Most of each message arrives.
    for _ in 0..22 {
        sending.iter_mut().for_each(|send| assert!(send.as_mut().poll(cx).is_pending()));
        simulation.client.pump();
        simulation.server.pump();
        simulation.network().step();
    }
    let (other, _stopped) = simulation.with_other_client();
    let ((_, client), (_, server)) = other.connect(&settings);
    other.network().advance(Duration::from_secs(2));
    other.run(send_all(&client, &[90_000, 90_000]), receive_all_of(&server, 2));
}

/// The connection of a peer that sends a long message in small pieces is ended, but not that of a
/// peer that makes progress.
#[test]
fn trickling_peer_releases_message_memory() {
    let settings = ConnectionConfig::default().recv_size(1000).max_message(400_000);
    let limits = Limits::default().max_unfinished_bytes(200_000);
    let simulation = Simulation::limited(1, Link { capacity: 4_000, ..Link::default() }, limits);
    let ((_, trickling), _trickled) = simulation.connect(&settings);
    let cx = &mut Context::from_waker(Waker::noop());
    let mut sending = pin!(trickling.send_copy(&[3; 300_000]));
    for _ in 0..6 {
        assert!(sending.as_mut().poll(cx).is_pending());
        pass(&simulation, Duration::ZERO);
    }
    // The peer is never silent for a second.
    for _ in 0..8 {
        simulation.network().advance(Duration::from_millis(400));
        if sending.as_mut().poll(cx).is_ready() {
            break;
        }
        simulation.client.pump();
        simulation.server.pump();
        simulation.network().step();
    }
    let (other, _stopped) = simulation.with_other_client();
    let ((_, client), (_, server)) = other.connect(&settings);
    other.run(send_all(&client, &[90_000, 90_000]), receive_all_of(&server, 2));
}

/// Long messages that the program keeps delay the next one, which arrives after one was dropped.
#[test]
fn kept_long_messages_bounded() {
    let settings = ConnectionConfig::default().recv_size(100).recv_depth(32).max_message(10_000);
    let simulation = Simulation::new(1, Link { capacity: 4_000, ..Link::default() });
    let ((_, client), (_, server)) = simulation.connect(&settings);
    let lengths = [9_000; 10];
    let mut sending = pin!(send_all(&client, &lengths));
    let cx = &mut Context::from_waker(Waker::noop());
    let mut kept = Vec::new();
    for _ in 0..200 {
        assert!(sending.as_mut().poll(cx).is_pending());
        pass(&simulation, Duration::from_millis(1));
        if let std::task::Poll::Ready(received) = pin!(server.recv()).poll(cx) {
            kept.push(received.unwrap().expect("a message"));
        }
    }
    assert_eq!(kept.len(), 2, "the second one began while the first one left room");
    simulation.run(sending, async {
        let mut number = 0;
        for received in kept {
            assert!(*received == message(number, 9_000));
            number += 1;
        }
        while let Some(received) = server.recv().await.unwrap() {
            assert!(*received == message(number, 9_000));
            number += 1;
        }
        assert_eq!(number, 10);
    });
}

/// In this case no receive is posted, so none is flushed.
#[test]
fn end_reported_while_messages_kept() {
    for orderly in [true, false] {
        let simulation = Simulation::new(1, Link::default());
        let ((_, client), (_, server)) =
            simulation.connect(&ConnectionConfig::default().recv_depth(2));
        let (kept, ()) = simulation.run(
            async {
                let first = server.recv().await.unwrap().unwrap();
                [first, server.recv().await.unwrap().unwrap()]
            },
            async {
                client.send_copy(b"one").await.unwrap();
                client.send_copy(b"two").await.unwrap();
            },
        );
        if orderly {
            client.qp().disconnect().unwrap();
        } else {
            simulation.network().cut(CLIENT, SERVER);
        }
        let (received, ()) = simulation.run(server.recv(), async {});
        assert_eq!(received.is_ok_and(|message| message.is_none()), orderly);
        drop(kept);
    }
}

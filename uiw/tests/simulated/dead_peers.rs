//! Tests of peers and paths that have failed, with a virtual clock.

use std::time::Duration;

use uiw::{ConnectionConfig, ErrorKind, WcStatus};
use uiw_testkit::sim::Link;

use crate::link::{CLIENT, SERVER, Simulation};

const LATENCY: Duration = Duration::from_millis(20);

fn simulation() -> Simulation {
    Simulation::new(1, Link { latency: LATENCY, ..Link::default() })
}

/// Stops both directions between client and server, or lets them continue.
fn stall(simulation: &Simulation, on: bool) {
    simulation.network().stall(CLIENT, SERVER, on);
    simulation.network().stall(SERVER, CLIENT, on);
}

#[test]
fn lost_path_ends_busy_connection() {
    let simulation = simulation();
    let settings = ConnectionConfig::default().dead_after(Duration::from_secs(20));
    let ((_, client), (_, server)) = simulation.connect(&settings);
    simulation.run(async { client.send_copy(b"before").await.unwrap() }, async {
        server.recv().await.unwrap().unwrap();
    });
    stall(&simulation, true);
    let start = simulation.now();
    let (ending, ()) = simulation.run(
        async {
            // TCP accepts the first message. The Read waits for its answer.
            client.send_copy(b"lost").await.unwrap();
            client.ended().await
        },
        async {},
    );
    let took = simulation.now() - start;
    assert!((Duration::from_secs(20)..Duration::from_secs(25)).contains(&took), "{took:?}");
    assert_eq!(ending.silent_for, Some(Duration::from_secs(20)));
    assert!(!ending.orderly && ending.reason.is_none());
    assert_eq!(ending.to_string(), "nothing acknowledged for 20s");
}

#[test]
fn short_outage_ends_nothing() {
    let simulation = simulation();
    let ((_, client), (_, server)) = simulation.connect(&ConnectionConfig::default());
    stall(&simulation, true);
    simulation.run(async { client.send_copy(b"late").await.unwrap() }, async {});
    for _ in 0..14 * 60 {
        simulation.network().advance(Duration::from_secs(1));
        simulation.round();
    }
    stall(&simulation, false);
    let ((), message) = simulation.run(async {}, async { server.recv().await.unwrap().unwrap() });
    assert_eq!(*message, *b"late");
}

/// TCP acknowledges bytes although the program receives nothing.
#[test]
fn busy_receiver_is_not_dead() {
    let simulation = simulation();
    let settings = ConnectionConfig::default().recv_depth(1).dead_after(Duration::from_secs(2));
    let ((pd, client), (_, server)) = simulation.connect(&settings);
    const LEN: usize = 64 << 10;
    let sends: Vec<_> = (0..16).map(|_| client.send(pd.register(vec![7; LEN]).unwrap())).collect();
    let ((), kept) = simulation.run(async {}, async { server.recv().await.unwrap().unwrap() });
    for _ in 0..60 {
        simulation.network().advance(Duration::from_secs(1));
        simulation.round();
    }
    drop(kept);
    simulation.run(
        async {
            for send in sends {
                send.await.unwrap();
            }
        },
        async {
            for _ in 1..16 {
                assert_eq!(server.recv().await.unwrap().unwrap().len(), LEN);
            }
        },
    );
}

/// Each request of a dead connection completes with a status.
#[test]
fn requests_of_dead_connection_complete() {
    let simulation = simulation();
    let settings = ConnectionConfig::default().dead_after(Duration::from_secs(20));
    let ((pd, client), (_, server)) = simulation.connect(&settings);
    stall(&simulation, true);
    // This is more than the path accepts.
    let sends: Vec<_> =
        (0..8).map(|_| client.send(pd.register(vec![7; 128 << 10]).unwrap())).collect();
    let (statuses, ()) = simulation.run(
        async {
            let mut statuses = Vec::new();
            for send in sends {
                statuses.push(match send.await {
                    Ok(_) => WcStatus::Success,
                    Err(failed) => match failed.error.kind() {
                        ErrorKind::Completed { status, .. } => *status,
                        ErrorKind::Ended { reason, .. } => {
                            assert_eq!(reason.silent_for, Some(Duration::from_secs(20)));
                            WcStatus::Flushed
                        }
                        error => panic!("{error}"),
                    },
                });
            }
            statuses
        },
        async {},
    );
    let first = statuses.iter().position(|status| *status != WcStatus::Success).unwrap();
    assert_eq!(statuses[first], WcStatus::RetryExceeded);
    assert!(
        statuses[first + 1..].iter().all(|status| *status == WcStatus::Flushed),
        "{statuses:?}"
    );
    drop(server);
}

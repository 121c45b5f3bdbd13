//! Tests of a connection that breaks at any byte, in either direction. All operations must end
//! exactly once, and nothing may hang or panic.

use std::net::{IpAddr, Ipv4Addr};

use uiw::{Access, Connection, ConnectionConfig, Error, ErrorKind, Pd, RemoteMr, WcStatus};
use uiw_testkit::sim::{Link, Split};

use crate::link::Simulation;

/// Results of the client's operations.
#[derive(Debug, Default, PartialEq, Eq)]
struct ClientResults {
    succeeded: usize,
    failed: usize,
    /// Number of operations that succeeded although an operation posted earlier had failed.
    out_of_order: usize,
}

const OPERATIONS: usize = 8;

async fn client(connection: &Connection, pd: &Pd) -> ClientResults {
    let mut outcome = ClientResults::default();
    let Ok(Some(hello)) = connection.recv().await else {
        return outcome;
    };
    let remote = RemoteMr::from_bytes(&hello).unwrap();
    let buffer = |len: usize| pd.register(vec![0xC3; len]).unwrap();
    let counter = remote.slice(4_096..4_104).unwrap();
    let all = [
        connection.write(buffer(3_000), remote),
        connection.send(buffer(700)),
        connection.read(buffer(2_000), remote),
        connection.write_imm(buffer(10), remote, 7),
        connection.send_solicited(buffer(0)),
        connection.read(buffer(1), counter),
        connection.send_imm(buffer(5), 9),
        connection.write(buffer(1), remote),
    ];
    assert_eq!(all.len(), OPERATIONS);
    let mut failed = false;
    for op in all {
        let (result, back) = match op.await {
            Ok(back) => (Ok(()), back),
            Err(failed) => (Err(failed.error), failed.buffer),
        };
        assert_eq!(back.bytes().len(), back.into_inner().len(), "the buffer came back");
        match result {
            Ok(()) => {
                outcome.succeeded += 1;
                outcome.out_of_order += usize::from(failed);
            }
            Err(error) => {
                check_error(&error);
                failed = true;
                outcome.failed += 1;
            }
        }
    }
    // This fails if the connection has already ended.
    if connection.qp().disconnect().is_ok() {
        connection.ended().await;
    }
    outcome
}

fn check_error(error: &Error) {
    let expected = match error.kind() {
        ErrorKind::Completed { status, .. } => {
            matches!(status, WcStatus::RetryExceeded | WcStatus::Fatal)
        }
        ErrorKind::Closed { .. }
        | ErrorKind::Ended { .. }
        | ErrorKind::State { .. }
        | ErrorKind::NotConnected => true,
        _ => false,
    };
    assert!(expected, "{error:?}");
}

async fn server(connection: &Connection, pd: &Pd) {
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let memory = pd.share(8_192, access).unwrap();
    let hello = memory.remote(0..8_192).unwrap().to_bytes();
    if connection.send_copy(&hello).await.is_err() {
        return;
    }
    while let Ok(Some(message)) = connection.recv().await {
        // A completed message must be complete and correct.
        assert!(message.iter().all(|byte| *byte == 0xC3), "a message is whole");
    }
}

const ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];

/// Cuts the direction from `ADDRESSES[from]` after `at` bytes. Returns `None` if the connection
/// could not be established.
fn conversation(from: usize, at: u64, fin: bool) -> Option<ClientResults> {
    let simulation =
        Simulation::new(at, Link { recv_split: Split::Random(900), ..Link::default() });
    simulation.network().change_link(ADDRESSES[from], ADDRESSES[1 - from], |link| {
        if fin {
            link.fin_at = Some(at);
        } else {
            link.cut_at = Some(at);
        }
    });
    let settings = ConnectionConfig::default();
    let (client_end, server_end) = simulation.try_connect(&settings);
    let (outcome, ()) = simulation.run(
        async {
            match &client_end {
                Ok((pd, connection)) => Some(client(connection, pd).await),
                Err(_) => None,
            }
        },
        async {
            if let (Some((pd, connection)), Ok(_)) = (&server_end, &client_end) {
                server(connection, pd).await;
            }
        },
    );
    outcome
}

fn every_cut(from: usize, fin: bool) {
    let whole = conversation(from, u64::MAX, fin).unwrap();
    assert_eq!(whole, ClientResults { succeeded: OPERATIONS, failed: 0, out_of_order: 0 });
    let mut broke = 0;
    // Every byte of the startup and of the first messages, then every eleventh.
    for at in (0..300).chain((300..9_000).step_by(11)) {
        if let Some(outcome) = conversation(from, at, fin) {
            let seen = outcome.succeeded + outcome.failed;
            assert!(seen == 0 || seen == OPERATIONS, "cut at {at}: {outcome:?}");
            assert_eq!(outcome.out_of_order, 0, "cut at {at}: completions are in order");
            broke += usize::from(outcome.failed > 0);
        }
    }
    assert!(broke > 50, "only {broke} cuts hit an operation");
}

#[test]
fn reset_from_the_client() {
    every_cut(0, false);
}

#[test]
fn reset_from_the_server() {
    every_cut(1, false);
}

#[test]
fn fin_from_the_client() {
    every_cut(0, true);
}

#[test]
fn fin_from_the_server() {
    every_cut(1, true);
}

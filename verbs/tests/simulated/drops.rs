//! Futures that are dropped halfway, and wakers that call back into the connection.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use llp::sim::Link;
use verbs::{Access, ConnSettings, Mr, Op, Pd};

use crate::link::Simulation;

/// A link on which a message of some thousand octets is under way for a while.
fn narrow() -> Link {
    Link { capacity: 1000, ..Link::default() }
}

fn buffer(pd: &Pd, octet: u8, len: usize) -> Mr<Vec<u8>> {
    pd.register(vec![octet; len]).unwrap()
}

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

#[test]
fn a_cancelled_operation_leaves_its_turn_to_nobody() {
    let simulation = Simulation::new(1, narrow());
    let settings = ConnSettings { send_depth: 1, ..ConnSettings::default() };
    let ((pd, client), (_, server)) = simulation.connect(&settings);
    let first = client.send(buffer(&pd, 1, 8000));
    let cancelled = client.send(buffer(&pd, 2, 1));
    let third = client.send(buffer(&pd, 3, 1));
    drop(cancelled);
    let fourth = client.send(buffer(&pd, 4, 1));
    simulation.run(
        async {
            for op in [first, third, fourth] {
                op.await.0.unwrap();
            }
        },
        async {
            for octet in [1, 3, 4] {
                assert_eq!(server.recv().await.unwrap()[0], octet, "messages keep their order");
            }
        },
    );
}

#[test]
fn a_grant_that_nobody_waits_for_does_not_end_the_connection() {
    let simulation = Simulation::new(1, Link { capacity: 64 << 10, ..Link::default() });
    let ((pd, client), (server_pd, server)) = simulation.connect(&ConnSettings::default());
    let target = server_pd.share(4 << 20, Access::REMOTE_WRITE).unwrap();
    let own = pd.share(4096, Access::empty()).unwrap();
    let write = client.write(buffer(&pd, 5, 4 << 20), target.remote(0..4 << 20).unwrap());
    {
        // The bind waits behind the Write.
        let mut grant = pin!(client_grant(&own, &client));
        assert!(grant.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    drop(own);
    simulation.run(
        async {
            write.await.0.unwrap();
            client.send_copy(b"still here").await.unwrap();
        },
        async { assert_eq!(*server.recv().await.unwrap(), *b"still here") },
    );
}

async fn client_grant(memory: &verbs::SharedMr, connection: &verbs::Connection) {
    let _ = memory.grant(connection, 0..4096, Access::REMOTE_READ).await;
}

/// Drops an operation when woken.
struct Dropper(Mutex<Option<Op<Vec<u8>>>>);

impl Wake for Dropper {
    fn wake(self: Arc<Self>) {
        self.0.lock().unwrap().take();
    }
}

#[test]
fn a_waker_may_drop_operations_of_the_same_connection() {
    let (done, over) = mpsc::channel();
    std::thread::spawn(move || {
        let simulation = Simulation::new(1, narrow());
        let mut settings = ConnSettings { send_depth: 1, ..ConnSettings::default() };
        // Reads are refused when their turn comes.
        (settings.options.ird, settings.options.ord) = (0, 0);
        let ((pd, client), (server_pd, server)) = simulation.connect(&settings);
        let memory = server_pd.share(64, Access::REMOTE_READ).unwrap();
        let first = client.send(buffer(&pd, 1, 8000));
        let mut refused = client.read(buffer(&pd, 0, 64), memory.remote(0..64).unwrap());
        let dropped = client.send(buffer(&pd, 2, 1));
        let waker = Waker::from(Arc::new(Dropper(Mutex::new(Some(dropped)))));
        assert!(poll(&mut refused, &waker).is_pending());
        simulation.run(async { first.await.0.unwrap() }, async { drop(server.recv().await.unwrap()) });
        assert!(matches!(poll(&mut refused, Waker::noop()), Poll::Ready((Err(_), _))));
        done.send(()).unwrap();
    });
    over.recv_timeout(Duration::from_secs(20)).expect("no lock is held while wakers run");
}

/// What was posted arrives, though nobody waits for it and the connection's last handle is gone.
#[test]
fn a_dropped_connection_still_sends_what_was_posted() {
    let simulation = Simulation::new(5, Link { capacity: 500, ..Link::default() });
    let settings = ConnSettings { recv_size: 64 << 10, ..ConnSettings::default() };
    let ((pd, client), (_, server)) = simulation.connect(&settings);
    let octets: Vec<u8> = (0..40_000u32).map(|i| (i / 7) as u8).collect();
    let wanted = octets.clone();
    simulation.run(
        async move {
            drop(client.send(pd.register(octets).unwrap()));
            drop(client);
        },
        async {
            let message = server.recv().await.unwrap();
            assert!(*message == *wanted, "the message is whole");
            drop(message);
            assert!(server.ended().await.orderly);
        },
    );
}

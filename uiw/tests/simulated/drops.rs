//! Tests of futures that are dropped while in progress, and of wakers that call the connection.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use uiw::raw::QpState;
use uiw::{Access, BufferOp, ConnectionConfig, ErrorKind, IoBuf, Mr, Pd};
use uiw_testkit::sim::Link;

use crate::link::Simulation;

/// Returns a link on which a message of some thousand bytes is in progress for a while.
fn narrow() -> Link {
    Link { capacity: 1000, ..Link::default() }
}

fn buffer(pd: &Pd, byte: u8, len: usize) -> Mr<Vec<u8>> {
    pd.register(vec![byte; len]).unwrap()
}

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

#[test]
fn dropped_operation_posted_in_order() {
    let simulation = Simulation::new(1, narrow());
    let settings = ConnectionConfig::default().send_depth(1);
    let ((pd, client), (_, server)) = simulation.connect(&settings);
    let first = client.send(buffer(&pd, 1, 8000));
    drop(client.send(buffer(&pd, 2, 1)));
    let third = client.send(buffer(&pd, 3, 1));
    simulation.run(
        async {
            for op in [first, third] {
                op.await.unwrap();
            }
        },
        async {
            for byte in [1, 2, 3] {
                assert_eq!(
                    server.recv().await.unwrap().unwrap()[0],
                    byte,
                    "messages keep their order"
                );
            }
        },
    );
}

#[test]
fn abandoned_bind_keeps_connection() {
    let simulation = Simulation::new(1, Link { capacity: 64 << 10, ..Link::default() });
    let ((pd, client), (server_pd, server)) = simulation.connect(&ConnectionConfig::default());
    let target = server_pd.share(4 << 20, Access::REMOTE_WRITE).unwrap();
    let own = pd.share(4096, Access::empty()).unwrap();
    let write = client.write(buffer(&pd, 5, 4 << 20), target.remote(0..4 << 20).unwrap());
    {
        // The bind has to wait for the Write.
        let mut window = pin!(client_window(&own, &client));
        assert!(window.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    drop(own);
    simulation.run(
        async {
            write.await.unwrap();
            client.send_copy(b"still here").await.unwrap();
        },
        async { assert_eq!(*server.recv().await.unwrap().unwrap(), *b"still here") },
    );
}

async fn client_window(memory: &uiw::SharedMr, connection: &uiw::Connection) {
    let _ = connection.bind_window(memory, 0..4096, Access::REMOTE_READ).await;
}

/// Waker that drops an operation.
struct DropOnWake(Mutex<Option<BufferOp<Vec<u8>>>>);

impl Wake for DropOnWake {
    fn wake(self: Arc<Self>) {
        self.0.lock().unwrap().take();
    }
}

#[test]
fn waker_drops_operations_of_connection() {
    let (done, over) = mpsc::channel();
    std::thread::spawn(move || {
        let simulation = Simulation::new(1, narrow());
        let mut settings = ConnectionConfig::default().send_depth(1);
        // Reads are refused when they are posted.
        (settings.options.ird, settings.options.ord) = (0, 0);
        let ((pd, client), (server_pd, server)) = simulation.connect(&settings);
        let memory = server_pd.share(64, Access::REMOTE_READ).unwrap();
        let first = client.send(buffer(&pd, 1, 8000));
        let mut refused = client.read(buffer(&pd, 0, 64), memory.remote(0..64).unwrap());
        let dropped = client.send(buffer(&pd, 2, 1));
        let waker = Waker::from(Arc::new(DropOnWake(Mutex::new(Some(dropped)))));
        assert!(poll(&mut refused, &waker).is_pending());
        simulation.run(async { first.await.unwrap() }, async {
            drop(server.recv().await.unwrap().unwrap());
        });
        assert!(matches!(poll(&mut refused, Waker::noop()), Poll::Ready(Err(_))));
        done.send(()).unwrap();
    });
    over.recv_timeout(Duration::from_secs(20)).expect("no lock is held while wakers run");
}

/// Dropped operations arrive even after the last handle of the connection was dropped, whether they
/// were posted or wait for room.
#[test]
fn dropped_connection_finishes_operations() {
    let simulation = Simulation::new(5, Link { capacity: 500, ..Link::default() });
    let settings = ConnectionConfig::default().recv_size(64 << 10).send_depth(1);
    let ((pd, client), (_, server)) = simulation.connect(&settings);
    let bytes: Vec<u8> = (0..40_000u32).map(|i| (i / 7) as u8).collect();
    let wanted = bytes.clone();
    simulation.run(
        async move {
            for _ in 0..3 {
                drop(client.send(pd.register(bytes.clone()).unwrap()));
            }
            drop(client);
        },
        async {
            for _ in 0..3 {
                assert!(*server.recv().await.unwrap().unwrap() == *wanted, "the message is whole");
            }
            assert!(server.ended().await.orderly);
        },
    );
}

/// Buffer whose counter shows whether it was freed.
struct CountedBuffer {
    bytes: Vec<u8>,
    _alive: Arc<()>,
}

// SAFETY: as for the vector, which nothing else uses.
unsafe impl IoBuf for CountedBuffer {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }
}

#[test]
fn detached_operations_time_out() {
    const TIMEOUT: Duration = Duration::from_secs(7);
    let simulation = Simulation::new(6, Link { capacity: 500, ..Link::default() });
    let mut settings = ConnectionConfig::default().send_depth(2).recv_depth(1);
    settings.options.no_receive_timeout = Duration::MAX;
    settings.detached_timeout = TIMEOUT;
    let ((pd, client), (_, server)) = simulation.connect(&settings);
    let alive = Arc::new(());
    let start = simulation.now();
    simulation.run(
        async {
            client.send_copy(b"kept").await.unwrap();
            for _ in 0..4 {
                let buffer = CountedBuffer { bytes: vec![9; 8000], _alive: Arc::clone(&alive) };
                drop(client.send(pd.register(buffer).unwrap()));
            }
            drop(client);
            assert_eq!(Arc::strong_count(&alive), 5, "every buffer is held");
        },
        async {
            // Its receive is not posted again, so the next message is never received.
            let kept = server.recv().await.unwrap().unwrap();
            assert!(!server.ended().await.orderly);
            drop(kept);
        },
    );
    let lasted = simulation.now() - start;
    assert!((TIMEOUT..TIMEOUT + Duration::from_secs(1)).contains(&lasted), "{lasted:?}");
    assert_eq!(Arc::strong_count(&alive), 1, "every buffer is freed");
}

/// Registers a buffer. The count of `alive` shows whether it was freed.
fn counted(pd: &Pd, alive: &Arc<()>) -> Mr<CountedBuffer> {
    let buffer = CountedBuffer { bytes: vec![9; 8], _alive: Arc::clone(alive) };
    pd.register(buffer).unwrap()
}

/// `outlives_peer` is for queue pairs that wait for another peer, which a connection never gets.
#[test]
fn operations_end_with_peer() {
    let simulation = Simulation::new(7, Link::default());
    let settings = ConnectionConfig::default().outlives_peer(true);
    let ((_, client), (_, server)) = simulation.connect(&settings);
    let sent = async {
        client.ended().await;
        client.send_copy(b"too late").await
    };
    let (sent, ()) = simulation.run(sent, async { drop(server) });
    assert!(matches!(sent.unwrap_err().kind(), ErrorKind::Closed { .. }));
}

/// RESET discards the posted requests, so they never complete.
#[test]
fn detached_operations_freed_after_reset() {
    let simulation = Simulation::new(8, Link::default());
    let mut settings = ConnectionConfig::default();
    settings.options.acknowledged = true;
    let ((pd, client), _server) = simulation.connect(&settings);
    let alive = Arc::new(());
    let op = client.send(counted(&pd, &alive));
    client.qp().modify(QpState::Reset).unwrap();
    drop(op);
    drop(client);
    assert_eq!(Arc::strong_count(&alive), 1);
}

/// The peer sends more messages than there are receives. Queued messages are dropped, and each
/// receive is posted again.
#[test]
fn detached_connection_discards_messages() {
    let simulation = Simulation::new(
        9,
        Link { capacity: 500, latency: Duration::from_millis(5), ..Link::default() },
    );
    let mut settings = ConnectionConfig::default().recv_depth(3).recv_size(64 << 10);
    settings.options.no_receive_timeout = Duration::from_millis(10);
    let ((pd, client), (server_pd, server)) = simulation.connect(&settings);
    let memory = server_pd.share(64, Access::REMOTE_READ).unwrap();
    let remote = memory.remote(0..1).unwrap();
    simulation.run(
        async move {
            // The Read returns the bytes that were written after the messages, so it completes
            // after the messages have arrived.
            loop {
                let bytes = client.read(buffer(&pd, 0, 1), remote).await.unwrap();
                if bytes.bytes() == [1] {
                    break;
                }
            }
            for _ in 0..3 {
                drop(client.send(buffer(&pd, 2, 40_000)));
            }
            drop(client);
        },
        async {
            for _ in 0..3 {
                server.send_copy(b"queued").await.unwrap();
            }
            memory.write(0, &[1]).unwrap();
            drop(server.recv().await.unwrap().unwrap());
            for _ in 0..20 {
                server.send_copy(b"discarded").await.unwrap();
            }
            for _ in 0..2 {
                assert_eq!(server.recv().await.unwrap().unwrap().len(), 40_000);
            }
            assert!(server.ended().await.orderly);
        },
    );
}

/// A connection is not driven if the device has no handle. Another connection is a handle, but a
/// protection domain is not.
#[test]
fn manual_device_ends_detached_operations() {
    let simulation = Simulation::new(10, narrow());
    let settings = ConnectionConfig::default().detached_timeout(Duration::MAX);
    let ((pd, client), _server) = simulation.connect(&settings);
    let ((_, other), _other_server) = simulation.connect(&settings);
    let alive = Arc::new(());
    let buffer = CountedBuffer { bytes: vec![9; 8000], _alive: Arc::clone(&alive) };
    drop(client.send(pd.register(buffer).unwrap()));
    drop(client);
    drop(simulation);
    assert_eq!(Arc::strong_count(&alive), 2, "the other connection can drive it");
    drop(other);
    assert_eq!(Arc::strong_count(&alive), 1);
    drop(pd);
}

//! Tests that operations and waits make progress without further calls by the application.

use crate::common::{TIMEOUT, connected, loopback};
use std::future::{Future, poll_fn};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};
use uiw::blocking::{ByteStream, Connection, Listener};
use uiw::llp::tcp::TcpStack;
use uiw::{Access, ConnectionConfig, Device, DeviceConfig, Progress};
use uiw_mpa::wire::startup::Frame;

#[test]
fn blocked_receivers_are_woken() {
    let ((_a, client), (_b, server)) = connected(&ConnectionConfig::default());
    let counted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Ok(Some(message)) = server.recv() {
                    assert_eq!(&*message, b"wake up");
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..300 {
            client.send_copy(b"wake up").unwrap();
        }
        assert!(client.disconnect().unwrap().orderly);
    });
    assert_eq!(counted.load(Ordering::SeqCst), 300);
}

#[test]
fn receive_with_timeout_returns() {
    let ((_a, client), (_b, server)) = connected(&ConnectionConfig::default());
    for _ in 0..5 {
        let timed_out = server.recv_timeout(Duration::from_millis(5)).unwrap_err();
        assert!(matches!(timed_out.kind(), uiw::ErrorKind::NoMessage { .. }), "{timed_out}");
    }
    client.send_copy(b"x").unwrap();
    assert!(server.recv_timeout(Duration::from_secs(20)).unwrap().is_some());
}

#[test]
fn dropped_operations_are_detached_and_freed() {
    struct CountedVec(Vec<u8>, #[expect(dead_code, reason = "counts how many are alive")] Arc<()>);
    // SAFETY: a vector's heap block does not move, and belongs to the vector.
    unsafe impl uiw::IoBuf for CountedVec {
        fn as_mut_ptr(&mut self) -> *mut u8 {
            self.0.as_mut_ptr()
        }
        fn len(&self) -> usize {
            self.0.len()
        }
    }
    // SAFETY: as above; a unique vector may be written.
    unsafe impl uiw::IoBufMut for CountedVec {}
    let alive = Arc::new(());
    let settings = ConnectionConfig::default().send_depth(4);
    let ((_a, client), (_b, server)) = connected(&settings);
    let spd = server.pd().clone();
    let shared = spd.share(1 << 20, Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
    let remote = shared.remote(0..1 << 16).unwrap();
    let pd = client.pd().clone();
    for i in 0..40 {
        let buffer = || pd.register(CountedVec(vec![i; 1 << 16], alive.clone())).unwrap();
        drop(client.read(buffer(), remote));
        drop(client.write(buffer(), remote));
    }
    let buffer = client
        .read(pd.register(CountedVec(vec![0; 16], alive.clone())).unwrap(), remote)
        .wait()
        .unwrap();
    drop(buffer);
    let until = Instant::now() + TIMEOUT;
    while Arc::strong_count(&alive) > 1 {
        assert!(Instant::now() < until, "{} buffers left", Arc::strong_count(&alive) - 1);
        let _ = client.recv_timeout(Duration::from_millis(1));
    }
    // A connect future that is dropped frees its queue pair and socket.
    let port = TcpListener::bind(loopback()).unwrap();
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let settings = ConnectionConfig::default();
    let connect = uiw::Connection::connect(&pd, port.local_addr().unwrap(), &settings);
    assert!(device.block_on_for(Duration::from_millis(30), connect).is_none());
    let (mut peer, _) = port.accept().unwrap();
    peer.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut rest = Vec::new();
    // A reset is also accepted as the end.
    if let Err(error) = peer.read_to_end(&mut rest) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    let (_, used) = Frame::parse(&rest).unwrap().expect("a start-up frame");
    assert!(rest[used..].is_empty());
}

#[test]
fn operations_waiting_for_room_complete() {
    let settings = ConnectionConfig::default().send_depth(2);
    let ((_a, client), (_b, server)) = connected(&settings);
    let pd = client.pd().clone();
    let ops: Vec<_> = (0..50u8).map(|i| client.send(pd.register(vec![i; 100]).unwrap())).collect();
    for i in 0..50u8 {
        assert_eq!(&*server.recv().unwrap().unwrap(), &[i; 100]);
    }
    for op in ops {
        op.wait().unwrap();
    }
}

#[test]
fn two_hundred_connections_at_once() {
    let server = Device::open().unwrap().alloc_pd().unwrap();
    let client = Device::open().unwrap();
    let settings = ConnectionConfig::default().recv_depth(4).recv_size(256);
    let listener = Listener::bind(&server, loopback(), &settings).unwrap();
    let addr = listener.local_addr();
    let thread = std::thread::spawn(move || {
        let all: Vec<_> = (0..200).map(|_| listener.accept().unwrap()).collect();
        for connection in &all {
            let message = connection.recv().unwrap().unwrap().to_vec();
            connection.send_copy(&message).unwrap();
        }
        for connection in &all {
            connection.ended();
        }
    });
    let pd = client.alloc_pd().unwrap();
    let all: Vec<_> =
        (0..200).map(|_| Connection::connect(&pd, addr, &settings).unwrap()).collect();
    for (i, connection) in all.iter().enumerate() {
        connection.send_copy(format!("number {i}").as_bytes()).unwrap();
    }
    for (i, connection) in all.iter().enumerate() {
        assert_eq!(&*connection.recv().unwrap().unwrap(), format!("number {i}").as_bytes());
    }
    drop(all);
    thread.join().unwrap();
}

/// With manual progress, a waiting thread drives the shards of the listener and of both ends,
/// because no other thread does.
#[test]
fn wait_drives_all_shards() {
    let options = DeviceConfig::default().progress(Progress::Manual).shards(3);
    let device = Device::with_stack(Box::new(TcpStack::new().unwrap()), options).unwrap();
    let pd = device.alloc_pd().unwrap();
    let listener = uiw::Listener::bind(&pd, loopback(), &ConnectionConfig::default()).unwrap();
    let settings = ConnectionConfig::default();
    let mut connect = pin!(uiw::Connection::connect(&pd, listener.local_addr(), &settings));
    let mut accept =
        pin!(async { listener.incoming().await.unwrap().accept(&pd, &settings).await.unwrap() });
    let (mut ours, mut theirs) = (None, None);
    let both = poll_fn(|cx| {
        if ours.is_none()
            && let Poll::Ready(connected) = connect.as_mut().poll(cx)
        {
            ours = Some(connected.unwrap());
        }
        if theirs.is_none()
            && let Poll::Ready(accepted) = accept.as_mut().poll(cx)
        {
            theirs = Some(accepted);
        }
        if ours.is_some() && theirs.is_some() { Poll::Ready(()) } else { Poll::Pending }
    });
    device.block_on_for(TIMEOUT, both).expect("both ends are established");
}

#[test]
fn blocking_server_decides_by_private_data() {
    let pd = Device::open().unwrap().alloc_pd().unwrap();
    let settings = ConnectionConfig::default();
    let listener = Listener::bind(&pd, loopback(), &settings).unwrap();
    assert!(listener.incoming_timeout(Duration::from_millis(1)).unwrap().is_none());
    let to = listener.local_addr();
    let clients = std::thread::spawn(move || {
        let pd = Device::open().unwrap().alloc_pd().unwrap();
        ["guess", "secret"].map(|word| {
            let settings = ConnectionConfig::default().private_data(word);
            Connection::connect(&pd, to, &settings)
                .map(|connection| connection.recv().unwrap().is_some())
        })
    });
    let refused = listener.incoming().unwrap();
    assert_eq!((refused.private_data(), refused.peer_identity()), (&b"guess"[..], None));
    refused.reject(b"no").unwrap();
    let incoming = listener.incoming_timeout(TIMEOUT).unwrap().unwrap();
    assert_eq!((incoming.private_data(), incoming.peer_addr().ip()), (&b"secret"[..], to.ip()));
    incoming.accept(&pd, &settings).unwrap().send_copy(b"welcome").unwrap();
    let [guess, secret] = clients.join().unwrap();
    assert!(matches!(guess.unwrap_err().kind(), uiw::ErrorKind::Rejected { .. }));
    assert!(secret.unwrap());
}

#[test]
fn accept_with_timeout_loses_no_peer() {
    let pd = Device::open().unwrap().alloc_pd().unwrap();
    let listener = Listener::bind(&pd, loopback(), &ConnectionConfig::default()).unwrap();
    let to = listener.local_addr();
    let client = std::thread::spawn(move || {
        let pd = Device::open().unwrap().alloc_pd().unwrap();
        let connection = Connection::connect(&pd, to, &ConnectionConfig::default()).unwrap();
        connection.recv().unwrap().map(|message| message.to_vec())
    });
    let until = Instant::now() + TIMEOUT;
    let connection = loop {
        if let Some(connection) = listener.accept_timeout(Duration::from_micros(50)).unwrap() {
            break connection;
        }
        assert!(Instant::now() < until, "no peer");
    };
    connection.send_copy(b"welcome").unwrap();
    assert_eq!(client.join().unwrap().as_deref(), Some(&b"welcome"[..]));
}

#[test]
fn wait_timeout_leaves_operation_under_way() {
    let settings = ConnectionConfig::default().recv_depth(1);
    let ((_a, client), (_b, server)) = connected(&settings);
    const LEN: usize = 8 << 20;
    let mut send = client.send(client.pd().register(vec![7; LEN]).unwrap());
    // This is more than TCP accepts while nothing is received.
    let mut later = client.send(client.pd().register(vec![8; 2 * LEN]).unwrap());
    let first = server.recv().unwrap().unwrap();
    assert_eq!(first.len(), LEN);
    assert!(later.wait_timeout(Duration::from_millis(20)).is_none());
    drop(first);
    assert_eq!(send.wait_timeout(TIMEOUT).unwrap().unwrap().len(), LEN);
    assert_eq!(server.recv().unwrap().unwrap()[..], vec![8; 2 * LEN]);
    assert_eq!(later.wait_timeout(TIMEOUT).unwrap().unwrap().len(), 2 * LEN);
}

/// The operations of a dropped connection are sent before the process may exit.
#[test]
fn wait_for_idle_includes_detached_operations() {
    const COUNT: usize = 50;
    let ((client_device, client), (_s, server)) = connected(&ConnectionConfig::default());
    let client = client.into_async();
    for _ in 0..COUNT {
        drop(client.send(client.pd().register(vec![0; 1 << 20]).unwrap()));
    }
    drop(client);
    let receiver = std::thread::spawn(move || (0..COUNT).all(|_| server.recv().unwrap().is_some()));
    assert!(client_device.wait_idle(Duration::MAX));
    assert_eq!(client_device.counters().total().traffic.send.sent.messages, COUNT as u64);
    assert!(receiver.join().unwrap());
}

/// The error of a lost write belongs to the writing direction, which keeps it.
#[test]
fn lost_write_does_not_disturb_reads() {
    let ((_a, client), (_b, server)) = connected(&ConnectionConfig::default().recv_depth(12));
    let (mut stream, mut peer) =
        (ByteStream::new(client).unwrap(), ByteStream::new(server).unwrap());
    for byte in 0..9 {
        peer.write_all(&[byte]).unwrap();
    }
    peer.shutdown().unwrap();
    drop(peer);
    stream.connection().ended();
    assert_eq!(stream.write(b"lost").unwrap(), 4);
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    for _ in 0..3 {
        assert_eq!(stream.flush().unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
    assert_eq!(stream.write(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
}

//! Tests of a device that tokio's reactor drives.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use futures_util::StreamExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use uiw::{ByteStream, Connection, ConnectionConfig, Device, DeviceConfig, Listener, Progress};

async fn echo(connection: Connection) {
    while let Ok(Some(message)) = connection.recv().await {
        if connection.send_copy(&message).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn tasks_talk_while_tokio_drives() {
    let (client, server) = (Device::open().unwrap(), Device::open().unwrap());
    let drivers = [&client, &server].map(|device| uiw::with_tokio::drive(device).unwrap());
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener =
        Listener::bind(&server.alloc_pd().unwrap(), any, &ConnectionConfig::default()).unwrap();
    let address = listener.local_addr();
    tokio::spawn(async move {
        loop {
            tokio::spawn(echo(listener.accept().await.unwrap()));
        }
    });
    let pd = client.alloc_pd().unwrap();
    let tasks = (0..8u8).map(|number| {
        let pd = pd.clone();
        tokio::spawn(async move {
            let settings = ConnectionConfig::default();
            let connection = Connection::connect(&pd, address, &settings).await.unwrap();
            for round in 0..100u8 {
                let sent = [number, round];
                connection.send_copy(&sent).await.unwrap();
                assert_eq!(*connection.recv().await.unwrap().unwrap(), sent);
            }
            connection.disconnect().await.unwrap();
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let refused = uiw::with_tokio::drive(&client).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ResourceBusy, "it drives until it is stopped");
    drop(drivers);
}

#[tokio::test]
async fn only_one_task_drives() {
    let device = Device::open().unwrap();
    let first = uiw::with_tokio::drive(&device).unwrap();
    let refused = uiw::with_tokio::drive(&device).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ResourceBusy);
    drop(first);
    // The tasks end when they run the next time. Until then their descriptors are registered.
    tokio::task::yield_now().await;
    let _again = uiw::with_tokio::drive(&device).unwrap();
}

#[test]
fn drive_outside_of_runtime_refused() {
    let refused = uiw::with_tokio::drive(&Device::open().unwrap()).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::Unsupported);
}

/// Echoes messages of one peer on a device of its own. Returns its address.
fn echo_on_other_device() -> SocketAddr {
    let device = Device::open().unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let pd = device.alloc_pd().unwrap();
    let listener = Listener::bind(&pd, any, &ConnectionConfig::default()).unwrap();
    let address = listener.local_addr();
    std::thread::spawn(move || {
        device.block_on(async { echo(listener.accept().await.unwrap()).await });
    });
    address
}

/// Exchanges messages on a thread that does not return to its runtime in between.
fn exchange_blocking(device: &Device, address: SocketAddr) {
    let pd = device.alloc_pd().unwrap();
    let settings = ConnectionConfig::default();
    let connection = device.block_on(Connection::connect(&pd, address, &settings)).unwrap();
    for round in 0..10u8 {
        device.block_on(connection.send_copy(&[round])).unwrap();
        assert_eq!(*device.block_on(connection.recv()).unwrap().unwrap(), [round]);
    }
}

/// Runs `test` on a thread with a runtime, and panics if it does not end.
fn run_on_thread(test: impl FnOnce(tokio::runtime::Runtime) + Send + 'static) {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        test(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
        done.send(()).unwrap();
    });
    ended
        .recv_timeout(std::time::Duration::from_secs(60))
        .expect("the thread neither hangs nor panics");
}

#[test]
fn blocking_calls_drive_inside_runtime() {
    run_on_thread(|runtime| {
        runtime.block_on(async {
            let device = Device::open().unwrap();
            let _driver = uiw::with_tokio::drive(&device).unwrap();
            exchange_blocking(&device, echo_on_other_device());
            talk(&device).await;
        });
    });
}

#[test]
fn dropped_driver_gives_role_back_outside_runtime() {
    run_on_thread(|runtime| {
        let device = Device::open().unwrap();
        let driver = runtime.block_on(async { uiw::with_tokio::drive(&device) }).unwrap();
        exchange_blocking(&device, echo_on_other_device());
        drop(driver);
        exchange_blocking(&device, echo_on_other_device());
        // Here the background thread drives.
        let settings = ConnectionConfig::default();
        let pd = device.alloc_pd().unwrap();
        runtime.block_on(Connection::connect(&pd, echo_on_other_device(), &settings)).unwrap();
    });
}

/// Only the runtime drives the device, which has no thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn multi_thread_runtime_drives() {
    let device = Device::open_with(DeviceConfig::default().progress(Progress::Manual)).unwrap();
    let _driver = uiw::with_tokio::drive(&device).unwrap();
    talk(&device).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn multi_thread_runtime_needs_no_driver() {
    talk(&Device::open().unwrap()).await;
}

async fn talk(device: &Device) {
    let pd = device.alloc_pd().unwrap();
    let settings = ConnectionConfig::default();
    let listener = Listener::bind(&pd, SocketAddr::from(([127, 0, 0, 1], 0)), &settings).unwrap();
    let address = listener.local_addr();
    let server = tokio::spawn(async move { echo(listener.accept().await.unwrap()).await });
    let connection = Connection::connect(&pd, address, &settings).await.unwrap();
    connection.send_copy(b"there and back").await.unwrap();
    assert_eq!(*connection.recv().await.unwrap().unwrap(), *b"there and back");
    connection.disconnect().await.unwrap();
    server.await.unwrap();
}

/// Copies bytes between a stream and its halves with tokio's own function.
#[tokio::test]
async fn bytes_are_copied_both_ways() {
    let device = Device::open().unwrap();
    let driver = uiw::with_tokio::drive(&device).unwrap();
    let pd = device.alloc_pd().unwrap();
    let settings = ConnectionConfig::default();
    let mut listener =
        Listener::bind(&pd, SocketAddr::from(([127, 0, 0, 1], 0)), &settings).unwrap();
    let address = listener.local_addr();
    let server = tokio::spawn(async move {
        let connection = listener.next().await.unwrap().unwrap();
        let mut stream = ByteStream::new(connection).unwrap();
        let (mut read, mut write) = tokio::io::split(&mut stream);
        let copied = tokio::io::copy(&mut read, &mut write).await.unwrap();
        write.shutdown().await.unwrap();
        stream.connection().ended().await;
        copied
    });
    let connection = Connection::connect(&pd, address, &settings).await.unwrap();
    let (mut read, mut write) = tokio::io::split(ByteStream::new(connection).unwrap());
    let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i >> 5) as u8).collect();
    let copy = sent.clone();
    let writer = tokio::spawn(async move {
        write.write_all(&copy).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    read.read_to_end(&mut back).await.unwrap();
    assert!(back == sent);
    writer.await.unwrap();
    drop(read);
    assert_eq!(server.await.unwrap(), sent.len() as u64);
    drop(driver);
}

#[derive(Default)]
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl WakeFlag {
    fn is(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// The halves of a stream belong to different tasks. A reader that grants credits polls the same
/// messages in flight for which the writer waits.
#[tokio::test]
async fn reader_keeps_wake_up_of_writer() {
    const PAYLOAD: usize = 256 << 10;
    let device = Device::open().unwrap();
    let driver = uiw::with_tokio::drive(&device).unwrap();
    let pd = device.alloc_pd().unwrap();
    let settings = ConnectionConfig::default().recv_depth(32).recv_size(PAYLOAD as u32 + 8);
    let mut listener =
        Listener::bind(&pd, SocketAddr::from(([127, 0, 0, 1], 0)), &settings).unwrap();
    let (connected, accepted) =
        tokio::join!(Connection::connect(&pd, listener.local_addr(), &settings), listener.next());
    let mut stream = ByteStream::new(connected.unwrap()).unwrap();
    let mut peer = ByteStream::new(accepted.unwrap().unwrap()).unwrap();
    // The peer has credits for 30 messages, and gets new ones after half of them were read.
    for byte in 0..20u8 {
        AsyncWriteExt::write_all(&mut peer, &[byte]).await.unwrap();
    }
    AsyncWriteExt::flush(&mut peer).await.unwrap();
    // Each end has also sent a message with its credits.
    while device.counters().total().traffic.send.received.messages < 20 + 2 {
        tokio::task::yield_now().await;
    }
    let mut read = [0; 4];
    for byte in 0..4u8 {
        AsyncReadExt::read_exact(&mut stream, &mut read[..1]).await.unwrap();
        assert_eq!(read[0], byte);
    }
    // This is more than the socket accepts at once, and nothing drives the device while this task
    // runs.
    let writer = Arc::new(WakeFlag::default());
    let waker = Waker::from(Arc::clone(&writer));
    let block = vec![0; PAYLOAD];
    let mut cx = Context::from_waker(&waker);
    while Pin::new(&mut stream).poll_write(&mut cx, &block).is_ready() {}
    assert!(Pin::new(&mut stream).poll_flush(&mut cx).is_pending());
    writer.0.store(false, Ordering::SeqCst);
    assert!(Pin::new(&mut stream).poll_flush(&mut cx).is_pending());
    let reader = Arc::new(WakeFlag::default());
    let waker = Waker::from(Arc::clone(&reader));
    let mut cx = Context::from_waker(&waker);
    for _ in 4..20 {
        assert!(Pin::new(&mut stream).poll_read(&mut cx, &mut ReadBuf::new(&mut read)).is_ready());
    }
    while !writer.is() && !reader.is() {
        tokio::task::yield_now().await;
    }
    assert!(writer.is(), "the writer waits for a message that was sent");
    drop(driver);
}

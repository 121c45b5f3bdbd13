//! Tests of wakers and of waiting futures.

use crate::common::connected_on;
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};
use uiw::blocking::Connection;
use uiw::{ConnectionConfig, Device};

/// Waker that blocks until a message has arrived, like a badly behaved program.
struct WaitingWaker(Connection, Mutex<Option<mpsc::Sender<(bool, Duration)>>>);

impl Wake for WaitingWaker {
    fn wake(self: Arc<Self>) {
        // The waker is called again when its own connection ends.
        let Some(tx) = self.1.lock().unwrap().take() else { return };
        let start = Instant::now();
        let message = self.0.recv_timeout(Duration::from_secs(5)).unwrap();
        tx.send((message.is_some(), start.elapsed())).unwrap();
    }
}

#[test]
fn waker_may_wait() {
    let (a, b) = (Device::open().unwrap(), Device::open().unwrap());
    let ((first, first_peer), (second, second_peer)) = (
        connected_on(&a, &b, &ConnectionConfig::default()),
        connected_on(&a, &b, &ConnectionConfig::default()),
    );
    let (tx, rx) = mpsc::channel();
    let waker = Waker::from(Arc::new(WaitingWaker(second, Mutex::new(Some(tx)))));
    let mut recv = pin!(first.as_async().recv());
    assert!(recv.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            first_peer.send_copy(b"wake").unwrap();
            std::thread::sleep(Duration::from_millis(200));
            second_peer.send_copy(b"message").unwrap();
        });
        // This thread sleeps on the descriptor, and calls the waker.
        a.block_on_for(Duration::from_secs(1), std::future::pending::<()>());
    });
    let (message, waited) = rx.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(message && waited < Duration::from_secs(3), "no thread drove for {waited:?}");
}

#[test]
fn waiting_future_never_blocks() {
    let (a, b) = (Device::open().unwrap(), Device::open().unwrap());
    let ((first, first_peer), (second, second_peer)) = (
        connected_on(&a, &b, &ConnectionConfig::default()),
        connected_on(&a, &b, &ConnectionConfig::default()),
    );
    let (tx, rx) = mpsc::channel();
    let begun = Instant::now();
    let waited = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            first_peer.send_copy(b"wake").unwrap();
            std::thread::sleep(Duration::from_millis(200));
            second_peer.send_copy(b"message").unwrap();
        });
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            tx.send(second.recv_timeout(Duration::from_secs(5)).unwrap().is_some()).unwrap();
        });
        // This thread drives the device when the other thread begins to wait, and then stops
        // driving for a while.
        a.block_on(async {
            first.as_async().recv().await.unwrap().unwrap();
            assert!(rx.recv().unwrap());
        });
        begun.elapsed()
    });
    assert!(waited < Duration::from_secs(3), "no thread drove for {waited:?}");
}

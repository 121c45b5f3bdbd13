//! Stress test with many threads and connections on one device. Operations and connections are
//! dropped at any time, and all data that arrives must be correct.

use crate::common::loopback;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use uiw::blocking::{Connection, Listener};
use uiw::{Access, ConnectionConfig, Device, Pd, RemoteMr, SharedMr};

const FOR: Duration = Duration::from_secs(3);
const THREADS: u64 = 4;
const BLOCK: usize = 64 << 10;

/// xorshift generator, so that the same seed leads to the same rounds.
struct SeededDice(u64);

impl SeededDice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(29).wrapping_add(seed)).collect()
}

/// Echoes messages until the client closes the connection, or sometimes stops earlier.
async fn serve(connection: &uiw::Connection, memory: &SharedMr, mut dice: SeededDice) {
    let key = memory.remote(0..memory.len()).unwrap().to_bytes();
    if connection.send_copy(&key).await.is_err() {
        return;
    }
    while let Ok(Some(message)) = connection.recv().await {
        if dice.below(200) == 0 || connection.send_copy(&message).await.is_err() {
            return;
        }
    }
}

struct StressClient<'a> {
    connection: Connection,
    pd: &'a Pd,
    remote: RemoteMr,
}

impl<'a> StressClient<'a> {
    fn new(pd: &'a Pd, to: std::net::SocketAddr) -> Option<Self> {
        let settings = ConnectionConfig::default().send_depth(4).recv_depth(8);
        let connection = Connection::connect(pd, to, &settings).ok()?;
        let remote = RemoteMr::from_bytes(&connection.recv().ok()??).unwrap();
        Some(Self { connection, pd, remote })
    }

    /// Runs a round of different operations. Returns `None` if the connection has ended.
    fn round(&self, dice: &mut SeededDice) -> Option<()> {
        let seed = dice.below(256) as u8;
        let len = dice.below(BLOCK as u64 / 2) as usize;
        let at = self.remote.slice(0..BLOCK).unwrap();
        let block = |len| self.pd.register(bytes(seed, len)).unwrap();
        let write = self.connection.write(block(len), at);
        let read = self.connection.read(self.pd.register(vec![0; len]).unwrap(), at);
        let echo = bytes(seed, 1 + dice.below(4000) as usize);
        let send = self.connection.send(self.pd.register(echo.clone()).unwrap());
        // More operations than the send queue has room for are dropped while they wait or are being
        // sent. They write to a different block.
        let elsewhere = self.remote.slice(BLOCK..2 * BLOCK).unwrap();
        for _ in 0..dice.below(6) {
            drop(self.connection.write(block(dice.below(BLOCK as u64) as usize), elsewhere));
        }
        let message = self.connection.recv().ok()??;
        assert!(*message == echo, "the echo of {} bytes", echo.len());
        send.wait().ok()?;
        let source = write.wait().ok()?;
        let back = read.wait().ok()?;
        assert!(source.bytes() == back.bytes(), "{len} bytes written and read back");
        Some(())
    }
}

fn client(device: &Device, to: std::net::SocketAddr, mut dice: SeededDice, rounds: &AtomicU64) {
    let pd = device.alloc_pd().unwrap();
    let end = Instant::now() + FOR;
    let mut clients = [None, None];
    while Instant::now() < end {
        let slot = &mut clients[dice.below(2) as usize];
        if slot.is_none() {
            *slot = StressClient::new(&pd, to);
        }
        let Some(client) = slot else { continue };
        if client.round(&mut dice).is_some() {
            rounds.fetch_add(1, Ordering::Relaxed);
        } else {
            *slot = None;
            continue;
        }
        match dice.below(100) {
            // Close the connection while operations wait or are posted.
            0 => {
                let at = client.remote.slice(BLOCK..2 * BLOCK).unwrap();
                let ops: Vec<_> = (0..8)
                    .map(|_| client.connection.read(pd.register(vec![0; BLOCK]).unwrap(), at))
                    .collect();
                *slot = None;
                drop(ops);
            }
            1 => *slot = None,
            2 => {
                let _ = client.connection.disconnect();
                *slot = None;
            }
            _ => {}
        }
    }
}

fn stress(rounds: &AtomicU64) {
    let (device, other) = (Device::open().unwrap(), Device::open().unwrap());
    let listener =
        Listener::bind(&other.alloc_pd().unwrap(), loopback(), &ConnectionConfig::default())
            .unwrap();
    let to = listener.local_addr();
    let stop = AtomicBool::new(false);
    let (stop, listener, other) = (&stop, &listener, &other);
    std::thread::scope(|scope| {
        let accepting = scope.spawn(move || {
            let pd = other.alloc_pd().unwrap();
            let mut served = 1;
            while !stop.load(Ordering::SeqCst) {
                let Some(incoming) = listener.incoming_timeout(Duration::from_millis(100)).unwrap()
                else {
                    continue;
                };
                served += 1;
                let pd = pd.clone();
                scope.spawn(move || {
                    let settings = ConnectionConfig::default().send_depth(4).recv_depth(8);
                    let accepted = incoming.accept(&pd, &settings);
                    let Ok(connection) = accepted else { return };
                    // Each connection of a client has its own block.
                    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
                    let memory = pd.share(2 * BLOCK, access).unwrap();
                    other.block_on(serve(
                        connection.as_async(),
                        &memory,
                        SeededDice(served * 104_729),
                    ));
                });
            }
        });
        let clients: Vec<_> = (1..=THREADS)
            .map(|seed| {
                let device = &device;
                scope.spawn(move || client(device, to, SeededDice(seed * 7919), rounds))
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        stop.store(true, Ordering::SeqCst);
        accepting.join().unwrap();
    });
}

#[test]
fn concurrent_drops_do_not_hang() {
    let rounds = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&rounds);
    let (done, over) = mpsc::channel();
    std::thread::spawn(move || {
        stress(&counted);
        done.send(()).unwrap();
    });
    let result = over.recv_timeout(Duration::from_secs(60));
    println!("{} rounds", rounds.load(Ordering::Relaxed));
    assert_eq!(result, Ok(()), "hangs, or a thread failed");
    assert!(rounds.load(Ordering::Relaxed) > 50);
}

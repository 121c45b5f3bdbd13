//! Tests that the memory of many closed connections is returned to the system without a call by the
//! application.
//!
//! This is a separate test binary, because it measures the resident memory of the whole process.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use uiw::blocking::{Connection, Listener};
use uiw::{ConnectionConfig, Device};

/// Number of threads that connect. Each thread has its own arena in the allocator.
const THREADS: usize = 4;
/// Number of connections of each thread. The descriptors of all ends stay below the usual limit of
/// 1,024.
const CONNECTIONS: usize = 100;
const TIMEOUT: Duration = Duration::from_secs(30);

fn settings() -> ConnectionConfig {
    ConnectionConfig::default().recv_depth(2).recv_size(40_000)
}

/// Returns the resident memory in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Opens connections, each of which exchanges a message.
fn connect(to: SocketAddr) -> Vec<Connection> {
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let open = |_| {
        let connection = Connection::connect(&pd, to, &settings()).unwrap();
        connection.send_copy(&[7; 40_000]).unwrap();
        connection.recv().unwrap().unwrap();
        connection
    };
    (0..CONNECTIONS).map(open).collect()
}

#[test]
fn memory_of_closed_connections_released() {
    let server = Device::open().unwrap();
    let pd = server.alloc_pd().unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&pd, any, &settings()).unwrap();
    let to = listener.local_addr();
    let before = resident();
    let clients: Vec<_> = (0..THREADS).map(|_| thread::spawn(move || connect(to))).collect();
    let accept = |_| {
        let connection = listener.accept().unwrap();
        let message = connection.recv().unwrap().unwrap();
        connection.send_copy(&message).unwrap();
        drop(message);
        connection
    };
    let accepted: Vec<_> = (0..THREADS * CONNECTIONS).map(accept).collect();
    let connected: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    let open = resident();
    drop((accepted, connected));
    let bound = before + (open - before) / 8;
    let until = Instant::now() + TIMEOUT;
    while resident() > bound {
        assert!(
            Instant::now() < until,
            "{before} KiB before, {open} with connections, {} after",
            resident()
        );
        thread::sleep(Duration::from_millis(50));
    }
    println!("{before} KiB before, {open} with connections, {} after", resident());
}

//! Writes of 1 MiB over TLS on loopback, compared with rustls over bare sockets with the same
//! buffers: `cargo xtask bench tls`.
//!
//! Slices of both alternate in one process, each on new connections. In both cases one thread sends
//! and another one receives. Ours use two devices with different keys, so that
//! TLS is not skipped.

use rustls::pki_types::ServerName;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uiw::blocking::{Connection, Listener};
use uiw::{Access, ConnectionConfig, Device, DeviceConfig};
use uiw_tls::{PinnedKeys, SecretKey, Tls, TlsConfig};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SIZE: usize = 1 << 20;
/// Number of Writes in progress.
const DEPTH: usize = 4;
/// Maximum number of bytes of one read of both receivers, which is the size of our staging buffer.
const READ: usize = 256 << 10;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let rounds: usize = arguments.next().map_or(Ok(15), |text| text.parse())?;
    let slice = Duration::from_millis(arguments.next().map_or(Ok(300), |text| text.parse())?);
    let keys = [SecretKey::generate()?, SecretKey::generate()?];
    let configs = [(0, 1), (1, 0)].map(|(own, peer): (usize, usize)| {
        let mut pinned = PinnedKeys::default();
        pinned.add(keys[peer].public_key(), "peer");
        TlsConfig::raw_keys(&keys[own], pinned)
    });
    let [client, server] = configs;
    let (client, server) = (client?, server?);
    for round in 0..=rounds {
        let ours = writes(&client, &server, slice)?;
        let bare = bare(&client, &server, slice)?;
        // The first round fills caches and memory pools.
        if round > 0 {
            println!("{{\"bytes\": [{ours}, {bare}]}}");
        }
    }
    Ok(())
}

/// Measures Writes in bytes per second.
fn writes(client: &TlsConfig, server: &TlsConfig, slice: Duration) -> Result<f64> {
    let device = |config: &TlsConfig| -> Result<Device> {
        Ok(Device::open_with(DeviceConfig::default().tls(Tls::new(config.clone())?))?)
    };
    let (server, client) = (device(server)?, device(client)?);
    let settings = ConnectionConfig::default();
    let pd = server.alloc_pd()?;
    let listener = Listener::bind(&pd, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), &settings)?;
    let to = listener.local_addr();
    let target = pd.share(SIZE, Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    let remote = target.remote(0..SIZE)?;
    let accepted = std::thread::spawn(move || -> Result<()> {
        let connection = listener.accept()?;
        // Sleeps in the device and drives it until the peer closes.
        while connection.recv()?.is_some() {}
        Ok(())
    });
    let pd = client.alloc_pd()?;
    let connection = Connection::connect(&pd, to, &settings)?;
    let mut free = Vec::new();
    for _ in 0..DEPTH {
        free.push(pd.register(vec![7u8; SIZE])?);
    }
    let begin = Instant::now();
    let (mut under_way, mut count) = (std::collections::VecDeque::new(), 0);
    while begin.elapsed() < slice {
        while let Some(source) = free.pop() {
            under_way.push_back(connection.write(source, remote));
        }
        if let Some(write) = under_way.pop_front() {
            let source = write.wait()?;
            free.push(source);
            count += 1;
        }
    }
    while let Some(write) = under_way.pop_front() {
        write.wait()?;
        count += 1;
    }
    // All Writes are placed when a Read that follows them is answered.
    connection.read(pd.register(vec![0u8; 8])?, target.remote(0..8)?).wait()?;
    let rate = (count * SIZE) as f64 / begin.elapsed().as_secs_f64();
    drop(connection);
    accepted.join().map_err(|_| "the acceptor panicked")??;
    drop(target);
    Ok(rate)
}

/// Measures rustls over bare sockets in bytes per second.
fn bare(client: &TlsConfig, server: &TlsConfig, slice: Duration) -> Result<f64> {
    let (client, server) = (client.to_rustls()?.0, server.to_rustls()?.1);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let to = listener.local_addr()?;
    let receiver = std::thread::spawn(move || -> Result<usize> {
        let (socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        let mut stream = rustls::StreamOwned::new(rustls::ServerConnection::new(server)?, socket);
        let (mut buffer, mut count) = (vec![0; READ], 0);
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(count),
                got => count += got,
            }
        }
    });
    let socket = TcpStream::connect(to)?;
    socket.set_nodelay(true)?;
    let name = ServerName::IpAddress(to.ip().into());
    let mut conn = rustls::ClientConnection::new(Arc::clone(&client), name)?;
    // The buffer has the size of our own batches.
    conn.set_buffer_limit(Some(READ));
    let mut stream = rustls::StreamOwned::new(conn, socket);
    let source = vec![7u8; SIZE];
    stream.conn.complete_io(&mut stream.sock)?;
    let begin = Instant::now();
    while begin.elapsed() < slice {
        stream.write_all(&source)?;
    }
    stream.flush()?;
    stream.conn.send_close_notify();
    stream.conn.complete_io(&mut stream.sock)?;
    let count = receiver.join().map_err(|_| "the receiver panicked")??;
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

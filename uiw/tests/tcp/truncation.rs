//! Tests of TLS streams that are truncated on the path.

use crate::common::{TIMEOUT, loopback};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use uiw::blocking::{Connection, Listener};
use uiw::tls::{PinnedKeys, SecretKey, Tls, TlsConfig};
use uiw::{ConnectionConfig, Device, DeviceConfig, ErrorKind, Pd};

/// Opens a device whose key is also the accepted key of the other end.
fn domain(key: &SecretKey) -> Pd {
    let mut pinned = PinnedKeys::default();
    pinned.add(key.public_key(), "the other end");
    let tls = Tls::new(TlsConfig::raw_keys(key, pinned).unwrap()).unwrap();
    Device::open_with(DeviceConfig::default().tls(tls)).unwrap().alloc_pd().unwrap()
}

/// Forwards bytes until the sender closes or the receiver accepts no more.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Starts a proxy for one connection to `server`. Returns its address, and a channel that later
/// receives the socket to the server.
fn proxy(server: SocketAddr) -> (SocketAddr, mpsc::Receiver<TcpStream>) {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, sockets) = mpsc::channel();
    thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(server).unwrap();
        tell.send(server.try_clone().unwrap()).unwrap();
        let (to_client, from_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        thread::spawn(move || pass(from_server, to_client));
        pass(client, server);
    });
    (address, sockets)
}

#[test]
fn fin_without_close_notify_rejected() {
    let key = SecretKey::generate().unwrap();
    let settings = ConnectionConfig::default();
    let listener = Listener::bind(&domain(&key), loopback(), &settings).unwrap();
    let (address, sockets) = proxy(listener.local_addr());
    let client = thread::spawn(move || {
        let connection =
            Connection::connect(&domain(&key), address, &ConnectionConfig::default()).unwrap();
        connection.send_copy(b"before the cut").unwrap();
        connection
    });
    let server = listener.accept().unwrap();
    assert_eq!(*server.recv_timeout(TIMEOUT).unwrap().unwrap(), *b"before the cut");
    let _client = client.join().unwrap();
    sockets.recv().unwrap().shutdown(Shutdown::Write).unwrap();
    let error = server.recv_timeout(TIMEOUT).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Ended { reason, .. } if !reason.orderly),
        "{error:?}"
    );
}

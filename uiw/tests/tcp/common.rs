//! Connections between two devices.

use std::net::SocketAddr;
use std::time::Duration;
use uiw::blocking::{Connection, Listener};
use uiw::{ConnectionConfig, Device};

/// Time after which a test fails.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Connects two devices over the kernel's TCP.
pub(crate) fn connected_on(
    client: &Device,
    server: &Device,
    settings: &ConnectionConfig,
) -> (Connection, Connection) {
    let (pd, server_pd) = (client.alloc_pd().unwrap(), server.alloc_pd().unwrap());
    let listener = Listener::bind(&server_pd, loopback(), settings).unwrap();
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept().unwrap());
        let connection = Connection::connect(&pd, listener.local_addr(), settings).unwrap();
        (connection, accepted.join().unwrap())
    })
}

/// Connects two new devices, and returns each with its end of the connection.
pub(crate) fn connected(
    settings: &ConnectionConfig,
) -> ((Device, Connection), (Device, Connection)) {
    let (client, server) = (Device::open().unwrap(), Device::open().unwrap());
    let (connection, accepted) = connected_on(&client, &server, settings);
    ((client, connection), (server, accepted))
}

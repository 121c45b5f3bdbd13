//! Tests of buffers of the crate `bytes`.

use bytes::{Bytes, BytesMut};
use uiw::blocking::{Connection, Listener};
use uiw::{Access, ConnectionConfig, Device, Pd};

/// Connects two ends, each on its own device. The server posts two receives.
fn connected() -> [(Connection, Pd); 2] {
    let settings = ConnectionConfig::default().recv_depth(2);
    let server_pd = Device::open().unwrap().alloc_pd().unwrap();
    let listener = Listener::bind(&server_pd, "127.0.0.1:0".parse().unwrap(), &settings).unwrap();
    let to = listener.local_addr();
    let client = std::thread::spawn(move || {
        let device = Device::open().unwrap();
        let pd = device.alloc_pd().unwrap();
        (Connection::connect(&pd, to, &ConnectionConfig::default()).unwrap(), pd)
    });
    let server = listener.accept().unwrap();
    [client.join().unwrap(), (server, server_pd)]
}

/// Clones and slices of one block are sent at the same time.
#[test]
fn shared_bytes_are_sent() {
    let [(client, pd), (server, _)] = connected();
    let whole = Bytes::from((0..200u8).collect::<Vec<_>>());
    let parts = [whole.clone(), whole.slice(50..60)];
    let ops = parts.clone().map(|part| client.send(pd.register(part).unwrap()));
    for part in &parts {
        assert_eq!(*server.recv().unwrap().unwrap(), **part);
    }
    for (op, part) in ops.into_iter().zip(parts) {
        let buffer = op.wait().unwrap();
        assert_eq!(buffer.into_inner(), part);
    }
}

/// A Read into one part of a split block does not change the other part.
#[test]
fn unique_bytes_are_read_target() {
    let [(client, pd), (server, server_pd)] = connected();
    let shared = server_pd.share(64, Access::REMOTE_READ).unwrap();
    shared.write(0, &[9; 64]).unwrap();
    server.send_copy(&shared.remote(0..64).unwrap().to_bytes()).unwrap();
    let remote = uiw::RemoteMr::from_bytes(&client.recv().unwrap().unwrap()).unwrap();
    let mut target = BytesMut::zeroed(128);
    let rest = target.split_off(64);
    let buffer = pd.register(target).unwrap();
    let buffer = client.read(buffer, remote).wait().unwrap();
    assert_eq!(buffer.into_inner(), [9; 64][..]);
    assert_eq!(rest, [0; 64][..]);
}

/// A message that was converted to `Bytes` keeps its receive until the last clone is dropped.
#[test]
fn message_as_bytes_releases_receive() {
    let [(client, _pd), (server, _)] = connected();
    let mut kept = Vec::new();
    for round in 0..20u8 {
        client.send_copy(&[round; 8]).unwrap();
        let message = Bytes::from(server.recv().unwrap().unwrap());
        // One of the two receives is kept. The next message uses the other one, which the drop
        // below has posted again.
        kept.insert(0, (message.slice(..4), message));
        kept.truncate(1);
        assert_eq!(kept[0].0, [round; 4][..]);
    }
}

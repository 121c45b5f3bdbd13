//! RDMA Read of memory the server shares, and a FetchAdd on it, while the server's application
//! sleeps.

use std::error::Error;
use std::thread;
use uiw::blocking::{Connection, Listener};
use uiw::{Access, ConnectionConfig, Device, RemoteMr};

fn main() -> Result<(), Box<dyn Error>> {
    let pd = Device::open()?.alloc_pd()?;
    let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &ConnectionConfig::default())?;
    let address = listener.local_addr();

    let server = thread::spawn(move || -> uiw::Result<u64> {
        let memory = pd.share(4096, Access::REMOTE_READ | Access::REMOTE_ATOMIC)?;
        memory.write(8, b"what the server wrote")?;
        let connection = listener.accept()?;
        connection.send_copy(&memory.remote(0..4096)?.to_bytes())?;
        connection.ended();
        memory.load_u64(0)
    });

    let pd = Device::open()?.alloc_pd()?;
    let connection = Connection::connect(&pd, address, &ConnectionConfig::default())?;
    let source = RemoteMr::from_bytes(&connection.recv()?.ok_or("closed")?)?;

    let buffer = pd.register(vec![0; 21])?;
    let buffer = connection.read(buffer, source.slice(8..29)?).wait()?;
    println!("read {:?}", String::from_utf8_lossy(buffer.bytes()));

    let before = connection.fetch_add(source.slice(0..8)?, 5)?;
    connection.disconnect()?;
    println!("the counter was {before}, now is {}", server.join().map_err(|_| "panic")??);
    Ok(())
}

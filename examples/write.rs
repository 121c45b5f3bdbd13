//! RDMA Write into memory that the server opened for this connection only: its application does
//! nothing while the bytes arrive.

use std::error::Error;
use std::thread;
use uiw::blocking::{Connection, Listener};
use uiw::{Access, ConnectionConfig, Device, RemoteMr};

const LEN: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let pd = Device::open()?.alloc_pd()?;
    let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &ConnectionConfig::default())?;
    let address = listener.local_addr();

    let server = thread::spawn(move || -> uiw::Result<bool> {
        let connection = listener.accept()?;
        let memory = pd.share(LEN, Access::empty())?;
        // A bound window belongs to one connection: its key is of no use to another peer, and
        // becomes invalid when the window is dropped.
        let window = connection.bind_window(&memory, 0..LEN, Access::REMOTE_WRITE)?;
        connection.send_copy(&window.remote().to_bytes())?;
        assert_eq!(connection.recv()?.as_deref(), Some(&b"written"[..]));
        Ok(memory.to_vec(0..LEN)?.iter().all(|byte| *byte == 0xA5))
    });

    let pd = Device::open()?.alloc_pd()?;
    let connection = Connection::connect(&pd, address, &ConnectionConfig::default())?;
    let target = RemoteMr::from_bytes(&connection.recv()?.ok_or("closed")?)?;
    let source = pd.register(vec![0xA5; LEN])?;
    let _source = connection.write(source, target).wait()?;
    // A Write does not notify the peer's application; what is sent behind it arrives behind it.
    connection.send_copy(b"written")?;
    println!("written {LEN} bytes; the server saw them: {}", server.join().map_err(|_| "panic")??);
    Ok(())
}

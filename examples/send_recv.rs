//! Two ends, one message each way. Leaves out: memory that peers reach, several messages under way,
//! error recovery.

use std::error::Error;
use std::thread;
use uiw::blocking::{Connection, Listener};
use uiw::{ConnectionConfig, Device};

fn main() -> Result<(), Box<dyn Error>> {
    let pd = Device::open()?.alloc_pd()?;
    let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &ConnectionConfig::default())?;
    let address = listener.local_addr();

    let server = thread::spawn(move || -> uiw::Result<()> {
        let connection = listener.accept()?;
        // Until the client closes the connection.
        while let Some(message) = connection.recv()? {
            println!("server got {:?}", String::from_utf8_lossy(&message));
            connection.send_copy(b"and good day to you")?;
        }
        Ok(())
    });

    let pd = Device::open()?.alloc_pd()?;
    let connection = Connection::connect(&pd, address, &ConnectionConfig::default())?;
    connection.send_copy(b"good day")?;
    let answer = connection.recv()?.ok_or("closed without an answer")?;
    println!("client got {:?}", String::from_utf8_lossy(&answer));
    connection.disconnect()?;
    server.join().map_err(|_| "the server panicked")??;
    Ok(())
}

//! Two ends, one message each way. Leaves out: memory that peers reach, several messages under way, error recovery.

use std::error::Error;
use std::thread;
use uiw::blocking::{Connection, Listener};
use uiw::{ConnSettings, Device};

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::open()?;
    let settings = ConnSettings::default();
    let listener = Listener::bind(&device, "127.0.0.1:0".parse()?, &settings.options)?;
    let address = listener.local_addr();

    let server = thread::spawn(move || -> Result<(), uiw::WcError> {
        let connection = listener.accept(&device.alloc_pd()?, &ConnSettings::default())?;
        let message = connection.recv()?;
        println!("server got {:?}", String::from_utf8_lossy(&message));
        connection.send_copy(b"and good day to you")?;
        connection.ended();
        Ok(())
    });

    let device = Device::open()?;
    let pd = device.alloc_pd()?;
    let connection = Connection::connect(&device, &pd, address, &settings)?;
    connection.send_copy(b"good day")?;
    println!("client got {:?}", String::from_utf8_lossy(&connection.recv()?));
    connection.disconnect()?;
    server.join().map_err(|_| "the server panicked")??;
    Ok(())
}

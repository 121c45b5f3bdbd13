//! RDMA Write into memory that the server opened for this connection only: its application does nothing while the bytes arrive.

use std::error::Error;
use std::thread;
use uiw::blocking::{Connection, Listener};
use uiw::{Access, ConnSettings, Device, RemoteMr, WcError};

const LEN: u64 = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::open()?;
    let settings = ConnSettings::default();
    let listener = Listener::bind(&device, "127.0.0.1:0".parse()?, &settings.options)?;
    let address = listener.local_addr();

    let server = thread::spawn(move || -> Result<bool, WcError> {
        let pd = device.alloc_pd()?;
        let connection = listener.accept(&pd, &ConnSettings::default())?;
        let memory = pd.share(LEN as usize, Access::empty())?;
        // A bound window belongs to one connection: its key is of no use to another peer, and becomes invalid when the window is dropped.
        let window =
            device.block_on(memory.bind_window(connection.as_async(), 0..LEN, Access::REMOTE_WRITE))?;
        connection.send_copy(&window.remote().to_bytes())?;
        let done = connection.recv()?;
        assert_eq!(&*done, b"written");
        Ok(memory.to_vec(0..LEN)?.iter().all(|byte| *byte == 0xA5))
    });

    let device = Device::open()?;
    let pd = device.alloc_pd()?;
    let connection = Connection::connect(&device, &pd, address, &settings)?;
    let target = RemoteMr::from_bytes(&connection.recv()?).ok_or("not an address")?;
    let source = pd.register(vec![0xA5; LEN as usize]).map_err(|(error, _)| error)?;
    let (result, _source) = connection.write(source, target).wait();
    result?;
    // A Write does not notify the peer's application; what is sent behind it arrives behind it.
    connection.send_copy(b"written")?;
    println!("written {LEN} bytes; the server saw them: {}", server.join().map_err(|_| "panic")??);
    Ok(())
}

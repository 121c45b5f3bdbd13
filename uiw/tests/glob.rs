//! Program that imports all names of the crate, and also depends on tokio and mio.

use std::error::Error;
use uiw::*;

/// Uses `Result` with the program's own error type, and with that of the crate.
fn devices() -> Result<[Device; 2], Box<dyn Error>> {
    let open = || -> Result<Device> { Device::open() };
    Ok([open()?, open()?])
}

#[test]
fn glob_import_keeps_crate_names() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let [server, client] = devices()?;
        let drivers = [with_tokio::drive(&server)?, with_tokio::drive(&client)?];
        let settings = ConnectionConfig::default();
        let listener = Listener::bind(&server.alloc_pd()?, "127.0.0.1:0".parse()?, &settings)?;
        let address = listener.local_addr();
        let accepted = tokio::spawn(async move { listener.accept().await });
        let connection = Connection::connect(&client.alloc_pd()?, address, &settings).await?;
        let answerer = accepted.await??;
        connection.send_copy(b"good day").await?;
        assert_eq!(answerer.recv().await?.as_deref(), Some(&b"good day"[..]));
        connection.disconnect().await?;
        drop(drivers);
        Ok(())
    })
}

#[test]
fn device_is_mio_source() -> Result<(), Box<dyn Error>> {
    let mut device = Device::open_with(DeviceConfig::default().progress(Progress::Manual))?;
    let poll = mio::Poll::new()?;
    poll.registry().register(&mut device, mio::Token(0), mio::Interest::READABLE)?;
    Ok(poll.registry().deregister(&mut device)?)
}

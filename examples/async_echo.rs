//! An echo server and its client as tokio tasks. `uiw::tokio::drive` lets tokio's own thread drive the device: no other thread
//! stands between an arrival and the task that waits for it.

use std::error::Error;
use uiw::{ConnOptions, ConnSettings, Connection, Device, Listener};

async fn echo(connection: Connection) {
    while let Ok(message) = connection.recv().await {
        if connection.send_copy(&message).await.is_err() {
            break;
        }
    }
}

async fn serve(listener: Listener, device: Device) {
    let Ok(pd) = device.alloc_pd() else { return };
    // A peer that fails or is silent neither ends this loop nor delays another one.
    while let Ok(connection) = listener.accept(&pd, &ConnSettings::default()).await {
        tokio::spawn(echo(connection));
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::open()?;
    let driver = tokio::spawn(uiw::tokio::drive(device.clone()));
    let listener = Listener::bind(&device, "127.0.0.1:0".parse()?, &ConnOptions::default())?;
    let address = listener.local_addr();
    tokio::spawn(serve(listener, device.clone()));

    let pd = device.alloc_pd()?;
    let connection = Connection::connect(&device, &pd, address, &ConnSettings::default()).await?;
    for word in ["one", "two", "three"] {
        connection.send_copy(word.as_bytes()).await?;
        let back = connection.recv().await?;
        println!("{} came back", String::from_utf8_lossy(&back));
    }
    connection.disconnect().await?;
    driver.abort();
    Ok(())
}

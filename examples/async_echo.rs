//! Echo server and client as tokio tasks. With `uiw::with_tokio::drive`, tokio's own thread drives
//! the device, so no switch to another thread is needed between an arrival and the task that waits
//! for it.

use std::error::Error;
use uiw::{Connection, ConnectionConfig, Device, Listener};

async fn echo(connection: Connection) {
    while let Ok(Some(message)) = connection.recv().await {
        if connection.send_copy(&message).await.is_err() {
            break;
        }
    }
}

async fn serve(listener: Listener) {
    // A peer that fails or is silent does not end this loop and does not delay other peers.
    while let Ok(connection) = listener.accept().await {
        tokio::spawn(echo(connection));
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::open()?;
    let _driver = uiw::with_tokio::drive(&device)?;
    let pd = device.alloc_pd()?;
    let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &ConnectionConfig::default())?;
    let address = listener.local_addr();
    tokio::spawn(serve(listener));

    let connection = Connection::connect(&pd, address, &ConnectionConfig::default()).await?;
    for word in ["one", "two", "three"] {
        connection.send_copy(word.as_bytes()).await?;
        let back = connection.recv().await?.ok_or("closed")?;
        println!("{} came back", String::from_utf8_lossy(&back));
    }
    connection.disconnect().await?;
    Ok(())
}

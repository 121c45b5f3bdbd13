// Both ends of a connection, for the examples of the documentation.

type AnyError = Box<dyn std::error::Error + Send + Sync>;

#[allow(dead_code)]
fn blocking() -> Result<[uiw::blocking::Connection; 2], AnyError> {
    use uiw::blocking::{Connection, Listener};
    use uiw::{ConnectionConfig, Device};
    let pd = Device::open()?.alloc_pd()?;
    let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &ConnectionConfig::default())?;
    let to = listener.local_addr();
    let client = std::thread::spawn(move || -> Result<Connection, AnyError> {
        let pd = Device::open()?.alloc_pd()?;
        Ok(Connection::connect(&pd, to, &ConnectionConfig::default())?)
    });
    let server = listener.accept()?;
    Ok([client.join().map_err(|_| "the client panicked")??, server])
}

//! The safe API for programs without a runtime: the same names, every call waits on its own thread and drives the device
//! meanwhile.

use crate::{
    Access, BoundWindow, CloseReason, ConnInfo, ConnectionConfig, Device, IoBuf, IoBufMut, Message, Mr, Op,
    Pd, RemoteMr, Result, SharedMr, Wc, WcError,
};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

/// A connection whose calls wait. [`Op`]s of it can be collected and waited for later with [`Op::wait`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = blocking()?;
/// client.send_copy(b"good day")?;
/// assert_eq!(server.recv()?.as_deref(), Some(&b"good day"[..]));
/// client.disconnect()?;
/// assert!(server.recv()?.is_none(), "closed in order");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Connection {
    device: Device,
    inner: crate::Connection,
}

impl Connection {
    /// Connects to `peer`.
    ///
    /// # Errors
    /// As [`crate::Connection::connect`].
    pub fn connect(pd: &Pd, peer: SocketAddr, settings: &ConnectionConfig) -> Result<Self> {
        let device = pd.device();
        let inner = device.block_on(crate::Connection::connect(pd, peer, settings))?;
        Ok(Self { device, inner })
    }

    /// Sends the buffer as one message.
    pub fn send<B: IoBuf>(&self, buffer: Mr<B>) -> Op<B> {
        self.inner.send(buffer)
    }

    /// Writes the buffer into the peer's memory.
    pub fn write<B: IoBuf>(&self, buffer: Mr<B>, to: RemoteMr) -> Op<B> {
        self.inner.write(buffer, to)
    }

    /// Reads the peer's memory into the buffer.
    pub fn read<B: IoBufMut>(&self, buffer: Mr<B>, from: RemoteMr) -> Op<B> {
        self.inner.read(buffer, from)
    }

    /// Sends a copy of `message` and waits until TCP has it.
    ///
    /// # Errors
    /// [`WcError`].
    pub fn send_copy(&self, message: &[u8]) -> std::result::Result<Wc, WcError> {
        self.device.block_on(self.inner.send_copy(message))
    }

    /// Adds to eight bytes of the peer's; returns what they were.
    ///
    /// # Errors
    /// [`WcError`].
    pub fn fetch_add(&self, at: RemoteMr, add: u64) -> std::result::Result<u64, WcError> {
        self.device.block_on(self.inner.fetch_add(at, add))
    }

    /// Replaces eight bytes of the peer's by `swap` if they are `compare`; returns what they were.
    ///
    /// # Errors
    /// [`WcError`].
    pub fn compare_swap(&self, at: RemoteMr, compare: u64, swap: u64) -> std::result::Result<u64, WcError> {
        self.device.block_on(self.inner.compare_swap(at, compare, swap))
    }

    /// Waits for the next message, at most `timeout`; `None` when the connection was closed in order.
    ///
    /// # Errors
    /// [`WcError::TimedOut`] when no message came; as [`Connection::recv`].
    pub fn recv_timeout(&self, timeout: Duration) -> std::result::Result<Option<Message>, WcError> {
        let received = self.device.block_on_for(timeout, self.inner.recv());
        received.unwrap_or(Err(WcError::TimedOut { after: timeout }))
    }

    /// Waits for the next message; `None` when the connection was closed in order, by whichever side.
    ///
    /// # Errors
    /// [`WcError`] when the connection has ended otherwise.
    pub fn recv(&self) -> std::result::Result<Option<Message>, WcError> {
        self.device.block_on(self.inner.recv())
    }

    /// Opens bytes `range` of `memory` with `access` to the peer of this connection only: see [`crate::Connection::bind_window`].
    ///
    /// # Errors
    /// As [`crate::Connection::bind_window`].
    pub fn bind_window(&self, memory: &SharedMr, range: Range<u64>, access: Access) -> Result<BoundWindow> {
        self.device.block_on(self.inner.bind_window(memory, range, access))
    }

    /// What start-up agreed on, and the peer's private data.
    #[must_use]
    pub fn info(&self) -> &ConnInfo {
        self.inner.info()
    }

    /// Closes in order and waits until both sides have.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NotConnected`] when the connection is gone already.
    pub fn disconnect(&self) -> Result<CloseReason> {
        self.device.block_on(self.inner.disconnect())
    }

    /// Waits until the connection has ended.
    pub fn ended(&self) -> CloseReason {
        self.device.block_on(self.inner.ended())
    }

    /// The asynchronous face of the same connection.
    #[must_use]
    pub fn as_async(&self) -> &crate::Connection {
        &self.inner
    }

    /// The asynchronous face of the same connection.
    #[must_use]
    pub fn into_async(self) -> crate::Connection {
        self.inner
    }
}

/// A port on which peers may connect.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// use std::time::Duration;
/// use uiw::blocking::Listener;
/// use uiw::{ConnectionConfig, Device};
/// let pd = Device::open()?.alloc_pd()?;
/// let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &ConnectionConfig::default())?;
/// assert!(listener.incoming(Duration::from_millis(1))?.is_none(), "no peer yet");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Listener {
    device: Device,
    inner: crate::Listener,
}

impl Listener {
    /// Listens on `local`.
    ///
    /// # Errors
    /// As [`crate::Listener::bind`].
    pub fn bind(pd: &Pd, local: SocketAddr, settings: &ConnectionConfig) -> Result<Self> {
        let inner = crate::Listener::bind(pd, local, settings)?;
        Ok(Self { device: pd.device(), inner })
    }

    /// The address it listens on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    /// Waits for the next peer whose connection is established: see [`crate::Listener::accept`].
    ///
    /// # Errors
    /// As [`crate::Listener::accept`].
    pub fn accept(&self) -> Result<Connection> {
        let inner = self.device.block_on(self.inner.accept())?;
        Ok(Connection { device: self.device.clone(), inner })
    }

    /// Waits for a connection request, to be accepted or rejected by what it says. `None`: none came within `timeout`.
    ///
    /// # Errors
    /// As [`crate::Listener::incoming`].
    pub fn incoming(&self, timeout: Duration) -> Result<Option<crate::Incoming>> {
        self.device.block_on_for(timeout, self.inner.incoming()).transpose()
    }

    /// The asynchronous face of the same listener: [`crate::Listener::failures`], for one.
    #[must_use]
    pub fn as_async(&self) -> &crate::Listener {
        &self.inner
    }
}

/// A stream of bytes over a connection: see [`crate::ByteStream`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// use std::io::{Read as _, Write as _};
/// use uiw::blocking::ByteStream;
/// # let [client, server] = blocking()?;
/// let echo = std::thread::spawn(move || -> std::io::Result<()> {
///     let mut stream = ByteStream::new(server)?;
///     let mut text = String::new();
///     stream.read_to_string(&mut text)?;
///     stream.write_all(text.as_bytes())?;
///     stream.shutdown()
/// });
/// let mut stream = ByteStream::new(client)?;
/// stream.write_all(b"any number of bytes")?;
/// stream.shutdown()?;
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer)?;
/// assert_eq!(answer, "any number of bytes");
/// # echo.join().map_err(|_| "the server panicked")??;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ByteStream {
    device: Device,
    inner: crate::ByteStream,
}

impl ByteStream {
    /// A stream over `connection`, on which nothing was sent or received before.
    ///
    /// # Errors
    /// As [`crate::ByteStream::new`].
    pub fn new(connection: Connection) -> Result<Self> {
        Ok(Self { inner: crate::ByteStream::new(connection.inner)?, device: connection.device })
    }

    /// Ends this direction: the peer reads what was written, and then 0 bytes. The other direction goes on.
    ///
    /// # Errors
    /// As [`crate::ByteStream::shutdown`].
    pub fn shutdown(&mut self) -> io::Result<()> {
        self.device.block_on(self.inner.shutdown())
    }

    /// The asynchronous face of the same stream.
    #[must_use]
    pub fn into_async(self) -> crate::ByteStream {
        self.inner
    }
}

impl io::Read for ByteStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.device.block_on(self.inner.read(buf))
    }
}

impl io::Write for ByteStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.device.block_on(self.inner.write(buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.device.block_on(self.inner.flush())
    }
}

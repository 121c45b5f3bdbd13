//! Blocking API for programs without an async runtime.
//!
//! Types and methods have the same names as in the async API. A call blocks the calling thread,
//! which drives the device while it waits.

use crate::{
    AcceptFailure, Access, BoundWindow, BufferOp, CloseReason, ConnInfo, ConnectionConfig, Device,
    ErrorKind, IoBuf, IoBufMut, Message, Mr, Pd, RemoteMr, Result, STag, SharedMr,
};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;
use uiw_llp::PeerIdentity;

/// Blocking form of [`crate::Connection`].
///
/// Methods block until they are done, except those that take a buffer: they start an operation and
/// return an [`Op`](crate::Op), so that a program can start several operations before it calls
/// [`Op::wait`](crate::Op::wait).
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
    /// The errors are those of [`crate::Connection::connect`].
    pub fn connect(pd: &Pd, peer: SocketAddr, settings: &ConnectionConfig) -> Result<Self> {
        let device = pd.device();
        let inner = device.block_on(crate::Connection::connect(pd, peer, settings))?;
        Ok(Self { device, inner })
    }

    /// Sends the buffer as one message.
    pub fn send<B: IoBuf>(&self, buffer: Mr<B>) -> BufferOp<B> {
        self.inner.send(buffer)
    }

    /// Like [`Connection::send`], but raises a solicited event at a peer that has requested such
    /// events.
    pub fn send_solicited<B: IoBuf>(&self, buffer: Mr<B>) -> BufferOp<B> {
        self.inner.send_solicited(buffer)
    }

    /// Like [`Connection::send`], but also invalidates the peer's key `stag`, before the receive
    /// completes at the peer.
    pub fn send_invalidate<B: IoBuf>(&self, buffer: Mr<B>, stag: STag) -> BufferOp<B> {
        self.inner.send_invalidate(buffer, stag)
    }

    /// Like [`Connection::send_invalidate`], but also raises a solicited event at the peer.
    pub fn send_solicited_invalidate<B: IoBuf>(&self, buffer: Mr<B>, stag: STag) -> BufferOp<B> {
        self.inner.send_solicited_invalidate(buffer, stag)
    }

    /// Sends the buffer as one message with the immediate value `imm`. The peer must be uiw as
    /// well.
    pub fn send_imm<B: IoBuf>(&self, buffer: Mr<B>, imm: u32) -> BufferOp<B> {
        self.inner.send_imm(buffer, imm)
    }

    /// Writes the buffer into the peer's memory.
    pub fn write<B: IoBuf>(&self, buffer: Mr<B>, to: RemoteMr) -> BufferOp<B> {
        self.inner.write(buffer, to)
    }

    /// Writes the buffer into the peer's memory, then notifies the peer with the immediate value
    /// `imm` (RFC 7306).
    pub fn write_imm<B: IoBuf>(&self, buffer: Mr<B>, to: RemoteMr, imm: u32) -> BufferOp<B> {
        self.inner.write_imm(buffer, to, imm)
    }

    /// Like [`Connection::write_imm`], but also raises a solicited event at the peer.
    pub fn write_imm_solicited<B: IoBuf>(
        &self,
        buffer: Mr<B>,
        to: RemoteMr,
        imm: u32,
    ) -> BufferOp<B> {
        self.inner.write_imm_solicited(buffer, to, imm)
    }

    /// Reads the peer's memory into the buffer.
    pub fn read<B: IoBufMut>(&self, buffer: Mr<B>, from: RemoteMr) -> BufferOp<B> {
        self.inner.read(buffer, from)
    }

    /// Sends a copy of `message` and waits until TCP has accepted it.
    ///
    /// # Errors
    /// * [`ErrorKind::Closed`] if the connection was closed in order before that.
    /// * [`ErrorKind::Ended`] if the connection ended otherwise before that.
    /// * [`ErrorKind::Completed`] if the operation itself failed.
    pub fn send_copy(&self, message: &[u8]) -> Result<()> {
        self.inner.send_copy(message).wait()
    }

    /// Atomically adds `add` to the 8-byte integer at `at` in the peer's memory, and returns the
    /// previous value (RFC 7306).
    ///
    /// # Errors
    /// Returns [`ErrorKind::OutOfRange`] if `at` has fewer than eight bytes; otherwise the errors
    /// are those of [`Connection::send_copy`].
    pub fn fetch_add(&self, at: RemoteMr, add: u64) -> Result<u64> {
        self.inner.fetch_add(at, add).wait()
    }

    /// Atomically replaces the 8-byte integer at `at` in the peer's memory by `swap` if it equals
    /// `compare`, and returns the previous value (RFC 7306).
    ///
    /// # Errors
    /// The errors are those of [`Connection::fetch_add`].
    pub fn compare_swap(&self, at: RemoteMr, compare: u64, swap: u64) -> Result<u64> {
        self.inner.compare_swap(at, compare, swap).wait()
    }

    /// Waits for the next message. Returns `None` after either side has closed the connection in
    /// order.
    ///
    /// See [`crate::Connection::recv`] for a peer whose process has exited.
    ///
    /// # Errors
    /// The errors are those of [`crate::Connection::recv`].
    pub fn recv(&self) -> Result<Option<Message>> {
        self.device.block_on(self.inner.recv())
    }

    /// Like [`Connection::recv`], but waits for at most `timeout`.
    ///
    /// # Errors
    /// Returns [`ErrorKind::NoMessage`] if no message arrived in that time; otherwise the errors
    /// are those of [`Connection::recv`].
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Option<Message>> {
        let received = self.device.block_on_for(timeout, self.inner.recv());
        received.unwrap_or(Err(ErrorKind::NoMessage { after: timeout }.into()))
    }

    /// Gives the peer of this connection, and no other peer, `access` to the bytes `range` of
    /// `memory`.
    ///
    /// See [`crate::Connection::bind_window`].
    ///
    /// # Errors
    /// The errors are those of [`crate::Connection::bind_window`].
    pub fn bind_window(
        &self,
        memory: &SharedMr,
        range: Range<usize>,
        access: Access,
    ) -> Result<BoundWindow> {
        self.inner.bind_window(memory, range, access).wait()
    }

    /// Returns the parameters negotiated in start-up, and the peer's private data.
    #[must_use]
    pub fn info(&self) -> &ConnInfo {
        self.inner.info()
    }

    /// Returns the connection's protection domain.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        self.inner.pd()
    }

    /// Returns the underlying queue pair.
    #[must_use]
    pub fn qp(&self) -> &crate::raw::Qp {
        self.inner.qp()
    }

    /// Closes the connection in order: sends the operations posted before, then waits until both
    /// sides have closed. Returns how the connection ended.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Closed`] or [`ErrorKind::Ended`] if the connection has already ended.
    pub fn disconnect(&self) -> Result<CloseReason> {
        self.device.block_on(self.inner.disconnect())
    }

    /// Ends the connection immediately, even if the peer does not respond, and returns how it
    /// ended. See [`crate::Connection::abort`].
    pub fn abort(&self) -> CloseReason {
        self.device.block_on(self.inner.abort())
    }

    /// Waits until either side has ended the connection, and returns how it ended.
    pub fn ended(&self) -> CloseReason {
        self.device.block_on(self.inner.ended())
    }

    /// Returns the async form of this connection.
    #[must_use]
    pub fn as_async(&self) -> &crate::Connection {
        &self.inner
    }

    /// Converts this handle to the async form of the same connection.
    #[must_use]
    pub fn into_async(self) -> crate::Connection {
        self.inner
    }
}

/// Converts an async handle to the blocking form of the same connection.
impl From<crate::Connection> for Connection {
    fn from(inner: crate::Connection) -> Self {
        Self { device: inner.pd().device(), inner }
    }
}

/// Blocking form of [`crate::Listener`], which accepts connections of peers on one address.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// use std::time::Duration;
/// use uiw::blocking::Listener;
/// use uiw::{ConnectionConfig, Device};
/// let pd = Device::open()?.alloc_pd()?;
/// let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &ConnectionConfig::default())?;
/// assert!(listener.accept_timeout(Duration::from_millis(1))?.is_none(), "no peer yet");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Listener {
    device: Device,
    inner: crate::Listener,
}

impl Listener {
    /// Listens on the address `local`; port 0 selects a free port.
    ///
    /// # Errors
    /// The errors are those of [`crate::Listener::bind`].
    pub fn bind(pd: &Pd, local: SocketAddr, settings: &ConnectionConfig) -> Result<Self> {
        let inner = crate::Listener::bind(pd, local, settings)?;
        Ok(Self { device: pd.device(), inner })
    }

    /// Returns the address on which the listener accepts connections.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    /// Waits for the next connection. Connection requests are accepted without inspecting them.
    ///
    /// See [`crate::Listener::accept`].
    ///
    /// # Errors
    /// The errors are those of [`crate::Listener::accept`].
    pub fn accept(&self) -> Result<Connection> {
        let inner = self.device.block_on(self.inner.accept())?;
        Ok(inner.into())
    }

    /// Like [`Listener::accept`], but waits for at most `timeout`, and returns `None` after that
    /// time.
    ///
    /// Handshakes that have begun by then are not lost: the next call continues with them.
    ///
    /// # Errors
    /// The errors are those of [`Listener::accept`].
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Option<Connection>> {
        let inner = self.device.block_on_for(timeout, self.inner.accept()).transpose()?;
        Ok(inner.map(Connection::from))
    }

    /// Waits for the next connection request, which the program can inspect before it accepts or
    /// rejects it.
    ///
    /// # Errors
    /// The errors are those of [`crate::Listener::incoming`].
    pub fn incoming(&self) -> Result<Incoming> {
        let inner = self.device.block_on(self.inner.incoming())?;
        Ok(Incoming { device: self.device.clone(), inner })
    }

    /// Like [`Listener::incoming`], but waits for at most `timeout`, and returns `None` after that
    /// time.
    ///
    /// # Errors
    /// The errors are those of [`Listener::incoming`].
    pub fn incoming_timeout(&self, timeout: Duration) -> Result<Option<Incoming>> {
        let inner = self.device.block_on_for(timeout, self.inner.incoming()).transpose()?;
        Ok(inner.map(|inner| Incoming { device: self.device.clone(), inner }))
    }

    /// Returns the number of peers that [`Listener::accept`] accepted but whose connection could
    /// not be established.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.inner.failures()
    }

    /// Removes and returns the oldest recorded failure. Only the last 64 [`Listener::failures`] are
    /// recorded.
    pub fn take_failure(&self) -> Option<AcceptFailure> {
        self.inner.take_failure()
    }
}

/// Connection request of a peer: the blocking form of [`crate::Incoming`]. Dropping it rejects the
/// request.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// use uiw::blocking::{Connection, Listener};
/// use uiw::{ConnectionConfig, Device};
/// let (pd, settings) = (Device::open()?.alloc_pd()?, ConnectionConfig::default());
/// let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &settings)?;
/// let address = listener.local_addr();
/// let client = std::thread::spawn(move || -> Result<Connection, AnyError> {
///     let settings = ConnectionConfig::default().private_data(*b"secret");
///     Ok(Connection::connect(&Device::open()?.alloc_pd()?, address, &settings)?)
/// });
/// let incoming = listener.incoming()?;
/// assert_eq!(incoming.private_data(), b"secret");
/// let server = incoming.accept(&pd, &settings)?;
/// # let client = client.join().map_err(|_| "the client panicked")??;
/// # client.send_copy(b"good day")?;
/// # assert_eq!(server.recv()?.as_deref(), Some(&b"good day"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Incoming {
    device: Device,
    inner: crate::Incoming,
}

impl Incoming {
    /// Returns the peer's private data.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.inner.private_data()
    }

    /// Returns the peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.peer_addr()
    }

    /// Returns the identity of the peer if the transport has verified it, which TLS does.
    #[must_use]
    pub fn peer_identity(&self) -> Option<&PeerIdentity> {
        self.inner.peer_identity()
    }

    /// Accepts the request and waits until the connection is established. See
    /// [`crate::Incoming::accept`].
    ///
    /// # Errors
    /// The errors are those of [`crate::Incoming::accept`].
    pub fn accept(self, pd: &Pd, settings: &ConnectionConfig) -> Result<Connection> {
        let inner = self.device.block_on(self.inner.accept(pd, settings))?;
        Ok(Connection { device: self.device, inner })
    }

    /// Rejects the request and sends `private_data` to the peer.
    ///
    /// # Errors
    /// The errors are those of [`crate::Incoming::reject`].
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.inner.reject(private_data)
    }
}

/// Blocking form of [`crate::ByteStream`], a bidirectional byte stream over a connection.
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
    /// Creates a stream over `connection`, on which nothing was sent or received before.
    ///
    /// # Errors
    /// The errors are those of [`crate::ByteStream::new`].
    pub fn new(connection: Connection) -> Result<Self> {
        Ok(Self { inner: crate::ByteStream::new(connection.inner)?, device: connection.device })
    }

    /// Ends this direction: after the bytes written so far, the peer reads 0 bytes. The other
    /// direction stays open.
    ///
    /// # Errors
    /// The errors are those of [`crate::ByteStream::shutdown`].
    pub fn shutdown(&mut self) -> io::Result<()> {
        self.device.block_on(self.inner.shutdown())
    }

    /// Returns the underlying connection. See [`crate::ByteStream::connection`] for its permitted
    /// uses.
    #[must_use]
    pub fn connection(&self) -> Connection {
        self.inner.connection().clone().into()
    }

    /// Converts this handle to the async form of the same stream.
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

//! The TLS stack, its streams and its listeners.

use super::conn::Conn;
use super::shard::Shard;
use super::shared::{Shared, StackId, Tls, invalid_name_error};
use parking_lot::Mutex;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use uiw_llp::{
    DatagramConfig, DatagramSocket, Event, Incoming, Interest, ListenConfig, Outgoing,
    PeerIdentity, StackExtensions, StreamChange, StreamExtensions, StreamInfo, Token,
    TransportConfig, TransportListener, TransportStack, TransportStream, attached_stream,
    foreign_stream,
};
use uiw_mem::{IoVec, IoVecMut};

/// A stack whose streams are encrypted.
///
/// ```
/// # mod uiw { pub use uiw_llp as llp; pub use uiw_tls as tls; }
/// use uiw::tls::{PinnedKeys, SecretKey, Tls, TlsConfig, TlsStack};
/// use uiw::llp::{ListenConfig, TransportStack, TransportConfig, Token, tcp::TcpStack};
///
/// // One key for both ends.
/// let key = SecretKey::generate()?;
/// let mut pinned = PinnedKeys::default();
/// pinned.add(key.public_key(), "this host");
/// let tls = Tls::new(TlsConfig::raw_keys(&key, pinned)?)?;
/// let mut stack = TlsStack::new(Box::new(TcpStack::new()?), &tls)?;
/// let any = ([127, 0, 0, 1], 0).into();
/// let mut listener = stack.listen(any, &ListenConfig::default(), Token(1))?;
/// let _client = stack.connect(None, listener.local_addr(), &TransportConfig::default(), Token(2))?;
/// let mut events = Vec::new();
/// let accepted = loop {
///     stack.poll(&mut events)?;
///     match listener.accept(Token(3)) {
///         Ok(stream) => break stream,
///         Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
///         Err(error) => return Err(error.into()),
///     }
/// };
/// assert!(accepted.peer_identity().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TlsStack {
    inner: Box<dyn TransportStack>,
    shared: Arc<Shared>,
    id: StackId,
    shard: Arc<Mutex<Shard>>,
    /// Events of the inner stack. The memory is kept to avoid allocations.
    events: Vec<Event>,
}

impl fmt::Debug for TlsStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsStack")
    }
}

impl TlsStack {
    /// Creates a stack that encrypts the streams of `inner` and of its shards.
    ///
    /// # Errors
    /// Returns OS errors, for example if the process is out of descriptors.
    pub fn new(inner: Box<dyn TransportStack>, tls: &Tls) -> io::Result<Self> {
        Self::with(inner, Arc::clone(&tls.0), StackId::new())
    }

    fn with(inner: Box<dyn TransportStack>, shared: Arc<Shared>, id: StackId) -> io::Result<Self> {
        let shard = Shard::new(Arc::clone(&shared), id, inner.wait_fd().as_deref(), inner.now())?;
        Ok(Self { inner, shared, id, shard: Arc::new(Mutex::new(shard)), events: Vec::new() })
    }

    fn stream(&self, key: usize, addresses: (SocketAddr, SocketAddr)) -> Box<dyn TransportStream> {
        Box::new(TlsStream { place: StreamPlace::Shard(Arc::clone(&self.shard), key), addresses })
    }

    /// Starts to connect with `connect` of the inner stack.
    fn connect_by(
        &mut self,
        peer: SocketAddr,
        options: &TransportConfig,
        token: Token,
        connect: impl FnOnce(&mut dyn TransportStack, Token) -> io::Result<Box<dyn TransportStream>>,
    ) -> io::Result<Box<dyn TransportStream>> {
        let snapshot = self.shared.snapshot();
        let name = snapshot
            .config
            .name_for(options.peer_name.as_deref(), peer)
            .map_err(|error| invalid_name_error(&error))?;
        let mut shard = self.shard.lock();
        let inner_token = shard.next_token();
        // An acceptor in this process looks for the entry as soon as TCP is connected.
        let mut own = self.shared.lock_in_process();
        let inner = connect(&mut *self.inner, inner_token)?;
        let addresses = (inner.local_addr(), inner.peer_addr());
        let own = own.begin(self.id.of_stream(&*inner), addresses);
        let conn = Conn::new_connecting(inner, &self.shared, token, name, Some(own));
        let key = shard.insert_conn(Box::new(conn));
        drop(shard);
        Ok(self.stream(key, addresses))
    }

    /// Adds the connections of dropped detached streams to the event set again.
    fn adopt_orphans(&mut self, shard: &mut Shard) {
        for mut conn in shard.take_orphans() {
            let token = shard.next_token();
            // If this fails, the connection is dropped, which closes it.
            if self.inner.adopt(conn.inner_mut(), token).is_ok() {
                shard.insert_orphan(conn);
            }
        }
    }
}

impl TransportStack for TlsStack {
    fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportListener>> {
        let mut shard = self.shard.lock();
        let inner_token = shard.next_token();
        let inner = self.inner.listen(local, options, inner_token)?;
        let local = inner.local_addr();
        let key = shard.insert_listener(inner, token, options);
        drop(shard);
        Ok(Box::new(TlsListener { shard: Arc::clone(&self.shard), key, local }))
    }

    fn connect(
        &mut self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>> {
        self.connect_by(peer, options, token, |inner, token| {
            inner.connect(local, peer, options, token)
        })
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        let mut inner = std::mem::take(&mut self.events);
        inner.clear();
        let polled = self.inner.poll(&mut inner);
        let shard = Arc::clone(&self.shard);
        let mut shard = shard.lock();
        self.adopt_orphans(&mut shard);
        shard.poll(self.inner.now(), &inner, events);
        self.events = inner;
        polled
    }

    fn deadline(&self) -> Option<Instant> {
        let own = self.shard.lock().deadline();
        own.into_iter().chain(self.inner.deadline()).min()
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }
}

impl StackExtensions for TlsStack {
    /// The handshake of an accepted connection takes place after the caller got the stream.
    fn open_socket(
        &mut self,
        socket: OwnedFd,
        peer: Option<SocketAddr>,
        options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>> {
        if let Some(to) = peer {
            let open = |inner: &mut dyn TransportStack, token| {
                inner.open_socket(socket, peer, options, token)
            };
            return self.connect_by(to, options, token, open);
        }
        let mut shard = self.shard.lock();
        let inner_token = shard.next_token();
        let inner = self.inner.open_socket(socket, None, options, inner_token)?;
        let addresses = (inner.local_addr(), inner.peer_addr());
        let key = shard.insert_accepted(inner, token);
        drop(shard);
        Ok(self.stream(key, addresses))
    }

    fn connect_self(
        &mut self,
        local: SocketAddr,
        options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>> {
        let mut shard = self.shard.lock();
        let inner_token = shard.next_token();
        let inner = self.inner.connect_self(local, options, inner_token)?;
        let addresses = (inner.local_addr(), inner.peer_addr());
        let key = shard.insert_conn(Box::new(Conn::new_loopback(inner, &self.shared, token)));
        drop(shard);
        Ok(self.stream(key, addresses))
    }

    fn bind_datagrams(
        &mut self,
        local: SocketAddr,
        options: &DatagramConfig,
        token: Token,
    ) -> io::Result<Box<dyn DatagramSocket>> {
        if !self.shared.snapshot().config.clear_datagrams {
            tracing::warn!(%local, "TLS is required, and it does not protect datagrams: they are refused");
            return Err(io::Error::new(
                ErrorKind::Unsupported,
                "TLS is required, and it does not protect datagrams",
            ));
        }
        let mut shard = self.shard.lock();
        let inner_token = shard.next_token();
        let inner = self.inner.bind_datagrams(local, options, inner_token)?;
        let key = shard.insert_datagrams(token);
        drop(shard);
        Ok(Box::new(ClearDatagrams { inner, shard: Arc::clone(&self.shard), key }))
    }

    fn wait_fd(&self) -> Option<Arc<OwnedFd>> {
        self.inner.wait_fd()
    }

    /// Shards share the configuration, and a lock that is held while a connection is started.
    fn shard(&self) -> io::Result<Option<Box<dyn TransportStack>>> {
        let Some(inner) = self.inner.shard()? else { return Ok(None) };
        Ok(Some(Box::new(Self::with(inner, Arc::clone(&self.shared), self.id)?)))
    }

    fn adopt(&mut self, stream: &mut Box<dyn TransportStream>, token: Token) -> io::Result<()> {
        let stream = stream.downcast_mut::<TlsStream>().ok_or_else(foreign_stream)?;
        let conn = match &mut stream.place {
            StreamPlace::Detached(conn, _) => conn,
            StreamPlace::Shard(of, key) => {
                // Only one shard is locked at a time, because a thread of the other shard may do
                // the same with a stream of this one.
                let inner_token = self.shard.lock().next_token();
                return Err(refusal(of.lock().conn(*key), &mut *self.inner, inner_token));
            }
        };
        let mut shard = self.shard.lock();
        let inner_token = shard.next_token();
        self.inner.adopt(conn.as_mut().ok_or_else(attached_stream)?.inner_mut(), inner_token)?;
        let Some(mut conn) = conn.take() else { return Err(attached_stream()) };
        conn.outer = Some(token);
        conn.on_adopted(&self.shared);
        let key = shard.insert_conn(conn);
        stream.place = StreamPlace::Shard(Arc::clone(&self.shard), key);
        Ok(())
    }

    /// Closes every stream with a close_notify, in the same way as the kernel closes the
    /// connections of a process that exits.
    fn drain(&mut self) -> bool {
        let own = self.shard.lock().drain();
        own && self.inner.drain()
    }
}

/// Asks the inner stack why a stream that is not detached cannot be adopted, and returns that
/// error.
fn refusal(conn: Option<&mut Conn>, stack: &mut dyn TransportStack, token: Token) -> io::Error {
    match conn {
        Some(conn) if conn.is_aborted() => ErrorKind::NotConnected.into(),
        Some(conn) => stack.adopt(conn.inner_mut(), token).err().unwrap_or_else(attached_stream),
        None => attached_stream(),
    }
}

/// Stream of a [`TlsStack`].
struct TlsStream {
    place: StreamPlace,
    /// Local address and address of the peer when the stream was created.
    addresses: (SocketAddr, SocketAddr),
}

/// Location of a stream's connection.
enum StreamPlace {
    Shard(Arc<Mutex<Shard>>, usize),
    /// The connection is in no shard. It will be adopted by a shard or dropped.
    Detached(Option<Box<Conn>>, Arc<Mutex<Shard>>),
}

impl TlsStream {
    /// Calls `inspect` with the connection.
    fn inspect_conn<R>(&self, inspect: impl FnOnce(&Conn) -> R) -> Option<R> {
        match &self.place {
            StreamPlace::Shard(shard, key) => shard.lock().conn(*key).map(|conn| inspect(conn)),
            StreamPlace::Detached(conn, _) => conn.as_deref().map(inspect),
        }
    }

    /// Calls `call` with the connection and its shard's buffers.
    fn call_conn<R>(
        &mut self,
        call: impl FnOnce(&mut Conn, &mut super::conn::Scratch) -> io::Result<R>,
    ) -> io::Result<R> {
        match &mut self.place {
            StreamPlace::Shard(shard, key) => shard
                .lock()
                .with_conn(*key, call)
                .unwrap_or_else(|| Err(ErrorKind::NotConnected.into())),
            StreamPlace::Detached(..) => Err(ErrorKind::NotConnected.into()),
        }
    }
}

impl TransportStream for TlsStream {
    fn send(&mut self, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        self.call_conn(|conn, scratch| conn.send(bufs, scratch))
    }

    fn recv(&mut self, bufs: &mut [IoVecMut<'_>]) -> io::Result<usize> {
        self.call_conn(|conn, scratch| conn.recv(bufs, scratch))
    }

    fn set_interest(&mut self, interest: Interest) -> io::Result<()> {
        self.call_conn(|conn, _| conn.set_interest(interest))
    }

    fn connect_result(&mut self) -> io::Result<bool> {
        self.call_conn(Conn::connect_result)
    }

    fn shutdown(&mut self) -> io::Result<()> {
        self.call_conn(|conn, _| conn.shutdown())
    }

    fn abort(&mut self) {
        match &mut self.place {
            StreamPlace::Shard(shard, key) => {
                let key = *key;
                shard.lock().with_conn(key, |conn, _| conn.abort());
            }
            StreamPlace::Detached(conn, _) => {
                if let Some(conn) = conn {
                    conn.abort();
                }
            }
        }
    }

    fn emss(&self) -> usize {
        self.inspect_conn(|conn| conn.inner().emss()).unwrap_or(536)
    }

    fn local_addr(&self) -> SocketAddr {
        self.inspect_conn(|conn| conn.inner().local_addr()).unwrap_or(self.addresses.0)
    }

    fn peer_addr(&self) -> SocketAddr {
        self.addresses.1
    }
}

impl StreamExtensions for TlsStream {
    /// Returns the information about the TCP connection. `bytes_acked` is left out, because TCP
    /// counts the bytes of TLS records; `bytes_received` is the number of plaintext bytes.
    fn info(&self) -> StreamInfo {
        let info = self.inspect_conn(|conn| StreamInfo {
            bytes_acked: None,
            bytes_received: Some(conn.received()),
            ..conn.inner().info()
        });
        info.unwrap_or_default()
    }

    fn configure(&mut self, change: &StreamChange<'_>) -> io::Result<()> {
        self.call_conn(|conn, _| conn.inner_mut().configure(change))
    }

    fn peer_identity(&self) -> Option<Arc<PeerIdentity>> {
        self.inspect_conn(Conn::identity).flatten()
    }

    fn detach(&mut self) -> io::Result<()> {
        let (shard, key) = match &self.place {
            StreamPlace::Shard(shard, key) => (Arc::clone(shard), *key),
            StreamPlace::Detached(Some(conn), _) if conn.is_aborted() => {
                return Err(ErrorKind::NotConnected.into());
            }
            StreamPlace::Detached(..) => return Ok(()),
        };
        let mut locked = shard.lock();
        let conn = locked.conn(key).ok_or(ErrorKind::NotConnected)?;
        if conn.is_aborted() {
            return Err(ErrorKind::NotConnected.into());
        }
        conn.inner_mut().detach()?;
        let conn = locked.remove_conn(key);
        drop(locked);
        self.place = StreamPlace::Detached(conn, shard);
        Ok(())
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        match &mut self.place {
            StreamPlace::Shard(shard, key) => shard.lock().close_conn(*key),
            StreamPlace::Detached(conn, shard) => {
                if let Some(conn) = conn.take().filter(|conn| !conn.is_aborted()) {
                    shard.lock().adopt_orphan(conn);
                }
            }
        }
    }
}

struct TlsListener {
    shard: Arc<Mutex<Shard>>,
    key: usize,
    local: SocketAddr,
}

impl TransportListener for TlsListener {
    fn accept(&mut self, token: Token) -> io::Result<Box<dyn TransportStream>> {
        let mut shard = self.shard.lock();
        let key = shard.accept(self.key, token)?;
        let addresses =
            shard.conn(key).map(|conn| conn.addresses()).ok_or(ErrorKind::WouldBlock)?;
        drop(shard);
        Ok(Box::new(TlsStream {
            place: StreamPlace::Shard(Arc::clone(&self.shard), key),
            addresses,
        }))
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for TlsListener {
    fn drop(&mut self) {
        self.shard.lock().remove_listener(self.key);
    }
}

/// Datagram socket whose datagrams are not protected.
struct ClearDatagrams {
    inner: Box<dyn DatagramSocket>,
    shard: Arc<Mutex<Shard>>,
    key: usize,
}

impl DatagramSocket for ClearDatagrams {
    fn send(&mut self, bytes: &[u8], datagrams: &[Outgoing]) -> io::Result<usize> {
        self.inner.send(bytes, datagrams)
    }

    fn recv(&mut self, buffer: &mut [u8], datagrams: &mut Vec<Incoming>) -> io::Result<()> {
        self.inner.recv(buffer, datagrams)
    }

    fn set_interest(&mut self, interest: Interest) -> io::Result<()> {
        self.inner.set_interest(interest)
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }
}

impl Drop for ClearDatagrams {
    fn drop(&mut self) {
        self.shard.lock().remove_datagrams(self.key);
    }
}

/// Updates the keys of a stream's sending direction.
#[cfg(test)]
pub(super) fn update_keys(stream: &mut dyn TransportStream) {
    let stream = stream.downcast_mut::<TlsStream>().unwrap();
    stream
        .call_conn(|conn, _| {
            conn.update_keys();
            Ok(())
        })
        .unwrap();
}

//! Requests of peers, for the application to accept or reject.

use crate::cm::{CmChannel, ConnId, HalfOpenGuard, ListenerId};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::options::ConnConfig;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uiw_llp::{PeerIdentity, Token, TransportStream};
use uiw_mpa::startup::Request;

/// Connection request of a peer. Dropping it rejects the request without private data.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// use std::sync::Arc;
/// use uiw::raw::cm::{self, CmEventKind};
/// let (client, server) = (End::new()?, End::new()?);
/// let options = Arc::new(uiw::raw::ConnConfig::default());
/// let listener = cm::Listener::bind(&server.device, ([127, 0, 0, 1], 0).into(), 16, &options, &server.channel)?;
/// cm::connect(&client.qp, None, listener.local_addr(), &options, b"from the client", &client.channel)?;
/// let CmEventKind::ConnectRequest(request) = server.event() else { return Err("no request".into()) };
/// assert_eq!(request.private_data(), b"from the client");
/// request.accept(&server.qp, None, b"from the server", Some(&server.channel))?;
/// let CmEventKind::Established(info) = client.event() else { return Err("not accepted".into()) };
/// assert_eq!(info.private_data, b"from the server");
/// # Ok(())
/// # }
/// ```
pub struct ConnRequest {
    pub(super) driver: Arc<Driver>,
    pub(super) token: Token,
    /// `None` if the request arrived on a socket that was passed to
    /// [`accept_open`](super::accept_open()).
    half_open: Option<Arc<HalfOpenGuard>>,
    pub(super) id: ConnId,
    local: SocketAddr,
    peer: SocketAddr,
    private_data: Vec<u8>,
    ird: Option<u16>,
    ord: Option<u16>,
    revision: u8,
    max_reply: usize,
    pub(super) options: Arc<ConnConfig>,
    peer_identity: Option<Arc<PeerIdentity>>,
    has_socket: bool,
    pub(super) decided: bool,
}

impl ConnRequest {
    pub(crate) fn new(
        driver: Arc<Driver>,
        (token, half_open): (Token, Option<Arc<HalfOpenGuard>>),
        id: ConnId,
        socket: &dyn TransportStream,
        request: &Request,
        options: Arc<ConnConfig>,
    ) -> Self {
        Self {
            driver,
            token,
            half_open,
            id,
            local: socket.local_addr(),
            peer: socket.peer_addr(),
            private_data: request.private_data().to_vec(),
            ird: request.ird(),
            ord: request.ord(),
            revision: request.revision(),
            max_reply: request.max_reply_private_data(),
            options,
            peer_identity: socket.peer_identity(),
            has_socket: socket.kernel_socket().is_some(),
            decided: false,
        }
    }

    /// Returns the identifier that the connection will have.
    #[must_use]
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// Returns the listener at which the request arrived, or `None` if it arrived on a socket that
    /// was passed to [`accept_open`](super::accept_open()).
    #[must_use]
    pub fn listener(&self) -> Option<ListenerId> {
        self.half_open.as_ref().map(|half| ListenerId(half.listener.0))
    }

    /// Returns the local address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the address of the peer.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the identity of the peer, if the stack has verified it (with TLS).
    #[must_use]
    pub fn peer_identity(&self) -> Option<&PeerIdentity> {
        self.peer_identity.as_deref()
    }

    /// Returns the private data of the peer.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns the peer's IRD and ORD, if its Request contains them.
    #[must_use]
    pub fn peer_ird_ord(&self) -> Option<(u16, u16)> {
        self.ird.zip(self.ord)
    }

    /// Returns the MPA revision of the Request.
    #[must_use]
    pub fn revision(&self) -> u8 {
        self.revision
    }

    /// Returns the maximum number of bytes of private data in the Reply.
    #[must_use]
    pub fn max_reply_private_data(&self) -> usize {
        self.max_reply
    }

    /// Returns the options of the listener.
    #[must_use]
    pub fn options(&self) -> &Arc<ConnConfig> {
        &self.options
    }

    /// Sends later events of the connection to `channel`.
    ///
    /// # Errors
    /// [`Error::NotConnected`] if the peer has closed the connection.
    pub fn migrate(&self, channel: &Arc<CmChannel>) -> Result<()> {
        let (token, migrate) = (self.token, super::handle::migration_to(channel));
        let before = self.driver.shard(token).call(move |core| core.with_conn(token, migrate));
        before.map(drop).ok_or(Error::NotConnected)
    }

    /// Moves the connection to the shard of its queue pair: first out of the shard of the listener,
    /// then into the other one, so that no thread holds both locks.
    pub(super) fn move_to(&mut self, index: usize) -> Result<()> {
        let (token, from, to) =
            (self.token, self.driver.shard(self.token), self.driver.shard_at(index));
        if from.index() == to.index() {
            return Ok(());
        }
        to.start()?;
        let conn = from.call(move |core| core.take_conn(token)).ok_or(Error::NotConnected)?;
        // A connection that is returned is dropped here, without a lock.
        self.token = to.call(move |core| core.adopt(conn)).map_err(|_| Error::NotConnected)?;
        Ok(())
    }

    /// Returns whether [`ConnRequest::take_socket`] can take the connection, because it is a socket
    /// of the kernel that carries MPA without another layer.
    #[must_use]
    pub fn has_socket(&self) -> bool {
        self.has_socket
    }

    /// Takes the socket out of the device instead of answering the request.
    ///
    /// The program sends the Reply itself, and uses the connection as it likes. The socket is
    /// non-blocking. Only the Request was read from it, and nothing was sent.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
    /// # fn main() -> Result<(), AnyError> {
    /// use std::io::{Read, Write};
    /// use std::sync::Arc;
    /// use uiw_mpa::startup::{StartupConfig, Initiator};
    /// use uiw::raw::cm::{self, CmEventKind};
    /// let server = End::new()?;
    /// let options = Arc::new(uiw::raw::ConnConfig::default());
    /// let listener = cm::Listener::bind(&server.device, ([127, 0, 0, 1], 0).into(), 16, &options, &server.channel)?;
    /// let mut client = std::net::TcpStream::connect(listener.local_addr())?;
    /// client.write_all(&Initiator::new(StartupConfig::default(), b"something else")?.request())?;
    /// let CmEventKind::ConnectRequest(mut request) = server.event() else { return Err("no request".into()) };
    /// assert_eq!(request.private_data(), b"something else");
    /// let socket = std::net::TcpStream::from(request.take_socket()?);
    /// (&socket).write_all(b"as you like")?;
    /// drop(socket);
    /// let mut said = String::new();
    /// client.read_to_string(&mut said)?;
    /// assert_eq!(said, "as you like");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`] if the connection has no socket ([`ConnRequest::has_socket`]), or if the peer
    /// has sent bytes after its Request although it must wait for the Reply (RFC 5044 section
    /// 7.1.2); the request is still undecided then. [`Error::NotConnected`] if the peer has closed
    /// the connection.
    pub fn take_socket(&mut self) -> Result<OwnedFd> {
        let token = self.token;
        let socket = self.driver.shard(token).call(move |core| {
            core.with_conn(token, |conn, _| conn.take_socket()).unwrap_or(Err(Error::NotConnected))
        })?;
        self.decided = true;
        Ok(socket)
    }

    /// Rejects the request, with private data for the peer.
    ///
    /// # Errors
    /// [`Error::Startup`] if the private data is too long; [`Error::NotConnected`] if the peer has
    /// closed the connection.
    pub fn reject(mut self, private_data: &[u8]) -> Result<()> {
        self.decided = true;
        self.reject_now(private_data)
    }

    fn reject_now(&self, private_data: &[u8]) -> Result<()> {
        let (token, private_data) = (self.token, private_data.to_vec());
        self.driver.shard(token).call(move |core| {
            core.with_conn(token, |conn, services| conn.reject(&private_data, services))
                .unwrap_or(Err(Error::NotConnected))
        })
    }
}

impl Drop for ConnRequest {
    fn drop(&mut self) {
        if !self.decided {
            let _ = self.reject_now(&[]);
        }
    }
}

impl std::fmt::Debug for ConnRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnRequest")
            .field("id", &self.id)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

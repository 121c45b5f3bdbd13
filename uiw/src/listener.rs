//! Listeners.

use crate::connection::{Connection, PendingConnection};
use crate::error::{Error, ErrorKind, Result};
use crate::handshakes::{AcceptFailure, Handshakes};
use crate::llp::PeerIdentity;
use crate::pd::Pd;
use crate::settings::ConnectionConfig;
use futures_util::Stream;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use uiw_verbs::cm::{self, CmChannel, CmEventKind, ConnRequest};

/// A port on which peers may connect.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// use uiw::{ConnectionConfig, Connection, Device, Listener};
/// let device = Device::open()?;
/// let (pd, settings) = (device.alloc_pd()?, ConnectionConfig::default());
/// let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &settings)?;
/// let client = Connection::connect(&pd, listener.local_addr(), &settings);
/// let (client, server) = device.block_on(async { futures_util::future::join(client, listener.accept()).await });
/// assert_eq!(client?.info().local, server?.info().peer);
/// # Ok(())
/// # }
/// ```
pub struct Listener {
    pd: Pd,
    settings: ConnectionConfig,
    port: cm::Listener,
    channel: Arc<CmChannel>,
    handshakes: Handshakes,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("local_addr", &self.local_addr()).finish_non_exhaustive()
    }
}

/// Connections that TCP may complete before we take them.
const BACKLOG: u32 = 1024;

impl Listener {
    /// Listens on `local`; a port of 0 takes a free one, an unspecified address all of them. Connections belong to `pd` and are made
    /// with `settings`, unless [`Incoming::accept`] says otherwise.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when the address cannot be had; [`ErrorKind::Limit`], [`ErrorKind::Zero`] for settings that no connection can be made with.
    pub fn bind(pd: &Pd, local: SocketAddr, settings: &ConnectionConfig) -> Result<Self> {
        let device = pd.device();
        settings.check(device.limits())?;
        let channel = Arc::new(CmChannel::default());
        let options = Arc::new(settings.options.clone());
        let port = cm::Listener::bind(device.as_raw(), local, BACKLOG, &options, &channel)?;
        let handshakes = Handshakes::default();
        Ok(Self { pd: pd.clone(), settings: settings.clone(), port, channel, handshakes })
    }

    /// The address it listens on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.port.local_addr()
    }

    /// Waits for the next peer whose connection is established: in peer-to-peer mode, one that has sent its first message. Peers that fail
    /// are logged and counted ([`Listener::failures`]), and one that is silent delays no other.
    ///
    /// The handshakes of all waiting peers run side by side, at most 1,024.
    ///
    /// # Cancel safety
    /// Dropping the future, for instance in `select!`, loses no peer: handshakes that have begun go on with the next call.
    ///
    /// # Errors
    /// [`ErrorKind::Startup`] for settings that no peer can be accepted with; then the peer is rejected. Otherwise the errors are those of
    /// [`Listener::incoming`].
    pub async fn accept(&self) -> Result<Connection> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<Connection>> {
        while self.handshakes.has_room() {
            let Poll::Ready(incoming) = self.poll_incoming(cx)? else { break };
            let peer = incoming.peer_addr();
            match incoming.begin(&self.pd, &self.settings) {
                Ok(pending) => self.handshakes.begin(peer, pending.established()),
                Err(error) if is_of_peer(&error) => self.handshakes.fail(AcceptFailure { peer, error }),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        self.handshakes.poll_established(cx).map(Ok)
    }

    /// Waits for the next connection request, to be accepted or rejected by its contents: see [`Incoming`].
    ///
    /// # Cancel safety
    /// Dropping the future, for instance in `select!`, loses no request.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] once, when the interface of a TCP in this process is gone for good: no peer can connect any more. While it is
    /// only down, this waits on.
    pub async fn incoming(&self) -> Result<Incoming> {
        poll_fn(|cx| self.poll_incoming(cx)).await
    }

    /// Returns the number of peers that were accepted by [`Listener::accept`] and did not become a connection.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.handshakes.failures()
    }

    /// The oldest of the last 64 of [`Listener::failures`] that was not taken yet.
    pub fn take_failure(&self) -> Option<AcceptFailure> {
        self.handshakes.take_failure()
    }

    pub(crate) fn poll_incoming(&self, cx: &mut Context<'_>) -> Poll<Result<Incoming>> {
        loop {
            match ready!(self.channel.poll_pop(cx)).kind {
                CmEventKind::ConnectRequest(request) => {
                    return Poll::Ready(Ok(Incoming { request }));
                }
                CmEventKind::ListenerDown { error, for_good: true, .. } => {
                    return Poll::Ready(Err(error.into()));
                }
                _ => {}
            }
        }
    }
}

/// The connections that [`Listener::accept`] would return; it ends never.
impl Stream for Listener {
    type Item = Result<Connection>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_accept(cx).map(Some)
    }
}

/// Returns whether the failure is that of one peer, and another peer may be accepted.
fn is_of_peer(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotConnected
            | ErrorKind::Lost { .. }
            | ErrorKind::TimedOut { .. }
            | ErrorKind::PeerStartup { .. }
            | ErrorKind::PeerRefusal { .. }
            | ErrorKind::ClosedInStartup { .. }
    )
}

/// A connection request. Dropping it rejects.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// use uiw::{ConnectionConfig, Connection, Device, ErrorKind, Listener};
/// let device = Device::open()?;
/// let (pd, settings) = (device.alloc_pd()?, ConnectionConfig::default());
/// let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &settings)?;
/// let server = async {
///     let incoming = listener.incoming().await?;
///     match incoming.private_data() {
///         b"secret" => incoming.accept(&pd, &settings).await.map(drop),
///         _ => incoming.reject(b"not you"),
///     }
/// };
/// let settings = ConnectionConfig::default().private_data(*b"guess");
/// let client = Connection::connect(&pd, listener.local_addr(), &settings);
/// let (client, served) = device.block_on(async { futures_util::future::join(client, server).await });
/// served?;
/// assert!(matches!(client.unwrap_err().kind(), ErrorKind::Rejected { .. }));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Incoming {
    request: ConnRequest,
}

impl Incoming {
    /// The peer's private data.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.request.private_data()
    }

    /// The peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.request.peer_addr()
    }

    /// The identity of the peer, if the stack has verified it: with TLS.
    #[must_use]
    pub fn peer_identity(&self) -> Option<&PeerIdentity> {
        self.request.peer_identity()
    }

    /// Accepts, with settings and a protection domain of this connection's own. Ready when the connection is established: in
    /// peer-to-peer mode with the peer's first message. The TCP connection was made with the listener's settings.
    ///
    /// # Errors
    /// As [`Connection::connect`].
    pub async fn accept(self, pd: &Pd, settings: &ConnectionConfig) -> Result<Connection> {
        self.begin(pd, settings)?.established().await
    }

    pub(crate) fn begin(self, pd: &Pd, settings: &ConnectionConfig) -> Result<PendingConnection> {
        let pending = PendingConnection::new(pd, settings)?;
        let options = Arc::new(settings.options.clone());
        self.request.accept(pending.qp(), Some(&options), &settings.private_data, Some(pending.channel()))?;
        Ok(pending)
    }

    /// Rejects, with private data for the peer.
    ///
    /// # Errors
    /// [`ErrorKind::Startup`] for private data that is too long, [`ErrorKind::NotConnected`] when the peer is gone.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        Ok(self.request.reject(private_data)?)
    }
}

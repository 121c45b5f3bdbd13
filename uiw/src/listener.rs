//! Listeners and connection requests of the async API.

use crate::connection::{Connection, PendingConnection};
use crate::error::{ErrorKind, Result};
use crate::handshakes::{AcceptFailure, Handshakes};
use crate::llp::PeerIdentity;
use crate::pd::Pd;
use crate::settings::ConnectionConfig;
use crate::waiting::TaskKey;
use futures_util::Stream;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use uiw_verbs::cm::{self, CmChannel, CmEventKind, ConnRequest};

/// Listener that accepts connections of peers on one address.
///
/// [`Listener::accept`] accepts every peer; with [`Listener::incoming`] the program can inspect
/// each request first. A listener is also a [`Stream`] of accepted connections.
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
    /// Task that polls the listener as a [`Stream`].
    stream_task: TaskKey,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("local_addr", &self.local_addr()).finish_non_exhaustive()
    }
}

/// Maximum number of connections that TCP completes before the listener takes them.
const BACKLOG: u32 = 1024;

impl Listener {
    /// Listens on the address `local`. Port 0 selects a free port, and an unspecified address
    /// selects all addresses of the host.
    ///
    /// Connections belong to `pd` and have these settings, unless they are given others by
    /// [`Incoming::accept`].
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the address is not available. [`ErrorKind::Limit`] or
    /// [`ErrorKind::Zero`] if a setting is out of range.
    pub fn bind(pd: &Pd, local: SocketAddr, settings: &ConnectionConfig) -> Result<Self> {
        let device = pd.device();
        settings.check(device.limits())?;
        let channel = Arc::new(CmChannel::default());
        let options = settings.raw_options();
        let port = cm::Listener::bind(device.as_raw(), local, BACKLOG, &options, &channel)?;
        let handshakes = Handshakes::default();
        let (pd, settings) = (pd.clone(), settings.clone());
        Ok(Self { pd, settings, port, channel, handshakes, stream_task: None })
    }

    /// Returns the address on which the listener accepts connections.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.port.local_addr()
    }

    /// Accepts the next peer, and returns when its connection is established. In peer-to-peer mode,
    /// that is when its first message has arrived.
    ///
    /// Up to 1,024 handshakes run at the same time, so a silent peer does not delay others. Peers
    /// whose handshake fails, and peers for whose connection resources are missing, are logged and
    /// counted ([`Listener::failures`]).
    ///
    /// # Cancel safety
    /// Dropping the future, for instance in `select!`, loses no peer: the next call continues with
    /// the handshakes that have begun.
    ///
    /// # Errors
    /// [`ErrorKind::Startup`] if the settings of the listener are invalid; the peer is then
    /// rejected. Otherwise the errors are those of [`Listener::incoming`].
    pub async fn accept(&self) -> Result<Connection> {
        self.handshakes.waiting.wait(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<Connection>> {
        loop {
            while self.handshakes.has_room() {
                let Poll::Ready(incoming) = self.poll_incoming(cx)? else { break };
                let peer = incoming.peer_addr();
                match incoming.begin(&self.pd, &self.settings) {
                    Ok(pending) => self.handshakes.begin(peer, pending.established()),
                    Err(error) if matches!(error.kind(), ErrorKind::Startup(_)) => {
                        return Poll::Ready(Err(error));
                    }
                    Err(error) => self.handshakes.fail(AcceptFailure { peer, error }),
                }
            }
            let was_full = !self.handshakes.has_room();
            match self.handshakes.poll_established(cx) {
                // Failures have made room for requests, which nothing has polled yet.
                Poll::Pending if was_full && self.handshakes.has_room() => {}
                established => return established.map(Ok),
            }
        }
    }

    /// Waits for the next connection request, which the program can inspect before it accepts or
    /// rejects it.
    ///
    /// # Cancel safety
    /// Dropping the future, for instance in `select!`, loses no request.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], once, if the network interface of a user-space TCP stack has been
    /// removed, so that no peer can connect any more. While the interface is only down, the future
    /// keeps waiting.
    pub async fn incoming(&self) -> Result<Incoming> {
        self.handshakes.waiting.wait(|cx| self.poll_incoming(cx)).await
    }

    /// Returns the number of peers that [`Listener::accept`] accepted but whose connection could
    /// not be established.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.handshakes.failures()
    }

    /// Removes and returns the oldest recorded failure. Only the last 64 [`Listener::failures`] are
    /// recorded.
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

/// Stream of the connections that [`Listener::accept`] returns. It never ends.
impl Stream for Listener {
    type Item = Result<Connection>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let listener = self.get_mut();
        let waiting = &listener.handshakes.waiting;
        waiting.register(&mut listener.stream_task, cx.waker());
        let waker = Waker::from(Arc::clone(waiting));
        listener.poll_accept(&mut Context::from_waker(&waker)).map(Some)
    }
}

/// Connection request of a peer. Dropping it rejects the request.
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
    /// Returns the peer's private data.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.request.private_data()
    }

    /// Returns the peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.request.peer_addr()
    }

    /// Returns the identity of the peer if the transport has verified it, which TLS does.
    #[must_use]
    pub fn peer_identity(&self) -> Option<&PeerIdentity> {
        self.request.peer_identity()
    }

    /// Accepts the request, and waits until the connection is established. In peer-to-peer mode,
    /// that is when the peer's first message has arrived.
    ///
    /// The connection belongs to `pd` and has these settings instead of those of the listener. The
    /// settings of TCP are still the listener's, because the TCP connection exists already.
    ///
    /// # Errors
    /// The errors are those of [`Connection::connect`].
    pub async fn accept(self, pd: &Pd, settings: &ConnectionConfig) -> Result<Connection> {
        self.begin(pd, settings)?.established().await
    }

    /// Accepts the request without waiting for the connection.
    pub(crate) fn begin(self, pd: &Pd, settings: &ConnectionConfig) -> Result<PendingConnection> {
        let pending = PendingConnection::new(pd, settings)?;
        let options = settings.raw_options();
        self.request.accept(
            pending.qp(),
            Some(&options),
            &settings.private_data,
            Some(pending.channel()),
        )?;
        Ok(pending)
    }

    /// Rejects the request and sends `private_data` to the peer.
    ///
    /// # Errors
    /// [`ErrorKind::Startup`] if `private_data` is too long. [`ErrorKind::NotConnected`] if the
    /// peer has closed the connection.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        Ok(self.request.reject(private_data)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use std::pin::pin;
    use std::task::{Wake, Waker};
    use std::thread::{self, Thread};
    use std::time::{Duration, Instant};

    /// All handshakes fail between two polls of the listener, which is woken by the next request.
    #[test]
    fn failed_handshakes_make_room() {
        let (device, settings) = (Device::open().unwrap(), ConnectionConfig::default());
        let pd = device.alloc_pd().unwrap();
        let listener = Listener::bind(&pd, "127.0.0.1:0".parse().unwrap(), &settings).unwrap();
        while listener.handshakes.has_room() {
            listener
                .handshakes
                .begin(listener.local_addr(), async { Err(ErrorKind::NotConnected.into()) });
        }
        let waker = Arc::new(ThreadWaker(thread::current()));
        assert!(listener.poll_accept(&mut Context::from_waker(&waker.into())).is_pending());
        let mut connecting = pin!(Connection::connect(&pd, listener.local_addr(), &settings));
        assert!(connecting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let begun = Instant::now();
        thread::park_timeout(Duration::from_secs(60));
        assert!(begun.elapsed() < Duration::from_secs(60), "the request wakes the listener");
    }

    struct ThreadWaker(Thread);

    impl Wake for ThreadWaker {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
}

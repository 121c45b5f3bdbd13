//! Listeners.

use crate::api::connection::{ConnSettings, Connection, Half};
use crate::cm::{self, CmChannel, CmEventKind, ConnRequest};
use crate::device::Device;
use crate::error::Result;
use crate::options::ConnOptions;
use crate::pd::Pd;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;

/// A port on which peers may connect.
pub struct Listener {
    device: Device,
    port: cm::Listener,
    channel: Arc<CmChannel>,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("local_addr", &self.local_addr()).finish_non_exhaustive()
    }
}

/// Connections that TCP may complete before we take them.
const BACKLOG: u32 = 1024;

impl Listener {
    /// Listens on `local`; a port of 0 takes a free one, an unspecified address all of them. `options` hold for every
    /// connection that is accepted without its own.
    ///
    /// # Errors
    /// [`crate::Error::Io`] when the address cannot be had.
    pub fn bind(device: &Device, local: SocketAddr, options: &ConnOptions) -> Result<Self> {
        let channel = Arc::new(CmChannel::default());
        let port = cm::Listener::bind(device, local, BACKLOG, &Arc::new(options.clone()), &channel)?;
        Ok(Self { device: device.clone(), port, channel })
    }

    /// The address it listens on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.port.local_addr()
    }

    /// The next connection request.
    ///
    /// # Errors
    /// [`crate::Error::Io`] once, when the interface of a TCP in this process is gone for good: no peer can connect any more. While it is
    /// only down, this waits on.
    pub async fn accept(&self) -> Result<Incoming> {
        loop {
            match poll_fn(|cx| self.channel.poll_pop(cx)).await.kind {
                CmEventKind::ConnectRequest(request) => {
                    return Ok(Incoming { device: self.device.clone(), request });
                }
                CmEventKind::ListenerDown { error, for_good: true, .. } => return Err(error),
                _ => {}
            }
        }
    }
}

/// A connection request. Dropping it rejects.
#[derive(Debug)]
pub struct Incoming {
    device: Device,
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

    /// Accepts. Ready when the connection stands: in peer-to-peer mode with the peer's first message.
    ///
    /// # Errors
    /// As [`Connection::connect`].
    pub async fn accept(self, pd: &Pd, settings: &ConnSettings) -> Result<Connection> {
        let half = Half::new(&self.device, pd, settings)?;
        let options = Arc::new(settings.options.clone());
        self.request.accept(half.qp(), Some(&options), &settings.private_data, Some(half.channel()))?;
        half.established().await
    }

    /// Rejects, with private data for the peer.
    ///
    /// # Errors
    /// [`crate::Error::Startup`] for private data that is too long, [`crate::Error::NotConnected`] when the peer is gone.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.request.reject(private_data)
    }
}

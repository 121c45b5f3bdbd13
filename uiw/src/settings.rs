//! What connections of the safe API are made with.

use crate::error::Result;
use std::time::Duration;
use uiw_verbs::{ConnConfig, Limits};

/// Settings of a connection, for [`Connection::connect`](crate::Connection::connect), [`Listener::bind`](crate::Listener::bind)
/// and [`Incoming::accept`](crate::Incoming::accept).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionConfig {
    /// See [`ConnectionConfig::options()`].
    pub options: ConnConfig,
    /// See [`ConnectionConfig::private_data()`].
    pub private_data: Vec<u8>,
    /// See [`ConnectionConfig::send_depth()`].
    pub send_depth: u32,
    /// See [`ConnectionConfig::recv_depth()`].
    pub recv_depth: u32,
    /// See [`ConnectionConfig::recv_size()`].
    pub recv_size: u32,
    /// See [`ConnectionConfig::max_message()`].
    pub max_message: u32,
    /// See [`ConnectionConfig::detached_timeout()`].
    pub detached_timeout: Duration,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self {
            options: ConnConfig::default()
                .no_receive_timeout(Duration::MAX)
                .close_timeout(Duration::from_secs(60)),
            private_data: Vec::new(),
            send_depth: 128,
            recv_depth: 32,
            recv_size: 16 << 10,
            max_message: 16 << 20,
            detached_timeout: Duration::from_secs(60),
        }
    }
}

/// Gives [`ConnectionConfig`] the setters of [`ConnConfig`].
macro_rules! setters {
    (impl $config:ident { $($(#[doc = $doc:literal])+ $name:ident: $kind:ty = $default:expr,)* }) => {
        impl $config {
            $($(#[doc = $doc])+
            #[must_use]
            pub fn $name(mut self, $name: $kind) -> Self {
                self.options.$name = $name;
                self
            })*
        }
    };
}

uiw_verbs::integration::connection_options!(setters, impl ConnectionConfig);

impl ConnectionConfig {
    /// Time without any acknowledgement after which the peer counts as dead: see [`ConnConfig::dead_after`].
    #[must_use]
    pub fn dead_after(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.options = self.options.dead_after(time);
        self
    }

    /// Options of the raw layer, in place of those set so far.
    #[must_use]
    pub fn options(mut self, options: ConnConfig) -> Self {
        self.options = options;
        self
    }

    /// Private data for the peer. Default: none; at most 512 bytes at MPA revision 1, 508 at revision 2.
    #[must_use]
    pub fn private_data(mut self, private_data: impl Into<Vec<u8>>) -> Self {
        self.private_data = private_data.into();
        self
    }

    /// Requests that may be under way; further ones wait. Default: 128; from 1 to [`Limits::max_qp_wr`].
    #[must_use]
    pub fn send_depth(mut self, requests: u32) -> Self {
        self.send_depth = requests;
        self
    }

    /// Messages that are received ahead of the program; when all are full, the peer waits as on TCP. Default: 32; from 1 to
    /// [`Limits::max_qp_wr`].
    #[must_use]
    pub fn recv_depth(mut self, messages: u32) -> Self {
        self.recv_depth = messages;
        self
    }

    /// Bytes of each receive buffer. A longer message is received into memory that is allocated for it. Default: 16 KiB.
    #[must_use]
    pub fn recv_size(mut self, bytes: u32) -> Self {
        self.recv_size = bytes;
        self
    }

    /// The longest message that the peer may send, in bytes; a longer one ends the connection (RFC 5041 section 7.1). Default: 16 MiB.
    ///
    /// While messages that are longer than [`ConnectionConfig::recv_size`] and were not dropped take so many bytes together, the next message
    /// waits. Such messages take less than twice this number of bytes.
    #[must_use]
    pub fn max_message(mut self, bytes: u32) -> Self {
        self.max_message = bytes;
        self
    }

    /// Sets the time for which dropped operations keep a connection of which nothing else is left: if they are not over then, it is
    /// aborted. Messages that the peer sends meanwhile are dropped. Default: 60 s; [`Duration::MAX`] is for ever.
    ///
    /// With [`crate::Progress::Manual`] the connection is ended before that when the last handle of the device is dropped, as nothing
    /// drives it then. Handles are [`crate::Device`], connections, their messages and operations, and listeners.
    #[must_use]
    pub fn detached_timeout(mut self, timeout: Duration) -> Self {
        self.detached_timeout = timeout;
        self
    }

    /// Returns whether a connection can be made with them on a device with `limits`.
    pub(crate) fn check(&self, limits: &Limits) -> Result<()> {
        limits.check("send depth", self.send_depth.into(), limits.max_qp_wr.into())?;
        limits.check("receive depth", self.recv_depth.into(), limits.max_qp_wr.into())?;
        limits.check("receive size", self.recv_size.into(), u32::MAX.into())?;
        Ok(limits.check("longest message", self.max_message.into(), u32::MAX.into())?)
    }
}

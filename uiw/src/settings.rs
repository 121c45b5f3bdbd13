//! Settings of the safe API's connections.

use crate::error::Result;
use std::sync::Arc;
use std::time::Duration;
use uiw_verbs::{ConnConfig, Limits};

/// Settings of a connection, for [`Connection::connect`](crate::Connection::connect),
/// [`Listener::bind`](crate::Listener::bind) and [`Incoming::accept`](crate::Incoming::accept). The
/// documentation of the setters describes the fields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionConfig {
    /// Options of the raw layer ([`ConnectionConfig::options()`]).
    pub options: ConnConfig,
    /// Private data for the peer ([`ConnectionConfig::private_data()`]).
    pub private_data: Vec<u8>,
    /// Maximum number of requests in progress ([`ConnectionConfig::send_depth()`]).
    pub send_depth: u32,
    /// Number of receive buffers ([`ConnectionConfig::recv_depth()`]).
    pub recv_depth: u32,
    /// Size of each receive buffer in bytes ([`ConnectionConfig::recv_size()`]).
    pub recv_size: u32,
    /// Maximum length in bytes of a received message ([`ConnectionConfig::max_message()`]).
    pub max_message: u32,
    /// Time limit for dropped operations ([`ConnectionConfig::detached_timeout()`]).
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
    (impl $config:ident { $($(#[$doc:meta])+ $name:ident: $kind:ty = $default:expr,)* }) => {
        impl $config {
            $(#[doc = concat!("Sets `", stringify!($name), "`.")]
            #[doc = ""]
            $(#[$doc])+
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
    /// Sets the time without an acknowledgement after which the peer counts as dead. See
    /// [`ConnConfig::dead_after`].
    #[must_use]
    pub fn dead_after(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.options = self.options.dead_after(time);
        self
    }

    /// Replaces all options of the raw layer, including those that were set before.
    #[must_use]
    pub fn options(mut self, options: ConnConfig) -> Self {
        self.options = options;
        self
    }

    /// Returns the options for the raw layer. The end of the connection ends its operations, so the
    /// queue pair must not wait for another connection.
    pub(crate) fn raw_options(&self) -> Arc<ConnConfig> {
        Arc::new(self.options.clone().outlives_peer(false))
    }

    /// Sets the private data that is sent to the peer during start-up: at most 512 bytes with MPA
    /// revision 1, 508 with revision 2. Default: empty.
    #[must_use]
    pub fn private_data(mut self, private_data: impl Into<Vec<u8>>) -> Self {
        self.private_data = private_data.into();
        self
    }

    /// Sets the maximum number of requests in progress, from 1 to [`Limits::max_qp_wr`]. Further
    /// operations wait. Default: 128.
    #[must_use]
    pub fn send_depth(mut self, requests: u32) -> Self {
        self.send_depth = requests;
        self
    }

    /// Sets the number of receive buffers, from 1 to [`Limits::max_qp_wr`]. Default: 32.
    ///
    /// Each received message occupies a buffer until the program drops the message. When all
    /// buffers are in use, the peer has to wait, as with a full TCP window.
    #[must_use]
    pub fn recv_depth(mut self, messages: u32) -> Self {
        self.recv_depth = messages;
        self
    }

    /// Sets the size of each receive buffer in bytes. Longer messages are received into memory that
    /// is allocated for them. Default: 16 KiB.
    #[must_use]
    pub fn recv_size(mut self, bytes: u32) -> Self {
        self.recv_size = bytes;
        self
    }

    /// Sets the maximum length in bytes of a message from the peer. A longer message ends the
    /// connection (RFC 5041 section 7.1). Default: 16 MiB.
    ///
    /// This also limits the memory for messages that are longer than
    /// [`ConnectionConfig::recv_size`]. While such messages that the program has not dropped yet
    /// occupy this number of bytes or more, the next message waits. Together they therefore never
    /// occupy twice this number.
    #[must_use]
    pub fn max_message(mut self, bytes: u32) -> Self {
        self.max_message = bytes;
        self
    }

    /// Sets the time limit for operations that were dropped while in progress. After all handles of
    /// the connection have been dropped, these operations keep it open for at most this time.
    /// Default: 60 s. [`Duration::MAX`] means no limit.
    ///
    /// If operations are still in progress after this time, the connection is aborted. Messages
    /// that the peer sends meanwhile are dropped. An operation whose buffer contains a
    /// [`Message`](crate::Message) of the same connection is not dropped in this sense, because the
    /// message is a handle of the connection.
    ///
    /// With [`crate::Progress::Manual`] the connection also ends when the last handle of the device
    /// is dropped, because nothing drives the device any more. Handles are [`crate::Device`],
    /// connections, their messages and operations, and listeners.
    #[must_use]
    pub fn detached_timeout(mut self, timeout: Duration) -> Self {
        self.detached_timeout = timeout;
        self
    }

    /// Checks the settings against the `limits` of a device.
    pub(crate) fn check(&self, limits: &Limits) -> Result<()> {
        limits.check("send depth", self.send_depth.into(), limits.max_qp_wr.into())?;
        limits.check("receive depth", self.recv_depth.into(), limits.max_qp_wr.into())?;
        limits.check("receive size", self.recv_size.into(), u32::MAX.into())?;
        Ok(limits.check("longest message", self.max_message.into(), u32::MAX.into())?)
    }
}

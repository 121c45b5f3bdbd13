//! What striped connections are made with.

use crate::api::connection::Connection;
use crate::api::settings::ConnSettings;
use crate::error::{Error, Result};
use crate::options::Limits;
use std::time::Duration;
use uiw_striping::MAX_STRIPES;
use uiw_striping::wire::{JOIN_LEN, MESSAGE_HEADER_LEN};

/// Requests of the connection itself on a stripe, beside those of the program.
const CONTROL_DEPTH: u32 = 4;
/// Receives of a stripe other than 0, and bytes of each: for messages of the connection itself.
const CONTROL_RECEIVES: u32 = 4;
const CONTROL_SIZE: u32 = 64;
/// A stripe that acknowledges nothing for so long is replaced: the death of a stripe costs less than that of a connection.
const DEAD_AFTER: Duration = Duration::from_secs(30);
/// As long as an ordinary connection waits for a silent peer. Longer than `dead_after` of the peer, which may notice a death later.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Bytes of private data of an MPA frame of revision 2.
const MAX_PRIVATE_DATA: u64 = 508;

/// Whether completions of a stripe are acknowledged: by Reads.
///
/// # Errors
/// [`Error::Unsupported`] where the peer lets this end make no Reads.
pub(super) fn check_acknowledged(connection: &Connection) -> Result<()> {
    match connection.info().negotiated.ord {
        0 => Err(Error::Unsupported { what: "an IRD of at least 1, which striped connections need" }),
        _ => Ok(()),
    }
}

/// What a striped connection is made with, at [`Striped::connect`](crate::Striped::connect) and
/// [`StripedListener::bind`](crate::StripedListener::bind).
///
/// ```
/// use std::time::Duration;
/// use uiw_verbs::{ConnSettings, StripedSettings};
/// let conn = ConnSettings::default().send_depth(64).dead_after(Duration::from_secs(30));
/// let settings = StripedSettings::default().stripes(8).recovery_timeout(Duration::from_secs(120)).conn(conn);
/// # let _ = settings;
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StripedSettings {
    /// See [`StripedSettings::conn()`].
    pub conn: ConnSettings,
    /// See [`StripedSettings::stripes()`].
    pub stripes: u8,
    /// See [`StripedSettings::max_stripes()`].
    pub max_stripes: u8,
    /// See [`StripedSettings::recovery_timeout()`].
    pub recovery_timeout: Duration,
}

impl Default for StripedSettings {
    fn default() -> Self {
        Self {
            conn: ConnSettings::default().dead_after(DEAD_AFTER),
            stripes: 4,
            max_stripes: MAX_STRIPES,
            recovery_timeout: RECOVERY_TIMEOUT,
        }
    }
}

impl StripedSettings {
    /// Settings of each stripe, of which `send_depth` counts for each by itself, `recv_depth`, `recv_size` and `max_message` for the
    /// connection, and `private_data`, at most 472 bytes, is the program's. Completions are acknowledged, either side may send first, and
    /// there is no fall-back to MPA revision 1, whatever they say. IRD and ORD are at least 1. Default: [`ConnSettings::default`] with a `dead_after` of 30 s.
    /// Without TLS, any program that reads the stream can join it: see the page "Striped connections".
    #[must_use]
    pub fn conn(mut self, conn: ConnSettings) -> Self {
        self.conn = conn;
        self
    }

    /// Stripes that an initiator makes. Default: 4; from 1 to 64.
    #[must_use]
    pub fn stripes(mut self, stripes: u8) -> Self {
        self.stripes = stripes;
        self
    }

    /// Stripes that an acceptor lets an initiator make. Default: 64; from 1 to 64.
    #[must_use]
    pub fn max_stripes(mut self, stripes: u8) -> Self {
        self.max_stripes = stripes;
        self
    }

    /// How long a stripe may be dead until it is replaced, and how long stripes that were replaced may die again without any request being
    /// placed; after that, the connection ends. Default: 15 minutes. It should be longer
    /// than `dead_after` of the peer, which may notice the death of a stripe only then.
    #[must_use]
    pub fn recovery_timeout(mut self, timeout: Duration) -> Self {
        self.recovery_timeout = timeout;
        self
    }

    /// Whether a connection can be made with them on a device with `limits`.
    pub(super) fn check(&self, limits: &Limits) -> Result<()> {
        limits.check("number of stripes", self.stripes.into(), MAX_STRIPES.into())?;
        limits.check("most stripes", self.max_stripes.into(), MAX_STRIPES.into())?;
        let private_data = self.conn.private_data.len() as u64;
        let limit = MAX_PRIVATE_DATA - JOIN_LEN as u64;
        if private_data > limit {
            return Err(Error::Limit {
                what: "private data of a striped connection",
                asked: private_data,
                limit,
            });
        }
        if self.conn.options.ord == 0 {
            return Err(Error::Zero { what: "ORD of a striped connection" });
        }
        if self.conn.options.ird == 0 {
            return Err(Error::Zero { what: "IRD of a striped connection" });
        }
        self.of_stripe(0, Vec::new()).check(limits)
    }

    /// The settings of one stripe.
    pub(super) fn of_stripe(&self, index: u8, private_data: Vec<u8>) -> ConnSettings {
        let mut conn = self.conn.clone();
        conn.private_data = private_data;
        conn.options.acknowledged = true;
        conn.options.fallback = false;
        conn.options.peer_to_peer = true;
        conn.options.outlives_peer = false;
        conn.send_depth = conn.send_depth.saturating_add(CONTROL_DEPTH);
        if index == 0 {
            conn.recv_size = conn.recv_size.saturating_add(MESSAGE_HEADER_LEN as u32);
            conn.max_message = conn.max_message.saturating_add(MESSAGE_HEADER_LEN as u32);
        } else {
            (conn.recv_depth, conn.recv_size, conn.max_message) =
                (CONTROL_RECEIVES, CONTROL_SIZE, CONTROL_SIZE);
        }
        conn
    }
}

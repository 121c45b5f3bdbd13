//! Handles of connections, for connection managers whose queue pairs are created and destroyed
//! independently.

use crate::cm::{CmChannel, ConnId};
use crate::conn::Conn;
use crate::driver::{Driver, Services};
use crate::error::{Error, Result};
use crate::qp::{ConnLocation, Qp};
use std::sync::Arc;

/// Handle of a connection in set-up or established, without its queue pair.
///
/// Every function that begins a connection returns one. Other threads can then take the events of
/// the connection and drop its queue pair. The handle keeps neither alive: once the connection has
/// ended, every call returns [`Error::NotConnected`].
#[derive(Clone)]
pub struct ConnHandle {
    driver: Arc<Driver>,
    /// `None` for a connection that ended before it had a stream.
    location: Option<Arc<ConnLocation>>,
    id: ConnId,
}

impl ConnHandle {
    pub(super) fn new(
        driver: Arc<Driver>,
        location: Option<Arc<ConnLocation>>,
        id: ConnId,
    ) -> Self {
        Self { driver, location, id }
    }

    /// Returns the connection of `qp`.
    ///
    /// # Errors
    /// [`Error::NotConnected`] if there is none.
    pub fn of(qp: &Qp) -> Result<Self> {
        let driver = Arc::clone(&qp.0.driver);
        let found =
            driver.with_conn_at(&qp.0.conn, |conn, _| (conn.cm.id, Arc::clone(&conn.location)));
        let (id, location) = found.ok_or(Error::NotConnected)?;
        Ok(Self { driver, location: Some(location), id })
    }

    /// Returns the identifier of the connection in [`crate::cm::CmEvent`]s.
    #[must_use]
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// Moves the events of the connection to another channel: pending ones, in order, and all later
    /// ones (`rdma_migrate_id`).
    ///
    /// # Errors
    /// [`Error::NotConnected`] if the connection has ended; pending events stay where they are.
    pub fn migrate(&self, channel: &Arc<CmChannel>) -> Result<()> {
        self.with(migration_to(channel)).map(drop)
    }

    /// Reports no further events of the connection. Pending ones stay in their channel.
    pub fn forget(&self) {
        // A connection that has ended has no further events.
        let _ = self.with(|conn, _| conn.cm.forget());
    }

    /// Second step of [`crate::cm::connect_in_two_steps`]. Has no effect on other connections, or
    /// when called again.
    ///
    /// # Errors
    /// [`Error::NotConnected`] if the connection has ended.
    pub fn establish(&self) -> Result<()> {
        self.with(Conn::establish)
    }

    /// Like [`Qp::disconnect`].
    ///
    /// # Errors
    /// [`Error::NotConnected`] if the connection has ended.
    pub fn disconnect(&self) -> Result<()> {
        self.with(Conn::close)
    }

    /// Closes an established connection like [`ConnHandle::disconnect`], and gives up one in setup
    /// like [`ConnHandle::abort`].
    ///
    /// # Errors
    /// [`Error::NotConnected`] if the connection has ended.
    pub fn close(&self) -> Result<()> {
        self.with(|conn, services| {
            if conn.stream.is_established() {
                conn.close(services);
            } else {
                conn.fail_startup(Error::NotConnected, services);
            }
        })
    }

    /// Gives up a connection in setup, whose queue pair can then be used again, or terminates an
    /// established one, whose queue pair enters the error state. A connection whose queue pair was
    /// destroyed ends by itself once the peer has its acknowledgements.
    ///
    /// # Errors
    /// [`Error::NotConnected`] if the connection has ended.
    pub fn abort(&self) -> Result<()> {
        self.with(|conn, services| {
            if conn.stream.is_detached() {
                return;
            }
            if conn.stream.is_established() {
                conn.abort(services);
            } else {
                conn.fail_startup(Error::NotConnected, services);
            }
        })
    }

    /// Serves what has arrived for the connection, on its shard. The resulting events are in its
    /// channel when this returns.
    ///
    /// # Errors
    /// [`Error::NotConnected`] if the connection has ended.
    pub fn catch_up(&self) -> Result<()> {
        self.with(|conn, services| {
            conn.on_readable(services);
        })
    }

    fn with<R: Send + 'static>(
        &self,
        serve: impl FnOnce(&mut Conn, &mut Services) -> R + Send + 'static,
    ) -> Result<R> {
        let location = self.location.as_ref().ok_or(Error::NotConnected)?;
        self.driver.with_conn_at(location, serve).ok_or(Error::NotConnected)
    }
}

impl std::fmt::Debug for ConnHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ConnHandle").field(&self.id).finish()
    }
}

/// Returns the command that moves the events of a connection to `channel` and returns the previous
/// channel. Drop that without a lock, because its wakers are code of the application.
pub(super) fn migration_to(
    channel: &Arc<CmChannel>,
) -> impl FnOnce(&mut Conn, &mut Services) -> Arc<CmChannel> + Send + use<> {
    let channel = Arc::clone(channel);
    move |conn, services| conn.cm.migrate_all(&channel, &mut services.wakes)
}

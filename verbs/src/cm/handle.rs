//! Connections by themselves: for connection managers whose queue pairs come and go.

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
    pub(super) fn new(driver: Arc<Driver>, location: Option<Arc<ConnLocation>>, id: ConnId) -> Self {
        Self { driver, location, id }
    }

    /// The connection that `qp` has.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    pub fn of(qp: &Qp) -> Result<Self> {
        let driver = Arc::clone(&qp.0.driver);
        let found = driver.with_conn_at(&qp.0.conn, |conn, _| (conn.cm.id, Arc::clone(&conn.location)));
        let (id, location) = found.ok_or(Error::NotConnected)?;
        Ok(Self { driver, location: Some(location), id })
    }

    /// Returns the identifier of the connection in [`crate::cm::CmEvent`]s.
    #[must_use]
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// Moves its events to another channel: those not taken yet, in order, and all later ones
    /// (`rdma_migrate_id`).
    ///
    /// # Errors
    /// [`Error::NotConnected`]; events not taken yet stay where they are then.
    pub fn migrate(&self, channel: &Arc<CmChannel>) -> Result<()> {
        self.with(migration_to(channel)).map(drop)
    }

    /// No event reports it any more. Those not taken yet stay in their channel.
    pub fn forget(&self) {
        // One that is over has no events anyway.
        let _ = self.with(|conn, _| conn.cm.forget());
    }

    /// The second step of [`crate::cm::connect_in_two_steps`]; nothing happens to other
    /// connections, and the second time.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    pub fn establish(&self) -> Result<()> {
        self.with(Conn::establish)
    }

    /// Like [`Qp::disconnect`].
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    pub fn disconnect(&self) -> Result<()> {
        self.with(Conn::close)
    }

    /// Gives up a connection in set-up, whose queue pair is free again then, and terminates one
    /// that stands, whose queue pair enters the error state. One whose queue pair was destroyed
    /// ends by itself, when the peer has its acknowledgements.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    pub fn abort(&self) -> Result<()> {
        self.with(|conn, services| {
            if conn.stream.is_detached() {
                return;
            }
            if conn.is_established() {
                conn.abort(services);
            } else {
                conn.fail_startup(Error::NotConnected, services);
            }
        })
    }

    /// Serves what has arrived for it, on whichever shard it is: its events that follow from that
    /// are in its channel then.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
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

/// Returns the work on a connection that moves its events to `channel`, and returns the channel
/// before: to be dropped without a lock, as its wakers are foreign code.
pub(super) fn migration_to(
    channel: &Arc<CmChannel>,
) -> impl FnOnce(&mut Conn, &mut Services) -> Arc<CmChannel> + Send + use<> {
    let channel = Arc::clone(channel);
    move |conn, services| conn.cm.migrate_all(&channel, &mut services.wakes)
}

//! Connections by themselves: for connection managers whose queue pairs come and go.

use crate::cm::{CmChannel, ConnId};
use crate::conn::Conn;
use crate::driver::{Driver, Services};
use crate::error::{Error, Result};
use crate::qp::Qp;
use std::sync::Arc;
use uiw_llp::Token;

/// A connection, in set-up or standing, without its queue pair. It keeps nothing alive: once the connection is over every call
/// answers [`Error::NotConnected`].
///
/// What begins a connection returns one. From then on other threads may take the events of the connection, and drop its queue pair.
#[derive(Clone)]
pub struct ConnHandle {
    driver: Arc<Driver>,
    /// None of one that ended before it had a stream.
    token: Option<Token>,
    id: ConnId,
}

impl ConnHandle {
    pub(super) fn new(driver: Arc<Driver>, token: Option<Token>, id: ConnId) -> Self {
        Self { driver, token, id }
    }

    /// The connection that `qp` has.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    pub fn of(qp: &Qp) -> Result<Self> {
        let token = qp.0.conn().ok_or(Error::NotConnected)?;
        let driver = Arc::clone(&qp.0.driver);
        let id = with(&driver, token, |conn, _| conn.cm.id)?;
        Ok(Self { driver, token: Some(token), id })
    }

    /// Returns the identifier of the connection in [`crate::cm::CmEvent`]s.
    #[must_use]
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// Moves its events to another channel: those not taken yet, in order, and all later ones (`rdma_migrate_id`).
    ///
    /// # Errors
    /// [`Error::NotConnected`]; events not taken yet stay where they are then.
    pub fn migrate(&self, channel: &Arc<CmChannel>) -> Result<()> {
        migrate(&self.driver, self.token.ok_or(Error::NotConnected)?, channel)
    }

    /// No event reports it any more. Those not taken yet stay in their channel.
    pub fn forget(&self) {
        // One that is over has no events anyway.
        let _ = self.with(|conn, _| conn.cm.forget());
    }

    /// The second step of [`crate::cm::connect_in_two_steps`]; nothing happens to other connections, and the second time.
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

    /// Gives up a connection in set-up, whose queue pair is free again then, and terminates one that stands, whose queue pair
    /// enters the error state. One whose queue pair was destroyed ends by itself, when the peer has its acknowledgements.
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

    /// Serves what has arrived for it, on whichever shard it is: its events that follow from that are in its channel then.
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
        with(&self.driver, self.token.ok_or(Error::NotConnected)?, serve)
    }
}

impl std::fmt::Debug for ConnHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ConnHandle").field(&self.id).finish()
    }
}

fn with<R>(
    driver: &Arc<Driver>,
    token: Token,
    serve: impl FnOnce(&mut Conn, &mut Services) -> R + Send + 'static,
) -> Result<R>
where
    R: Send + 'static,
{
    driver.shard(token).call(move |core| core.with_conn(token, serve)).ok_or(Error::NotConnected)
}

pub(super) fn migrate(driver: &Arc<Driver>, token: Token, channel: &Arc<CmChannel>) -> Result<()> {
    let channel = Arc::clone(channel);
    // The channel before is dropped without a lock: its wakers are foreign code.
    with(driver, token, move |conn, services| conn.cm.migrate_all(&channel, &mut services.wakes)).map(drop)
}

//! Accepts a connection request with a queue pair.

use crate::cm::{CmChannel, ConnHandle, ConnRequest, check_options};
use crate::conn::Conn;
use crate::driver::{Core, Services};
use crate::error::{Error, Result};
use crate::options::ConnConfig;
use crate::qp::{Qp, QpInner};
use std::sync::Arc;
use uiw_llp::Token;

impl ConnRequest {
    /// Accepts the request with `qp`. [`crate::cm::CmEventKind::Established`] follows on `channel`,
    /// or on the channel of the listener.
    ///
    /// # Errors
    /// The errors of [`crate::cm::connect()`]; [`Error::NotConnected`] if the peer has closed the
    /// connection.
    pub fn accept(
        mut self,
        qp: &Qp,
        options: Option<&Arc<ConnConfig>>,
        private_data: &[u8],
        channel: Option<&Arc<CmChannel>>,
    ) -> Result<ConnHandle> {
        let options = Arc::clone(options.unwrap_or(&self.options));
        check_options(self.driver.limits().max_rd_atomic, &options)?;
        let inner = Arc::clone(&qp.0);
        if !Arc::ptr_eq(&inner.driver, &self.driver) {
            return Err(Error::Foreign { what: "queue pair", of: "device" });
        }
        self.move_to(inner.recv_cq.shard())?;
        let token = self.token;
        let (private_data, channel) = (private_data.to_vec(), channel.cloned());
        // The queue pair is not used after this: another thread may have taken the events of the
        // connection and dropped the queue pair.
        let (accepted, channel_before) = self.driver.shard(token).call(move |core| {
            let mut channel_before = None;
            let accepted = accept_on(core, token, &inner, |conn, services| {
                channel_before = channel.map(|channel| conn.cm.migrate(&channel));
                conn.accept(&inner, &options, &private_data, services)?;
                Ok(Arc::clone(&conn.location))
            });
            (accepted, channel_before)
        });
        // Dropped without a lock, because its wakers are code of the application.
        drop(channel_before);
        let location = accepted?;
        self.decided = true;
        self.driver.note_use(token);
        Ok(ConnHandle::new(Arc::clone(&self.driver), Some(location), self.id))
    }
}

/// Assigns the connection `token`, which `accept` accepts, to `qp`.
fn accept_on<R>(
    core: &mut Core,
    token: Token,
    qp: &QpInner,
    accept: impl FnOnce(&mut Conn, &mut Services) -> Result<R>,
) -> Result<R> {
    {
        let _control = qp.control();
        qp.may_connect("accepting")?;
        qp.set_conn(Some(token));
    }
    let accepted = core.with_conn(token, accept).unwrap_or(Err(Error::NotConnected));
    if accepted.is_err() {
        qp.set_conn(None);
    }
    accepted
}

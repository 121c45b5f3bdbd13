//! Handle of a SIDR request.

use super::binding::{bind, migrate};
use super::message::too_long;
use super::requester::Requester;
use super::slot::{Role, SidrSlot};
use crate::cm::{CmChannel, ConnId};
use crate::device::Device;
use crate::driver::{Driver, Slot};
use crate::error::{Error, Result};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use uiw_datagram::sidr::Request;
use uiw_llp::Token;

/// Request that is repeated until its reply arrives or it times out. Dropping it stops the
/// repetition.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// use uiw::raw::cm::{CmEventKind, SidrHandle, SidrListener};
/// # let (server, client) = (End::new()?, End::new()?);
/// let listener = SidrListener::bind(&server.device, &["127.0.0.1:0".parse()?], &server.channel)?;
/// let to = listener.local_addr();
/// let request = SidrHandle::request(&client.device, "127.0.0.1:0".parse()?, to, b"", &client.channel)?;
/// let CmEventKind::SidrRequest(asked) = server.event() else { return Err("no request".into()) };
/// assert_eq!(asked.peer_addr(), request.local_addr());
/// // Dropped without an answer it is rejected.
/// drop(asked);
/// assert!(matches!(client.event(), CmEventKind::Failed(_)));
/// # Ok(())
/// # }
/// ```
pub struct SidrHandle {
    driver: Arc<Driver>,
    token: Token,
    id: ConnId,
    local: SocketAddr,
}

impl std::fmt::Debug for SidrHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SidrHandle").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SidrHandle {
    /// Asks the listener at `peer` for its queue pair, from `local`. The outcome is an event on
    /// `channel`: [`SidrResolved`](crate::cm::CmEventKind::SidrResolved) or
    /// [`Failed`](crate::cm::CmEventKind::Failed).
    ///
    /// # Errors
    /// [`Error::Io`] if the address is not available or the stack does not support datagrams;
    /// [`Error::Limit`] if the private data is too long.
    pub fn request(
        device: &Device,
        local: SocketAddr,
        peer: SocketAddr,
        private_data: &[u8],
        channel: &Arc<CmChannel>,
    ) -> Result<Self> {
        let driver = Arc::clone(device.driver());
        let number = getrandom::u64().map_err(|error| Error::Io {
            what: "drawing a transaction number",
            source: io::Error::other(error),
        })?;
        let request = Request { transaction: number, private_data }.emit().map_err(too_long)?;
        let id = ConnId(driver.shared.next_stream().0);
        let shard = driver.shard_for_listener();
        shard.start()?;
        let channel = Arc::clone(channel);
        let (token, local) = shard.call(move |core| {
            let token = core.next_token();
            let socket = bind(core, local, token)?;
            let local = socket.local_addr();
            let role = Role::Requester(Requester::new(id, peer, number, request));
            let mut slot = SidrSlot { sockets: vec![socket], channel, role };
            slot.on_timer(token, &mut core.services);
            core.fill_slot(token, Slot::Sidr(Box::new(slot)));
            Ok::<_, Error>((token, local))
        })?;
        Ok(Self { driver, token, id, local })
    }

    /// Returns the identifier of the request.
    #[must_use]
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// Returns the local address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Reports the event on another channel, to which it is moved if it is already pending.
    pub fn migrate(&self, channel: &Arc<CmChannel>) {
        let id = self.id;
        migrate(&self.driver, self.token, channel, move |event| event.id == id);
    }
}

impl Drop for SidrHandle {
    fn drop(&mut self) {
        let token = self.token;
        drop(self.driver.shard(token).call(move |core| core.remove(token)));
    }
}

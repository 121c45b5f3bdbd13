//! Handle of a SIDR listener.

use super::binding::{bind, migrate};
use super::responder::Responder;
use super::slot::{Role, SidrSlot};
use crate::cm::{CmChannel, CmEvent, CmEventKind, ListenerId};
use crate::device::Device;
use crate::driver::{Driver, Slot};
use crate::error::{Error, Result};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use uiw_llp::Token;

/// Listener for SIDR requests at one or more addresses. Dropping it closes the addresses; undecided
/// requests get no reply.
pub struct SidrListener {
    driver: Arc<Driver>,
    token: Token,
    local: SocketAddr,
}

impl std::fmt::Debug for SidrListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SidrListener").field("local_addr", &self.local).finish_non_exhaustive()
    }
}

impl SidrListener {
    /// Listens on UDP at `addresses`. If they have port 0, a free port is chosen for all of them.
    /// If there are several, addresses that the host does not have are skipped. Requests are
    /// reported on `channel` as [`CmEventKind::SidrRequest`].
    ///
    /// # Errors
    /// [`Error::Io`] if an address is not available or the stack does not support datagrams;
    /// [`Error::Zero`] if no address is left.
    pub fn bind(
        device: &Device,
        addresses: &[SocketAddr],
        channel: &Arc<CmChannel>,
    ) -> Result<Self> {
        let driver = Arc::clone(device.driver());
        let shard = driver.shard_for_listener();
        shard.start()?;
        let (addresses, channel) = (addresses.to_vec(), Arc::clone(channel));
        let (token, local) = shard.call(move |core| {
            let token = core.next_token();
            let mut sockets = Vec::new();
            let (mut port, several) = (0, addresses.len() > 1);
            for mut address in addresses {
                if address.port() == 0 {
                    address.set_port(port);
                }
                let socket = match bind(core, address, token) {
                    Ok(socket) => socket,
                    // The address was removed since the list was made, or duplicate address
                    // detection is not complete.
                    Err(Error::Io { source, .. }) if several && is_not_available(&source) => {
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                port = socket.local_addr().port();
                sockets.push(socket);
            }
            let local =
                sockets.first().ok_or(Error::Zero { what: "number of addresses" })?.local_addr();
            let role = Role::Responder(Responder::new(ListenerId(token.0)));
            core.fill_slot(token, Slot::Sidr(Box::new(SidrSlot { sockets, channel, role })));
            Ok::<_, Error>((token, local))
        })?;
        Ok(Self { driver, token, local })
    }

    /// Returns the first address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the identifier of the listener: see
    /// [`SidrRequest::listener`](crate::cm::SidrRequest::listener).
    #[must_use]
    pub fn id(&self) -> ListenerId {
        ListenerId(self.token.0)
    }

    /// Reports requests on another channel from now on. Pending ones are moved to it, in order.
    pub fn migrate(&self, channel: &Arc<CmChannel>) {
        let id = self.id();
        migrate(&self.driver, self.token, channel, move |event| is_for(event, id));
    }
}

impl Drop for SidrListener {
    fn drop(&mut self) {
        let (token, id) = (self.token, self.id());
        let slot = self.driver.shard(token).call(move |core| core.remove(token));
        // The events are removed after the call, because dropping a request makes another call to
        // its shard.
        if let Some(Slot::Sidr(slot)) = slot {
            drop(slot.channel.remove_if(|event| is_for(event, id)));
        }
    }
}

/// Returns whether `event` is a request to the listener `id`.
fn is_for(event: &CmEvent, id: ListenerId) -> bool {
    matches!(&event.kind, CmEventKind::SidrRequest(request) if request.listener() == id)
}

fn is_not_available(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
}

//! SIDR request of a peer, for the application to decide.

use super::message::too_long;
use crate::cm::{ConnId, ListenerId};
use crate::driver::Driver;
use crate::error::Result;
use std::net::SocketAddr;
use std::sync::Arc;
use uiw_datagram::Qpn;
use uiw_datagram::sidr::{Reply, Status};
use uiw_llp::Token;

/// Peer's SIDR request for a queue pair. Dropping it without an answer rejects it.
pub struct SidrRequest {
    pub(super) driver: Arc<Driver>,
    pub(super) listener: Token,
    pub(super) id: ConnId,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) number: u64,
    pub(super) private_data: Vec<u8>,
    pub(super) decided: bool,
}

impl std::fmt::Debug for SidrRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SidrRequest").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl SidrRequest {
    /// Returns the identifier of the request.
    #[must_use]
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// Returns the listener that has received the request.
    #[must_use]
    pub fn listener(&self) -> ListenerId {
        ListenerId(self.listener.0)
    }

    /// Returns the local address to which the request was sent.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the address of the peer.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the private data of the peer.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Replies with a queue pair.
    ///
    /// # Errors
    /// [`Limit`](crate::Error::Limit) for more private data than a reply has room for.
    pub fn accept(mut self, qpn: u32, qkey: u32, private_data: &[u8]) -> Result<()> {
        self.reply(Status::Valid, Qpn::from_raw(qpn), qkey, private_data)
    }

    /// Replies without a queue pair.
    ///
    /// # Errors
    /// The errors are those of [`SidrRequest::accept`].
    pub fn reject(mut self, private_data: &[u8]) -> Result<()> {
        self.reply(Status::Rejected, Qpn::from_raw(0), 0, private_data)
    }

    fn reply(&mut self, status: Status, qpn: Qpn, qkey: u32, private_data: &[u8]) -> Result<()> {
        let reply = Reply { transaction: self.number, status, qpn, qkey, private_data };
        let reply = reply.emit().map_err(too_long)?;
        self.decided = true;
        let (token, local, peer, number) = (self.listener, self.local, self.peer, self.number);
        self.driver.shard(token).call(move |core| {
            if let Some((slot, services)) = core.sidr(token) {
                slot.decide((local, peer), number, &reply, services.now);
            }
        });
        Ok(())
    }
}

impl Drop for SidrRequest {
    fn drop(&mut self) {
        if !self.decided {
            let _ = self.reply(Status::Rejected, Qpn::from_raw(0), 0, &[]);
        }
    }
}

//! Listeners of a smoltcp stack.

use super::interface::{ListenerId, SmolInterface};
use super::link::Link;
use super::stream::SmolStream;
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use uiw_llp::{Token, TransportListener, TransportStream};

pub(super) struct SmolListener<L: Link> {
    pub(super) interface: Arc<Mutex<SmolInterface<L>>>,
    pub(super) id: ListenerId,
    pub(super) local: SocketAddr,
}

impl<L: Link + 'static> TransportListener for SmolListener<L> {
    fn accept(&mut self, token: Token) -> io::Result<Box<dyn TransportStream>> {
        let (id, addresses) = self.interface.lock().accept(self.id, token)?;
        tracing::debug!(local = %addresses.0, peer = %addresses.1, "accepted");
        Ok(Box::new(SmolStream::new(Arc::clone(&self.interface), id, addresses)))
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl<L: Link> Drop for SmolListener<L> {
    fn drop(&mut self) {
        self.interface.lock().close_listener(self.id);
    }
}

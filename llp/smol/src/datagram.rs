//! UDP sockets of a smoltcp stack.

use super::interface::SmolInterface;
use super::link::Link;
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use uiw_llp::{DatagramSocket, Incoming, Interest, Outgoing};

pub(super) struct SmolDatagrams<L: Link> {
    pub(super) interface: Arc<Mutex<SmolInterface<L>>>,
    pub(super) id: usize,
    pub(super) local: SocketAddr,
}

impl<L: Link + 'static> DatagramSocket for SmolDatagrams<L> {
    fn send(&mut self, bytes: &[u8], datagrams: &[Outgoing]) -> io::Result<usize> {
        self.interface.lock().send_datagrams(self.id, bytes, datagrams)
    }

    fn recv(&mut self, buffer: &mut [u8], datagrams: &mut Vec<Incoming>) -> io::Result<()> {
        self.interface.lock().recv_datagrams(self.id, buffer, datagrams)
    }

    fn set_interest(&mut self, interest: Interest) -> io::Result<()> {
        self.interface.lock().set_datagram_interest(self.id, interest);
        Ok(())
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl<L: Link> Drop for SmolDatagrams<L> {
    fn drop(&mut self) {
        self.interface.lock().close_datagrams(self.id);
    }
}

//! Datagram sockets on a simulated network.

use super::Network;
use std::io;
use std::net::SocketAddr;
use uiw_llp::{DATAGRAM_BUFFER, DatagramSocket, Incoming, Interest, Outgoing};

pub(super) struct SimDatagrams {
    pub(super) network: Network,
    pub(super) id: u64,
    pub(super) local: SocketAddr,
}

impl DatagramSocket for SimDatagrams {
    fn send(&mut self, bytes: &[u8], datagrams: &[Outgoing]) -> io::Result<usize> {
        let mut world = self.network.lock();
        let mut taken = 0;
        for (to, datagram) in Outgoing::each(datagrams, bytes) {
            match world.send_datagram(self.id, self.local, to.peer, datagram) {
                Ok(()) => taken += 1,
                Err(error) if taken == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(taken)
    }

    fn recv(&mut self, buffer: &mut [u8], datagrams: &mut Vec<Incoming>) -> io::Result<()> {
        let mut world = self.network.lock();
        let (mut at, before) = (0, datagrams.len());
        while at + DATAGRAM_BUFFER <= buffer.len()
            && let Some((peer, bytes)) = world.recv_datagram(self.id)
        {
            buffer[at..at + bytes.len()].copy_from_slice(&bytes);
            datagrams.push(Incoming::one(peer, at..at + bytes.len()));
            at += bytes.len();
        }
        if datagrams.len() > before { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    fn set_interest(&mut self, interest: Interest) -> io::Result<()> {
        self.network.lock().set_datagram_interest(self.id, interest);
        Ok(())
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for SimDatagrams {
    fn drop(&mut self) {
        self.network.lock().unbind(self.id);
    }
}

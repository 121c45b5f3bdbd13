//! Captured datagram sockets.

use super::{CaptureHooks, packet};
use crate::{DatagramSocket, Incoming, Interest, Outgoing};
use std::io;
use std::net::SocketAddr;

/// Datagram socket of a [`super::CaptureStack`].
pub(super) struct CaptureDatagrams {
    inner: Box<dyn DatagramSocket>,
    shared: CaptureHooks,
}

impl CaptureDatagrams {
    pub(super) fn new(inner: Box<dyn DatagramSocket>, shared: CaptureHooks) -> Self {
        Self { inner, shared }
    }

    fn write(&self, outgoing: bool, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        self.shared.sink.packet(self.shared.interface, self.shared.time(), outgoing, |out| {
            packet::emit_datagram(out, from, to, bytes);
        });
    }
}

impl DatagramSocket for CaptureDatagrams {
    fn send(&mut self, bytes: &[u8], datagrams: &[Outgoing]) -> io::Result<usize> {
        let taken = self.inner.send(bytes, datagrams)?;
        for (to, datagram) in Outgoing::each(datagrams, bytes).take(taken) {
            self.write(true, self.inner.local_addr(), to.peer, datagram);
        }
        Ok(taken)
    }

    fn recv(&mut self, buffer: &mut [u8], datagrams: &mut Vec<Incoming>) -> io::Result<()> {
        let before = datagrams.len();
        self.inner.recv(buffer, datagrams)?;
        for run in &datagrams[before..] {
            for bytes in run.each() {
                self.write(false, run.peer, self.inner.local_addr(), &buffer[bytes]);
            }
        }
        Ok(())
    }

    fn set_interest(&mut self, interest: Interest) -> io::Result<()> {
        self.inner.set_interest(interest)
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }
}

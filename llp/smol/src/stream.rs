//! Streams of a smoltcp stack.

use super::interface::{ConnId, SmolInterface};
use super::link::Link;
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use uiw_llp::{
    Interest, RecvBuf, RemainingBytes, StreamChange, StreamExtensions, StreamInfo, TransportStream,
    no_bytes,
};
use uiw_mem::{IoVec, IoVecMut};

pub(super) struct SmolStream<L: Link> {
    interface: Arc<Mutex<SmolInterface<L>>>,
    id: ConnId,
    local: SocketAddr,
    peer: SocketAddr,
    /// EMSS in bytes, which is also available while the interface is locked.
    emss: Arc<AtomicUsize>,
    aborted: bool,
}

impl<L: Link> SmolStream<L> {
    pub(super) fn new(
        interface: Arc<Mutex<SmolInterface<L>>>,
        id: ConnId,
        (local, peer): (SocketAddr, SocketAddr),
    ) -> Self {
        let emss = interface.lock().emss_of(id);
        Self { interface, id, local, peer, emss, aborted: false }
    }

    fn live(&self) -> io::Result<()> {
        if self.aborted { Err(io::ErrorKind::NotConnected.into()) } else { Ok(()) }
    }
}

impl<L: Link + 'static> TransportStream for SmolStream<L> {
    fn send(&mut self, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        self.live()?;
        if bufs.iter().all(IoVec::is_empty) {
            return Err(no_bytes());
        }
        self.interface.lock().send(self.id, bufs)
    }

    fn recv(&mut self, bufs: &mut [IoVecMut<'_>]) -> io::Result<usize> {
        self.live()?;
        if bufs.iter().all(IoVecMut::is_empty) {
            return Err(no_bytes());
        }
        self.interface.lock().recv(self.id, bufs)
    }

    fn set_interest(&mut self, interest: Interest) -> io::Result<()> {
        self.live()?;
        self.interface.lock().set_interest(self.id, interest);
        Ok(())
    }

    fn connect_result(&mut self) -> io::Result<bool> {
        self.live()?;
        self.interface.lock().connect_result(self.id)
    }

    fn shutdown(&mut self) -> io::Result<()> {
        self.live()?;
        self.interface.lock().shutdown(self.id)
    }

    fn abort(&mut self) {
        if !std::mem::replace(&mut self.aborted, true) {
            self.interface.lock().abort(self.id);
        }
    }

    fn emss(&self) -> usize {
        self.emss.load(Ordering::Relaxed)
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }
}

impl<L: Link + 'static> StreamExtensions for SmolStream<L> {
    fn peek(&mut self) -> io::Result<Option<Box<dyn RecvBuf>>> {
        self.live()?;
        let mut interface = self.interface.lock_arc();
        let len = interface.peek(self.id)?;
        Ok(Some(Box::new(SmolRecvBuf { interface, id: self.id, len })))
    }

    fn info(&self) -> StreamInfo {
        let interface = self.interface.lock();
        // The path MTU is the segment size that is known to pass, with its headers.
        let emss = u32::try_from(self.emss()).ok();
        let headers = interface.mtu() - interface.emss(self.peer.is_ipv6());
        let path_mtu = u32::try_from(self.emss() + headers).ok();
        StreamInfo {
            emss,
            path_mtu,
            congestion: interface.congestion(self.id),
            ..StreamInfo::default()
        }
    }

    fn configure(&mut self, change: &StreamChange<'_>) -> io::Result<()> {
        self.live()?;
        let mut interface = self.interface.lock();
        if let Some(after) = change.dead_after {
            interface.set_dead_after(self.id, after)?;
        }
        change.congestion.map_or(Ok(()), |name| interface.set_congestion(self.id, name))
    }
}

impl<L: Link> Drop for SmolStream<L> {
    fn drop(&mut self) {
        if !self.aborted {
            self.interface.lock().release(self.id);
        }
    }
}

/// Bytes in the receive buffer of a connection. The interface stays locked as long as this exists.
struct SmolRecvBuf<L: Link> {
    interface: ArcMutexGuard<RawMutex, SmolInterface<L>>,
    id: ConnId,
    len: usize,
}

impl<L: Link> RecvBuf for SmolRecvBuf<L> {
    fn bytes(&mut self) -> &mut [u8] {
        self.interface.received(self.id)
    }

    fn can_grow(&self, used: usize) -> bool {
        self.interface.can_grow(self.id, self.len, used)
    }

    fn consume(mut self: Box<Self>, used: usize, rest: RemainingBytes) {
        self.interface.consume(self.id, used, rest);
    }
}

impl<L: Link> Drop for SmolRecvBuf<L> {
    fn drop(&mut self) {
        self.interface.wake_for(self.id);
    }
}

//! A connection of ours.

use super::link::Link;
use super::shard::{ConnId, Shard};
use crate::{Interest, Stream, StreamInfo, no_octets};
use mem::{IoVec, IoVecMut};
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

pub(super) struct SmolStream<L: Link> {
    shard: Arc<Mutex<Shard<L>>>,
    id: ConnId,
    local: SocketAddr,
    peer: SocketAddr,
    aborted: bool,
}

impl<L: Link> SmolStream<L> {
    pub(super) fn new(
        shard: Arc<Mutex<Shard<L>>>,
        id: ConnId,
        (local, peer): (SocketAddr, SocketAddr),
    ) -> Self {
        Self { shard, id, local, peer, aborted: false }
    }

    fn live(&self) -> io::Result<()> {
        if self.aborted { Err(io::ErrorKind::NotConnected.into()) } else { Ok(()) }
    }
}

impl<L: Link> Stream for SmolStream<L> {
    fn send(&mut self, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        self.live()?;
        if bufs.iter().all(IoVec::is_empty) {
            return Err(no_octets());
        }
        self.shard.lock().send(self.id, bufs)
    }

    fn recv(&mut self, bufs: &mut [IoVecMut<'_>]) -> io::Result<usize> {
        self.live()?;
        if bufs.iter().all(IoVecMut::is_empty) {
            return Err(no_octets());
        }
        self.shard.lock().recv(self.id, bufs)
    }

    fn set_interest(&mut self, interest: Interest) -> io::Result<()> {
        self.live()?;
        self.shard.lock().set_interest(self.id, interest);
        Ok(())
    }

    fn connect_result(&mut self) -> io::Result<bool> {
        self.live()?;
        self.shard.lock().connect_result(self.id)
    }

    fn shutdown(&mut self) -> io::Result<()> {
        self.live()?;
        self.shard.lock().shutdown(self.id)
    }

    fn abort(&mut self) {
        if !std::mem::replace(&mut self.aborted, true) {
            self.shard.lock().abort(self.id);
        }
    }

    fn emss(&self) -> usize {
        self.shard.lock().emss(self.peer.is_ipv6())
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    fn info(&self) -> StreamInfo {
        let shard = self.shard.lock();
        let emss = u32::try_from(shard.emss(self.peer.is_ipv6())).ok();
        let path_mtu = u32::try_from(shard.mtu()).ok();
        StreamInfo { emss, path_mtu, congestion: shard.congestion(self.id), ..StreamInfo::default() }
    }
}

impl<L: Link> Drop for SmolStream<L> {
    fn drop(&mut self) {
        if !self.aborted {
            self.shard.lock().let_go(self.id);
        }
    }
}

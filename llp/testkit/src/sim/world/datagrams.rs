//! Datagram sockets of the simulated network, and the datagrams in flight between them.

use super::{Time, World};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use uiw_llp::{Event, Interest, Token};

/// Delay of a reordered datagram, in addition to twice the latency of the link.
const REORDER_DELAY: Duration = Duration::from_micros(50);
/// Denominator of the fault probabilities, which are in parts per million.
const MILLION: usize = 1_000_000;

pub(super) struct Socket {
    pub(super) stack: u32,
    token: Token,
    interest: Interest,
    local: SocketAddr,
    /// Datagrams in flight to this socket or not read yet, in the order of their arrival times.
    inbound: VecDeque<SimDatagram>,
}

struct SimDatagram {
    /// Arrival time.
    due: Time,
    from: SocketAddr,
    bytes: Vec<u8>,
}

impl Socket {
    /// Returns the earliest arrival time after `now`, if a datagram is still in flight.
    pub(super) fn next_due(&self, now: Time) -> Option<Time> {
        self.inbound.iter().map(|datagram| datagram.due).find(|due| *due > now)
    }
}

impl World {
    pub(in crate::sim) fn bind(
        &mut self,
        stack: u32,
        local: SocketAddr,
        token: Token,
    ) -> io::Result<(u64, SocketAddr)> {
        let local = self.with_port(local);
        if !local.ip().is_multicast() && self.sockets.values().any(|socket| socket.local == local) {
            return Err(ErrorKind::AddrInUse.into());
        }
        let id = self.id();
        let socket =
            Socket { stack, token, interest: Interest::NONE, local, inbound: VecDeque::new() };
        self.sockets.insert(id, socket);
        Ok((id, local))
    }

    pub(in crate::sim) fn unbind(&mut self, id: u64) {
        self.sockets.remove(&id);
    }

    pub(in crate::sim) fn set_datagram_interest(&mut self, id: u64, interest: Interest) {
        if let Some(socket) = self.sockets.get_mut(&id) {
            socket.interest = interest;
        }
    }

    /// Returns the number of bytes sent by `from` that have not arrived yet.
    fn bytes_in_flight(&self, from: SocketAddr) -> usize {
        let all = self.sockets.values().flat_map(|socket| &socket.inbound);
        all.filter(|datagram| datagram.from == from && datagram.due > self.time)
            .map(|datagram| datagram.bytes.len())
            .sum()
    }

    pub(in crate::sim) fn send_datagram(
        &mut self,
        id: u64,
        from: SocketAddr,
        to: SocketAddr,
        bytes: &[u8],
    ) -> io::Result<()> {
        if to.port() == 0 {
            return Err(ErrorKind::InvalidInput.into());
        }
        let link = self.link(from.ip(), to.ip()).clone();
        if self.bytes_in_flight(from) >= link.capacity {
            return Err(ErrorKind::WouldBlock.into());
        }
        let receivers: Vec<u64> = self
            .sockets
            .iter()
            .filter(|(other, socket)| socket.local == to && (**other != id || from == to))
            .map(|(id, _)| *id)
            .collect();
        let faults = link.datagrams;
        for receiver in receivers {
            let mut chance = |of: u32| self.random.below(MILLION) < of as usize;
            let (lost, twice, late) =
                (chance(faults.loss), chance(faults.duplicate), chance(faults.reorder));
            if lost || link.stalled {
                continue;
            }
            let late = if late { 2 * link.latency + REORDER_DELAY } else { Duration::ZERO };
            let due = self.time + link.latency + late;
            for _ in 0..=usize::from(twice) {
                self.enqueue_datagram(receiver, due, from, bytes, link.capacity);
            }
        }
        Ok(())
    }

    /// Queues a datagram that will arrive at socket `to`, or drops it if the socket's queue is
    /// full.
    ///
    /// The queue holds datagrams in flight as well as unread ones, so its limit is twice the
    /// `capacity` of the link in bytes.
    fn enqueue_datagram(
        &mut self,
        to: u64,
        due: Time,
        from: SocketAddr,
        bytes: &[u8],
        capacity: usize,
    ) {
        let Some(socket) = self.sockets.get_mut(&to) else { return };
        let held: usize = socket.inbound.iter().map(|datagram| datagram.bytes.len()).sum();
        if held >= 2 * capacity {
            return;
        }
        let at = socket.inbound.partition_point(|other| other.due <= due);
        socket.inbound.insert(at, SimDatagram { due, from, bytes: bytes.to_vec() });
    }

    pub(in crate::sim) fn recv_datagram(&mut self, id: u64) -> Option<(SocketAddr, Vec<u8>)> {
        let now = self.time;
        let socket = self.sockets.get_mut(&id)?;
        socket.inbound.front().filter(|datagram| datagram.due <= now)?;
        let datagram = socket.inbound.pop_front()?;
        Some((datagram.from, datagram.bytes))
    }

    /// Returns the smallest capacity in bytes of the links that start at `from`, one of which is the
    /// default link.
    fn min_capacity_from(&self, from: IpAddr) -> usize {
        let links = self.links.iter().filter(|((source, _), _)| *source == from);
        links.map(|(_, link)| link.capacity).fold(self.default.capacity, usize::min)
    }

    pub(super) fn poll_datagrams(&self, stack: u32, events: &mut Vec<Event>) {
        for socket in self.sockets.values().filter(|socket| socket.stack == stack) {
            let arrived = socket.inbound.front().is_some_and(|datagram| datagram.due <= self.time);
            let readable = socket.interest.read && arrived;
            let ip = socket.local.ip();
            let room = || self.bytes_in_flight(socket.local) < self.min_capacity_from(ip);
            let writable = socket.interest.write && room();
            if readable || writable {
                events.push(Event { token: socket.token, readable, writable });
            }
        }
    }
}

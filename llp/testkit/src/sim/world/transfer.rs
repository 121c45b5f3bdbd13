//! Sending, receiving, and readiness.

use std::{
    io::{self, ErrorKind},
    net::IpAddr,
};

use uiw_mem::{IoVec, IoVecMut};

use super::{EndId, SimPacket, World, WorldState};
use uiw_llp::{Event, Interest, Readable, StreamInfo, no_bytes};

impl World {
    pub(in crate::sim) fn send(&mut self, id: EndId, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        self.arrive(id);
        let end = self.end(id)?;
        match end.state {
            WorldState::Connecting => return Err(ErrorKind::WouldBlock.into()),
            WorldState::Failed(kind) => return Err(kind.into()),
            WorldState::Closed => return Err(ErrorKind::NotConnected.into()),
            WorldState::Made if end.fin_sent => return Err(ErrorKind::BrokenPipe.into()),
            WorldState::Made => {}
        }
        let (from, to, sent, unread) = (end.local.ip(), end.peer.ip(), end.sent, end.unread);
        let total = IoVec::total(bufs);
        if total == 0 {
            return Err(no_bytes());
        }
        let link = self.link(from, to).clone();
        let room = link.capacity.max(self.wanted_by_peer(id)).saturating_sub(unread);
        if room == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let until_cut = link.cut_at.map_or(u64::MAX, |at| at.saturating_sub(sent));
        let mut len = total.min(room).min(link.send_split.next(&mut self.random));
        len = len.min(usize::try_from(until_cut).unwrap_or(usize::MAX));
        if len > 0 {
            let until_fin = link.fin_at.map_or(u64::MAX, |at| at.saturating_sub(sent));
            self.carry(id, bufs, len, until_fin);
        }
        if until_cut == len as u64 {
            self.post(id, SimPacket::Reset);
            self.end(id)?.state = WorldState::Failed(ErrorKind::ConnectionReset);
            if len == 0 {
                return Err(ErrorKind::ConnectionReset.into());
            }
        }
        Ok(len)
    }

    /// Sends the first `len` bytes of `bufs`. A FIN follows after `until_fin` bytes, and the bytes
    /// after it are lost.
    fn carry(&mut self, id: EndId, bufs: &[IoVec<'_>], len: usize, until_fin: u64) {
        let mut bytes = Vec::with_capacity(len);
        for buf in bufs {
            let part = buf.len().min(len - bytes.len());
            buf.sub(0..part).append_to(&mut bytes);
        }
        let arriving = len.min(usize::try_from(until_fin).unwrap_or(usize::MAX));
        bytes.truncate(arriving);
        if let Some(end) = self.ends.get_mut(&id) {
            end.sent += len as u64;
            end.unread += arriving;
        }
        if arriving > 0 {
            self.post(id, SimPacket::Bytes(bytes));
            if arriving as u64 == until_fin {
                self.post(id, SimPacket::Fin);
            }
        }
    }

    pub(in crate::sim) fn recv(
        &mut self,
        id: EndId,
        bufs: &mut [IoVecMut<'_>],
    ) -> io::Result<usize> {
        self.arrive(id);
        let end = self.end(id)?;
        if IoVecMut::total(bufs) == 0 {
            return Err(no_bytes());
        }
        if end.state == WorldState::Closed {
            return Err(ErrorKind::NotConnected.into());
        }
        if end.received.is_empty() {
            return match end.state {
                WorldState::Failed(kind) => Err(kind.into()),
                WorldState::Made if end.peer_fin => Ok(0),
                _ => Err(ErrorKind::WouldBlock.into()),
            };
        }
        let (from, to) = (end.peer.ip(), end.local.ip());
        let split = self.link(from, to).recv_split.next(&mut self.random);
        let end = self.end(id)?;
        let len = IoVecMut::total(bufs).min(end.received.len()).min(split);
        let bytes: Vec<u8> = end.received.drain(..len).collect();
        end.taken += len as u64;
        let mut rest = &bytes[..];
        for buf in bufs {
            let (now, later) = rest.split_at(rest.len().min(buf.len()));
            buf.copy_from(now);
            rest = later;
        }
        if let Some(other) = self.end(id)?.other.and_then(|other| self.ends.get_mut(&other)) {
            other.unread -= len;
        }
        Ok(len)
    }

    pub(in crate::sim) fn readable(&mut self, id: EndId, wanted: usize) -> io::Result<Readable> {
        self.arrive(id);
        let end = self.end(id)?;
        end.wanted = wanted;
        let is_all = end.peer_fin || end.state != WorldState::Made;
        Ok(if is_all { Readable::All } else { Readable::Bytes(end.received.len()) })
    }

    /// Returns the number of bytes for which the other end has requested room.
    fn wanted_by_peer(&self, id: EndId) -> usize {
        let other = self.ends.get(&id).and_then(|end| self.ends.get(&end.other?));
        other.map_or(0, |other| other.wanted)
    }

    pub(in crate::sim) fn set_interest(&mut self, id: EndId, interest: Interest) -> io::Result<()> {
        let end = self.end(id)?;
        if end.state == WorldState::Closed {
            return Err(ErrorKind::NotConnected.into());
        }
        end.interest = interest;
        Ok(())
    }

    pub(in crate::sim) fn poll(&mut self, stack: u32, events: &mut Vec<Event>) {
        self.process_due();
        for listening in self.listeners.values().filter(|l| l.stack == stack) {
            let made = |id: &EndId| {
                self.ends.get(id).is_some_and(|end| end.state != WorldState::Connecting)
            };
            if listening.queue.iter().any(made) {
                events.push(Event { token: listening.token, readable: true, writable: false });
            }
        }
        self.poll_datagrams(stack, events);
        for (id, end) in
            self.ends.iter().filter(|(_, end)| end.stack == stack && end.held && end.named)
        {
            let capacity = self.link(end.local.ip(), end.peer.ip()).capacity;
            let room = capacity.max(self.wanted_by_peer(*id)) > end.unread;
            let (readable, writable) = match end.state {
                WorldState::Connecting | WorldState::Closed => (false, false),
                WorldState::Failed(_) => (true, true),
                WorldState::Made => (
                    end.interest.read && (!end.received.is_empty() || end.peer_fin),
                    end.interest.write && (room || end.fin_sent),
                ),
            };
            if readable || writable {
                events.push(Event { token: end.token, readable, writable });
            }
        }
    }

    pub(in crate::sim) fn info(&self, id: EndId, local: IpAddr, peer: IpAddr) -> StreamInfo {
        let (there, back) = (self.link(local, peer), self.link(peer, local));
        let rtt = u32::try_from((there.latency + back.latency).as_micros()).ok();
        let Some(end) = self.ends.get(&id) else { return StreamInfo::default() };
        let under_way = end
            .other
            .and_then(|other| self.ends.get(&other))
            .map_or(0, |other| other.inbound.len());
        StreamInfo {
            rtt_us: rtt,
            min_rtt_us: rtt,
            retransmits: Some(0),
            unacked: u32::try_from(under_way).ok(),
            // Data is acknowledged as soon as it arrives.
            last_ack: Some(self.time - end.arrived),
            probes: Some(0),
            emss: u32::try_from(there.emss).ok(),
            bytes_acked: Some(end.sent - end.unread as u64),
            bytes_received: Some(end.taken + end.received.len() as u64),
            ..StreamInfo::default()
        }
    }
}

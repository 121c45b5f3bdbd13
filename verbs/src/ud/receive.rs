//! From a datagram to a completed receive.

use super::counts::Count;
use super::endpoint::Received;
use super::staging::HEADROOM;
use super::{Endpoint, PortSlot};
use crate::cq::Cqe;
use crate::driver::{Core, Services};
use crate::event::AsyncEvent;
use crate::wc::{Wc, WcOpcode, WcStatus};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use uiw_counters::{Dropped, Rejected, ShardCounters};
use uiw_datagram::{DatagramError, Grh, Header, Qpn};
use uiw_llp::Token;

/// Bytes of the route header in front of a payload.
const GRH: u32 = Grh::LEN as u32;

/// Receives what is there at one socket, as much as its turn allows. Returns the number of datagrams.
pub(crate) fn receive(core: &mut Core, port: Token, socket: Token) -> usize {
    let mut staging = std::mem::take(&mut core.services.datagrams);
    let mut count = 0;
    for _ in 0..core.services.turn {
        staging.prepare_receive();
        let Some(slot) = core.datagram_port(port) else { break };
        let Some(at) = slot.sockets.iter().position(|other| other.token == socket) else { break };
        let source = &mut slot.sockets[at];
        let (local, is_group) = (source.local.ip(), source.group.is_some());
        if source.socket.recv(&mut staging.buffer[HEADROOM..], &mut staging.incoming).is_err() {
            break;
        }
        let mut last = None;
        for incoming in &staging.incoming {
            // In front of it is the end of the one before, which has been placed.
            let bytes = &mut staging.buffer[incoming.bytes.start..incoming.bytes.end + HEADROOM];
            core.services.moved += bytes.len();
            if is_group {
                receive_for_group(core, (port, at), local, incoming.peer, bytes, &mut last);
            } else {
                receive_for_one(core, port, local, incoming.peer, bytes, &mut last);
            }
        }
        if let Some(token) = last {
            finish(core, token);
        }
        count += staging.incoming.len();
        if !staging.was_filled() {
            break;
        }
    }
    core.services.datagrams = staging;
    count
}

/// Checks a datagram by itself.
fn check(
    slot: &PortSlot,
    counters: &ShardCounters,
    peer: SocketAddr,
    bytes: &[u8],
    is_group: bool,
) -> Option<(Header, Grh)> {
    let reject = |count, why| {
        slot.count(count);
        counters.rejected(why);
    };
    let parsed = Header::parse(bytes).and_then(|(header, payload)| {
        header.check_source(peer.port())?;
        Ok((header, payload.len()))
    });
    let (header, len) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            tracing::trace!(%peer, %error, "a datagram is dropped");
            match error {
                DatagramError::Crc { .. } => reject(Count::BadCrc, Rejected::BadCrc),
                DatagramError::SourcePort { .. } | DatagramError::SourceQpn { .. } => {
                    reject(Count::BadSource, Rejected::BadSource);
                }
                _ => reject(Count::Malformed, Rejected::Malformed),
            }
            return None;
        }
    };
    if peer.ip().is_unspecified() || peer.ip().is_multicast() {
        reject(Count::BadSource, Rejected::BadSource);
        return None;
    }
    if is_group != (header.destination == Qpn::MULTICAST) {
        reject(Count::NoQueuePair, Rejected::NoQueuePair);
        return None;
    }
    // A UDP datagram has less than 65,536 bytes.
    let grh = Grh { len: len as u16, source: peer.ip(), destination: peer.ip() };
    Some((header, grh))
}

fn receive_for_one(
    core: &mut Core,
    port: Token,
    local: IpAddr,
    peer: SocketAddr,
    bytes: &mut [u8],
    last: &mut Option<Token>,
) {
    let Some((slot, services)) = core.port_and_services(port) else { return };
    let Some((header, grh)) = check(slot, &services.counters, peer, &bytes[HEADROOM..], false) else {
        return;
    };
    let number = slot.number;
    let endpoint = slot.endpoints[usize::from(header.destination.index())];
    let Some(endpoint) = endpoint.filter(|_| header.destination.port() == number) else {
        slot.count(Count::NoQueuePair);
        services.counters.rejected(Rejected::NoQueuePair);
        return;
    };
    deliver(core, (endpoint, peer), &header, &Grh { destination: local, ..grh }, bytes, last);
}

/// Every attached queue pair receives a copy.
fn receive_for_group(
    core: &mut Core,
    (port, at): (Token, usize),
    group: IpAddr,
    peer: SocketAddr,
    bytes: &mut [u8],
    last: &mut Option<Token>,
) {
    let Some((slot, services)) = core.port_and_services(port) else { return };
    let Some((header, grh)) = check(slot, &services.counters, peer, &bytes[HEADROOM..], true) else { return };
    let mut next = 0;
    while let Some(slot) = core.datagram_port(port)
        && let Some(joined) = &slot.sockets[at].group
        && let Some(index) = joined.attached.get(next)
    {
        next += 1;
        if let Some(endpoint) = slot.endpoints[usize::from(*index)] {
            deliver(core, (endpoint, peer), &header, &Grh { destination: group, ..grh }, bytes, last);
        }
    }
}

/// `bytes`: the datagram, behind [`HEADROOM`].
fn deliver(
    core: &mut Core,
    (token, peer): (Token, SocketAddr),
    header: &Header,
    grh: &Grh,
    bytes: &mut [u8],
    last: &mut Option<Token>,
) {
    if *last != Some(token)
        && let Some(before) = last.replace(token)
    {
        finish(core, before);
    }
    let Some((endpoint, slot, services)) = core.endpoint_and_port(token) else { return };
    let end = bytes.len() - uiw_datagram::CRC_LEN;
    let message = &mut bytes[..end];
    if endpoint.last_grh.as_ref().is_none_or(|(last, _)| last != grh) {
        endpoint.last_grh = Some((*grh, grh.emit()));
    }
    if let (Some((_, emitted)), Some(place)) = (&endpoint.last_grh, message.first_chunk_mut()) {
        *place = *emitted;
    }
    let Err(dropped) = endpoint.receive(header, peer, message, services) else { return };
    endpoint.finish(slot, services);
    slot.count(dropped);
    let why = match dropped {
        Count::BadQkey => Dropped::BadQkey,
        Count::NoReceive => Dropped::NoReceive,
        Count::BadReceive => Dropped::BadReceive,
        _ => return services.counters.rejected(Rejected::NoQueuePair),
    };
    endpoint.counters.dropped(why, 1);
}

/// A run of datagrams of one queue pair is over.
fn finish(core: &mut Core, token: Token) {
    if let Some((endpoint, slot, services)) = core.endpoint_and_port(token) {
        endpoint.cache.let_go();
        endpoint.finish(slot, services);
    }
}

impl Endpoint {
    /// Places a message, behind its route header. Its completion is queued with those of the datagrams behind it: see
    /// [`Endpoint::finish`].
    fn receive(
        &mut self,
        header: &Header,
        peer: SocketAddr,
        message: &[u8],
        services: &mut Services,
    ) -> Result<(), Count> {
        let qp = &self.qp;
        let Some(ud) = qp.ud.as_ref().filter(|_| Self::receives(qp.state())) else {
            return Err(Count::NoQueuePair);
        };
        if header.qkey != ud.qkey.load(Ordering::Relaxed) {
            return Err(Count::BadQkey);
        }
        if !qp.try_take_recv(&mut self.receive, &mut services.wakes) {
            return Err(Count::NoReceive);
        }
        // At most 4,096 bytes and the route header.
        let byte_len = message.len() as u32;
        let wr_id = self.receive.wr_id;
        let failed = if byte_len > self.receive.len {
            Some(WcStatus::LocalLength)
        } else {
            let sges = &self.receive.sges;
            let placed = qp.scatter(&services.table, &mut self.cache, sges, 0, message);
            placed.err().map(|_| WcStatus::LocalProtection)
        };
        if let Some(status) = failed {
            self.push_received(services);
            self.fail(wr_id, status, services);
            return Err(Count::BadReceive);
        }
        let wc = Wc {
            wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len,
            imm: header.immediate,
            invalidated: None,
            qp_num: qp.num,
            datagram_from: Some(header.source.raw()),
            reason: None,
            timestamp_ns: 0,
        };
        let same_device = self.last_peer.is_own(&services.shared.datagram_sockets, peer);
        self.received.add(byte_len - GRH, same_device);
        self.completions.push(Cqe { wc, solicited: header.solicited });
        Ok(())
    }

    /// Queues the completions of the messages that were placed. False: there was no room, and the queue pair is in error.
    fn push_received(&mut self, services: &mut Services) -> bool {
        if self.completions.is_empty() {
            return true;
        }
        let count = self.completions.len();
        let pushed = self.qp.recv_cq.push_all(self.completions.drain(..), &mut services.wakes);
        pushed == count
    }

    /// Queues completions, and counts the messages.
    fn finish(&mut self, slot: &PortSlot, services: &mut Services) {
        if !self.push_received(services) {
            self.lost_completion(services);
        }
        let Received { all, same_device } = std::mem::take(&mut self.received);
        if all.messages > 0 {
            slot.counts.add(Count::Received, all.messages);
            self.counters.received(all, same_device);
        }
    }

    /// A receive ends in an error, and with it the queue pair.
    fn fail(&mut self, wr_id: u64, status: WcStatus, services: &mut Services) {
        self.cache.let_go();
        tracing::warn!(qp = self.qp.num, %status, "a receive failed; the queue pair is in error");
        self.qp.complete_recv(wr_id, status, None, &mut services.wakes);
        self.qp.flush_unconnected(&mut services.wakes);
    }

    /// The completion queue was full.
    pub(super) fn lost_completion(&self, services: &mut Services) {
        let event = AsyncEvent::QpFatal { qp_num: self.qp.num, reason: None };
        self.qp.raise(event, &mut services.wakes);
        self.qp.flush_unconnected(&mut services.wakes);
    }
}

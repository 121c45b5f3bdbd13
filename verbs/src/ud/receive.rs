//! From a datagram to a completed receive.

use super::counts::Count;
use super::staging::{HEADROOM, Staging};
use super::{Endpoint, PortSlot};
use crate::cq::Cqe;
use crate::driver::{Core, Services};
use crate::event::AsyncEvent;
use crate::qp::{QpInner, Receives};
use crate::wc::{Wc, WcOpcode, WcStatus};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uiw_counters::{Dropped, Rejected, ShardCounters};
use uiw_datagram::{DatagramError, Grh, Header, Qpn};
use uiw_llp::Token;

/// Bytes of the route header in front of a payload.
const GRH: u32 = Grh::LEN as u32;

/// Receives what is there at one socket, as much as its turn allows. Returns the number of datagrams.
pub(crate) fn receive(core: &mut Core, port: Token, socket: Token) -> usize {
    let mut staging = core.services.datagrams.take().unwrap_or_default();
    let mut count = 0;
    let mut turn = core.services.turn;
    while turn > 0 {
        let Some(slot) = core.datagram_port(port) else { break };
        let Some(at) = slot.sockets.iter().position(|other| other.token == socket) else { break };
        let source = &mut slot.sockets[at];
        let (local, is_group) = (source.local.ip(), source.group.is_some());
        let takes_many = source.takes_many;
        let received = staging.receive(&mut *source.socket, takes_many);
        source.takes_many = received == Some(true);
        let Some(is_filled) = received else { break };
        if is_group {
            receive_for_group(core, (port, at), local, &mut staging);
        } else {
            let mut next = 0;
            while next < staging.incoming.len() {
                next = receive_run(core, port, local, &mut staging, next);
            }
        }
        count += staging.incoming.len();
        if !is_filled {
            break;
        }
        // A call with few buffers that fills them is followed by one with more.
        turn -= usize::from(takes_many);
    }
    core.services.datagrams = Some(staging);
    count
}

/// Checks a datagram by itself. Inlined, as a header that is returned through memory is read back before its stores are done. Returns its header and the length of its payload.
#[inline(always)]
fn check(
    slot: &PortSlot,
    counters: &ShardCounters,
    peer: SocketAddr,
    bytes: &[u8],
    is_group: bool,
) -> Option<(Header, usize)> {
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
    Some((header, len))
}

/// Receives the datagram number `first` and those behind it that have the same sender and go to the same queue pair. Returns the number of
/// the next one.
fn receive_run(core: &mut Core, port: Token, local: IpAddr, staging: &mut Staging, first: usize) -> usize {
    let mut next = first + 1;
    let Some((slot, services)) = core.port_and_services(port) else { return next };
    let (peer, bytes) = staging.arrived(first);
    services.moved += bytes.len();
    let Some((header, len)) = check(slot, &services.counters, peer, &bytes[HEADROOM..], false) else {
        return next;
    };
    let number = slot.number;
    let to = header.destination;
    let endpoint = slot.endpoints[usize::from(to.index())].filter(|_| to.port() == number);
    let Some((endpoint, slot, services)) = endpoint.and_then(|token| core.endpoint_and_port(token)) else {
        if let Some((slot, services)) = core.port_and_services(port) {
            slot.count(Count::NoQueuePair);
            services.counters.rejected(Rejected::NoQueuePair);
        }
        return next;
    };
    let qp = Arc::clone(&endpoint.qp);
    let mut receives = None;
    let mut last_len = len;
    endpoint.set_grh(len, peer, local);
    endpoint.received.same_device = endpoint.last_peer.is_own(&services.shared.datagram_sockets, peer);
    endpoint.deliver(&qp, &mut receives, &header, bytes, slot, services);
    while next < staging.incoming.len() && staging.incoming[next].peer == peer {
        let (_, bytes) = staging.arrived(next);
        let moved = bytes.len();
        if let Some((header, len)) = check(slot, &services.counters, peer, &bytes[HEADROOM..], false) {
            if header.destination != to {
                break;
            }
            if std::mem::replace(&mut last_len, len) != len {
                endpoint.set_grh(len, peer, local);
            }
            endpoint.deliver(&qp, &mut receives, &header, bytes, slot, services);
        }
        services.moved += moved;
        next += 1;
    }
    drop(receives);
    endpoint.cache.let_go();
    endpoint.finish(slot, services);
    next
}

/// Every queue pair that is attached to the group at the socket number `at` receives a copy of every datagram.
fn receive_for_group(core: &mut Core, (port, at): (Token, usize), group: IpAddr, staging: &mut Staging) {
    for number in 0..staging.incoming.len() {
        let Some((slot, services)) = core.port_and_services(port) else { return };
        let (peer, bytes) = staging.arrived(number);
        services.moved += bytes.len();
        let Some((header, len)) = check(slot, &services.counters, peer, &bytes[HEADROOM..], true) else {
            continue;
        };
        let mut next = 0;
        while let Some(slot) = core.datagram_port(port)
            && let Some(joined) = &slot.sockets[at].group
            && let Some(index) = joined.attached.get(next)
        {
            next += 1;
            let endpoint = slot.endpoints[usize::from(*index)];
            if let Some((endpoint, slot, services)) = endpoint.and_then(|token| core.endpoint_and_port(token))
            {
                let qp = Arc::clone(&endpoint.qp);
                endpoint.set_grh(len, peer, group);
                let own = &services.shared.datagram_sockets;
                endpoint.received.same_device = endpoint.last_peer.is_own(own, peer);
                endpoint.deliver(&qp, &mut None, &header, bytes, slot, services);
                endpoint.cache.let_go();
                endpoint.finish(slot, services);
            }
        }
    }
}

impl Endpoint {
    /// The route header in front of messages of `len` bytes from now on.
    fn set_grh(&mut self, len: usize, peer: SocketAddr, destination: IpAddr) {
        // A UDP datagram has less than 65,536 bytes.
        let grh = Grh { len: len as u16, source: peer.ip(), destination };
        if self.last_grh.0 != Some(grh) {
            self.last_grh = (Some(grh), grh.emit());
        }
    }

    /// Takes a datagram, or counts it as dropped. `bytes`: the datagram, behind [`HEADROOM`]. `receives` are those of `qp`, which is its own
    /// queue pair, once the first was needed.
    fn deliver<'a>(
        &mut self,
        qp: &'a QpInner,
        receives: &mut Option<Receives<'a>>,
        header: &Header,
        bytes: &mut [u8],
        slot: &PortSlot,
        services: &mut Services,
    ) {
        let end = bytes.len() - uiw_datagram::CRC_LEN;
        let message = &mut bytes[..end];
        if let Some(place) = message.first_chunk_mut() {
            *place = self.last_grh.1;
        }
        let Err(dropped) = self.receive(qp, receives, header, message, services) else { return };
        *receives = None;
        self.finish(slot, services);
        slot.count(dropped);
        let why = match dropped {
            Count::BadQkey => Dropped::BadQkey,
            Count::NoReceive => Dropped::NoReceive,
            Count::BadReceive => Dropped::BadReceive,
            _ => return services.counters.rejected(Rejected::NoQueuePair),
        };
        self.counters.dropped(why, 1);
    }

    /// Places a message, behind its route header. Its completion is queued with those of the datagrams behind it: see
    /// [`Endpoint::finish`].
    fn receive<'a>(
        &mut self,
        qp: &'a QpInner,
        receives: &mut Option<Receives<'a>>,
        header: &Header,
        message: &[u8],
        services: &mut Services,
    ) -> Result<(), Count> {
        let Some(ud) = qp.ud.as_ref().filter(|_| Self::receives(qp.state())) else {
            return Err(Count::NoQueuePair);
        };
        if header.qkey != ud.qkey.load(Ordering::Relaxed) {
            return Err(Count::BadQkey);
        }
        if !receives.get_or_insert_with(|| qp.receives()).take(&mut self.receive, &mut services.wakes) {
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
            // The queue is flushed.
            *receives = None;
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
        self.received.add(byte_len - GRH);
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
        // The run may go on.
        let all = std::mem::take(&mut self.received.all);
        if all.messages > 0 {
            slot.counts.add(Count::Received, all.messages);
            let same_device = if self.received.same_device { all } else { uiw_counters::Count::default() };
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

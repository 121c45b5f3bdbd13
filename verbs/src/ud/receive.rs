//! From a datagram to a completed receive.

use super::counts::Count;
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
        if source.socket.recv(&mut staging.buffer, &mut staging.incoming).is_err() {
            break;
        }
        let mut last = None;
        for incoming in &staging.incoming {
            let bytes = &staging.buffer[incoming.bytes.clone()];
            core.services.moved += bytes.len();
            if is_group {
                receive_for_group(core, (port, at), local, incoming.peer, bytes, &mut last);
            } else {
                receive_for_one(core, port, local, incoming.peer, bytes, &mut last);
            }
        }
        if let Some(endpoint) = last.and_then(|token| core.endpoint(token)) {
            endpoint.cache.let_go();
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
    bytes: &[u8],
    last: &mut Option<Token>,
) {
    let Some((slot, services)) = core.port_and_services(port) else { return };
    let Some((header, grh)) = check(slot, &services.counters, peer, bytes, false) else { return };
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
    bytes: &[u8],
    last: &mut Option<Token>,
) {
    let Some((slot, services)) = core.port_and_services(port) else { return };
    let Some((header, grh)) = check(slot, &services.counters, peer, bytes, true) else { return };
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

fn deliver(
    core: &mut Core,
    (token, peer): (Token, SocketAddr),
    header: &Header,
    grh: &Grh,
    bytes: &[u8],
    last: &mut Option<Token>,
) {
    if *last != Some(token)
        && let Some(before) = last.replace(token).and_then(|token| core.endpoint(token))
    {
        before.cache.let_go();
    }
    let payload = &bytes[Header::LEN..bytes.len() - uiw_datagram::CRC_LEN];
    let Some((endpoint, slot, services)) = core.endpoint_and_port(token) else { return };
    let outcome = endpoint.receive(header, grh, payload, services);
    slot.count(outcome);
    let why = match outcome {
        Count::NoQueuePair => return services.counters.rejected(Rejected::NoQueuePair),
        Count::BadQkey => Dropped::BadQkey,
        Count::NoReceive => Dropped::NoReceive,
        Count::BadReceive => Dropped::BadReceive,
        _ => {
            let is_own = endpoint.last_peer.is_own(&services.shared.datagram_sockets, peer);
            // At most 4,096 bytes.
            return endpoint.counters.received(payload.len() as u32, is_own);
        }
    };
    endpoint.counters.dropped(why, 1);
}

impl Endpoint {
    fn receive(&mut self, header: &Header, grh: &Grh, payload: &[u8], services: &mut Services) -> Count {
        let qp = &self.qp;
        let Some(ud) = qp.ud.as_ref().filter(|_| Self::receives(qp.state())) else {
            return Count::NoQueuePair;
        };
        if header.qkey != ud.qkey.load(Ordering::Relaxed) {
            return Count::BadQkey;
        }
        if !qp.try_take_recv(&mut self.receive, &mut services.wakes) {
            return Count::NoReceive;
        }
        // At most 4,096 bytes.
        let byte_len = payload.len() as u32 + GRH;
        let wr_id = self.receive.wr_id;
        if byte_len > self.receive.len {
            self.fail(wr_id, WcStatus::LocalLength, services);
            return Count::BadReceive;
        }
        let sges = &self.receive.sges;
        let placed = qp
            .scatter(&services.table, &mut self.cache, sges, 0, &grh.emit())
            .and_then(|()| qp.scatter(&services.table, &mut self.cache, sges, GRH, payload));
        if placed.is_err() {
            self.fail(wr_id, WcStatus::LocalProtection, services);
            return Count::BadReceive;
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
        let cqe = Cqe { wc, solicited: header.solicited };
        if qp.recv_cq.push(cqe, &mut services.wakes).is_none() {
            self.lost_completion(services);
            return Count::BadReceive;
        }
        Count::Received
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

//! Receiving datagrams: from a socket to completed receives.

use super::counts::Count;
use super::endpoint::Message;
use super::staging::{HEADROOM, ReceivedRun, Staging};
use super::{Endpoint, PortSlot};
use crate::driver::{Core, Services};
use crate::event::AsyncEvent;
use crate::qp::{LocalCause, LocalDetail, QpInner, Receives, RecvWqe};
use crate::wc::WcStatus;
use crate::wr::single;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uiw_counters::{DropReason, RejectReason, ShardCounters};
use uiw_datagram::{DatagramError, Grh, Header, Qpn, RunCrc};
use uiw_llp::Token;
use uiw_mem::Table;

/// Length of the route header before a payload.
const GRH: u32 = Grh::LEN as u32;

/// Number of datagrams after which a turn ends, so that they, their receives and their completions
/// stay in the cache until the program polls.
const ENOUGH: usize = 256;

/// Receives datagrams from one socket, up to the limit of a turn. Returns their number.
pub(crate) fn receive(core: &mut Core, port: Token, socket: Token) -> usize {
    let mut staging = core.services.datagrams.take().unwrap_or_default();
    let mut count = 0;
    let mut turn = core.services.turn;
    while turn > 0 && count < ENOUGH {
        let Some(slot) = core.datagram_port(port) else { break };
        let Some(at) = slot.sockets.iter().position(|other| other.token == socket) else { break };
        let source = &mut slot.sockets[at];
        let (local, is_group) = (source.local.ip(), source.group.is_some());
        let takes_many = source.takes_many;
        let Some((received, is_filled)) =
            staging.receive(&mut *source.socket, &mut source.takes_many)
        else {
            break;
        };
        if is_group {
            receive_for_group(core, (port, at), local, &mut staging);
        } else {
            while receive_run(core, port, local, &mut staging) {}
        }
        count += received;
        if !is_filled {
            break;
        }
        // A call with few buffers that was filled does not count, because the next call has more
        // buffers.
        turn -= usize::from(takes_many);
    }
    core.services.datagrams = Some(staging);
    count
}

/// Datagram whose format was checked.
struct CheckedDatagram {
    header: Header,
    /// Bytes of the header.
    bytes: [u8; Header::LEN],
    /// Length of the datagram in bytes.
    len: usize,
    /// CRC state for similar datagrams, once there was one.
    run_crc: Option<RunCrc>,
}

impl CheckedDatagram {
    /// Checks a datagram, and counts an invalid one. Inlined, because a header that is returned
    /// through memory would be read back before its stores have completed.
    #[inline(always)]
    fn new(
        slot: &PortSlot,
        counters: &ShardCounters,
        peer: SocketAddr,
        datagram: &[u8],
        is_group: bool,
    ) -> Option<Self> {
        let reject = |count, why| {
            slot.count(count);
            counters.datagram_rejected(why);
        };
        let parsed = Header::parse(datagram).and_then(|(header, _)| {
            header.check_source(peer.port())?;
            Ok(header)
        });
        let header = match parsed {
            Ok(header) => header,
            Err(error) => {
                tracing::trace!(%peer, %error, "a datagram is dropped");
                match error {
                    DatagramError::Crc { .. } => reject(Count::BadCrc, RejectReason::BadCrc),
                    DatagramError::SourcePort { .. } | DatagramError::SourceQpn { .. } => {
                        reject(Count::BadSource, RejectReason::BadSource);
                    }
                    _ => reject(Count::Malformed, RejectReason::Malformed),
                }
                return None;
            }
        };
        if peer.ip().is_unspecified() || peer.ip().is_multicast() {
            reject(Count::BadSource, RejectReason::BadSource);
            return None;
        }
        if is_group != (header.destination == Qpn::MULTICAST) {
            reject(Count::NoQueuePair, RejectReason::NoQueuePair);
            return None;
        }
        Some(Self { header, bytes: *datagram.first_chunk()?, len: datagram.len(), run_crc: None })
    }

    /// Returns whether another datagram of the same sender is valid, and has the same header except
    /// for the MSN.
    #[inline(always)]
    fn is_valid_next(&mut self, datagram: &[u8]) -> bool {
        let is_like = datagram.len() == self.len
            && datagram
                .first_chunk()
                .is_some_and(|header| Header::is_equal_but_msn(header, &self.bytes));
        let Some((bytes, field)) = datagram.split_last_chunk().filter(|_| is_like) else {
            return false;
        };
        let Some(run_crc) = &self.run_crc else {
            let is_valid = uiw_datagram::crc(bytes) == *field;
            self.run_crc = is_valid.then(|| RunCrc::new(bytes));
            return is_valid;
        };
        run_crc.crc(bytes) == *field
    }

    /// Returns the length of the payload.
    fn payload(&self) -> usize {
        self.len - uiw_datagram::OVERHEAD
    }
}

/// Consecutive datagrams with the same header, and the receives for them.
struct ReceiveBatch<'a, 'b> {
    arrived: &'a mut ReceivedRun<'b>,
    /// Index of the first datagram.
    first: usize,
    wqes: &'a [RecvWqe],
    grh: &'a [u8; Grh::LEN],
    /// Length of each message with its route header.
    len: u32,
    /// Collects the `wr_id`s of the receives.
    placed: &'a mut Vec<u64>,
}

impl ReceiveBatch<'_, '_> {
    /// Places the messages, each after its route header. `write` writes a message to the memory of
    /// a receive, or returns false. Returns the number of placed messages, and the receive of the
    /// next message if that one has failed.
    #[inline(always)]
    fn place(
        self,
        mut write: impl FnMut(&RecvWqe, &[u8]) -> bool,
    ) -> (usize, Option<(u64, WcStatus)>) {
        let Self { arrived, first, wqes, grh, len, placed } = self;
        let (mut count, mut failed) = (0, None);
        let (mut at, step) = (first * arrived.len(), arrived.len());
        for wqe in wqes {
            let bytes = &mut arrived.datagram(at)[..len as usize];
            at += step;
            if len > wqe.len {
                failed = Some((wqe.wr_id, WcStatus::LocalLength));
                break;
            }
            if let Some(place) = bytes.first_chunk_mut() {
                *place = *grh;
            }
            if !write(wqe, bytes) {
                failed = Some((wqe.wr_id, WcStatus::LocalProtection));
                break;
            }
            count += 1;
        }
        placed.extend(wqes[..count].iter().map(|wqe| wqe.wr_id));
        (count, failed)
    }
}

/// Receives a datagram, and the following ones of the same sender for the same queue pair. Returns
/// false if there was none, or the port is closed.
fn receive_run(core: &mut Core, port: Token, local: IpAddr, staging: &mut Staging) -> bool {
    let Some((slot, services)) = core.port_and_services(port) else { return false };
    let Some(arrived) = staging.arrived() else { return false };
    let peer = arrived.peer;
    let Some(mut last) =
        CheckedDatagram::new(slot, &services.counters, peer, arrived.first(), false)
    else {
        services.moved += arrived.bytes(1);
        staging.advance(1);
        return true;
    };
    let number = slot.number;
    let to = last.header.destination;
    let endpoint = slot.endpoints[usize::from(to.index())].filter(|_| to.port() == number);
    let Some((endpoint, slot, services)) = endpoint.and_then(|token| core.endpoint_and_port(token))
    else {
        if let Some((slot, services)) = core.port_and_services(port) {
            services.moved += arrived.bytes(1);
            slot.count(Count::NoQueuePair);
            services.counters.datagram_rejected(RejectReason::NoQueuePair);
        }
        staging.advance(1);
        return true;
    };
    let qp = Arc::clone(&endpoint.qp);
    let mut receives = None;
    endpoint.received.same_device =
        endpoint.last_peer.is_own(&services.shared.datagram_sockets, peer);
    endpoint.set_grh(last.payload(), peer, local);
    // Number of following datagrams that are known to be similar to the last one that was checked.
    let mut known = 1;
    while let Some(mut arrived) = staging.arrived()
        && arrived.peer == peer
    {
        // All are checked before the first is placed, so that the processor can overlap the CRCs.
        let count = arrived
            .count_similar(std::mem::take(&mut known), |datagram| last.is_valid_next(datagram));
        let is_end = count == arrived.all();
        if count > 0 {
            services.moved += arrived.bytes(count);
            endpoint.deliver(
                &qp,
                &mut receives,
                &last.header,
                (&mut arrived, count),
                slot,
                services,
            );
            staging.advance(count);
        }
        if is_end {
            continue;
        }
        // The datagram belongs to another run, or is invalid.
        let Some(arrived) = staging.arrived() else { break };
        match CheckedDatagram::new(slot, &services.counters, peer, arrived.first(), false) {
            // The next run begins with this datagram.
            Some(checked) if checked.header.destination != to => break,
            Some(checked) => {
                endpoint.set_grh(checked.payload(), peer, local);
                (last, known) = (checked, 1);
            }
            None => {
                services.moved += arrived.bytes(1);
                staging.advance(1);
            }
        }
    }
    drop(receives);
    endpoint.cache.unpin();
    endpoint.finish(slot, services);
    true
}

/// Passes a copy of each datagram to every queue pair that is attached to the group of socket `at`.
fn receive_for_group(
    core: &mut Core,
    (port, at): (Token, usize),
    group: IpAddr,
    staging: &mut Staging,
) {
    while let Some(mut arrived) = staging.arrived() {
        let Some((slot, services)) = core.port_and_services(port) else { return };
        let peer = arrived.peer;
        services.moved += arrived.bytes(1);
        let checked = CheckedDatagram::new(slot, &services.counters, peer, arrived.first(), true);
        let mut next = 0;
        while let Some(checked) = &checked
            && let Some(slot) = core.datagram_port(port)
            && let Some(joined) = &slot.sockets[at].group
            && let Some(index) = joined.attached.get(next)
        {
            next += 1;
            let endpoint = slot.endpoints[usize::from(*index)];
            if let Some((endpoint, slot, services)) =
                endpoint.and_then(|token| core.endpoint_and_port(token))
            {
                let qp = Arc::clone(&endpoint.qp);
                endpoint.set_grh(checked.payload(), peer, group);
                let own = &services.shared.datagram_sockets;
                endpoint.received.same_device = endpoint.last_peer.is_own(own, peer);
                endpoint.deliver(
                    &qp,
                    &mut None,
                    &checked.header,
                    (&mut arrived, 1),
                    slot,
                    services,
                );
                endpoint.cache.unpin();
                endpoint.finish(slot, services);
            }
        }
        staging.advance(1);
    }
}

/// Describes, for the log, why a message of `len` bytes, including the route header, does not fit
/// into a receive.
#[cold]
fn describe_failure(
    qp: &QpInner,
    wqe: &RecvWqe,
    status: WcStatus,
    len: u32,
    table: &Table,
) -> LocalDetail {
    if status == WcStatus::LocalLength {
        let text = format_args!(
            "it has room for {} bytes, and the message with its route header has {len}",
            wqe.len
        );
        return LocalDetail::of_receive(wqe, LocalCause::Length, text);
    }
    LocalDetail::of_receive(
        wqe,
        LocalCause::Protection,
        qp.explain_elements(table, &wqe.sges, true),
    )
}

impl Endpoint {
    /// Sets the route header for messages of `len` bytes.
    fn set_grh(&mut self, len: usize, peer: SocketAddr, destination: IpAddr) {
        // A UDP datagram has less than 65,536 bytes.
        let grh = Grh { len: len as u16, source: peer.ip(), destination };
        if self.last_grh.0 != Some(grh) {
            self.last_grh = (Some(grh), grh.emit());
        }
    }

    /// Takes the first `count` received datagrams, which have the same `header` except for the MSN,
    /// or counts them as dropped. `qp` is the queue pair of this endpoint. `receives` is filled
    /// with access to its receives when one is needed.
    fn deliver<'a>(
        &mut self,
        qp: &'a QpInner,
        receives: &mut Option<Receives<'a>>,
        header: &Header,
        (arrived, count): (&mut ReceivedRun<'_>, usize),
        slot: &PortSlot,
        services: &mut Services,
    ) {
        let message = Message {
            // The length is at most that of a message (4,096 bytes) and the route header.
            byte_len: (arrived.len() + HEADROOM - uiw_datagram::CRC_LEN) as u32,
            source: header.source.raw(),
            immediate: header.immediate,
            solicited: header.solicited,
        };
        if self.message != message {
            *receives = None;
            if !self.push_received(services) {
                self.lost_completion(services);
            }
            self.message = message;
        }
        let mut next = 0;
        while next < count {
            let placed = self.placed.len();
            let result = self.receive(qp, receives, header, (arrived, next..count), services);
            next += self.placed.len() - placed;
            if let Err((failed, dropped)) = result {
                next += 1;
                *receives = None;
                self.refuse(failed, dropped, slot, services);
            }
        }
    }

    /// Drops a datagram, and completes the receive that was meant for it if that has failed.
    #[cold]
    fn refuse(
        &mut self,
        failed: Option<(u64, WcStatus)>,
        dropped: Count,
        slot: &PortSlot,
        services: &mut Services,
    ) {
        let has_room = self.push_received(services);
        // `fail` and `lost_completion` flush the queue. `fail` first completes the receive that has
        // failed.
        if let Some((wr_id, status)) = failed {
            self.fail(wr_id, status, services);
        }
        if !has_room {
            self.lost_completion(services);
        }
        self.finish(slot, services);
        slot.count(dropped);
        let why = match dropped {
            Count::BadQkey => DropReason::BadQkey,
            Count::NoReceive => DropReason::NoReceive,
            Count::BadReceive => DropReason::BadReceive,
            _ => return services.counters.datagram_rejected(RejectReason::NoQueuePair),
        };
        self.counters.dropped(why, 1);
    }

    /// Places messages, each after its route header. Their completions are added together with
    /// those of following datagrams ([`Endpoint::finish`]). Stops at the first message that cannot
    /// be placed, and returns the reason and the receive that has failed.
    fn receive<'a>(
        &mut self,
        qp: &'a QpInner,
        receives: &mut Option<Receives<'a>>,
        header: &Header,
        (arrived, mut range): (&mut ReceivedRun<'_>, Range<usize>),
        services: &mut Services,
    ) -> Result<(), (Option<(u64, WcStatus)>, Count)> {
        let Some(ud) = qp.ud.as_ref().filter(|_| Self::receives(qp.state())) else {
            return Err((None, Count::NoQueuePair));
        };
        if header.qkey != ud.qkey.load(Ordering::Relaxed) {
            return Err((None, Count::BadQkey));
        }
        let open = receives.get_or_insert_with(|| qp.receives());
        let len = self.message.byte_len;
        while !range.is_empty() {
            let some = open.next(&mut self.receive, &mut services.wakes);
            let some = &some[..some.len().min(range.len())];
            let (mut used, mut failed) = (0, None);
            while failed.is_none()
                && let Some(next) = some.get(used)
            {
                // Consecutive receives in the same region need one lookup.
                let lkey = single(&next.sges).map(|element| element.lkey);
                let is_alike = |wqe: &&RecvWqe| {
                    lkey.is_some() && single(&wqe.sges).map(|element| element.lkey) == lkey
                };
                let alike = 1 + some[used + 1..].iter().take_while(is_alike).count();
                let batch = ReceiveBatch {
                    arrived,
                    first: range.start + used,
                    wqes: &some[used..][..alike],
                    grh: &self.last_grh.1,
                    len,
                    placed: &mut self.placed,
                };
                let (table, cache) = (&services.table, &mut self.cache);
                let pinned = lkey.map(|lkey| table.pin_local_region(cache, lkey, qp.pd.id(), true));
                let placed = match pinned {
                    Some(Ok(pinned)) => batch.place(|wqe, message| {
                        single(&wqe.sges)
                            .is_some_and(|element| pinned.copy_from(element.addr, message).is_ok())
                    }),
                    _ => batch.place(|wqe, message| {
                        qp.scatter(table, cache, &wqe.sges, 0, message).is_ok()
                    }),
                };
                used += placed.0;
                failed = placed.1;
                if let Some((_, status)) = failed
                    && let Some(wqe) = some.get(used)
                {
                    self.detail = Some(describe_failure(qp, wqe, status, len, table));
                }
            }
            open.take(used + usize::from(failed.is_some()));
            self.received.add(used, len - GRH);
            range.start += used;
            if failed.is_some() {
                return Err((failed, Count::BadReceive));
            }
            if used == 0 {
                return Err((None, Count::NoReceive));
            }
        }
        Ok(())
    }

    /// Adds the completions of the placed messages. Returns false if there was no room, and the
    /// queue pair has entered the error state.
    fn push_received(&mut self, services: &mut Services) -> bool {
        let num = self.qp.num;
        let count = match self.placed[..] {
            [] => return true,
            [wr_id] => {
                self.placed.clear();
                let completion = self.message.completion(wr_id, num);
                return self.qp.recv_cq.push(completion, &mut services.wakes).is_some();
            }
            _ => self.placed.len(),
        };
        let message = self.message;
        let completions = self.placed.drain(..).map(|wr_id| message.completion(wr_id, num));
        self.qp.recv_cq.push_all(completions, &mut services.wakes) == count
    }

    /// Adds completions, and counts the messages.
    fn finish(&mut self, slot: &PortSlot, services: &mut Services) {
        if !self.push_received(services) {
            self.lost_completion(services);
        }
        // The run may continue.
        let all = std::mem::take(&mut self.received.all);
        if all.messages > 0 {
            slot.counts.add(Count::Received, all.messages);
            let same_device =
                if self.received.same_device { all } else { uiw_counters::Count::default() };
            self.counters.received(all, same_device);
        }
    }

    /// Completes a receive with an error, which also fails the queue pair.
    fn fail(&mut self, wr_id: u64, status: WcStatus, services: &mut Services) {
        self.cache.unpin();
        if let Some(detail) = self.detail.take() {
            self.qp.log_local(&detail);
        }
        self.qp.complete_recv(wr_id, status, None, &mut services.wakes);
        self.qp.flush_unconnected(&mut services.wakes);
    }

    /// Handles a full completion queue.
    pub(super) fn lost_completion(&self, services: &mut Services) {
        let event = AsyncEvent::QpFatal { qp_num: self.qp.num, reason: None };
        self.qp.raise(event, &mut services.wakes);
        self.qp.flush_unconnected(&mut services.wakes);
    }
}

//! Sending datagrams: from the send queue to UDP.

use super::counts::Count as PortCount;
use super::own_sockets::LastPeer;
use super::send_route::SendRoute;
use super::staging::{BatchRoom, Staging};
use super::{Destination, Endpoint, PortSlot};
use crate::driver::{Core, Services};
use crate::qp::{LocalCause, LocalDetail, QpInner, QpState, SqMode, Wqe, WqeState};
use crate::wc::WcStatus;
use crate::wr::{SendFlags, SendOp, single};
use std::io;
use std::sync::atomic::Ordering;
use uiw_counters::{Count, DropReason};
use uiw_datagram::{Header, OVERHEAD, Qpn};
use uiw_ddp::STag;
use uiw_llp::{Outgoing, Token};
use uiw_mem::{MrCache, Table};

/// Common properties of the requests of a run.
struct RequestRun<'a> {
    /// Sequence number of the first request.
    first: u32,
    signal_all: bool,
    max_payload: usize,
    table: &'a Table,
}

/// Common properties of requests with the same destination and length whose datagrams are built
/// alike.
#[derive(Clone, Copy)]
struct RequestShape {
    len: u32,
    flags: SendFlags,
    immediate: Option<u32>,
    /// Region of the only element of each request. `None` if they are inline, or have no element or
    /// several.
    lkey: Option<STag>,
}

impl RequestShape {
    /// Flags that affect the datagram.
    const FLAGS: SendFlags = SendFlags::SOLICITED.union(SendFlags::INLINE);

    /// Returns the shape of a request, or `None` if it has another destination.
    fn of(wqe: &Wqe, to: &Destination) -> Option<Self> {
        let flags = wqe.flags & Self::FLAGS;
        let lkey = single(&wqe.sges)
            .filter(|_| !flags.contains(SendFlags::INLINE))
            .map(|element| element.lkey);
        match &wqe.op {
            SendOp::Datagram { to: other, imm } if other == to => {
                Some(Self { len: wqe.len, flags, immediate: *imm, lkey })
            }
            _ => None,
        }
    }

    /// Returns whether a request to `to` is built like this one.
    #[inline(always)]
    fn is_of(&self, wqe: &Wqe, to: &Destination) -> bool {
        let has_lkey = || match self.lkey {
            Some(lkey) => single(&wqe.sges).is_some_and(|element| element.lkey == lkey),
            // Such requests are gathered one by one.
            None => true,
        };
        wqe.len == self.len
            && wqe.flags & Self::FLAGS == self.flags
            && matches!(&wqe.op, SendOp::Datagram { to: other, imm } if other == to && *imm == self.immediate)
            && has_lkey()
    }
}

/// Requests of the same shape, and the memory for their datagrams.
struct TransmitBatch<'a> {
    wqes: &'a mut [Wqe],
    /// Memory for consecutive datagrams.
    room: &'a mut [u8],
    header: &'a [u8; Header::LEN],
    /// MSN of the previous datagram.
    msn: &'a mut u32,
    /// Sequence number of the first request.
    first: u32,
    signal_all: bool,
    reported: &'a mut Vec<u32>,
}

impl TransmitBatch<'_> {
    /// Builds datagrams with payloads of `payload` bytes. `write` writes the payload of a request,
    /// and returns false if it cannot. Returns the number of datagrams that were built, and the
    /// error of the next one.
    #[inline(always)]
    fn build(
        self,
        payload: usize,
        mut write: impl FnMut(&Wqe, &mut [u8]) -> bool,
    ) -> (usize, Option<WcStatus>) {
        let Self { wqes, mut room, header, msn, first, signal_all, reported } = self;
        let mut built = 0;
        for wqe in wqes {
            let Some(place) = room.split_off_mut(..payload + OVERHEAD) else { break };
            let Some((front, rest)) = place.split_first_chunk_mut() else { break };
            // The MSN is replaced in the copied header, because a load that spans several recent
            // stores has to wait for them.
            *front = *header;
            Header::set_msn(front, msn.wrapping_add(built + 1));
            if !write(wqe, &mut rest[..payload]) {
                *msn = msn.wrapping_add(built);
                return (built as usize, Some(WcStatus::LocalProtection));
            }
            if signal_all || wqe.flags.contains(SendFlags::SIGNALED) {
                reported.push(first.wrapping_add(built));
            }
            wqe.state = WqeState::Built;
            built += 1;
        }
        *msn = msn.wrapping_add(built);
        (built as usize, None)
    }
}

/// Sends posted requests while the socket has room. Requests posted meanwhile ring the doorbell
/// again, so that a thread that posts continuously does not keep the shard busy.
pub(crate) fn transmit(core: &mut Core, token: Token) {
    let mut staging = core.services.datagrams.take().unwrap_or_default();
    if let Some((endpoint, port, services)) = core.endpoint_and_port(token) {
        let mut is_first = true;
        while endpoint.send_batch(
            token,
            port,
            services,
            &mut staging,
            std::mem::take(&mut is_first),
        ) {}
    }
    core.services.datagrams = Some(staging);
}

/// Continues when a socket has room again. The queue pair that has waited longest continues first;
/// one that fills the socket again waits behind the others.
pub(crate) fn resume(core: &mut Core, port: Token, socket: Token) {
    while let Some(slot) = core.datagram_port(port) {
        let Some(next) = slot.next_blocked(socket) else { return slot.stop_waiting(socket) };
        transmit(core, next);
        if core.datagram_port(port).is_some_and(|slot| slot.is_blocked(next)) {
            return;
        }
    }
}

impl Endpoint {
    /// Sends one batch to one socket. `is_first` tells whether it is the first one of this turn.
    /// Returns false if nothing more can be sent now.
    fn send_batch(
        &mut self,
        token: Token,
        port: &mut PortSlot,
        services: &mut Services,
        staging: &mut Staging,
        is_first: bool,
    ) -> bool {
        staging.begin_batch();
        let (socket, failed) = self.builder().build(port, services, staging, is_first);
        staging.fill_crcs();
        self.cache.unpin();
        let mut sent = SendOutcome::default();
        if let Some(at) = socket {
            sent = send(port, at, staging);
            if sent.is_blocked {
                port.block(token, at);
            }
        }
        let SendOutcome { done, is_blocked: blocked, .. } = sent;
        let qp = &*self.qp;
        let mut sq = qp.sq.lock();
        let unsent = staging.built - done;
        staging.deduct_sent(done);
        self.count(&sent);
        sq.unbuild(unsent);
        self.msn = self.msn.wrapping_sub(unsent as u32);
        let room =
            qp.retire_sent(&mut sq, (staging.first, done), &staging.reported, &mut services.wakes);
        let failed = failed.filter(|_| unsent == 0);
        let mut detail = None;
        if let Some((id, status)) = failed {
            detail = sq.get(id).map(|wqe| why_unsent(qp, wqe, status, port, services));
            sq.built(0);
            sq.done(id, status);
        }
        let retired = qp.retire(&mut sq, &mut services.wakes);
        if failed.is_some() {
            // Only the send queue stops; the receive queue continues (IBTA section 10.3.1, SQE).
            qp.set_state(QpState::Sqe);
            qp.flush_sends(&mut sq, None, &mut services.wakes);
        }
        let has_more = sq.has_next() && staging.has_turn();
        drop(sq);
        if let Some(detail) = detail {
            qp.log_local(&detail);
        }
        if !room || retired.is_err() {
            self.lost_completion(services);
            return false;
        }
        failed.is_none() && !blocked && staging.built > 0 && has_more
    }

    fn builder(&mut self) -> DatagramBuilder<'_> {
        let Self { qp, epoch, msn, cache, last_peer, route, .. } = self;
        DatagramBuilder { qp, epoch: *epoch, msn, cache, last_peer, route }
    }

    /// Counts the requests whose datagrams were sent or skipped.
    fn count(&self, sent: &SendOutcome) {
        self.counters.sent(sent.all, sent.same_device);
        if sent.unsent > 0 {
            self.counters.dropped(DropReason::Unsent, sent.unsent);
        }
    }
}

/// Parts of an endpoint that are needed to build datagrams.
struct DatagramBuilder<'a> {
    qp: &'a QpInner,
    epoch: u32,
    msn: &'a mut u32,
    cache: &'a mut MrCache,
    last_peer: &'a mut LastPeer,
    route: &'a mut Option<SendRoute>,
}

impl DatagramBuilder<'_> {
    /// Builds datagrams for one socket, and returns the socket. Also returns the next request if it
    /// cannot be sent.
    fn build(
        &mut self,
        port: &PortSlot,
        services: &Services,
        staging: &mut Staging,
        is_first: bool,
    ) -> (Option<usize>, Option<(u32, WcStatus)>) {
        let qp = self.qp;
        let Some(ud) = &qp.ud else { return (None, None) };
        let own_qkey = ud.qkey.load(Ordering::Relaxed);
        self.revalidate_route(port, services, own_qkey);
        let mut sq = qp.sq.lock();
        if is_first {
            // Another post rings the doorbell again.
            sq.note_read();
            staging.begin_turn(sq.len());
        }
        let (signal_all, mut socket) = (sq.limits().signal_all, None);
        while sq.mode == SqMode::Running {
            let (id, wqes) = sq.unbuilt();
            let Some(next) =
                wqes.first().filter(|wqe| staging.may_add(wqe.len as usize + OVERHEAD))
            else {
                break;
            };
            let SendOp::Datagram { to, imm } = &next.op else {
                return (socket, Some((id, WcStatus::LocalQpOperation)));
            };
            let is_new = self.route.as_ref().is_none_or(|route| route.to != *to);
            if is_new {
                let of_request = (next.flags.contains(SendFlags::SOLICITED), *imm);
                *self.route = self.find_route(to, of_request, port, services, own_qkey);
            }
            let Some(route) = &*self.route else {
                return (socket, Some((id, WcStatus::LocalQpOperation)));
            };
            if *socket.get_or_insert(route.socket) != route.socket {
                break;
            }
            if staging.built == 0 {
                staging.first = id;
            }
            let (max_payload, table) = (ud.port.max_payload(), &services.table);
            let run = RequestRun { first: id, signal_all, max_payload, table };
            let (built, failed) = self.build_run(wqes, run, staging);
            sq.advance(built);
            if let Some(status) = failed {
                let failed = id.wrapping_add(built as u32);
                return (socket.filter(|_| staging.built > 0), Some((failed, status)));
            }
            if built == 0 {
                break;
            }
        }
        (socket, None)
    }

    /// Builds the datagrams of the first of `wqes` that have the same destination and length, while
    /// the batch has room. Returns their number, and the error of the next request.
    fn build_run(
        &mut self,
        wqes: &mut [Wqe],
        run: RequestRun<'_>,
        staging: &mut Staging,
    ) -> (usize, Option<WcStatus>) {
        let RequestRun { first, signal_all, max_payload, table } = run;
        let Self { route: Some(route), qp, cache, msn, .. } = self else {
            return (0, Some(WcStatus::LocalQpOperation));
        };
        let Some(payload) = wqes.first().map(|wqe| wqe.len) else { return (0, None) };
        if payload as usize > max_payload {
            return (0, Some(WcStatus::LocalLength));
        }
        let len = payload as usize + OVERHEAD;
        let BatchRoom { requests, bytes: room, reported, alike: all_alike } = staging.room();
        let most = requests.min(room.len() / len).min(wqes.len());
        let (mut built, mut failed) = (0, None);
        while failed.is_none()
            && let Some(kind) =
                wqes[built..most].first().and_then(|wqe| RequestShape::of(wqe, &route.to))
            && kind.len == payload
        {
            let rest = &mut wqes[built..most];
            let to = route.to;
            let alike = 1 + rest[1..].iter().take_while(|wqe| kind.is_of(wqe, &to)).count();
            let batch = TransmitBatch {
                wqes: &mut rest[..alike],
                room: &mut room[built * len..],
                header: route.header(kind.flags.contains(SendFlags::SOLICITED), kind.immediate),
                msn,
                first: first.wrapping_add(built as u32),
                signal_all,
                reported,
            };
            let payload = payload as usize;
            let (count, status) = match kind.lkey {
                None => batch.build(payload, |wqe, mut place| {
                    qp.gather(table, cache, wqe, 0..wqe.len, &mut place).is_ok()
                }),
                Some(lkey) => match table.pin_local_region(cache, lkey, qp.pd.id(), false) {
                    Ok(pinned) => batch.build(payload, |wqe, place| {
                        single(&wqe.sges)
                            .is_some_and(|element| pinned.copy_to(element.addr, place).is_ok())
                    }),
                    Err(_) => (0, Some(WcStatus::LocalProtection)),
                },
            };
            all_alike.push((count, len));
            built += count;
            failed = status;
        }
        if built > 0 {
            staging.add(Outgoing { count: built, ..route.outgoing(len) }, route.same_device);
        }
        (built, failed)
    }

    /// Discards the route of the last batch if something it depends on has changed.
    fn revalidate_route(&mut self, port: &PortSlot, services: &Services, own_qkey: u32) {
        let Some(route) = self.route else { return };
        // Updated in place, because moving it out and back costs as much as building a datagram.
        if route.is_of(self.epoch, own_qkey) && port.is_socket_at(route.socket, route.local) {
            route.same_device = route.is_group
                || self.last_peer.is_own(&services.shared.datagram_sockets, route.peer);
        } else {
            *self.route = None;
        }
    }

    /// Returns the route to a destination, or `None` if no socket of the port has its local
    /// address.
    fn find_route(
        &mut self,
        to: &Destination,
        (solicited, immediate): (bool, Option<u32>),
        port: &PortSlot,
        services: &Services,
        own_qkey: u32,
    ) -> Option<SendRoute> {
        let local = to.ah.local();
        let socket = port.socket_at(local)?;
        let (destination, peer) = to.resolve();
        let header = Header {
            epoch: self.epoch,
            destination,
            source: Qpn::from_raw(self.qp.num),
            qkey: if to.qkey >> 31 == 0 { to.qkey } else { own_qkey },
            msn: *self.msn,
            solicited,
            immediate,
        };
        let is_group = peer.ip().is_multicast();
        let same_device =
            is_group || self.last_peer.is_own(&services.shared.datagram_sockets, peer);
        Some(SendRoute {
            to: *to,
            own_qkey,
            socket,
            local,
            peer,
            is_group,
            same_device,
            bytes: header.emit(),
            header,
        })
    }
}

/// Describes, for the log, why a request cannot be sent.
#[cold]
fn why_unsent(
    qp: &QpInner,
    wqe: &Wqe,
    status: WcStatus,
    port: &PortSlot,
    services: &Services,
) -> LocalDetail {
    let datagram = match &wqe.op {
        SendOp::Datagram { to, .. } => Some(to),
        _ => None,
    };
    match (status, datagram) {
        (WcStatus::LocalProtection, _) => {
            let text = qp.explain_elements(&services.table, &wqe.sges, false);
            LocalDetail::of_request(wqe, LocalCause::Protection, text)
        }
        (WcStatus::LocalLength, _) => {
            let most = qp.ud.as_ref().map_or(0, |ud| ud.port.max_payload());
            let text = format_args!("{} bytes, and a datagram takes {most}", wqe.len);
            LocalDetail::of_request(wqe, LocalCause::Length, text)
        }
        (_, Some(to)) if port.socket_at(to.ah.local()).is_none() => {
            let address = to.ah.local();
            let text =
                format_args!("no socket has the local address {address} of its address handle");
            LocalDetail::of_request(wqe, LocalCause::Unsupported, text)
        }
        _ => LocalDetail::of_request(wqe, LocalCause::Unsupported, status),
    }
}

/// Result of sending a batch.
#[derive(Default)]
struct SendOutcome {
    /// Number of datagrams consumed, including those skipped.
    done: usize,
    /// True if the socket has no room for the next datagram.
    is_blocked: bool,
    /// Datagrams that were sent.
    all: Count,
    /// Datagrams among them that went to queue pairs of the same device or to groups.
    same_device: Count,
    /// Number of datagrams that UDP has refused.
    unsent: u64,
}

/// Sends the batch.
fn send(port: &mut PortSlot, at: usize, staging: &mut Staging) -> SendOutcome {
    let socket = &mut port.sockets[at].socket;
    let mut sent = SendOutcome::default();
    let built = staging.built;
    let (mut bytes, outgoing, same_device) = staging.batch();
    let mut item = 0;
    while sent.done < built {
        let rest = &mut outgoing[item..];
        let (mut taken, is_sent) = match socket.send(bytes, rest) {
            Ok(taken) => (taken, true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                sent.is_blocked = true;
                break;
            }
            Err(error) => {
                tracing::debug!(%error, peer = %rest[0].peer, "a datagram cannot be sent");
                sent.unsent += 1;
                (1, false)
            }
        };
        sent.done += taken;
        for outgoing in rest {
            let now = taken.min(outgoing.count);
            (taken, outgoing.count) = (taken - now, outgoing.count - now);
            bytes = &bytes[now * outgoing.len..];
            if is_sent {
                let payload = now * (outgoing.len - OVERHEAD);
                let same_device = same_device[item].then_some(&mut sent.same_device);
                for count in [Some(&mut sent.all), same_device].into_iter().flatten() {
                    count.messages += now as u64;
                    count.bytes += payload as u64;
                }
            }
            if outgoing.count > 0 {
                break;
            }
            item += 1;
        }
    }
    port.counts.add(PortCount::Sent, sent.all.messages);
    port.counts.add(PortCount::Unsent, sent.unsent);
    sent
}

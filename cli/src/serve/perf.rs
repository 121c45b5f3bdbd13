//! Server of `uiw perf`: provides memory for Writes, Reads and atomics and receives for Sends, and
//! answers the messages of a ping-pong. An empty Send marks the beginning or the end of a run, and
//! is answered with statistics.

use super::{Server, opposite};
use crate::perf::{pattern, raw::cpu_ns};
use crate::shared::fail::{Failure, Result};
use crate::shared::memory::Buffer;
use crate::shared::qp_setup::{
    Link, MAX_INLINE, PendingQp, QueueDepths, RECV, WaitLimits, WaitMode, completions, post,
    post_recvs, send_copy,
};
use crate::shared::service::{PerfOp, PerfOrder, PerfReply, Stats};
use crate::shared::spin::Spin;
use crate::shared::text;
use uiw::raw::cm::ConnRequest;
use uiw::raw::{Access, Remote, STag, SendFlags, SendOp, Sge, Wc, WcOpcode};

/// Maximum memory of one client in bytes, for Writes and Reads or for receives.
pub(crate) const MAX_MEMORY: u64 = 512 << 20;
/// Maximum size of a message, in bytes.
pub(crate) const MAX_SIZE: u32 = 64 << 20;
/// Maximum number of messages under way.
pub(crate) const MAX_DEPTH: u32 = 4096;
/// Request number of an answer with statistics. Its completion needs no action.
const STATS: u64 = 1 << 40;
/// Request number of a Write that answers a ping. Its completion needs no action.
const PONG: u64 = 2 << 40;

/// Returns the bytes of memory that an order needs: receives for Sends, otherwise memory exposed to
/// the peer.
pub(super) fn required_memory(order: &PerfOrder) -> u64 {
    let slots = if order.op == PerfOp::Send { receive_slots(order) } else { order.slots.into() };
    u64::from(order.size).saturating_mul(slots)
}

/// Returns the number of Sends for which there is separate memory. Unless they are validated, all
/// share the memory of one message.
fn receive_slots(order: &PerfOrder) -> u64 {
    if order.validate { receives(order) } else { 1 }
}

/// Returns the number of receives that are kept posted.
fn receives(order: &PerfOrder) -> u64 {
    let wanted = if order.op.takes_receives() { u64::from(order.depth) + 16 } else { 16 };
    if order.op == PerfOp::Send && order.validate {
        wanted.min(MAX_MEMORY / u64::from(order.size.max(1))).max(4)
    } else {
        wanted
    }
}

pub(super) fn serve(server: &Server, request: ConnRequest, order: &PerfOrder) -> Result<()> {
    let peer = text::canonical(request.peer_addr());
    let opposite = order.opposite;
    let checked =
        check(order).and_then(|()| opposite.map_or(Ok(()), |o| opposite::check(order, &o)));
    if let Err(why) = checked {
        let _ = request.reject(why.as_bytes());
        return Err(Failure::lost(peer, why));
    }
    if let Some(opposite) = opposite {
        return opposite::serve(server, request, order, opposite);
    }
    let mut session = PerfSession::new(server, request, order)?;
    if order.latency && order.op == PerfOp::Write {
        session.answer_writes(server)
    } else {
        session.run(server)
    }?;
    session.link.close();
    Ok(())
}

fn check(order: &PerfOrder) -> std::result::Result<(), String> {
    let memory = u64::from(order.size) * u64::from(order.slots);
    if order.size == 0 || order.size > MAX_SIZE || order.slots == 0 || memory > MAX_MEMORY {
        return Err(format!("asks for {} messages of {} bytes", order.slots, order.size));
    }
    if order.depth == 0 || order.depth > MAX_DEPTH {
        return Err(format!("asks for {} messages under way", order.depth));
    }
    Ok(())
}

struct PerfSession {
    link: Link,
    order: PerfOrder,
    size: usize,
    /// Memory that the peer writes and reads.
    exposed: Buffer,
    /// Memory of receives, one slot each. `None` if receives take no bytes.
    ring: Option<Buffer>,
    slots: u64,
    stats: Stats,
    /// Receives that must be posted again.
    again: Vec<(u64, Option<Sge>)>,
}

impl PerfSession {
    fn new(server: &Server, request: ConnRequest, order: &PerfOrder) -> Result<Self> {
        let size = order.size as usize;
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        // Sends only use the memory of receives.
        let exposed_slots = if order.op == PerfOp::Send { 0 } else { order.slots as usize };
        let exposed = Buffer::shared(&server.pd, (size * exposed_slots).max(8), access)?;
        if order.validate && order.op == PerfOp::Read {
            // A request of a few bytes causes this work, so only one connection does it at a time,
            // in turn.
            let mut filling = server.filling.lock();
            for slot in 0..exposed_slots {
                parking_lot::MutexGuard::bump(&mut filling);
                pattern::parts(slot as u64, size, |offset, part| {
                    exposed.write(slot * size + offset, part).map(|()| true)
                })?;
            }
        }
        let slots = receives(order);
        let ring = match order.op {
            PerfOp::Send if order.validate => {
                Some(Buffer::exclusive(&server.pd, size * slots as usize)?)
            }
            PerfOp::Send => Some(Buffer::shared(&server.pd, size, Access::empty())?),
            _ => None,
        };
        let depths = QueueDepths::new(64, u32::try_from(slots).unwrap_or(u32::MAX));
        let pending = PendingQp::new(&server.device, &server.pd, &depths)?;
        let receive =
            |slot: u64| (slot, ring.as_ref().map(|ring| slot_of(ring, order, slot, size)));
        post_recvs(&pending.qp, &(0..slots).map(receive).collect::<Vec<_>>())?;
        let remote = exposed.remote();
        let len = (u64::from(order.size) * u64::from(order.slots)).max(8);
        let reply = PerfReply { addr: remote.addr, rkey: remote.rkey.0, len };
        let reply = serde_json::to_vec(&reply).unwrap_or_default();
        let options = order.peer_options.at(&server.peer_options.own).options();
        let link = pending.accept(request, &options, &reply, WaitLimits::stop(&server.stop))?;
        server.watch(&link);
        let stats = Stats::default();
        Ok(Self {
            link,
            order: order.clone(),
            size,
            exposed,
            ring,
            slots,
            stats,
            again: Vec::new(),
        })
    }

    fn wait(&self) -> WaitMode {
        // The server polls only for a ping-pong. Otherwise it waits for a stream of messages, or
        // for the end of the connection.
        if self.order.latency && self.order.op.takes_receives() {
            self.order.wait
        } else {
            WaitMode::Sleep
        }
    }

    /// Serves completions until the client closes.
    fn run(&mut self, server: &Server) -> Result<()> {
        let wait = self.wait();
        let mut batch = Vec::with_capacity(64);
        loop {
            let until = WaitLimits::stop(&server.stop);
            completions(&self.link.device, &self.link.cq, wait, until, 64, |wc| batch.push(wc));
            if batch.is_empty() {
                return Ok(());
            }
            for wc in batch.drain(..) {
                if !self.completion(&wc)? {
                    return Ok(());
                }
            }
            self.post_again()?;
        }
    }

    /// Handles a completion. Returns false if the client has closed in order.
    fn completion(&mut self, wc: &Wc) -> Result<bool> {
        if !self.link.goes_on(wc)? {
            return Ok(false);
        }
        let slot = wc.wr_id & !RECV;
        if wc.wr_id & RECV == 0 {
            // An answer was sent, so its slot can be used again.
            if slot < self.slots && self.order.op == PerfOp::Send {
                self.post_later(slot);
            }
            return Ok(true);
        }
        if wc.opcode == WcOpcode::Recv && wc.byte_len == 0 {
            self.post_later(slot);
            self.answer_stats()?;
            return Ok(true);
        }
        self.stats.messages += 1;
        if self.order.validate
            && let Some(ring) = &self.ring
        {
            // A message of another length is not compared, so that a short message cannot cause the
            // work of a long one.
            let right = wc.byte_len as usize == self.size
                && pattern::parts(self.stats.messages - 1, self.size, |offset, part| {
                    Ok::<_, Failure>(
                        ring.first_difference(slot_start(&self.order, slot) + offset, part)?
                            .is_none(),
                    )
                })?;
            self.stats.wrong += u64::from(!right);
        }
        if !self.order.latency {
            self.post_later(slot);
            return Ok(true);
        }
        self.answer(slot, wc.byte_len as usize)?;
        Ok(true)
    }

    /// Answers a message with one of the same kind.
    fn answer(&mut self, slot: u64, len: usize) -> Result<()> {
        let qp = &self.link.qp;
        match &self.ring {
            Some(ring) => {
                let sge = slot_of(ring, &self.order, slot, len);
                let (sge, flags) = inline(ring, sge, slot_start(&self.order, slot), len);
                post(qp, slot, SendOp::Send, &[sge], SendFlags::SIGNALED | flags)
            }
            None => {
                self.post_later(slot);
                self.write_back(true)
            }
        }
    }

    /// Writes the first slot into the client's memory.
    fn write_back(&self, with_immediate: bool) -> Result<()> {
        let Some((addr, rkey)) = self.order.back else {
            return Err(Failure::lost(
                self.link.peer(),
                "requests answers, but gave no memory for them",
            ));
        };
        let remote = Remote { addr, rkey: STag(rkey) };
        let op = if with_immediate {
            SendOp::WriteImm { remote, imm: 0 }
        } else {
            SendOp::Write { remote }
        };
        let (sge, flags) = inline(&self.exposed, self.exposed.sge(0..self.size), 0, self.size);
        post(&self.link.qp, PONG, op, &[sge], SendFlags::SIGNALED | flags)
    }

    /// Answers Writes, which are detected by polling their last byte.
    fn answer_writes(&mut self, server: &Server) -> Result<()> {
        let (mut seen, mut spin) = (0u8, Spin::default());
        let mut last = [0u8];
        let mut batch = Vec::with_capacity(16);
        while !server.stop.is_set() {
            self.link.cq.poll_with(16, |wc| batch.push(wc));
            for wc in batch.drain(..) {
                if !self.completion(&wc)? {
                    return Ok(());
                }
            }
            self.post_again()?;
            self.exposed.read(self.size - 1, &mut last)?;
            if last[0] != seen {
                seen = last[0];
                spin.restart();
                self.write_back(false)?;
            } else {
                spin.on_empty_poll();
            }
        }
        Ok(())
    }

    fn answer_stats(&self) -> Result<()> {
        let stats = Stats { cpu_ns: cpu_ns(), ..self.stats };
        let bytes = serde_json::to_vec(&stats).unwrap_or_default();
        send_copy(&self.link.qp, STATS, &bytes)
    }

    /// Has [`PerfSession::post_again`] post the receive of `slot`.
    fn post_later(&mut self, slot: u64) {
        let sge = self.ring.as_ref().map(|ring| slot_of(ring, &self.order, slot, self.size));
        self.again.push((slot, sge));
    }

    fn post_again(&mut self) -> Result<()> {
        post_recvs(&self.link.qp, &self.again)?;
        self.again.clear();
        Ok(())
    }
}

/// Returns the index of the first byte of the memory of a receive.
fn slot_start(order: &PerfOrder, slot: u64) -> usize {
    if order.validate { slot as usize * order.size as usize } else { 0 }
}

fn slot_of(ring: &Buffer, order: &PerfOrder, slot: u64, len: usize) -> Sge {
    let start = slot_start(order, slot);
    ring.sge(start..start + len)
}

/// Returns the element and flags with which a message of a ping-pong is sent: short messages are
/// sent inline.
pub(crate) fn inline(buffer: &Buffer, sge: Sge, start: usize, len: usize) -> (Sge, SendFlags) {
    if len <= (MAX_INLINE as usize).min(256) {
        (buffer.address(start..start + len), SendFlags::INLINE)
    } else {
        (sge, SendFlags::empty())
    }
}

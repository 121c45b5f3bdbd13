//! One connection of a measurement: what it posts, and what it makes of completions.

use super::pattern;
use super::plan::Plan;
use super::source::Source;
use crate::serve::perf::inline;
use crate::shared::fail::{Failure, Result};
use crate::shared::memory::{Buffer, at};
use crate::shared::qp_setup::{Depths, Link, PendingQp, RECV, WaitLimits, post, post_recvs};
use crate::shared::service::{Op, PerfReply, Service, Stats};
use std::net::SocketAddr;
use std::sync::Arc;
use uiw::raw::{Access, Cq, Device, Pd, RemoteMr, STag, SendFlags, SendOp, Sge, Wc, WcStatus};

/// In a request's number: the connection.
pub(super) const FLOW_SHIFT: u32 = 40;
const SEQ: u64 = (1 << FLOW_SHIFT) - 1;
/// The number of an empty Send.
pub(super) const MARK: u64 = SEQ;
/// Bytes of a statistics message at most.
pub(super) const STATS_LEN: usize = 512;
/// Receives for statistics and answers.
pub(super) const RECVS: u64 = 4;

/// The client's end of one connection.
pub(crate) struct FlowState {
    pub(crate) link: Link,
    plan: Plan,
    index: u64,
    pub(crate) source: Source,
    /// Where answers to Writes arrive.
    back: Option<Buffer>,
    ring: Buffer,
    ring_size: usize,
    /// Answers of a ping-pong.
    pub(crate) answers: u64,
    pub(crate) stats: Option<Stats>,
}

impl FlowState {
    /// Begins to connect; what is returned waits for the end of it.
    pub(crate) fn connect(
        device: &Device,
        pd: &Pd,
        cq: &Arc<Cq>,
        index: u64,
        peer: SocketAddr,
        plan: &Plan,
    ) -> Result<impl FnOnce() -> Result<Self> + use<>> {
        let size = plan.size as usize;
        let what = plan.messages();
        let local = Buffer::exclusive(pd, what.memory())?;
        let back = match plan.op {
            Op::Write | Op::WriteImm if plan.latency => Some(Buffer::shared(pd, size, Access::REMOTE_WRITE)?),
            _ => None,
        };
        let ring_size = if plan.latency && plan.op == Op::Send { size.max(STATS_LEN) } else { STATS_LEN };
        let ring = Buffer::exclusive(pd, ring_size * RECVS as usize)?;
        let half = PendingQp::on(device, pd, cq, &Depths::new(plan.depth + 4, RECVS as u32))?;
        let receive = |slot: u64| (index << FLOW_SHIFT | slot, Some(slot_of(&ring, slot, ring_size)));
        post_recvs(&half.qp, (0..RECVS).map(receive))?;
        let back_at = back.as_ref().map(|back| (back.remote().addr, back.remote().rkey.0));
        let order = Service::Perf(plan.order(back_at, None));
        let connecting = half.begin(peer, &plan.peer_options.options(), &order.private_data())?;
        let plan = plan.clone();
        Ok(move || {
            let link = connecting.finish(WaitLimits::NEVER)?;
            let reply: PerfReply = serde_json::from_slice(&link.info.private_data)
                .map_err(|_| Failure::lost(peer, "accepted, but is no `uiw serve`"))?;
            let open = RemoteMr { addr: reply.addr, rkey: STag(reply.rkey), len: reply.len as usize };
            let source = Source::new(what, index << FLOW_SHIFT, local, open);
            Ok(Self { link, plan, index, source, back, ring, ring_size, answers: 0, stats: None })
        })
    }

    /// The connection of a completion.
    pub(crate) fn index_of(wc: &Wc) -> usize {
        ((wc.wr_id & !RECV) >> FLOW_SHIFT) as usize
    }

    /// Posts one message of a ping-pong.
    pub(crate) fn ping(&mut self) -> Result<()> {
        let source = &mut self.source;
        let seq = source.posted;
        let size = self.plan.size as usize;
        let one_way = matches!(self.plan.op, Op::Write | Op::WriteImm | Op::Send);
        if self.plan.op == Op::Write {
            // The server looks at the last byte.
            source.local.write(size - 1, &[(seq + 1) as u8])?;
        }
        let (sge, flags) = if one_way {
            inline(&source.local, source.sges[0], 0, size)
        } else {
            (source.sges[0], SendFlags::empty())
        };
        let wr_id = self.index << FLOW_SHIFT | seq & SEQ;
        post(&self.link.qp, wr_id, source.op(seq, 0), &[sge], SendFlags::SIGNALED | flags)?;
        source.posted += 1;
        Ok(())
    }

    /// Returns whether the answer to the last ping has arrived, by the contents of memory (Write
    /// only).
    pub(crate) fn written_back(&self) -> Result<bool> {
        let Some(back) = &self.back else { return Ok(false) };
        let mut last = [0u8];
        back.read(self.plan.size as usize - 1, &mut last)?;
        Ok(last[0] == self.source.posted as u8)
    }

    /// A completion of this connection. True when it is that of the empty Send.
    pub(crate) fn completion(&mut self, wc: &Wc) -> Result<bool> {
        if wc.status != WcStatus::Success {
            return Err(self.link.failure(wc));
        }
        let seq = wc.wr_id & SEQ;
        if wc.wr_id & RECV != 0 {
            self.received(seq, wc)?;
            return Ok(false);
        }
        if seq == MARK {
            self.source.finish(self.source.posted)?;
            return Ok(true);
        }
        self.source.finish(seq + 1)?;
        Ok(false)
    }

    fn received(&mut self, slot: u64, wc: &Wc) -> Result<()> {
        if self.plan.latency && self.answers < self.source.posted && self.plan.op.takes_receives() {
            self.answers += 1;
        } else {
            let mut bytes = vec![0; (wc.byte_len as usize).min(self.ring_size)];
            self.ring.read(slot as usize * self.ring_size, &mut bytes)?;
            let stats = serde_json::from_slice(&bytes)
                .map_err(|_| Failure::lost(self.link.peer(), "sent no statistics where they were due"))?;
            self.stats = Some(stats);
        }
        let receive = (self.index << FLOW_SHIFT | slot, Some(slot_of(&self.ring, slot, self.ring_size)));
        post_recvs(&self.link.qp, [receive])
    }

    /// Asks for statistics: everything before has arrived when they come.
    pub(crate) fn ask(&mut self) -> Result<()> {
        self.stats = None;
        post(&self.link.qp, self.index << FLOW_SHIFT | MARK, SendOp::Send, &[], SendFlags::SIGNALED)
    }

    /// Place of the written bytes at the peer, to be read back: slot by slot, with the
    /// last message of each.
    pub(crate) fn read_back(&mut self, mut wait: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        let messages = self.source.posted;
        let slots = u64::from(self.plan.slots()).min(messages);
        let size = self.plan.size as usize;
        for slot in 0..slots {
            let start = slot as usize * size;
            self.source.local.write(start, &vec![0; size])?;
            let remote = at(self.source.open, start as u64);
            let op = SendOp::Read { remote, invalidate: None };
            let sge = self.source.sges[slot as usize];
            post(&self.link.qp, self.index << FLOW_SHIFT | MARK, op, &[sge], SendFlags::SIGNALED)?;
            wait(self)?;
            let expected = pattern::message(last_of(slot, slots, messages), size);
            self.source.wrong += u64::from(self.source.local.differs(start, &expected)?.is_some());
        }
        Ok(())
    }
}

/// The last of `messages` that went to `slot`.
pub(super) fn last_of(slot: u64, slots: u64, messages: u64) -> u64 {
    (messages - 1 - slot) / slots * slots + slot
}

pub(super) fn slot_of(ring: &Buffer, slot: u64, size: usize) -> Sge {
    let start = slot as usize * size;
    ring.sge(start..start + size)
}

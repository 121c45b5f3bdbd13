//! One connection of a measurement: its requests and their completions.

use super::pattern;
use super::plan::MeasurementPlan;
use super::source::MessageSource;
use crate::serve::perf::inline;
use crate::shared::fail::{Failure, Result};
use crate::shared::memory::{Buffer, remote_at};
use crate::shared::qp_setup::{Link, PendingQp, QueueDepths, RECV, WaitLimits, post, post_recvs};
use crate::shared::service::{PerfOp, PerfReply, Service, Stats};
use std::net::SocketAddr;
use std::sync::Arc;
use uiw::raw::{Access, Cq, Device, Pd, RemoteMr, STag, SendFlags, SendOp, Wc, WcStatus};

/// The bits of a request's number from this one on are the index of the connection.
pub(super) const FLOW_SHIFT: u32 = 40;
const SEQ: u64 = (1 << FLOW_SHIFT) - 1;
/// Number of an empty Send, which asks for statistics, and of a Read of [`FlowState::read_back`].
pub(super) const MARK: u64 = SEQ;
/// Maximum length of a statistics message, in bytes.
pub(super) const STATS_LEN: usize = 512;
/// Number of receives for statistics and answers.
pub(super) const RECVS: u64 = 4;

/// Reads the statistics that a server has sent.
pub(super) fn read_stats(link: &Link, received: &Buffer, wc: &Wc) -> Result<Stats> {
    let mut bytes = vec![0; (wc.byte_len as usize).min(STATS_LEN)];
    received.read(0, &mut bytes)?;
    serde_json::from_slice(&bytes)
        .map_err(|_| Failure::lost(link.peer(), "sent no statistics where they were due"))
}

/// The client's end of one connection.
pub(crate) struct FlowState {
    pub(crate) link: Link,
    plan: MeasurementPlan,
    index: u64,
    pub(crate) source: MessageSource,
    /// Memory where answers to Writes arrive.
    answers_memory: Option<Buffer>,
    /// Memory of all receives. Statistics, and answers of a ping-pong, arrive one at a time.
    received: Buffer,
    /// Number of answers received in a ping-pong.
    pub(crate) answers: u64,
    pub(crate) stats: Option<Stats>,
}

impl FlowState {
    /// Begins to connect. The returned function waits until the connection is established.
    pub(crate) fn connect(
        device: &Device,
        pd: &Pd,
        cq: &Arc<Cq>,
        index: u64,
        peer: SocketAddr,
        plan: &MeasurementPlan,
    ) -> Result<impl FnOnce() -> Result<Self> + use<>> {
        let size = plan.size as usize;
        let stream = plan.messages();
        let local = Buffer::exclusive(pd, stream.memory())?;
        let answers_memory = match plan.op {
            PerfOp::Write | PerfOp::WriteImm if plan.latency => {
                Some(Buffer::shared(pd, size, Access::REMOTE_WRITE)?)
            }
            _ => None,
        };
        let received_len =
            if plan.latency && plan.op == PerfOp::Send { size.max(STATS_LEN) } else { STATS_LEN };
        let received = Buffer::shared(pd, received_len, Access::empty())?;
        let pending =
            PendingQp::with_cq(device, pd, cq, &QueueDepths::new(plan.depth + 4, RECVS as u32))?;
        let receive = |slot: u64| (index << FLOW_SHIFT | slot, Some(received.whole()));
        post_recvs(&pending.qp, &(0..RECVS).map(receive).collect::<Vec<_>>())?;
        let back_at =
            answers_memory.as_ref().map(|back| (back.remote().addr, back.remote().rkey.0));
        let order = Service::Perf(plan.order(back_at, None));
        let connecting =
            pending.begin(peer, &plan.peer_options.options(), &order.private_data())?;
        let plan = plan.clone();
        Ok(move || {
            let link = connecting.finish(WaitLimits::NEVER)?;
            let reply: PerfReply = serde_json::from_slice(&link.info.private_data)
                .map_err(|_| Failure::lost(peer, "accepted, but is no `uiw serve`"))?;
            let peer_memory =
                RemoteMr { addr: reply.addr, rkey: STag(reply.rkey), len: reply.len as usize };
            let source = MessageSource::new(stream, index << FLOW_SHIFT, local, peer_memory);
            Ok(Self {
                link,
                plan,
                index,
                source,
                answers_memory,
                received,
                answers: 0,
                stats: None,
            })
        })
    }

    /// Returns the index of the connection to which a completion belongs.
    pub(crate) fn index_of(wc: &Wc) -> usize {
        ((wc.wr_id & !RECV) >> FLOW_SHIFT) as usize
    }

    /// Posts one message of a ping-pong.
    pub(crate) fn ping(&mut self) -> Result<()> {
        let source = &mut self.source;
        let seq = source.posted;
        let size = self.plan.size as usize;
        let one_way = matches!(self.plan.op, PerfOp::Write | PerfOp::WriteImm | PerfOp::Send);
        if self.plan.validate {
            source.fill(1)?;
        }
        if self.plan.op == PerfOp::Write {
            // The server polls the last byte.
            source.local.write(size - 1, &[(seq + 1) as u8])?;
        }
        let (sge, flags) = if one_way {
            inline(&source.local, source.sges[0], 0, size)
        } else {
            (source.sges[0], SendFlags::empty())
        };
        let wr_id = self.index << FLOW_SHIFT | seq & SEQ;
        post(&self.link.qp, wr_id, source.operation(seq, 0), &[sge], SendFlags::SIGNALED | flags)?;
        source.posted += 1;
        Ok(())
    }

    /// Returns whether the answer to the last ping has arrived in memory (Write only).
    pub(crate) fn is_answer_written(&self) -> Result<bool> {
        let Some(back) = &self.answers_memory else { return Ok(false) };
        let mut last = [0u8];
        back.read(self.plan.size as usize - 1, &mut last)?;
        Ok(last[0] == self.source.posted as u8)
    }

    /// Handles a completion of this connection. Returns true if it has the number [`MARK`].
    pub(crate) fn on_completion(&mut self, wc: &Wc) -> Result<bool> {
        if wc.status != WcStatus::Success {
            return Err(self.link.failure(wc));
        }
        let seq = wc.wr_id & SEQ;
        if wc.wr_id & RECV != 0 {
            self.on_receive(seq, wc)?;
            return Ok(false);
        }
        if seq == MARK {
            self.source.complete_until(self.source.posted)?;
            return Ok(true);
        }
        self.source.complete_until(seq + 1)?;
        Ok(false)
    }

    fn on_receive(&mut self, slot: u64, wc: &Wc) -> Result<()> {
        if self.plan.latency && self.answers < self.source.posted && self.plan.op.takes_receives() {
            if self.plan.validate {
                // The answer to a Send is the message itself.
                let expected = pattern::message(self.answers, self.plan.size as usize);
                let is_right = wc.byte_len == self.plan.size
                    && self.received.first_difference(0, &expected)?.is_none();
                self.source.wrong += u64::from(!is_right);
            }
            self.answers += 1;
        } else {
            self.stats = Some(read_stats(&self.link, &self.received, wc)?);
        }
        let receive = (self.index << FLOW_SHIFT | slot, Some(self.received.whole()));
        post_recvs(&self.link.qp, &[receive])
    }

    /// Asks for statistics. When they arrive, everything posted before has arrived at the server.
    pub(crate) fn request_stats(&mut self) -> Result<()> {
        self.stats = None;
        post(&self.link.qp, self.index << FLOW_SHIFT | MARK, SendOp::Send, &[], SendFlags::SIGNALED)
    }

    /// Reads back the bytes written to the peer and compares each slot with the last message
    /// written to it. `wait` waits for a completion.
    pub(crate) fn read_back(
        &mut self,
        mut wait: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let messages = self.source.posted;
        let slots = u64::from(self.plan.slots()).min(messages);
        let size = self.plan.size as usize;
        for slot in 0..slots {
            let start = slot as usize * size;
            self.source.local.write(start, &vec![0; size])?;
            let remote = remote_at(self.source.peer_memory, start as u64);
            let op = SendOp::Read { remote, invalidate: None };
            let sge = self.source.sges[slot as usize];
            post(&self.link.qp, self.index << FLOW_SHIFT | MARK, op, &[sge], SendFlags::SIGNALED)?;
            wait(self)?;
            let expected = pattern::message(last_of(slot, slots, messages), size);
            self.source.wrong +=
                u64::from(self.source.local.first_difference(start, &expected)?.is_some());
        }
        Ok(())
    }
}

/// Returns the number of the last one of `messages` messages that went to `slot`.
pub(super) fn last_of(slot: u64, slots: u64, messages: u64) -> u64 {
    (messages - 1 - slot) / slots * slots + slot
}

//! One connection of a measurement: what it posts, and what it makes of completions.

use super::pattern;
use super::plan::Plan;
use crate::fail::{Failure, Result};
use crate::link::{Depths, Half, Link, RECV, post, post_recvs};
use crate::memory::{Buffer, at};
use crate::serve::perf::inline;
use crate::service::{Op, PerfReply, Service, Stats};
use std::net::SocketAddr;
use std::sync::Arc;
use verbs::{Access, Cq, Device, Pd, RemoteMr, SendFlags, SendOp, SendWr, Sge, Wc, WcStatus};

/// In a request's number: the connection.
const LANE_SHIFT: u32 = 40;
const SEQ: u64 = (1 << LANE_SHIFT) - 1;
/// The number of an empty Send.
const MARK: u64 = SEQ;
/// Octets of a statistics message at most.
const STATS_LEN: usize = 512;
/// Receives for statistics and answers.
const RECVS: u64 = 4;

/// The client's end of one connection.
pub(crate) struct Lane {
    pub(crate) link: Link,
    plan: Plan,
    index: u64,
    /// What is sent, or where Reads and old values go; one part a slot.
    local: Buffer,
    sges: Vec<Sge>,
    open: RemoteMr,
    /// Where answers to Writes arrive.
    back: Option<Buffer>,
    ring: Buffer,
    ring_size: usize,
    /// Messages posted.
    pub(crate) posted: u64,
    /// Messages that are known to be done.
    pub(crate) done: u64,
    /// Messages that came back wrong.
    pub(crate) wrong: u64,
    /// Answers of a ping-pong.
    pub(crate) answers: u64,
    pub(crate) stats: Option<Stats>,
}

impl Lane {
    pub(crate) fn connect(
        device: &Device,
        pd: &Pd,
        cq: &Arc<Cq>,
        index: u64,
        peer: SocketAddr,
        plan: &Plan,
    ) -> Result<Self> {
        let size = plan.size as usize;
        let slots = plan.slots() as usize;
        let local = Buffer::exclusive(pd, size * slots)?;
        let back = match plan.op {
            Op::Write | Op::WriteImm if plan.latency => Some(Buffer::shared(pd, size, Access::REMOTE_WRITE)?),
            _ => None,
        };
        let ring_size = if plan.latency && plan.op == Op::Send { size.max(STATS_LEN) } else { STATS_LEN };
        let ring = Buffer::exclusive(pd, ring_size * RECVS as usize)?;
        let half = Half::on(device, pd, cq, &Depths::new(plan.depth + 4, RECVS as u32))?;
        let receive = |slot: u64| (index << LANE_SHIFT | slot, Some(slot_of(&ring, slot, ring_size)));
        post_recvs(&half.qp, (0..RECVS).map(receive))?;
        let back_at = back.as_ref().map(|back| (back.remote().addr, back.remote().rkey));
        let order = Service::Perf(plan.order(back_at));
        let link = half.connect(peer, &plan.wishes.options(), &order.private_data())?;
        let reply: PerfReply = serde_json::from_slice(&link.info.private_data)
            .map_err(|_| Failure::lost(peer, "accepted, but is no `uiw serve`"))?;
        let sges = (0..slots).map(|slot| local.sge(slot * size..(slot + 1) * size)).collect();
        let open = RemoteMr { addr: reply.addr, rkey: reply.rkey, len: reply.len };
        let plan = plan.clone();
        let (posted, done, wrong, answers) = (0, 0, 0, 0);
        let stats = None;
        Ok(Self {
            link,
            plan,
            index,
            local,
            sges,
            open,
            back,
            ring,
            ring_size,
            posted,
            done,
            wrong,
            answers,
            stats,
        })
    }

    /// The connection of a completion.
    pub(crate) fn index_of(wc: &Wc) -> usize {
        ((wc.wr_id & !RECV) >> LANE_SHIFT) as usize
    }

    /// Messages under way.
    pub(crate) fn in_flight(&self) -> u64 {
        self.posted - self.done
    }

    /// Posts `count` messages in one chain.
    pub(crate) fn post(&mut self, count: u32) -> Result<()> {
        if self.plan.validate {
            self.fill(count)?;
        }
        let first = self.posted;
        let every = u64::from(self.plan.signal_every);
        let wrs = (first..first + u64::from(count)).map(|seq| {
            let slot = (seq % self.sges.len() as u64) as usize;
            let signal = (seq + 1).is_multiple_of(every);
            SendWr {
                wr_id: self.index << LANE_SHIFT | seq & SEQ,
                op: self.op(seq, slot),
                sges: &self.sges[slot..=slot],
                flags: if signal { SendFlags::SIGNALED } else { SendFlags::empty() },
            }
        });
        // SAFETY: the elements lie in `local`, which lives as long as the queue pair; a slot of it is filled or looked at only
        // when no message under way names it, since no more than `depth` are; without validation nothing touches it at all.
        unsafe { self.link.qp.post_send(wrs) }?;
        self.posted += u64::from(count);
        Ok(())
    }

    /// Posts one message of a ping-pong.
    pub(crate) fn ping(&mut self) -> Result<()> {
        let seq = self.posted;
        let size = self.plan.size as usize;
        let one_way = matches!(self.plan.op, Op::Write | Op::WriteImm | Op::Send);
        if self.plan.op == Op::Write {
            // The server looks at the last octet.
            self.local.write(size - 1, &[(seq + 1) as u8])?;
        }
        let (sge, flags) = if one_way {
            inline(&self.local, self.sges[0], 0, size)
        } else {
            (self.sges[0], SendFlags::empty())
        };
        let wr_id = self.index << LANE_SHIFT | seq & SEQ;
        post(&self.link.qp, wr_id, self.op(seq, 0), &[sge], SendFlags::SIGNALED | flags)?;
        self.posted += 1;
        Ok(())
    }

    /// Whether the answer to the last ping is here, as memory tells (Write only).
    pub(crate) fn written_back(&self) -> Result<bool> {
        let Some(back) = &self.back else { return Ok(false) };
        let mut last = [0u8];
        back.read(self.plan.size as usize - 1, &mut last)?;
        Ok(last[0] == self.posted as u8)
    }

    fn op(&self, seq: u64, slot: usize) -> SendOp {
        let remote = at(self.open, slot as u64 * u64::from(self.plan.size));
        match self.plan.op {
            Op::Write => SendOp::Write { remote },
            Op::WriteImm => SendOp::WriteImm { remote, imm: seq as u32 },
            Op::Read => SendOp::Read { remote, invalidate: None },
            Op::Send => SendOp::Send,
            Op::FetchAdd => SendOp::FetchAdd { remote: at(self.open, 0), add: 1, mask: 0 },
            Op::CmpSwap => SendOp::CmpSwap {
                remote: at(self.open, 0),
                compare: seq,
                compare_mask: u64::MAX,
                swap: seq + 1,
                swap_mask: u64::MAX,
            },
        }
    }

    /// Puts the octets of the next messages into their slots, and clears where answers go.
    fn fill(&mut self, count: u32) -> Result<()> {
        let size = self.plan.size as usize;
        for seq in self.posted..self.posted + u64::from(count) {
            let start = (seq % self.sges.len() as u64) as usize * size;
            let octets = match self.plan.op {
                Op::Write | Op::WriteImm | Op::Send => pattern::message(seq, size),
                Op::Read => vec![0; size],
                Op::FetchAdd | Op::CmpSwap => vec![0xFF; size],
            };
            self.local.write(start, &octets)?;
        }
        Ok(())
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
            self.finish(self.posted)?;
            return Ok(true);
        }
        self.finish(seq + 1)?;
        Ok(false)
    }

    /// Messages up to `done` are done.
    fn finish(&mut self, done: u64) -> Result<()> {
        if self.plan.validate && matches!(self.plan.op, Op::Read | Op::FetchAdd | Op::CmpSwap) {
            for seq in self.done..done {
                self.look(seq)?;
            }
        }
        self.done = done;
        Ok(())
    }

    /// Checks what message `seq` brought.
    fn look(&mut self, seq: u64) -> Result<()> {
        let size = self.plan.size as usize;
        let slot = (seq % self.sges.len() as u64) as usize;
        let expected = match self.plan.op {
            Op::Read => pattern::message(slot as u64, size),
            // Each finds what the one before it left.
            _ => seq.to_ne_bytes().to_vec(),
        };
        self.wrong += u64::from(self.local.differs(slot * size, &expected)?.is_some());
        Ok(())
    }

    fn received(&mut self, slot: u64, wc: &Wc) -> Result<()> {
        if self.plan.latency && self.answers < self.posted && self.plan.op.takes_receives() {
            self.answers += 1;
        } else {
            let mut octets = vec![0; (wc.byte_len as usize).min(self.ring_size)];
            self.ring.read(slot as usize * self.ring_size, &mut octets)?;
            let stats = serde_json::from_slice(&octets)
                .map_err(|_| Failure::lost(self.link.peer(), "sent no statistics where they were due"))?;
            self.stats = Some(stats);
        }
        let receive = (self.index << LANE_SHIFT | slot, Some(slot_of(&self.ring, slot, self.ring_size)));
        post_recvs(&self.link.qp, [receive])
    }

    /// Asks for statistics: everything before has arrived when they come.
    pub(crate) fn ask(&mut self) -> Result<()> {
        self.stats = None;
        post(&self.link.qp, self.index << LANE_SHIFT | MARK, SendOp::Send, &[], SendFlags::SIGNALED)
    }

    /// Where the octets that were written lie at the peer, to be read back: slot by slot, with the last message of each.
    pub(crate) fn read_back(&mut self, mut wait: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        let slots = (self.sges.len() as u64).min(self.posted);
        let messages = self.posted;
        let size = self.plan.size as usize;
        for slot in 0..slots {
            self.local.write(slot as usize * size, &vec![0; size])?;
            let remote = at(self.open, slot * size as u64);
            let op = SendOp::Read { remote, invalidate: None };
            let sge = self.sges[slot as usize];
            post(&self.link.qp, self.index << LANE_SHIFT | MARK, op, &[sge], SendFlags::SIGNALED)?;
            wait(self)?;
            let last = (messages - 1 - slot) / slots * slots + slot;
            let expected = pattern::message(last, size);
            self.wrong += u64::from(self.local.differs(slot as usize * size, &expected)?.is_some());
        }
        Ok(())
    }
}

fn slot_of(ring: &Buffer, slot: u64, size: usize) -> Sge {
    let start = slot as usize * size;
    ring.sge(start..start + size)
}

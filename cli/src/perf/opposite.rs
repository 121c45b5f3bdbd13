//! The client's end of a connection on which the server posts.

use super::flow_state::{FLOW_SHIFT, MARK, RECVS, STATS_LEN, last_of, slot_of};
use super::pattern;
use super::plan::Plan;
use crate::shared::fail::{Failure, Result};
use crate::shared::memory::Buffer;
use crate::shared::qp_setup::{Depths, Link, PendingQp, RECV, WaitLimits, post, post_recvs, send_copy};
use crate::shared::service::{Op, OppositeTraffic, Service, Stats};
use std::net::SocketAddr;
use std::sync::Arc;
use uiw::raw::{Access, Cq, Device, Pd, SendFlags, SendOp, Wc, WcStatus};

/// A connection in the opposite direction.
pub(crate) struct OppositeFlow {
    pub(crate) link: Link,
    plan: Plan,
    index: u64,
    /// What the server writes and reads.
    open: Buffer,
    ring: Buffer,
    /// The server's last word; none while it is awaited.
    pub(crate) stats: Option<Stats>,
}

impl OppositeFlow {
    /// Requests in its queue, and completions of it, at most.
    pub(crate) const DEPTH: u32 = 4 + RECVS as u32;

    /// Begins to connect; what is returned waits for the end of it.
    pub(crate) fn connect(
        device: &Device,
        pd: &Pd,
        cq: &Arc<Cq>,
        index: u64,
        peer: SocketAddr,
        plan: &Plan,
    ) -> Result<impl FnOnce() -> Result<Self> + use<>> {
        let what = plan.messages();
        let size = plan.size as usize;
        let open = Buffer::shared(pd, what.memory(), Access::REMOTE_WRITE | Access::REMOTE_READ)?;
        if plan.validate && plan.op == Op::Read {
            for slot in 0..what.slots as usize {
                open.write(slot * size, &pattern::message(slot as u64, size))?;
            }
        }
        let ring = Buffer::exclusive(pd, STATS_LEN * RECVS as usize)?;
        let half = PendingQp::on(device, pd, cq, &Depths::new(4, RECVS as u32))?;
        let receive = |slot: u64| (index << FLOW_SHIFT | slot, Some(slot_of(&ring, slot, STATS_LEN)));
        post_recvs(&half.qp, (0..RECVS).map(receive))?;
        let back = open.remote();
        let opposite = OppositeTraffic {
            chain: plan.chain,
            signal_every: plan.signal_every,
            iterations: plan.iterations,
        };
        let order = Service::Perf(plan.order(Some((back.addr, back.rkey.0)), Some(opposite)));
        let connecting = half.begin(peer, &plan.peer_options.options(), &order.private_data())?;
        let plan = plan.clone();
        Ok(move || {
            Ok(Self { link: connecting.finish(WaitLimits::NEVER)?, plan, index, open, ring, stats: None })
        })
    }

    /// Asks for statistics; while the server posts they come when it has ended.
    pub(crate) fn ask(&mut self) -> Result<()> {
        self.stats = None;
        post(&self.link.qp, self.index << FLOW_SHIFT | MARK, SendOp::Send, &[], SendFlags::SIGNALED)
    }

    /// Lets the server begin. Its statistics are awaited from now on.
    pub(crate) fn go(&mut self) -> Result<()> {
        send_copy(&self.link.qp, self.index << FLOW_SHIFT | MARK, &[OppositeTraffic::GO])?;
        self.ask()
    }

    /// Lets the server end, if it has not.
    pub(crate) fn stop(&mut self) -> Result<()> {
        match self.stats {
            Some(_) => Ok(()),
            None => send_copy(&self.link.qp, self.index << FLOW_SHIFT | MARK, &[OppositeTraffic::STOP]),
        }
    }

    /// A completion of this connection.
    pub(crate) fn completion(&mut self, wc: &Wc) -> Result<()> {
        if wc.status != WcStatus::Success {
            return Err(self.link.failure(wc));
        }
        if wc.wr_id & RECV == 0 {
            return Ok(());
        }
        let slot = wc.wr_id & !RECV & ((1 << FLOW_SHIFT) - 1);
        let mut bytes = vec![0; (wc.byte_len as usize).min(STATS_LEN)];
        self.ring.read(slot as usize * STATS_LEN, &mut bytes)?;
        let stats = serde_json::from_slice(&bytes)
            .map_err(|_| Failure::lost(self.link.peer(), "sent no statistics where they were due"))?;
        self.stats = Some(stats);
        let receive = (self.index << FLOW_SHIFT | slot, Some(slot_of(&self.ring, slot, STATS_LEN)));
        post_recvs(&self.link.qp, [receive])
    }

    /// Messages that the server has posted.
    pub(crate) fn messages(&self) -> u64 {
        self.stats.map_or(0, |stats| stats.messages)
    }

    /// Messages that were wrong: those that the server found so, and slots of our memory whose last
    /// one is not there.
    pub(crate) fn wrong(&self) -> Result<u64> {
        let mut wrong = self.stats.map_or(0, |stats| stats.wrong);
        if self.plan.op == Op::Write {
            let size = self.plan.size as usize;
            let slots = u64::from(self.plan.slots()).min(self.messages());
            for slot in 0..slots {
                let expected = pattern::message(last_of(slot, slots, self.messages()), size);
                wrong += u64::from(self.open.differs(slot as usize * size, &expected)?.is_some());
            }
        }
        Ok(wrong)
    }
}

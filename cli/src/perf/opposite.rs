//! The client's end of a connection on which the server posts.

use super::flow_state::{FLOW_SHIFT, MARK, RECVS, STATS_LEN, last_of};
use super::pattern;
use super::plan::MeasurementPlan;
use crate::shared::fail::{Failure, Result};
use crate::shared::memory::Buffer;
use crate::shared::qp_setup::{Link, PendingQp, QueueDepths, RECV, WaitLimits, post, post_recvs, send_copy};
use crate::shared::service::{OppositeTraffic, PerfOp, Service, Stats};
use std::net::SocketAddr;
use std::sync::Arc;
use uiw::raw::{Access, Cq, Device, Pd, SendFlags, SendOp, Wc, WcStatus};

/// A connection in the opposite direction.
pub(crate) struct OppositeFlow {
    pub(crate) link: Link,
    plan: MeasurementPlan,
    index: u64,
    /// Memory that the server writes and reads.
    exposed: Buffer,
    /// Memory of all receives.
    received: Buffer,
    /// Statistics of the server; `None` while they are awaited.
    pub(crate) stats: Option<Stats>,
}

impl OppositeFlow {
    /// Maximum number of requests and receives in the queues.
    pub(crate) const DEPTH: u32 = 4 + RECVS as u32;

    /// Begins to connect. The returned function waits until the connection is established.
    pub(crate) fn connect(
        device: &Device,
        pd: &Pd,
        cq: &Arc<Cq>,
        index: u64,
        peer: SocketAddr,
        plan: &MeasurementPlan,
    ) -> Result<impl FnOnce() -> Result<Self> + use<>> {
        let stream = plan.messages();
        let size = plan.size as usize;
        let exposed = Buffer::shared(pd, stream.memory(), Access::REMOTE_WRITE | Access::REMOTE_READ)?;
        if plan.validate && plan.op == PerfOp::Read {
            for slot in 0..stream.slots as usize {
                exposed.write(slot * size, &pattern::message(slot as u64, size))?;
            }
        }
        let received = Buffer::shared(pd, STATS_LEN, Access::empty())?;
        let pending = PendingQp::with_cq(device, pd, cq, &QueueDepths::new(4, RECVS as u32))?;
        let receive = |slot: u64| (index << FLOW_SHIFT | slot, Some(received.whole()));
        post_recvs(&pending.qp, (0..RECVS).map(receive))?;
        let back = exposed.remote();
        let opposite = OppositeTraffic {
            chain: plan.chain,
            signal_every: plan.signal_every,
            iterations: plan.iterations,
        };
        let order = Service::Perf(plan.order(Some((back.addr, back.rkey.0)), Some(opposite)));
        let connecting = pending.begin(peer, &plan.peer_options.options(), &order.private_data())?;
        let plan = plan.clone();
        Ok(move || {
            Ok(Self {
                link: connecting.finish(WaitLimits::NEVER)?,
                plan,
                index,
                exposed,
                received,
                stats: None,
            })
        })
    }

    /// Asks for statistics. While the server posts, it answers only when it has ended.
    pub(crate) fn request_stats(&mut self) -> Result<()> {
        self.stats = None;
        post(&self.link.qp, self.index << FLOW_SHIFT | MARK, SendOp::Send, &[], SendFlags::SIGNALED)
    }

    /// Tells the server to begin, and asks for its statistics.
    pub(crate) fn start_server(&mut self) -> Result<()> {
        send_copy(&self.link.qp, self.index << FLOW_SHIFT | MARK, &[OppositeTraffic::GO])?;
        self.request_stats()
    }

    /// Tells the server to end, unless it has ended already.
    pub(crate) fn stop_server(&mut self) -> Result<()> {
        match self.stats {
            Some(_) => Ok(()),
            None => send_copy(&self.link.qp, self.index << FLOW_SHIFT | MARK, &[OppositeTraffic::STOP]),
        }
    }

    /// Handles a completion of this connection.
    pub(crate) fn on_completion(&mut self, wc: &Wc) -> Result<()> {
        if wc.status != WcStatus::Success {
            return Err(self.link.failure(wc));
        }
        if wc.wr_id & RECV == 0 {
            return Ok(());
        }
        let slot = wc.wr_id & !RECV & ((1 << FLOW_SHIFT) - 1);
        let mut bytes = vec![0; (wc.byte_len as usize).min(STATS_LEN)];
        self.received.read(0, &mut bytes)?;
        let stats = serde_json::from_slice(&bytes)
            .map_err(|_| Failure::lost(self.link.peer(), "sent no statistics where they were due"))?;
        self.stats = Some(stats);
        let receive = (self.index << FLOW_SHIFT | slot, Some(self.received.whole()));
        post_recvs(&self.link.qp, [receive])
    }

    /// Returns the number of messages that the server has posted.
    pub(crate) fn messages(&self) -> u64 {
        self.stats.map_or(0, |stats| stats.messages)
    }

    /// Returns the number of wrong messages: those that the server found, and slots of our memory
    /// that do not contain the last message written to them.
    pub(crate) fn wrong(&self) -> Result<u64> {
        let mut wrong = self.stats.map_or(0, |stats| stats.wrong);
        if self.plan.op == PerfOp::Write {
            let size = self.plan.size as usize;
            let slots = u64::from(self.plan.slots()).min(self.messages());
            for slot in 0..slots {
                let expected = pattern::message(last_of(slot, slots, self.messages()), size);
                wrong += u64::from(self.exposed.first_difference(slot as usize * size, &expected)?.is_some());
            }
        }
        Ok(wrong)
    }
}

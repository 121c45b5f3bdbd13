//! The client's end of connections on which the server posts.

use super::flow_state::{FLOW_SHIFT, FlowState, MARK, RECVS, STATS_LEN, last_of, read_stats};
use super::pattern;
use super::plan::{END_TIMEOUT, MeasurementPlan};
use crate::shared::fail::{Failure, Result};
use crate::shared::memory::Buffer;
use crate::shared::qp_setup::{
    Link, PendingQp, QueueDepths, RECV, WaitLimits, completions, cq_options, post, post_recvs,
    send_copy,
};
use crate::shared::service::{OppositeTraffic, PerfOp, Service, Stats};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use uiw::raw::{Access, Cq, Device, Pd, SendFlags, SendOp, Wc, WcStatus};

/// The opposite direction of a measurement, which has a thread of its own, as with raw TCP.
pub(crate) struct OppositeDirection {
    device: Device,
    cq: Arc<Cq>,
    plan: MeasurementPlan,
    flows: Vec<OppositeFlow>,
    batch: Vec<Wc>,
}

impl OppositeDirection {
    /// Begins to connect. The returned function waits until all connections are established.
    pub(crate) fn connect(
        device: &Device,
        pd: &Pd,
        peer: SocketAddr,
        plan: &MeasurementPlan,
    ) -> Result<impl FnOnce() -> Result<Self> + use<>> {
        let cq = device.create_cq(plan.connections * OppositeFlow::DEPTH, cq_options())?;
        let flows = (0..u64::from(plan.connections))
            .map(|index| OppositeFlow::connect(device, pd, &cq, index, peer, plan))
            .collect::<Result<Vec<_>>>()?;
        let (device, plan) = (device.clone(), plan.clone());
        Ok(move || {
            let flows = flows.into_iter().map(|finish| finish()).collect::<Result<_>>()?;
            Ok(Self { device, cq, plan, flows, batch: Vec::with_capacity(64) })
        })
    }

    /// Waits until every server has answered.
    pub(crate) fn synchronize(&mut self) -> Result<()> {
        self.flows.iter_mut().try_for_each(OppositeFlow::request_stats)?;
        self.finish()
    }

    /// Lets the servers post for the time of the plan, or until they have posted all messages.
    pub(crate) fn run(&mut self) -> Result<()> {
        let end = Instant::now() + self.plan.time;
        self.flows.iter_mut().try_for_each(OppositeFlow::start_server)?;
        while self.is_running() && self.take_completions(end)? > 0 {}
        self.flows.iter_mut().try_for_each(OppositeFlow::stop_server)?;
        self.finish()
    }

    /// Waits for the statistics of all servers.
    fn finish(&mut self) -> Result<()> {
        let deadline = Instant::now() + END_TIMEOUT;
        while self.is_running() {
            if self.take_completions(deadline)? == 0 {
                return Err(Failure::lost(
                    self.flows[0].link.peer(),
                    "did not finish the run in a minute",
                ));
            }
        }
        Ok(())
    }

    fn is_running(&self) -> bool {
        self.flows.iter().any(|flow| flow.stats.is_none())
    }

    /// Takes completions, waiting for the first one until `end`. Returns their number.
    fn take_completions(&mut self, end: Instant) -> Result<usize> {
        let Self { device, cq, plan, flows, batch } = self;
        let taken =
            completions(device, cq, plan.wait, WaitLimits::deadline(end), 64, |wc| batch.push(wc));
        for wc in batch.drain(..) {
            flows[FlowState::index_of(&wc)].on_completion(&wc)?;
        }
        Ok(taken)
    }

    /// Returns the number of messages that the servers have posted.
    pub(crate) fn messages(&self) -> u64 {
        self.flows.iter().map(OppositeFlow::messages).sum()
    }

    /// Checks the bytes of all messages.
    pub(crate) fn verify(&self) -> Result<()> {
        for flow in &self.flows {
            let wrong = flow.wrong()?;
            if wrong > 0 {
                let why =
                    format!("{wrong} of {} messages from there had wrong bytes", flow.messages());
                return Err(Failure::differs(flow.link.peer(), why));
            }
        }
        Ok(())
    }

    pub(crate) fn into_links(self) -> impl Iterator<Item = Link> {
        self.flows.into_iter().map(|flow| flow.link)
    }
}

/// A connection in the opposite direction.
struct OppositeFlow {
    link: Link,
    plan: MeasurementPlan,
    index: u64,
    /// Memory that the server writes and reads.
    exposed: Buffer,
    /// Memory of all receives.
    received: Buffer,
    /// Statistics of the server; `None` while they are awaited.
    stats: Option<Stats>,
}

impl OppositeFlow {
    /// Maximum number of requests and receives in the queues.
    const DEPTH: u32 = 4 + RECVS as u32;

    /// Begins to connect. The returned function waits until the connection is established.
    fn connect(
        device: &Device,
        pd: &Pd,
        cq: &Arc<Cq>,
        index: u64,
        peer: SocketAddr,
        plan: &MeasurementPlan,
    ) -> Result<impl FnOnce() -> Result<Self> + use<>> {
        let stream = plan.messages();
        let size = plan.size as usize;
        let exposed =
            Buffer::shared(pd, stream.memory(), Access::REMOTE_WRITE | Access::REMOTE_READ)?;
        if plan.validate && plan.op == PerfOp::Read {
            for slot in 0..stream.slots as usize {
                exposed.write(slot * size, &pattern::message(slot as u64, size))?;
            }
        }
        let received = Buffer::shared(pd, STATS_LEN, Access::empty())?;
        let pending = PendingQp::with_cq(device, pd, cq, &QueueDepths::new(4, RECVS as u32))?;
        let receive = |slot: u64| (index << FLOW_SHIFT | slot, Some(received.whole()));
        post_recvs(&pending.qp, &(0..RECVS).map(receive).collect::<Vec<_>>())?;
        let back = exposed.remote();
        let opposite = OppositeTraffic {
            chain: plan.chain,
            signal_every: plan.signal_every,
            iterations: plan.iterations,
        };
        let order = Service::Perf(plan.order(Some((back.addr, back.rkey.0)), Some(opposite)));
        let connecting =
            pending.begin(peer, &plan.peer_options.options(), &order.private_data())?;
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
    fn request_stats(&mut self) -> Result<()> {
        self.stats = None;
        post(&self.link.qp, self.index << FLOW_SHIFT | MARK, SendOp::Send, &[], SendFlags::SIGNALED)
    }

    /// Tells the server to begin, and asks for its statistics.
    fn start_server(&mut self) -> Result<()> {
        send_copy(&self.link.qp, self.index << FLOW_SHIFT | MARK, &[OppositeTraffic::GO])?;
        self.request_stats()
    }

    /// Tells the server to end, unless it has ended already.
    fn stop_server(&mut self) -> Result<()> {
        match self.stats {
            Some(_) => Ok(()),
            None => {
                send_copy(&self.link.qp, self.index << FLOW_SHIFT | MARK, &[OppositeTraffic::STOP])
            }
        }
    }

    /// Handles a completion of this connection.
    fn on_completion(&mut self, wc: &Wc) -> Result<()> {
        if wc.status != WcStatus::Success {
            return Err(self.link.failure(wc));
        }
        if wc.wr_id & RECV == 0 {
            return Ok(());
        }
        let slot = wc.wr_id & !RECV & ((1 << FLOW_SHIFT) - 1);
        self.stats = Some(read_stats(&self.link, &self.received, wc)?);
        let receive = (self.index << FLOW_SHIFT | slot, Some(self.received.whole()));
        post_recvs(&self.link.qp, &[receive])
    }

    /// Returns the number of messages that the server has posted.
    fn messages(&self) -> u64 {
        self.stats.map_or(0, |stats| stats.messages)
    }

    /// Returns the number of wrong messages: those that the server found, and slots of our memory
    /// that do not contain the last message written to them.
    fn wrong(&self) -> Result<u64> {
        let mut wrong = self.stats.map_or(0, |stats| stats.wrong);
        if self.plan.op == PerfOp::Write {
            let size = self.plan.size as usize;
            let slots = u64::from(self.plan.slots()).min(self.messages());
            for slot in 0..slots {
                let expected = pattern::message(last_of(slot, slots, self.messages()), size);
                wrong += u64::from(
                    self.exposed.first_difference(slot as usize * size, &expected)?.is_some(),
                );
            }
        }
        Ok(wrong)
    }
}

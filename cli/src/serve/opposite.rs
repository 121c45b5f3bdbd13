//! Server end of a connection on which the server posts, for `uiw perf --bidirectional`.

use super::Server;
use crate::perf::raw::cpu_ns;
use crate::perf::source::{MessageSource, MessageStream};
use crate::shared::fail::{Failure, Result};
use crate::shared::memory::Buffer;
use crate::shared::qp_setup::{
    Link, PendingQp, QueueDepths, RECV, WaitLimits, completions, post_recvs, send_copy_with,
};
use crate::shared::service::{OppositeTraffic, PerfOp, PerfOrder, PerfReply, Stats};
use uiw::raw::cm::ConnRequest;
use uiw::raw::{RemoteMr, STag, SendFlags, Wc};

/// Number of receives for messages of the client, which have at most one byte.
const RECVS: u64 = 4;
/// Work request ID of the Send with the statistics. Smaller IDs belong to the messages.
const STATS: u64 = 1 << 40;

/// Checks whether an order can be served. The error names the part that cannot.
pub(super) fn check(
    order: &PerfOrder,
    opposite: &OppositeTraffic,
) -> std::result::Result<(), String> {
    let of_depth = 1..=order.depth;
    if !matches!(order.op, PerfOp::Write | PerfOp::Read) || order.back.is_none() || order.latency {
        return Err(format!("asks for {} in the opposite direction", order.op));
    }
    if !of_depth.contains(&opposite.chain) || !of_depth.contains(&opposite.signal_every) {
        return Err(format!(
            "asks for chains of {}, one in {} signaled",
            opposite.chain, opposite.signal_every
        ));
    }
    Ok(())
}

pub(super) fn serve(
    server: &Server,
    request: ConnRequest,
    order: &PerfOrder,
    opposite: OppositeTraffic,
) -> Result<()> {
    let mut driver = OppositeDriver::new(server, request, order, opposite)?;
    while driver.step(server)? {}
    driver.link.close();
    Ok(())
}

struct OppositeDriver {
    link: Link,
    order: PerfOrder,
    source: MessageSource,
    ring: Buffer,
    limit: u64,
    is_running: bool,
    /// True if the client waits for statistics.
    is_asked: bool,
    batch: Vec<Wc>,
}

impl OppositeDriver {
    fn new(
        server: &Server,
        request: ConnRequest,
        order: &PerfOrder,
        opposite: OppositeTraffic,
    ) -> Result<Self> {
        let PerfOrder { op, size, slots, depth, validate, .. } = *order;
        let OppositeTraffic { chain, signal_every, iterations } = opposite;
        // Bytes can be verified only after their completion, so every message is signaled.
        let signal_every = if validate { 1 } else { signal_every };
        let stream = MessageStream { op, size, slots, depth, chain, signal_every, validate };
        let local = Buffer::exclusive(&server.pd, stream.memory())?;
        let ring = Buffer::exclusive(&server.pd, RECVS as usize)?;
        let pending =
            PendingQp::new(&server.device, &server.pd, &QueueDepths::new(depth + 4, RECVS as u32))?;
        let receive = |slot: u64| (slot, Some(ring.sge(slot as usize..slot as usize + 1)));
        post_recvs(&pending.qp, &(0..RECVS).map(receive).collect::<Vec<_>>())?;
        let reply = serde_json::to_vec(&PerfReply { addr: 0, rkey: 0, len: 0 }).unwrap_or_default();
        let options = order.peer_options.at(&server.peer_options.own).options();
        let link = pending.accept(request, &options, &reply, WaitLimits::stop(&server.stop))?;
        server.watch(&link);
        let (addr, rkey) = order.back.unwrap_or_default();
        let peer_memory = RemoteMr { addr, rkey: STag(rkey), len: stream.memory() };
        Ok(Self {
            link,
            order: order.clone(),
            source: MessageSource::new(stream, 0, local, peer_memory),
            ring,
            limit: iterations.unwrap_or(u64::MAX),
            is_running: false,
            is_asked: false,
            batch: Vec::with_capacity(64),
        })
    }

    /// Posts as many messages as fit, and handles completions. Returns false if the client has
    /// closed the connection in an orderly way, or if the server stops.
    fn step(&mut self, server: &Server) -> Result<bool> {
        if self.is_running {
            self.source.fill_up(&self.link.qp, self.limit)?;
            self.is_running = self.source.posted < self.limit;
        }
        if self.is_asked && !self.is_running && !self.source.awaits_completion() {
            self.answer()?;
        }
        let Self { link, batch, order, .. } = self;
        let until = WaitLimits::stop(&server.stop);
        completions(&link.device, &link.cq, order.wait, until, 64, |wc| batch.push(wc));
        let mut batch = std::mem::take(&mut self.batch);
        let mut goes_on = !batch.is_empty();
        for wc in batch.drain(..) {
            goes_on &= self.completion(&wc)?;
        }
        self.batch = batch;
        Ok(goes_on)
    }

    fn completion(&mut self, wc: &Wc) -> Result<bool> {
        if !self.link.goes_on(wc)? {
            return Ok(false);
        }
        if wc.wr_id & RECV == 0 {
            if wc.wr_id < STATS {
                self.source.complete_until(wc.wr_id + 1)?;
            }
            return Ok(true);
        }
        let slot = wc.wr_id & !RECV;
        let mut said = [0; 1];
        self.ring.read(slot as usize, &mut said)?;
        match (wc.byte_len, said[0]) {
            (0, _) => self.is_asked = true,
            (_, OppositeTraffic::GO) => self.is_running = self.source.posted < self.limit,
            (_, OppositeTraffic::STOP) => self.is_running = false,
            (_, other) => {
                return Err(Failure::lost(
                    self.link.peer(),
                    format!("sent the unknown command {other}"),
                ));
            }
        }
        post_recvs(
            &self.link.qp,
            &[(slot, Some(self.ring.sge(slot as usize..slot as usize + 1)))],
        )?;
        Ok(true)
    }

    /// Sends statistics after everything that was posted: a Send does not overtake a Write, and
    /// with the fence it does not overtake a Read.
    fn answer(&mut self) -> Result<()> {
        self.is_asked = false;
        let MessageSource { posted, wrong, .. } = self.source;
        let bytes = serde_json::to_vec(&Stats { cpu_ns: cpu_ns(), messages: posted, wrong })
            .unwrap_or_default();
        send_copy_with(&self.link.qp, STATS, &bytes, SendFlags::SIGNALED | SendFlags::FENCE)
    }
}

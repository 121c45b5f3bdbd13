//! The server's end of a connection on which it posts, for `uiw perf --bidirectional`.

use super::Server;
use crate::perf::raw::cpu_ns;
use crate::perf::source::{Messages, Source};
use crate::shared::fail::{Failure, Result};
use crate::shared::memory::Buffer;
use crate::shared::qp_setup::{Depths, Link, PendingQp, RECV, WaitLimits, completions, post, post_recvs};
use crate::shared::service::{Op, OppositeTraffic, PerfOrder, PerfReply, Stats};
use uiw::raw::cm::ConnRequest;
use uiw::raw::{RemoteMr, STag, SendFlags, SendOp, Wc, WcStatus};

/// Receives for what the client says, a byte each.
const RECVS: u64 = 4;
/// The number of an answer.
const STATS: u64 = 1 << 40;

/// What an order says that cannot be done.
pub(super) fn check(order: &PerfOrder, opposite: &OppositeTraffic) -> std::result::Result<(), String> {
    let of_depth = 1..=order.depth;
    if !matches!(order.op, Op::Write | Op::Read) || order.back.is_none() || order.latency {
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
    source: Source,
    ring: Buffer,
    limit: u64,
    is_running: bool,
    /// An answer is due.
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
        // What is looked at must be known to be there.
        let signal_every = if validate { 1 } else { signal_every };
        let what = Messages { op, size, slots, depth, chain, signal_every, validate };
        let local = Buffer::exclusive(&server.pd, what.memory())?;
        let ring = Buffer::exclusive(&server.pd, RECVS as usize)?;
        let half = PendingQp::new(&server.device, &server.pd, &Depths::new(depth + 4, RECVS as u32))?;
        post_recvs(
            &half.qp,
            (0..RECVS).map(|slot| (slot, Some(ring.sge(slot as usize..slot as usize + 1)))),
        )?;
        let reply = serde_json::to_vec(&PerfReply { addr: 0, rkey: 0, len: 0 }).unwrap_or_default();
        let options = order.peer_options.at(&server.peer_options.own).options();
        let link = half.accept(request, &options, &reply, WaitLimits::stop(&server.stop))?;
        server.watch(&link);
        let (addr, rkey) = order.back.unwrap_or_default();
        let open = RemoteMr { addr, rkey: STag(rkey), len: what.memory() };
        Ok(Self {
            link,
            order: order.clone(),
            source: Source::new(what, 0, local, open),
            ring,
            limit: iterations.unwrap_or(u64::MAX),
            is_running: false,
            is_asked: false,
            batch: Vec::with_capacity(64),
        })
    }

    /// Posts what there is room for, and takes completions. False when the client has closed in
    /// order.
    fn step(&mut self, server: &Server) -> Result<bool> {
        if self.is_running {
            self.source.fill_up(&self.link.qp, self.limit)?;
            self.is_running = self.source.posted < self.limit;
        }
        if self.is_asked && !self.is_running && !self.source.awaits() {
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
        if wc.status != WcStatus::Success {
            return if self.link.ended_in_order(wc) { Ok(false) } else { Err(self.link.failure(wc)) };
        }
        if wc.wr_id & RECV == 0 {
            if wc.wr_id < STATS {
                self.source.finish(wc.wr_id + 1)?;
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
                return Err(Failure::lost(self.link.peer(), format!("says {other}, which is nothing")));
            }
        }
        post_recvs(&self.link.qp, [(slot, Some(self.ring.sge(slot as usize..slot as usize + 1)))])?;
        Ok(true)
    }

    /// Answers behind everything that was posted: a Send overtakes no Write, and with the fence no
    /// Read.
    fn answer(&mut self) -> Result<()> {
        self.is_asked = false;
        let Source { posted, wrong, .. } = self.source;
        let bytes =
            serde_json::to_vec(&Stats { cpu_ns: cpu_ns(), messages: posted, wrong }).unwrap_or_default();
        let sge = uiw::raw::Sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: STag(0) };
        let flags = SendFlags::SIGNALED | SendFlags::INLINE | SendFlags::FENCE;
        post(&self.link.qp, STATS, SendOp::Send, &[sge], flags)
    }
}

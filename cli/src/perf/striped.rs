//! A measurement on one striped connection: requests of `uiw_verbs::Striped`, which spreads them over its stripes.

use super::flow_state::last_of;
use super::pattern;
use super::plan::Plan;
use super::raw::cpu_ns;
use super::run::{Outcome, Watch};
use crate::fail::{Failure, Result};
use crate::service::{Op, PerfReply, Stats, StripedOrder};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uiw_cabi::settings::DeadAfter;
use uiw_verbs::{
    ConnOptions, ConnSettings, Device, Error, Mr, Pd, RemoteMr, STag, Striped, StripedMessage, StripedOp,
    StripedSettings, Wc, WcError, WcStatus,
};

/// Connects, measures, and closes in order.
pub(super) fn measure(
    device: &Device,
    pd: &Pd,
    peer: SocketAddr,
    plan: &mut Plan,
    stripes: u8,
    watch: &mut impl Watch,
) -> Result<Outcome> {
    let options = options(plan);
    let conn = ConnSettings::default().options(options.clone()).send_depth(plan.depth);
    let mut settings = StripedSettings::default().stripes(stripes).conn(conn);
    if let Some(DeadAfter(Some(time))) = plan.peer_options.own.dead_after {
        settings = settings.recovery_timeout(time);
    }
    let connected = device.block_on(Striped::connect(pd, peer, &settings));
    let connection = connected.map_err(|error| Failure::connecting(peer, &options, &error))?;
    // The server has its own options for its direction, as it has no order before the stripes are established.
    plan.peer_options.crc = connection.info().negotiated.crc;
    let mut flow = Flow::open(device, connection, peer, plan)?;
    let before = flow.stats()?;
    let (cpu, start) = (cpu_ns(), Instant::now());
    flow.run(start, watch)?;
    let after = flow.stats()?;
    let (seconds, cpu_client_ns) = (start.elapsed().as_secs_f64(), cpu_ns() - cpu);
    flow.verify(&after)?;
    let counts = flow.connection.counts();
    // How the end goes changes no figure.
    let _ = device.block_on(flow.connection.disconnect());
    Ok(Outcome {
        messages: flow.done,
        bytes: flow.done * u64::from(plan.size),
        by_server: None,
        seconds,
        cpu_client_ns,
        cpu_server_ns: after.cpu_ns.saturating_sub(before.cpu_ns),
        path: None,
        striped: Some(counts),
        peer,
        round_trips: None,
    })
}

/// Those of the plan; a stripe that is silent is replaced after the time of striped connections unless the plan names another one, which is
/// then also how long replaced stripes may place nothing.
fn options(plan: &Plan) -> ConnOptions {
    let mut options = plan.peer_options.options();
    if plan.peer_options.own.dead_after.is_none() {
        options.stream.dead_after = StripedSettings::default().conn.options.stream.dead_after;
    }
    options
}

struct Flow<'a> {
    device: &'a Device,
    connection: Striped,
    peer: SocketAddr,
    plan: &'a Plan,
    /// The server's memory.
    open: RemoteMr,
    /// Oldest first: operations are over in the order of their posts.
    under_way: VecDeque<StripedOp<Vec<u8>>>,
    idle: Vec<Mr<Vec<u8>>>,
    posted: u64,
    done: u64,
    /// Reads that brought other bytes.
    wrong: u64,
}

impl<'a> Flow<'a> {
    /// Says what is to be measured, and learns where.
    fn open(device: &'a Device, connection: Striped, peer: SocketAddr, plan: &'a Plan) -> Result<Self> {
        let slots = plan.slots();
        let order = StripedOrder { op: plan.op, size: plan.size, slots, validate: plan.validate };
        let idle = (0..plan.under_way())
            .map(|_| connection.pd().register(vec![0; plan.size as usize]))
            .collect::<std::result::Result<_, _>>()
            .map_err(|failed| Failure::local("cannot register memory", failed.error))?;
        let empty = RemoteMr { addr: 0, rkey: STag(0), len: 0 };
        let mut flow = Self {
            device,
            connection,
            peer,
            plan,
            open: empty,
            under_way: VecDeque::new(),
            idle,
            posted: 0,
            done: 0,
            wrong: 0,
        };
        let reply: PerfReply = flow.ask(&order.message())?;
        flow.open = RemoteMr { addr: reply.addr, rkey: STag(reply.rkey), len: reply.len };
        Ok(flow)
    }

    fn lost(&self, why: impl std::fmt::Display) -> Failure {
        Failure::lost(self.peer, why)
    }

    /// An operation failed: what ended the connection says more, where it was lost.
    fn failed(&self, error: WcError) -> Failure {
        if !matches!(error, WcError::Completed { status: WcStatus::RetryExceeded | WcStatus::Flushed, .. }) {
            return self.lost(error);
        }
        // Behind what has come, the connection reports its end.
        loop {
            match self.device.block_on(self.connection.recv()) {
                Ok(Some(_)) => {}
                Err(WcError::Refused(end)) if matches!(*end, Error::StripedLost { .. }) => {
                    return self.lost(end);
                }
                _ => return self.lost(error),
            }
        }
    }

    /// Sends a message, and takes the answer.
    fn ask<T: serde::de::DeserializeOwned>(&self, message: &[u8]) -> Result<T> {
        self.device.block_on(self.connection.send_copy(message)).map_err(|error| self.failed(error))?;
        let answer = self.device.block_on(self.connection.recv()).map_err(|error| self.lost(error))?;
        let answer: StripedMessage =
            answer.ok_or_else(|| self.lost("closed in the middle of a measurement"))?;
        serde_json::from_slice(&answer).map_err(|_| self.lost("its answer is not understood"))
    }

    fn stats(&self) -> Result<Stats> {
        self.ask(&[])
    }

    fn run(&mut self, start: Instant, watch: &mut impl Watch) -> Result<()> {
        let limit = self.plan.iterations.unwrap_or(u64::MAX);
        while start.elapsed() < self.plan.time {
            while self.posted < limit
                && let Some(buffer) = self.idle.pop()
            {
                self.post(buffer)?;
            }
            if self.under_way.is_empty() {
                return Ok(());
            }
            let end = watch.due().map_or(self.plan.time, |due| due.min(self.plan.time));
            self.take(Some(start + end))?;
            watch.so_far(self.done, start.elapsed());
        }
        while !self.under_way.is_empty() {
            self.take(None)?;
        }
        Ok(())
    }

    fn post(&mut self, mut buffer: Mr<Vec<u8>>) -> Result<()> {
        let size = u64::from(self.plan.size);
        let slot = self.posted % u64::from(self.plan.slots());
        if self.plan.validate && self.plan.op != Op::Read {
            pattern::fill(self.posted, buffer.bytes_mut());
        }
        let at = || self.open.slice(slot * size..(slot + 1) * size).map_err(|error| self.lost(error));
        let op = match self.plan.op {
            Op::Read => self.connection.read(buffer, at()?),
            Op::Send => self.connection.send(buffer),
            // A slot is written again when the Write before it is over.
            _ => self.connection.write_idempotent(buffer, at()?),
        };
        self.under_way.push_back(op);
        self.posted += 1;
        Ok(())
    }

    /// Takes the oldest operation if it is over before the deadline.
    fn take(&mut self, deadline: Option<Instant>) -> Result<()> {
        let Some(oldest) = self.under_way.front_mut() else { return Ok(()) };
        let over = match deadline {
            None => Some(self.device.block_on(oldest)),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                self.device.block_on_for(left.max(Duration::from_millis(1)), oldest)
            }
        };
        let Some(over) = over else { return Ok(()) };
        self.under_way.pop_front();
        let (_, buffer): (Wc, _) = over.map_err(|failed| self.failed(failed.error))?;
        if self.plan.validate && self.plan.op == Op::Read {
            let slot = self.done % u64::from(self.plan.slots());
            self.wrong += u64::from(buffer.bytes() != pattern::message(slot, self.plan.size as usize));
        }
        self.done += 1;
        self.idle.push(buffer);
        Ok(())
    }

    fn verify(&mut self, stats: &Stats) -> Result<()> {
        if !self.plan.validate {
            return Ok(());
        }
        if self.plan.op == Op::Write {
            self.read_back()?;
        }
        let wrong = self.wrong + stats.wrong;
        if wrong > 0 {
            return Err(Failure::differs(
                self.peer,
                format!("{wrong} of {} messages had wrong bytes", self.done),
            ));
        }
        if self.plan.op == Op::Send && stats.messages != self.done {
            let why = format!("{} messages were sent, {} arrived", self.done, stats.messages);
            return Err(Failure::differs(self.peer, why));
        }
        Ok(())
    }

    /// Compares the server's memory with the last message that was written to each slot.
    fn read_back(&mut self) -> Result<()> {
        let size = u64::from(self.plan.size);
        let slots = u64::from(self.plan.slots()).min(self.done);
        for slot in 0..slots {
            let Some(buffer) = self.idle.pop() else { return Ok(()) };
            let at = self.open.slice(slot * size..(slot + 1) * size).map_err(|error| self.lost(error))?;
            let read = self.device.block_on(self.connection.read(buffer, at));
            let (_, buffer) = read.map_err(|failed| self.failed(failed.error))?;
            let expected = pattern::message(last_of(slot, slots, self.done), size as usize);
            self.wrong += u64::from(buffer.bytes() != expected);
            self.idle.push(buffer);
        }
        Ok(())
    }
}

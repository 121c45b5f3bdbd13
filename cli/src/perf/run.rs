//! Execution of a measurement.

use super::flow_state::FlowState;
use super::opposite::OppositeDirection;
use super::plan::{END_TIMEOUT, MeasurementPlan};
use super::raw::cpu_ns;
use crate::shared::fail::{Failure, Result};
use crate::shared::qp_setup::{Link, WaitLimits, completions, cq_options};
use crate::shared::service::{PerfOp, Stats};
use crate::shared::spin::Spin;
use hdrhistogram::Histogram;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use uiw::raw::{Cq, Device, PathInfo, Pd, Wc};

/// Creates an empty histogram of nanoseconds, up to a minute, with three significant digits.
pub(crate) fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3)
        .map_err(|error| Failure::local("cannot make a histogram", error))
}

/// Observer of a measurement.
pub(crate) trait MeasurementWatcher {
    /// Called when `messages` messages of this end have completed since the beginning.
    fn on_progress(&mut self, messages: u64, elapsed: Duration);

    /// Called after a round trip of a ping-pong, with its duration in nanoseconds.
    fn on_round_trip(&mut self, ns: u64);

    /// Returns the time at which `on_progress` must be called even if no message has completed.
    fn next_due(&self) -> Option<Duration>;
}

/// Ignores everything.
impl MeasurementWatcher for () {
    fn on_progress(&mut self, _: u64, _: Duration) {}

    fn on_round_trip(&mut self, _: u64) {}

    fn next_due(&self) -> Option<Duration> {
        None
    }
}

/// Result of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct PerfOutcome {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Number of messages posted by the server, in a measurement of both directions.
    pub(crate) by_server: Option<u64>,
    pub(crate) seconds: f64,
    pub(crate) cpu_client_ns: u64,
    pub(crate) cpu_server_ns: u64,
    pub(crate) path: Option<PathInfo>,
    pub(crate) peer: SocketAddr,
    /// Round trips in nanoseconds.
    pub(crate) round_trips: Option<Histogram<u64>>,
}

impl PerfOutcome {
    pub(crate) fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }
}

/// Established connections, ready to measure.
pub(crate) struct PerfRun {
    device: Device,
    cq: Arc<Cq>,
    plan: MeasurementPlan,
    flows: Vec<FlowState>,
    /// Connections on which the server posts, in a measurement of both directions.
    opposite: Option<OppositeDirection>,
    batch: Vec<Wc>,
    /// Number of empty Sends that have not completed.
    marks: usize,
}

impl PerfRun {
    pub(crate) fn connect(
        device: &Device,
        pd: &Pd,
        peer: SocketAddr,
        plan: &MeasurementPlan,
    ) -> Result<Self> {
        let depth = plan.connections * (plan.depth + 16);
        let cq = device.create_cq(depth, cq_options())?;
        // All connections begin before the first one is waited for.
        let flows = (0..u64::from(plan.connections))
            .map(|index| FlowState::connect(device, pd, &cq, index, peer, plan))
            .collect::<Result<Vec<_>>>()?;
        let opposite = plan
            .bidirectional
            .then(|| OppositeDirection::connect(device, pd, peer, plan))
            .transpose()?;
        let flows = flows.into_iter().map(|finish| finish()).collect::<Result<_>>()?;
        let opposite = opposite.map(|finish| finish()).transpose()?;
        Ok(Self {
            device: device.clone(),
            cq,
            plan: plan.clone(),
            flows,
            opposite,
            batch: Vec::with_capacity(64),
            marks: 0,
        })
    }

    /// Takes completions, waiting for the first one.
    fn take_completions(&mut self, until: WaitLimits<'_>) -> Result<usize> {
        let Self { device, cq, plan, batch, .. } = self;
        let taken = completions(device, cq, plan.wait, until, 64, |wc| batch.push(wc));
        self.dispatch_completions()?;
        Ok(taken)
    }

    /// Passes the completions taken to their connections.
    fn dispatch_completions(&mut self) -> Result<()> {
        for wc in self.batch.drain(..) {
            let index = FlowState::index_of(&wc);
            if self.flows[index].on_completion(&wc)? {
                self.marks -= 1;
            }
        }
        Ok(())
    }

    /// Asks every server thread for statistics and waits for all answers.
    fn collect_stats(&mut self) -> Result<Vec<Stats>> {
        for flow in &mut self.flows {
            flow.request_stats()?;
        }
        self.marks = self.flows.len();
        let deadline = Instant::now() + END_TIMEOUT;
        while self.marks > 0 || self.flows.iter().any(|flow| flow.stats.is_none()) {
            if self.take_completions(WaitLimits::deadline(deadline))? == 0 {
                return Err(Failure::lost(
                    self.flows[0].link.peer(),
                    "did not finish the run in a minute",
                ));
            }
        }
        Ok(self.flows.iter().filter_map(|flow| flow.stats).collect())
    }

    /// Runs the measurement.
    pub(crate) fn measure(mut self, watch: &mut impl MeasurementWatcher) -> Result<PerfOutcome> {
        self.opposite.as_mut().map_or(Ok(()), OppositeDirection::synchronize)?;
        let before = self.collect_stats()?;
        let cpu = cpu_ns();
        let start = Instant::now();
        let mut round_trips = None;
        if self.plan.latency {
            let mut histogram = histogram()?;
            self.run_ping_pong(start, &mut histogram, watch)?;
            round_trips = Some(histogram);
        } else {
            self.run_directions(start, watch)?;
        }
        let mut seconds = start.elapsed().as_secs_f64();
        let after = self.collect_stats()?;
        if !self.plan.latency {
            // The time of throughput ends when the server confirms that the last byte has arrived.
            seconds = start.elapsed().as_secs_f64();
        }
        let cpu_client_ns = cpu_ns() - cpu;
        self.verify(&after)?;
        let own: u64 = self.flows.iter().map(|flow| flow.source.posted).sum();
        let by_server = self.opposite.as_ref().map(OppositeDirection::messages);
        let messages = own + by_server.unwrap_or(0);
        let first = &self.flows[0].link;
        let outcome = PerfOutcome {
            messages,
            bytes: messages * u64::from(self.plan.size),
            by_server,
            seconds,
            cpu_client_ns,
            cpu_server_ns: after[0].cpu_ns.saturating_sub(before[0].cpu_ns),
            path: first.qp.path(),
            peer: first.peer(),
            round_trips,
        };
        let flows = self.flows.into_iter().map(|flow| flow.link);
        Link::close_all(
            flows.chain(self.opposite.into_iter().flat_map(OppositeDirection::into_links)),
        );
        Ok(outcome)
    }

    /// Runs the throughput of one direction, or of both at the same time.
    fn run_directions(
        &mut self,
        start: Instant,
        watch: &mut impl MeasurementWatcher,
    ) -> Result<()> {
        let Some(mut opposite) = self.opposite.take() else {
            return self.run_throughput(start, watch);
        };
        let (own, theirs) = thread::scope(|scope| {
            let theirs = scope.spawn(|| opposite.run());
            (self.run_throughput(start, watch), theirs.join())
        });
        self.opposite = Some(opposite);
        own.and(theirs.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    fn run_throughput(
        &mut self,
        start: Instant,
        watch: &mut impl MeasurementWatcher,
    ) -> Result<()> {
        let limit = self.plan.iterations.unwrap_or(u64::MAX);
        loop {
            let elapsed = start.elapsed();
            if elapsed >= self.plan.time {
                break;
            }
            for flow in &mut self.flows {
                flow.source.fill_up(&flow.link.qp, limit)?;
            }
            if self.flows.iter().all(|flow| flow.source.posted >= limit) {
                break;
            }
            let end = watch.next_due().map_or(self.plan.time, |due| due.min(self.plan.time));
            self.take_completions(WaitLimits::deadline(start + end))?;
            let done = self.flows.iter().map(|flow| flow.source.done).sum::<u64>();
            watch.on_progress(done, start.elapsed());
        }
        Ok(())
    }

    fn run_ping_pong(
        &mut self,
        start: Instant,
        histogram: &mut Histogram<u64>,
        watch: &mut impl MeasurementWatcher,
    ) -> Result<()> {
        let limit = self.plan.iterations.unwrap_or(u64::MAX);
        let mut now = start;
        while now - start < self.plan.time && self.flows[0].source.posted < limit {
            self.flows[0].ping()?;
            let mut spin = Spin::default();
            while !self.is_answered()? {
                if self.take_for_answer()? == 0 {
                    spin.on_empty_poll();
                }
            }
            let then = Instant::now();
            let took = (then - now).as_nanos() as u64;
            histogram.saturating_record(took);
            watch.on_round_trip(took);
            watch.on_progress(self.flows[0].source.posted, then - start);
            now = then;
        }
        Ok(())
    }

    /// Polls once if the answer is detected in memory, otherwise waits for a completion. Returns
    /// the number of completions taken.
    fn take_for_answer(&mut self) -> Result<usize> {
        if self.plan.op != PerfOp::Write {
            return self.take_completions(WaitLimits::NEVER);
        }
        let taken = self.cq.poll_with(64, |wc| self.batch.push(wc));
        self.dispatch_completions()?;
        Ok(taken)
    }

    fn is_answered(&self) -> Result<bool> {
        let flow = &self.flows[0];
        Ok(match self.plan.op {
            PerfOp::Write => flow.is_answer_written()? && flow.source.in_flight() == 0,
            PerfOp::Send | PerfOp::WriteImm => {
                flow.answers == flow.source.posted && flow.source.in_flight() == 0
            }
            PerfOp::Read | PerfOp::FetchAdd | PerfOp::CmpSwap => flow.source.in_flight() == 0,
        })
    }

    fn verify(&mut self, stats: &[Stats]) -> Result<()> {
        if !self.plan.validate {
            return Ok(());
        }
        if matches!(self.plan.op, PerfOp::Write | PerfOp::WriteImm) && !self.plan.latency {
            self.read_back()?;
        }
        for (flow, stats) in self.flows.iter().zip(stats) {
            let wrong = flow.source.wrong + stats.wrong;
            if wrong > 0 {
                let why = format!("{wrong} of {} messages had wrong bytes", flow.source.posted);
                return Err(Failure::differs(flow.link.peer(), why));
            }
            if self.plan.op == PerfOp::Send && stats.messages != flow.source.posted {
                let why = format!(
                    "{} messages were sent, {} arrived",
                    flow.source.posted, stats.messages
                );
                return Err(Failure::differs(flow.link.peer(), why));
            }
        }
        self.opposite.as_ref().map_or(Ok(()), OppositeDirection::verify)
    }

    fn read_back(&mut self) -> Result<()> {
        let Self { device, cq, plan, flows, .. } = self;
        for flow in flows {
            flow.read_back(|flow| {
                let mut next = None;
                completions(device, cq, plan.wait, WaitLimits::NEVER, 1, |wc| next = Some(wc));
                match next {
                    Some(wc) => flow.on_completion(&wc).map(drop),
                    None => Ok(()),
                }
            })?;
        }
        Ok(())
    }
}

//! `uiw perf`: measures throughput and latency, alone or compared with raw TCP.

mod compare;
mod flow_state;
mod intervals;
mod opposite;
pub(crate) mod pattern;
mod plan;
pub(crate) mod raw;
mod report;
mod run;
pub(crate) mod source;

use crate::shared::args::{ConnArgs, DEFAULT_PORT, bytes, positive_seconds, resolve};
use crate::shared::child::ChildServer;
use crate::shared::fail::Result;
use crate::shared::open::Opener;
use crate::shared::qp_setup::WaitMode;
use crate::shared::service::PerfOp;
use crate::shared::text::{self, Progress};
use intervals::{Interval, IntervalReporter};
use plan::MeasurementPlan;
use run::PerfRun;
pub(crate) use run::histogram;
use std::net::SocketAddr;
use std::time::Duration;
use uiw::raw::{Device, Pd};

/// Default number of slices of a comparison.
const SLICES: usize = 31;

/// Options of `uiw perf`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// A `uiw serve`; without it, --compare starts a server process on this machine
    #[arg(value_name = "HOST[:PORT]", required_unless_present = "compare")]
    host: Option<String>,
    /// What to measure
    #[arg(long, value_enum, default_value = "write")]
    op: PerfOp,
    /// Bytes of a message, such as 64, 64K, 1M
    #[arg(short, long, default_value = "64K", value_parser = bytes)]
    size: u32,
    /// Number of connections; doubled by --bidirectional
    #[arg(long, default_value_t = 1)]
    connections: u32,
    /// Messages under way on a connection [default: 1 MiB (Reads: 4 MiB) divided by the size, 2 to
    /// 128]
    #[arg(long)]
    depth: Option<u32>,
    /// Seconds of a measurement
    #[arg(long, default_value = "2", value_parser = positive_seconds)]
    seconds: f64,
    /// End the measurement after so many messages on each connection
    #[arg(long)]
    iterations: Option<u64>,
    /// Check every byte (this takes time)
    #[arg(long)]
    validate: bool,
    /// Ask for a completion of every Nth message [default: a quarter of the depth, at most 16]
    #[arg(long, value_name = "N")]
    signal_every: Option<u32>,
    /// Messages posted with one call
    #[arg(long, value_name = "N", default_value_t = 1)]
    chain: u32,
    /// Ping-pong: round trips instead of throughput
    #[arg(long)]
    latency: bool,
    /// Both directions at once: the server posts Writes or Reads on the same number of further
    /// connections; figures are the sum of both directions
    #[arg(short, long, conflicts_with = "latency")]
    bidirectional: bool,
    /// Sleep until something completes (default without --latency)
    #[arg(long)]
    wait: bool,
    /// Sleep in poll(2) on the descriptor of the completion channel
    #[arg(long, conflicts_with = "wait")]
    wait_descriptor: bool,
    /// Poll all the time (default with --latency)
    #[arg(long, conflicts_with_all = ["wait", "wait_descriptor"])]
    spin: bool,
    /// Compare with raw TCP, in alternating slices; takes about 20 seconds
    #[arg(long, conflicts_with_all = ["iterations", "connections", "seconds"])]
    compare: bool,
    /// Slices of a comparison
    #[arg(long, value_name = "N", default_value_t = SLICES, requires = "compare", hide = true)]
    slices: usize,
    /// Seconds of a slice of a comparison [default: 0.2, or 50 round trips if that is longer]
    #[arg(long, value_name = "S", requires = "compare", value_parser = positive_seconds)]
    slice_seconds: Option<f64>,
    /// Print the messages of this end for each interval of so many seconds while measuring; with
    /// --json, add a list of them to the result
    #[arg(short, long, value_name = "SECONDS", value_parser = positive_seconds, conflicts_with = "compare")]
    interval: Option<f64>,
    /// One JSON object a result
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    conn: ConnArgs,
}

impl Args {
    fn wait(&self) -> WaitMode {
        match (self.wait_descriptor, self.spin || self.latency && !self.wait) {
            (true, _) => WaitMode::Descriptor,
            (_, true) => WaitMode::Spin,
            _ => WaitMode::Sleep,
        }
    }
}

/// Runs `uiw perf`.
pub(crate) fn run(opener: &Opener, args: &Args) -> Result<()> {
    let device = opener.device()?;
    let pd = device.alloc_pd()?;
    let (peer, _server) = match &args.host {
        Some(host) => (resolve(host, DEFAULT_PORT)?, None),
        None => {
            let server =
                ChildServer::start(&["serve", "--listen", "127.0.0.1:0", "--until-stdin-ends"])?;
            (server.address(), Some(server))
        }
    };
    if args.compare { compare(&device, &pd, peer, args) } else { measure(&device, &pd, peer, args) }
}

fn measure(device: &Device, pd: &Pd, peer: SocketAddr, args: &Args) -> Result<()> {
    let plan = MeasurementPlan::new(args, args.size)?;
    let every = args.interval.map(Duration::from_secs_f64);
    let mut watch = IntervalReporter::new(plan.size, plan.latency, every, |interval| {
        if !args.json {
            text::line(interval.line());
        }
    })?;
    let outcome = PerfRun::connect(device, pd, peer, &plan)?.measure(&mut watch)?;
    let own = outcome.messages - outcome.by_server.unwrap_or(0);
    let intervals = watch.end(own, Duration::from_secs_f64(outcome.seconds));
    if args.json {
        let mut result = report::result(&plan, &outcome);
        if every.is_some() {
            result["intervals"] = intervals.iter().map(Interval::json).collect();
        }
        text::json(&result);
        return Ok(());
    }
    text::line(report::heading(&plan, &outcome));
    text::line(report::columns(&plan));
    text::line(report::row(&plan, &outcome));
    Ok(())
}

fn compare(device: &Device, pd: &Pd, peer: SocketAddr, args: &Args) -> Result<()> {
    let plan = MeasurementPlan::new(args, args.size)?;
    let mut progress = Progress::new();
    let slices = compare::SliceSettings {
        count: args.slices,
        time: args.slice_seconds.map(Duration::from_secs_f64),
    };
    let comparison = compare::compare(device, pd, peer, &plan, slices, &mut progress)?;
    if args.json {
        text::json(&report::comparison(&plan, &comparison));
        return Ok(());
    }
    text::line(report::heading(&plan, &comparison.last));
    for line in report::comparison_lines(&plan, &comparison) {
        text::line(line);
    }
    Ok(())
}

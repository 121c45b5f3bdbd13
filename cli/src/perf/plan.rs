//! Settings of a measurement, which are checked once.

use super::Args;
use super::raw::RawDirection;
use super::source::MessageStream;
use crate::serve::perf::{MAX_DEPTH, MAX_MEMORY, MAX_SIZE};
use crate::shared::args::PeerConfig;
use crate::shared::fail::{Failure, Result};
use crate::shared::qp_setup::WaitMode;
use crate::shared::service::{OppositeTraffic, PerfOp, PerfOrder};
use std::time::Duration;

/// Default number of bytes under way. A Write or Send completes when TCP has accepted it, so a
/// small number keeps TCP busy. A Read completes when its bytes have arrived, so Reads must fill
/// the path.
const AUTO_BYTES: u32 = 1 << 20;
const AUTO_READ_BYTES: u32 = 4 << 20;

/// Size in bytes of the raw message with which an atomic is compared. The request of an atomic has
/// 52 bytes after its headers.
const RAW_FOR_ATOMICS: u32 = 64;

/// Time limit for the end of a run: completing the messages under way and receiving the server's
/// statistics.
pub(super) const END_TIMEOUT: Duration = Duration::from_secs(60);

/// One measurement.
#[derive(Clone, Debug)]
pub(crate) struct MeasurementPlan {
    pub(crate) op: PerfOp,
    pub(crate) size: u32,
    pub(crate) depth: u32,
    pub(crate) chain: u32,
    pub(crate) signal_every: u32,
    pub(crate) connections: u32,
    pub(crate) latency: bool,
    /// True if the server also posts messages, on the same number of further connections.
    pub(crate) bidirectional: bool,
    pub(crate) wait: WaitMode,
    pub(crate) validate: bool,
    pub(crate) peer_options: PeerConfig,
    pub(crate) time: Duration,
    /// Messages on each connection; `None` if only the time limits them.
    pub(crate) iterations: Option<u64>,
}

impl MeasurementPlan {
    pub(crate) fn new(args: &Args, size: u32) -> Result<Self> {
        let op = args.op;
        let size = if op.is_atomic() { 8 } else { size };
        let depth = if args.latency {
            1
        } else {
            args.depth.unwrap_or_else(|| auto_depth(op == PerfOp::Read, size, args.chain))
        };
        let plan = Self {
            op,
            size,
            depth,
            chain: args.chain,
            signal_every: args.signal_every.unwrap_or_else(|| (depth / 4).clamp(1, 16)),
            connections: args.connections,
            latency: args.latency,
            bidirectional: args.bidirectional,
            wait: args.wait(),
            validate: args.validate,
            peer_options: args.conn.peer_options(),
            time: Duration::from_secs_f64(args.seconds),
            iterations: args.iterations,
        };
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<()> {
        let wrong =
            |what: String, why: String| Err(Failure::usage(what, why, "see `uiw perf --help`"));
        let Self { size, depth, chain, signal_every, connections, .. } = *self;
        if size == 0 || size > MAX_SIZE {
            return wrong(format!("--size {size}"), format!("a message has 1 to {MAX_SIZE} bytes"));
        }
        if depth == 0 || depth > MAX_DEPTH {
            return wrong(
                format!("--depth {depth}"),
                format!("1 to {MAX_DEPTH} messages can be under way"),
            );
        }
        if chain == 0 || chain > depth {
            return wrong(
                format!("--chain {chain}"),
                format!("a chain has 1 message to the depth of {depth}"),
            );
        }
        if signal_every == 0 || signal_every > depth {
            let why =
                format!("every 1st to {depth}th message can be signaled at a depth of {depth}");
            return wrong(format!("--signal-every {signal_every}"), why);
        }
        if connections == 0 || connections > 512 {
            return wrong(format!("--connections {connections}"), "1 to 512 connections".into());
        }
        if u64::from(self.slots()) * u64::from(size) > MAX_MEMORY {
            let why = format!(
                "{} messages of {size} bytes need more than {MAX_MEMORY} bytes",
                self.slots()
            );
            return wrong(format!("--depth {depth}"), why);
        }
        if self.latency && connections > 1 {
            return wrong("--latency".into(), "a ping-pong has one connection".into());
        }
        if self.bidirectional && !matches!(self.op, PerfOp::Write | PerfOp::Read) {
            let why = "both directions at once are there for Writes and Reads".into();
            return wrong(format!("--bidirectional --op {}", self.op), why);
        }
        if self.latency && self.validate && matches!(self.op, PerfOp::Write | PerfOp::WriteImm) {
            let why = "a ping-pong of Writes cannot be validated".into();
            return wrong(format!("--latency --validate --op {}", self.op), why);
        }
        if self.latency && self.op == PerfOp::Write && self.wait != WaitMode::Spin {
            let why = "nothing wakes a sleeper for a plain Write".into();
            return wrong("--latency --wait --op write".into(), why);
        }
        Ok(())
    }

    /// Returns the number of messages for which there is separate memory. Unless they are
    /// validated, all Writes and Sends share the memory of one message.
    pub(crate) fn slots(&self) -> u32 {
        match self.op {
            PerfOp::Write | PerfOp::WriteImm | PerfOp::Send if !self.validate => 1,
            _ => self.depth,
        }
    }

    pub(crate) fn messages(&self) -> MessageStream {
        let Self { op, size, depth, chain, signal_every, validate, .. } = *self;
        MessageStream { op, size, slots: self.slots(), depth, chain, signal_every, validate }
    }

    /// Returns the order for the server. `back` is the address and the key of the client's memory,
    /// and `opposite` describes the messages that the server posts to that memory.
    pub(crate) fn order(
        &self,
        back: Option<(u64, u32)>,
        opposite: Option<OppositeTraffic>,
    ) -> PerfOrder {
        PerfOrder {
            op: self.op,
            size: self.size,
            slots: self.slots(),
            depth: self.depth,
            latency: self.latency,
            wait: self.wait,
            validate: self.validate,
            back,
            opposite,
            peer_options: self.peer_options.clone(),
        }
    }

    /// Returns the size in bytes of the raw message with which one message of this plan is
    /// compared.
    pub(crate) fn raw_message(&self) -> u32 {
        if self.op.is_atomic() { RAW_FOR_ATOMICS } else { self.size }
    }

    /// Returns the direction in which the payload travels.
    pub(crate) fn raw_direction(&self) -> RawDirection {
        match self.op {
            _ if self.bidirectional => RawDirection::Both,
            PerfOp::Read => RawDirection::ToClient,
            _ => RawDirection::ToServer,
        }
    }
}

/// Returns a depth that is large enough to keep the path full, and small enough that a run ends
/// soon.
fn auto_depth(is_read: bool, size: u32, chain: u32) -> u32 {
    let bytes = if is_read { AUTO_READ_BYTES } else { AUTO_BYTES };
    (bytes / size.max(1)).clamp(2, 128).max(chain)
}

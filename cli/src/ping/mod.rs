//! `uiw ping`: makes round trips and checks the bytes of each one.

pub(crate) mod rping;
mod times;

use crate::serve::ping::MAX_SIZE;
use crate::shared::args::{ConnArgs, DEFAULT_PORT, bytes, resolve, seconds};
use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::memory::{Buffer, remote_at};
use crate::shared::msg_conn::{ConnEvent, MsgConn};
use crate::shared::open::Opener;
use crate::shared::qp_setup::{PendingQp, QueueDepths, WaitLimits, WaitMode, post};
use crate::shared::service::{PingOrder, Service};
use crate::shared::stop::StopFlag;
use crate::shared::text;
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use times::RoundTripTimes;
use uiw::raw::{RemoteMr, SendFlags, SendOp};

/// Options of `uiw ping`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The peer: `uiw serve`, or any rping server with --rping
    #[arg(value_name = "HOST[:PORT]")]
    host: String,
    /// Round trips; 0 = until Ctrl-C
    #[arg(short, long, default_value_t = 5)]
    count: u64,
    /// Bytes of a message, such as 64, 4K, 1M
    #[arg(short, long, default_value = "64", value_parser = bytes)]
    size: u32,
    /// Seconds between round trips
    #[arg(short, long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    interval: f64,
    /// Operation of a round trip: a Send and its echo, a Write and a Read of the same bytes, or a
    /// Read
    #[arg(long, value_enum, default_value = "send")]
    op: PingOp,
    /// Use the messages of the stock rping
    #[arg(long, conflicts_with = "op")]
    rping: bool,
    /// Poll for answers instead of sleeping
    #[arg(long)]
    spin: bool,
    /// One JSON object a round trip and one at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    conn: ConnArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PingOp {
    /// A Send and its echo
    Send,
    /// An RDMA Write and an RDMA Read of the same bytes
    Write,
    /// An RDMA Read
    Read,
}

/// A method to make round trips.
trait RoundTrips {
    /// Makes the round trip with this number and checks its bytes.
    fn round(&mut self, round: u64) -> Result<()>;
    /// Closes the connection in order.
    fn close(self: Box<Self>);
}

/// Runs `uiw ping`.
pub(crate) fn run(opener: &Opener, args: &Args) -> Result<()> {
    if args.size == 0 || args.size > MAX_SIZE {
        return Err(Failure::usage(
            format!("--size {}", args.size),
            format!("a ping has 1 to {MAX_SIZE} bytes"),
            "choose a size in between",
        ));
    }
    let peer = resolve(&args.host, DEFAULT_PORT)?;
    let stop = StopFlag::on_signal()?;
    let until = WaitLimits::stop(&stop);
    let options = args.conn.peer_options().options();
    let connected: Result<Box<dyn RoundTrips + '_>> = if args.rping {
        rping::RpingClient::connect(opener, peer, args.size, wait(args), &options, until)
            .map(|client| Box::new(client) as _)
    } else {
        Pinger::connect(opener, peer, args, until).map(|pinger| Box::new(pinger) as _)
    };
    let mut rounds = connected.map_err(|failure| match stop.is_set() {
        true => Failure::new(Exit::Failed, peer, "interrupted", "run it again"),
        false => failure,
    })?;
    let mut times = RoundTripTimes::new()?;
    let mut round = 0;
    let begun = Instant::now();
    let mut result = Ok(());
    while (args.count == 0 && !text::is_stdout_lost() || round < args.count) && !stop.is_set() {
        let start = Instant::now();
        match rounds.round(round) {
            Ok(()) => {}
            // The stop has ended the wait for the peer.
            Err(failure) if stop.is_set() && failure.exit == Exit::Lost => break,
            Err(failure) if failure.exit == Exit::Lost => {
                result = Err(failure);
                break;
            }
            Err(failure) => return Err(failure),
        }
        let took = start.elapsed();
        times.add(took);
        report(args, peer, round, took);
        round += 1;
        pause(args, begun, round, &stop);
    }
    if result.is_ok() {
        rounds.close();
    }
    summary(args, peer, &times);
    result
}

fn wait(args: &Args) -> WaitMode {
    if args.spin { WaitMode::Spin } else { WaitMode::Sleep }
}

/// Sleeps until round `round` is due, or until Ctrl-C.
fn pause(args: &Args, begun: Instant, round: u64, stop: &StopFlag) {
    if round == args.count {
        return;
    }
    let due = begun + Duration::from_secs_f64(args.interval * round as f64);
    stop.sleep_for(due.saturating_duration_since(Instant::now()));
}

fn report(args: &Args, peer: SocketAddr, round: u64, took: Duration) {
    let us = took.as_nanos() as f64 / 1e3;
    if args.json {
        text::json(&json!({"type": "round", "round": round, "bytes": args.size, "us": us}));
    } else if args.interval > 0.0 || args.count <= 20 && args.count > 0 {
        text::line(format!(
            "{} bytes to {peer} and back: round {round}, {}",
            args.size,
            text::micros(us)
        ));
    }
}

fn summary(args: &Args, peer: SocketAddr, times: &RoundTripTimes) {
    let Some([min, avg, p50, p99, max]) = times.micros() else { return };
    let op = if args.rping { "rping".to_owned() } else { format!("{:?}", args.op).to_lowercase() };
    if args.json {
        text::json(&json!({
            "type": "summary", "peer": peer.to_string(), "op": op, "bytes": args.size, "rounds": times.count(),
            "verified": true, "crc": args.conn.peer_options().crc,
            "us": {"min": min, "avg": avg, "p50": p50, "p99": p99, "max": max},
        }));
        return;
    }
    text::line(format!(
        "{} ({op}, {}), all verified: min {}, avg {}, p50 {}, p99 {}, max {}",
        text::number(times.count(), "round trip"),
        text::number(args.size.into(), "byte"),
        text::micros(min),
        text::micros(avg),
        text::micros(p50),
        text::micros(p99),
        text::micros(max),
    ));
}

/// Returns the bytes of a round, which differ in every round.
fn pattern(round: u64, size: usize) -> Vec<u8> {
    (0..size as u64)
        .map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ round.wrapping_mul(167)) as u8)
        .collect()
}

/// Pings `uiw serve`.
struct Pinger<'a> {
    op: PingOp,
    wait: WaitMode,
    until: WaitLimits<'a>,
    size: usize,
    conn: MsgConn,
    /// The first half is sent, the second half is read back.
    data: Buffer,
    peer_memory: RemoteMr,
}

/// Request number of Sends and Writes.
const OUT: u64 = 1;
/// Request number of Reads.
const BACK: u64 = 2;

impl<'a> Pinger<'a> {
    fn connect(
        opener: &Opener,
        peer: SocketAddr,
        args: &Args,
        until: WaitLimits<'a>,
    ) -> Result<Self> {
        let device = opener.device()?;
        let pd = device.alloc_pd()?;
        let size = args.size as usize;
        let data = Buffer::exclusive(&pd, size * 2)?;
        let pending = PendingQp::new(&device, &pd, &QueueDepths::new(8, 4))?;
        let peer_options = args.conn.peer_options();
        let order =
            Service::Ping(PingOrder { size: args.size, peer_options: peer_options.clone() });
        let conn = MsgConn::connect(
            pending,
            (4, args.size),
            peer,
            &peer_options.options(),
            &order.private_data(),
            until,
        )?;
        let peer_memory = RemoteMr::from_bytes(&conn.link.info.private_data).map_err(|_| {
            Failure::lost(
                peer,
                "accepted, but is no `uiw serve` (a stock rping server needs --rping)",
            )
        })?;
        let pinger = Self { op: args.op, wait: wait(args), until, size, conn, data, peer_memory };
        if pinger.op == PingOp::Read {
            pinger.data.write(0, &pattern(0, size))?;
            pinger.write()?;
        }
        Ok(pinger)
    }

    fn write(&self) -> Result<()> {
        self.post(OUT, SendOp::Write { remote: remote_at(self.peer_memory, 0) }, 0..self.size)?;
        if self.conn.wait_sent(OUT, self.wait, self.until)? { Ok(()) } else { Err(self.gone()) }
    }

    fn post(&self, wr_id: u64, op: SendOp, range: std::ops::Range<usize>) -> Result<()> {
        post(&self.conn.link.qp, wr_id, op, &[self.data.sge(range)], SendFlags::SIGNALED)
    }

    fn gone(&self) -> Failure {
        Failure::lost(self.conn.link.peer(), "closed the connection")
    }

    fn echo(&self) -> Result<Vec<u8>> {
        self.post(OUT, SendOp::Send, 0..self.size)?;
        // The echo may arrive before the completion of its Send.
        let (mut out, mut back) = (false, None);
        while !out || back.is_none() {
            match self.conn.next(self.wait, self.until)?.ok_or_else(|| self.gone())? {
                ConnEvent::Sent(_) => out = true,
                ConnEvent::Message { slot, len } => {
                    back = Some(self.conn.bytes(slot, len)?);
                    self.conn.repost(slot)?;
                }
            }
        }
        Ok(back.unwrap_or_default())
    }

    fn read_back(&self) -> Result<()> {
        let remote = remote_at(self.peer_memory, 0);
        self.post(BACK, SendOp::Read { remote, invalidate: None }, self.size..self.size * 2)?;
        if self.conn.wait_sent(BACK, self.wait, self.until)? { Ok(()) } else { Err(self.gone()) }
    }
}

impl RoundTrips for Pinger<'_> {
    fn round(&mut self, round: u64) -> Result<()> {
        // A Read gets the bytes written before the first round.
        let bytes = pattern(if self.op == PingOp::Read { 0 } else { round }, self.size);
        if self.op == PingOp::Send {
            self.data.write(0, &bytes)?;
            return check(self.conn.link.peer(), round, &self.echo()?, &bytes);
        }
        self.data.write(self.size, &vec![0; self.size])?;
        if self.op == PingOp::Write {
            self.data.write(0, &bytes)?;
            self.post(OUT, SendOp::Write { remote: remote_at(self.peer_memory, 0) }, 0..self.size)?;
        }
        self.read_back()?;
        let mut back = vec![0; self.size];
        self.data.read(self.size, &mut back)?;
        check(self.conn.link.peer(), round, &back, &bytes)
    }

    fn close(self: Box<Self>) {
        self.conn.link.close();
    }
}

fn check(peer: SocketAddr, round: u64, got: &[u8], want: &[u8]) -> Result<()> {
    if got == want {
        return Ok(());
    }
    let first = got.iter().zip(want).position(|(a, b)| a != b).unwrap_or(got.len().min(want.len()));
    let why =
        format!("round {round} came back different from byte {first} on ({} bytes)", got.len());
    Err(Failure::differs(peer, why))
}

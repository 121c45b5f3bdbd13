//! `uiw siwtest`: tests every operation in both directions against a foreign stack. The other end
//! is `siwpeer` (in C, with libibverbs and librdmacm: `interop/siw/guest/siwpeer.c`) or `uiw
//! siwtest --listen`.

mod bytes;
mod end;
mod orders;
mod passive;
mod raw;
pub(crate) use crate::shared::args::{ConnArgs, bytes as parse_bytes, resolve, seconds};
use crate::shared::fail::{Failure, Result};
use crate::shared::open::Opener;
use crate::shared::qp_setup::{PendingQp, QueueDepths};
use crate::shared::text;
use end::ConnectionEnd;
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uiw::raw::ConnConfig;
use uiw::raw::cm::ConnInfo;
use uiw_conform::partner::{MAX_SGES, Order, Orders};

/// Default port of the partner.
const PORT: u16 = 7471;
/// Default orders: every operation, sizes around every boundary, several elements, many at a time.
const USUAL: &str = "send:0 send:1 send:64x20 send:1441x3 send:65536x4 send:5000x2x3 \
                     sendinline:48x5 sendse:64x10 sendinv:64x3 sendseinv:64x3 write:0 write:1 \
                     write:1441x3 write:65536x16 write:1048576 write:5000x2x3 read:0 read:1 \
                     read:1441x3 read:65536x16 read:1048576 read:64x128 read:512x400 fence:4096x20";
/// Depth of the queues: enough for the requests of an order, twice as many if each is followed by a
/// Send, and some messages of the partner.
const DEPTH: u32 = 1024;

/// Options of `uiw siwtest`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The peer: `siwpeer serve`, `uiw siwtest --listen`, or any other with --raw
    #[arg(
        value_name = "HOST[:PORT]",
        required_unless_present = "listen",
        conflicts_with = "listen"
    )]
    host: Option<String>,
    /// Orders `OP[:SIZE[xCOUNT[xELEMENTS]]]`, for both ends, or with the prefix `me.` or `you.` for
    /// one [default: every operation]
    #[arg(value_name = "ORDER", conflicts_with = "listen")]
    orders: Vec<Orders>,
    /// Run as server on ADDR:PORT, ADDR or PORT
    #[arg(long, value_name = "ADDR:PORT", value_parser = crate::shared::args::listen)]
    listen: Option<SocketAddr>,
    /// Number of connections, one after the other
    #[arg(long, default_value_t = 1)]
    connections: u32,
    /// Repeat the orders for this time
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    seconds: f64,
    /// Bytes of private data, which the partner sends back
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_bytes)]
    private_data: u32,
    /// Private data as text; the partner rejects the connection if it begins with `reject`
    #[arg(long, value_name = "TEXT", conflicts_with = "private_data")]
    private_text: Option<String>,
    /// Single requests to any peer, one after the other: `send:BYTES`, `write:STAG:TO:BYTES`,
    /// `read:STAG:TO:BYTES`, `recv`. Byte n of a message or Write is n modulo 256. Prints STag and
    /// TO of 1 MiB of memory for the peer
    #[arg(long, value_name = "REQUEST", num_args = 1.., conflicts_with_all = ["orders", "refused"])]
    raw: Vec<raw::RawRequest>,
    /// Post an operation that the peer lacks, and check that it is refused here: sendimm, writeimm,
    /// fetchadd or cmpswap
    #[arg(long, value_name = "OP")]
    refused: Option<ExtensionOrder>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Time limit for setting up the connection
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    timeout: f64,
    #[command(flatten)]
    conn: ConnArgs,
}

/// Operation that only peers with RFC 7306 or uiw peers support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ExtensionOrder {
    /// Send with immediate
    Sendimm,
    /// Write with immediate
    Writeimm,
    /// FetchAdd
    Fetchadd,
    /// CmpSwap
    Cmpswap,
}

impl Args {
    fn options(&self) -> ConnConfig {
        self.conn.peer_options().options().startup_timeout(Duration::from_secs_f64(self.timeout))
    }

    fn private_data(&self) -> Vec<u8> {
        match &self.private_text {
            Some(text) => text.clone().into_bytes(),
            None => (0..self.private_data).map(|at| (at * 5 + 1) as u8).collect(),
        }
    }

    fn orders(&self) -> Result<Vec<Order>> {
        if !self.orders.is_empty() {
            return Ok(self.orders.iter().flat_map(|orders| orders.0.clone()).collect());
        }
        let parsed: std::result::Result<Vec<Orders>, String> =
            USUAL.split(' ').map(str::parse).collect();
        let parsed =
            parsed.map_err(|error| Failure::local("cannot parse the default orders", error))?;
        Ok(parsed.into_iter().flat_map(|orders| orders.0).collect())
    }
}

/// Runs `uiw siwtest`.
pub(crate) fn run(opener: &Opener, args: &Args) -> Result<()> {
    if let Some(address) = args.listen {
        return passive::serve(opener, address, args);
    }
    let peer = resolve(args.host.as_deref().unwrap_or_default(), PORT)?;
    if !args.raw.is_empty() {
        return raw::RawSession::new(&opener.device()?, args)?.connect(peer);
    }
    for number in 0..args.connections {
        let begun = Instant::now();
        run_connection(opener, peer, args)?;
        if args.connections > 1 && args.json {
            let ms = begun.elapsed().as_secs_f64() * 1e3;
            text::json(&json!({"type": "connection", "number": number, "ms": ms}));
        }
    }
    Ok(())
}

fn run_connection(opener: &Opener, peer: SocketAddr, args: &Args) -> Result<()> {
    let device = opener.device()?;
    let pd = device.alloc_pd()?;
    let depths = QueueDepths { sges: MAX_SGES, ..QueueDepths::new(DEPTH, DEPTH) };
    let pending = PendingQp::new(&device, &pd, &depths)?;
    let private_data = args.private_data();
    let begun = Instant::now();
    let mut end = ConnectionEnd::connect(pending, peer, &args.options(), &private_data)?;
    report_established(&end.link.info, begun.elapsed(), args.json);
    if !end.link.info.private_data.starts_with(&private_data) {
        return Err(Failure::differs(peer, "private data did not come back"));
    }
    if let Some(refused) = args.refused {
        return orders::check_refused(&mut end, refused, args.json);
    }
    let outcome = run_orders(&mut end, &args.orders()?, args);
    let drained = end.drain();
    let (posted, done) = end.totals;
    let kind = if outcome.is_ok() { "over" } else { "broken" };
    report(args.json, kind, &json!({"posted": posted, "done": done}), || {
        format!("{kind}: {done} of {posted} requests and receives done")
    });
    outcome.and(drained)
}

fn run_orders(end: &mut ConnectionEnd, orders: &[Order], args: &Args) -> Result<()> {
    let until = Instant::now() + Duration::from_secs_f64(args.seconds);
    let mut seed = 0u32;
    loop {
        for order in orders {
            seed += 1;
            let order = Order { seed: seed.wrapping_mul(41), ..*order };
            let begun = Instant::now();
            let result = orders::give_order(end, order);
            if order.op.ends_connection() {
                return report_ending(end, order, args.json);
            }
            result?;
            if let Some(wrong) = end.wrong.take() {
                return Err(Failure::differs(order, wrong));
            }
            // With repetitions, thousands of lines would be of no use.
            if args.seconds == 0.0 {
                let ms = begun.elapsed().as_secs_f64() * 1e3;
                report(args.json, "order", &json!({"order": order.to_string(), "ms": ms}), || {
                    format!("ok {order} {ms:.1} ms")
                });
            }
        }
        if Instant::now() >= until {
            return Ok(());
        }
    }
}

/// Reports how the connection has ended, after an order that ends it.
fn report_ending(end: &mut ConnectionEnd, order: Order, json: bool) -> Result<()> {
    end.drain()?;
    let why = end.wrong.clone().unwrap_or_else(|| "nothing happened".to_owned());
    report(json, "ended", &json!({"order": order.to_string(), "how": why}), || {
        format!("ended {order}: {why}")
    });
    Ok(())
}

fn report_established(info: &ConnInfo, took: Duration, json: bool) {
    let negotiated = info.negotiated;
    let ms = took.as_secs_f64() * 1e3;
    let details = json!({
        "ms": ms, "revision": negotiated.revision, "crc": negotiated.crc, "ird": negotiated.ird, "ord": negotiated.ord,
        "peer_to_peer": negotiated.peer_to_peer, "rtr": negotiated.rtr.map(|rtr| format!("{rtr:?}").to_lowercase()),
        "private_data": info.private_data.len(),
    });
    report(json, "established", &details, || {
        let rtr = negotiated.rtr.map_or_else(String::new, |rtr| format!(", RTR {rtr:?}"));
        format!(
            "established in {ms:.1} ms: revision {}, CRC {}, IRD {}, ORD {}{rtr}, {} bytes of private data",
            negotiated.revision,
            if negotiated.crc { "on" } else { "off" },
            negotiated.ird,
            negotiated.ord,
            info.private_data.len()
        )
    });
}

fn report(as_json: bool, kind: &str, details: &serde_json::Value, words: impl FnOnce() -> String) {
    if as_json {
        let mut object = json!({"type": kind});
        if let (Some(object), Some(details)) = (object.as_object_mut(), details.as_object()) {
            object.extend(details.clone());
        }
        text::json(&object);
    } else {
        text::line(words());
    }
}

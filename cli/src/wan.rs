//! `uiw wan`: emulates a long, narrow or lossy path between two interfaces.

use crate::shared::args::large_bytes;
use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::stop::StopFlag;
use crate::shared::text;
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use uiw_impair::wan::{Counts, Profile};
use uiw_smol::bridge::{Bridge, BridgeSide, PortCounts};

/// Text of `--help` after the options.
pub(crate) const HELP: &str = "\
Forwards every frame between the two interfaces. The options apply to each direction separately. It runs
until Ctrl-C or SIGTERM, then prints statistics. Needs CAP_NET_RAW. The interfaces should have no addresses of their
own: best is a network namespace with one end of a veth pair for each side.
It warns if frames leave more than a millisecond late: then use --realtime or a smaller --rate.
Super-packets are segmented and checksums completed as in hardware, so the path carries frames as on a wire. VLAN tags
are not carried. The same --seed loses the same frames, counted from the first.

  ip netns add wan; ip link add a type veth peer name eth1 netns wan; ip link add b type veth peer name eth2 netns wan
  ip -n wan link set eth1 up; ip -n wan link set eth2 up
  ip netns exec wan uiw wan eth1 eth2 --delay 5ms --rate 1Gbit --loss 0.1% --burst 3 --seed 1

Exit codes:
  0  ended by a signal, and the statistics were printed
  1  an interface cannot be used, or has disappeared
  2  the command line is wrong";

/// Options of `uiw wan`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// One interface
    #[arg(value_name = "IFACE_A")]
    a: String,
    /// The other
    #[arg(value_name = "IFACE_B")]
    b: String,
    /// One-way delay, such as 5ms
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = time)]
    delay: Duration,
    /// Additional random delay from 0 to TIME; the order is kept
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = time)]
    jitter: Duration,
    /// Frames lost by chance, such as 0.1%
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = share)]
    loss: f64,
    /// Lose frames in runs of this average length instead of individually
    #[arg(long, value_name = "FRAMES", value_parser = burst)]
    burst: Option<f64>,
    /// Frames that one to three later ones overtake
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = share)]
    reorder: f64,
    /// Frames that arrive twice
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = share)]
    duplicate: f64,
    /// Frames that arrive with a flipped bit; ARP, which has no checksum, does not arrive
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = share)]
    damage: f64,
    /// Bits per second, such as 100Mbit or 1Gbit; each frame counts from its Ethernet header on
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<u64>,
    /// Maximum number of queued bytes, such as 64K, 1M or 1G [default: what the line sends in a
    /// round trip, at least 256K]
    #[arg(long, value_name = "BYTES", value_parser = queue)]
    queue: Option<usize>,
    /// Lose IP packets longer than this, without an ICMP message
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(68..))]
    max_packet: Option<u16>,
    /// Random seed; by default a new one each time, which is printed
    #[arg(long)]
    seed: Option<u64>,
    /// Use real-time scheduling (SCHED_FIFO), so that frames are not late on a busy machine; needs
    /// CAP_SYS_NICE and a second processor
    #[arg(long)]
    realtime: bool,
    /// One JSON object when frames are carried, and one at the end
    #[arg(long)]
    json: bool,
}

fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()))
}

pub(crate) fn time(text: &str) -> std::result::Result<Duration, String> {
    let wrong = || "expected a time up to a minute, such as 500us, 5ms or 0.1s".to_owned();
    let seconds = crate::shared::args::parse_time(text).ok_or_else(wrong)?;
    let time = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    if time > Duration::from_secs(60) { Err(wrong()) } else { Ok(time) }
}

fn share(text: &str) -> std::result::Result<f64, String> {
    let percent = text.strip_suffix('%').and_then(|digits| digits.parse::<f64>().ok());
    percent
        .filter(|percent| (0.0..=100.0).contains(percent))
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "expected percent, such as 0.1%".to_owned())
}

pub(crate) fn rate(text: &str) -> std::result::Result<u64, String> {
    let wrong =
        || "expected bits a second from 1kbit to 1000Gbit, such as 10Mbit or 1Gbit".to_owned();
    let (digits, unit) = split(text);
    let unit = match unit {
        "kbit" => 1e3,
        "Mbit" => 1e6,
        "Gbit" => 1e9,
        _ => return Err(wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let bits = number * unit;
    if (1e3..=1e12).contains(&bits) { Ok(bits as u64) } else { Err(wrong()) }
}

fn queue(text: &str) -> std::result::Result<usize, String> {
    let wrong = || "expected bytes from 2000 to 64G, such as 64K, 1M or 1G".to_owned();
    let bytes = usize::try_from(large_bytes(text).map_err(|_| wrong())?).map_err(|_| wrong())?;
    Some(bytes).filter(|bytes| (2000..=64 << 30).contains(bytes)).ok_or_else(wrong)
}

fn burst(text: &str) -> std::result::Result<f64, String> {
    let frames = text.parse().ok().filter(|frames: &f64| *frames >= 1.0 && frames.is_finite());
    frames.ok_or_else(|| {
        "expected the frames of a run, on average 1 at least, such as 3 or 2.5".to_owned()
    })
}

impl Args {
    fn profile(&self) -> Profile {
        Profile {
            delay: self.delay,
            jitter: self.jitter,
            loss: self.loss,
            burst: self.burst,
            reorder: self.reorder,
            duplicate: self.duplicate,
            damage: self.damage,
            rate: self.rate,
            queue: self.queue,
            max_packet: self.max_packet.map(usize::from),
        }
    }
}

/// Runs `uiw wan`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let profile = args.profile();
    profile
        .check()
        .map_err(|error| Failure::usage("invalid path", error, "see `uiw wan --help`"))?;
    if args.a == args.b {
        return Err(Failure::usage(&args.a, "a path has two ends", "name two interfaces"));
    }
    let seed = match args.seed {
        Some(seed) => seed,
        None => {
            getrandom::u64().map_err(|error| Failure::local("cannot get a random seed", error))?
        }
    };
    let stop = StopFlag::on_signal()?;
    let mut bridge = Bridge::open([&args.a, &args.b], &profile, seed)
        .map_err(|error| open_failure(args, &error))?;
    bridge.set_realtime(args.realtime);
    if args.json {
        text::json(
            &json!({ "carrying": [args.a, args.b], "seed": seed, "queue": profile.queue_bytes() }),
        );
    } else {
        text::line(format!("carrying frames between {} and {}, seed {seed}", args.a, args.b));
    }
    let start = Instant::now();
    bridge.run(stop.fd()).map_err(|error| {
        let fix = match error.kind() {
            ErrorKind::PermissionDenied => {
                "`--realtime` needs CAP_SYS_NICE: run as root, or leave it out"
            }
            _ => "see `ip link` for the interfaces' state",
        };
        Failure::new(Exit::Failed, "the path failed", error, fix)
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let sides = [(BridgeSide::A, &args.a, &args.b), (BridgeSide::B, &args.b, &args.a)];
    if args.json {
        let way = |(side, from, to)| {
            let (counts, port) = bridge.counts(side);
            let mut value = as_json(counts, port, seconds);
            value["from"] = json!(from);
            value["to"] = json!(to);
            value
        };
        text::json(&json!({ "seconds": seconds, "seed": seed, "ways": sides.map(way) }));
    } else {
        for (side, from, to) in sides {
            let (counts, port) = bridge.counts(side);
            print_counts(from, to, counts, port, seconds);
        }
    }
    Ok(())
}

fn open_failure(args: &Args, error: &std::io::Error) -> Failure {
    let fix = match error.kind() {
        ErrorKind::PermissionDenied => {
            "it needs CAP_NET_RAW: run as root, or give it with setcap cap_net_raw+ep"
        }
        ErrorKind::NotFound => "see `ip link` for the interfaces there are",
        _ => "see `ip link show` for their state",
    };
    Failure::new(
        Exit::Failed,
        format!("cannot use AF_PACKET on {} and {}", args.a, args.b),
        error,
        fix,
    )
}

/// Returns the mean of `time` over `count` frames, in microseconds.
fn mean_us(time: Duration, count: u64) -> f64 {
    if count == 0 { 0.0 } else { time.as_secs_f64() * 1e6 / count as f64 }
}

fn as_json(counts: &Counts, port: PortCounts, seconds: f64) -> Value {
    json!({
        "frames": counts.offered,
        "bytes": counts.offered_bytes,
        "delivered": counts.delivered,
        "delivered_bytes": counts.delivered_bytes,
        "bits_per_second": counts.delivered_bytes as f64 * 8.0 / seconds,
        "lost": counts.lost,
        "runs": counts.runs,
        "queue_full": counts.queue_full,
        "too_long": counts.too_long,
        "too_many": counts.too_many,
        "duplicated": counts.duplicated,
        "reordered": counts.reordered,
        "damaged": counts.damaged,
        "most_queued": counts.most_queued,
        "way_us_mean": mean_us(counts.way, counts.delivered),
        "late_us_mean": mean_us(counts.late, counts.delivered),
        "late_us_max": counts.latest.as_secs_f64() * 1e6,
        "missed": port.missed,
        "refused": port.refused,
        "unknown": port.unknown,
    })
}

fn print_counts(from: &str, to: &str, counts: &Counts, port: PortCounts, seconds: f64) {
    let share = |count: u64| count as f64 * 100.0 / counts.offered.max(1) as f64;
    text::line(format!(
        "{from} to {to}: {} frames, {} delivered at {:.1} Mbit/s",
        text::grouped(counts.offered),
        text::grouped(counts.delivered),
        counts.delivered_bytes as f64 * 8.0 / seconds / 1e6
    ));
    text::line(format!(
        "    lost {} ({:.3} %) in {} runs, queue full {}, too long {}, doubled {}, overtaken {}, damaged {}",
        counts.lost,
        share(counts.lost),
        counts.runs,
        counts.queue_full,
        counts.too_long,
        counts.duplicated,
        counts.reordered,
        counts.damaged
    ));
    text::line(format!(
        "    way {} on average; later than due {} on average, {} at most; {} bytes queued at most",
        text::micros(mean_us(counts.way, counts.delivered)),
        text::micros(mean_us(counts.late, counts.delivered)),
        text::micros(counts.latest.as_secs_f64() * 1e6),
        counts.most_queued
    ));
    let beside = port.missed + port.refused + port.unknown + counts.too_many;
    if beside > 0 {
        text::line(format!(
            "    not by the path: {} missed, {} refused by {to}, {} not understood, {} for want of memory",
            port.missed, port.refused, port.unknown, counts.too_many
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_units() {
        assert_eq!(time("5ms"), Ok(Duration::from_millis(5)));
        assert_eq!(time("0.1s"), Ok(Duration::from_millis(100)));
        assert_eq!(time("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(share("0.5%"), Ok(0.005));
        assert_eq!(rate("1Gbit"), Ok(1_000_000_000));
        assert_eq!(rate("2.5Mbit"), Ok(2_500_000));
        for wrong in ["5", "ms", "-1ms", "1h", ""] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert!(share("1").is_err() && share("101%").is_err() && share("x%").is_err());
        for wrong in
            ["100", "1GB", "0.5kbit", "0Gbit", "1001Gbit", "99999999999999999999Gbit", "", "Mbit"]
        {
            assert!(rate(wrong).unwrap_err().contains("1kbit to 1000Gbit"), "{wrong}");
        }
        for wrong in ["61s", "99999999999999999999s", "60000.1ms"] {
            assert!(time(wrong).unwrap_err().contains("up to a minute"), "{wrong}");
        }
        assert_eq!(
            (queue("2000"), queue("64k"), queue("3M")),
            (Ok(2000), Ok(64 << 10), Ok(3 << 20))
        );
        assert_eq!(queue("2G"), Ok(2 << 30));
        for wrong in ["1999", "1K", "65G", "99999999999999999999G", "1.5M", "M", "1Mbit", ""] {
            assert!(queue(wrong).unwrap_err().contains("2000 to 64G"), "{wrong}");
        }
        assert_eq!((burst("1"), burst("2.5")), (Ok(1.0), Ok(2.5)));
        for wrong in ["x", "0.5", "inf", "nan", "-3", ""] {
            assert!(burst(wrong).unwrap_err().contains("1 at least"), "{wrong}");
        }
    }
}

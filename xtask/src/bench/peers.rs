//! Comparison of `uiw perf` with raw TCP and with other libraries in user space, UCX and libfabric
//! over TCP, for the same operation, size and depth.
//!
//! uiw computes CRCs, the others do not. The program that posts messages of 64 bytes polls, and the
//! one that posts larger messages sleeps; `ucx_perftest` and `fi_pingpong` always poll.
//! `fi_pingpong` prints means, so it is compared with our mean. In round trips, each end runs on
//! its own processor.

use super::programs::{
    Lab, Slice, clean_command, figure, json_object, pair, require_programs, rotate,
};
use super::{RatioLine, TableRow, Unit};
use std::path::Path;
use std::process::Command;
use uiw_siw::{Error, Result};

/// Length of a peer's run in seconds, which is that of a slice of `uiw perf --compare`.
const RUN: f64 = 0.2;

/// Operation, size in bytes and depth to measure. Round trips have a depth of 1.
#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) op: &'static str,
    pub(super) size: u32,
    pub(super) depth: u32,
}

/// Operations, each with its depths for the [`SIZES`]. The depths are the defaults of `uiw perf`.
const STREAMS: [(&str, [u32; 4]); 3] =
    [("write", [128, 128, 16, 2]), ("read", [128, 128, 64, 4]), ("send", [128, 128, 16, 2])];
/// Sizes of the messages of streams, in bytes.
const SIZES: [u32; 4] = [64, 4096, 65536, 1 << 20];

/// Returns the rows of streams, and of round trips with these operations and sizes.
pub(super) fn case_rows(
    round_trips: &[(&'static str, u32)],
    run: fn(&Lab, Case) -> Result<Vec<RatioLine>>,
) -> Vec<TableRow> {
    let streams = STREAMS.iter().flat_map(|(op, depths)| {
        SIZES.iter().zip(depths).map(|(size, depth)| Case { op, size: *size, depth: *depth })
    });
    let row = |case: Case| {
        let behind = if case.is_latency() { ", round trip" } else { "" };
        TableRow::new(format!("{} {}{behind}", case.op, case.size), None, move |lab| run(lab, case))
    };
    streams
        .chain(round_trips.iter().map(|(op, size)| Case { op, size: *size, depth: 1 }))
        .map(row)
        .collect()
}

pub(super) fn rows() -> Vec<TableRow> {
    let sends = SIZES.map(|size| ("send", size));
    case_rows(&[&[("write", 64), ("read", 64)], &sends[..]].concat(), measure)
}

/// Figures of a slice by name: `uiw`, `mean` (our mean), and names that begin with `of ` for other
/// stacks.
type Figures = Vec<(&'static str, f64)>;

impl Case {
    pub(super) fn is_latency(self) -> bool {
        self.depth == 1
    }

    /// Returns the arguments of `uiw perf`.
    pub(super) fn arguments(self) -> String {
        let spin = if self.size < 4096 { " --spin" } else { "" };
        let how = if self.is_latency() {
            "--latency".to_owned()
        } else {
            format!("--depth {}{spin}", self.depth)
        };
        format!("--compare --slices 1 --json --op {} --size {} {how}", self.op, self.size)
    }

    /// Reads the figures that `uiw perf` prints with these arguments: messages per second, or
    /// microseconds of a round trip.
    pub(super) fn compared(self, printed: &str) -> Result<Figures> {
        let value = json_object(printed)?;
        let of = |key: &str, who: &str| figure(&value, &format!("/{key}/{who}/median"));
        if self.is_latency() {
            let mean = of("round_trip_us_mean", "uiw")?;
            return Ok(vec![
                ("uiw", of("round_trip_us_p50", "uiw")?),
                ("of raw TCP", of("round_trip_us_p50", "raw")?),
                ("mean", mean),
            ]);
        }
        let rate = |who: &str| Ok::<_, Error>(of("bytes_per_second", who)? / f64::from(self.size));
        let mut all = vec![("uiw", rate("uiw")?), ("of raw TCP, large writes", rate("raw")?)];
        let one_by_one = of("one_write_a_message", "raw_messages_per_second");
        all.extend(one_by_one.map(|rate| ("of raw TCP, one by one", rate)));
        Ok(all)
    }

    fn unit(self) -> Unit {
        match (self.is_latency(), self.size) {
            (true, _) => (1.0, "us"),
            (false, ..4096) => (1e3, "k/s"),
            _ => (1e6 / f64::from(self.size), "MB/s"),
        }
    }

    /// Returns the ratios of our figures to those of each peer.
    pub(super) fn lines(self, rounds: &[Vec<Figures>]) -> Vec<RatioLine> {
        let all = || rounds.iter().flatten().flatten();
        let of = |name: &str| {
            all().filter(|(other, _)| *other == name).map(|(_, figure)| *figure).collect::<Vec<_>>()
        };
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in all().filter(|(name, _)| name.starts_with("of ")) {
            if !names.contains(name) {
                names.push(name);
            }
        }
        let ours = |name: &str| of(if name.contains("(mean)") { "mean" } else { "uiw" });
        names
            .into_iter()
            .map(|name| RatioLine::ratio(name, &ours(name), &of(name), self.unit()))
            .collect()
    }
}

/// Program of a peer.
#[derive(Clone, Copy)]
enum PeerProgram {
    Ucx,
    /// libfabric with this kind of endpoint.
    Fabric(&'static str),
}

const PEERS: [(&str, PeerProgram); 3] = [
    ("of UCX, tcp", PeerProgram::Ucx),
    ("of libfabric, tcp (mean)", PeerProgram::Fabric("msg")),
    ("of libfabric, tcp;rxm (mean)", PeerProgram::Fabric("rdm")),
];

fn measure(lab: &Lab, case: Case) -> Result<Vec<RatioLine>> {
    require_programs(&[("ucx_perftest", "ucx-utils"), ("fi_pingpong", "libfabric-bin")])?;
    let program = lab.uiw()?;
    let mut slices: Vec<Box<dyn Fn(u32) -> Result<Figures> + '_>> =
        vec![Box::new(|_| uiw(&program, case))];
    let can = |peer: PeerProgram| {
        matches!(peer, PeerProgram::Ucx) || (case.is_latency() && case.op == "send")
    };
    for (name, peer) in PEERS.into_iter().filter(|(_, peer)| can(*peer)) {
        let few = if case.size < 65536 { 1000 } else { 50 };
        let tried = peer.run(case, few)?;
        let rate = if case.is_latency() { 1e6 / tried } else { tried };
        let count = ((rate * RUN) as u64).clamp(few, 5_000_000);
        slices.push(Box::new(move |_| Ok(vec![(name, peer.run(case, count)?)])));
    }
    let slices: Vec<Slice<'_, _>> = slices.iter().map(|slice| &**slice as Slice<'_, _>).collect();
    Ok(case.lines(&rotate(lab.rounds, &slices)?))
}

fn uiw(program: &Path, case: Case) -> Result<Figures> {
    let command = |end, args: String| {
        let mut command = on_own_processor(&program.to_string_lossy(), case, end);
        command.args(args.split(' '));
        command
    };
    let server = |port| command(1, format!("serve --listen 127.0.0.1:{port}"));
    case.compared(&pair(0, false, server, |port| {
        command(0, format!("perf {} 127.0.0.1:{port}", case.arguments()))
    })?)
}

/// Returns a command that runs an end of a ping-pong on its own processor, if there are two.
fn on_own_processor(program: &str, case: Case, end: u8) -> Command {
    let alone = std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2);
    if !case.is_latency() || alone {
        return clean_command(program);
    }
    let mut command = clean_command("taskset");
    command.args(["-c", &end.to_string(), program]);
    command
}

impl PeerProgram {
    /// Transfers `count` messages. Returns messages per second, or microseconds of a round trip.
    fn run(self, case: Case, count: u64) -> Result<f64> {
        let printed = pair(
            0,
            true,
            |port| self.command(case, count, port, 1),
            |port| self.command(case, count, port, 0),
        )?;
        let figure = match self {
            Self::Ucx if case.is_latency() => {
                // A ping-pong of UCX reports the time of one direction, a get that of both.
                let ways = if case.op == "read" { 1.0 } else { 2.0 };
                column(&printed, ',', "50.0_percentile_lat").map(|us| ways * us)
            }
            Self::Ucx => column(&printed, ',', "overall_mr"),
            Self::Fabric(_) => column(&printed, ' ', "usec/xfer").map(|us| 2.0 * us),
        };
        let figure = figure.filter(|figure| *figure > 0.0);
        figure.ok_or_else(|| Error::Failed(format!("a peer prints no figure: {}", printed.trim())))
    }

    fn command(self, case: Case, count: u64, port: u16, end: u8) -> Command {
        let Case { op, size, depth } = case;
        match self {
            Self::Ucx => {
                let test = match (op, case.is_latency()) {
                    ("write", false) => "ucp_put_bw",
                    ("write", true) => "ucp_put_lat",
                    // With a depth of 1, this test measures the latency.
                    ("read", _) => "ucp_get",
                    (_, false) => "tag_bw",
                    (_, true) => "tag_lat",
                };
                let mut command = on_own_processor("ucx_perftest", case, end);
                command.args((end == 0).then_some("127.0.0.1"));
                command.args(
                    format!("-t {test} -p {port} -f -v -w 100 -s {size} -n {count} -O {depth}")
                        .split(' '),
                );
                command.envs([
                    ("UCX_TLS", "tcp"),
                    ("UCX_NET_DEVICES", "lo"),
                    ("UCX_WARN_UNUSED_ENV_VARS", "n"),
                ]);
                command
            }
            Self::Fabric(endpoint) => {
                let mut command = on_own_processor("fi_pingpong", case, end);
                let to =
                    if end == 0 { format!("-P {port} 127.0.0.1") } else { format!("-B {port}") };
                command.args(format!("-p tcp -e {endpoint} -S {size} -I {count} {to}").split(' '));
                command
            }
        }
    }
}

/// Returns the number in a column of a table, from the first line with numbers.
fn column(printed: &str, separator: char, name: &str) -> Option<f64> {
    let fields = |line: &str| -> Vec<String> {
        line.split(separator)
            .map(str::trim)
            .filter(|field| !field.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let mut lines =
        printed.lines().map(fields).skip_while(|fields| !fields.iter().any(|field| field == name));
    let place = lines.next()?.iter().position(|field| field == name)?;
    lines.find_map(|fields| fields.get(place)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_peers_read() {
        let ucx = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n  50,3.472,415.772,415.772,150.32,150.32,2405,2406\n";
        assert_eq!(column(ucx, ',', "overall_mr"), Some(2406.0));
        assert_eq!(column(ucx, ',', "50.0_percentile_lat"), Some(3.472));
        let fabric = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                      64k     1k      =1k      125m        4.59s     28.55    2295.64       0.00\n";
        assert_eq!(column(fabric, ' ', "usec/xfer"), Some(2295.64));
        assert_eq!(column("fi_getinfo(): ret=-61 (No data available)\n", ' ', "usec/xfer"), None);
    }
}

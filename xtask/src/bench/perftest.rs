//! Comparison of Debian's perftest on the C libraries, connected by rdma_cm and out of band, with
//! `uiw perf` and raw TCP for the same operation, size, depth and signaling, with CRCs. With default
//! settings, it is compared with iperf3 over TCP.

use super::programs::{
    Lab, busy_share, clean_command, figure, json_object, output, pair, require_programs, rotate,
};
use super::sockets::{self, IPERF};
use super::{RatioBar, RatioLine, TableRow, median};
use std::path::Path;
use uiw_siw::{Error, Result};

/// Length of a run of perftest in seconds. Unlike `uiw perf`, perftest also counts the first bytes.
const RUN: f64 = 1.2;
/// Number of requests in progress.
const DEPTH: u32 = 128;

/// Requests to measure. One of `signal_every` requests asks for a completion.
#[derive(Clone, Copy)]
struct PerftestCase {
    op: &'static str,
    size: u32,
    signal_every: u32,
}

pub(super) fn rows() -> Vec<TableRow> {
    let cases = [
        ("write", 64, 100),
        ("write", 64, 1),
        ("write", 4096, 100),
        ("write", 65536, 1),
        ("write", 1 << 20, 1),
        ("read", 64, 1),
        ("read", 65536, 1),
        ("read", 1 << 20, 1),
        ("send", 64, 100),
        ("send", 64, 1),
        ("send", 65536, 1),
        ("send", 1 << 20, 1),
    ];
    let row = |(op, size, signal_every)| {
        let case = PerftestCase { op, size, signal_every };
        TableRow::new(format!("{op} {size}, signaled 1 in {signal_every}"), BAR, move |lab| {
            measure(lab, case)
        })
    };
    let mut rows: Vec<_> = cases.into_iter().map(row).collect();
    for persona in ["iwarp", "roce"] {
        for op in ["write", "send", "read"] {
            rows.extend([65536, 1 << 20].map(|size| {
                let name = format!("ib_{op}_bw {size}, {persona}, beside iperf3");
                TableRow::new(name, BAR, move |lab| beside_iperf(lab, persona, op, size))
            }));
        }
    }
    rows
}

const BAR: RatioBar = RatioBar::AtLeast(0.90);

fn measure(lab: &Lab, case: PerftestCase) -> Result<Vec<RatioLine>> {
    require_programs(&[("ib_write_bw", "perftest")])?;
    let program = lab.installed()?;
    let count = ((uiw(&program, case)?[0] * RUN) as u64).clamp(1000, 20_000_000);
    let perftest =
        |by_cm| perftest(&program, case, count, by_cm).map(|rate| [rate, f64::NAN, f64::NAN]);
    let rounds =
        rotate(lab.rounds, &[&|_| perftest(true), &|_| perftest(false), &|_| uiw(&program, case)])?;
    let of = |slice: usize, figure: usize| -> Vec<f64> {
        rounds[slice].iter().map(|figures| figures[figure]).collect()
    };
    let unit = (1e3, "k/s");
    let noise = median(&of(2, 2));
    let line = |what: &str, slice, figure| {
        RatioLine::ratio(what, &of(slice, 0), &of(2, figure), unit).noise(noise)
    };
    Ok(vec![
        line("-R of uiw perf", 0, 0),
        line("out of band of uiw perf", 1, 0).bar(BAR),
        line("-R of raw TCP", 0, 1),
        line("out of band of raw TCP", 1, 1),
    ])
}

/// Measures the messages per second of `uiw perf` and of raw TCP, and the ratio of raw TCP to
/// itself.
fn uiw(program: &Path, case: PerftestCase) -> Result<[f64; 3]> {
    let PerftestCase { op, size, signal_every } = case;
    let mut command = clean_command(program);
    let args = format!(
        "perf --compare --slices 1 --json --spin --op {op} --size {size} --depth {DEPTH} --signal-every {signal_every}"
    );
    command.args(args.split(' '));
    // ib_write_bw registers its source for remote writing, so the payload is copied before its CRC
    // is computed.
    if op == "write" {
        command.args(["--stable-tx", "on"]);
    }
    let value = json_object(&output(&command)?)?;
    let rate = |who: &str| {
        figure(&value, &format!("/bytes_per_second/{who}/median"))
            .map(|rate| rate / f64::from(size))
    };
    Ok([rate("uiw")?, rate("raw")?, figure(&value, "/noise/median")?])
}

/// Measures the messages per second of perftest.
fn perftest(program: &Path, case: PerftestCase, count: u64, by_cm: bool) -> Result<f64> {
    let PerftestCase { op, size, signal_every } = case;
    // On an iWARP device, the Sends of perftest do additional work: the receiver writes credits to
    // the sender, which stops without them. If it is connected out of band, it also fails at the
    // end, because it leaves the region of its credits registered. With the other personas, the
    // bytes on the wire and the meaning of completions are the same, unless they wait for the peer.
    let persona = if by_cm && op != "send" { "iwarp" } else { "roce" };
    let mut args = format!("--persona {persona} -- ib_{op}_bw -s {size} -n {count} -t {DEPTH}");
    if op != "read" || signal_every > 1 {
        args += &format!(" -Q {signal_every}");
    }
    if by_cm {
        args += " -R";
    }
    run_pair(program, &args, size, Some(("UIW_ACK", "off")))
}

/// Number of bytes that a run with default settings transfers.
const BYTES: u64 = 6 << 30;

/// Compares perftest with iperf3, which sends messages of the same size over TCP. Both have default
/// settings, except for the length of the run. With persona iwarp, perftest connects by rdma_cm, as
/// iWARP requires.
fn beside_iperf(lab: &Lab, persona: &str, op: &str, size: u32) -> Result<Vec<RatioLine>> {
    require_programs(&[("ib_write_bw", "perftest"), ("iperf3", "iperf3")])?;
    let program = lab.installed()?;
    let congestion = lab.options.congestion.as_deref();
    let by_cm = if persona == "iwarp" { " -R" } else { "" };
    let args = format!(
        "--persona {persona} -- ib_{op}_bw -s {size} -n {}{by_cm}",
        BYTES / u64::from(size)
    );
    let perftest = || {
        let rate =
            run_pair(&program, &args, size, congestion.map(|name| ("UIW_CONGESTION", name)))?;
        Ok(rate * f64::from(size))
    };
    let size = size.to_string();
    let mut options = vec!["-l", &size];
    options.extend(congestion.iter().flat_map(|name| ["-C", name]));
    let iperf = || sockets::slice(&program, IPERF, None, &options);
    let slice = |run: &dyn Fn() -> Result<f64>| Ok([busy_share()?, run()?]);
    let rounds = rotate(lab.rounds, &[&|_| slice(&perftest), &|_| slice(&iperf)])?;
    let of = |slice: usize| rounds[slice].iter().map(|figures| figures[1]).collect::<Vec<_>>();
    let busy: Vec<_> = rounds.iter().flatten().map(|figures| figures[0]).collect();
    Ok(vec![RatioLine::ratio("of iperf3", &of(0), &of(1), IPERF.unit).noise(1.0 + median(&busy))])
}

/// Runs both ends of perftest with these arguments of `uiw run`, and returns the messages per
/// second.
fn run_pair(program: &Path, args: &str, size: u32, env: Option<(&str, &str)>) -> Result<f64> {
    let command = |port: u16| {
        let mut command = clean_command(program);
        command.arg("run").args(args.split(' '));
        command.args(["-d", "uiw_lo", "-F", "-p", &port.to_string()]);
        command.envs(env);
        command
    };
    let client = |port: u16| {
        let mut command = command(port);
        command.arg("127.0.0.1");
        command
    };
    let printed = pair(0, true, command, client)?;
    rate(&printed, size).ok_or_else(|| Error::Failed(format!("{args}: no figure in: {printed}")))
}

/// Parses the messages per second in perftest's table, whose columns are bytes, iterations, peak,
/// average, and millions of messages per second.
fn rate(printed: &str, size: u32) -> Option<f64> {
    let lines = printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let fields =
        lines.into_iter().find(|fields| fields.len() >= 5 && fields[0] == size.to_string())?;
    fields[4].parse::<f64>().ok().map(|millions| millions * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_perftest_read() {
        let printed = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                       64         1000000          0.00               199.25 \t\t   3.264524\n";
        assert_eq!(rate(printed, 64), Some(3_264_524.0));
        assert_eq!(rate(printed, 65), None);
    }
}
